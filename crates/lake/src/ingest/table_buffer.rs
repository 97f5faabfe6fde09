//! What the threads of a table share: rows that grow, one lot for each partition of its log, and what is known of the table.
//!
//! Locks are taken in this order: rows of a partition, state.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
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

/// Rows wait for a commit until they take `lake.flush.bytes` for themselves, or so many times as much with all that they share.
const FLUSH_WITH_SHARED: usize = 2;
/// So often rows are closed for queries.
const SHOWN_AGAIN: Duration = Duration::from_millis(100);
/// Rows with names that have no column yet are committed so soon, and the first rows of all.
const NEW_NAMES_WITHIN: Duration = Duration::from_secs(2);
const FIRST_WITHIN: Duration = Duration::from_millis(100);
/// Chunks whose room is kept for the next ones.
const SPARE_CHUNKS: usize = 8;
const SPARE_BYTES: usize = 32 << 20;

/// Rows of a partition that are on their way to a commit.
pub(super) struct Memtable {
    /// Those that do not change any more.
    chunks: Vec<Arc<MemtableChunk>>,
    chunk: Option<MemtableChunk>,
    /// Without rows. The next chunk begins with its texts, which are those of the last one.
    heir: Option<MemtableChunk>,
    /// Attributes of the chunk, or of the one whose heir it is, whose names were looked at.
    looked_at: usize,
    /// Some name is to have a column and has none yet.
    has_new_names: bool,
    /// When one was closed for a query.
    shown: Option<Instant>,
    /// What is before it is in chunks that queries see.
    closed: Offset,
    /// Where they begin.
    pub first: Offset,
    /// The offset that is taken next.
    pub next: Offset,
}

impl Memtable {
    /// Nothing of it is to be trusted: it is made again.
    pub fn begin_again(&mut self) {
        self.chunks.clear();
        self.chunk = None;
        self.heir = None;
        self.looked_at = 0;
        self.next = self.first;
        self.closed = self.first;
    }

    /// Nothing comes for now, so nothing is kept for what comes.
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

    /// Closes what grows for queries. Each time leaves a smaller chunk behind, so not for each of many queries: if it is too
    /// early, returns how long until it is not.
    fn show(&mut self) -> Result<(), Duration> {
        let since = self.shown.map_or(SHOWN_AGAIN, |shown| shown.elapsed());
        if since < SHOWN_AGAIN {
            return Err(SHOWN_AGAIN - since);
        }
        self.close_chunk();
        self.shown = Some(Instant::now());
        Ok(())
    }

    /// Without `bindings` there is no table yet, and every name is new.
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
    /// By partition, what is taken next.
    pub taken: Vec<Offset>,
}

/// How much waits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BufferedRows {
    pub rows: u64,
    pub space: MemoryUsage,
    /// Since there is something to commit.
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

/// What is committed.
#[derive(Clone, Debug, Default)]
pub(super) struct CommittedTotals {
    pub version: i64,
    pub rows: u64,
    pub bytes: u64,
    pub files: Vec<(u32, u64)>,
    pub promoted_columns: u64,
    pub last_commit_unix_ms: Option<i64>,
}

/// Somebody waits for the outcome of a replacement; dropped, there is none.
pub(super) struct ReplacementRequest {
    pub files: FileReplacement,
    pub outcome: mpsc::SyncSender<bool>,
}

/// What the thread that commits does next.
pub(super) enum CommitTask {
    Rows(SealedRows),
    Files(ReplacementRequest),
}

struct TableBufferState {
    /// By partition.
    growing: Vec<BufferedRows>,
    sealed: BufferedRows,
    /// The rows that are being committed, by partition.
    committing: Vec<(Offset, Vec<Arc<MemtableChunk>>)>,
    hurry: bool,
    replacements: VecDeque<ReplacementRequest>,
    committed: CommittedTotals,
    /// Set for good: nothing more is taken.
    failure: Option<AppendError>,
    spares: Vec<MemtableChunk>,
}

