//! The header of a block: the frames of one write and one sync, the unit of atomicity. 48 bytes.
//!
//! magic `TWB1` 4 · version 2 · frame count 2 · block length 4 · crc32c of the rest of this header and of all frame
//! headers but for their own checksums 4 · block sequence 8 · commit time 8 · log id 8 · last sequence synced when it was
//! written 8
//!
//! A checksum over data that ends with its own checksum of the same kind is the same whatever the data: were those of the
//! frame headers covered, a torn block that has an older block's frame headers would pass for whole.

use crate::format::newer::{NewerVersion, VersionedPart};
use crate::format::{FieldReader, FieldWriter, PAGE, frame};
use crate::ids::{Micros, Sequence};

pub const LEN: usize = 48;
pub const VERSION: u16 = 1;

/// The largest submission, its headers, and what fills the last page.
pub const BLOCK_MAX: usize = 40 << 20;

const MAGIC: [u8; 4] = *b"TWB1";
const CRC_AT: usize = 12;
const SEQUENCE_AT: usize = 16;

/// Whether any page of `bytes`, which begin with a page, looks like the start of a block, from position `from` on, which is
/// that of a page.
pub(crate) fn begins_within(bytes: &[u8], from: usize) -> bool {
    let pages = bytes.get(from..).unwrap_or_default().chunks(PAGE);
    pages.into_iter().any(|page| page.starts_with(&MAGIC))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Frames; none in the block that an idle writer leaves to name what it has synced.
    pub frames: u16,
    /// With this header and up to the next page.
    pub block_len: u32,
    pub sequence: Sequence,
    pub commit_time: Micros,
    /// Files of another log, or of an earlier one in the same folder, do not belong.
    pub log_id: u64,
    /// Every block up to this one was on disk when this one was written.
    pub synced: Sequence,
}

impl BlockHeader {
    /// Bytes of this header and of those of its frames.
    pub fn headers_len(&self) -> usize {
        LEN + usize::from(self.frames) * frame::LEN
    }

    /// Appends this header; the checksum covers `frame_headers`, which follow it.
    pub fn encode(&self, frame_headers: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        FieldWriter(out)
            .bytes(&MAGIC)
            .u16(VERSION)
            .u16(self.frames)
            .u32(self.block_len)
            .u32(0)
            .u64(self.sequence)
            .i64(self.commit_time)
            .u64(self.log_id)
            .u64(self.synced);
        let crc = checksum(out.get(start..).unwrap_or_default(), frame_headers);
        if let Some(place) = out.get_mut(start + CRC_AT..start + CRC_AT + 4) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
    }

    /// Only what the header says of itself; `None` for bytes that are none. The checksum needs the frame headers, whose
    /// number is known only now: see [`BlockHeader::is_sound`].
    pub fn decode(bytes: &[u8]) -> Option<BlockHeader> {
        let mut take = FieldReader(bytes.get(..LEN)?);
        if take.bytes()? != MAGIC || take.u16()? != VERSION {
            return None;
        }
        let frames = take.u16()?;
        let block_len = take.u32()?;
        take.u32()?;
        let header = BlockHeader {
            frames,
            block_len,
            sequence: take.u64()?,
            commit_time: take.i64()?,
            log_id: take.u64()?,
            synced: take.u64()?,
        };
        let len = block_len as usize;
        let fits = len >= header.headers_len() && len <= BLOCK_MAX && len.is_multiple_of(PAGE);
        (fits && header.synced <= header.sequence).then_some(header)
    }

    /// The version of a block that was written by a newer program.
    pub fn newer(bytes: &[u8]) -> Option<NewerVersion> {
        let mut take = FieldReader(bytes);
        let (magic, found) = (take.bytes()?, take.u16()?);
        let what = VersionedPart::Block;
        (magic == MAGIC && found > VERSION).then_some(NewerVersion { what, found })
    }

