//! Tests of a log on a disk that fails sometimes or permanently.

use super::*;
use crate::disk::Disk;
use crate::disk::sim::{Faults, SimDisk};
use crate::format::frame::BODY_MAX;
use crate::records::Records;
use crate::test_support::{append, damage, message, open_with, small_files, values};

const ID: PartitionId = PartitionId::new(1, 0);

/// Options without caches, so that everything is read from disk.
fn unbuffered() -> LogOptions {
    LogOptions {
        tail_bytes_max: 0,
        index_bytes_max: 0,
        ..small_files()
    }
}

fn open(disk: &SimDisk) -> Result<EmbeddedLog> {
    EmbeddedLog::open(Arc::new(disk.clone()), 7, &unbuffered())
}

fn value(n: u64) -> Vec<u8> {
    format!("message-{n}.{}", "x".repeat(3000)).into_bytes()
}

async fn fill(log: &EmbeddedLog, count: u64) {
    log.create(ID, Durability::Fsync).await.unwrap();
    for n in 0..count {
        append(log, ID, &value(n)).await;
    }
}

#[tokio::test]
async fn a_start_on_a_disk_that_cannot_be_read_for_a_moment_gives_nothing_up() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed, 64 << 20);
        let log = open(&disk).unwrap();
        // Without a sync, so that a start checks all blocks.
        log.create(ID, Durability::Os).await.unwrap();
        for n in 0..40 {
            append(&log, ID, &value(n)).await;
        }
        disk.kill();
        drop(log);
        let mut failed = 0;
        let log = loop {
            disk.set_faults(Faults {
                failing_reads: 50 + failed,
                ..Faults::default()
            });
            match open(&disk) {
                Ok(log) => break log,
                Err(error) => assert!(error.to_string().contains("simulated read error"), "{error}"),
            }
            failed += 1;
        };
        disk.set_faults(Faults::default());
        assert_eq!(
            (log.report().torn_bytes, values(&log, ID).len()),
            (0, 40),
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn what_a_disk_cannot_read_is_told_as_damage_of_its_place() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk).unwrap();
    fill(&log, 100).await;
    disk.set_faults(Faults {
        failing_reads: 1,
        ..Faults::default()
    });
    let error = log.read(ID, 50, 1).unwrap_err();
    assert!(
        matches!(&error, LogError::Corrupt { file, .. } if file.starts_with("commit-")),
        "{error}"
    );
    assert!(error.to_string().contains("cannot read"), "{error}");
    assert!(matches!(log.status(), LogStatus::Degraded(_)) && log.counters().corrupt_frames > 0);
    disk.set_faults(Faults::default());
    assert_eq!(values(&log, ID).len(), 100);
}

#[tokio::test]
async fn a_partition_that_could_not_be_made_is_nowhere_also_after_a_restart() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk).unwrap();
    fill(&log, 10).await;
    // The future is dropped before it completes.
    let mut given_up = None;
    for n in 0.. {
        let id = PartitionId::new(2, n);
        tokio::select! {
            biased;
            made = log.create(id, Durability::Fsync) => made.unwrap(),
            () = std::future::ready(()) => {
                given_up = Some(id);
                break;
            }
        }
    }
    assert!(given_up.is_some_and(|id| !log.partitions().contains(&id)));
    // Creation is refused.
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    while log.append(message(ID, &value(0))).await.is_ok() {}
    let mut refused = 0;
    for n in 0..500 {
        refused += usize::from(log.create(PartitionId::new(3, n), Durability::Os).await.is_err());
    }
    let of_third = |log: &EmbeddedLog| log.partitions().iter().filter(|id| id.queue == 3).count();
    let made = of_third(&log);
    assert!(refused > 0 && made == 500 - refused, "{refused} refused, {made} there");
    disk.set_capacity(64 << 20);
    // Until table snapshots of all partitions were written several times.
    let mut stored = 0;
    while stored < 300 {
        stored += u64::from(log.append(message(ID, &value(0))).await.is_ok());
        tokio::task::yield_now().await;
    }
    log.close();
    drop(log);
    assert_eq!(of_third(&open(&disk).unwrap()), made);
}

#[tokio::test]
async fn a_rewrite_that_cannot_sync_poisons_the_log() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk).unwrap();
    fill(&log, 200).await;
    disk.set_faults(Faults {
        failing_syncs: 1,
        ..Faults::default()
    });
    let error = log.rewrite(ID, &|offset, _| offset % 2 == 0).unwrap_err();
    assert!(matches!(error, LogError::Poisoned { .. }), "{error}");
    assert!(matches!(log.status(), LogStatus::Poisoned(_)));
}

#[tokio::test]
async fn damage_costs_a_look_at_all_and_a_rewrite_the_frames_and_the_file_that_it_is_in() {
    let disk = SimDisk::new(1, 64 << 20);
    let log = open(&disk).unwrap();
    fill(&log, 200).await;
    damage(&disk, "message-20.");
    let mut seen = Vec::new();
    let mut show = |offset: Offset, _: &RecordRef<'_>| {
        seen.push(offset);
        true
    };
    log.scan(ID, 0, 200, &mut show).unwrap();
    assert_eq!(seen, (0..200).filter(|offset| *offset != 20).collect::<Vec<_>>());
    let seen_to = log.rewrite(ID, &|offset, _| offset % 2 == 0).unwrap();
    assert!(
        seen_to <= 20,
        "of what stands in the damaged file nothing is said to be seen: {seen_to}"
    );
    let mut left = Vec::new();
    let mut show = |offset: Offset, _: &RecordRef<'_>| {
        left.push(offset);
        true
    };
    log.scan(ID, 0, 200, &mut show).unwrap();
    // Some records after it are removed; those in the same file stay.
    assert!(left.contains(&19) && left.contains(&21), "{left:?}");
    assert!(left.len() < 160 && (0..200).step_by(2).filter(|n| *n != 20).all(|n| left.contains(&n)));
}

