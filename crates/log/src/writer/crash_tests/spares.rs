//! The first spare files: a log that stores little has none, one that stores more has them before it needs them, and a
//! disk that is full before there is one still takes settles.

use super::*;
use crate::format::PAGE;

/// Spare files of these options.
const SPARE: usize = 2;
/// A record that fills a block of one page.
const RECORD: usize = 3500;

/// A first file of this size, and larger ones after it.
fn options_of(first_file_bytes: u64) -> LogOptions {
    LogOptions {
        file_bytes: 1 << 20,
        first_file_bytes,
        spare: SPARE,
        ..options()
    }
}

/// Like the thread that makes spare files.
fn attend(driven: &Driven) -> Result<()> {
    while driven.pool.prepare(SPARE)? {}
    Ok(())
}

/// Appends a record of this kind.
fn put(driven: &mut Driven, kind: FrameKind) -> Result<Offsets> {
    let partition = driven.partitions[0].clone();
    let records = one_record(&[7; RECORD]);
    commit(
        &mut driven.core,
        submission(&partition, kind, records, Durability::Fsync),
        5,
    )
}

/// Appends messages until there are at least this many bytes of them.
fn fill_to(driven: &mut Driven, bytes: u64) {
    while driven.partitions[0].bounds().next * (PAGE as u64) < bytes {
        put(driven, FrameKind::Data).unwrap();
    }
}

fn used(disk: &SimDisk) -> u64 {
    let space = disk.space().unwrap();
    space.total_bytes - space.free_bytes
}

fn commit_files(disk: &SimDisk) -> Vec<String> {
    let mut names = disk.names().unwrap();
    names.retain(|name| name.starts_with("commit-"));
    names.sort();
    names
}

#[test]
fn a_log_makes_no_spare_file_before_a_quarter_of_its_first_file_is_used_and_then_all() {
    for first in [1 << 18, 1 << 20] {
        let disk = SimDisk::new(1, 64 << 20);
        let mut driven = open_with(&disk, &options_of(first)).unwrap();
        for _ in 0..3 {
            fill_to(&mut driven, first / 8);
            attend(&driven).unwrap();
            assert_eq!(driven.pool.counts().0, 0, "first file of {first} bytes");
            // Nor does a start, which finds how much is used.
            drop(driven);
            disk.kill();
            driven = open_with(&disk, &options_of(first)).unwrap();
        }
        assert_eq!(commit_files(&disk).len(), 1);
        fill_to(&mut driven, first / 3);
        drop(driven);
        disk.kill();
        let mut driven = open_with(&disk, &options_of(first)).unwrap();
        attend(&driven).unwrap();
        assert_eq!(driven.pool.counts().0, SPARE);
        // They are there before the writer needs them, and it makes none itself.
        let there = commit_files(&disk);
        fill_to(&mut driven, first);
        assert_eq!(driven.core.current_file(), 1);
        assert_eq!(commit_files(&disk), there);
        // From then on the number stays the same, however little of the current file is used.
        attend(&driven).unwrap();
        assert_eq!(driven.pool.counts().0, SPARE);
    }
}

#[test]
fn a_disk_that_is_full_before_there_is_a_spare_file_leaves_a_quarter_of_the_first_file_to_settles() {
    for first in [1 << 18, 1 << 20] {
        let disk = SimDisk::new(1, 64 << 20);
        let mut driven = open_with(&disk, &options_of(first)).unwrap();
        disk.set_capacity(used(&disk) + (1 << 19));
        let mut messages = 0;
        let refused = loop {
            match put(&mut driven, FrameKind::Data) {
                Ok(_) => messages += PAGE as u64,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, LogError::DiskFull { .. }), "{refused}");
        // Also when the thread has looked, and after a start.
        for _ in 0..2 {
            assert!(matches!(attend(&driven), Err(LogError::DiskFull { .. })));
            let refused = put(&mut driven, FrameKind::Data);
            assert!(matches!(refused, Err(LogError::DiskFull { .. })), "{refused:?}");
            drop(driven);
            disk.kill();
            driven = open_with(&disk, &options_of(first)).unwrap();
        }
        let mut settles = 0;
        while put(&mut driven, FrameKind::State).is_ok() {
            settles += PAGE as u64;
        }
        assert!(messages > first / 2, "{messages} of {first}");
        assert!(settles > first / 6, "{settles} of {first}");
        disk.set_capacity(64 << 20);
        attend(&driven).unwrap();
        put(&mut driven, FrameKind::Data).unwrap();
        assert_eq!(driven.core.current_file(), 1);
    }
}

#[test]
fn a_full_disk_keeps_the_last_spare_file_for_settles() {
    let disk = SimDisk::new(1, 64 << 20);
    let mut driven = open_with(&disk, &options_of(1 << 20)).unwrap();
    fill_to(&mut driven, 1 << 19);
    attend(&driven).unwrap();
    disk.set_capacity(used(&disk));
    while put(&mut driven, FrameKind::Data).is_ok() {}
    assert_eq!((driven.core.current_file(), driven.pool.counts().0), (1, SPARE - 1));
    let mut settles = 0;
    while put(&mut driven, FrameKind::State).is_ok() {
        settles += PAGE as u64;
    }
    assert!(settles > 900 << 10, "{settles}");
    assert_eq!((driven.core.current_file(), driven.pool.counts().0), (2, 0));
}

#[test]
fn a_power_cut_while_the_first_spare_files_are_made_loses_nothing_and_they_are_made_later() {
    const FIRST: u64 = 96 << 10;
    let mut cuts = 0;
    for n in 0.. {
        let disk = SimDisk::new(n, 64 << 20);
        let mut driven = open_with(&disk, &options_of(FIRST)).unwrap();
        fill_to(&mut driven, FIRST / 3);
        disk.cut_power_in(n);
        // Whatever was made before the cut may be used.
        let made = attend(&driven);
        let mut acknowledged = driven.partitions[0].bounds().next;
        for _ in 0..20 {
            acknowledged += u64::from(put(&mut driven, FrameKind::Data).is_ok());
        }
        drop(driven);
        disk.power_cut();
        let mut driven = open_with(&disk, &options_of(FIRST)).unwrap();
        let found = driven.partitions[0].bounds();
        assert!(
            found.first == 0 && found.next >= acknowledged,
            "cut {n}: {found:?}, {acknowledged}"
        );
        assert!(disk.names().unwrap().iter().all(|name| !name.starts_with("new-")));
        attend(&driven).unwrap();
        assert_eq!(driven.pool.counts().0, SPARE, "cut {n}");
        fill_to(&mut driven, 2 << 20);
        assert!(checked(&disk).findings.is_empty());
        match made {
            Ok(()) => break,
            Err(_) => cuts += 1,
        }
    }
    assert!(cuts > 5, "{cuts}");
}
