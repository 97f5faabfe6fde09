//! Commits gathered submissions: one block, one write, one sync if a submission needs it, then the replies.
//! Single-threaded and without a clock of its own, so that a simulation can drive it.

mod synced;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::files::{BlockPosition, CommitFiles};
use super::group::{BlockFrame, BlockIdentity, CommitGroup, EncodedBlock, Slot, SubmissionPart};
pub(crate) use super::slots::META_SLOT;
use super::slots::WriterPartitions;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::file_pool::FilePurpose;
use crate::format::frame::FrameKind;
use crate::format::record::RecordRef;
use crate::ids::{Micros, Offset, PartitionId, Sequence};
use crate::measure::LogMetrics;
use crate::partition::{Frame, Partition};
use crate::partition_table::{META, PartitionTable};
use crate::records::Records;
use crate::superblock::SuperblockFile;

/// Records for one or more partitions, stored together or not at all.
pub(crate) struct Submission {
    pub parts: SubmissionParts,
    /// The strongest durability of its partitions.
    pub durability: Durability,
    pub bytes: usize,
    /// `None` for journaled records, which need no reply.
    pub done: Option<CommitReply>,
    /// On a full disk it suffices to store the journaled changes of partitions, because files that become free by them
    /// can be reused.
    pub for_files: bool,
    /// Stored in a block of its own, with everything journaled for its partitions, using the reserve of the file if
    /// necessary.
    pub frees: bool,
}

/// Usually one or two, which need no allocation.
pub(crate) type SubmissionParts = SmallVec<[SubmissionPart; 1]>;
pub(crate) type Offsets = SmallVec<[Offset; 2]>;

pub(crate) type CommitReply = oneshot::Sender<Result<Offsets>>;

pub(crate) struct WriterCore {
    files: CommitFiles,
    table: WriterPartitions,
    group: CommitGroup,
    /// The submissions of the current block. Empty between blocks, like `undo`; kept to reuse the memory.
    pending: Vec<PendingSubmission>,
    /// The next offsets of partitions before the current block.
    undo: Vec<(Slot, Offset)>,
    /// Journaled records of the current block. Also empty between blocks.
    journaled: Vec<JournaledRecords>,
    /// Partitions with journaled records that could not be stored yet.
    held: Vec<Arc<Partition>>,
    log_id: u64,
    /// The sequence of the next block.
    next: Sequence,
    synced: Sequence,
    superblock: SuperblockFile,
    /// The number of offsets assigned by the blocks of the current file.
    offsets: u64,
    /// When the oldest unsynced block under [`Durability::Interval`] was written.
    unsynced_since: Option<Instant>,
    /// When the oldest unsynced block without waiters was written.
    unawaited_since: Option<Instant>,
    /// Frames in unsynced blocks without waiters whose partitions may be read only after a sync.
    unreleased: Vec<(Arc<LogFile>, Vec<BlockFrame>)>,
    /// The maximum age of unsynced data under [`Durability::Interval`].
    interval: Duration,
    /// A monotonic clock, independent of the wall clock.
    clock: MonotonicClock,
    /// Partitions with frames in unsynced blocks.
    unsynced_rows: Vec<Slot>,
    block_max: usize,
    tail: TailCache,
    poison: Option<Arc<str>>,
    pub measures: Arc<LogMetrics>,
}

/// Blocks without waiters are synced after this time, unless another sync comes first.
const UNAWAITED_MAX_AGE: Duration = Duration::from_secs(1);

pub(crate) type MonotonicClock = Box<dyn Fn() -> Instant + Send>;

/// A submission of the current block.
struct PendingSubmission {
    durability: Durability,
    firsts: Offsets,
    done: Option<CommitReply>,
    for_files: bool,
}

/// Journaled records of the current block, and the position of their body in it.
struct JournaledRecords {
    slot: Slot,
    partition: PartitionId,
    kind: FrameKind,
    frame: usize,
    body: usize,
    records: Records,
}

/// The memory of a cached frame beside its body: its list entry and its owners.
const FRAME_BYTES: usize = 2 * size_of::<Frame>() + 2 * size_of::<(Slot, PartitionId, Offset, usize)>();

