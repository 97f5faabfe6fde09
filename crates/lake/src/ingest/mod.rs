//! From the log to tables: appended entries become rows, and a commit has both the rows and the committed offsets of
//! the log. So each row is in its table exactly once, whenever the process ends.
//!
//! ```text
//! lake.logs, partition 0 ── lake-rows ──┐
//! lake.logs, partition 1 ── lake-rows ──┴─ memtables ── lake-commit ── files, one Delta commit ── the log may delete
//! ```
//!
//! Receivers hand over the requests that they have decoded; other entries are read from the log, with the same result.
//! While a commit waits for the disk, the next memtables grow up to their limit; beyond that, entries wait in the log
//! on disk.

mod columns;
mod decode;
mod event_offsets;
mod events;
pub(crate) mod files;
mod flush;
mod handoff;
mod log_ends;
mod order;
mod partition_consumer;
mod queue_source;
mod table_buffer;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_kit::threads::JoinHandle;
use thalweg_kit::{blocking, clock, threads};
use thalweg_log::{LogError, Offset, PartitionId, raise_next};
use thalweg_telemetry::{StatusSource, TableStatus};
use tokio::runtime::Handle;

use crate::commit::FileReplacement;
use crate::entry::EntryPosition;
use crate::error::OpenError;
use crate::memtable_view::{MemtableView, VisibilityWaitError};
use crate::metrics::{GaugeSource, LakeMetrics};
use crate::opening;
use decode::EntryDecoder;
pub use decode::{DecodeEntry, DecodedEntry, DecoderFactory, EntryLimits};
use event_offsets::EventOffsets;
pub use events::{Event, EventPartition, EventStore};
use flush::{FlushThread, OffsetTracking};
pub use handoff::{Handoff, HandoffBudget, HandoffQueue, MessagesHandoff, RequestHandoff};
use log_ends::{LogEnds, drop_ends, kept};
pub use log_ends::{keep_ends, keep_event_ends};
use partition_consumer::PartitionConsumer;
pub use queue_source::{OffsetCommitListener, QueueSource};
use queue_source::{StartOffset, TruncatedLog};
use table_buffer::{TableBuffer, TableGaugeSource};
use thalweg_columns::attributes::AttributePromotion;
pub use thalweg_columns::file::FileRules;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::store::LakeStorage;
use thalweg_delta::{DeltaLog, Snapshot};

/// A commit lag of this many flush intervals means that data does not flow.
const LAG_INTERVALS_MAX: u32 = 5;
/// The minimum of this limit, for very short intervals.
const LAG_MIN: Duration = Duration::from_secs(10);
const TROUBLE_MAX: Duration = Duration::from_secs(60);
/// How often a closing table checks whether the log has more entries.
const DRAIN_LOOK: Duration = Duration::from_millis(2);

/// How tables are written (`lake.*`).
#[derive(Clone, Debug)]
pub struct IngestOptions {
    /// The memory of rows that triggers a flush.
    pub flush_bytes: usize,
    /// The age of the oldest row that triggers a flush.
    pub flush_interval: Duration,
    pub files: FileRules,
    /// Commits between two checkpoints.
    pub checkpoint_interval: i64,
    pub entries: EntryLimits,
    /// Skips entries that the log lacks with a warning, instead of stopping the table.
    pub accept_gap: bool,
    /// Where log partitions ended before this process appended to them; default: their current end.
    pub log_ends: BTreeMap<PartitionId, Offset>,
}

impl Default for IngestOptions {
    fn default() -> IngestOptions {
        IngestOptions {
            flush_bytes: 64 << 20,
            flush_interval: Duration::from_secs(2),
            files: FileRules::default(),
            checkpoint_interval: 100,
            entries: EntryLimits::default(),
            accept_gap: false,
            log_ends: BTreeMap::new(),
        }
    }
}

/// The progress of a table in a log partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionProgress {
    pub queue: String,
    pub partition: usize,
    /// The first offset that the table lacks.
    pub position: Offset,
    /// The offset of the next entry.
    pub end: Offset,
    /// Between the two.
    pub backlog_bytes: u64,
}

/// The writer of one table that the log feeds. Dropping it stops it and discards uncommitted rows, which are still in
/// the log.
pub struct TableWriter {
    table: Arc<TableBuffer>,
    feed: Arc<QueueSource>,
    site: LakeStorage,
    log: DeltaLog,
    flush_interval: Duration,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Set if the event store feeds the table: the store, and its offsets.
    events: Option<(Arc<dyn EventStore>, Arc<EventOffsets>)>,
    /// Keeps the metrics of the table alive.
    _watched: Arc<dyn GaugeSource>,
}

