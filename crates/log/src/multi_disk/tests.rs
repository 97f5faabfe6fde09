use super::*;
use crate::disk::sim::{Faults, SimDisk};
use crate::test_support::{bytes_of, message, one_record, options, values};

const MIB: u64 = 1 << 20;

/// State of queue `n | 1 << 31` lives with the data of queue `n`.
fn together(id: PartitionId) -> PartitionId {
    PartitionId::new(id.queue & !(1 << 31), id.partition)
}

fn options_of(n: usize) -> LogOptions {
    LogOptions {
        folder: format!("disk{n}"),
        first_file_bytes: MIB / 2,
        spare: 1,
        ..options(MIB)
    }
}

fn disks(count: u64) -> Vec<SimDisk> {
    (0..count).map(|seed| SimDisk::new(seed, 64 * MIB)).collect()
}

async fn open(disks: &[SimDisk]) -> Result<MultiDiskLog> {
    let all = disks.iter().enumerate();
    let all = all.map(|(n, disk)| (Arc::new(disk.clone()) as Arc<dyn Disk>, options_of(n)));
    MultiDiskLog::open(all.collect(), 77, together).await
}

fn data(n: u32) -> PartitionId {
    PartitionId::new(20, n)
}

fn state(n: u32) -> PartitionId {
    PartitionId::new(20 | 1 << 31, n)
}

#[tokio::test]
async fn many_are_made_and_removed_together_on_all_disks() {
    let all = disks(3);
    let log = open(&all).await.unwrap();
    let own: Vec<PartitionId> = (0..300).flat_map(|n| [data(n), state(n)]).collect();
    let before: u64 = all.iter().map(SimDisk::syncs).sum();
    log.create_all(&own, Durability::Fsync).await.unwrap();
    assert_eq!(log.places.read().counts, [200, 200, 200]);
    assert!((0..300).all(|n| log.place_of(data(n)).unwrap() == log.place_of(state(n)).unwrap()));
    assert!(matches!(
        log.create_all(&own[599..], Durability::Os).await,
        Err(LogError::PartitionExists(_))
    ));
    drop(log);
    let log = open(&all).await.unwrap();
    assert_eq!(log.partitions().len(), 600);
    log.remove_all(&own).await.unwrap();
    let after: u64 = all.iter().map(SimDisk::syncs).sum();
    assert!(after - before < 60, "{} syncs", after - before);
    assert_eq!(
        (log.partitions().len(), log.places.read().counts.clone()),
        (0, vec![0, 0, 0])
    );
    // One disk refuses: the partitions on the others exist, and none on this one.
    all[1].set_faults(Faults {
        failing_writes: 1,
        ..Faults::default()
    });
    let again: Vec<PartitionId> = (300..400).map(data).collect();
    assert!(log.create_all(&again, Durability::Fsync).await.is_err());
    let there = log.partitions();
    assert!(there.len() < 100 && there.iter().all(|id| log.place_of(*id).unwrap() != 1));
}

