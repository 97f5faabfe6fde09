//! The log on one disk: opened, appended to, read, closed.

#[cfg(test)]
mod faults;
mod partitions;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use crate::clock::{Clock as _, LogClock};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::file_pool::{FilePool, FilePoolHooks, RollListener};
use crate::format::frame::{FrameHeader, FrameKind};
use crate::format::record::RecordRef;
use crate::ids::{Micros, Offset, PartitionId};
use crate::maintenance::{LogMaintenance, MaintenancePolicy, SCRUBBED, ScrubProgressStore};
use crate::measure::Histogram;
use crate::open::{self, OpenedLog};
use crate::options::LogOptions;
use crate::partition::{Frame, Partition, PartitionBounds, PartitionListener};
use crate::partition_table::PartitionChange;
use crate::records::{Records, WriteBatch};
use crate::recovery::RecoveryReport;
use crate::segment::{RecordFilter, RecordVisitor};
use crate::status::{LogCounters, LogStatus};
use crate::writer::core::{Offsets, Submission, SubmissionParts};
use crate::writer::group::SubmissionPart;
use crate::writer::slots::SlotAllocator;
use crate::writer::thread::{LogWriter, WriterOptions};
pub(crate) use partitions::add_partitions;

/// Read at once by a scan.
const SCAN_BYTES: usize = 1 << 20;

/// What an append came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendReceipt {
    /// Of the first record of each part, in the order of the parts.
    pub offsets: Offsets,
    /// What holds for all of it by now.
    pub durability: Durability,
}

/// Who may append to a partition: the right of everybody who acquired it earlier is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub partition: PartitionId,
    pub epoch: u32,
}

pub struct EmbeddedLog {
    writer: Arc<LogWriter>,
    clock: Arc<LogClock>,
    pub(crate) partitions: Arc<RwLock<HashMap<PartitionId, Arc<Partition>>>>,
    pub(crate) shelf: Arc<FilePool>,
    pub(crate) upkeep: Arc<LogMaintenance>,
    passes_over_damage: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Of the log itself.
    meta: Arc<Partition>,
    /// Of the next partitions.
    slots: Arc<Mutex<SlotAllocator>>,
    log_id: u64,
    /// Files with lower numbers were full at the last [`roll`](EmbeddedLog::roll).
    pub(crate) rolled: AtomicU64,
    report: RecoveryReport,
    recovery_us: Histogram,
    folder: String,
}

impl EmbeddedLog {
    /// Opens the log of a disk, after looking at all that was not known to be synced. Blocks. `log_id` names a new log;
    /// one that exists keeps its own.
    pub fn open(disk: Arc<dyn Disk>, log_id: u64, options: &LogOptions) -> Result<EmbeddedLog> {
        let began = Instant::now();
        let opened = open::open(disk, log_id, options)?;
        EmbeddedLog::start(opened, began, options)
    }

