//! The header of a block. A block has the frames of one write and one sync and is the unit of atomicity. 48 bytes.
//!
//! magic `TWB1` 4 · version 2 · frame count 2 · block length 4 · crc32c of the rest of this header and of all frame
//! headers without their own checksums 4 · block sequence 8 · commit time 8 · log id 8 · last synced sequence at the
//! time of writing 8
//!
//! The frame headers' checksums are excluded because a CRC over data that ends with its own CRC does not depend on the
//! data: a torn block with the frame headers of an older block would pass as whole.

use crate::format::newer::{NewerVersion, VersionedPart};
use crate::format::{FieldReader, FieldWriter, PAGE, frame};
use crate::ids::{Micros, Sequence};

pub const LEN: usize = 48;
pub const VERSION: u16 = 1;

/// The largest submission, its headers, and the padding of the last page.
pub const BLOCK_MAX: usize = 40 << 20;

const MAGIC: [u8; 4] = *b"TWB1";
const CRC_AT: usize = 12;
const SEQUENCE_AT: usize = 16;

/// Whether any page of `bytes` at or after `from` looks like the start of a block. `bytes` and `from` are aligned to
/// pages.
pub(crate) fn begins_within(bytes: &[u8], from: usize) -> bool {
    let pages = bytes.get(from..).unwrap_or_default().chunks(PAGE);
    pages.into_iter().any(|page| page.starts_with(&MAGIC))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Number of frames. Zero in the block that an idle writer writes to record the synced sequence.
    pub frames: u16,
    /// Length including this header and the padding to the next page.
    pub block_len: u32,
    pub sequence: Sequence,
    pub commit_time: Micros,
    /// Files of another log, or of an earlier one in the same folder, are ignored.
    pub log_id: u64,
    /// Every block up to this one was synced when this one was written.
    pub synced: Sequence,
}

impl BlockHeader {
    /// Length of this header and of the frame headers.
    pub fn headers_len(&self) -> usize {
        LEN + usize::from(self.frames) * frame::LEN
    }

    /// Appends this header. The checksum covers `frame_headers`, which follow it.
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

    /// Decodes the header without verifying the checksum; `None` if it is not a block header. The checksum needs the
    /// frame headers, whose number is known only now: see [`BlockHeader::is_sound`].
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

    /// The version of a block that a newer program wrote.
    pub fn newer(bytes: &[u8]) -> Option<NewerVersion> {
        let mut take = FieldReader(bytes);
        let (magic, found) = (take.bytes()?, take.u16()?);
        let what = VersionedPart::Block;
        (magic == MAGIC && found > VERSION).then_some(NewerVersion { what, found })
    }

    /// Like `newer`, for a block with this sequence, and of this log if its id is known. Magic, version, sequence and
    /// log id are at the same positions in every version, so that an older program does not mistake a newer block for
    /// damage.
    pub fn newer_in_place(bytes: &[u8], sequence: Sequence, log_id: Option<u64>) -> Option<NewerVersion> {
        let newer = BlockHeader::newer(bytes)?;
        let mut take = FieldReader(bytes.get(SEQUENCE_AT..)?);
        let (found, _, id) = (take.u64()?, take.i64()?, take.u64()?);
        (found == sequence && log_id.is_none_or(|own| own == id)).then_some(newer)
    }

    /// Verifies `headers`, the bytes of this header and of the frame headers.
    pub fn is_sound(&self, headers: &[u8]) -> bool {
        let Some((own, frames)) = headers.get(..self.headers_len()).and_then(|h| h.split_at_checked(LEN)) else {
            return false;
        };
        own.get(CRC_AT..CRC_AT + 4) == Some(&checksum(own, frames).to_le_bytes())
            && frames.chunks(frame::LEN).all(frame::is_sound)
    }
}

/// The checksum of a block header without its checksum field and of the frame headers after it.
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
        // The frame header is sound by its own checksum, but was not written with this block header.
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
