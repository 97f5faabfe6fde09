//! The index at the end of a full file: every frame header in it, the position of its body, and what the file holds of
//! each partition. It is derived from the frames and rebuilt from them if it is missing or damaged.
//!
//! Entries of 68 bytes (frame header without its checksum 60, position of the body 8), grouped by partition in the
//! order of offsets; then 48 bytes for each partition: id 8 · first offset 8 · next offset 8 · bytes of bodies 8 · max
//! time 8 · index of its first entry 4 · number of its entries 4; then the trailer, which ends with the file: magic
//! `TWX1` 4 · version 2 · kind of the file 2 · entries 4 · crc32c of the entries 4 · partitions 4 · crc32c of their
//! rows 4 · file number 8 · first block sequence 8 · last block sequence 8 · last synced sequence 8 · end of the frames
//! 8 · log id 8 · crc32c of the trailer 4
//!
//! Magic, version, kind, file number and log id have the same distance from the end of the file in every version, so
//! that an older program does not rebuild a newer index.

use crate::format::frame::{self, FrameHeader};
use crate::format::newer::{NewerVersion, VersionedPart};
use crate::format::{FieldReader, FieldWriter};
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::index::{FileIndex, FrameEntry};

pub const ENTRY_LEN: usize = frame::BARE_LEN + 8;
pub const HOLDING_LEN: usize = 48;
pub const TRAILER_LEN: usize = 76;

const MAGIC: [u8; 4] = *b"TWX1";
pub const VERSION: u16 = 1;
/// The highest known kind.
pub const KIND_MAX: u16 = FileKind::Segment as u16;

const FILE_AT: usize = 24;
const LOG_ID_AT: usize = 64;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FileKind {
    /// Blocks of all partitions, in commit order.
    Commit = 0,
    /// Frames of one or more partitions that were moved out of commit files.
    Segment = 1,
}

/// What a file holds of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionExtent {
    pub partition: PartitionId,
    pub first: Offset,
    pub next: Offset,
    /// The size of the frame bodies.
    pub bytes: u64,
    pub max_time: Micros,
    /// The index of its first entry, and the number of its entries.
    pub entry: u32,
    pub entries: u32,
}

/// The decoded trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub kind: FileKind,
    pub entries: u32,
    entries_crc: u32,
    pub partitions: u32,
    partitions_crc: u32,
    pub file: u64,
    pub first: Sequence,
    pub last: Sequence,
    pub synced: Sequence,
    /// The end of the last frame.
    pub end: u64,
    pub log_id: u64,
}

impl Trailer {
    /// Length of entries, partition rows and trailer.
    pub fn footer_len(&self) -> u64 {
        footer_len(self.entries as usize, self.partitions as usize)
    }

    /// Length of the entries, which precede the partition rows.
    pub fn entries_len(&self) -> usize {
        self.entries as usize * ENTRY_LEN
    }

    pub fn holdings_len(&self) -> usize {
        self.partitions as usize * HOLDING_LEN
    }

    /// Decodes the last bytes of a file; `None` if they are not a trailer.
    pub fn decode(bytes: &[u8]) -> Option<Trailer> {
        let bytes = bytes.get(..TRAILER_LEN)?;
        let mut take = FieldReader(bytes);
        if take.bytes()? != MAGIC || take.u16()? != VERSION {
            return None;
        }
        let kind = match take.u16()? {
            0 => FileKind::Commit,
            1 => FileKind::Segment,
            _ => return None,
        };
        let trailer = Trailer {
            kind,
            entries: take.u32()?,
            entries_crc: take.u32()?,
            partitions: take.u32()?,
            partitions_crc: take.u32()?,
            file: take.u64()?,
            first: take.u64()?,
            last: take.u64()?,
            synced: take.u64()?,
            end: take.u64()?,
            log_id: take.u64()?,
        };
        let crc = crc32c::crc32c(bytes.get(..TRAILER_LEN - 4)?);
        (take.u32()? == crc && trailer.first <= trailer.last).then_some(trailer)
    }

