//! Messages that look like blocks of the same log at page boundaries are never taken for blocks.

use super::*;
use crate::format::PAGE;
use crate::format::block::{self, BlockHeader};
use crate::format::frame;

/// The bytes before the value of a block's only record of this size: headers, length, flags and time.
const BEFORE_VALUE: usize = block::LEN + frame::LEN + 2 + 1 + 8;
const VALUE: usize = 3 * PAGE;
/// The sequence of forged blocks only.
const FORGED: u64 = 1 << 40;

/// A value with a forged one-page block of this log at the start of each page, which claims that earlier blocks were
/// synced.
fn forged(sequence: u64) -> Vec<u8> {
    let header = BlockHeader {
        frames: 0,
        block_len: PAGE as u32,
        sequence,
        commit_time: 5,
        log_id: 42,
        synced: sequence - 1,
    };
    let mut page = Vec::new();
    header.encode(&[], &mut page);
    page.resize(PAGE, 0);
    let mut value = vec![0xaa; PAGE - BEFORE_VALUE];
    while value.len() < VALUE {
        value.extend_from_slice(&page);
    }
    value.truncate(VALUE);
    value
}

fn store(driven: &mut Driven, value: &[u8]) -> Result<Offsets> {
    let stored = submission(
        &driven.partitions[0],
        FrameKind::Data,
        one_record(value),
        Durability::Fsync,
    );
    commit(&mut driven.core, stored, 5)
}

fn values(partition: &Partition) -> Vec<Vec<u8>> {
    let (mut values, mut from) = (Vec::new(), partition.bounds().first);
    while let Some(frame) = partition.read(from, 1).unwrap().first() {
        values.extend(records(&frame.body).map(|record| record.unwrap().value.to_vec()));
        from = frame.header.next();
    }
    values
}

/// The number of pages in all files that begin like a forged block.
fn forged_pages(disk: &SimDisk, is: impl Fn(u64) -> bool) -> usize {
    let mut found = 0;
    for name in disk.names().unwrap() {
        let Some((_, number)) = crate::file::parse_name(&name) else {
            continue;
        };
        let bytes = bytes_of(disk, &name);
        let headers = bytes.chunks(PAGE).filter_map(BlockHeader::decode);
        found += headers.filter(|header| header.sequence >= FORGED && is(number)).count();
    }
    found
}

#[test]
fn a_message_in_the_middle_of_the_log_that_looks_like_blocks_is_none() {
    let disk = SimDisk::new(1, 64 << 20);
    let mut driven = open(&disk).unwrap();
    let all: Vec<Vec<u8>> = [FORGED, 7, 8, FORGED + 1, 9].map(forged).into();
    for value in &all {
        store(&mut driven, value).unwrap();
    }
    assert!(
        forged_pages(&disk, |_| true) >= 4,
        "the test has to place them where blocks begin"
    );
    disk.kill();
    let driven = open(&disk).unwrap();
    assert_eq!(values(&driven.partitions[0]), all);
    let report = checked(&disk);
    assert!(report.is_whole() && report.last < FORGED, "{:?}", report.findings);
}

#[test]
fn a_torn_message_that_looks_like_blocks_is_a_torn_message() {
    for seed in 0..600 {
        let disk = SimDisk::new(seed, 64 << 20);
        let mut driven = open(&disk).unwrap();
        store(&mut driven, b"stored").unwrap();
        disk.cut_power_in(seed % 4);
        let stored = store(&mut driven, &forged(FORGED));
        disk.power_cut();
        let driven = open(&disk).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let found = values(&driven.partitions[0]);
        assert_eq!(found[0], b"stored", "seed {seed}");
        assert!(found.len() == 2 || stored.is_err(), "seed {seed}");
    }
}

#[test]
fn a_file_with_messages_that_look_like_blocks_is_not_used_again() {
    for reopened in [false, true] {
        let disk = SimDisk::new(3, 64 << 20);
        let mut driven = open(&disk).unwrap();
        for _ in 0..30 {
            store(&mut driven, &forged(FORGED)).unwrap();
        }
        if reopened {
            disk.kill();
            driven = open(&disk).unwrap();
        }
        let next = driven.partitions[0].bounds().next;
        let said = PartitionChange::Trimmed(driven.partitions[0].id, next);
        change(&mut driven.core, &driven.meta, said, Durability::Fsync).unwrap();
        driven.partitions[0].trim(next);
        let full = driven.pool.sealed().len();
        while driven.pool.prepare(2).unwrap() {}
        assert!(driven.pool.sealed().len() < full, "files were freed");
        let current = driven.core.current_file();
        assert_eq!(
            forged_pages(&disk, |number| number > current),
            0,
            "reopened: {reopened}"
        );
    }
}