pub(super) struct TableBuffer {
    pub spec: &'static TableSpec,
    pub health: Arc<TableHealth>,
    pub metrics: LakeMetrics,
    flush_bytes: usize,
    flush_interval: Duration,
    lanes: Vec<Mutex<Memtable>>,
    /// Bytes of what each knows of earlier entries.
    remembered: Vec<AtomicUsize>,
    /// Of the newest commit.
    bindings: Mutex<Option<Arc<AttributeBindings>>>,
    state: Mutex<TableBufferState>,
    changed: Condvar,
    /// Told whenever more was taken of some partition.
    grown: Notify,
    ending: watch::Sender<bool>,
}

impl TableBuffer {
    /// `from` is what is taken next of each partition.
    pub fn new(
        spec: &'static TableSpec,
        from: &[Offset],
        flush_bytes: usize,
        flush_interval: Duration,
        metrics: LakeMetrics,
    ) -> TableBuffer {
        let growing = |next: &Offset| {
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
            lanes: from.iter().map(growing).collect(),
            remembered: from.iter().map(|_| AtomicUsize::new(0)).collect(),
            bindings: Mutex::default(),
            state: Mutex::new(TableBufferState {
                growing: vec![BufferedRows::default(); from.len()],
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

    pub fn lane(&self, partition: usize) -> Option<MutexGuard<'_, Memtable>> {
        self.lanes.get(partition).map(Mutex::lock)
    }

    /// A chunk with room.
    pub fn chunk<'a>(&self, growing: &'a mut Memtable) -> &'a mut MemtableChunk {
        if growing.chunk.as_ref().is_some_and(MemtableChunk::is_full) {
            growing.close_chunk();
        }
        growing.chunk.get_or_insert_with(|| {
            let mut state = self.state.lock();
            let (spare, shared) = (state.spares.pop(), state.grown().space.shared);
            drop(state);
            let mut chunk = spare.unwrap_or_else(|| MemtableChunk::new(self.spec));
            // What texts take in all lanes leaves room for as much again, or rows would be committed as soon as they come.
            let has_room = |heir: &MemtableChunk| shared + heir.space().used <= self.flush_bytes;
            match growing.heir.take().filter(has_room) {
                Some(heir) => chunk.take_over(heir),
                None => growing.looked_at = 0,
            }
            chunk
        })
    }

    /// What is not committed, by partition. Of what is being committed the commit decides whether it is beyond the table.
    pub fn live(&self, feed: &QueueSource) -> MemtableView {
        let mut parts = Vec::new();
        for (partition, lane) in self.lanes.iter().enumerate() {
            let mut growing = lane.lock();
            // A moment ago is good enough for who did not wait for more.
            let _ = growing.show();
            parts.push((partition, growing.first, growing.chunks.clone()));
        }
        // Rows that went from there to here meanwhile are the same rows, and maybe more.
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

    /// Returns when queries see what was taken at an offset, or when nothing more is made of the partition.
    pub async fn wait_for(&self, partition: usize, offset: Offset) {
        loop {
            let grown = self.grown.notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            let shown = self.lane(partition).map(|mut growing| match growing.next > offset {
                true if growing.closed > offset => Some(Ok(())),
                true => Some(growing.show()),
                false => None,
            });
            match shown {
                None | Some(Some(Ok(()))) => return,
                Some(Some(Err(pause))) => tokio::time::sleep(pause).await,
                Some(None) => grown.await,
            }
        }
    }

    /// Lets others see what waits in a partition. Its rows are locked.
    pub fn publish(&self, partition: usize, growing: &mut Memtable) {
        growing.look_for_names(&|| self.bindings.lock().clone());
        let (rows, space) = growing.buffered();
        let mut state = self.state.lock();
        let Some(waits) = state.growing.get_mut(partition) else {
            return;
        };
        let was_empty = waits.since.is_none();
        // Entries without a row are taken by a commit, too.
        let since = (growing.next > growing.first).then(|| waits.since.unwrap_or_else(Instant::now));
        let is_news = growing.has_new_names && !waits.has_new_names;
        *waits = BufferedRows {
            rows,
            space,
            since,
            has_new_names: growing.has_new_names,
        };
        let is_enough = self.is_enough(state.grown().space);
        drop(state);
        self.grown.notify_waiters();
        if is_enough || was_empty || is_news {
            self.changed.notify_all();
        }
    }

    /// Returns when there is room for more rows; `false` when no more are to be made.
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

    /// Whether rows are a commit, before the interval is over.
    fn is_enough(&self, space: MemoryUsage) -> bool {
        space.own() >= self.flush_bytes || space.used >= FLUSH_WITH_SHARED * self.flush_bytes
    }

    /// What is to be committed, as soon as there is anything, and rows first; `None` when the table ends.
    pub fn next_work(&self) -> Option<CommitTask> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || self.health.is_abandoned() {
                return None;
            }
            let grown = state.grown();
            // A name is a column for those who ask only when it is committed.
            let within = match grown.has_new_names {
                true if self.bindings.lock().is_none() => FIRST_WITHIN,
                true => NEW_NAMES_WITHIN,
                false => Duration::MAX,
            };
            let interval = self.flush_interval.min(within);
            let due = grown.since.map(|since| since + interval);
            let is_due = self.is_enough(grown.space) || due.is_some_and(|due| due <= Instant::now());
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

    /// Asks for files to be replaced. The receiver has nothing if the table ends before.
    pub fn replace(&self, files: FileReplacement) -> mpsc::Receiver<bool> {
        let (outcome, receiver) = mpsc::sync_channel(1);
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
            taken: Vec::with_capacity(self.lanes.len()),
        };
        for (partition, lane) in self.lanes.iter().enumerate() {
            let mut growing = lane.lock();
            growing.close_chunk();
            let chunks = std::mem::take(&mut growing.chunks);
            sealed.chunks.extend(chunks.iter().cloned());
            sealed.taken.push(growing.next);
            let first = growing.first;
            growing.first = growing.next;
            growing.has_new_names = false;
            let mut state = self.state.lock();
            state.committing.push((first, chunks));
            let waits = state.growing.get_mut(partition).map(std::mem::take).unwrap_or_default();
            state.sealed = state.sealed.and(waits);
        }
        self.changed.notify_all();
        sealed
    }

    /// Rows are committed.
    pub fn settled(&self, sealed: SealedRows, committed: CommittedTotals) {
        let mut state = self.state.lock();
        state.sealed = BufferedRows::default();
        state.committing.clear();
        state.committed = committed;
        let wanted = SPARE_CHUNKS.saturating_sub(state.spares.len());
        drop(state);
        // Those that a query looks at go with it.
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

    /// No more rows are made; what there is is committed.
    pub fn end(&self) {
        let mut state = self.state.lock();
        self.ending.send_replace(true);
        // Whoever waits for these hears that there is no outcome.
        state.replacements.clear();
        drop(state);
        self.changed.notify_all();
    }

    pub fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }

    /// Told when the table ends.
    pub fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Nothing is committed any more, and nothing more is made.
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

    /// Names that have columns now.
    pub fn set_bindings(&self, bindings: &AttributeBindings) {
        let mut known = self.bindings.lock();
        if known.as_ref().is_none_or(|known| known.epoch() != bindings.epoch()) {
            *known = Some(Arc::new(bindings.clone()));
        }
    }

    pub fn committed(&self) -> CommittedTotals {
        self.state.lock().committed.clone()
    }

    /// By partition, the offset that the table lacks first.
    pub fn positions(&self) -> Vec<Offset> {
        let firsts: Vec<Offset> = self.lanes.iter().map(|lane| lane.lock().first).collect();
        let state = self.state.lock();
        // What is being committed is not there yet.
        let committing = state.committing.iter().map(|(first, _)| Some(*first));
        let committing = committing.chain(std::iter::repeat(None));
        firsts
            .into_iter()
            .zip(committing)
            .map(|(first, committing)| committing.unwrap_or(first).min(first))
            .collect()
    }

    /// Whether nothing can be expected of it any more without a restart.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failure.is_some()
    }

