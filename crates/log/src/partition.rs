//! One partition: its committed offsets, the files that serve them, its newest frames in memory, and the journaled
//! records for the next block.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::ids::{Micros, Offset, PartitionId};
use crate::records::{Records, SUBMISSION_RECORDS_MAX};
use crate::writer::group::Slot;

pub(crate) struct Partition {
    pub id: PartitionId,
    pub slot: Slot,
    durability: AtomicU8,
    inner: Mutex<PartitionState>,
    grown: Notify,
    journal: Mutex<Journal>,
}

/// A listener for new records. The commit thread calls it, so it must return at once.
pub trait PartitionListener: Send + Sync {
    /// Everything before `next` can be read.
    fn grown(&self, next: Offset);
}

/// The offsets of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionBounds {
    /// The oldest readable offset.
    pub first: Offset,
    /// The offset of the next record; everything before it can be read.
    pub next: Offset,
    /// Everything before it survives a power cut.
    pub synced: Offset,
}

#[derive(Default)]
struct PartitionState {
    first: Offset,
    next: Offset,
    synced: Offset,
    ranges: VecDeque<FileRange>,
    /// The newest frames, without gaps up to `next`.
    tail: VecDeque<Frame>,
    listener: Option<Arc<dyn PartitionListener>>,
    removed: bool,
}

/// The offsets of a partition that are read from one file.
#[derive(Clone)]
pub(crate) struct FileRange {
    pub file: Arc<LogFile>,
    pub first: Offset,
    pub next: Offset,
    /// Size of the frame bodies: exact if `counted`, else estimated in proportion to the file.
    pub bytes: u64,
    pub counted: bool,
    /// An upper bound for the times of the frames. It can exceed all of them, because a range may cover only a part of
    /// its file.
    pub max_time: Micros,
}

/// Records without notification, which go into the next block. The size is not bounded: a checkpoint replaces
/// everything before it, and users that journal much write one after a number of records. Journals without checkpoints
/// are as small as the appends beside them.
#[derive(Default)]
struct Journal {
    parts: VecDeque<(FrameKind, Records)>,
}

/// Beyond this many records a new part begins, so that a part fits into one submission whatever one call pushes.
const PART_RECORDS: usize = SUBMISSION_RECORDS_MAX / 2;
const PART_BYTES: usize = 256 << 10;

/// A frame as stored, with a verified body.
#[derive(Clone, Debug)]
pub struct Frame {
    pub header: FrameHeader,
    pub body: Bytes,
}

impl Partition {
    pub fn new(id: PartitionId, slot: Slot, durability: Durability, first: Offset) -> Partition {
        Partition {
            id,
            slot,
            durability: AtomicU8::new(durability.byte()),
            inner: Mutex::new(PartitionState {
                first,
                next: first,
                synced: first,
                ..PartitionState::default()
            }),
            grown: Notify::new(),
            journal: Mutex::default(),
        }
    }

    pub fn durability(&self) -> Durability {
        // Only valid bytes are ever stored.
        Durability::of_byte(self.durability.load(Ordering::Acquire)).unwrap_or_default()
    }

    /// Called by the writer between two blocks, because the durability decides when a block's frames are released.
    pub fn set_durability(&self, durability: Durability) {
        self.durability.store(durability.byte(), Ordering::Release);
    }

    pub fn bounds(&self) -> PartitionBounds {
        let inner = self.inner.lock();
        PartitionBounds {
            first: inner.first,
            next: inner.next,
            synced: inner.synced,
        }
    }

    /// The size of the frame bodies between two offsets, to the granularity of frames.
    pub fn bytes_within(&self, from: Offset, to: Offset) -> Result<u64> {
        let ranges: Vec<FileRange> = {
            let inner = self.inner.lock();
            let start = inner.ranges.partition_point(|range| range.next <= from);
            let own = inner.ranges.range(start..).take_while(|range| range.first < to);
            own.cloned().collect()
        };
        let of = |range: &FileRange| match range.counted && from <= range.first && range.next <= to {
            true => Ok(range.bytes),
            false => range
                .file
                .bytes_within(self.id, from.max(range.first), to.min(range.next)),
        };
        ranges.iter().map(of).sum()
    }