impl TableWriter {
    /// Opens a table of a lake and begins to consume its log entries. The table itself is created with its first rows.
    /// The caller must ensure that only one process writes a folder. Must be called on a tokio runtime.
    pub async fn open(
        site: &LakeStorage,
        spec: &'static TableSpec,
        feed: QueueSource,
        decoder: &DecoderFactory,
        promotion: AttributePromotion,
        metrics: LakeMetrics,
        options: &IngestOptions,
    ) -> Result<TableWriter, OpenError> {
        let columns = (spec.columns)();
        let (log, mut snapshot) = opening::open(site, spec.name, spec.partitions, &columns).await?;
        opening::check_types(&log, snapshot.as_ref(), &promotion)?;
        let ends = kept(site, spec).map_err(|source| ends_error(site, spec, source))?;
        let beginning = StartOffsetResolver {
            feed: &feed,
            spec,
            log: &log,
            options,
            ends,
        };
        let from = beginning.begin(&mut snapshot).await?;
        drop_ends(site, spec).map_err(|source| ends_error(site, spec, source))?;
        let offsets: Vec<Offset> = from.iter().map(|(offset, _)| *offset).collect();
        let table = TableBuffer::new(
            spec,
            &offsets,
            options.flush_bytes,
            options.flush_interval,
            metrics.clone(),
        );
        let (table, feed) = (Arc::new(table), Arc::new(feed));
        let watched: Arc<dyn GaugeSource> = Arc::new(TableGaugeSource {
            table: table.clone(),
            feed: feed.clone(),
        });
        metrics.watch(Arc::downgrade(&watched));
        let writer = TableWriter {
            table: table.clone(),
            feed: feed.clone(),
            site: site.clone(),
            log,
            flush_interval: options.flush_interval,
            threads: Mutex::default(),
            events: None,
            _watched: watched,
        };
        let gap = from.into_iter().find_map(|(_, gap)| gap);
        if let Some(text) = gap {
            tracing::error!(table = spec.name, "{text}");
            table.fail(crate::AppendError::ReadOnly(text));
            return Ok(writer);
        }
        writer.spawn(snapshot, decoder, promotion, options)?;
        Ok(writer)
    }

    fn spawn(
        &self,
        snapshot: Option<Snapshot>,
        decoder: &DecoderFactory,
        promotion: AttributePromotion,
        options: &IngestOptions,
    ) -> Result<(), OpenError> {
        self.spawn_flush(snapshot, promotion, options, OffsetTracking::Partitions)?;
        let (runtime, feed) = (Handle::current(), &self.feed);
        let path = self.site.path().join(self.table.spec.name);
        for (partition, id) in feed.partitions.iter().enumerate() {
            let consumer = PartitionConsumer {
                table: self.table.clone(),
                feed: feed.clone(),
                partition,
                id: *id,
                decoder: EntryDecoder::new(
                    self.table.spec,
                    decoder.clone(),
                    options.entries,
                    self.table.metrics.clone(),
                ),
                remembered_bytes: options.entries.remembered_bytes,
                site: self.site.clone(),
                accept_gap: options.accept_gap,
                runtime: runtime.clone(),
                poisoned: BTreeSet::new(),
                late: None,
                asked: None,
            };
            self.thread(&path, "lake-rows", move || consumer.run())?;
        }
        Ok(())
    }

    fn spawn_flush(
        &self,
        snapshot: Option<Snapshot>,
        promotion: AttributePromotion,
        options: &IngestOptions,
        positions: OffsetTracking,
    ) -> Result<(), OpenError> {
        let flush = FlushThread {
            table: self.table.clone(),
            feed: self.feed.clone(),
            log: self.log.clone(),
            positions,
            promotion,
            files: options.files.clone(),
            checkpoint_interval: options.checkpoint_interval,
            runtime: Handle::current(),
        };
        let path = self.site.path().join(self.table.spec.name);
        self.thread(&path, "lake-commit", move || flush.run(snapshot))
    }