/// The newest frames of all partitions in memory, limited by their size in bytes.
struct TailCache {
    frames: VecDeque<(Slot, PartitionId, Offset, usize)>,
    bytes: usize,
    bytes_max: usize,
}

/// Where a recovered log continues.
pub(crate) struct ResumePoint {
    pub files: CommitFiles,
    pub log_id: u64,
    pub next: Sequence,
    pub synced: Sequence,
    pub superblock: SuperblockFile,
    /// The number of offsets assigned by the blocks of the current file.
    pub offsets: u64,
}

impl WriterCore {
    pub fn new(resume: ResumePoint, block_max: usize, tail_bytes_max: usize, interval: Duration) -> WriterCore {
        WriterCore {
            files: resume.files,
            table: WriterPartitions::default(),
            group: CommitGroup::default(),
            pending: Vec::new(),
            undo: Vec::new(),
            journaled: Vec::new(),
            held: Vec::new(),
            log_id: resume.log_id,
            next: resume.next,
            synced: resume.synced,
            superblock: resume.superblock,
            offsets: resume.offsets,
            unsynced_since: None,
            unawaited_since: None,
            unreleased: Vec::new(),
            interval,
            clock: Box::new(thalweg_kit::clock::now),
            unsynced_rows: Vec::new(),
            block_max,
            tail: TailCache {
                frames: VecDeque::new(),
                bytes: 0,
                bytes_max: tail_bytes_max,
            },
            poison: None,
            measures: Arc::default(),
        }
    }

    /// Adds a partition. Call it before the partition's first submission.
    pub fn add_partition(&mut self, partition: Arc<Partition>) {
        self.table.add(partition);
    }

    /// Removes a partition. Call it between two blocks. Later submissions for it are refused.
    pub fn remove_partition(&mut self, slot: Slot, id: PartitionId) {
        self.table.remove(slot, id);
    }

    /// Changes the durability of a partition. Call it between two blocks. It syncs first, so that no frame is released
    /// under another durability than it was written for.
    pub fn set_durability(&mut self, partition: &Partition, durability: Durability) {
        // A failed sync poisons the log, which then refuses writes in every mode.
        let _ = self.sync();
        partition.set_durability(durability);
    }

    #[cfg(test)]
    pub fn next_sequence(&self) -> Sequence {
        self.next
    }

    #[cfg(test)]
    pub fn current_file(&self) -> u64 {
        self.files.current().number
    }

    pub fn poison(&self) -> Option<&Arc<str>> {
        self.poison.as_ref()
    }

    /// Takes over a poisoning that was detected elsewhere.
    pub fn set_poison(&mut self, cause: &Arc<str>) {
        self.poison.get_or_insert_with(|| cause.clone());
    }

    #[cfg(test)]
    pub fn set_clock(&mut self, clock: MonotonicClock) {
        self.clock = clock;
    }

    /// The time until unsynced data must be synced.
    pub fn due_in(&self) -> Option<Duration> {
        if self.poison.is_some() || (self.unsynced_since, self.unawaited_since) == (None, None) {
            return None;
        }
        let now = (self.clock)();
        let left = |since: Instant, most: Duration| most.saturating_sub(now.saturating_duration_since(since));
        let dated = self.unsynced_since.map(|since| left(since, self.interval));
        let unawaited = self.unawaited_since.map(|since| left(since, UNAWAITED_MAX_AGE));
        dated.into_iter().chain(unawaited).min()
    }

    /// Syncs if it is due. A failure poisons the log.
    pub fn sync_if_due(&mut self) {
        if self.due_in().is_some_and(|left| left.is_zero()) {
            let _ = self.sync();
        }
    }

    /// Takes the partitions whose journaled records were refused since the last call.
    pub fn take_held(&mut self) -> Vec<Arc<Partition>> {
        std::mem::take(&mut self.held)
    }

    /// Whether a mark block would name a higher synced sequence than the last block did.
    pub fn has_news(&self) -> bool {
        self.poison.is_none() && self.next > 1 && self.synced + 1 == self.next
    }

