//! What tests of the log share, those beside the code and those through its public face: small logs, messages in them, and
//! damage to their files.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_log::disk::sim::SimDisk;
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{EmbeddedLog, Log, LogOptions, Offset, PartitionId, ReadOptions, Records, WriteBatch};

/// Bytes of a file of [`small_files`].
pub const FILE: u64 = 256 << 10;
/// Longer than anything that is waited for takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Files of this size, the first one too, however little room the disk has.
pub fn options(file_bytes: u64) -> LogOptions {
    LogOptions {
        file_bytes,
        first_file_bytes: file_bytes,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    }
}

/// Files that are soon full, and moved as fast as the disk is.
pub fn small_files() -> LogOptions {
    LogOptions {
        spare: 2,
        io_bytes_per_second: 0,
        ..options(FILE)
    }
}

/// With [`small_files`].
pub fn open(disk: &SimDisk) -> EmbeddedLog {
    open_with(disk, &small_files())
}

/// On a disk whose power can be cut.
pub fn open_with(disk: &SimDisk, options: &LogOptions) -> EmbeddedLog {
    EmbeddedLog::open(Arc::new(disk.clone()), 7, options).unwrap()
}

/// On a real disk, with files that are large enough for most tests.
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

/// One record of one partition.
pub fn message(id: PartitionId, value: &[u8]) -> WriteBatch {
    WriteBatch::of(id, one_record(value))
}

/// Appends a message that is not refused; its offset.
pub async fn append(log: &EmbeddedLog, id: PartitionId, value: &[u8]) -> Offset {
    let appended = log.append(message(id, value), None).await.unwrap();
    appended.offsets[0]
}

/// The values of all that is stored of a partition, read in several pieces if they are many.
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

/// Waits until something holds that the log does by itself.
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

/// Changes bytes of a file, so that no power cut undoes it.
pub fn overwrite(disk: &dyn Disk, name: &str, at: u64, bytes: &[u8]) {
    let file = disk.open(name).unwrap();
    file.write_at(bytes, at).unwrap();
    file.sync().unwrap();
}

/// Flips a bit of this text, wherever it stands.
pub fn damage(disk: &dyn Disk, text: &str) {
    for name in disk.names().unwrap() {
        let bytes = bytes_of(disk, &name);
        if let Some(at) = bytes.windows(text.len()).position(|window| window == text.as_bytes()) {
            return overwrite(disk, &name, at as u64, &[bytes[at] ^ 1]);
        }
    }
    panic!("{text} is nowhere");
}
