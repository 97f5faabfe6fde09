//! The header of a frame, which has records of one partition. 64 bytes.
//!
//! magic `TWF1` 4 · version 1 · kind 1 · flags 2 · body length 4 · crc32c of the body 4 · partition 8 · base offset 8 ·
//! record count 4 · last offset delta 4 · base time 8 · max time 8 · reserved (ownership epoch, 0) 4 · crc32c of the
//! header 4
//!
//! Length, magic, version, kind and checksum are at the same positions in every version. A format that needs more must
//! also raise the versions of the block and of the index. The reserved field is not read: earlier versions could write
//! the epoch of an owner.

use crate::format::newer::{NewerVersion, VersionedPart};
use crate::format::{FieldReader, FieldWriter};
use crate::ids::{Micros, Offset, PartitionId};

pub const LEN: usize = 64;
/// Length without the checksum, for uses that have a checksum of their own.
pub const BARE_LEN: usize = LEN - 4;
pub const VERSION: u8 = 1;
/// The highest known kind.
pub const KIND_MAX: u8 = FrameKind::Gap as u8;

/// Larger bodies are refused on write and on read.
pub const BODY_MAX: usize = 32 << 20;

const MAGIC: [u8; 4] = *b"TWF1";

/// The content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Records of a producer.
    Data = 1,
    /// Changes of a group's state: leases, settles, floors.
    State = 2,
    /// The complete state of a group, which replaces everything before it.
    Checkpoint = 3,
    /// Facts about the partition itself, such as where it begins.
    Meta = 4,
    /// A placeholder for records that are lost.
    Gap = 5,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        [
            FrameKind::Data,
            FrameKind::State,
            FrameKind::Checkpoint,
            FrameKind::Meta,
            FrameKind::Gap,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// Properties of the records that a reader needs before decoding them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFlags(u16);

impl FrameFlags {
    pub const NONE: FrameFlags = FrameFlags(0);
    pub const LZ4: FrameFlags = FrameFlags(1);
    pub const ZSTD: FrameFlags = FrameFlags(2);
    pub const KEYS: FrameFlags = FrameFlags(1 << 2);
    pub const PROPERTIES: FrameFlags = FrameFlags(1 << 3);
    pub const TTL: FrameFlags = FrameFlags(1 << 4);
    pub const NOT_BEFORE: FrameFlags = FrameFlags(1 << 5);
    /// Addressed to one group.
    pub const TARGETED: FrameFlags = FrameFlags(1 << 6);
    /// Compaction removed records, so each remaining record has its offset.
    pub const OFFSET_DELTAS: FrameFlags = FrameFlags(1 << 7);

    pub fn has(self, other: FrameFlags) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn has_any(self, others: FrameFlags) -> bool {
        self.0 & others.0 != 0
    }
}

impl std::ops::BitOr for FrameFlags {
    type Output = FrameFlags;

    fn bitor(self, other: FrameFlags) -> FrameFlags {
        FrameFlags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for FrameFlags {
    fn bitor_assign(&mut self, other: FrameFlags) {
        self.0 |= other.0;
    }
}

/// Whether the checksum of a header is correct, whatever its version.
pub fn is_sound(bytes: &[u8]) -> bool {
    let parts = bytes.get(..LEN).and_then(|bytes| bytes.split_at_checked(BARE_LEN));
    parts.is_some_and(|(bare, crc)| FieldReader(crc).u32() == Some(crc32c::crc32c(bare)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub flags: FrameFlags,
    pub body_len: u32,
    pub body_crc: u32,
    pub partition: PartitionId,
    /// Offset of the first record.
    pub base: Offset,
    pub records: u32,
    /// Offset of the last record minus the base. After compaction it can exceed `records` - 1.
    pub last_delta: u32,
    pub base_time: Micros,
    pub max_time: Micros,
}

impl FrameHeader {
    /// The offset after the last record.
    pub fn next(&self) -> Offset {
        self.base + u64::from(self.last_delta) + u64::from(self.records > 0)
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        self.encode_bare(out);
        let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
        FieldWriter(out).u32(crc);
    }

    /// Encodes the first [`BARE_LEN`] bytes, those before the checksum.
    pub fn encode_bare(&self, out: &mut Vec<u8>) {
        out.reserve(LEN);
        FieldWriter(out)
            .bytes(&MAGIC)
            .u8(VERSION)
            .u8(self.kind as u8)
            .u16(self.flags.0)
            .u32(self.body_len)
            .u32(self.body_crc)
            .u64(self.partition.to_bits())
            .u64(self.base)
            .u32(self.records)
            .u32(self.last_delta)
            .i64(self.base_time)
            .i64(self.max_time)
            .u32(0);
    }

    /// `None` if the bytes are not a frame header of this version or are damaged.
    pub fn decode(bytes: &[u8]) -> Option<FrameHeader> {
        FrameHeader::decode_bare(bytes).filter(|_| is_sound(bytes))
    }

    /// The version or kind of a sound header that a newer program wrote.
    pub fn newer(bytes: &[u8]) -> Option<NewerVersion> {
        let mut take = FieldReader(bytes);
        let (magic, version, kind) = (take.bytes()?, take.u8()?, take.u8()?);
        let (what, found, known) = match version {
            VERSION => (VersionedPart::FrameKind, kind, KIND_MAX),
            _ => (VersionedPart::Frame, version, VERSION),
        };
        let newer = NewerVersion {
            what,
            found: found.into(),
        };
        (magic == MAGIC && found > known && is_sound(bytes)).then_some(newer)
    }

    /// Decodes the first [`BARE_LEN`] bytes, which the caller has verified.
    pub fn decode_bare(bytes: &[u8]) -> Option<FrameHeader> {
        let mut take = FieldReader(bytes.get(..BARE_LEN)?);
        if take.bytes()? != MAGIC || take.u8()? != VERSION {
            return None;
        }
        let header = FrameHeader {
            kind: FrameKind::from_byte(take.u8()?)?,
            flags: FrameFlags(take.u16()?),
            body_len: take.u32()?,
            body_crc: take.u32()?,
            partition: PartitionId::from_bits(take.u64()?),
            base: take.u64()?,
            records: take.u32()?,
            last_delta: take.u32()?,
            base_time: take.i64()?,
            max_time: take.i64()?,
        };
        take.u32()?;
        (header.body_len as usize <= BODY_MAX && header.has_room()).then_some(header)
    }

    /// Whether the offsets of its records are in range.
    fn has_room(&self) -> bool {
        let last = self.base.checked_add(u64::from(self.last_delta));
        let enough = self.records == 0 || self.last_delta >= self.records - 1;
        enough && last.is_some_and(|last| last < Offset::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_header() -> impl Strategy<Value = FrameHeader> {
        let kind = prop::sample::select(vec![
            FrameKind::Data,
            FrameKind::State,
            FrameKind::Checkpoint,
            FrameKind::Meta,
            FrameKind::Gap,
        ]);
        let position = (any::<u64>(), 0..u64::MAX / 2, 1..1000u32, 0..1000u32);
        let rest = (
            0..=BODY_MAX as u32,
            any::<u32>(),
            any::<i64>(),
            any::<i64>(),
            any::<u16>(),
        );
        (kind, position, rest).prop_map(|(kind, (partition, base, records, more), rest)| FrameHeader {
            kind,
            flags: FrameFlags(rest.4),
            body_len: rest.0,
            body_crc: rest.1,
            partition: PartitionId::from_bits(partition),
            base,
            records,
            last_delta: records - 1 + more,
            base_time: rest.2,
            max_time: rest.3,
        })
    }

    proptest! {
        #[test]
        fn a_header_comes_back_whole_and_a_flipped_bit_is_found(header in any_header(), bit in 0..LEN * 8) {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), LEN);
            prop_assert_eq!(FrameHeader::decode(&bytes), Some(header));
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(FrameHeader::decode(&bytes), None);
            prop_assert_eq!(FrameHeader::newer(&bytes), None, "what is damaged is not newer");
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2 * LEN)) {
            let newer = FrameHeader::newer(&bytes).is_some();
            prop_assert!(!newer || FrameHeader::decode(&bytes).is_none());
        }

        #[test]
        fn a_version_or_kind_above_those_known_is_named(header in any_header(), found in KIND_MAX + 1.., is_kind: bool) {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes[if is_kind { 5 } else { 4 }] = found;
            prop_assert_eq!(FrameHeader::newer(&bytes), None, "with the checksum of this one it is damaged");
            let crc = crc32c::crc32c(&bytes[..BARE_LEN]);
            bytes[BARE_LEN..].copy_from_slice(&crc.to_le_bytes());
            let what = if is_kind { VersionedPart::FrameKind } else { VersionedPart::Frame };
            prop_assert_eq!(FrameHeader::newer(&bytes), Some(NewerVersion { what, found: found.into() }));
            prop_assert_eq!(FrameHeader::decode(&bytes), None);
        }

        #[test]
        fn an_epoch_of_an_earlier_version_is_passed_over(header in any_header(), epoch: u32) {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            prop_assert_eq!(&bytes[BARE_LEN - 4..BARE_LEN], &[0u8; 4]);
            bytes[BARE_LEN - 4..BARE_LEN].copy_from_slice(&epoch.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..BARE_LEN]);
            bytes[BARE_LEN..].copy_from_slice(&crc.to_le_bytes());
            prop_assert_eq!(FrameHeader::decode(&bytes), Some(header));
        }
    }

    #[test]
    fn the_next_offset_counts_what_compaction_removed() {
        let mut header = FrameHeader {
            kind: FrameKind::Data,
            flags: FrameFlags::NONE,
            body_len: 0,
            body_crc: 0,
            partition: PartitionId::new(1, 2),
            base: 100,
            records: 3,
            last_delta: 9,
            base_time: 0,
            max_time: 0,
        };
        assert_eq!(header.next(), 110);
        (header.records, header.last_delta) = (0, 0);
        assert_eq!(header.next(), 100, "a frame without records moves nothing");
    }
}