    /// Sets the listener for the life of the partition. A second listener is ignored.
    pub fn listen(&self, listener: Arc<dyn PartitionListener>) {
        let mut inner = self.inner.lock();
        if !inner.removed {
            inner.listener.get_or_insert(listener);
        }
    }

    /// Adds a committed frame, which can be read from now on. Frames come in the order of offsets.
    pub fn add(&self, file: &Arc<LogFile>, header: &FrameHeader, body: Option<&Bytes>) {
        let next = header.next();
        let listener = {
            let mut inner = self.inner.lock();
            if inner.removed {
                return;
            }
            inner.extend(file, header);
            match body {
                Some(body) => inner.tail.push_back(Frame {
                    header: *header,
                    body: body.clone(),
                }),
                // The frames in memory must be contiguous. Those before this one are read from the file.
                None => inner.tail.clear(),
            }
            inner.listener.clone()
        };
        self.grown.notify_waiters();
        if let Some(listener) = listener {
            listener.grown(next);
        }
    }

    /// Takes over what recovery found of this partition, all of it synced. `next` is a lower bound for the next offset.
    pub fn found(&self, ranges: Vec<FileRange>, next: Offset) {
        let mut inner = self.inner.lock();
        let last = ranges.last().map_or(0, |range| range.next);
        inner.ranges = ranges.into();
        inner.next = inner.next.max(last).max(next);
        inner.synced = inner.next;
    }

    pub fn set_synced(&self, synced: Offset) {
        self.inner.lock().synced = synced;
    }

    /// Drops the oldest frames from memory; they are read from their files from now on. They may be gone already after
    /// a trim.
    pub fn forget_before(&self, next: Offset) {
        let mut inner = self.inner.lock();
        while inner.tail.front().is_some_and(|frame| frame.header.next() <= next) {
            inner.tail.pop_front();
        }
    }

    /// Drops records before `below`. Returns whether a file was released.
    pub fn trim(&self, below: Offset) -> bool {
        let mut inner = self.inner.lock();
        inner.first = inner.first.max(below.min(inner.next));
        let (first, before) = (inner.first, inner.ranges.len());
        while inner.ranges.front().is_some_and(|range| range.next <= first) {
            inner.ranges.pop_front();
        }
        inner.ranges.len() < before
    }

    /// Releases all data and the listener, and wakes all waiters.
    pub fn remove(&self) {
        let mut inner = self.inner.lock();
        inner.removed = true;
        (inner.first, inner.ranges, inner.tail) = (inner.next, VecDeque::new(), VecDeque::new());
        let listener = inner.listener.take();
        drop(inner);
        // Drop it without the lock, because it may be the last reference to the listener.
        drop(listener);
        self.take_journal();
        self.grown.notify_waiters();
    }

    pub fn is_removed(&self) -> bool {
        self.inner.lock().removed
    }

    /// The ranges in `file`, clipped to what is needed now.
    pub fn ranges_in(&self, file: &Arc<LogFile>) -> Vec<FileRange> {
        let inner = self.inner.lock();
        let own = inner.ranges.iter().filter(|range| Arc::ptr_eq(&range.file, file));
        own.cloned()
            .map(|mut range| {
                range.first = range.first.max(inner.first);
                range
            })
            .collect()
    }

    /// Visits all ranges as they were written.
    pub fn each_range(&self, mut look: impl FnMut(&FileRange)) {
        self.inner.lock().ranges.iter().for_each(&mut look);
    }

    /// Replaces the ranges in the files `from` by `to`, which covers the same offsets as far as they are needed.
    pub fn replace(&self, from: &[Arc<LogFile>], to: &[FileRange]) {
        let mut inner = self.inner.lock();
        let before = inner.ranges.len();
        inner
            .ranges
            .retain(|range| !from.iter().any(|file| Arc::ptr_eq(&range.file, file)));
        if inner.ranges.len() == before {
            return;
        }
        let first = inner.first;
        let needed = to.iter().filter(|range| range.next > first);
        inner.ranges.extend(needed.cloned());
        // A file may have served the partition on both sides of another file.
        inner.ranges.make_contiguous().sort_by_key(|range| range.first);
    }

