//! The shared state of a table's threads: one memtable per log partition, and the state of the table.
//!
//! Lock order: memtable, state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use thalweg_kit::channel::{Receiver, Sender, channel};
use thalweg_kit::clock;
use thalweg_kit::threads::Condvar;
use thalweg_log::{Offset, PartitionId};
use thalweg_telemetry::TableStatus;
use tokio::sync::{Notify, watch};

use super::queue_source::QueueSource;
use crate::commit::{FileReplacement, HealthComponent, TableHealth};
use crate::error::AppendError;
use crate::memtable_view::{MemtableView, MemtableViewPart};
use crate::metrics::{GaugeSource, LakeMetrics, TableGauges};
use thalweg_columns::attributes::AttributeBindings;
use thalweg_columns::rows::attribute_columns::AttributeColumn;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::memory_usage::MemoryUsage;
use thalweg_columns::tables::TableSpec;

/// Rows are flushed when their own size reaches `lake.flush.bytes`, or their size including shared texts this many
/// times as much.
const FLUSH_WITH_SHARED: usize = 2;
/// How often a chunk is closed to make its rows visible to queries.
const SHOWN_AGAIN: Duration = Duration::from_millis(100);
/// Rows with names that have no column yet are committed after this time, and the very first rows after
/// [`FIRST_WITHIN`].
const NEW_NAMES_WITHIN: Duration = Duration::from_secs(2);
const FIRST_WITHIN: Duration = Duration::from_millis(100);
/// How many cleared chunks are kept for reuse.
const SPARE_CHUNKS: usize = 8;
const SPARE_BYTES: usize = 32 << 20;

/// The rows of a partition that are not sealed yet.
pub(super) struct Memtable {
    /// Closed chunks.
    chunks: Vec<Arc<MemtableChunk>>,
    chunk: Option<MemtableChunk>,
    /// An empty chunk with the texts of the last one, for the next chunk to inherit.
    heir: Option<MemtableChunk>,
    /// How many attributes of the chunk, or of its heir, were checked for new names.
    looked_at: usize,
    /// A name is to get a column that does not exist yet.
    has_new_names: bool,
    /// When a chunk was last closed for a query.
    shown: Option<Instant>,
    /// Queries see all entries before this offset.
    closed: Offset,
    /// The first offset.
    pub first: Offset,
    /// The next offset to consume.
    pub next: Offset,
}

impl Memtable {
    /// Discards everything, because it may be inconsistent.
    pub fn begin_again(&mut self) {
        self.chunks.clear();
        self.chunk = None;
        self.heir = None;
        self.looked_at = 0;
        self.next = self.first;
        self.closed = self.first;
    }

    /// Frees the inherited texts, because nothing arrives for now.
    pub fn forget_heir(&mut self) {
        self.heir = None;
    }

    fn buffered(&self) -> (u64, MemoryUsage) {
        let chunks = || {
            let closed = self.chunks.iter().map(AsRef::as_ref);
            closed.chain(&self.chunk).chain(&self.heir)
        };
        (
            chunks().map(|chunk| chunk.rows() as u64).sum(),
            chunks().map(MemtableChunk::space).sum(),
        )
    }

    fn close_chunk(&mut self) {
        if let Some(chunk) = self.chunk.take_if(|chunk| chunk.rows() > 0) {
            self.heir = chunk.heir();
            self.chunks.push(Arc::new(chunk));
        }
        self.closed = self.next;
    }

    /// Closes the current chunk for queries. Each call leaves a smaller chunk behind, so the rate is limited: if it is
    /// too early, returns the remaining time.
    fn show(&mut self) -> Result<(), Duration> {
        let since = self.shown.map_or(SHOWN_AGAIN, |shown| shown.elapsed());
        if since < SHOWN_AGAIN {
            return Err(SHOWN_AGAIN - since);
        }
        self.close_chunk();
        self.shown = Some(clock::now());
        Ok(())
    }

