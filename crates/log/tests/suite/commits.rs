//! When the writer writes, observed through the log's public interface.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{PATIENCE, append, open_with, options, until};
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::{DumpLine, DumpOptions, Durability, EmbeddedLog, LogOptions, PartitionId, dump};

const ID: PartitionId = PartitionId::new(1, 0);

fn open(disk: &SimDisk, linger: Duration) -> Arc<EmbeddedLog> {
    let options = LogOptions {
        spare: 1,
        linger,
        ..options(1 << 20)
    };
    Arc::new(open_with(disk, &options))
}

/// The number of blocks without frames, and of all blocks.
fn blocks(disk: &SimDisk) -> (usize, usize) {
    let (mut idle, mut all) = (0, 0);
    dump(disk, &DumpOptions::default(), &mut |line| {
        if let DumpLine::Block { frames, .. } = line {
            idle += usize::from(*frames == 0);
            all += 1;
        }
        true
    })
    .unwrap();
    (idle, all)
}

#[tokio::test]
async fn an_idle_writer_says_once_what_is_synced_and_so_does_a_clean_stop() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk, Duration::ZERO);
    log.create(ID, Durability::Fsync).await.unwrap();
    append(&log, ID, b"x").await;
    until(&log, "an idle writer says something", || blocks(&disk).0 > 0).await;
    // It would say it again after one more second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(blocks(&disk).0, 1, "there is nothing new to say");
    append(&log, ID, b"x").await;
    let before = blocks(&disk);
    log.close();
    assert_eq!(blocks(&disk), (before.0 + 1, before.1 + 1));
    let last = blocks(&disk).1;
    drop(log);
    let report = open(&disk, Duration::ZERO).report();
    assert_eq!((report.torn_bytes, report.last_sequence), (0, last as u64));
}

#[tokio::test]
async fn a_sync_of_an_interval_is_not_followed_by_an_idle_block() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk, Duration::ZERO);
    log.create(ID, Durability::Interval).await.unwrap();
    for _ in 0..6 {
        append(&log, ID, b"x").await;
        // It is synced meanwhile. Few machines are so slow that the writer becomes idle in between.
        until(&log, "it is synced", || {
            log.bounds(ID).unwrap().synced == log.bounds(ID).unwrap().next
        })
        .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(blocks(&disk).0 <= 2, "{:?}", blocks(&disk));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_alone_never_waits_for_others() {
    let disk = SimDisk::new(1, 64 << 20);
    // Long enough that a test that waits for it fails.
    let log = open(&disk, Duration::from_secs(3600));
    log.create(ID, Durability::Fsync).await.unwrap();
    let alone = async {
        for _ in 0..50 {
            append(&log, ID, b"x").await;
        }
    };
    tokio::time::timeout(PATIENCE, alone).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_linger_of_zero_nobody_waits_for_the_size_of_the_last_group() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk, Duration::ZERO);
    log.create(ID, Durability::Fsync).await.unwrap();
    let several = async {
        for round in 0..50 {
            // Fewer publishers return each time.
            let publishers: Vec<_> = (0..1 + (50 - round) / 4)
                .map(|_| {
                    let log = log.clone();
                    tokio::spawn(async move { append(&log, ID, b"x").await })
                })
                .collect();
            for publisher in publishers {
                publisher.await.unwrap();
            }
        }
    };
    tokio::time::timeout(PATIENCE, several).await.unwrap();
}