    fn thread(&self, path: &Path, name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), OpenError> {
        let spawned = threads::spawn(name, run);
        let thread = spawned.map_err(|source| {
            self.table.end();
            let path: PathBuf = path.to_owned();
            OpenError::Thread { path, source }
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Starts a commit of the current rows.
    pub fn hurry(&self) {
        self.table.hurry();
    }

    /// Consumes the current entries of the log and commits them. Entries not consumed in half of this time, and rows
    /// not committed `within` it, are left to the log.
    pub async fn close(&self, within: Duration) {
        self.drain(within / 2).await;
        self.table.end();
        let threads = std::mem::take(&mut *self.threads.lock());
        let mut joined = blocking::spawn(move || {
            for thread in threads {
                // The panic was already reported.
                let _ = thread.join();
            }
        });
        if tokio::time::timeout(within, &mut joined).await.is_err() {
            self.table.health.abandon();
        }
    }

    async fn drain(&self, within: Duration) {
        let until = clock::now() + within;
        let end = |id| self.feed.log.bounds(id).map_or(0, |bounds| bounds.next);
        let ends: Vec<Offset> = self.feed.partitions.iter().map(|id| end(*id)).collect();
        let is_taken = |(partition, end): (usize, &Offset)| {
            let memtable = self.table.memtable(partition);
            memtable.is_none_or(|memtable| memtable.next >= *end)
        };
        let is_taken = || match &self.events {
            Some((events, journal)) => events::is_taken(self.feed.log.as_ref(), events.as_ref(), journal),
            None => ends.iter().enumerate().all(is_taken),
        };
        while !is_taken() {
            if self.table.has_failed() {
                return;
            }
            if clock::now() >= until {
                let table = self.table.spec.name;
                return tracing::warn!(table, "entries are left in the log; the next start consumes them");
            }
            tokio::time::sleep(DRAIN_LOOK).await;
        }
    }

    /// Requests a replacement of files. The receiver gets nothing if the writer ends before.
    pub(crate) fn replace(&self, files: FileReplacement) -> thalweg_kit::channel::Receiver<bool> {
        self.table.replace(files)
    }

    pub(crate) fn site(&self) -> &LakeStorage {
        &self.site
    }

    pub(crate) fn log(&self) -> &DeltaLog {
        &self.log
    }

    pub fn spec(&self) -> &'static TableSpec {
        self.table.spec
    }

    /// The rows that are decoded but not committed.
    pub fn live(&self) -> MemtableView {
        self.table.live(&self.feed)
    }

    /// Bytes of uncommitted rows.
    pub fn buffer_bytes(&self) -> u64 {
        self.table.buffer_bytes()
    }

    /// Bytes of cached tag metadata.
    pub fn remembered_bytes(&self) -> u64 {
        self.table.remembered_bytes()
    }

    /// The name of the queue that feeds it.
    pub fn queue(&self) -> &str {
        &self.feed.queue
    }

    /// Returns when queries see the entry at a position of its queue.
    pub async fn wait_for(&self, position: &EntryPosition, within: Duration) -> Result<(), VisibilityWaitError> {
        let EntryPosition {
            queue,
            partition,
            offset,
        } = position;
        let partition = usize::try_from(*partition).unwrap_or(usize::MAX);
        let Some(id) = self.feed.partitions.get(partition) else {
            let count = self.feed.partitions.len();
            return Err(VisibilityWaitError::Unknown(format!(
                "{position}: {queue} has {count} partitions, from 0 on"
            )));
        };
        let next = self.feed.log.bounds(*id).map_or(Offset::MAX, |bounds| bounds.next);
        if *offset >= next {
            return Err(VisibilityWaitError::Unknown(format!(
                "{position}: this partition ends before offset {next}, so no answer has named that position"
            )));
        }
        let seen = tokio::time::timeout(within, self.table.wait_for(partition, *offset));
        seen.await.map_err(|_| VisibilityWaitError::Late {
            position: position.clone(),
            seconds: within.as_secs_f64(),
            cause: self
                .table
                .health
                .trouble()
                .map_or_else(String::new, |(text, _)| format!(": {text}")),
        })
    }

    /// How long the oldest row has been waiting for its commit.
    pub fn lag(&self) -> Duration {
        self.table.lag()
    }

    /// The progress of the table in each log partition.
    pub fn progress(&self) -> Vec<PartitionProgress> {
        let positions = self.table.positions();
        let of = |((partition, id), position): ((usize, &thalweg_log::PartitionId), Offset)| {
            let end = self.feed.log.bounds(*id).map_or(position, |bounds| bounds.next);
            PartitionProgress {
                queue: self.feed.queue.clone(),
                partition,
                position,
                end,
                // Entries that were deleted meanwhile are no backlog.
                backlog_bytes: self.feed.log.bytes(*id, position, end).unwrap_or(0),
            }
        };
        self.feed.partitions.iter().enumerate().zip(positions).map(of).collect()
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        self.table.health.abandon();
        self.table.end();
    }
}

impl StatusSource for TableWriter {
    fn tables(&self) -> Vec<TableStatus> {
        vec![self.table.status()]
    }

    fn not_ready(&self) -> Vec<String> {
        let lag_max = (self.flush_interval * LAG_INTERVALS_MAX).max(LAG_MIN);
        let lag = self.table.lag();
        match self.table.health.trouble() {
            Some((text, since)) if since > TROUBLE_MAX || self.table.has_failed() => vec![text],
            None if self.table.has_failed() => {
                let table = self.table.spec.name;
                vec![format!(
                    "the writer of the table {table} has stopped; restart the process"
                )]
            }
            trouble if lag > lag_max => {
                let cause = trouble.map(|(text, _)| format!(": {text}")).unwrap_or_default();
                let (table, seconds) = (self.table.spec.name, lag.as_secs_f64());
                vec![format!(
                    "rows of the table {table} have been waiting for their commit for {seconds:.0} s{cause}"
                )]
            }
            _ => Vec::new(),
        }
    }
}

fn ends_error(site: &LakeStorage, table: &'static TableSpec, source: std::io::Error) -> OpenError {
    OpenError::Ends {
        path: site.path().join(table.name),
        source,
    }
}

/// Determines the start offset of each partition, and what prevents its consumption.
struct StartOffsetResolver<'b> {
    feed: &'b QueueSource,
    spec: &'static TableSpec,
    log: &'b DeltaLog,
    options: &'b IngestOptions,
    ends: LogEnds,
}

impl StartOffsetResolver<'_> {
    fn unread(&self, source: LogError) -> OpenError {
        OpenError::Log {
            path: self.log.table().to_owned(),
            source,
        }
    }

