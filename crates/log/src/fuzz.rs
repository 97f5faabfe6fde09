//! Entry points for the fuzz targets, which treat arbitrary bytes as data read from a disk. They return or panic; a
//! panic is a bug.

use std::sync::Arc;

use crate::check::check;
use crate::disk::Disk;
use crate::disk::sim::SimDisk;
use crate::dump::{DumpOptions, dump};
use crate::durability::Durability;
use crate::file::{LogFile, commit_name};
use crate::format::block::{self, BlockHeader};
use crate::format::footer::{TRAILER_LEN, Trailer};
use crate::format::frame::{self, FrameFlags, FrameHeader, FrameKind};
use crate::format::record::{RecordRef, records};
use crate::format::superblock::Superblock;
use crate::format::{PAGE, pages};
use crate::ids::PartitionId;
use crate::options::LogOptions;
use crate::partition_table::{META, PartitionEntry, PartitionTable};
use crate::repair::repair;
use crate::superblock;
use crate::{check::salvage, open};

const FILE_BYTES: u64 = 64 << 10;
const LOG_ID: u64 = 7;

/// Decodes a block: its header, its frame headers, and the frames that can be salvaged.
pub fn block(bytes: &[u8]) {
    if let Some(header) = BlockHeader::decode(bytes) {
        let _ = header.is_sound(bytes);
    }
    for bytes in bytes.get(block::LEN..).unwrap_or_default().chunks_exact(frame::LEN) {
        if let Some(header) = FrameHeader::decode(bytes) {
            assert!(header.next() >= header.base);
            assert!(FrameHeader::newer(bytes).is_none());
        }
    }
    for entry in salvage::frames(bytes, 0) {
        let start = entry.body_at as usize;
        let body = bytes.get(start..start + entry.header.body_len as usize);
        assert_eq!(
            body.map(crc32c::crc32c),
            Some(entry.header.body_crc),
            "only whole bodies are salvaged"
        );
    }
}

/// Decodes a body. Encoding the records again must give the same bytes.
pub fn body(bytes: &[u8]) {
    let mut again = Vec::new();
    let mut whole = true;
    for record in records(bytes) {
        match record {
            Ok(record) => record.encode(&mut again),
            Err(_) => whole = false,
        }
    }
    assert!(!whole || again.len() <= bytes.len());
    assert!(again.len() <= bytes.len());
}

/// Decodes the index at the end of a file.
pub fn footer(bytes: &[u8]) {
    let Some((rest, end)) = bytes
        .len()
        .checked_sub(TRAILER_LEN)
        .and_then(|at| bytes.split_at_checked(at))
    else {
        return;
    };
    let Some(trailer) = Trailer::decode(end) else {
        let _ = Trailer::newer(end, 0, None);
        return;
    };
    assert!(Trailer::newer(end, trailer.file, None).is_none());
    let (entries, rows) = rest.split_at_checked(trailer.entries_len()).unwrap_or_default();
    let _ = (trailer.index(entries), trailer.holdings(rows));
}

/// Decodes a superblock slot.
pub fn superblock(bytes: &[u8]) {
    match Superblock::decode(bytes) {
        Some(slot) => {
            assert_eq!(
                Superblock::decode(&slot.encode()),
                Some(slot),
                "a slot reads back as it was"
            );
            assert!(Superblock::newer(bytes).is_none());
        }
        None => drop(Superblock::newer(bytes)),
    }
}