    /// `bindings` returns `None` while there is no table; then every name is new.
    fn look_for_names(&mut self, bindings: &dyn Fn() -> Option<Arc<AttributeBindings>>) {
        let Some(chunk) = &self.chunk else { return };
        let slots = chunk.slots().all();
        if self.has_new_names || slots.len() <= self.looked_at {
            return;
        }
        let bindings = bindings();
        let is_new = |slot: &AttributeColumn| {
            let would_bind = |bindings: &Arc<AttributeBindings>| bindings.would_bind(slot.source, &slot.name);
            bindings.as_ref().is_none_or(would_bind)
        };
        self.has_new_names = slots.iter().skip(self.looked_at).any(is_new);
        self.looked_at = slots.len();
    }
}

/// Rows that are committed together.
pub(super) struct SealedRows {
    pub chunks: Vec<Arc<MemtableChunk>>,
    /// The next offset of each partition.
    pub taken: Vec<Offset>,
}

/// The amount of uncommitted rows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferedRows {
    pub rows: u64,
    pub space: MemoryUsage,
    /// When there was first something to commit.
    pub since: Option<Instant>,
    pub has_new_names: bool,
}

impl BufferedRows {
    fn and(self, other: BufferedRows) -> BufferedRows {
        BufferedRows {
            rows: self.rows + other.rows,
            space: self.space + other.space,
            since: self.since.into_iter().chain(other.since).min(),
            has_new_names: self.has_new_names || other.has_new_names,
        }
    }
}

/// The totals of the newest commit.
#[derive(Clone, Debug, Default)]
pub(super) struct CommittedTotals {
    pub version: i64,
    pub rows: u64,
    pub bytes: u64,
    pub files: Vec<(u32, u64)>,
    pub promoted_columns: u64,
    pub last_commit_unix_ms: Option<i64>,
}

/// A requested replacement of files. If `outcome` is dropped, the table has ended.
pub(super) struct ReplacementRequest {
    pub files: FileReplacement,
    pub outcome: Sender<bool>,
}

/// The next task of the flush thread.
pub(super) enum CommitTask {
    Rows(SealedRows),
    Files(ReplacementRequest),
}

struct TableBufferState {
    /// By partition.
    buffered: Vec<BufferedRows>,
    sealed: BufferedRows,
    /// The rows of the commit in progress, by partition.
    committing: Vec<(Offset, Vec<Arc<MemtableChunk>>)>,
    hurry: bool,
    replacements: VecDeque<ReplacementRequest>,
    committed: CommittedTotals,
    /// Set permanently: nothing more is accepted.
    failure: Option<AppendError>,
    spares: Vec<MemtableChunk>,
}

pub(super) struct TableBuffer {
    pub spec: &'static TableSpec,
    pub health: Arc<TableHealth>,
    pub metrics: LakeMetrics,
    flush_bytes: usize,
    flush_interval: Duration,
    memtables: Vec<Mutex<Memtable>>,
    /// The cache size of each consumer in bytes.
    remembered: Vec<AtomicUsize>,
    /// The bindings of the newest commit.
    bindings: Mutex<Option<Arc<AttributeBindings>>>,
    state: Mutex<TableBufferState>,
    changed: Condvar,
    /// Notified whenever more of a partition was consumed.
    grown: Notify,
    ending: watch::Sender<bool>,
}

impl TableBuffer {
    /// `from` has the next offset of each partition.
    pub fn new(
        spec: &'static TableSpec,
        from: &[Offset],
        flush_bytes: usize,
        flush_interval: Duration,
        metrics: LakeMetrics,
    ) -> TableBuffer {
        let memtable = |next: &Offset| {
            Mutex::new(Memtable {
                chunks: Vec::new(),
                chunk: None,
                heir: None,
                looked_at: 0,
                has_new_names: false,
                shown: None,
                closed: *next,
                first: *next,
                next: *next,
            })
        };
        TableBuffer {
            spec,
            health: Arc::default(),
            metrics,
            flush_bytes,
            flush_interval,
            memtables: from.iter().map(memtable).collect(),
            remembered: from.iter().map(|_| AtomicUsize::new(0)).collect(),
            bindings: Mutex::default(),
            state: Mutex::new(TableBufferState {
                buffered: vec![BufferedRows::default(); from.len()],
                sealed: BufferedRows::default(),
                committing: Vec::new(),
                hurry: false,
                replacements: VecDeque::new(),
                committed: CommittedTotals::default(),
                failure: None,
                spares: Vec::new(),
            }),
            changed: Condvar::new(),
            grown: Notify::new(),
            ending: watch::Sender::new(false),
        }
    }