    /// A log that was looked at `began` and is open: its threads begin.
    pub(crate) fn start(opened: OpenedLog, began: Instant, options: &LogOptions) -> Result<EmbeddedLog> {
        let OpenedLog {
            core,
            shelf,
            partitions,
            meta,
            log_id,
            report,
        } = opened;
        let recovery_us = Histogram::new(8);
        recovery_us.observe_time(began.elapsed());
        let pace = WriterOptions {
            clock: options.clock.clone(),
            linger: options.linger,
            waiting_bytes_max: options.waiting_bytes_max,
        };
        let cannot = |error| LogError::io("cannot start a thread of", &options.folder)(error);
        // Before anything is written.
        options
            .clock
            .found((report.last_commit_time > 0).then_some(report.last_commit_time));
        let slots = Arc::new(Mutex::new(SlotAllocator::from(partitions.len() + 1)));
        let writer = Arc::new(LogWriter::start(core, pace, slots.clone()).map_err(cannot)?);
        let partitions = Arc::new(RwLock::new(partitions));
        let policy = MaintenancePolicy {
            files_max: options.files_max,
            io_bytes_per_second: options.io_bytes_per_second,
            scrub: options.scrub,
            clock: options.clock.clone(),
        };
        let upkeep = Arc::new(LogMaintenance::new(shelf.clone(), partitions.clone(), policy));
        // The upkeep holds the shelf: a circle would keep both, and all files, for ever.
        let (barrier, failing, news) = (writer.clone(), writer.clone(), Arc::downgrade(&upkeep));
        let changes = meta.clone();
        shelf.attend_with(FilePoolHooks {
            barrier: Box::new(move |give_up| {
                // Whoever journaled first may not have said so yet.
                barrier.journaled(&changes);
                barrier.barrier(give_up)
            }),
            poison: Box::new(move |cause| failing.fail(cause)),
            news: Box::new(move || {
                if let Some(upkeep) = news.upgrade() {
                    upkeep.wake();
                }
            }),
        });
        let (keeper, keeping) = (shelf.clone(), upkeep.clone());
        let book = ScrubProgressStore {
            writer: writer.clone(),
            partitions: partitions.clone(),
            slots: slots.clone(),
            meta: meta.clone(),
        };
        let threads = vec![
            spawn("log-spares", move || keeper.attend()).map_err(cannot)?,
            spawn("log-upkeep", move || keeping.run(&book)).map_err(cannot)?,
        ];
        Ok(EmbeddedLog {
            writer,
            clock: options.clock.clone(),
            partitions,
            shelf,
            upkeep,
            passes_over_damage: AtomicBool::new(false),
            threads: Mutex::new(threads),
            meta,
            slots,
            log_id,
            rolled: AtomicU64::new(0),
            report,
            recovery_us,
            folder: options.folder.clone(),
        })
    }

