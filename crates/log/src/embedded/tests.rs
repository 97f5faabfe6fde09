use super::*;
use crate::records::Records;
use crate::test_support::{append, message, one_record, open_folder, open_with, options, values};

async fn create(folder: &std::path::Path) -> EmbeddedLog {
    let log = open_folder(folder);
    for (n, durability) in [Durability::Fsync, Durability::Os].into_iter().enumerate() {
        log.create(PartitionId::new(1, n as u32), durability).await.unwrap();
    }
    log
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
                    let offset = append(&log, id, &value).await;
                    assert!(Some(offset) > last);
                    last = Some(offset);
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    log.close();
    assert!(matches!(
        log.append(message(PartitionId::new(1, 0), b"late")).await,
        Err(LogError::Closed)
    ));
    drop(log);
    let log = open_folder(folder.path());
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

/// While the disk cannot keep up, no later append is stored before one that waits, however small it is.
#[tokio::test]
async fn what_waits_for_room_is_stored_in_the_order_in_which_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let small = LogOptions {
        waiting_bytes_max: 8 << 10,
        ..options(4 << 20)
    };
    let disk = Arc::new(crate::disk::FolderDisk::open(folder.path()).unwrap());
    let log = Arc::new(EmbeddedLog::open(disk, 7, &small).unwrap());
    let id = PartitionId::new(1, 0);
    log.create(id, Durability::Fsync).await.unwrap();
    let mut random = crate::disk::sim::Random::new(3);
    let tasks: Vec<_> = (0..300)
        .map(|_| {
            let (log, size) = (log.clone(), 10 + random.below(7000) as usize);
            // On this single thread, each append starts before the next.
            tokio::spawn(async move { append(&log, id, &vec![7; size]).await })
        })
        .collect();
    for (n, task) in (0..).zip(tasks) {
        assert_eq!(task.await.unwrap(), n);
    }
}

struct Hears;

impl PartitionListener for Hears {
    fn grown(&self, _next: Offset) {}
}

/// Every partition that ever existed used to leave a slot behind, and with it the partition and its listeners.
#[tokio::test]
async fn of_partitions_that_are_removed_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let log = create(folder.path()).await;
    let (mut partitions, mut listeners) = (Vec::new(), Vec::new());
    for queue in 10..400 {
        let ids: Vec<PartitionId> = (0..5).map(|n| PartitionId::new(queue, n)).collect();
        log.create_all(&ids, Durability::Os).await.unwrap();
        for id in &ids {
            let hears: Arc<dyn PartitionListener> = Arc::new(Hears);
            listeners.push(Arc::downgrade(&hears));
            log.listen(*id, hears).unwrap();
            partitions.push(Arc::downgrade(&log.partition(*id).unwrap()));
            append(&log, *id, b"x").await;
            log.journal(*id, FrameKind::State, &RecordRef::of(1, b"y")).unwrap();
        }
        log.remove_all(&ids).await.unwrap();
        assert!(listeners.iter().all(|listener| listener.upgrade().is_none()));
    }
    // The writer learns of the last removals with the next block.
    append(&log, PartitionId::new(1, 0), b"x").await;
    append(&log, PartitionId::new(1, 0), b"x").await;
    let left = partitions
        .iter()
        .filter(|partition| partition.upgrade().is_some())
        .count();
    assert_eq!(left, 0);
    assert!(log.slots.lock().given() < 30, "{:?}", log.slots.lock());
    // A partition whose creation fails leaves nothing either.
    let given = log.slots.lock().given();
    for n in 0..100 {
        let id = PartitionId::new(500, n);
        assert!(futures_now(log.create(id, Durability::Os)).is_none());
        append(&log, PartitionId::new(1, 0), b"x").await;
    }
    assert!(log.slots.lock().given() <= given + 2);
}

/// Starts a future and drops it at once.
fn futures_now<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => Some(value),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn who_waits_for_a_partition_that_is_removed_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let log = Arc::new(create(folder.path()).await);
    let id = PartitionId::new(1, 0);
    let waiting = log.clone();
    let reader = tokio::spawn(async move {
        waiting.wait_for(id, 0).await.unwrap();
        waiting.read(id, 0, 1)
    });
    tokio::task::yield_now().await;
    log.remove(id).await.unwrap();
    let read = tokio::time::timeout(std::time::Duration::from_secs(60), reader).await;
    assert!(matches!(read.unwrap().unwrap(), Err(LogError::NoPartition(_))));
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
        values(&*waiting, id)
    });
    append(&writing, id, b"a").await;
    append(&writing, id, b"b").await;
    assert_eq!(reader.await.unwrap(), [b"a", b"b"]);
}