    /// The memtable of a partition, locked.
    pub fn memtable(&self, partition: usize) -> Option<MutexGuard<'_, Memtable>> {
        self.memtables.get(partition).map(Mutex::lock)
    }

    /// The current chunk, or a new one if it is full.
    pub fn chunk<'a>(&self, memtable: &'a mut Memtable) -> &'a mut MemtableChunk {
        if memtable.chunk.as_ref().is_some_and(MemtableChunk::is_full) {
            memtable.close_chunk();
        }
        memtable.chunk.get_or_insert_with(|| {
            let mut state = self.state.lock();
            let (spare, shared) = (state.spares.pop(), state.grown().space.shared);
            drop(state);
            let mut chunk = spare.unwrap_or_else(|| MemtableChunk::new(self.spec));
            // Inherited texts of all partitions must leave room for as much again; otherwise rows would be flushed as
            // soon as they arrive.
            let has_room = |heir: &MemtableChunk| shared + heir.space().used <= self.flush_bytes;
            match memtable.heir.take().filter(has_room) {
                Some(heir) => chunk.take_over(heir),
                None => memtable.looked_at = 0,
            }
            chunk
        })
    }

    /// The uncommitted rows, by partition. Whether rows of a commit in progress are visible depends on the table
    /// version of the query.
    pub fn live(&self, feed: &QueueSource) -> MemtableView {
        let mut parts = Vec::new();
        for (partition, memtable) in self.memtables.iter().enumerate() {
            let mut memtable = memtable.lock();
            // Slightly outdated rows are acceptable here; [`TableBuffer::wait_for`] gives a guarantee.
            let _ = memtable.show();
            parts.push((partition, memtable.first, memtable.chunks.clone()));
        }
        // Memtables that were sealed meanwhile have the same rows, and maybe more.
        for (partition, (first, chunks)) in self.state.lock().committing.iter().enumerate() {
            parts.retain(|(of, at, _)| (*of, *at) != (partition, *first));
            parts.push((partition, *first, chunks.clone()));
        }
        let part = |(partition, first, chunks)| MemtableViewPart {
            application: feed.application(partition),
            first,
            chunks,
        };
        MemtableView {
            parts: parts.into_iter().map(part).collect(),
        }
    }

    /// Returns when queries see the entry at an offset, or when the partition's consumption has ended.
    pub async fn wait_for(&self, partition: usize, offset: Offset) {
        loop {
            let grown = self.grown.notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            let shown = self
                .memtable(partition)
                .map(|mut memtable| match memtable.next > offset {
                    true if memtable.closed > offset => Some(Ok(())),
                    true => Some(memtable.show()),
                    false => None,
                });
            match shown {
                None | Some(Some(Ok(()))) => return,
                Some(Some(Err(pause))) => tokio::time::sleep(pause).await,
                Some(None) => grown.await,
            }
        }
    }

    /// Publishes the state of a memtable. The caller holds its lock.
    pub fn publish(&self, partition: usize, memtable: &mut Memtable) {
        memtable.look_for_names(&|| self.bindings.lock().clone());
        let (rows, space) = memtable.buffered();
        let mut state = self.state.lock();
        let Some(waits) = state.buffered.get_mut(partition) else {
            return;
        };
        let was_empty = waits.since.is_none();
        // Entries without rows need a commit of their offset, too.
        let since = (memtable.next > memtable.first).then(|| waits.since.unwrap_or_else(clock::now));
        let is_news = memtable.has_new_names && !waits.has_new_names;
        *waits = BufferedRows {
            rows,
            space,
            since,
            has_new_names: memtable.has_new_names,
        };
        let is_enough = self.is_enough(state.grown().space);
        drop(state);
        self.grown.notify_waiters();
        if is_enough || was_empty || is_news {
            self.changed.notify_all();
        }
    }

    /// Returns when there is room for more rows; false if no more are accepted.
    pub fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if self.is_ending() || state.failure.is_some() {
                return false;
            }
            if !self.is_enough(state.grown().space) {
                return true;
            }
            self.changed.wait(&mut state);
        }
    }

    pub fn has_room(&self) -> bool {
        !self.is_enough(self.state.lock().grown().space)
    }

    /// Whether there are enough rows for a flush before the interval is over.
    fn is_enough(&self, space: MemoryUsage) -> bool {
        space.own() >= self.flush_bytes || space.used >= FLUSH_WITH_SHARED * self.flush_bytes
    }

    /// Returns the next task as soon as there is one, rows first; `None` when the table ends.
    pub fn next_work(&self) -> Option<CommitTask> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || self.health.is_abandoned() {
                return None;
            }
            let grown = state.grown();
            // Queries see a new attribute as a column only after its commit.
            let within = match grown.has_new_names {
                true if self.bindings.lock().is_none() => FIRST_WITHIN,
                true => NEW_NAMES_WITHIN,
                false => Duration::MAX,
            };
            let interval = self.flush_interval.min(within);
            let due = grown.since.map(|since| since + interval);
            let is_due = self.is_enough(grown.space) || due.is_some_and(|due| due <= clock::now());
            if grown.since.is_some() && (is_due || state.hurry || self.is_ending()) {
                break;
            }
            if self.is_ending() {
                return None;
            }
            if let Some(asked) = state.replacements.pop_front() {
                return Some(CommitTask::Files(asked));
            }
            match due {
                Some(due) => {
                    self.changed.wait_until(&mut state, due);
                }
                None => {
                    state.hurry = false;
                    self.changed.wait(&mut state);
                }
            }
        }
        state.hurry = false;
        drop(state);
        Some(CommitTask::Rows(self.seal()))
    }

    /// Requests a replacement of files. The receiver gets nothing if the table ends before.
    pub fn replace(&self, files: FileReplacement) -> Receiver<bool> {
        let (outcome, receiver) = channel();
        let mut state = self.state.lock();
        if state.failure.is_none() && !self.is_ending() {
            state.replacements.push_back(ReplacementRequest { files, outcome });
        }
        drop(state);
        self.changed.notify_all();
        receiver
    }

    fn seal(&self) -> SealedRows {
        let mut sealed = SealedRows {
            chunks: Vec::new(),
            taken: Vec::with_capacity(self.memtables.len()),
        };
        for (partition, memtable) in self.memtables.iter().enumerate() {
            let mut memtable = memtable.lock();
            memtable.close_chunk();
            let chunks = std::mem::take(&mut memtable.chunks);
            sealed.chunks.extend(chunks.iter().cloned());
            sealed.taken.push(memtable.next);
            let first = memtable.first;
            memtable.first = memtable.next;
            memtable.has_new_names = false;
            let mut state = self.state.lock();
            state.committing.push((first, chunks));
            let waits = state.buffered.get_mut(partition).map(std::mem::take);
            state.sealed = state.sealed.and(waits.unwrap_or_default());
        }
        self.changed.notify_all();
        sealed
    }

    /// Records that rows were committed.
    pub fn settled(&self, sealed: SealedRows, committed: CommittedTotals) {
        let mut state = self.state.lock();
        state.sealed = BufferedRows::default();
        state.committing.clear();
        state.committed = committed;
        let wanted = SPARE_CHUNKS.saturating_sub(state.spares.len());
        drop(state);
        // Chunks that a query still uses are not reused.
        let spares = sealed.chunks.into_iter().filter_map(Arc::into_inner);
        let spares: Vec<MemtableChunk> = spares
            .filter(|chunk| chunk.space().held <= SPARE_BYTES)
            .take(wanted)
            .map(|mut chunk| {
                chunk.clear();
                chunk
            })
            .collect();
        self.state.lock().spares.extend(spares);
    }

    pub fn hurry(&self) {
        self.state.lock().hurry = true;
        self.changed.notify_all();
    }

    /// Stops accepting rows; existing rows are still committed.
    pub fn end(&self) {
        let mut state = self.state.lock();
        self.ending.send_replace(true);
        // Dropping the requests ends their waiting.
        state.replacements.clear();
        drop(state);
        self.changed.notify_all();
    }

    pub fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Notified when the table ends.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Stops commits and consumption.
    pub fn fail(&self, failure: AppendError) {
        if let AppendError::ReadOnly(text) = &failure {
            self.health.set_trouble(HealthComponent::Writer, text);
        }
        self.state.lock().failure.get_or_insert(failure);
        self.end();
    }

    pub fn set_committed(&self, committed: CommittedTotals) {
        self.state.lock().committed = committed;
    }

    /// Sets the names that have columns now.
    pub fn set_bindings(&self, bindings: &AttributeBindings) {
        let mut known = self.bindings.lock();
        if known.as_ref().is_none_or(|known| known.epoch() != bindings.epoch()) {
            *known = Some(Arc::new(bindings.clone()));
        }
    }

    pub fn committed(&self) -> CommittedTotals {
        self.state.lock().committed.clone()
    }

    /// The first offset of each partition that the table lacks.
    pub fn positions(&self) -> Vec<Offset> {
        let firsts: Vec<Offset> = self.memtables.iter().map(|memtable| memtable.lock().first).collect();
        let state = self.state.lock();
        // Rows of the commit in progress are not in the table yet.
        let committing = state.committing.iter().map(|(first, _)| Some(*first));
        let committing = committing.chain(std::iter::repeat(None));
        firsts
            .into_iter()
            .zip(committing)
            .map(|(first, committing)| committing.unwrap_or(first).min(first))
            .collect()
    }

    /// Whether only a restart can help.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// How long the oldest row has been waiting for its commit.
    pub fn lag(&self) -> Duration {
        let state = self.state.lock();
        let since = state.grown().and(state.sealed).since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Records the cache size of a consumer.
    pub fn remembers(&self, partition: usize, bytes: usize) {
        if let Some(remembered) = self.remembered.get(partition) {
            remembered.store(bytes, Ordering::Relaxed);
        }
    }

    /// The cache limit of a consumer: its share, and what the others do not use. Often one consumer has nearly all the
    /// load.
    pub fn may_remember(&self, partition: usize, part: usize) -> usize {
        let others = self.remembered.iter().enumerate().filter(|(of, _)| *of != partition);
        let others: usize = others.map(|(_, bytes)| bytes.load(Ordering::Relaxed)).sum();
        (part * self.remembered.len()).saturating_sub(others).max(part)
    }

    pub fn remembered_bytes(&self) -> u64 {
        self.remembered
            .iter()
            .map(|bytes| bytes.load(Ordering::Relaxed) as u64)
            .sum()
    }

    pub fn buffer_bytes(&self) -> u64 {
        let state = self.state.lock();
        let spares: MemoryUsage = state.spares.iter().map(MemtableChunk::space).sum();
        (state.grown().space + state.sealed.space + spares).held as u64
    }

    pub fn status(&self) -> TableStatus {
        let state = self.state.lock();
        let committed = &state.committed;
        TableStatus {
            name: self.spec.name.to_owned(),
            rows: committed.rows,
            files: committed.files.iter().map(|(_, count)| count).sum(),
            bytes: committed.bytes,
            version: committed.version,
            buffered_rows: state.grown().rows + state.sealed.rows,
            last_commit_unix_ms: committed.last_commit_unix_ms,
            failed: self.health.trouble().map(|(text, _)| text),
        }
    }
}

