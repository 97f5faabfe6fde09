//! Combines submissions that are committed together into one block, with one frame per partition in the order of
//! arrival. No I/O and no clock: the output depends on the input alone.

use bytes::Bytes;

use crate::format::block::{self, BlockHeader};
use crate::format::frame::{self, BODY_MAX, FrameFlags, FrameHeader, FrameKind};
use crate::format::pages;
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::partition::Partition;
use crate::records::Records;

/// The index of a partition in the writer's table.
pub(crate) type Slot = usize;

/// The number of lists that are kept for the next block.
const SPARE_MAX: usize = 64;

/// A frame of this size takes no more submissions. A record is read together with its frame, so a reader of one record
/// should not have to read everything that was stored beside it.
const FRAME_FULL: usize = 16 << 10;

/// The records of a submission for one partition.
#[derive(Clone, Debug)]
pub(crate) struct SubmissionPart {
    pub slot: Slot,
    pub partition: PartitionId,
    pub kind: FrameKind,
    pub flags: FrameFlags,
    pub records: u32,
    pub body: Vec<u8>,
    pub base_time: Micros,
    pub max_time: Micros,
    /// The offset that its first record must get.
    pub expected: Option<Offset>,
    /// The number of offsets that they occupy, if it differs from the number of records.
    pub span: Option<u32>,
}

/// The header fields of a block that do not depend on its frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockIdentity {
    pub sequence: Sequence,
    pub commit_time: Micros,
    pub log_id: u64,
    pub synced: Sequence,
}