/// Applies records of the partition table, each with a length byte before it.
pub fn table(mut bytes: &[u8]) {
    let mut table = PartitionTable::default();
    while let Some((len, rest)) = bytes.split_first() {
        let (value, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let _ = table.apply(value);
        bytes = rest;
    }
    let rows: Vec<_> = table.partitions.iter().map(|(id, known)| (*id, *known)).collect();
    let mut snapshot = Vec::new();
    PartitionTable::encode(rows.into_iter(), &mut snapshot);
    let mut again = PartitionTable::default();
    assert!(
        again.apply(&snapshot).is_ok() && again == table,
        "a table reads back as it was"
    );
}

/// Overwrites parts of a small log. Each patch is: file 1, one of which is the superblock · page 1 · position in it 2 ·
/// length 1 · that many bytes. The log is then checked, dumped, opened and repaired; afterwards it must be whole and
/// open.
pub fn files(bytes: &[u8]) {
    let disk = SimDisk::new(1, 64 << 20);
    small_log(&disk);
    let mut rest = bytes;
    while let Some((&[file, page, low, high, len], more)) = rest.split_first_chunk::<5>() {
        let (piece, more) = more.split_at(more.len().min(usize::from(len)));
        let name = match file % 5 {
            4 => superblock::NAME.to_owned(),
            number => commit_name(u64::from(number)),
        };
        let at = usize::from(page % 16) * PAGE + usize::from(u16::from_le_bytes([low, high])) % PAGE;
        let opened = disk.open(&name).or_else(|_| disk.create(&name));
        if let Ok(opened) = opened {
            let _ = opened.write_at(piece, at as u64);
        }
        rest = more;
    }
    let _ = dump(
        &disk,
        &DumpOptions {
            records: true,
            ..DumpOptions::default()
        },
        &mut |_| true,
    );
    let _ = check(&disk, &mut |_, _| {});
    let Ok(repaired) = repair(&disk, true, &mut |_, _| {}) else {
        return;
    };
    let after = repaired.done.map_or(repaired.before, |done| done.after);
    assert!(after.is_whole(), "{:?}", after.findings);
    let options = LogOptions {
        file_bytes: FILE_BYTES,
        first_file_bytes: FILE_BYTES,
        min_free_bytes: Some(0),
        ..LogOptions::default()
    };
    let opened = open::open(Arc::new(disk), LOG_ID, &options);
    assert!(opened.is_ok(), "{:?}", opened.err());
}

/// Two files, each with a table of two partitions and records of both.
fn small_log(disk: &SimDisk) {
    let ids = [PartitionId::new(1, 0), PartitionId::new(1, 1)];
    let mut sequence = 0;
    for number in 0..2 {
        let cache = crate::cache::IndexCache::new(1 << 20);
        let Ok(file) = LogFile::make(disk, number, FILE_BYTES, &cache, &|_| true) else {
            return;
        };
        let mut at = 0;
        for n in 0..6u64 {
            let bodies: Vec<(PartitionId, u64, Vec<u8>)> = match (number, n) {
                (0, 0) => vec![(META, 0, snapshot(&ids))],
                (_, 0) => Vec::new(),
                _ => ids
                    .map(|id| (id, number * 5 + n - 1, vec![n as u8; 100 * n as usize]))
                    .into(),
            };
            sequence += 1;
            let bytes = encoded(sequence, &bodies);
            let _ = file.write(&bytes, at);
            at += bytes.len() as u64;
        }
    }
}

fn snapshot(ids: &[PartitionId]) -> Vec<u8> {
    let known = PartitionEntry {
        durability: Durability::Fsync,
        first: 0,
        next: 0,
    };
    let mut value = Vec::new();
    PartitionTable::encode(ids.iter().map(|id| (*id, known)), &mut value);
    value
}

/// Encodes a block of frames with one record each.
fn encoded(sequence: u64, values: &[(PartitionId, u64, Vec<u8>)]) -> Vec<u8> {
    let (mut headers, mut bodies) = (Vec::new(), Vec::new());
    for (partition, base, value) in values {
        let mut body = Vec::new();
        RecordRef::of(1, value).encode(&mut body);
        let header = FrameHeader {
            kind: if *partition == META {
                FrameKind::Checkpoint
            } else {
                FrameKind::Data
            },
            flags: FrameFlags::NONE,
            body_len: body.len() as u32,
            body_crc: crc32c::crc32c(&body),
            partition: *partition,
            base: *base,
            records: 1,
            last_delta: 0,
            base_time: 1,
            max_time: 1,
        };
        header.encode(&mut headers);
        bodies.extend(body);
    }
    let block_len = pages(block::LEN + headers.len() + bodies.len());
    let header = BlockHeader {
        frames: values.len() as u16,
        block_len: block_len as u32,
        sequence,
        commit_time: 1,
        log_id: LOG_ID,
        synced: sequence - 1,
    };
    let mut bytes = Vec::with_capacity(block_len);
    header.encode(&headers, &mut bytes);
    bytes.extend(headers);
    bytes.extend(bodies);
    bytes.resize(block_len, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_small_log_is_whole_before_anything_is_written_over_it() {
        let disk = SimDisk::new(1, 64 << 20);
        small_log(&disk);
        let report = check(&disk, &mut |_, _| {}).unwrap();
        assert!(report.is_whole(), "{:?}", report.findings);
        assert_eq!((report.blocks, report.partitions.len()), (12, 2));
        assert!(report.partitions.iter().all(|row| (row.first, row.next) == (0, 10)));
    }

    #[test]
    fn the_entries_take_any_bytes() {
        let mut random = crate::disk::sim::Random::new(3);
        for _ in 0..200 {
            let bytes: Vec<u8> = (0..random.below(300)).map(|_| random.number() as u8).collect();
            [block, body, footer, superblock, table, files]
                .iter()
                .for_each(|target| target(&bytes));
        }
    }
}