    /// The version or kind of a trailer that a newer program wrote for a file with this number, and for this log if an
    /// id is given. A trailer that is sound except for its version is damaged, not newer.
    pub fn newer(bytes: &[u8], file: u64, log_id: Option<u64>) -> Option<NewerVersion> {
        let bytes = bytes.get(..TRAILER_LEN)?;
        let mut take = FieldReader(bytes);
        let (magic, version, kind) = (take.bytes()?, take.u16()?, take.u16()?);
        let number = FieldReader(bytes.get(FILE_AT..)?).u64()?;
        let id = FieldReader(bytes.get(LOG_ID_AT..)?).u64()?;
        if magic != MAGIC || number != file || log_id.is_some_and(|own| own != id) {
            return None;
        }
        let sound = |bytes: &[u8]| {
            let (rest, crc) = bytes.split_last_chunk().unwrap_or((bytes, &[0; 4]));
            u32::from_le_bytes(*crc) == crc32c::crc32c(rest)
        };
        if version == VERSION {
            let newer = NewerVersion {
                what: VersionedPart::FileKind,
                found: kind,
            };
            return (kind > KIND_MAX && sound(bytes)).then_some(newer);
        }
        let mut mended = bytes.to_vec();
        mended.get_mut(4..6)?.copy_from_slice(&VERSION.to_le_bytes());
        let newer = NewerVersion {
            what: VersionedPart::Index,
            found: version,
        };
        (version > VERSION && !sound(&mended)).then_some(newer)
    }

    /// The index of the file, decoded from its entries; `None` if they are damaged.
    pub(crate) fn index(&self, entries: &[u8]) -> Option<FileIndex> {
        if entries.len() != self.entries_len() || crc32c::crc32c(entries) != self.entries_crc {
            return None;
        }
        let mut index = FileIndex::default();
        for entry in entries.chunks_exact(ENTRY_LEN) {
            index.push(self::entry(entry)?);
        }
        Some(index)
    }

    /// What the file holds of each partition; `None` if the rows are damaged.
    pub fn holdings(&self, rows: &[u8]) -> Option<Vec<PartitionExtent>> {
        if rows.len() != self.holdings_len() || crc32c::crc32c(rows) != self.partitions_crc {
            return None;
        }
        rows.chunks_exact(HOLDING_LEN).map(PartitionExtent::decode).collect()
    }
}

impl PartitionExtent {
    fn encode(&self, out: &mut Vec<u8>) {
        FieldWriter(out)
            .u64(self.partition.to_bits())
            .u64(self.first)
            .u64(self.next)
            .u64(self.bytes)
            .i64(self.max_time)
            .u32(self.entry)
            .u32(self.entries);
    }

    fn decode(row: &[u8]) -> Option<PartitionExtent> {
        let mut take = FieldReader(row);
        Some(PartitionExtent {
            partition: PartitionId::from_bits(take.u64()?),
            first: take.u64()?,
            next: take.u64()?,
            bytes: take.u64()?,
            max_time: take.i64()?,
            entry: take.u32()?,
            entries: take.u32()?,
        })
    }
}

pub fn footer_len(entries: usize, partitions: usize) -> u64 {
    (entries * ENTRY_LEN + partitions * HOLDING_LEN + TRAILER_LEN) as u64
}

/// The fields of the trailer that the caller supplies.
#[derive(Clone, Copy, Debug)]
pub struct TrailerFields {
    pub kind: FileKind,
    pub file: u64,
    pub first: Sequence,
    pub last: Sequence,
    pub synced: Sequence,
    pub end: u64,
    pub log_id: u64,
}

fn entry(bytes: &[u8]) -> Option<FrameEntry> {
    let (header, position) = bytes.split_at_checked(frame::BARE_LEN)?;
    Some(FrameEntry {
        header: FrameHeader::decode_bare(header)?,
        body_at: FieldReader(position).u64()?,
    })
}

/// Whether an index begins with these bytes: its first entry matches an existing frame.
pub(crate) fn begins(bytes: &[u8], is_there: impl FnOnce(&FrameEntry) -> bool) -> bool {
    entry(bytes).is_some_and(|entry| is_there(&entry))
}

