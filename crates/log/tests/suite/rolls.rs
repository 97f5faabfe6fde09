//! Full files: listeners are notified, and erased data is in none of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use std::path::Path;

use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, Log, PartitionId};

use crate::support::{FILE, append, options, small_files, values};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_file_that_is_full_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FolderDisk::open(folder.path()).unwrap();
    let log = EmbeddedLog::open(Arc::new(disk), 7, &options(FILE)).unwrap();
    let rolls = Arc::new(AtomicU64::new(0));
    let counted = rolls.clone();
    Log::on_roll(
        &log,
        Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        }),
    );
    let id = PartitionId::new(3, 0);
    log.create(id, Durability::Os).await.unwrap();
    for _ in 0..60 {
        append(&log, id, &[0; 16 << 10]).await;
    }
    let full = log.counters().full_files as u64;
    assert!(full > 2);
    assert_eq!(rolls.load(Ordering::SeqCst), full);
}

/// Whether a file of a folder contains these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let content = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        content.windows(bytes.len()).any(|window| window == bytes)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_erased_is_in_no_file_and_the_rest_is_still_there() {
    const SECRET: &[u8] = b"a secret of somebody";
    let (own, busy) = (PartitionId::new(3, 0), PartitionId::new(3, 1));
    for fill in [0, 3, 40] {
        let folder = tempfile::tempdir().unwrap();
        let open = || EmbeddedLog::open(Arc::new(FolderDisk::open(folder.path()).unwrap()), 7, &small_files()).unwrap();
        let log = Arc::new(open());
        for id in [own, busy] {
            log.create(id, Durability::Os).await.unwrap();
        }
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        let mut secrets = Vec::new();
        for n in 0..20u8 {
            secrets.push(append(&log, own, &[SECRET, &[n]].concat()).await);
            append(&log, own, &[b'k', n]).await;
            kept.push(vec![b'k', n]);
            for _ in 0..fill {
                let other = vec![n; 8 << 10];
                append(&log, busy, &other).await;
                others.push(other);
            }
        }
        log.sync().await.unwrap();
        assert!(holds(folder.path(), SECRET), "fill {fill}");
        // A concurrent writer.
        let writing = log.clone();
        let writer = tokio::spawn(async move {
            let mut more = Vec::new();
            for n in 0..50u8 {
                more.push(vec![n; 4 << 10]);
                append(&writing, busy, &[n; 4 << 10]).await;
            }
            more
        });
        log.roll().await.unwrap();
        let erasing = log.clone();
        let erased = tokio::task::spawn_blocking(move || {
            erasing.rewrite(own, &|offset, _| !secrets.contains(&offset)).unwrap();
            erasing.erase()
        });
        erased.await.unwrap().unwrap();
        assert!(!holds(folder.path(), SECRET), "fill {fill}");
        others.extend(writer.await.unwrap());
        for _ in 0..2 {
            assert_eq!(values(log.as_ref(), own), kept, "fill {fill}");
            assert_eq!(values(log.as_ref(), busy), others, "fill {fill}");
        }
        log.close();
        let log = open();
        assert_eq!(values(&log, own), kept, "fill {fill}");
        assert_eq!(values(&log, busy), others, "fill {fill}");
        assert!(!holds(folder.path(), SECRET), "fill {fill}");
    }
}
