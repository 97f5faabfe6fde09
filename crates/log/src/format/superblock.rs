//! The superblock: facts about a log outside of its commit files, namely which log it is, how far it was synced, and
//! which file that was in. Without it, a log whose newest file is missing would look like one that ended earlier.
//!
//! A slot: magic `TWS1` 4 · version 2 · flags 2 · generation 8 · log id 8 · number of the commit file 8 · bytes of that
//! file 8 · sequence of its first block 8 · last synced sequence 8 · offsets assigned in that file 8 · crc32c of all
//! before it 4. It lies within one sector, which a disk writes as a whole.
//!
//! Magic, version, log id and the checksum of these 64 bytes are at the same positions in every version; a version that
//! needs more puts it after them, with its own checksum. The checksum therefore distinguishes a newer slot from a
//! damaged one.

use crate::format::newer::{NewerVersion, VersionedPart};
use crate::format::{FieldReader, FieldWriter};
use crate::ids::Sequence;

pub const LEN: usize = 68;
pub const VERSION: u16 = 1;

const MAGIC: [u8; 4] = *b"TWS1";
const CLOSED: u16 = 1;

/// One slot. Everything in it was true and synced when it was written, so an old slot is a lower bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Superblock {
    /// The log was closed cleanly, and nothing was written since.
    pub closed: bool,
    /// The slot with the highest generation is the newest.
    pub generation: u64,
    pub log_id: u64,
    /// The commit file with the last synced block. Also zero for a log without blocks.
    pub file: u64,
    pub file_bytes: u64,
    /// The sequence of the first block in that file.
    pub first: Sequence,
    /// Every block up to this one is on the disk. Zero if there is none.
    pub synced: Sequence,
    /// The number of offsets, of all partitions, that the blocks of that file assigned.
    pub offsets: u64,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        FieldWriter(&mut out)
            .bytes(&MAGIC)
            .u16(VERSION)
            .u16(if self.closed { CLOSED } else { 0 })
            .u64(self.generation)
            .u64(self.log_id)
            .u64(self.file)
            .u64(self.file_bytes)
            .u64(self.first)
            .u64(self.synced)
            .u64(self.offsets);
        let crc = crc32c::crc32c(&out);
        FieldWriter(&mut out).u32(crc);
        out
    }

    /// `None` if the bytes are not a slot of this version.
    pub fn decode(bytes: &[u8]) -> Option<Superblock> {
        let bytes = bytes.get(..LEN)?;
        let mut take = FieldReader(bytes);
        if take.bytes()? != MAGIC || take.u16()? != VERSION {
            return None;
        }
        let superblock = Superblock {
            closed: take.u16()? & CLOSED != 0,
            generation: take.u64()?,
            log_id: take.u64()?,
            file: take.u64()?,
            file_bytes: take.u64()?,
            first: take.u64()?,
            synced: take.u64()?,
            offsets: take.u64()?,
        };
        (take.u32()? == crc32c::crc32c(bytes.get(..LEN - 4)?)).then_some(superblock)
    }

    /// The version of a slot that a newer program wrote. A slot with a wrong checksum is damaged, not newer.
    pub fn newer(bytes: &[u8]) -> Option<NewerVersion> {
        let (told, crc) = bytes.get(..LEN)?.split_last_chunk()?;
        let mut take = FieldReader(told);
        let (magic, found) = (take.bytes()?, take.u16()?);
        let is_newer = magic == MAGIC && found > VERSION && u32::from_le_bytes(*crc) == crc32c::crc32c(told);
        let what = VersionedPart::Superblock;
        is_newer.then_some(NewerVersion { what, found })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_slot_comes_back_whole_and_a_flipped_bit_is_found(
            closed: bool, generation: u64, log_id: u64, file: u64, file_bytes: u64, first: u64, synced: u64, offsets: u64,
            bit in 0..LEN * 8,
        ) {
            let slot = Superblock { closed, generation, log_id, file, file_bytes, first, synced, offsets };
            let mut bytes = slot.encode();
            prop_assert_eq!(bytes.len(), LEN);
            prop_assert_eq!(Superblock::decode(&bytes), Some(slot));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Superblock::decode(&bytes), None);
            prop_assert_eq!(Superblock::newer(&bytes), None, "what is damaged is not newer");
        }

        #[test]
        fn any_bytes_are_a_slot_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (Superblock::decode(&bytes), Superblock::newer(&bytes));
        }
    }

    #[test]
    fn a_slot_of_a_newer_program_is_named_by_its_checksum() {
        let mut bytes = Superblock::default().encode();
        bytes[4] = 9;
        bytes[20] ^= 1;
        assert_eq!(Superblock::newer(&bytes), None);
        let crc = crc32c::crc32c(&bytes[..LEN - 4]);
        bytes[LEN - 4..].copy_from_slice(&crc.to_le_bytes());
        let newer = NewerVersion {
            what: VersionedPart::Superblock,
            found: 9,
        };
        assert_eq!(Superblock::newer(&bytes), Some(newer));
    }
}
