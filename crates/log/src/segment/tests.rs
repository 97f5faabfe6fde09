use super::*;
use crate::disk::sim::SimDisk;
use crate::durability::Durability;
use crate::embedded::EmbeddedLog;
use crate::format::record::records;
use crate::options::LogOptions;
use crate::test_support;

const ID: PartitionId = PartitionId::new(1, 0);

fn open(disk: &SimDisk) -> EmbeddedLog {
    let options = LogOptions {
        spare: 2,
        files_max: 1,
        io_bytes_per_second: 0,
        ..test_support::options(8 << 20)
    };
    test_support::open_with(disk, &options)
}

/// Sizes that are not powers of two, so that frames and pieces are not aligned.
fn value(n: u64) -> Vec<u8> {
    vec![n as u8; if n < SMALL { 600_001 } else { 2_500_003 }]
}

/// The first values are smaller than a piece, those from this index on are not.
const SMALL: u64 = 60;
const ALL: u64 = 75;

async fn append(log: &EmbeddedLog, values: std::ops::Range<u64>) {
    for n in values {
        test_support::append(log, ID, &value(n)).await;
    }
}

async fn moved(log: &EmbeddedLog, bytes: u64) {
    test_support::until(log, "so much is moved", || log.counters().moved_bytes >= bytes).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_wait_for_one_piece_of_what_is_moved_at_most_and_all_of_it_is_there() {
    let disk = SimDisk::new(1, 256 << 20);
    let log = open(&disk);
    log.create(ID, Durability::Fsync).await.unwrap();
    append(&log, 0..SMALL).await;
    moved(&log, 16 << 20).await;
    assert_eq!(disk.synced_bytes_max(), PIECE as u64);
    append(&log, SMALL..ALL).await;
    moved(&log, 50 << 20).await;
    log.close();
    disk.power_cut();
    let log = open(&disk);
    assert!(log.counters().segments > 1);
    let mut from = 0;
    while from < ALL {
        for frame in log.read(ID, from, 1).unwrap() {
            for record in records(&frame.body) {
                assert!(record.unwrap().value == value(from), "record {from}");
                from += 1;
            }
        }
    }
}