    /// For how long the oldest row waits for its commit.
    pub fn lag(&self) -> Duration {
        let state = self.state.lock();
        let since = state.grown().and(state.sealed).since;
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// What a lane knows of earlier entries takes so much.
    pub fn remembers(&self, partition: usize, bytes: usize) {
        if let Some(remembered) = self.remembered.get(partition) {
            remembered.store(bytes, Ordering::Relaxed);
        }
    }

    /// How much a lane may know of earlier entries: its part, and of those of the others what they do not take. Often one lane
    /// has nearly all to do.
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
        let waits = self.growing.iter().copied();
        waits.fold(BufferedRows::default(), BufferedRows::and)
    }
}

/// What a scrape sees of a table.
pub(super) struct TableGaugeSource {
    pub table: Arc<TableBuffer>,
    pub feed: Arc<QueueSource>,
}

impl GaugeSource for TableGaugeSource {
    fn gauges(&self) -> TableGauges {
        let (feed, log) = (&self.feed, &self.feed.log);
        let of = |(partition, id): (usize, &PartitionId)| {
            let next = self.table.lane(partition)?.next;
            // What is gone, or cannot be read, is told elsewhere.
            log.bytes(*id, next, log.bounds(*id).ok()?.next).ok()
        };
        let backlog = feed.partitions.iter().enumerate().filter_map(of).sum();
        TableGauges {
            // Events come from elsewhere.
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
    use prometheus::Registry;

    use super::*;
    use thalweg_columns::tables::{TAGS, tags};

    fn table(flush_bytes: usize) -> TableBuffer {
        let metrics = LakeMetrics::register(&Registry::new()).unwrap();
        TableBuffer::new(&TAGS, &[0], flush_bytes, Duration::from_secs(60), metrics)
    }

    fn put(table: &TableBuffer, growing: &mut Memtable, tag: &str) -> u64 {
        let chunk = table.chunk(growing);
        let row = chunk.begin_row();
        let tags = chunk.texts(tags::TAG);
        let key = tags.intern(tag.as_bytes());
        tags.push_key(row, key);
        chunk.line()
    }

    #[test]
    fn a_chunk_begins_with_the_texts_of_the_one_before_it() {
        let table = table(1 << 20);
        let mut growing = table.lane(0).unwrap();
        let line = put(&table, &mut growing, "a");
        growing.close_chunk();
        assert!(growing.buffered().1.shared > 0, "an heir takes memory");
        assert_eq!(put(&table, &mut growing, "b"), line);
        assert_eq!(table.chunk(&mut growing).texts(tags::TAG).texts().len(), 2);
        let rows: Vec<usize> = growing.chunks.iter().map(|chunk| chunk.rows()).collect();
        assert_eq!((rows, growing.heir.is_none()), (vec![1], true));

        growing.close_chunk();
        growing.forget_heir();
        let next = put(&table, &mut growing, "a");
        assert_ne!(next, line);
        growing.close_chunk();
        growing.begin_again();
        assert_ne!(put(&table, &mut growing, "a"), next);
    }

    #[test]
    fn texts_that_leave_no_room_for_rows_are_not_taken_over() {
        let mut lines = [8, 1 << 20].map(|flush_bytes| {
            let table = table(flush_bytes);
            let mut growing = table.lane(0).unwrap();
            let line = put(&table, &mut growing, "a text");
            growing.close_chunk();
            (line, put(&table, &mut growing, "a text"))
        });
        lines.reverse();
        let [(of_much, next_of_much), (of_little, next_of_little)] = lines;
        assert_eq!(of_much, next_of_much);
        assert_ne!(of_little, next_of_little);
    }
}