#[tokio::test]
async fn partitions_are_spread_state_is_with_its_data_and_all_of_it_is_found_again_in_any_order() {
    let mut all = disks(3);
    let log = open(&all).await.unwrap();
    for n in 0..6 {
        // Either can be created first.
        let (one, other) = if n % 2 == 0 {
            (data(n), state(n))
        } else {
            (state(n), data(n))
        };
        log.create(one, Durability::Fsync).await.unwrap();
        log.create(other, Durability::Os).await.unwrap();
        assert_eq!(log.place_of(data(n)).unwrap(), log.place_of(state(n)).unwrap());
    }
    assert_eq!(log.places.read().counts, [4, 4, 4]);
    assert!(matches!(
        log.create(data(0), Durability::Os).await,
        Err(LogError::PartitionExists(_))
    ));
    for n in 0..6 {
        log.append(message(data(n), &[n as u8])).await.unwrap();
    }
    log.remove(data(5)).await.unwrap();
    let id = Log::id(&log);
    drop(log);
    all.rotate_left(1);
    let log = open(&all).await.unwrap();
    assert_eq!(Log::id(&log), id);
    assert_eq!(
        log.partitions().len(),
        11,
        "what a disk says of itself is no partition of the log"
    );
    for n in 0..5 {
        assert_eq!(values(&log, data(n)), [[n as u8]]);
        assert_eq!(log.place_of(data(n)).unwrap(), log.place_of(state(n)).unwrap());
    }
    assert!(matches!(log.bounds(data(5)), Err(LogError::NoPartition(_))));
    // By now the other disks have more data.
    let filling = vec![0; MIB as usize / 4];
    for _ in 0..16 {
        for n in [0, 1] {
            log.append(message(data(n), &filling)).await.unwrap();
        }
    }
    log.create(data(9), Durability::Fsync).await.unwrap();
    assert_eq!(log.place_of(data(9)).unwrap(), log.place_of(data(2)).unwrap());
}

#[tokio::test]
async fn a_disk_is_added_one_that_is_missing_or_of_another_log_or_a_copy_is_named() {
    let all = disks(3);
    let one = std::slice::from_ref(&all[0]);
    // A log on one disk has no membership record.
    let log = open(one).await.unwrap();
    log.create(data(0), Durability::Fsync).await.unwrap();
    log.append(message(data(0), b"a")).await.unwrap();
    drop(log);
    let log = open(&all[..2]).await.unwrap();
    assert_eq!(values(&log, data(0)), [b"a"]);
    log.create(data(1), Durability::Fsync).await.unwrap();
    assert_eq!(log.place_of(data(1)).unwrap(), 1);
    drop(log);
    let alone = open(one).await.err().unwrap().to_string();
    assert!(alone.contains("disk 2 of the 2") && alone.contains("disk0"), "{alone}");
    // An empty folder is not the missing disk.
    let unmounted = [all[0].clone(), SimDisk::new(9, 64 * MIB)];
    assert!(matches!(
        open(&unmounted).await,
        Err(LogError::DiskMissing { disk: 2, of: 2, .. })
    ));
    assert_eq!(
        unmounted[1].names().unwrap(),
        Vec::<String>::new(),
        "nothing was made there"
    );
    let twice = [all[0].clone(), all[1].clone(), copy_of(&all[1])];
    let twice = open(&twice).await.err().unwrap().to_string();
    assert!(twice.contains("disk2") && twice.contains("copy of disk1"), "{twice}");
    let foreign = SimDisk::new(8, 64 * MIB);
    let other = EmbeddedLog::open(Arc::new(foreign.clone()), 1234, &options_of(0)).unwrap();
    other.create(data(0), Durability::Fsync).await.unwrap();
    drop(other);
    let mixed = open(&[all[0].clone(), all[1].clone(), foreign])
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(mixed.contains("disk2") && mixed.contains("another log"), "{mixed}");
    // None of this has damaged anything.
    let log = open(&all).await.unwrap();
    assert_eq!((values(&log, data(0)), log.logs().len()), (vec![b"a".to_vec()], 3));
}

fn copy_of(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(5, 64 * MIB);
    for name in disk.names().unwrap() {
        let to = copy.create(&name).unwrap();
        to.write_at(&bytes_of(disk, &name), 0).unwrap();
    }
    copy
}

#[tokio::test]
async fn a_start_that_was_cut_off_while_disks_were_added_is_no_obstacle() {
    for n in 0..40 {
        let all = disks(3);
        all[(n % 3) as usize].cut_power_in(n / 3);
        let _ = open(&all).await;
        all.iter().for_each(SimDisk::power_cut);
        let log = open(&all).await.unwrap_or_else(|error| panic!("cut {n}: {error}"));
        log.create(data(0), Durability::Fsync).await.unwrap();
    }
}