#[tokio::test]
async fn a_unit_of_two_partitions_has_the_stronger_durability() {
    let folder = tempfile::tempdir().unwrap();
    let log = create(folder.path()).await;
    let unit = message(PartitionId::new(1, 1), b"a").and(PartitionId::new(1, 0), one_record(b"b"));
    let appended = log.append(unit).await.unwrap();
    assert_eq!(
        appended,
        AppendReceipt {
            offsets: [0, 0].into(),
            durability: Durability::Fsync
        }
    );
    let missing = log.append(message(PartitionId::new(9, 9), b"a")).await;
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
        "a key of 70000 exceeds 65536"
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
        spare: 1,
        ..options(1 << 20)
    };
    let open = || open_with(&disk, &options);
    let id = PartitionId::new(1, 0);
    let log = open();
    log.create(id, Durability::Fsync).await.unwrap();
    // Two files are created in the background when a quarter of the first one is used.
    let mut stored = 0;
    while log.pool.counts().0 < 2 {
        append(&log, id, &[stored as u8; 3000]).await;
        stored += 1;
    }
    let space = crate::disk::Disk::space(&disk).unwrap();
    disk.set_capacity(space.total_bytes - space.free_bytes);
    // Until nothing is accepted: the files are full, and no page is left for a block of any kind.
    while log.append(message(id, &[stored as u8; 3000])).await.is_ok() {
        stored += 1;
    }
    let state = |log: &EmbeddedLog| log.journal(id, FrameKind::State, &RecordRef::of(1, &[9; 3000]));
    while state(&log).is_ok() && log.flush(&[id]).await.is_ok() {}
    assert!(matches!(log.status(), LogStatus::DiskFull(_)), "{:?}", log.status());
    let next = log.bounds(id).unwrap().next;
    assert!(stored > 200, "{stored} messages, {next} with states");
    log.close();
    drop(log);
    for _ in 0..2 {
        let log = open();
        // From the first moment, not only when the background thread has looked.
        assert!(matches!(log.status(), LogStatus::DiskFull(_)), "{:?}", log.status());
        assert_eq!((log.bounds(id).unwrap().next, log.report().torn_bytes), (next, 0));
        assert_eq!(values(&log, id).len() as u64, next);
    }
}

#[tokio::test]
async fn whoever_watches_a_log_is_told_at_once_that_it_is_poisoned_or_closed() {
    let disk = crate::disk::sim::SimDisk::new(1, 64 << 20);
    let open = || open_with(&disk, &options(1 << 20));
    let id = PartitionId::new(1, 0);
    let log = open();
    let watching = tokio::spawn(log.poisoned());
    log.create(id, Durability::Os).await.unwrap();
    drop(log);
    assert_eq!(watching.await.unwrap(), None);
    // Nobody waits for the sync that fails, because an idle writer or the interval triggers it.
    let log = open();
    disk.set_faults(crate::disk::sim::Faults {
        failing_syncs: 1,
        failing_writes: 0,
        ..crate::disk::sim::Faults::default()
    });
    let watching = tokio::spawn(log.poisoned());
    log.ask_for_sync();
    let _ = log.append(message(id, b"x")).await;
    log.ask_for_sync();
    let cause = watching.await.unwrap().unwrap();
    // The sync of a block or of a file that is being created.
    assert!(cause.contains("simulated sync error"), "{cause}");
    assert!(matches!(log.status(), LogStatus::Poisoned(_)) && log.counters().is_poisoned);
}

#[tokio::test]
async fn records_that_say_their_offsets_leave_the_others_empty_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = create(folder.path()).await;
    let id = PartitionId::new(1, 0);
    append(&log, id, b"a").await;
    let at = |deltas: [u32; 2]| {
        let mut records = Records::new();
        for (delta, value) in deltas.into_iter().zip([b"b", b"c"]) {
            let record = RecordRef::of(1, value);
            let delta = Some(delta);
            records.push(&RecordRef { delta, ..record }).unwrap();
        }
        records
    };
    for (deltas, offsets) in [([3, 3], 9), ([4, 3], 9), ([0, 9], 9)] {
        assert!(at(deltas).covering(offsets).is_err(), "{deltas:?} in {offsets}");
    }
    assert!(one_record(b"x").covering(1).is_err(), "it does not say its offset");
    let with_holes = at([2, 5]).covering(9).unwrap().expecting(1);
    let empty = Records::new().covering(1_000_000).unwrap();
    let unit = WriteBatch::of(id, with_holes).and(id, empty).and(id, one_record(b"d"));
    let appended = log.append(unit).await.unwrap();
    assert_eq!(appended.offsets[..], [1, 10, 1_000_010]);
    let all = [(0, "a"), (3, "b"), (6, "c"), (1_000_010, "d")];
    for again in [false, true] {
        if again {
            log.close();
            drop(log);
            log = open_folder(folder.path());
        }
        let mut found = Vec::new();
        let mut show = |offset, record: &RecordRef<'_>| {
            found.push((offset, String::from_utf8(record.value.to_vec()).unwrap()));
            true
        };
        log.scan(id, 0, Offset::MAX, &mut show).unwrap();
        assert_eq!(found, all.map(|(offset, value)| (offset, value.to_owned())));
        assert_eq!(log.bounds(id).unwrap().next, 1_000_011);
    }
}
