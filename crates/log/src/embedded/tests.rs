use super::*;
use crate::disk::Folder;
use crate::format::record::{RecordRef, records};
use crate::records::Records;

fn open(folder: &std::path::Path) -> EmbeddedLog {
    let options = LogOptions {
        file_bytes: 4 << 20,
        first_file_bytes: 1 << 20,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    EmbeddedLog::open(Arc::new(Folder::open(folder).unwrap()), 7, &options).unwrap()
}

async fn create(folder: &std::path::Path) -> EmbeddedLog {
    let log = open(folder);
    for (n, durability) in [Durability::Fsync, Durability::Os].into_iter().enumerate() {
        log.create(PartitionId::new(1, n as u32), durability).await.unwrap();
    }
    log
}

fn one(value: &[u8]) -> Records {
    let mut records = Records::new();
    records.push(&RecordRef::of(1, value)).unwrap();
    records
}

fn values(log: &EmbeddedLog, id: PartitionId) -> Vec<Vec<u8>> {
    let (mut values, mut from) = (Vec::new(), 0);
    loop {
        let frames = log.read(id, from, 100_000).unwrap();
        let Some(last) = frames.last() else {
            return values;
        };
        from = last.header.next();
        for frame in &frames {
            values.extend(records(&frame.body).map(|record| record.unwrap().value.to_vec()));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_many_publishers_append_is_there_after_a_restart_in_each_ones_order() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(create(folder.path()).await);
    let publishers: Vec<_> = (0..16u8)
        .map(|publisher| {
            let log = log.clone();
            tokio::spawn(async move {
                let id = PartitionId::new(1, u32::from(publisher % 2));
                let mut last = None;
                for n in 0..200u16 {
                    let value = [&[publisher][..], &n.to_le_bytes(), &[publisher; 250]].concat();
                    let appended = log.append(Unit::of(id, one(&value)), None).await.unwrap();
                    assert!(Some(appended.offsets[0]) > last);
                    last = Some(appended.offsets[0]);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    log.close();
    assert!(matches!(
        log.append(Unit::of(PartitionId::new(1, 0), one(b"late")), None).await,
        Err(LogError::Closed)
    ));
    drop(log);
    let log = open(folder.path());
    assert_eq!(log.report().torn_bytes, 0);
    for n in 0..2 {
        let all = values(&log, PartitionId::new(1, n));
        assert_eq!(all.len(), 8 * 200);
        for publisher in (0..16).filter(|p| u32::from(p % 2) == n) {
            let own = all.iter().filter(|value| value[0] == publisher);
            let order: Vec<u16> = own.map(|value| u16::from_le_bytes([value[1], value[2]])).collect();
            assert_eq!(order, (0..200).collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn a_reader_waits_for_what_is_to_come() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(create(folder.path()).await);
    let id = PartitionId::new(1, 0);
    assert!(log.read(id, 0, 1000).unwrap().is_empty());
    let (waiting, writing) = (log.clone(), log.clone());
    let reader = tokio::spawn(async move {
        waiting.wait_for(id, 1).await.unwrap();
        values(&waiting, id)
    });
    writing.append(Unit::of(id, one(b"a")), None).await.unwrap();
    writing.append(Unit::of(id, one(b"b")), None).await.unwrap();
    assert_eq!(reader.await.unwrap(), [b"a", b"b"]);
}

#[tokio::test]
async fn a_unit_of_two_partitions_has_the_stronger_durability() {
    let folder = tempfile::tempdir().unwrap();
    let log = create(folder.path()).await;
    let unit = Unit::of(PartitionId::new(1, 1), one(b"a")).and(PartitionId::new(1, 0), one(b"b"));
    let appended = log.append(unit, None).await.unwrap();
    assert_eq!(
        appended,
        Appended {
            offsets: [0, 0].into(),
            durability: Durability::Fsync
        }
    );
    let missing = log.append(Unit::of(PartitionId::new(9, 9), one(b"a")), None).await;
    assert_eq!(missing.unwrap_err().to_string(), "partition 9/9 does not exist");
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_anywhere() {
    let mut records = Records::new();
    let long_key = vec![0; 70_000];
    let record = RecordRef {
        key: Some(&long_key),
        ..RecordRef::of(1, b"")
    };
    assert_eq!(
        records.push(&record).unwrap_err().to_string(),
        "a key of 70000 is more than 65536"
    );
    let half = vec![0; 17 << 20];
    records.push(&RecordRef::of(1, &half)).unwrap();
    assert!(records.push(&RecordRef::of(1, &half)).is_err());
    assert_eq!(records.len(), 1);
}

#[tokio::test]
async fn a_stop_on_a_full_disk_in_a_file_without_room_for_a_mark_loses_nothing() {
    let disk = crate::disk::sim::SimDisk::new(1, 64 << 20);
    let options = LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        spare: 1,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let open = || EmbeddedLog::open(Arc::new(disk.clone()), 7, &options).unwrap();
    let id = PartitionId::new(1, 0);
    let log = open();
    log.create(id, Durability::Fsync).await.unwrap();
    // Two files are made beside; on a disk that is full before, not one message is taken.
    while log.shelf.counts().0 < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let space = crate::disk::Disk::space(&disk).unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    // Until nothing is taken any more: files are full, and not one page is left for a block of any kind.
    let mut stored = 0;
    while log.append(Unit::of(id, one(&[stored as u8; 3000])), None).await.is_ok() {
        stored += 1;
    }
    let state = |log: &EmbeddedLog| log.journal(id, Kind::State, &RecordRef::of(1, &[9; 3000]));
    while state(&log).is_ok() && log.flush(&[id]).await.is_ok() {}
    assert!(matches!(log.status(), LogStatus::DiskFull(_)), "{:?}", log.status());
    let next = log.bounds(id).unwrap().next;
    assert!(stored > 200, "{stored} messages, {next} with states");
    log.close();
    drop(log);
    for _ in 0..2 {
        let log = open();
        assert_eq!((log.bounds(id).unwrap().next, log.report().torn_bytes), (next, 0));
        assert_eq!(values(&log, id).len() as u64, next);
    }
}

#[tokio::test]
async fn whoever_watches_a_log_is_told_at_once_that_it_is_poisoned_or_closed() {
    let disk = crate::disk::sim::SimDisk::new(1, 64 << 20);
    let options = LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes: 1 << 20,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let open = || EmbeddedLog::open(Arc::new(disk.clone()), 7, &options).unwrap();
    let id = PartitionId::new(1, 0);
    let log = open();
    let watching = tokio::spawn(log.poisoned());
    log.create(id, Durability::Os).await.unwrap();
    drop(log);
    assert_eq!(watching.await.unwrap(), None);
    // Nobody waits for the sync that fails: it is that of an idle writer, or of an interval.
    let log = open();
    disk.set_faults(crate::disk::sim::Faults {
        failing_syncs: 1,
        failing_writes: 0,
        ..crate::disk::sim::Faults::default()
    });
    let watching = tokio::spawn(log.poisoned());
    log.ask_for_sync();
    let _ = log.append(Unit::of(id, one(b"x")), None).await;
    log.ask_for_sync();
    let cause = watching.await.unwrap().unwrap();
    // The sync of a block, or of a file that is being made.
    assert!(cause.contains("simulated sync error"), "{cause}");
    assert!(matches!(log.status(), LogStatus::Poisoned(_)) && log.counters().is_poisoned);
}