    /// The committed frames from `from` on: about `bytes` of bodies and at least one frame; none if there are no
    /// records yet. The first frame may begin before `from`.
    pub fn read(&self, from: Offset, bytes: usize) -> Result<Vec<Frame>> {
        let (range, next) = {
            let inner = self.inner.lock();
            if inner.removed {
                return Err(LogError::NoPartition(self.id));
            }
            if from >= inner.next {
                return Ok(Vec::new());
            }
            if from < inner.first {
                return Err(self.gap(from, inner.first));
            }
            if inner.tail.front().is_some_and(|frame| frame.header.base <= from) {
                return Ok(inner.newest(from, bytes));
            }
            let at = inner.ranges.partition_point(|range| range.next <= from);
            let Some(range) = inner.ranges.get(at) else {
                // Offsets that were given up before anything was stored there.
                return Err(self.gap(from, inner.next));
            };
            if range.first > from {
                return Err(self.gap(from, range.first));
            }
            (range.clone(), inner.next)
        };
        let entries = range.file.entries(self.id, from, bytes)?;
        let wanted = entries.iter().filter(|entry| entry.header.base < next.min(range.next));
        let mut frames = Vec::with_capacity(entries.len());
        for entry in wanted {
            match range.file.body(entry) {
                Ok(body) => frames.push(Frame {
                    header: entry.header,
                    body,
                }),
                // Return the undamaged frames. A read that begins at the damage returns the error.
                Err(_) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        if frames.is_empty() {
            // After compaction the frames of a range may end before the range does.
            return Err(self.gap(from, range.next));
        }
        Ok(frames)
    }

    /// Like `read`, but from memory only; `None` if the frames are on disk.
    pub fn newest(&self, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        let inner = self.inner.lock();
        if inner.removed {
            return Err(LogError::NoPartition(self.id));
        }
        if from >= inner.next {
            return Ok(Some(Vec::new()));
        }
        if from < inner.first {
            return Err(self.gap(from, inner.first));
        }
        let in_memory = inner.tail.front().is_some_and(|frame| frame.header.base <= from);
        Ok(in_memory.then(|| inner.newest(from, bytes)))
    }

    fn gap(&self, from: Offset, to: Offset) -> LogError {
        LogError::Gap {
            partition: self.id,
            from,
            to,
        }
    }

    /// The first offset of a frame that may have a record of `time` or later; the end if there is none. Only files
    /// whose maximum time, which is in memory, is late enough are read.
    pub fn at_time(&self, time: Micros) -> Result<Offset> {
        let mut at = 0;
        loop {
            let (range, first, next) = {
                let inner = self.inner.lock();
                let start = inner.ranges.partition_point(|range| range.next <= at);
                let late = inner.ranges.range(start..).find(|range| range.max_time >= time);
                (late.cloned(), inner.first, inner.next)
            };
            let Some(range) = range else { return Ok(next) };
            let from = range.first.max(first);
            let found = range.file.entry_at_time(self.id, from, time)?;
            if let Some(entry) = found.filter(|entry| entry.header.base < range.next) {
                return Ok(entry.header.base.max(first).min(next));
            }
            at = range.next;
        }
    }

    /// The header of the frame with an offset, or of the next frame. A range may have no frames from there on, because
    /// it covers all offsets that its frames had before a rewrite.
    pub fn frame_at(&self, offset: Offset) -> Result<Option<FrameHeader>> {
        let mut at = offset;
        loop {
            let range = {
                let inner = self.inner.lock();
                let n = inner.ranges.partition_point(|range| range.next <= at);
                inner.ranges.get(n).cloned()
            };
            let Some(range) = range else { return Ok(None) };
            let entries = range.file.entries(self.id, at, 1)?;
            if let Some(entry) = entries.first().filter(|entry| entry.header.base < range.next) {
                return Ok(Some(entry.header));
            }
            at = range.next;
        }
    }

    /// The end of the range that contains an offset.
    pub fn end_of_range(&self, offset: Offset) -> Option<Offset> {
        let inner = self.inner.lock();
        let at = inner.ranges.partition_point(|range| range.next <= offset);
        inner.ranges.get(at).map(|range| range.next)
    }

    /// The base offset of the newest frame of a kind.
    pub fn last_of(&self, kind: FrameKind) -> Result<Option<Offset>> {
        let ranges = self.inner.lock().ranges.clone();
        for range in ranges.iter().rev() {
            let found = range
                .file
                .last_entry(self.id, |header| header.kind == kind && header.base < range.next)?;
            if let Some(entry) = found {
                return Ok(Some(entry.header.base));
            }
        }
        Ok(None)
    }

    /// Waits until there is a record at `from`, or the partition is removed.
    pub async fn wait_for(&self, from: Offset) {
        loop {
            let grown = self.grown.notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            {
                let inner = self.inner.lock();
                if inner.next > from || inner.removed {
                    return;
                }
            }
            grown.await;
        }
    }

    /// Journals all records that `push` adds, or none. Returns whether they are the first since the last block.
    pub fn journal(&self, kind: FrameKind, push: &mut dyn FnMut(&mut Records) -> Result<()>) -> Result<bool> {
        let mut journal = self.journal.lock();
        let was_empty = journal.parts.is_empty();
        // A checkpoint begins a frame of its own.
        let joins = |(last, records): &&mut (FrameKind, Records)| {
            *last == kind
                && kind != FrameKind::Checkpoint
                && records.len() < PART_RECORDS
                && records.bytes() < PART_BYTES
        };
        if let Some((_, records)) = journal.parts.back_mut().filter(joins) {
            let joined = records.push_together(push);
            // The records of one call may be too large for the current part, but fit into a new one.
            if !matches!(joined, Err(LogError::TooLarge { .. })) {
                return joined.map(|()| false);
            }
        }
        let mut records = Records::new();
        records.push_together(push)?;
        if !records.is_empty() {
            journal.add((kind, records));
        }
        Ok(was_empty && !journal.parts.is_empty())
    }

    /// Whether something was journaled since the last block.
    pub fn has_journaled(&self) -> bool {
        !self.journal.lock().parts.is_empty()
    }

    /// Takes the records that were journaled since the last block.
    pub fn take_journal(&self) -> VecDeque<(FrameKind, Records)> {
        std::mem::take(&mut self.journal.lock().parts)
    }

    /// Puts records back that could not be stored. They precede what was journaled since.
    pub fn put_back(&self, kind: FrameKind, records: Records) {
        let mut journal = self.journal.lock();
        // A later checkpoint makes them unnecessary.
        if !self.is_removed() && !journal.parts.iter().any(|(kind, _)| *kind == FrameKind::Checkpoint) {
            journal.parts.push_front((kind, records));
        }
    }
}

impl Journal {
    fn add(&mut self, part: (FrameKind, Records)) {
        if part.0 == FrameKind::Checkpoint {
            self.parts.clear();
        }
        self.parts.push_back(part);
    }
}

impl PartitionState {
    fn extend(&mut self, file: &Arc<LogFile>, header: &FrameHeader) {
        let (next, bytes) = (header.next(), u64::from(header.body_len));
        self.next = next;
        match self.ranges.back_mut().filter(|range| Arc::ptr_eq(&range.file, file)) {
            Some(range) => {
                (range.next, range.bytes) = (next, range.bytes + bytes);
                range.max_time = range.max_time.max(header.max_time);
            }
            None => self.ranges.push_back(FileRange {
                file: file.clone(),
                first: header.base,
                next,
                bytes,
                counted: true,
                max_time: header.max_time,
            }),
        }
    }

    fn newest(&self, from: Offset, bytes: usize) -> Vec<Frame> {
        let start = self.tail.partition_point(|frame| frame.header.next() <= from);
        let mut sum = 0;
        let wanted = self.tail.iter().skip(start).take_while(|frame| {
            let first = sum == 0;
            sum += frame.body.len() + 1;
            first || sum <= bytes
        });
        wanted.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cache::IndexCache;
    use crate::disk::{Disk as _, RamDisk};
    use crate::format::frame::FrameFlags;
    use crate::format::record::{RecordRef, records};
    use crate::index::{FileIndex, FrameEntry};

    const ID: PartitionId = PartitionId::new(1, 0);

    /// A frame with the offsets from `base` on.
    fn header(base: Offset, count: u32) -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Data,
            flags: FrameFlags::NONE,
            partition: ID,
            base,
            base_time: 1,
            max_time: 1,
            records: count,
            last_delta: count - 1,
            body_len: 0,
            body_crc: crc32c::crc32c(&[]),
        }
    }

    /// A range of a segment with the offsets `first` to `next` and these frames.
    fn range(number: u64, span: (Offset, Offset), frames: &[FrameHeader]) -> FileRange {
        range_in(&IndexCache::new(1 << 20), number, span, frames)
    }

    /// The index cannot be read again once it was evicted from the cache.
    fn range_in(
        cache: &Arc<IndexCache>,
        number: u64,
        (first, next): (Offset, Offset),
        frames: &[FrameHeader],
    ) -> FileRange {
        let file = RamDisk::new(1 << 20).create("segment").unwrap();
        let mut index = FileIndex::default();
        frames.iter().for_each(|header| {
            index.push(FrameEntry {
                header: *header,
                body_at: 0,
            });
        });
        FileRange {
            file: Arc::new(LogFile::segment(number, 0, file, index, cache)),
            first,
            next,
            bytes: 0,
            counted: true,
            max_time: frames.iter().map(|header| header.max_time).max().unwrap_or(Micros::MIN),
        }
    }

    #[test]
    fn the_next_frame_is_found_after_ranges_that_have_none_left() {
        let partition = Partition::new(ID, 0, Durability::Fsync, 0);
        let ranges = vec![
            range(1, (0, 20), &[header(0, 10)]),
            range(2, (20, 30), &[]),
            // The file has more frames of the partition, which are served from another file.
            range(3, (30, 40), &[header(40, 5)]),
            range(4, (40, 60), &[header(40, 5), header(50, 5)]),
        ];
        partition.found(ranges, 60);
        let base_at = |offset| partition.frame_at(offset).unwrap().map(|header| header.base);
        for (offset, base) in [
            (0, 0),
            (9, 0),
            (10, 40),
            (25, 40),
            (30, 40),
            (44, 40),
            (45, 50),
            (54, 50),
        ] {
            assert_eq!(base_at(offset), Some(base), "at {offset}");
        }
        assert_eq!((base_at(55), base_at(60)), (None, None));
    }

    fn at(base: Offset, max_time: Micros) -> FrameHeader {
        FrameHeader {
            max_time,
            ..header(base, 10)
        }
    }

    #[test]
    fn a_time_is_looked_up_in_one_file_however_many_there_are() {
        let partition = Partition::new(ID, 0, Durability::Fsync, 0);
        let cache = IndexCache::new(1);
        // Only the index of the range that was created last is still cached.
        let mut ranges: Vec<FileRange> = (0..1000)
            .filter(|n| *n != 700)
            .map(|n| range_in(&cache, n, (n * 10, n * 10 + 10), &[at(n * 10, n as Micros)]))
            .collect();
        ranges.insert(700, range_in(&cache, 700, (7000, 7010), &[at(7000, 700)]));
        partition.found(ranges, 10_000);
        assert_eq!(partition.at_time(700).unwrap(), 7000);
        assert_eq!(partition.at_time(1000).unwrap(), 10_000, "later than all is the end");
        assert!(
            partition.at_time(699).is_err(),
            "another file was asked than the one that has it"
        );
    }

    proptest! {
        /// A clock that is set back leaves later times before earlier ones.
        #[test]
        fn a_time_is_found_at_the_first_frame_that_may_have_it(
            files in prop::collection::vec(prop::collection::vec(0..50i64, 0..4), 0..8),
            time in 0..55i64,
            trimmed in 0..300u64,
        ) {
            let partition = Partition::new(ID, 0, Durability::Fsync, 0);
            let (mut ranges, mut all, mut next) = (Vec::new(), Vec::new(), 0);
            for (number, times) in (0..).zip(&files) {
                let frames: Vec<_> = (0..).zip(times).map(|(n, time)| at(next + n * 10, *time)).collect();
                let end = next + 10 * frames.len() as u64 + 10;
                ranges.push(range(number, (next, end), &frames));
                all.extend(frames);
                next = end;
            }
            partition.found(ranges, next);
            partition.trim(trimmed);
            let first = partition.bounds().first;
            let expected = all.iter().find(|frame| frame.next() > first && frame.max_time >= time);
            prop_assert_eq!(partition.at_time(time).unwrap(), expected.map_or(next, |frame| frame.base.max(first)));
        }
    }

    fn journal(partition: &Partition, kind: FrameKind, number: u32) {
        let value = number.to_le_bytes();
        let mut push = |records: &mut Records| records.push(&RecordRef::of(1, &value));
        partition.journal(kind, &mut push).unwrap();
    }

    fn numbers(parts: &VecDeque<(FrameKind, Records)>) -> Vec<u32> {
        let values = parts.iter().flat_map(|(_, part)| records(&part.body));
        values
            .map(|record| u32::from_le_bytes(record.unwrap().value.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn any_number_of_records_is_journaled_between_two_blocks_in_parts_that_a_submission_may_have() {
        let partition = Partition::new(PartitionId::new(1, 0), 0, Durability::Fsync, 0);
        (0..25_000).for_each(|n| journal(&partition, FrameKind::State, n));
        // This many records of one call stay together, whatever precedes them.
        (25_000..29_000).for_each(|n| journal(&partition, FrameKind::State, n));
        for start in [29_000, 38_000] {
            let mut push = |records: &mut Records| {
                (start..start + 9_000u32).try_for_each(|n| records.push(&RecordRef::of(1, &n.to_le_bytes())))
            };
            partition.journal(FrameKind::State, &mut push).unwrap();
        }
        let parts = partition.take_journal();
        assert!(parts.iter().all(|(_, part)| part.len() <= SUBMISSION_RECORDS_MAX));
        assert_eq!(numbers(&parts), (0..47_000).collect::<Vec<_>>());
    }

    #[test]
    fn what_cannot_be_pushed_as_a_whole_leaves_nothing() {
        let partition = Partition::new(PartitionId::new(1, 0), 0, Durability::Fsync, 0);
        journal(&partition, FrameKind::State, 1);
        let refused = partition.journal(FrameKind::State, &mut |records| {
            records.push(&RecordRef::of(1, b"half"))?;
            Err(LogError::Closed)
        });
        assert!(refused.is_err());
        journal(&partition, FrameKind::State, 2);
        assert_eq!(numbers(&partition.take_journal()), [1, 2]);
    }

    #[test]
    fn what_is_put_back_comes_first_unless_a_checkpoint_has_taken_its_place() {
        let partition = Partition::new(PartitionId::new(1, 0), 0, Durability::Fsync, 0);
        journal(&partition, FrameKind::State, 1);
        let put_back = |parts: VecDeque<(FrameKind, Records)>| {
            let parts = parts.into_iter().rev();
            parts.for_each(|(kind, records)| partition.put_back(kind, records));
        };
        let taken = partition.take_journal();
        journal(&partition, FrameKind::State, 2);
        put_back(taken);
        let taken = partition.take_journal();
        assert_eq!(numbers(&taken), [1, 2]);
        journal(&partition, FrameKind::Checkpoint, 3);
        put_back(taken);
        journal(&partition, FrameKind::State, 4);
        assert_eq!(numbers(&partition.take_journal()), [3, 4]);
    }
}