#[tokio::test]
async fn a_rewrite_of_the_largest_frames_splits_them() {
    let disk = SimDisk::new(1, 1 << 30);
    let options = LogOptions {
        file_bytes: 128 << 20,
        first_file_bytes: 40 << 20,
        ..unbuffered()
    };
    let open = || open_with(&disk, &options);
    let log = open();
    log.create(ID, Durability::Os).await.unwrap();
    let mut sizes = vec![200_000; 1];
    append(&log, ID, &vec![1; 200_000]).await;
    // A frame with almost no space left, preceded by records of every size.
    let mut full = Records::new();
    for n in 0..9_000_usize {
        let size = (BODY_MAX - 9_000 * 16) / 9_000;
        full.push(&RecordRef::of(1, &vec![n as u8; size])).unwrap();
        sizes.push(size);
    }
    log.append(WriteBatch::of(ID, full)).await.unwrap();
    append(&log, ID, &vec![2; 1000]).await;
    sizes.push(1000);
    while log.counters().full_files == 0 {
        append(&log, ID, &vec![3; 8 << 20]).await;
        sizes.push(8 << 20);
    }
    let count = sizes.len() as u64;
    log.rewrite(ID, &|offset, _| offset != 1).unwrap();
    assert!(log.counters().segments > 0);
    log.close();
    drop(log);
    let log = open();
    let mut seen = Vec::new();
    let mut show = |offset: Offset, record: &RecordRef<'_>| {
        assert_eq!(record.value.len(), sizes[offset as usize], "{offset}");
        seen.push(offset);
        true
    };
    log.scan(ID, 0, count, &mut show).unwrap();
    assert_eq!(seen, (0..count).filter(|offset| *offset != 1).collect::<Vec<_>>());
    assert!(matches!(log.status(), LogStatus::Healthy), "{:?}", log.status());
}

#[tokio::test]
async fn after_a_clean_stop_damage_of_the_last_message_is_told_wherever_in_a_file_it_stands() {
    for count in 1..=80 {
        let disk = SimDisk::new(count, 64 << 20);
        let log = open(&disk).unwrap();
        fill(&log, count).await;
        log.close();
        drop(log);
        damage(&disk, &format!("message-{}.", count - 1));
        let found = open(&disk).and_then(|log| log.read(ID, count - 1, 1).map(drop));
        assert!(
            matches!(found, Err(LogError::Corrupt { .. })),
            "{count} messages: {found:?}"
        );
    }
}

#[tokio::test]
async fn a_short_message_in_memory_keeps_no_page() {
    let disk = SimDisk::new(1, 256 << 20);
    let options = LogOptions {
        file_bytes: 32 << 20,
        first_file_bytes: 32 << 20,
        tail_bytes_max: 1 << 20,
        ..unbuffered()
    };
    let log = open_with(&disk, &options);
    log.create(ID, Durability::Os).await.unwrap();
    for _ in 0..5000 {
        append(&log, ID, &[7; 20]).await;
    }
    // The newest frames are in memory, as many as fit including their overhead.
    let in_memory = |from: Offset| log.newest(ID, from, 1).unwrap().is_some();
    let first = (0..5000).find(|from| in_memory(*from)).unwrap();
    let most = (1 << 20) / (20 + 2 * size_of::<Frame>());
    assert!(
        (1000..=most as u64).contains(&(5000 - first)),
        "{} in memory",
        5000 - first
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_frees_space_is_stored_where_nothing_else_is_and_after_what_was_journaled_before_it() {
    const STATE: PartitionId = PartitionId::new(2, 0);
    let disk = SimDisk::new(1, 64 << 20);
    let options = LogOptions {
        file_bytes: 2 << 20,
        first_file_bytes: 2 << 20,
        min_free_bytes: Some(0),
        ..unbuffered()
    };
    let log = open_with(&disk, &options);
    for id in [ID, STATE] {
        log.create(id, Durability::Fsync).await.unwrap();
    }
    let space = disk.space().unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes + (4 << 20));
    let one = |value: &[u8]| {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, value)).unwrap();
        records
    };
    let state = |value: &[u8]| WriteBatch::default().and_of(FrameKind::State, STATE, one(value));
    while log.append(WriteBatch::of(ID, one(&value(0)))).await.is_ok() {}
    while log.append(state(&value(0))).await.is_ok() {}
    let taken = log.bounds(STATE).unwrap().next;

    log.journal(STATE, FrameKind::State, &RecordRef::of(1, b"journaled"))
        .unwrap();
    let refused = log.append(state(b"refused")).await;
    assert!(matches!(refused, Err(LogError::DiskFull { .. })), "{refused:?}");
    let freeing = log.append(state(b"freeing").freeing()).await.unwrap();
    assert_eq!(freeing.offsets.as_slice(), [taken + 1]);
    log.journal(STATE, FrameKind::State, &RecordRef::of(1, b"journaled again"))
        .unwrap();
    // Stores only what was journaled.
    let nothing = WriteBatch::default().and_of(FrameKind::State, STATE, Records::new());
    log.append(nothing.freeing()).await.unwrap();
    log.remove(ID).await.unwrap();
    log.close();
    disk.kill();
    drop(log);

    let log = open_with(&disk, &options);
    assert_eq!(log.partitions(), [STATE]);
    let there = values(&log, STATE);
    assert_eq!(
        there[taken as usize..],
        [&b"journaled"[..], b"freeing", b"journaled again"]
    );
    log.close();
}
