//! What the disk itself allows, by a plain program without queues or log: the yardstick of the durable rows, measured in
//! the same run on the same file system. The file is written before, as the log's files are, so that no sync has to
//! allocate.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use crate::harness::{Measured, OnDisk, Session, long_row, measure, percentiles};
use crate::histogram::Histogram;

pub const NAMES: [&str; 2] = ["disk_fdatasync", "disk_write"];

const FILE_BYTES: usize = 256 << 20;

pub fn run(session: &Session) {
    for (name, block) in NAMES.into_iter().zip([4 << 10, 1 << 20]) {
        long_row(session, name, || write_and_sync(session, block));
    }
}

/// One block after the other, each synced before the next; around and around in one file. An op is a block.
fn write_and_sync(session: &Session, block_bytes: usize) -> Measured {
    let path = session.folder.join(format!("disk-{}", std::process::id()));
    let file = File::create(&path).unwrap();
    let block: Vec<u8> = (0..1 << 20)
        .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for at in (0..FILE_BYTES).step_by(block.len()) {
        file.write_all_at(&block, at as u64).unwrap();
    }
    file.sync_all().unwrap();
    let mut times = Histogram::default();
    let until = Instant::now() + Duration::from_secs_f64(session.seconds());
    let mut count = 0;
    let mut measured = measure(|| {
        while Instant::now() < until {
            let start = Instant::now();
            let at = count as usize * block_bytes % FILE_BYTES;
            file.write_all_at(&block[..block_bytes], at as u64).unwrap();
            file.sync_data().unwrap();
            times.record(start.elapsed());
            count += 1;
        }
        (count, count)
    });
    std::fs::remove_file(&path).unwrap();
    measured.percentiles = Some(percentiles(&times));
    let bytes = count * block_bytes as u64;
    measured.on_disk = Some(OnDisk {
        durability: "fsync",
        syncs: count,
        written: bytes,
        payload: bytes,
    });
    measured
}
