//! A log on a full disk: refused records stay refused, acknowledged ones are stored, and space is freed automatically.

use std::time::{Duration, Instant};

use crate::support::{FILE, PATIENCE, message, one_record, open_with, small_files, until, values};
use thalweg_log::disk::Disk as _;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, EmbeddedLog, LogError, LogOptions, LogStatus, PartitionId, WriteBatch};

const DATA: PartitionId = PartitionId::new(1, 0);
const STATE: PartitionId = PartitionId::new(1, 1);

fn open(disk: &SimDisk) -> EmbeddedLog {
    let options = LogOptions {
        spare: 1,
        ..small_files()
    };
    open_with(disk, &options)
}

fn note(log: &EmbeddedLog, kind: FrameKind, value: &[u8]) {
    log.journal(STATE, kind, &RecordRef::of(1, value)).unwrap();
}

fn used(disk: &SimDisk) -> u64 {
    let space = disk.space().unwrap();
    space.total_bytes - space.free_bytes
}

/// A log that refuses messages and large state records: the disk is full, and the reserve is used up.
async fn filled(disk: &SimDisk) -> EmbeddedLog {
    let log = open(disk);
    for id in [DATA, STATE] {
        log.create(id, Durability::Fsync).await.unwrap();
    }
    // There are none before a quarter of the first file is used.
    for _ in 0..FILE / 4 / 3000 + 1 {
        log.append(message(DATA, &[1; 3000])).await.unwrap();
    }
    until(&log, "two files are ready", || log.counters().spare_files >= 2).await;
    disk.set_capacity(used(disk) + 4 * FILE);
    let filling = message(DATA, &[1; 3000]);
    while log.append(filling.clone()).await.is_ok() {}
    loop {
        let large = WriteBatch::default().and_of(FrameKind::State, STATE, one_record(&[2; 3000]));
        match log.append(large).await {
            Ok(_) => {}
            Err(LogError::DiskFull { .. }) => return log,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn until_flushed(log: &EmbeddedLog) {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = log.flush(&[STATE]).await {
        assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
        assert!(Instant::now() < until, "{:?}", log.counters());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_journaled_and_refused_is_not_said_to_be_stored_before_it_is() {
    for seed in 0..8 {
        let disk = SimDisk::new(seed, 64 << 20);
        let log = filled(&disk).await;
        let before = values(&log, STATE).len();
        for n in 0..3u8 {
            note(&log, FrameKind::State, &[&[n][..], &[7; 3000]].concat());
            for _ in 0..2 {
                let refused = log.flush(&[STATE]).await;
                assert!(matches!(refused, Err(LogError::DiskFull { .. })), "{refused:?}");
                let refused = log.sync().await;
                assert!(matches!(refused, Err(LogError::DiskFull { .. })), "{refused:?}");
            }
            // Records that fit would be stored before those that do not.
            let small = WriteBatch::default().and_of(FrameKind::State, STATE, one_record(b"small"));
            let refused = log.append(small).await;
            assert!(matches!(refused, Err(LogError::DiskFull { .. })), "{refused:?}");
        }
        disk.set_capacity(64 << 20);
        until_flushed(&log).await;
        disk.kill();
        drop(log);
        let found = values(&open(&disk), STATE).split_off(before);
        let firsts: Vec<u8> = found.iter().map(|value| value[0]).collect();
        assert_eq!(firsts, [0, 1, 2], "in the order in which they were journaled, once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_that_was_refused_is_stored_later_in_the_place_of_all_before_it() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = filled(&disk).await;
    note(&log, FrameKind::State, &[1; 3000]);
    assert!(log.flush(&[STATE]).await.is_err());
    note(&log, FrameKind::Checkpoint, &[2; 3000]);
    assert!(log.flush(&[STATE]).await.is_err());
    note(&log, FrameKind::State, &[3; 3000]);
    assert!(log.flush(&[STATE]).await.is_err());
    disk.set_capacity(64 << 20);
    until_flushed(&log).await;
    disk.kill();
    drop(log);
    let log = open(&disk);
    let checkpoint = log.last_checkpoint(STATE).unwrap().unwrap();
    let kept: Vec<u8> = values(&log, STATE).iter().map(|value| value[0]).collect();
    assert_eq!(kept[kept.len() - 2..], [2, 3]);
    assert_eq!(log.bounds(STATE).unwrap().next, checkpoint + 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_that_was_kept_back_used_up_and_all_settled_space_comes_back_by_itself() {
    for seed in 0..4 {
        let disk = SimDisk::new(seed, 64 << 20);
        let log = filled(&disk).await;
        note(&log, FrameKind::State, &[7; 3000]);
        assert!(log.flush(&[STATE]).await.is_err());
        let next = log.bounds(DATA).unwrap().next;
        log.trim(DATA, next).unwrap();
        // Without any additional space.
        until_flushed(&log).await;
        let until = Instant::now() + PATIENCE;
        while let Err(error) = log.append(message(DATA, b"again")).await {
            assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
            assert!(Instant::now() < until, "{:?}", log.counters());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(log.status(), LogStatus::Healthy);
        disk.power_cut();
        drop(log);
        let log = open(&disk);
        assert!(log.bounds(DATA).unwrap().first >= next);
        assert_eq!(values(&log, STATE).last().map(|value| value[0]), Some(7));
    }
}

/// A log of a version without superblocks, on a disk without room for one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_without_a_superblock_opens_on_a_full_disk_and_has_one_as_soon_as_there_is_room() {
    let disk = SimDisk::new(3, 64 << 20);
    let log = open(&disk);
    log.create(DATA, Durability::Fsync).await.unwrap();
    for n in 0..40u8 {
        log.append(message(DATA, &[n; 3000])).await.unwrap();
    }
    log.close();
    drop(log);
    disk.remove("superblock").unwrap();
    disk.set_capacity(used(&disk));
    for wanted in [40, 30] {
        let log = open(&disk);
        assert_eq!(values(&log, DATA).len(), wanted);
        // Operations that free space are accepted.
        log.trim(DATA, 10).unwrap();
        log.sync().await.unwrap();
        drop(log);
        assert!(!disk.names().unwrap().iter().any(|name| name.contains("superblock")));
    }
    let log = open(&disk);
    assert_eq!(log.bounds(DATA).unwrap().first, 10);
    disk.set_capacity(64 << 20);
    drop(log);
    assert!(disk.names().unwrap().contains(&"superblock".to_owned()));
    assert!(open(&disk).report().was_closed);
}
