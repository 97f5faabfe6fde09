//! Who looks after what is stored is told when a file is full.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_log::disk::Folder;
use thalweg_log::{Durability, EmbeddedLog, Log, PartitionId};

use crate::support::{FILE, append, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_file_that_is_full_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Folder::open(folder.path()).unwrap();
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