/// The frames of the next block. Reused from block to block.
#[derive(Debug, Default)]
pub(crate) struct CommitGroup {
    frames: Vec<GroupFrame>,
    bodies_len: usize,
    /// Empty body lists for reuse.
    spare: Vec<Vec<Vec<u8>>>,
    headers: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct GroupFrame {
    pub slot: Slot,
    pub header: FrameHeader,
    bodies: Vec<Vec<u8>>,
}

/// An encoded block and the positions of its bodies.
#[derive(Debug)]
pub(crate) struct EncodedBlock {
    pub bytes: Bytes,
    pub frames: Vec<BlockFrame>,
    /// A body contains, at a page boundary, bytes that look like the start of a block.
    pub deceives: bool,
}

impl EncodedBlock {
    /// The size of the headers, rounded up to whole pages.
    pub fn headers_len(&self) -> usize {
        pages(block::LEN + self.frames.len() * frame::LEN)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockFrame {
    pub slot: Slot,
    pub header: FrameHeader,
    pub body: Bytes,
    /// The memory of the block that is kept alive by the body.
    pub kept_bytes: usize,
    /// Position of the body in the block.
    pub body_at: u32,
}

impl CommitGroup {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The size of the block so far.
    pub fn block_len(&self) -> usize {
        pages(block::LEN + self.frames.len() * frame::LEN + self.bodies_len)
    }

    /// Whether a submission of this size still fits. A block that is not empty must stay within `max`.
    pub fn has_room(&self, parts: usize, bytes: usize, max: usize) -> bool {
        let frames = self.frames.len() + parts;
        let len = block::LEN + frames * frame::LEN + self.bodies_len + bytes;
        frames <= usize::from(u16::MAX) && (self.is_empty() || pages(len) <= max)
    }

    /// Adds records after those of the same partition. `next` is their first offset if this is the partition's first
    /// frame in the group; `newest` is the frame with the partition's last records in the group. Returns the frame and
    /// the first offset of the records.
    pub fn add(&mut self, part: SubmissionPart, next: Offset, newest: Option<usize>) -> (usize, Offset) {
        self.bodies_len += part.body.len();
        if let Some(at) = newest
            && let Some(frame) = self.frames.get_mut(at)
            && frame.takes(&part)
        {
            let first = frame.header.next();
            frame.take(part);
            return (at, first);
        }
        let bodies = self.spare.pop().unwrap_or_default();
        self.frames.push(GroupFrame::of(part, next, bodies));
        (self.frames.len() - 1, next)
    }

    /// The number of bodies in a frame.
    pub fn bodies_of(&self, frame: usize) -> usize {
        self.frames.get(frame).map_or(0, |frame| frame.bodies.len())
    }

    /// Takes a body out of a group that will not become a block.
    pub fn take_body(&mut self, frame: usize, body: usize) -> Vec<u8> {
        let body = self.frames.get_mut(frame).and_then(|frame| frame.bodies.get_mut(body));
        body.map(std::mem::take).unwrap_or_default()
    }

    /// Moves the frames of a partition up by one offset. Returns the old base of the first one, if there is any.
    pub fn shift(&mut self, partition: PartitionId) -> Option<Offset> {
        let mut began = None;
        for frame in self
            .frames
            .iter_mut()
            .filter(|frame| frame.header.partition == partition)
        {
            began.get_or_insert(frame.header.base);
            frame.header.base += 1;
        }
        began
    }

    /// A body keeps the memory of its whole block alive. If most of the block is something else, such as the padding of
    /// one short message, the bodies are copied.
    fn bodies_to_keep(&self, block: &Bytes, frames_at: usize, kept_len: usize) -> RetainedBodies {
        if kept_len >= block.len() / 2 {
            return RetainedBodies::Block;
        }
        let (mut copy, mut at) = (Vec::with_capacity(kept_len), frames_at);
        for frame in &self.frames {
            let body = at..at + frame.len();
            at = body.end;
            copy.extend_from_slice(block.get(body).filter(|_| is_kept(frame)).unwrap_or_default());
        }
        RetainedBodies::Copy(copy.into())
    }

    /// Encodes the block and clears the group.
    pub fn finish(&mut self, stamp: BlockIdentity) -> EncodedBlock {
        let block_len = self.block_len();
        let frames_at = block::LEN + self.frames.len() * frame::LEN;
        let count = self.frames.len();
        let mut bytes = Vec::with_capacity(block_len);
        bytes.resize(frames_at, 0);
        self.headers.clear();
        for frame in &mut self.frames {
            let start = bytes.len();
            // Each body is freed right after it is copied, while it is in the processor cache.
            frame.bodies.drain(..).for_each(|body| bytes.extend_from_slice(&body));
            frame.header.body_crc = crc32c::crc32c(bytes.get(start..).unwrap_or_default());
            frame.header.encode(&mut self.headers);
        }
        self.bodies_len = 0;
        bytes.resize(block_len, 0);
        let header = BlockHeader {
            frames: count as u16,
            block_len: block_len as u32,
            sequence: stamp.sequence,
            commit_time: stamp.commit_time,
            log_id: stamp.log_id,
            synced: stamp.synced,
        };
        let mut front = Vec::with_capacity(block::LEN);
        header.encode(&self.headers, &mut front);
        if let Some((own, rest)) = bytes
            .get_mut(..frames_at)
            .and_then(|b| b.split_at_mut_checked(block::LEN))
        {
            own.copy_from_slice(&front);
            rest.copy_from_slice(&self.headers);
        }
        let bytes = Bytes::from(bytes);
        let deceives = block::begins_within(&bytes, pages(frames_at));
        let kept_len = self
            .frames
            .iter()
            .filter(|frame| is_kept(frame))
            .map(GroupFrame::len)
            .sum();
        let bodies = self.bodies_to_keep(&bytes, frames_at, kept_len);
        let mut frames = Vec::with_capacity(count);
        let (mut at, mut kept_at) = (frames_at, 0);
        for frame in self.frames.drain(..) {
            let len = frame.header.body_len as usize;
            let body = match &bodies {
                RetainedBodies::Block => bytes.slice(at..at + len),
                RetainedBodies::Copy(copy) if is_kept(&frame) => copy.slice(kept_at..kept_at + len),
                RetainedBodies::Copy(_) => Bytes::new(),
            };
            kept_at += if is_kept(&frame) { len } else { 0 };
            frames.push(BlockFrame {
                slot: frame.slot,
                header: frame.header,
                body_at: at as u32,
                kept_bytes: match &bodies {
                    RetainedBodies::Block => block_len * len / kept_len.max(1),
                    RetainedBodies::Copy(_) => len,
                },
                body,
            });
            at += len;
            self.spare.push(frame.bodies);
        }
        // Many partitions in one block must not keep as many lists.
        self.spare.truncate(SPARE_MAX);
        EncodedBlock {
            bytes,
            frames,
            deceives,
        }
    }
}

/// The memory with the bodies that are kept for readers.
enum RetainedBodies {
    Block,
    Copy(Bytes),
}

/// Messages are kept. State is read only at the start.
fn is_kept(frame: &GroupFrame) -> bool {
    frame.header.kind == FrameKind::Data
}

impl SubmissionPart {
    pub fn of(partition: &Partition, kind: FrameKind, records: Records) -> SubmissionPart {
        SubmissionPart {
            slot: partition.slot,
            partition: partition.id,
            kind,
            flags: records.flags,
            records: records.count,
            base_time: records.base_time,
            max_time: records.max_time,
            expected: records.expected,
            span: records.span,
            body: records.body,
        }
    }

    /// The number of offsets that it occupies.
    pub fn offsets(&self) -> u32 {
        self.span.unwrap_or(self.records)
    }

    /// Converts the part back to records.
    pub fn into_records(mut self) -> (Slot, PartitionId, FrameKind, Records) {
        let body = std::mem::take(&mut self.body);
        let records = self.without_body();
        (self.slot, self.partition, self.kind, Records { body, ..records })
    }

    /// The records without their bytes.
    pub fn without_body(&self) -> Records {
        Records {
            body: Vec::new(),
            count: self.records,
            flags: self.flags,
            base_time: self.base_time,
            max_time: self.max_time,
            expected: self.expected,
            span: self.span,
        }
    }
}

impl GroupFrame {
    fn len(&self) -> usize {
        self.header.body_len as usize
    }

    fn of(part: SubmissionPart, base: Offset, mut bodies: Vec<Vec<u8>>) -> GroupFrame {
        let body_len = part.body.len() as u32;
        // An empty frame must still cover its offsets.
        let last_delta = part.offsets().saturating_sub(u32::from(part.records > 0));
        bodies.push(part.body);
        GroupFrame {
            slot: part.slot,
            header: FrameHeader {
                kind: part.kind,
                flags: part.flags,
                body_len,
                body_crc: 0,
                partition: part.partition,
                base,
                records: part.records,
                last_delta,
                base_time: part.base_time,
                max_time: part.max_time,
            },
            bodies,
        }
    }

    /// Whether the part can be joined to the frame. Bodies are joined by concatenation, unless they are compressed as a
    /// whole or differ in kind.
    fn takes(&self, part: &SubmissionPart) -> bool {
        let whole = FrameFlags::LZ4 | FrameFlags::ZSTD | FrameFlags::OFFSET_DELTAS;
        let joined = self.header.body_len as usize + part.body.len();
        self.header.kind == part.kind
            && part.kind != FrameKind::Checkpoint
            && !self.header.flags.has_any(whole)
            && !part.flags.has_any(whole)
            && joined <= BODY_MAX
            && (self.header.body_len as usize) < FRAME_FULL
            && self.header.records.checked_add(part.records).is_some()
    }

    fn take(&mut self, part: SubmissionPart) {
        let header = &mut self.header;
        header.flags |= part.flags;
        header.body_len += part.body.len() as u32;
        header.records += part.records;
        header.last_delta = header.records.saturating_sub(1);
        header.base_time = header.base_time.min(part.base_time);
        header.max_time = header.max_time.max(part.max_time);
        self.bodies.push(part.body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::PAGE;
    use crate::format::record::{RecordRef, records};

    fn part(slot: Slot, values: &[&str]) -> SubmissionPart {
        let mut body = Vec::new();
        for value in values {
            RecordRef::of(7, value.as_bytes()).encode(&mut body);
        }
        SubmissionPart {
            slot,
            partition: PartitionId::new(1, slot as u32),
            kind: FrameKind::Data,
            flags: FrameFlags::NONE,
            records: values.len() as u32,
            body,
            base_time: 7,
            max_time: 7,
            expected: None,
            span: None,
        }
    }

    const STAMP: BlockIdentity = BlockIdentity {
        sequence: 9,
        commit_time: 5,
        log_id: 3,
        synced: 8,
    };

    #[test]
    fn submissions_of_one_partition_become_one_frame_in_their_order() {
        let mut group = CommitGroup::default();
        assert_eq!(group.add(part(0, &["a", "b"]), 100, None), (0, 100));
        assert_eq!(group.add(part(1, &["x"]), 5, None), (1, 5));
        assert_eq!(group.add(part(0, &["c"]), 100, Some(0)), (0, 102));
        let block = group.finish(STAMP);
        assert!(group.is_empty());
        assert_eq!(block.bytes.len(), PAGE);
        let header = BlockHeader::decode(&block.bytes).unwrap();
        assert!(header.is_sound(&block.bytes));
        assert_eq!(
            (header.frames, header.sequence, header.synced, header.log_id),
            (2, 9, 8, 3)
        );
        for (n, frame) in block.frames.iter().enumerate() {
            let at = block::LEN + n * frame::LEN;
            assert_eq!(FrameHeader::decode(&block.bytes[at..]), Some(frame.header));
            let body = &block.bytes[frame.body_at as usize..][..frame.header.body_len as usize];
            assert_eq!(body, &frame.body[..]);
            assert_eq!(crc32c::crc32c(body), frame.header.body_crc);
        }
        let values = |n: usize| -> Vec<&[u8]> { records(&block.frames[n].body).map(|r| r.unwrap().value).collect() };
        assert_eq!(values(0), [b"a", b"b", b"c"]);
        assert_eq!(values(1), [b"x"]);
        assert_eq!((block.frames[0].header.base, block.frames[0].header.next()), (100, 103));
    }

    #[test]
    fn a_group_takes_one_submission_of_any_size_and_no_second_beyond_its_limit() {
        let mut group = CommitGroup::default();
        assert!(group.has_room(1, 10 << 20, 1 << 20));
        group.add(part(0, &["a"]), 0, None);
        assert_eq!(group.block_len(), PAGE);
        assert!(group.has_room(1, 1000, PAGE));
        assert!(!group.has_room(1, PAGE, PAGE));
    }

    #[test]
    fn what_cannot_be_joined_begins_a_new_frame_after_the_other() {
        let mut group = CommitGroup::default();
        group.add(part(0, &["a"]), 10, None);
        let mut compressed = part(0, &["b"]);
        compressed.flags = FrameFlags::ZSTD;
        // The writer's table has the current next offset of the partition.
        assert_eq!(group.add(compressed, 11, Some(0)), (1, 11));
        assert_eq!(group.add(part(0, &["c"]), 12, Some(1)), (2, 12));
        let block = group.finish(STAMP);
        let bases: Vec<Offset> = block.frames.iter().map(|frame| frame.header.base).collect();
        assert_eq!(bases, [10, 11, 12]);
    }

    #[test]
    fn a_block_without_frames_is_one_page() {
        let block = CommitGroup::default().finish(STAMP);
        assert_eq!(block.bytes.len(), PAGE);
        let header = BlockHeader::decode(&block.bytes).unwrap();
        assert!(header.is_sound(&block.bytes) && header.frames == 0);
    }
}
