//! The log on one disk: opening, appending, reading, closing.

#[cfg(test)]
mod faults;
mod partitions;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use thalweg_kit::histogram::Histogram;
use thalweg_kit::threads::{self, JoinHandle};
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

/// Size of one read during a scan.
const SCAN_BYTES: usize = 1 << 20;

/// The result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendReceipt {
    /// The offset of the first record of each part, in the order of the parts.
    pub offsets: Offsets,
    /// The durability that holds for the whole unit.
    pub durability: Durability,
}

pub struct EmbeddedLog {
    writer: Arc<LogWriter>,
    clock: Arc<LogClock>,
    pub(crate) partitions: Arc<RwLock<HashMap<PartitionId, Arc<Partition>>>>,
    pub(crate) pool: Arc<FilePool>,
    pub(crate) maintenance: Arc<LogMaintenance>,
    passes_over_damage: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The partition of the log itself.
    meta: Arc<Partition>,
    /// Slots for new partitions.
    slots: Arc<Mutex<SlotAllocator>>,
    log_id: u64,
    /// Files with lower numbers were full at the last [`roll`](EmbeddedLog::roll).
    pub(crate) rolled: AtomicU64,
    report: RecoveryReport,
    recovery_us: Histogram,
    folder: String,
}

impl EmbeddedLog {
    /// Opens the log of a disk after checking everything that was not known to be synced. Blocks. `log_id` names a new
    /// log; an existing log keeps its id.
    pub fn open(disk: Arc<dyn Disk>, log_id: u64, options: &LogOptions) -> Result<EmbeddedLog> {
        let began = thalweg_kit::clock::now();
        let opened = open::open(disk, log_id, options)?;
        EmbeddedLog::start(opened, began, options)
    }