    /// The same of a block with this sequence, of this log if that has a name yet. Magic, version, sequence and log id stand in
    /// the same places in every version, so that an older program knows what it must not take for damage.
    pub fn newer_in_place(bytes: &[u8], sequence: Sequence, log_id: Option<u64>) -> Option<NewerVersion> {
        let newer = BlockHeader::newer(bytes)?;
        let mut take = FieldReader(bytes.get(SEQUENCE_AT..)?);
        let (found, _, id) = (take.u64()?, take.i64()?, take.u64()?);
        (found == sequence && log_id.is_none_or(|own| own == id)).then_some(newer)
    }

    /// Whether `headers`, its own bytes and those of its frames' headers, are as they were written.
    pub fn is_sound(&self, headers: &[u8]) -> bool {
        let Some((own, frames)) = headers.get(..self.headers_len()).and_then(|h| h.split_at_checked(LEN)) else {
            return false;
        };
        own.get(CRC_AT..CRC_AT + 4) == Some(&checksum(own, frames).to_le_bytes())
            && frames.chunks(frame::LEN).all(frame::is_sound)
    }
}

/// Of a block header without its checksum, and the frame headers behind it.
fn checksum(own: &[u8], frame_headers: &[u8]) -> u32 {
    let before = crc32c::crc32c(own.get(..CRC_AT).unwrap_or_default());
    let own = crc32c::crc32c_append(before, own.get(CRC_AT + 4..).unwrap_or_default());
    frame_headers.chunks(frame::LEN).fold(own, |crc, header| {
        crc32c::crc32c_append(crc, header.get(..frame::BARE_LEN).unwrap_or(header))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::frame::{FrameFlags, FrameHeader, FrameKind};
    use crate::ids::PartitionId;

    #[test]
    fn the_frame_headers_of_another_block_are_not_taken_for_its_own() {
        let frame = |base| {
            let mut bytes = Vec::new();
            let header = FrameHeader {
                kind: FrameKind::Meta,
                flags: FrameFlags::NONE,
                body_len: 12,
                body_crc: 5,
                partition: PartitionId::new(1, 1),
                base,
                records: 1,
                last_delta: 0,
                base_time: 7,
                max_time: 7,
                epoch: 0,
            };
            header.encode(&mut bytes);
            bytes
        };
        let header = BlockHeader {
            frames: 1,
            block_len: PAGE as u32,
            sequence: 64,
            commit_time: 1,
            log_id: 42,
            synced: 63,
        };
        let mut bytes = Vec::new();
        header.encode(&frame(27), &mut bytes);
        assert!(header.is_sound(&[&bytes[..], &frame(27)].concat()));
        // Whole and right by its own checksum, but not what was written with this header.
        assert!(!header.is_sound(&[&bytes[..], &frame(12)].concat()));
    }

    proptest! {
        #[test]
        fn a_header_comes_back_whole_and_a_flipped_bit_is_found(
            frames in 0..4u16, pages in 1..9u32, sequence: u64, back in 0..9u64, time: i64, log_id: u64, bit: usize,
        ) {
            let header = BlockHeader {
                frames, block_len: pages * PAGE as u32, sequence, commit_time: time, log_id,
                synced: sequence.saturating_sub(back),
            };
            let frame_headers: Vec<u8> = (0..frames).flat_map(|n| {
                let bare = [n as u8; frame::BARE_LEN];
                [&bare[..], &crc32c::crc32c(&bare).to_le_bytes()].concat()
            }).collect();
            let mut bytes = Vec::new();
            header.encode(&frame_headers, &mut bytes);
            bytes.extend(&frame_headers);
            prop_assert_eq!(bytes.len(), header.headers_len());
            prop_assert_eq!(BlockHeader::decode(&bytes), Some(header));
            prop_assert!(header.is_sound(&bytes));
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = BlockHeader::decode(&bytes).is_some_and(|header| header.is_sound(&bytes));
            prop_assert!(!found);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(header) = BlockHeader::decode(&bytes) {
                let _ = header.is_sound(&bytes);
            }
        }
    }
}