    /// Commits as many submissions from the front of `waiting` as fit into one block, and replies to them. Returns how
    /// many of them have a waiter.
    #[cfg(test)]
    pub fn commit(&mut self, waiting: &mut VecDeque<Submission>, now: Micros) -> usize {
        self.commit_with(waiting, now, || {})
    }

    /// Like `commit`. `synced` is called between the sync, if there is one, and the replies.
    pub fn commit_with(&mut self, waiting: &mut VecDeque<Submission>, now: Micros, synced: impl FnOnce()) -> usize {
        self.sync_if_due();
        let (mut pending, mut undo) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.undo));
        let purpose = self.gather(waiting, &mut pending, &mut undo);
        let count = pending.iter().filter(|one| one.done.is_some()).count();
        match self.store(purpose, &mut pending, now) {
            Ok(strict) => {
                if strict {
                    synced();
                }
                answer(&mut pending, |_| true);
            }
            Err(error) => self.refuse(waiting, &mut pending, &undo, error, now),
        }
        pending.clear();
        undo.clear();
        self.journaled.clear();
        (self.pending, self.undo) = (pending, undo);
        count
    }

    /// Takes the submissions that fit into one block and assigns offsets to them.
    fn gather(
        &mut self,
        waiting: &mut VecDeque<Submission>,
        pending: &mut Vec<PendingSubmission>,
        undo: &mut Vec<(Slot, Offset)>,
    ) -> FilePurpose {
        let mut purpose = FilePurpose::Messages;
        while let Some(submission) = waiting.front() {
            let (parts, bytes) = (submission.parts.len(), submission.bytes);
            if submission.frees && !pending.is_empty() {
                break;
            }
            if !self.group.has_room(parts, bytes, self.block_max) {
                break;
            }
            let Some(submission) = waiting.pop_front() else {
                break;
            };
            let parts_of = &submission.parts;
            if let Some(error) = self.gone(parts_of).or_else(|| self.taken(parts_of)) {
                if let Some(done) = submission.done {
                    let _ = done.send(Err(error));
                }
                continue;
            }
            if submission.parts.iter().any(|part| part.kind != FrameKind::Data) {
                purpose = FilePurpose::State;
            }
            if submission.frees {
                pending.push(self.place_freeing(submission, undo));
                return FilePurpose::Freeing;
            }
            let journaled = submission.done.is_none() && parts > 0;
            let firsts = submission.parts.into_iter().map(|part| match journaled {
                true => self.place_journaled(part, undo),
                false => self.place(part, undo),
            });
            pending.push(PendingSubmission {
                firsts: firsts.collect(),
                durability: match submission.durability {
                    // Journaled records have no waiter, so they do not require a sync.
                    Durability::Fsync if journaled => Durability::Os,
                    durability => durability,
                },
                done: submission.done,
                for_files: submission.for_files,
            });
        }
        purpose
    }

    /// Adds the journaled records of a submission's partitions, followed by the submission.
    fn place_freeing(&mut self, submission: Submission, undo: &mut Vec<(Slot, Offset)>) -> PendingSubmission {
        let mut firsts = Offsets::new();
        for part in submission.parts {
            if let Some(partition) = self.table.at(part.slot).map(|row| row.partition.clone()) {
                for (kind, records) in partition.take_journal() {
                    self.place_journaled(SubmissionPart::of(&partition, kind, records), undo);
                }
            }
            firsts.push(match part.records {
                0 => 0,
                _ => self.place(part, undo),
            });
        }
        PendingSubmission {
            firsts,
            durability: submission.durability,
            done: submission.done,
            for_files: submission.for_files,
        }
    }

    /// Handles a block that was not stored. Waiters get the error. Journaled records are kept and retried with a later
    /// block; until then nothing that follows them is stored or acknowledged.
    fn refuse(
        &mut self,
        waiting: &mut VecDeque<Submission>,
        pending: &mut Vec<PendingSubmission>,
        undo: &[(Slot, Offset)],
        error: LogError,
        now: Micros,
    ) {
        let full = matches!(error, LogError::DiskFull { .. });
        if full && !self.journaled.is_empty() {
            self.hold(waiting, pending);
        }
        self.give_up(undo, &error);
        let for_files = full && pending.iter().any(|one| one.for_files);
        let stored = for_files && self.store_changes(now).is_ok();
        // Only a restart can determine what a failed write left on the disk, so current waiters get the same error as
        // later ones.
        let poisoned = self.poison.clone().map(|cause| LogError::Poisoned { cause });
        let error = poisoned.unwrap_or(error);
        for one in pending {
            if let Some(done) = one.done.take() {
                let _ = done.send(match stored && one.for_files {
                    true => Ok(Offsets::new()),
                    false => Err(error.clone()),
                });
            }
        }
    }

    /// Returns the journaled records of the block and of the submissions after it to their partitions, in order.
    /// Waiting submissions fail with the block, because they would otherwise be stored before the journaled records.
    fn hold(&mut self, waiting: &mut VecDeque<Submission>, pending: &mut Vec<PendingSubmission>) {
        let mut kept: Vec<(Slot, PartitionId, FrameKind, Records)> = Vec::new();
        for one in self.journaled.drain(..) {
            let body = self.group.take_body(one.frame, one.body);
            kept.push((one.slot, one.partition, one.kind, Records { body, ..one.records }));
        }
        let mut freeing = VecDeque::new();
        for submission in waiting.drain(..) {
            if submission.frees {
                // A freeing submission includes what was journaled before it.
                freeing.push_back(submission);
                continue;
            }
            if submission.done.is_none() {
                kept.extend(submission.parts.into_iter().map(SubmissionPart::into_records));
                continue;
            }
            pending.push(PendingSubmission {
                durability: submission.durability,
                firsts: Offsets::new(),
                done: submission.done,
                for_files: submission.for_files,
            });
        }
        *waiting = freeing;
        for (slot, id, kind, records) in kept.into_iter().rev() {
            if let Some(row) = self.table.of(slot, id) {
                row.partition.put_back(kind, records);
                self.held.push(row.partition.clone());
            }
        }
    }

    /// Stores and syncs the journaled changes of partitions in the reserve of the file when the disk is full, because
    /// they may make files free.
    fn store_changes(&mut self, now: Micros) -> Result<()> {
        let Some(meta) = self.table.at(META_SLOT).map(|row| row.partition.clone()) else {
            return Ok(());
        };
        let (parts, mut undo) = (meta.take_journal(), Vec::new());
        for (kind, records) in parts.iter().cloned() {
            self.place(SubmissionPart::of(&meta, kind, records), &mut undo);
        }
        let written = self.write_changes(now);
        if let Err(error) = &written {
            self.give_up(&undo, error);
            for (kind, records) in parts.into_iter().rev() {
                meta.put_back(kind, records);
            }
        }
        written
    }

    fn write_changes(&mut self, now: Micros) -> Result<()> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        if !self.group.is_empty() {
            let (len, frames) = (self.group.block_len(), self.group.frames());
            let place = self.files.place_of_changes(len, frames);
            let place = place.ok_or_else(|| self.files.too_large(len, frames))?;
            let group = std::mem::take(&mut self.group);
            let block = self.write(group, &place, now, false)?;
            self.release(&block.frames, &place.file, |_| true);
        }
        self.sync()
    }

    /// Writes the block, replies to submissions that need no sync, and syncs if others do. Returns whether a sync was
    /// needed.
    fn store(&mut self, purpose: FilePurpose, pending: &mut Vec<PendingSubmission>, now: Micros) -> Result<bool> {
        let dated = pending.iter().any(|one| one.durability == Durability::Interval);
        let strict = pending.iter().any(|one| one.durability == Durability::Fsync);
        let all_strict = strict
            && pending
                .iter()
                .all(|one| one.done.is_none() || one.durability == Durability::Fsync);
        let began = dated.then(|| (self.clock)());
        let written = self.write_group(purpose, now, all_strict)?;
        if let Some((block, place)) = &written {
            self.release(&block.frames, &place.file, |durability| durability != Durability::Fsync);
            if let Some(began) = began {
                self.keep_within_intervals(began)?;
            }
        }
        answer(pending, |durability| durability != Durability::Fsync);
        if strict && self.synced + 1 < self.next {
            self.sync()?;
        }
        if let Some((block, place)) = written {
            if self.synced + 1 == self.next {
                self.release(&block.frames, &place.file, |durability| durability == Durability::Fsync);
            } else {
                self.release_later(block, place);
            }
        }
        if strict {
            self.note_synced();
        }
        Ok(strict)
    }

    /// Limits the loss under [`Durability::Interval`]: if a slow disk made the oldest unsynced data older than two
    /// intervals, a sync precedes the acknowledgement.
    fn keep_within_intervals(&mut self, began: Instant) -> Result<()> {
        if self.synced + 1 == self.next {
            return Ok(());
        }
        let since = *self.unsynced_since.get_or_insert(began);
        if (self.clock)().saturating_duration_since(since) > 2 * self.interval {
            self.sync()?;
        }
        Ok(())
    }

    /// Keeps the frames that may be read only after a sync until the next sync, which nobody waits for.
    fn release_later(&mut self, block: EncodedBlock, place: BlockPosition) {
        let strict = |frame: &BlockFrame| {
            let row = self.table.of(frame.slot, frame.header.partition);
            row.is_some_and(|row| row.partition.durability() == Durability::Fsync)
        };
        let mut frames = block.frames;
        frames.retain(strict);
        if !frames.is_empty() {
            self.unawaited_since.get_or_insert_with(|| (self.clock)());
            self.unreleased.push((place.file, frames));
        }
    }

    /// The error if one of the partitions no longer exists.
    fn gone(&self, parts: &[SubmissionPart]) -> Option<LogError> {
        let is_gone = |part: &&SubmissionPart| self.table.of(part.slot, part.partition).is_none();
        parts
            .iter()
            .find(is_gone)
            .map(|part| LogError::NoPartition(part.partition))
    }

    /// The error if a part expects an offset that is not the next one of its partition.
    fn taken(&self, parts: &[SubmissionPart]) -> Option<LogError> {
        let mut own = parts.iter().filter_map(|part| Some((part, part.expected?)));
        own.find_map(|(part, expected)| {
            let next = self.table.at(part.slot).map_or(0, |row| row.next);
            (next != expected).then_some(LogError::OffsetTaken {
                partition: part.partition,
                expected,
                next,
            })
        })
    }

    fn place(&mut self, part: SubmissionPart, undo: &mut Vec<(Slot, Offset)>) -> Offset {
        let (slot, offsets, block) = (part.slot, part.offsets(), self.next);
        let Some(row) = self.table.at_mut(slot) else {
            debug_assert!(false, "a part for a partition that the writer does not know");
            return 0;
        };
        let newest = (row.block == block).then_some(row.frame);
        if newest.is_none() {
            undo.push((slot, row.next));
        }
        let (frame, first) = self.group.add(part, row.next, newest);
        row.next = first + u64::from(offsets);
        (row.block, row.frame) = (block, frame);
        first
    }

    /// Like `place`, for journaled records, which are kept if the block is refused.
    fn place_journaled(&mut self, part: SubmissionPart, undo: &mut Vec<(Slot, Offset)>) -> Offset {
        let (slot, partition, kind) = (part.slot, part.partition, part.kind);
        let records = part.without_body();
        let first = self.place(part, undo);
        let frame = self.table.at(slot).map_or(0, |row| row.frame);
        self.journaled.push(JournaledRecords {
            slot,
            partition,
            kind,
            frame,
            body: self.group.bodies_of(frame).saturating_sub(1),
            records,
        });
        first
    }

    /// Discards the block and releases its offsets.
    fn give_up(&mut self, undo: &[(Slot, Offset)], error: &LogError) {
        for &(slot, next) in undo {
            if let Some(row) = self.table.at_mut(slot) {
                // A table snapshot may have been stored before the group failed.
                let committed = row.partition.bounds().next;
                (row.next, row.block) = (next.max(committed), Sequence::MAX);
            }
        }
        self.group = CommitGroup::default();
        // Journaled records that fit into no file must not be dropped silently, so the log is poisoned.
        let refused = match error {
            LogError::DiskFull { .. } => true,
            LogError::TooLarge { .. } => self.journaled.is_empty(),
            _ => false,
        };
        if !refused && self.poison.is_none() {
            self.poison = Some(match error {
                LogError::Poisoned { cause } => cause.clone(),
                error => error.to_string().into(),
            });
        }
    }

    /// Writes the block of the group, rolling to the next file if necessary. Returns `None` if the group has no frames.
    /// With `sync`, the same call also syncs the block, if nothing else is unsynced.
    fn write_group(
        &mut self,
        purpose: FilePurpose,
        now: Micros,
        sync: bool,
    ) -> Result<Option<(EncodedBlock, BlockPosition)>> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        if self.group.is_empty() {
            return Ok(None);
        }
        // A file whose creation overlapped with `retire` has an old number and is skipped too.
        while self.files.is_retired() {
            // Like every file, it begins with the table.
            if self.files.is_fresh() {
                self.write_table(now)?;
            }
            self.roll(purpose)?;
        }
        let (len, frames) = (self.group.block_len(), self.group.frames());
        let mut rolled = 0;
        let place = loop {
            if self.files.is_fresh() {
                self.write_table(now)?;
            }
            if let Some(place) = self.files.place(len, frames) {
                self.files.leave_to_settles(purpose, &place, len)?;
                break place;
            }
            // The very first file is smaller than later ones.
            if rolled == 2 {
                return Err(self.files.too_large(len, frames));
            }
            rolled += 1;
            match self.roll(purpose) {
                Err(full @ LogError::DiskFull { .. }) if purpose == FilePurpose::Freeing => {
                    break self.files.place_of_changes(len, frames).ok_or(full)?;
                }
                rolled => rolled?,
            }
        };
        let group = std::mem::take(&mut self.group);
        let block = self.write(group, &place, now, sync)?;
        Ok(Some((block, place)))
    }

    fn roll(&mut self, purpose: FilePurpose) -> Result<()> {
        // The superblock must cover the full file, which is therefore synced now, whatever its partitions require.
        if self.synced + 1 < self.next {
            self.sync()?;
        }
        self.files.roll(purpose, self.next, &mut self.synced)?;
        self.offsets = 0;
        // `roll` has synced the full file.
        self.note_synced();
        Ok(())
    }

    fn write(
        &mut self,
        mut group: CommitGroup,
        place: &BlockPosition,
        now: Micros,
        sync: bool,
    ) -> Result<EncodedBlock> {
        let block = group.finish(BlockIdentity {
            sequence: self.next,
            commit_time: now,
            log_id: self.log_id,
            synced: self.synced,
        });
        if block.deceives {
            self.write_front(&block, place)?;
        }
        let given = block.frames.iter().map(|frame| frame.header.next() - frame.header.base);
        self.offsets += given.sum::<u64>();
        // The sync of `write_and_sync` covers only the written bytes.
        if sync && self.synced + 1 == self.next {
            let began = thalweg_kit::clock::now();
            place.file.write_and_sync(&block.bytes, place.at)?;
            self.measures.sync_us.observe_time(began.elapsed());
            self.synced = self.next;
            self.note_in_superblock()?;
        } else {
            place.file.write(&block.bytes, place.at)?;
        }
        self.measures.commit_bytes.observe(block.bytes.len() as u64);
        let records: u64 = block.frames.iter().map(|frame| u64::from(frame.header.records)).sum();
        self.measures.commit_records.observe(records);
        self.files.written(place, block.bytes.len(), &block.frames);
        self.next += 1;
        // Reuse the memory for the next group.
        if self.group.is_empty() {
            self.group = group;
        }
        Ok(block)
    }

    /// Handles messages that contain, at a page boundary, bytes that look like a block. The headers of the block are
    /// written and synced before its bodies, so that a reader of the bodies always has the headers that identify them
    /// as bodies. Otherwise a power cut could keep the bodies without the headers, and recovery might take the fake
    /// blocks for real ones.
    fn write_front(&self, block: &EncodedBlock, place: &BlockPosition) -> Result<()> {
        place.file.deceives();
        let front = block.bytes.get(..block.headers_len()).unwrap_or(&block.bytes);
        place.file.write(front, place.at)?;
        place.file.sync()
    }

    /// Writes a table snapshot at the start of a file, so that older files are not needed for the table.
    fn write_table(&mut self, now: Micros) -> Result<()> {
        let rows = self.table.known();
        let mut value = Vec::new();
        PartitionTable::encode(rows.into_iter(), &mut value);
        let mut records = Records::with_capacity(value.len() + 32);
        records.push(&RecordRef::of(now, &value))?;
        let Some(meta) = self.table.at_mut(META_SLOT) else {
            return Ok(());
        };
        // The snapshot precedes the table changes in the pending group.
        let base = self.group.shift(META).unwrap_or(meta.next);
        let mut group = CommitGroup::default();
        group.add(
            SubmissionPart::of(&meta.partition, FrameKind::Checkpoint, records),
            base,
            None,
        );
        let place = self.files.place(group.block_len(), 1);
        let place = place.ok_or_else(|| self.files.too_large(group.block_len(), 1))?;
        meta.next += 1;
        let block = self.write(group, &place, now, false)?;
        self.release(&block.frames, &place.file, |_| true);
        Ok(())
    }

    /// Makes frames of a block readable if `which` accepts the durability of their partition.
    fn release(&mut self, frames: &[BlockFrame], file: &Arc<LogFile>, which: impl Fn(Durability) -> bool) {
        for frame in frames {
            let Some(row) = self
                .table
                .of_mut(frame.slot, frame.header.partition)
                .filter(|row| which(row.partition.durability()))
            else {
                continue;
            };
            let keep = frame.header.kind == FrameKind::Data;
            row.partition.add(file, &frame.header, keep.then_some(&frame.body));
            if frame.header.kind == FrameKind::Checkpoint && row.partition.trim(frame.header.base) {
                self.files.freed();
            }
            if row.partition.durability() == Durability::Fsync {
                row.partition.set_synced(frame.header.next());
            } else if !std::mem::replace(&mut row.unsynced, true) {
                self.unsynced_rows.push(frame.slot);
            }
            if keep {
                self.tail.push(frame);
            }
        }
        while let Some((slot, id, next)) = self.tail.surplus() {
            if let Some(row) = self.table.of(slot, id) {
                row.partition.forget_before(next);
            }
        }
    }

    /// Records that everything written is synced, and releases the frames that waited for it.
    fn note_synced(&mut self) {
        (self.unsynced_since, self.unawaited_since) = (None, None);
        for (file, frames) in std::mem::take(&mut self.unreleased) {
            self.release(&frames, &file, |durability| durability == Durability::Fsync);
        }
        for slot in self.unsynced_rows.drain(..) {
            if let Some(row) = self.table.at_mut(slot) {
                row.unsynced = false;
                row.partition.set_synced(row.partition.bounds().next);
            }
        }
    }
}

fn answer(pending: &mut Vec<PendingSubmission>, which: impl Fn(Durability) -> bool) {
    for one in pending.extract_if(.., |one| which(one.durability)) {
        // The caller may have dropped the future; its records stay stored.
        if let Some(done) = one.done {
            let _ = done.send(Ok(one.firsts));
        }
    }
}

impl TailCache {
    fn push(&mut self, frame: &BlockFrame) {
        let bytes = frame.kept_bytes + FRAME_BYTES;
        self.frames
            .push_back((frame.slot, frame.header.partition, frame.header.next(), bytes));
        self.bytes += bytes;
    }

    /// The partition whose oldest frames must be evicted, and up to which offset, until the rest fits.
    fn surplus(&mut self) -> Option<(Slot, PartitionId, Offset)> {
        if self.bytes <= self.bytes_max {
            return None;
        }
        let (slot, id, next, bytes) = self.frames.pop_front()?;
        self.bytes -= bytes;
        Some((slot, id, next))
    }
}