    /// Where its files are, for people.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Returns as soon as the log is poisoned, with the cause; `None` when it was closed without that. Does not keep the log
    /// open.
    pub fn poisoned(&self) -> impl Future<Output = Option<Arc<str>>> + Send + 'static {
        self.writer.over()
    }

    pub fn clock(&self) -> Arc<LogClock> {
        self.clock.clone()
    }

    /// Log time.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// What was found at the start.
    pub fn report(&self) -> RecoveryReport {
        self.report
    }

    /// Names this log among all.
    pub fn id(&self) -> u64 {
        self.log_id
    }

    pub fn status(&self) -> LogStatus {
        if let Some(cause) = self.writer.poison() {
            return LogStatus::Poisoned(cause.to_string());
        }
        if let Some(full) = self.shelf.refuses() {
            return LogStatus::DiskFull(full.to_string());
        }
        match self.upkeep.trouble() {
            Some(trouble) => LogStatus::Degraded(trouble),
            None => LogStatus::Healthy,
        }
    }

    /// For metrics.
    pub fn counters(&self) -> LogCounters {
        let (spare_files, full_files, segments) = self.shelf.counts();
        let measures = self.writer.measures();
        LogCounters {
            torn_bytes: self.report.torn_bytes,
            is_poisoned: self.writer.poison().is_some(),
            is_degraded: self.upkeep.trouble().is_some(),
            free_bytes: self.shelf.free_bytes(),
            commit_us: measures.commit_us.observed(),
            sync_us: measures.sync_us.observed(),
            admission_us: measures.admission_us.observed().and_smallest(self.writer.admitted()),
            recovery_us: self.recovery_us.observed(),
            commit_bytes: measures.commit_bytes.observed(),
            commit_records: measures.commit_records.observed(),
            moved_bytes: self.upkeep.moved_bytes(),
            corrupt_frames: self.upkeep.corrupt_frames(),
            spare_files,
            full_files,
            segments,
        }
    }

    /// All partitions that somebody made, in no order.
    pub fn partitions(&self) -> Vec<PartitionId> {
        let partitions = self.partitions.read();
        partitions.keys().copied().filter(|id| *id != SCRUBBED).collect()
    }

    /// A partition promises something else from when this returns, for good. What is appended meanwhile is worth what it was
    /// or what it becomes.
    pub async fn set_durability(&self, id: PartitionId, durability: Durability) -> Result<()> {
        check_offered(durability)?;
        let partition = self.partition(id)?;
        self.change(PartitionChange::Promises(id, durability)).await?;
        self.writer.set_durability(partition, durability);
        // With the next block, whatever is in it.
        self.submit(SubmissionParts::new(), Durability::Fsync, 0)
            .await
            .map(drop)
    }

    /// Stores the records of a unit together or not at all. Returns once the strongest durability among its partitions
    /// holds for all of it; records can be read from then on. Waits while the disk cannot keep up.
    ///
    /// Whoever drops the future before it is done does not know what became of the unit: it is stored, or not.
    pub async fn append(&self, unit: WriteBatch, fence: Option<Fence>) -> Result<AppendReceipt> {
        let bytes = unit.check()?;
        if unit.only_messages()
            && let Some(full) = self.shelf.refuses()
        {
            return Err(full);
        }
        let frees = unit.frees;
        let (parts, durability) = self.parts_of(unit, fence)?;
        let offsets = self.submit_with(parts, durability, bytes, frees).await?;
        Ok(AppendReceipt { offsets, durability })
    }

    fn parts_of(&self, unit: WriteBatch, fence: Option<Fence>) -> Result<(SubmissionParts, Durability)> {
        let mut durability = Durability::Os;
        let mut parts = SubmissionParts::with_capacity(unit.parts.len());
        {
            let partitions = self.partitions.read();
            for (id, kind, records) in unit.parts {
                let partition = partitions.get(&id).ok_or(LogError::NoPartition(id))?;
                durability = durability.stronger(partition.durability());
                let mut part = SubmissionPart::of(partition, kind, records);
                if let Some(fence) = fence.filter(|fence| fence.partition == id) {
                    part.epoch = fence.epoch;
                }
                parts.push(part);
            }
        }
        Ok((parts, durability))
    }

    /// Whether records of a kind would be taken now.
    pub(crate) fn takes(&self, kind: FrameKind) -> Result<()> {
        if let Some(cause) = self.writer.poison() {
            return Err(LogError::Poisoned { cause });
        }
        match self.shelf.refuses().filter(|_| kind == FrameKind::Data) {
            Some(full) => Err(full),
            None => Ok(()),
        }
    }

    /// Of the files that are full, about what is stored.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.shelf.stored_bytes()
    }

    /// Adds a record to what goes with the next block, within 10 ms, and that nobody waits for: it is lost by a crash
    /// before that. Costs no more than encoding it.
    pub fn journal(&self, id: PartitionId, kind: FrameKind, record: &RecordRef<'_>) -> Result<()> {
        self.journal_with(id, kind, &mut |records| records.push(record))
    }

    /// The same for several records that stay together.
    pub fn journal_with(
        &self,
        id: PartitionId,
        kind: FrameKind,
        push: &mut dyn FnMut(&mut Records) -> Result<()>,
    ) -> Result<()> {
        let partition = self.partition(id)?;
        if partition.journal(kind, push)? {
            self.writer.journaled(&partition);
        }
        Ok(())
    }

    /// Returns when what was journaled for these partitions so far is as durable as they promise.
    pub async fn flush(&self, ids: &[PartitionId]) -> Result<()> {
        let mut durability = Durability::Os;
        for id in ids {
            let partition = self.partition(*id)?;
            durability = durability.stronger(partition.durability());
            // Whoever journaled first may not have said so yet.
            self.writer.journaled(&partition);
        }
        self.submit(SubmissionParts::new(), durability, 0).await.map(drop)
    }

    /// Returns when all that was appended and journaled so far survives a power cut.
    pub async fn sync(&self) -> Result<()> {
        let partitions: Vec<_> = self.partitions.read().values().cloned().collect();
        for partition in partitions.iter().chain([&self.meta]).filter(|one| one.has_journaled()) {
            self.writer.journaled(partition);
        }
        self.submit(SubmissionParts::new(), Durability::Fsync, 0)
            .await
            .map(drop)
    }

    /// Has what was written so far synced soon. Nobody waits for it.
    pub(crate) fn ask_for_sync(&self) {
        self.writer.ask_for_sync();
    }

    async fn submit(&self, parts: SubmissionParts, durability: Durability, bytes: usize) -> Result<Offsets> {
        self.submit_with(parts, durability, bytes, false).await
    }

    async fn submit_with(
        &self,
        parts: SubmissionParts,
        durability: Durability,
        bytes: usize,
        frees: bool,
    ) -> Result<Offsets> {
        let (done, answer) = oneshot::channel();
        let submission = Submission {
            parts,
            durability,
            bytes,
            done: Some(done),
            for_files: false,
            frees,
        };
        self.writer.submit(submission).await?;
        answer.await.unwrap_or(Err(LogError::Closed))
    }

    pub fn bounds(&self, id: PartitionId) -> Result<PartitionBounds> {
        Ok(self.partition(id)?.bounds())
    }

    /// Of the records between two offsets: of a frame that lies there in part, the part of its offsets. What lies there in
    /// whole files costs no look into them.
    pub fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        self.partition(id)?.bytes_within(from, to)
    }

    /// Frames with the records from `from` on, about `bytes` of them and one frame at least; none if there is nothing
    /// yet. The first may begin before `from`. Ends before a frame that is damaged; who begins there gets the error. Blocks if
    /// they have to be read from the disk.
    pub fn read(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Vec<Frame>> {
        let frames = self.partition(id)?.read(from, bytes);
        if let Err(error @ (LogError::Corrupt { .. } | LogError::NewerFormat { .. })) = &frames {
            self.upkeep.note(error);
        }
        match frames {
            Err(error @ LogError::Corrupt { .. }) if self.passes_over_damage.load(Ordering::Relaxed) => {
                let to = self.behind_damage(id, from, error)?;
                Err(LogError::Gap {
                    partition: id,
                    from,
                    to,
                })
            }
            frames => frames,
        }
    }

    /// Where reads go on behind a frame that cannot be read; behind all of the file if nobody knows where its frames are.
    fn behind_damage(&self, id: PartitionId, at: Offset, error: LogError) -> Result<Offset> {
        match self.frame_at(id, at) {
            Ok(damaged) => damaged.map(|header| header.next()).ok_or(error),
            Err(LogError::Corrupt { .. }) => self.partition(id)?.end_of_range(at).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// From now on what is damaged is a gap, as if it had been given up: whoever reads is told once and goes on behind it.
    pub fn pass_over_damage(&self) {
        self.passes_over_damage.store(true, Ordering::Relaxed);
    }

    /// The same if all of it is in memory, or if there is nothing yet; `None` if it has to be read from the disk.
    pub fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        self.partition(id)?.newest(from, bytes)
    }

    /// Waits until a record at `from` can be read.
    pub async fn wait_for(&self, id: PartitionId, from: Offset) -> Result<()> {
        let partition = self.partition(id)?;
        partition.wait_for(from).await;
        Ok(())
    }

    /// Has somebody told whenever a partition has grown, for as long as the log is open.
    pub fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()> {
        self.partition(id)?.listen(listener);
        Ok(())
    }

    /// Has somebody told whenever a commit file is full, for as long as the log is open.
    pub fn on_roll(&self, told: Arc<RollListener>) {
        self.shelf.on_roll(told);
    }

    /// The first offset from which on there may be records of `time` or later; the end if there are none yet. To be exact
    /// the reader looks at the records that follow.
    pub fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset> {
        self.partition(id)?.at_time(time)
    }

    /// What the frame that holds an offset or what follows it says of itself, without reading it; `None` if there is none.
    pub fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>> {
        self.partition(id)?.frame_at(offset)
    }

    /// The offset of the newest record of kind [`FrameKind::Checkpoint`].
    pub fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.partition(id)?.last_of(FrameKind::Checkpoint)
    }

    /// What stands before `below` is not needed any more and cannot be read from now on. Durable with the next block.
    pub fn trim(&self, id: PartitionId, below: Offset) -> Result<()> {
        let partition = self.partition(id)?;
        if below <= partition.bounds().first {
            return Ok(());
        }
        // In this order: a file that is let go is used again only after what was journaled before is on disk.
        self.journal_change(PartitionChange::Trimmed(id, below))?;
        if partition.trim(below) {
            self.shelf.wake();
        }
        Ok(())
    }

    fn journal_change(&self, change: PartitionChange) -> Result<()> {
        let mut value = Vec::with_capacity(32);
        change.encode(&mut value);
        let record = RecordRef::of(self.clock.now(), &value);
        if self
            .meta
            .journal(FrameKind::Meta, &mut |records| records.push(&record))?
        {
            self.writer.journaled(&self.meta);
        }
        Ok(())
    }

    /// Removes records between the first and the next offset, in the files that are full. Offsets of those that stay do not
    /// change. Each file is written anew as a whole or not at all. Blocks, for as long as that takes. Returns the offset
    /// before which every record was shown to `keep`.
    pub fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset> {
        let partition = self.partition(id)?;
        let rewritten = self.upkeep.rewrite(&partition, keep);
        if let Err(error) = &rewritten {
            self.upkeep.note_outcome(error);
        }
        rewritten
    }

    /// The lowest offset of a partition that a file has, and that nobody reads from there any more: where the file is lost that took
    /// its place, it stands in again, with all that a rewrite left out. `None`: there is none. What was trimmed does not count.
    pub fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.upkeep.oldest_leftover(&self.partition(id)?)
    }

    /// Has the files go that have records of a partition before `below` which it reads from others: what else is needed of them
    /// is moved out. The newest full file stays, and files that somebody reads. Blocks.
    pub fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.upkeep.release_leftovers(&self.partition(id)?, below)
    }

    /// Shows the records from `from` up to `to` one after the other, until `show` says false, within the rate for what
    /// goes on behind. Blocks.
    pub fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()> {
        let mut at = from;
        while at < to {
            let frames = match self.read(id, at, SCAN_BYTES) {
                Err(LogError::Gap { to, .. }) => {
                    at = to;
                    continue;
                }
                // Noted; nobody can show what was in it.
                Err(error @ LogError::Corrupt { .. }) => {
                    at = self.behind_damage(id, at, error)?;
                    continue;
                }
                frames => frames?,
            };
            let Some(next) = frames.last().map(|frame| frame.header.next()) else {
                return Ok(());
            };
            self.upkeep
                .pace_reading(frames.iter().map(|frame| frame.body.len()).sum())?;
            for frame in frames.iter().filter(|frame| frame.header.kind == FrameKind::Data) {
                let mut offset = frame.header.base;
                for record in crate::format::record::records(&frame.body) {
                    let record = record.map_err(|_| LogError::Corrupt {
                        file: format!("partition {id}"),
                        position: offset,
                        expected: None,
                        found: "a frame holds what is no record".to_owned(),
                    })?;
                    let own = record
                        .delta
                        .map_or(offset, |delta| frame.header.base + u64::from(delta));
                    offset = own + 1;
                    if (at..to).contains(&own) && !show(own, &record) {
                        return Ok(());
                    }
                }
            }
            at = next;
        }
        Ok(())
    }

    /// Takes a partition over: who held it before appends nothing more. Durable when this returns.
    pub async fn acquire(&self, id: PartitionId) -> Result<Fence> {
        let partition = self.partition(id)?;
        let epoch = partition.epoch() + 1;
        partition.set_epoch(epoch);
        self.change(PartitionChange::Acquired(id, epoch)).await?;
        Ok(Fence { partition: id, epoch })
    }

    /// Where its upkeep writes down how far a round of checks is.
    #[cfg(test)]
    pub(crate) fn book(&self) -> ScrubProgressStore {
        ScrubProgressStore {
            writer: self.writer.clone(),
            partitions: self.partitions.clone(),
            slots: self.slots.clone(),
            meta: self.meta.clone(),
        }
    }

    /// Commits and syncs all that was submitted. Blocks.
    pub fn close(&self) {
        self.upkeep.close();
        self.shelf.close();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        self.writer.close();
    }

    pub(crate) fn partition(&self, id: PartitionId) -> Result<Arc<Partition>> {
        self.partitions
            .read()
            .get(&id)
            .cloned()
            .ok_or(LogError::NoPartition(id))
    }
}

impl Drop for EmbeddedLog {
    fn drop(&mut self) {
        self.close();
    }
}

fn check_offered(durability: Durability) -> Result<()> {
    match durability {
        Durability::Memory => Err(LogError::DurabilityUnavailable {
            wanted: durability.name(),
            offered: "`fsync`, `interval` and `os`",
        }),
        _ => Ok(()),
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}
