//! The index at the end of a file that is full: every frame header in it and where the body lies. Derived from the
//! blocks: missing or damaged it is made anew from them.
//!
//! Entries of 72 bytes (frame header 64, position of the body 8), then the trailer, which ends with the file: magic
//! `TWX1` 4 · version 2 · reserved 2 · entries 4 · crc32c of the entries 4 · file number 8 · first block sequence 8 ·
//! last block sequence 8 · last sequence synced 8 · end of the blocks 8 · log id 8 · crc32c of the trailer 4

use crate::format::frame::{self, FrameHeader};
use crate::format::{Put, Take};
use crate::ids::Sequence;
use crate::index::{Entry, FileIndex};

pub const ENTRY_LEN: usize = frame::LEN + 8;
pub const TRAILER_LEN: usize = 68;

const MAGIC: [u8; 4] = *b"TWX1";
const VERSION: u16 = 1;

/// What the trailer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    pub entries: u32,
    entries_crc: u32,
    pub file: u64,
    pub first: Sequence,
    pub last: Sequence,
    pub synced: Sequence,
    /// Position behind the last block.
    pub end: u64,
    pub log_id: u64,
}

impl Trailer {
    /// Bytes of entries and trailer together.
    pub fn footer_len(&self) -> u64 {
        footer_len(self.entries as usize)
    }

    /// From the last bytes of a file; `None` for bytes that are no trailer.
    pub fn decode(bytes: &[u8]) -> Option<Trailer> {
        let bytes = bytes.get(..TRAILER_LEN)?;
        let mut take = Take(bytes);
        if take.bytes()? != MAGIC || take.u16()? != VERSION {
            return None;
        }
        take.u16()?;
        let trailer = Trailer {
            entries: take.u32()?,
            entries_crc: take.u32()?,
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

    /// The index of the file from the entries before the trailer; `None` if they are damaged.
    pub(crate) fn index(&self, entries: &[u8]) -> Option<FileIndex> {
        let expected = self.entries as usize * ENTRY_LEN;
        if entries.len() != expected || crc32c::crc32c(entries) != self.entries_crc {
            return None;
        }
        let mut index = FileIndex::default();
        for entry in entries.chunks_exact(ENTRY_LEN) {
            let (header, position) = entry.split_at_checked(frame::LEN)?;
            index.push(Entry {
                header: FrameHeader::decode(header)?,
                body_at: Take(position).u64()?,
            });
        }
        Some(index)
    }
}

pub fn footer_len(entries: usize) -> u64 {
    (entries * ENTRY_LEN + TRAILER_LEN) as u64
}

/// What of a file the trailer names.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub file: u64,
    pub first: Sequence,
    pub last: Sequence,
    pub synced: Sequence,
    pub end: u64,
    pub log_id: u64,
}

/// Entries and trailer, to be written so that they end with the file.
pub(crate) fn encode(index: &FileIndex, bounds: &Bounds) -> Vec<u8> {
    let mut out = Vec::with_capacity(footer_len(index.frames()) as usize);
    for (_, entries) in index.partitions() {
        for entry in entries {
            entry.header.encode(&mut out);
            Put(&mut out).u64(entry.body_at);
        }
    }
    let entries_crc = crc32c::crc32c(&out);
    let start = out.len();
    Put(&mut out)
        .bytes(&MAGIC)
        .u16(VERSION)
        .u16(0)
        .u32(index.frames() as u32)
        .u32(entries_crc)
        .u64(bounds.file)
        .u64(bounds.first)
        .u64(bounds.last)
        .u64(bounds.synced)
        .u64(bounds.end)
        .u64(bounds.log_id);
    let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
    Put(&mut out).u32(crc);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::frame::{Flags, Kind};
    use crate::ids::PartitionId;

    fn index(frames: u32) -> FileIndex {
        let mut index = FileIndex::default();
        for n in 0..frames {
            index.push(Entry {
                header: FrameHeader {
                    kind: Kind::Data,
                    flags: Flags::NONE,
                    body_len: n,
                    body_crc: n ^ 5,
                    partition: PartitionId::new(1, n % 3),
                    base: u64::from(n) * 10,
                    records: 10,
                    last_delta: 9,
                    base_time: 1,
                    max_time: 2,
                    epoch: 0,
                },
                body_at: u64::from(n) * 4096,
            });
        }
        index
    }

    const BOUNDS: Bounds = Bounds {
        file: 4,
        first: 10,
        last: 20,
        synced: 19,
        end: 1 << 20,
        log_id: 77,
    };

    proptest! {
        #[test]
        fn an_index_comes_back_whole_and_a_flipped_bit_is_found(frames in 0..20u32, bit: prop::sample::Index) {
            let index = index(frames);
            let mut bytes = encode(&index, &BOUNDS);
            prop_assert_eq!(bytes.len() as u64, footer_len(frames as usize));
            let read = |bytes: &[u8]| {
                let (entries, trailer) = bytes.split_at(bytes.len() - TRAILER_LEN);
                let trailer = Trailer::decode(trailer)?;
                Some((trailer.file, trailer.first, trailer.last, trailer.synced, trailer.end, trailer.index(entries)?))
            };
            let expected = (4, 10, 20, 19, 1 << 20, index);
            prop_assert_eq!(read(&bytes), Some(expected));
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(&bytes), None);
        }
    }
}