    /// Changes nothing until the state of all partitions is explained.
    async fn begin(&self, table: &mut Option<Snapshot>) -> Result<Vec<(Offset, Option<String>)>, OpenError> {
        let (feed, spec, accepts) = (self.feed, self.spec, self.options.accept_gap);
        let mut begins = Vec::with_capacity(feed.partitions.len());
        for (partition, id) in feed.partitions.iter().enumerate() {
            let bounds = feed.log.bounds(*id).map_err(|source| self.unread(source))?;
            let ends = [
                self.ends.get(&feed.application(partition)),
                self.options.log_ends.get(id),
            ];
            let end = ends.into_iter().flatten().copied().fold(bounds.next, Offset::min);
            let begin = feed.begin(partition, table.as_ref(), bounds.first, end);
            if let StartOffset::Lost(TruncatedLog { log_end, table_has }) = begin
                && !accepts
            {
                return Err(OpenError::Lost {
                    table: spec.name,
                    queue: feed.queue.clone(),
                    partition: partition.to_string(),
                    log_end,
                    table_has,
                });
            }
            begins.push((*id, begin));
        }
        let mut from = Vec::with_capacity(begins.len());
        for (partition, (id, begin)) in begins.into_iter().enumerate() {
            from.push(match begin {
                StartOffset::At(offset) => (offset, None),
                StartOffset::Lost(lost) => (self.go_on(table, partition, id, lost).await?, None),
                StartOffset::Missing(missing) if accepts => {
                    feed.passed_over(spec, partition, missing);
                    (missing.to, None)
                }
                StartOffset::Missing(missing) => (missing.to, Some(feed.gap_text(spec, partition, missing))),
            });
        }
        Ok(from)
    }

    /// Continues after an accepted loss: moves the log's next offset beyond the committed one; or, if entries were
    /// appended since, moves the table back to them.
    async fn go_on(
        &self,
        table: &mut Option<Snapshot>,
        partition: usize,
        id: PartitionId,
        TruncatedLog { log_end, table_has }: TruncatedLog,
    ) -> Result<Offset, OpenError> {
        let (queue, log) = (&self.feed.queue, self.feed.log.as_ref());
        tracing::error!(
            table = self.spec.name,
            queue,
            partition,
            log_end,
            table_has,
            "the log ends before the committed offset: entries are lost, and it continues without them, as configured"
        );
        let next = log.bounds(id).map_err(|source| self.unread(source))?.next;
        if next == log_end {
            raise_next(log, id, table_has)
                .await
                .map_err(|source| self.unread(source))?;
            return Ok(table_has);
        }
        if let Some(table) = table {
            let back = [(self.feed.application(partition), log_end)];
            opening::set_positions(self.log, table, &back).await?;
        }
        Ok(log_end)
    }
}