    /// Starts the threads of a log that has been opened. `began` is when opening started.
    pub(crate) fn start(opened: OpenedLog, began: Instant, options: &LogOptions) -> Result<EmbeddedLog> {
        let OpenedLog {
            core,
            pool,
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
        // This must precede every write.
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
        let maintenance = Arc::new(LogMaintenance::new(pool.clone(), partitions.clone(), policy));
        // A weak reference: maintenance holds the file pool, and a reference cycle would keep both, and all files,
        // forever.
        let (barrier, failing, news) = (writer.clone(), writer.clone(), Arc::downgrade(&maintenance));
        let changes = meta.clone();
        pool.attend_with(FilePoolHooks {
            barrier: Box::new(move |give_up| {
                // The first to journal may not have notified the writer yet.
                barrier.journaled(&changes);
                barrier.barrier(give_up)
            }),
            poison: Box::new(move |cause| failing.fail(cause)),
            news: Box::new(move || {
                if let Some(maintenance) = news.upgrade() {
                    maintenance.wake();
                }
            }),
        });
        pool.look_first();
        let (keeper, keeping) = (pool.clone(), maintenance.clone());
        let book = ScrubProgressStore {
            writer: writer.clone(),
            partitions: partitions.clone(),
            slots: slots.clone(),
            meta: meta.clone(),
        };
        let threads = vec![
            spawn("log-spares", move || keeper.attend()).map_err(cannot)?,
            spawn("log-maint", move || keeping.run(&book)).map_err(cannot)?,
        ];
        Ok(EmbeddedLog {
            writer,
            clock: options.clock.clone(),
            partitions,
            pool,
            maintenance,
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

    /// The folder of the log, for messages.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// Resolves as soon as the log is poisoned, with the cause, or with `None` when it is closed without that. Does not
    /// keep the log open.
    pub fn poisoned(&self) -> impl Future<Output = Option<Arc<str>>> + Send + 'static {
        self.writer.over()
    }

    pub fn clock(&self) -> Arc<LogClock> {
        self.clock.clone()
    }

    /// The current log time.
    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// What recovery found at the start.
    pub fn report(&self) -> RecoveryReport {
        self.report
    }

    /// Globally identifies this log.
    pub fn id(&self) -> u64 {
        self.log_id
    }

    pub fn status(&self) -> LogStatus {
        if let Some(cause) = self.writer.poison() {
            return LogStatus::Poisoned(cause.to_string());
        }
        if let Some(full) = self.pool.refuses() {
            return LogStatus::DiskFull(full.to_string());
        }
        match self.maintenance.trouble() {
            Some(trouble) => LogStatus::Degraded(trouble),
            None => LogStatus::Healthy,
        }
    }

    /// Counters for metrics.
    pub fn counters(&self) -> LogCounters {
        let (spare_files, full_files, segments) = self.pool.counts();
        let measures = self.writer.measures();
        LogCounters {
            torn_bytes: self.report.torn_bytes,
            is_poisoned: self.writer.poison().is_some(),
            is_degraded: self.maintenance.trouble().is_some(),
            free_bytes: self.pool.free_bytes(),
            commit_us: measures.commit_us.observed(),
            sync_us: measures.sync_us.observed(),
            admission_us: measures.admission_us.observed().and_smallest(self.writer.admitted()),
            recovery_us: self.recovery_us.observed(),
            commit_bytes: measures.commit_bytes.observed(),
            commit_records: measures.commit_records.observed(),
            moved_bytes: self.maintenance.moved_bytes(),
            corrupt_frames: self.maintenance.corrupt_frames(),
            spare_files,
            full_files,
            segments,
        }
    }

    /// All partitions that callers created, in no particular order.
    pub fn partitions(&self) -> Vec<PartitionId> {
        let partitions = self.partitions.read();
        partitions.keys().copied().filter(|id| *id != SCRUBBED).collect()
    }

    /// Changes the durability of a partition permanently from the return on. Concurrent appends have the old or the new
    /// durability.
    pub async fn set_durability(&self, id: PartitionId, durability: Durability) -> Result<()> {
        check_offered(durability)?;
        let partition = self.partition(id)?;
        self.change(PartitionChange::Promises(id, durability)).await?;
        self.writer.set_durability(partition, durability);
        // Takes effect with the next block, whatever that contains.
        self.submit(SubmissionParts::new(), Durability::Fsync, 0)
            .await
            .map(drop)
    }

    /// Stores the records of a unit together or not at all. Returns once the strongest durability among its partitions
    /// holds for all of them; the records can be read from then on. Waits while the disk cannot keep up.
    ///
    /// If the caller drops the future before it completes, the unit may or may not be stored.
    pub async fn append(&self, unit: WriteBatch) -> Result<AppendReceipt> {
        let bytes = unit.check()?;
        if unit.only_messages()
            && let Some(full) = self.pool.refuses()
        {
            return Err(full);
        }
        let frees = unit.frees;
        let (parts, durability) = self.parts_of(unit)?;
        let offsets = self.submit_with(parts, durability, bytes, frees).await?;
        Ok(AppendReceipt { offsets, durability })
    }

    fn parts_of(&self, unit: WriteBatch) -> Result<(SubmissionParts, Durability)> {
        let mut durability = Durability::Os;
        let mut parts = SubmissionParts::with_capacity(unit.parts.len());
        {
            let partitions = self.partitions.read();
            for (id, kind, records) in unit.parts {
                let partition = partitions.get(&id).ok_or(LogError::NoPartition(id))?;
                durability = durability.stronger(partition.durability());
                parts.push(SubmissionPart::of(partition, kind, records));
            }
        }
        Ok((parts, durability))
    }

    /// Fails if records of this kind would be refused now.
    pub(crate) fn takes(&self, kind: FrameKind) -> Result<()> {
        if let Some(cause) = self.writer.poison() {
            return Err(LogError::Poisoned { cause });
        }
        match self.pool.refuses().filter(|_| kind == FrameKind::Data) {
            Some(full) => Err(full),
            None => Ok(()),
        }
    }

    /// The approximate size of the records in full files.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.pool.stored_bytes()
    }

    /// Adds a record to the next block, which is written within 10 ms. There is no notification, and a crash before the
    /// write loses the record. The only cost is encoding the record.
    pub fn journal(&self, id: PartitionId, kind: FrameKind, record: &RecordRef<'_>) -> Result<()> {
        self.journal_with(id, kind, &mut |records| records.push(record))
    }

    /// Like [`journal`](Self::journal), for several records that stay together.
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

    /// Returns when everything journaled for these partitions so far has their durability.
    pub async fn flush(&self, ids: &[PartitionId]) -> Result<()> {
        let mut durability = Durability::Os;
        for id in ids {
            let partition = self.partition(*id)?;
            durability = durability.stronger(partition.durability());
            // The first to journal may not have notified the writer yet.
            self.writer.journaled(&partition);
        }
        self.submit(SubmissionParts::new(), durability, 0).await.map(drop)
    }

    /// Returns when everything appended and journaled so far survives a power cut.
    pub async fn sync(&self) -> Result<()> {
        let partitions: Vec<_> = self.partitions.read().values().cloned().collect();
        for partition in partitions.iter().chain([&self.meta]).filter(|one| one.has_journaled()) {
            self.writer.journaled(partition);
        }
        self.submit(SubmissionParts::new(), Durability::Fsync, 0)
            .await
            .map(drop)
    }

    /// Triggers a sync of everything written so far, without waiting for it.
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

    /// The size of the records between two offsets. A frame that is only partly in the range counts in proportion to
    /// its offsets. Files that are wholly in the range are not read.
    pub fn bytes(&self, id: PartitionId, from: Offset, to: Offset) -> Result<u64> {
        self.partition(id)?.bytes_within(from, to)
    }

    /// Frames with the records from `from` on, about `bytes` of them and at least one frame; none if there are no
    /// records yet. The first frame may begin before `from`. The result ends before a damaged frame; a read that begins
    /// there returns the error. Blocks if the frames must be read from disk.
    pub fn read(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Vec<Frame>> {
        let frames = self.partition(id)?.read(from, bytes);
        if let Err(error @ (LogError::Corrupt { .. } | LogError::NewerFormat { .. })) = &frames {
            self.maintenance.note(error);
        }
        match frames {
            Err(error @ LogError::Corrupt { .. }) if self.passes_over_damage.load(Ordering::Relaxed) => {
                let to = self.after_damage(id, from, error)?;
                Err(LogError::Gap {
                    partition: id,
                    from,
                    to,
                })
            }
            frames => frames,
        }
    }

    /// The offset after a frame that cannot be read, or after the whole file if the positions of its frames are
    /// unknown.
    fn after_damage(&self, id: PartitionId, at: Offset, error: LogError) -> Result<Offset> {
        match self.frame_at(id, at) {
            Ok(damaged) => damaged.map(|header| header.next()).ok_or(error),
            Err(LogError::Corrupt { .. }) => self.partition(id)?.end_of_range(at).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// From now on damaged frames are treated as gaps that have been given up: a reader gets one error and continues
    /// after it.
    pub fn pass_over_damage(&self) {
        self.passes_over_damage.store(true, Ordering::Relaxed);
    }

    /// Like `read`, but never blocks: returns `None` if the frames must be read from disk.
    pub fn newest(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Option<Vec<Frame>>> {
        self.partition(id)?.newest(from, bytes)
    }

    /// Waits until a record at `from` can be read.
    pub async fn wait_for(&self, id: PartitionId, from: Offset) -> Result<()> {
        let partition = self.partition(id)?;
        partition.wait_for(from).await;
        Ok(())
    }

    /// Calls the listener whenever the partition has grown, as long as the log is open.
    pub fn listen(&self, id: PartitionId, listener: Arc<dyn PartitionListener>) -> Result<()> {
        self.partition(id)?.listen(listener);
        Ok(())
    }

    /// Calls the listener whenever a commit file is full, as long as the log is open.
    pub fn on_roll(&self, told: Arc<RollListener>) {
        self.pool.on_roll(told);
    }

    /// The first offset at which a record of `time` or later may be; the end of the partition if there is none. For an
    /// exact result the caller checks the records that follow.
    pub fn offset_at(&self, id: PartitionId, time: Micros) -> Result<Offset> {
        self.partition(id)?.at_time(time)
    }

    /// The header of the frame that contains an offset, or of the next frame, without reading the body; `None` if there
    /// is none.
    pub fn frame_at(&self, id: PartitionId, offset: Offset) -> Result<Option<FrameHeader>> {
        self.partition(id)?.frame_at(offset)
    }

    /// The offset of the newest record of kind [`FrameKind::Checkpoint`].
    pub fn last_checkpoint(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.partition(id)?.last_of(FrameKind::Checkpoint)
    }

    /// Declares that records before `below` are no longer needed; they cannot be read from now on. Durable with the
    /// next block.
    pub fn trim(&self, id: PartitionId, below: Offset) -> Result<()> {
        let partition = self.partition(id)?;
        if below <= partition.bounds().first {
            return Ok(());
        }
        // The order matters: a released file is reused only after everything journaled before is on disk.
        self.journal_change(PartitionChange::Trimmed(id, below))?;
        if partition.trim(below) {
            self.pool.wake();
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

    /// Removes records between the first and the next offset in the files that are full. The offsets of the other
    /// records do not change. Each file is rewritten as a whole or not at all. Blocks until done. Returns the offset up
    /// to which all records were passed to `keep`.
    pub fn rewrite(&self, id: PartitionId, keep: &RecordFilter<'_>) -> Result<Offset> {
        let partition = self.partition(id)?;
        let rewritten = self.maintenance.rewrite(&partition, keep);
        if let Err(error) = &rewritten {
            self.maintenance.note_outcome(error);
        }
        rewritten
    }

    /// The lowest offset of a partition in a file from which it is no longer read. If the file that replaced it is
    /// lost, the old file is used again, including records that a rewrite removed. `None` if there is no such file.
    /// Trimmed records do not count.
    pub fn oldest_leftover(&self, id: PartitionId) -> Result<Option<Offset>> {
        self.maintenance.oldest_leftover(&self.partition(id)?)
    }

    /// Removes files with records before `below` that the partition reads from other files, after moving out what is
    /// still needed. The newest full file and files that are being read stay. Blocks.
    pub fn release_leftovers(&self, id: PartitionId, below: Offset) -> Result<()> {
        self.maintenance.release_leftovers(&self.partition(id)?, below)
    }

    /// Passes the records from `from` to `to` to `show` until it returns false, throttled to the rate of background
    /// I/O. Blocks.
    pub fn scan(&self, id: PartitionId, from: Offset, to: Offset, show: &mut RecordVisitor<'_>) -> Result<()> {
        let mut at = from;
        while at < to {
            let frames = match self.read(id, at, SCAN_BYTES) {
                Err(LogError::Gap { to, .. }) => {
                    at = to;
                    continue;
                }
                // The damage has been noted, and the content of the frame cannot be shown.
                Err(error @ LogError::Corrupt { .. }) => {
                    at = self.after_damage(id, at, error)?;
                    continue;
                }
                frames => frames?,
            };
            let Some(next) = frames.last().map(|frame| frame.header.next()) else {
                return Ok(());
            };
            self.maintenance
                .pace_reading(frames.iter().map(|frame| frame.body.len()).sum())?;
            for frame in frames.iter().filter(|frame| frame.header.kind == FrameKind::Data) {
                let mut offset = frame.header.base;
                for record in crate::format::record::records(&frame.body) {
                    let record = record.map_err(|_| LogError::Corrupt {
                        file: format!("partition {id}"),
                        position: offset,
                        expected: None,
                        found: "a frame contains something that is not a record".to_owned(),
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

    /// Where maintenance stores the progress of a scrub.
    #[cfg(test)]
    pub(crate) fn book(&self) -> ScrubProgressStore {
        ScrubProgressStore {
            writer: self.writer.clone(),
            partitions: self.partitions.clone(),
            slots: self.slots.clone(),
            meta: self.meta.clone(),
        }
    }

    /// Commits and syncs everything that was submitted. Blocks.
    pub fn close(&self) {
        self.maintenance.close();
        self.pool.close();
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
    threads::spawn(name.to_owned(), work)
}