/// Encodes entries, partition rows and trailer, to be written at the end of the file.
pub(crate) fn encode(index: &FileIndex, holdings: &[PartitionExtent], bounds: &TrailerFields) -> Vec<u8> {
    let mut out = Vec::with_capacity(footer_len(index.frames(), holdings.len()) as usize);
    for (_, entries) in index.partitions() {
        for entry in entries {
            entry.header.encode_bare(&mut out);
            FieldWriter(&mut out).u64(entry.body_at);
        }
    }
    let entries_crc = crc32c::crc32c(&out);
    let rows = out.len();
    holdings.iter().for_each(|holding| holding.encode(&mut out));
    let partitions_crc = crc32c::crc32c(out.get(rows..).unwrap_or_default());
    let start = out.len();
    FieldWriter(&mut out)
        .bytes(&MAGIC)
        .u16(VERSION)
        .u16(bounds.kind as u16)
        .u32(index.frames() as u32)
        .u32(entries_crc)
        .u32(holdings.len() as u32)
        .u32(partitions_crc)
        .u64(bounds.file)
        .u64(bounds.first)
        .u64(bounds.last)
        .u64(bounds.synced)
        .u64(bounds.end)
        .u64(bounds.log_id);
    let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
    FieldWriter(&mut out).u32(crc);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::frame::{FrameFlags, FrameKind};

    fn index(frames: u32) -> FileIndex {
        let mut index = FileIndex::default();
        for n in 0..frames {
            index.push(FrameEntry {
                header: FrameHeader {
                    kind: FrameKind::Data,
                    flags: FrameFlags::NONE,
                    body_len: n,
                    body_crc: n ^ 5,
                    partition: PartitionId::new(1, n % 3),
                    base: u64::from(n) * 10,
                    records: 10,
                    last_delta: 9,
                    base_time: 1,
                    max_time: n.into(),
                },
                body_at: u64::from(n) * 4096,
            });
        }
        index
    }

    const BOUNDS: TrailerFields = TrailerFields {
        kind: FileKind::Commit,
        file: 4,
        first: 10,
        last: 20,
        synced: 19,
        end: 1 << 20,
        log_id: 77,
    };

    fn read(bytes: &[u8]) -> Option<(Trailer, FileIndex, Vec<PartitionExtent>)> {
        let (rest, trailer) = bytes.split_at(bytes.len() - TRAILER_LEN);
        let trailer = Trailer::decode(trailer)?;
        let (entries, rows) = rest.split_at_checked(trailer.entries_len())?;
        Some((trailer, trailer.index(entries)?, trailer.holdings(rows)?))
    }

    proptest! {
        #[test]
        fn an_index_comes_back_whole_and_a_flipped_bit_is_found(frames in 0..20u32, bit: prop::sample::Index) {
            let index = index(frames);
            let holdings = index.holdings();
            let mut bytes = encode(&index, &holdings, &BOUNDS);
            prop_assert_eq!(bytes.len() as u64, footer_len(frames as usize, holdings.len()));
            let (trailer, found, rows) = read(&bytes).unwrap();
            let named = (trailer.file, trailer.first, trailer.last, trailer.synced, trailer.end, trailer.log_id);
            prop_assert_eq!(named, (4, 10, 20, 19, 1 << 20, 77));
            prop_assert_eq!((found, rows), (index, holdings));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&bytes), None);
            let trailer = &bytes[bytes.len() - TRAILER_LEN..];
            prop_assert_eq!(Trailer::newer(trailer, 4, None), None, "what is damaged is not newer");
        }
    }

    #[test]
    fn a_partition_finds_its_entries_by_its_row() {
        let index = index(10);
        let bytes = encode(&index, &index.holdings(), &BOUNDS);
        let (_, found, rows) = read(&bytes).unwrap();
        assert_eq!(rows.len(), 3);
        let row = rows.iter().find(|row| row.partition.partition == 1).unwrap();
        // Frames 1, 4 and 7.
        assert_eq!(
            (row.first, row.next, row.bytes, row.max_time, row.entries),
            (10, 80, 12, 7, 3)
        );
        assert_eq!(found.from(row.partition, 0).len(), 3);
    }
}