#[tokio::test]
async fn messages_are_stored_before_what_settles_them_and_what_is_known_to_fail_is_refused_as_a_whole() {
    let all = disks(2);
    let log = open(&all).await.unwrap();
    for n in 0..2 {
        log.create(data(n), Durability::Fsync).await.unwrap();
        log.create(state(n), Durability::Os).await.unwrap();
    }
    assert!(!Log::caps(&log).atomic_units);
    let unit = || {
        WriteBatch::default()
            .and_of(FrameKind::State, state(0), one_record(b"settled"))
            .and(data(1), one_record(b"dead"))
    };
    let appended = log.append(unit()).await.unwrap();
    // In the order of the parts, with the durability that holds for all of them.
    assert_eq!(appended.offsets.as_slice(), [0, 0]);
    assert_eq!(appended.durability, Durability::Os);
    // If the disk of the messages fails, their source is not settled.
    let at = log.place_of(data(1)).unwrap();
    all[at].set_faults(Faults {
        failing_syncs: 1,
        failing_writes: 1,
        ..Faults::default()
    });
    let failed = log.append(unit()).await.unwrap_err();
    assert!(
        matches!(failed, LogError::Poisoned { .. } | LogError::Io { .. }),
        "{failed}"
    );
    assert_eq!(
        log.bounds(state(0)).unwrap().next,
        1,
        "state was stored without the message"
    );
    let refused = log.append(unit()).await.unwrap_err();
    assert!(matches!(refused, LogError::Poisoned { .. }), "{refused}");
    assert!(matches!(Log::status(&log), LogStatus::Poisoned(_)));
    // The other disk still works.
    log.append(message(data(0), b"z")).await.unwrap();
    log.flush_all(&[data(0), state(0)]).await.unwrap();
}

#[tokio::test]
async fn what_was_stored_in_part_is_said_to_be() {
    let all = disks(2);
    let log = open(&all).await.unwrap();
    for n in 0..2 {
        log.create(data(n), Durability::Fsync).await.unwrap();
    }
    let at = log.place_of(data(1)).unwrap();
    all[at].set_faults(Faults {
        failing_syncs: 1,
        failing_writes: 1,
        ..Faults::default()
    });
    let both = message(data(0), b"x").and(data(1), one_record(b"y"));
    let partly = log.append(both).await.unwrap_err();
    assert!(matches!(partly, LogError::Partly { .. }), "{partly}");
    assert_eq!(values(&log, data(0)), [b"x"]);
}

/// The bytes of all files of a disk.
fn files_of(disk: &SimDisk) -> Vec<(String, Vec<u8>)> {
    let names = disk.names().unwrap().into_iter();
    names.map(|name| (name.clone(), bytes_of(disk, &name))).collect()
}

/// Whichever disk is damaged, the others stay unchanged, including those before it.
#[tokio::test]
async fn no_disk_is_written_before_all_are_explained() {
    for damaged in 0..3 {
        let all = disks(3);
        let log = open(&all).await.unwrap();
        for n in 0..6 {
            log.create(data(n), Durability::Fsync).await.unwrap();
            log.append(message(data(n), &[n as u8])).await.unwrap();
        }
        drop(log);
        let file = all[damaged].open("commit-0000000000000000.log").unwrap();
        file.write_at(&[0; 4096], 0).unwrap();
        let before: Vec<_> = all.iter().map(files_of).collect();
        let refused = open(&all).await.err().unwrap();
        assert!(matches!(refused, LogError::Corrupt { .. }), "{refused}");
        assert!(all.iter().map(files_of).collect::<Vec<_>>() == before, "disk {damaged}");
        // The same holds if a disk is missing.
        let others: Vec<SimDisk> = (0..3).filter(|n| *n != damaged).map(|n| all[n].clone()).collect();
        let refused = open(&others).await.err().unwrap();
        assert!(matches!(refused, LogError::DiskMissing { .. }), "{refused}");
        assert!(all.iter().map(files_of).collect::<Vec<_>>() == before, "disk {damaged}");
    }
}
