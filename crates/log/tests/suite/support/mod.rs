//! Test support for unit and integration tests of the log: small logs, messages, and damage to files.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_log::disk::sim::SimDisk;
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{EmbeddedLog, Log, LogOptions, Offset, PartitionId, ReadOptions, Records, WriteBatch};

/// File size of [`small_files`].
pub const FILE: u64 = 256 << 10;
/// Longer than any wait takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Files of this size, including the first one, without a minimum of free space.
pub fn options(file_bytes: u64) -> LogOptions {
    LogOptions {
        file_bytes,
        first_file_bytes: file_bytes,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    }
}

/// Files that fill up soon and are moved without throttling.
pub fn small_files() -> LogOptions {
    LogOptions {
        spare: 2,
        io_bytes_per_second: 0,
        ..options(FILE)
    }
}

/// Opens a log with [`small_files`].
pub fn open(disk: &SimDisk) -> EmbeddedLog {
    open_with(disk, &small_files())
}

/// Opens a log on a simulated disk.
pub fn open_with(disk: &SimDisk, options: &LogOptions) -> EmbeddedLog {
    EmbeddedLog::open(Arc::new(disk.clone()), 7, options).unwrap()
}

/// Opens a log on a real disk, with files that are large enough for most tests.
pub fn open_folder(folder: &Path) -> EmbeddedLog {
    let options = LogOptions {
        first_file_bytes: 1 << 20,
        ..options(4 << 20)
    };
    EmbeddedLog::open(Arc::new(FolderDisk::open(folder).unwrap()), 7, &options).unwrap()
}

/// One record with this value.
pub fn one_record(value: &[u8]) -> Records {
    let mut records = Records::new();
    records.push(&RecordRef::of(1, value)).unwrap();
    records
}

/// A batch with one record for one partition.
pub fn message(id: PartitionId, value: &[u8]) -> WriteBatch {
    WriteBatch::of(id, one_record(value))
}

/// Appends a message that must be accepted. Returns its offset.
pub async fn append(log: &EmbeddedLog, id: PartitionId, value: &[u8]) -> Offset {
    let appended = log.append(message(id, value)).await.unwrap();
    appended.offsets[0]
}

/// All stored values of a partition, read in several pieces if there are many.
pub fn values(log: &dyn Log, id: PartitionId) -> Vec<Vec<u8>> {
    let (mut values, mut from) = (Vec::new(), log.bounds(id).unwrap().first);
    let want = ReadOptions {
        bytes: 100_000,
        synced: false,
    };
    loop {
        let frames = log.read(id, from, want).unwrap();
        let Some(last) = frames.last() else { return values };
        from = last.header.next();
        for frame in &frames {
            values.extend(records(&frame.body).map(|record| record.unwrap().value.to_vec()));
        }
    }
}

/// Waits for a condition that the log establishes in the background.
pub async fn until(log: &EmbeddedLog, what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{what}: {:?}", log.counters());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// All bytes of a file.
pub fn bytes_of(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Overwrites bytes of a file durably.
pub fn overwrite(disk: &dyn Disk, name: &str, at: u64, bytes: &[u8]) {
    let file = disk.open(name).unwrap();
    file.write_at(bytes, at).unwrap();
    file.sync().unwrap();
}

/// Flips a bit in the first occurrence of a text.
pub fn damage(disk: &dyn Disk, text: &str) {
    for name in disk.names().unwrap() {
        let bytes = bytes_of(disk, &name);
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return overwrite(disk, &name, at as u64, &[bytes[at] ^ 1]);
        }
    }
    panic!("{text} is nowhere");
}