impl TableBufferState {
    fn grown(&self) -> BufferedRows {
        let waits = self.buffered.iter().copied();
        waits.fold(BufferedRows::default(), BufferedRows::and)
    }
}

/// The gauges of a table for a scrape.
pub(super) struct TableGaugeSource {
    pub table: Arc<TableBuffer>,
    pub feed: Arc<QueueSource>,
}

impl GaugeSource for TableGaugeSource {
    fn gauges(&self) -> TableGauges {
        let (feed, log) = (&self.feed, &self.feed.log);
        let of = |(partition, id): (usize, &PartitionId)| {
            let next = self.table.memtable(partition)?.next;
            // Missing or unreadable entries are reported elsewhere.
            log.bytes(*id, next, log.bounds(*id).ok()?.next).ok()
        };
        let backlog = feed.partitions.iter().enumerate().filter_map(of).sum();
        TableGauges {
            // The event store's table has no queue.
            backlog: (!feed.partitions.is_empty()).then(|| (feed.queue.clone(), backlog)),
            ..self.table.gauges()
        }
    }
}

impl TableBuffer {
    fn gauges(&self) -> TableGauges {
        let (buffer_bytes, commit_lag) = (self.buffer_bytes(), self.lag());
        let committed = self.committed();
        TableGauges {
            table: self.spec.name.to_owned(),
            files: committed.files,
            bytes: committed.bytes,
            rows: committed.rows,
            buffer_bytes,
            commit_lag,
            promoted_columns: committed.promoted_columns,
            backlog: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_telemetry::Metrics;

    use super::*;
    use thalweg_columns::tables::{TAGS, tags};

    fn table(flush_bytes: usize) -> TableBuffer {
        let metrics = LakeMetrics::register(&Metrics::default());
        TableBuffer::new(&TAGS, &[0], flush_bytes, Duration::from_secs(60), metrics)
    }

    fn put(table: &TableBuffer, memtable: &mut Memtable, tag: &str) -> u64 {
        let chunk = table.chunk(memtable);
        let row = chunk.begin_row();
        let tags = chunk.texts(tags::TAG);
        let key = tags.intern(tag.as_bytes());
        tags.push_key(row, key);
        chunk.line()
    }

    #[test]
    fn a_chunk_begins_with_the_texts_of_the_one_before_it() {
        let table = table(1 << 20);
        let mut memtable = table.memtable(0).unwrap();
        let line = put(&table, &mut memtable, "a");
        memtable.close_chunk();
        assert!(memtable.buffered().1.shared > 0, "an heir takes memory");
        assert_eq!(put(&table, &mut memtable, "b"), line);
        assert_eq!(table.chunk(&mut memtable).texts(tags::TAG).texts().len(), 2);
        let rows: Vec<usize> = memtable.chunks.iter().map(|chunk| chunk.rows()).collect();
        assert_eq!((rows, memtable.heir.is_none()), (vec![1], true));

        memtable.close_chunk();
        memtable.forget_heir();
        let next = put(&table, &mut memtable, "a");
        assert_ne!(next, line);
        memtable.close_chunk();
        memtable.begin_again();
        assert_ne!(put(&table, &mut memtable, "a"), next);
    }

    #[test]
    fn texts_that_leave_no_room_for_rows_are_not_taken_over() {
        let mut lines = [8, 1 << 20].map(|flush_bytes| {
            let table = table(flush_bytes);
            let mut memtable = table.memtable(0).unwrap();
            let line = put(&table, &mut memtable, "a text");
            memtable.close_chunk();
            (line, put(&table, &mut memtable, "a text"))
        });
        lines.reverse();
        let [(of_much, next_of_much), (of_little, next_of_little)] = lines;
        assert_eq!(of_much, next_of_much);
        assert_ne!(of_little, next_of_little);
    }
}
