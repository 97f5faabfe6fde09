//! The tables of the process: each is fed from a queue of the log, seen by queries together with what it has not committed yet,
//! and kept in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use thalweg_events::EmbeddedStore;
use thalweg_flow::OpenError;
use thalweg_lake::attributes::AttributePromotion;
use thalweg_lake::entry::{BoxFuture, EntryPosition};
use thalweg_lake::ingest::{
    EntryLimits, HandoffBudget, HandoffQueue, IngestOptions, PartitionProgress, QueueSource, TableWriter, keep_ends,
    keep_event_ends,
};
use thalweg_lake::maintenance::{MaintenanceReport, MaintenanceRequest, MaintenanceThread};
use thalweg_lake::memtable_view::{MemtableReader, MemtableView, VisibilityWaitError};
use thalweg_lake::otlp::Signal;
use thalweg_lake::signal_batch::SignalBatchLimits;
use thalweg_lake::store::LakeStorage;
use thalweg_lake::tables::{EVENTS, LOGS, METRICS, TAGS, TRACES, TableSpec};
use thalweg_lake::{LakeMetrics, OpenError as TableError};
use thalweg_log::{Durability, Log, Offset, PartitionId};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Queue, QueueError, Queues};
use thalweg_telemetry::{Metrics, StatusSource, TableStatus};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OnceCell, watch};

use super::LakeSection;
use super::committed_offsets::CommittedOffsets;
use super::events::LakeEventStore;
use crate::lake_site::is_final;

/// The queue that feeds the table `tags`.
const TAGS_QUEUE: &str = "lake.tags";
/// Of each signal: the queue that feeds its table, and that.
const OF_SIGNALS: [(Signal, &str, &TableSpec); 3] = [
    (Signal::Logs, "lake.logs", &LOGS),
    (Signal::Metrics, "lake.metrics", &METRICS),
    (Signal::Traces, "lake.traces", &TRACES),
];
/// The group of the queues whose positions let the log forget.
const GROUP: &str = "lake";
/// More partitions than that have no use on a machine of any size: each is a thread.
const PARTITIONS_MAX: usize = 4;
/// Tables that may be open at the same time. Each has rows that grow, rows that are committed, and files that are made of them.
const TABLES_MAX: usize = 5;
/// A start does not wait longer for an object store.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
const OPEN_AGAIN_FIRST: Duration = Duration::from_millis(500);
const OPEN_AGAIN_MAX: Duration = Duration::from_secs(10);
const RELEASE_WITHIN: Duration = Duration::from_secs(2);
/// Some are for what is remembered of tags.
const TAGS_PARTS: usize = 6;
/// One part more is for requests that wait to become rows.
const MEMORY_PARTS: usize = 3 * TABLES_MAX + TAGS_PARTS + 1;

/// The tables of the process.
#[derive(Default)]
pub(crate) struct LakeTables {
    /// A component asks for tables.
    wanted: AtomicBool,
    ground: RwLock<Option<Arc<LakeContext>>>,
    tags: OnceCell<TableQueue>,
    /// Of [`OF_SIGNALS`].
    received: [OnceCell<TableQueue>; 3],
    writers: RwLock<Vec<Arc<TableWriter>>>,
    /// Tables that could not be opened yet, and why.
    unopened: Mutex<BTreeMap<&'static str, String>>,
    upkeep: Mutex<Option<MaintenanceThread>>,
    /// Of requests that receivers hand over.
    room: OnceLock<Arc<HandoffBudget>>,
    /// Queries may come before the tables of receivers are there.
    is_opening: watch::Sender<bool>,
}

/// The queue of a table, and where what is stored in it is handed over.
pub(crate) type TableQueue = (Arc<Queue>, Arc<HandoffQueue>);

/// What tables stand on.
pub(crate) struct LakeContext {
    pub queues: Queues,
    pub log: Arc<dyn thalweg_log::Log>,
    /// The usual one of the log.
    pub durability: Durability,
    /// What the log has lost is given up.
    pub accept_loss: bool,
    /// Where it ended before anything was appended to it.
    pub log_ends: BTreeMap<PartitionId, Offset>,
    pub site: LakeStorage,
    pub metrics: LakeMetrics,
    pub section: LakeSection,
    pub entries: EntryLimits,
    /// Of messages that are records of OTLP tables.
    pub records: SignalBatchLimits,
}

/// Why a table and its queue could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TableOpenError {
    #[error("the lake has no log to stand on")]
    NoGround,
    #[error("the queue {name} cannot be made: {source}")]
    Queue { name: &'static str, source: QueueError },
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("where the log ends cannot be kept until the table {table} is opened: {source}")]
    Ends {
        table: &'static str,
        source: std::io::Error,
    },
}

impl TableOpenError {
    /// Of one table, which keeps no other from being opened; but nothing is stored behind what a log has lost.
    fn say(self, table: &str) -> Result<()> {
        if matches!(self, TableOpenError::Table(TableError::Lost { .. })) {
            return Err(self.into());
        }
        tracing::error!(table, "{self}");
        Ok(())
    }
}

impl From<TableOpenError> for OpenError {
    fn from(error: TableOpenError) -> OpenError {
        match &error {
            TableOpenError::Table(table) if table.is_permanent() => OpenError::Permanent(error.to_string()),
            _ => OpenError::Temporary(error.to_string()),
        }
    }
}

impl LakeTables {
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Has the metrics of tables told; opens nothing.
    pub fn register(self: &Arc<LakeTables>, section: &LakeSection, metrics: &Metrics) -> Result<LakeMetrics> {
        let metrics = LakeMetrics::register(metrics.registry())?;
        let lake = Arc::downgrade(self);
        let used = move || lake.upgrade().map_or(0, |lake| lake.used_bytes());
        metrics.watch_share("lake.memory", section.options.memory_bytes as u64, used);
        Ok(metrics)
    }

    /// From now on tables can be opened. What the log has for them from earlier times becomes rows, whoever feeds them now. Must
    /// be called on a tokio runtime.
    pub async fn start(self: &Arc<LakeTables>, ground: LakeContext) -> Result<()> {
        // A store that does not answer in time may do so later.
        if let Ok(Err(error)) = tokio::time::timeout(OPEN_WITHIN, ground.site.claim()).await
            && is_final(&error)
        {
            return Err(error.into());
        }
        let upkeep = MaintenanceThread::start(ground.section.upkeep.clone(), ground.metrics.clone());
        *self.upkeep.lock() = Some(upkeep.context("the thread that keeps tables in order cannot be started")?);
        let has = |name: &str| ground.queues.get(name).is_ok();
        let has_tags = has(TAGS_QUEUE);
        let signals = OF_SIGNALS.into_iter().filter(|(_, name, _)| has(name));
        let signals: Vec<Signal> = signals.map(|(signal, ..)| signal).collect();
        *self.ground.write() = Some(Arc::new(ground));
        // Whoever feeds it tries again, and ends if that has no use.
        if has_tags && let Err(error) = self.tags().await {
            error.say(TAGS.name)?;
        }
        for signal in signals {
            if let Err(error) = self.received(signal).await {
                error.say(signal.name())?;
            }
        }
        Ok(())
    }

    /// The table `tags`, which outputs feed: its queue, which is open.
    pub async fn tags(self: &Arc<LakeTables>) -> Result<TableQueue, TableOpenError> {
        let promotion = |ground: &LakeContext| ground.section.tags.clone();
        let open = || self.open(&TAGS, TAGS_QUEUE, promotion);
        self.tags.get_or_try_init(open).await.cloned()
    }

    /// A table that receivers feed, and outputs: its queue, which is open.
    pub async fn received(self: &Arc<LakeTables>, signal: Signal) -> Result<TableQueue, TableOpenError> {
        let at = signal as usize;
        let (_, name, spec) = OF_SIGNALS[at];
        let promotion = |ground: &LakeContext| ground.section.promotions[at].clone();
        let open = || self.open(spec, name, promotion);
        self.received[at].get_or_try_init(open).await.cloned()
    }

    /// What messages for such a table may be.
    pub fn records(&self) -> Option<SignalBatchLimits> {
        Some(self.ground.read().as_ref()?.records)
    }

    /// Whether whoever waits for a table should wait until it is there.
    pub fn set_opening(&self, is_opening: bool) {
        self.is_opening.send_replace(is_opening);
    }

    /// Opens a table, and makes its queue if it is not there. Of an object store that does not answer the table is opened when it
    /// does: what comes until then waits in the queue.
    async fn open(
        self: &Arc<LakeTables>,
        spec: &'static TableSpec,
        name: &'static str,
        promotion: impl FnOnce(&LakeContext) -> AttributePromotion,
    ) -> Result<TableQueue, TableOpenError> {
        let ground = self.ground.read().clone().ok_or(TableOpenError::NoGround)?;
        let bytes = ground.section.options.memory_bytes / MEMORY_PARTS;
        let room = self.room.get_or_init(|| HandoffBudget::new(bytes));
        let promotion = promotion(&ground);
        let unmade = |source| TableOpenError::Queue { name, source };
        let queue = ground.queue(name).await.map_err(unmade)?;
        let group = queue.group(GROUP).map_err(unmade)?;
        let taken = CommittedOffsets::new(queue.data_ids().len());
        let handoffs = ground.handoffs(&queue, room);
        let feed = ground.feed(&queue, &taken, &handoffs);
        let table = TableSource::Fed { spec, feed, promotion };
        self.open_table(PendingTable { ground, table }).await?;
        tokio::spawn(taken.commit(queue.clone(), group));
        Ok((queue, handoffs))
    }

    /// Opens the table `events`, which the partitions of the store feed.
    pub async fn open_events(self: &Arc<LakeTables>, store: Arc<EmbeddedStore>) -> Result<(), TableOpenError> {
        let ground = self.ground.read().clone().ok_or(TableOpenError::NoGround)?;
        let table = TableSource::Events(Arc::new(LakeEventStore(store)));
        self.open_table(PendingTable { ground, table }).await
    }

    /// Now, or in the background if that is worth waiting for.
    async fn open_table(self: &Arc<LakeTables>, opening: PendingTable) -> Result<(), TableOpenError> {
        match opening.open_within(OPEN_WITHIN).await {
            Ok(writer) => self.keep(writer),
            Err(error) if opening.is_worth_waiting(&error) => {
                // Before anything comes that the table could take for what it has.
                let opening = opening.keep_ends().await?;
                self.set_unopened(opening.spec(), &error);
                tokio::spawn(opening.open_later(Arc::downgrade(self)));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn keep(&self, writer: TableWriter) {
        let writer = Arc::new(writer);
        self.unopened.lock().remove(writer.spec().name);
        self.writers.write().push(writer.clone());
        if let Some(upkeep) = &*self.upkeep.lock() {
            upkeep.keep(writer);
        }
    }

    fn set_unopened(&self, spec: &TableSpec, error: &TableError) {
        let text = error.to_string();
        let before = self.unopened.lock().insert(spec.name, text.clone());
        if before.as_ref() != Some(&text) {
            tracing::error!(
                table = spec.name,
                "{text}; what is received stays in the log until it can be"
            );
        }
    }

    /// These will be no rows: of each reason so many.
    pub fn count_refused<'r>(&self, table: &str, refused: impl IntoIterator<Item = (&'r str, u64)>) {
        let Some(ground) = self.ground.read().clone() else {
            return;
        };
        for (reason, count) in refused {
            let rows = &ground.metrics.refused_rows;
            rows.with_label_values(&[table, reason]).inc_by(count);
        }
    }

    fn writers(&self) -> Vec<Arc<TableWriter>> {
        self.writers.read().clone()
    }

    /// The tables that are kept in order here.
    pub fn kept(&self) -> Vec<String> {
        self.upkeep
            .lock()
            .as_ref()
            .map(MaintenanceThread::tables)
            .unwrap_or_default()
    }

    /// Asks for upkeep by hand; `None` if there is none here.
    pub fn ask(&self, asked: MaintenanceRequest) -> Option<UnboundedReceiver<MaintenanceReport>> {
        self.upkeep.lock().as_ref().map(|upkeep| upkeep.ask(asked))
    }

    /// Of each table: what it has, for how long rows wait for their commit, and how far it has taken the log.
    pub fn states(&self) -> Vec<(TableStatus, Duration, Vec<PartitionProgress>)> {
        let state = |writer: &Arc<TableWriter>| {
            let status = writer.tables().into_iter().next()?;
            Some((status, writer.lag(), writer.progress()))
        };
        self.writers().iter().filter_map(state).collect()
    }

    /// Bytes of rows that are not committed, of what is remembered of tags, and of requests that are no rows yet.
    fn used_bytes(&self) -> u64 {
        let of = |writer: &Arc<TableWriter>| writer.buffer_bytes() + writer.remembered_bytes();
        let rows: u64 = self.writers.read().iter().map(of).sum();
        rows + self.room.get().map_or(0, |room| room.used() as u64)
    }

    /// Commits what the log has by now, as far as there is time; the next start takes the rest.
    pub async fn stop(&self, within: Duration) {
        let upkeep = self.upkeep.lock().take();
        if let Some(upkeep) = upkeep {
            // It ends with the row group that it writes; nothing is lost with it.
            let _cut_off = tokio::time::timeout(within, tokio::task::spawn_blocking(|| upkeep.stop())).await;
        }
        let writers = self.writers();
        join_all(writers.iter().map(|writer| writer.close(within))).await;
        let ground = self.ground.write().take();
        if let Some(ground) = ground {
            // Not told, whoever comes next waits until the lease has expired.
            let _cut_off = tokio::time::timeout(RELEASE_WITHIN, ground.site.release()).await;
        }
    }
}

/// A table that is to be opened.
struct PendingTable {
    ground: Arc<LakeContext>,
    table: TableSource,
}

/// Which one, and what feeds it.
enum TableSource {
    Fed {
        spec: &'static TableSpec,
        feed: QueueSource,
        promotion: AttributePromotion,
    },
    Events(Arc<LakeEventStore>),
}

impl PendingTable {
    fn spec(&self) -> &'static TableSpec {
        match &self.table {
            TableSource::Fed { spec, .. } => spec,
            TableSource::Events(_) => &EVENTS,
        }
    }

    async fn open(&self) -> Result<TableWriter, TableError> {
        let LakeContext { site, metrics, .. } = &*self.ground;
        let partitions = match &self.table {
            TableSource::Fed { feed, .. } => feed.partitions.len(),
            TableSource::Events(_) => 1,
        };
        let (metrics, options) = (metrics.clone(), self.ground.options(partitions));
        match &self.table {
            TableSource::Fed { spec, feed, promotion } => {
                TableWriter::open(site, spec, feed.clone(), promotion.clone(), metrics, &options).await
            }
            TableSource::Events(messages) => {
                let promotion = self.ground.section.events_promotion.clone();
                let log = self.ground.log.clone();
                TableWriter::open_events(site, log, messages.clone(), promotion, metrics, &options).await
            }
        }
    }

    /// The same for those who do not wait for an object store.
    async fn open_within(&self, within: Duration) -> Result<TableWriter, TableError> {
        if !self.ground.site.is_remote() {
            return self.open().await;
        }
        let opened = tokio::time::timeout(within, self.open()).await;
        opened.unwrap_or_else(|_| Err(self.ground.site.late(within).into()))
    }

    /// Returns when a later opening, by whatever process, can tell what came behind the end of the log of now.
    async fn keep_ends(self) -> Result<PendingTable, TableOpenError> {
        let table = self.spec().name;
        let keep = move || {
            let LakeContext {
                site, log, log_ends, ..
            } = &*self.ground;
            let kept = match &self.table {
                TableSource::Fed { spec, feed, .. } => keep_ends(site, spec, feed, log_ends),
                TableSource::Events(messages) => {
                    keep_event_ends(site, &EVENTS, log.as_ref(), messages.as_ref(), log_ends)
                }
            };
            kept.map(|()| self)
        };
        let kept = tokio::task::spawn_blocking(keep).await.map_err(std::io::Error::other);
        kept.and_then(|kept| kept)
            .map_err(|source| TableOpenError::Ends { table, source })
    }

    /// Whether it may succeed later, and there is a log that has what comes until then.
    fn is_worth_waiting(&self, error: &TableError) -> bool {
        let is_final = match error {
            TableError::Claim(error) => is_final(error),
            error => error.is_permanent(),
        };
        self.ground.site.is_remote() && !is_final
    }

    /// Until it succeeds, or there are no tables any more.
    async fn open_later(self, lake: Weak<LakeTables>) {
        let mut pause = OPEN_AGAIN_FIRST;
        loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(OPEN_AGAIN_MAX);
            if lake.upgrade().is_none_or(|lake| lake.ground.read().is_none()) {
                return;
            }
            let opened = self.open().await;
            let Some(lake) = lake.upgrade() else { return };
            match opened {
                Ok(writer) => {
                    tracing::info!(table = self.spec().name, "the lake is there, and its table is open");
                    return lake.keep(writer);
                }
                Err(error) => {
                    lake.set_unopened(self.spec(), &error);
                    if !self.is_worth_waiting(&error) {
                        return;
                    }
                }
            }
        }
    }
}

/// Where a log ends now.
pub(crate) fn ends_of(log: &dyn Log) -> BTreeMap<PartitionId, Offset> {
    let ends = log
        .partitions()
        .into_iter()
        .filter_map(|id| Some((id, log.bounds(id).ok()?.next)));
    ends.collect()
}

impl LakeContext {
    async fn queue(&self, name: &str) -> Result<Arc<Queue>, QueueError> {
        if let Ok(queue) = self.queues.get(name) {
            return Ok(queue);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = QueueSettings {
            partitions: u32::try_from(cores.min(PARTITIONS_MAX)).unwrap_or(1),
            // What tables are fed from has to be in the log.
            durability: (self.durability == Durability::Memory).then_some(Durability::Os),
            ..QueueSettings::of_lake()
        };
        self.queues.create(name, settings).await
    }

    fn handoffs(&self, queue: &Arc<Queue>, room: &Arc<HandoffBudget>) -> Arc<HandoffQueue> {
        // Of a partition whose end nobody knows everything is read from the log.
        let end = |id| self.log.bounds(id).map_or(Offset::MAX, |bounds| bounds.next);
        let ends: Vec<Offset> = queue.data_ids().into_iter().map(end).collect();
        HandoffQueue::new(room.clone(), &ends)
    }

    fn feed(&self, queue: &Arc<Queue>, taken: &Arc<CommittedOffsets>, handoffs: &Arc<HandoffQueue>) -> QueueSource {
        let taken = taken.clone();
        QueueSource {
            handoffs: Some(handoffs.clone()),
            queue: queue.name().to_string(),
            log: self.log.clone(),
            partitions: queue.data_ids(),
            taken: Arc::new(move |partition, offset| taken.up_to(partition, offset)),
        }
    }

    fn options(&self, partitions: usize) -> IngestOptions {
        let options = &self.section.options;
        let of_tags = options.memory_bytes / MEMORY_PARTS * TAGS_PARTS;
        IngestOptions {
            flush_bytes: options.flush_bytes.min(options.memory_bytes / MEMORY_PARTS).max(1),
            flush_interval: options.flush_interval,
            files: options.files.clone(),
            entries: EntryLimits {
                remembered_bytes: of_tags / partitions.max(1),
                ..self.entries
            },
            accept_gap: self.accept_loss,
            log_ends: self.log_ends.clone(),
            ..IngestOptions::default()
        }
    }
}

impl MemtableReader for LakeTables {
    fn tables(&self) -> Vec<&'static TableSpec> {
        self.writers.read().iter().map(|writer| writer.spec()).collect()
    }

    fn rows(&self, table: &str) -> Option<MemtableView> {
        let writers = self.writers();
        Some(writers.iter().find(|writer| writer.spec().name == table)?.live())
    }

    fn wait_for<'a>(
        &'a self,
        position: &'a EntryPosition,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), VisibilityWaitError>> {
        Box::pin(async move {
            let until = Instant::now() + within;
            let mut opening = self.is_opening.subscribe();
            let opened = tokio::time::timeout(within, opening.wait_for(|is_opening| !is_opening));
            if opened.await.is_err() {
                return Err(VisibilityWaitError::Late {
                    position: position.clone(),
                    seconds: within.as_secs_f64(),
                    cause: ": tables are still being opened".to_owned(),
                });
            }
            let writers = self.writers();
            let Some(writer) = writers.iter().find(|writer| writer.queue() == position.queue) else {
                let queues: Vec<&str> = writers.iter().map(|writer| writer.queue()).collect();
                let queues = queues.join(", ");
                return Err(VisibilityWaitError::Unknown(format!(
                    "{position}: no table of this process is fed by such a queue; it may be one of {queues}"
                )));
            };
            let left = until.saturating_duration_since(Instant::now());
            writer.wait_for(position, left).await
        })
    }
}

impl StatusSource for LakeTables {
    fn tables(&self) -> Vec<TableStatus> {
        self.writers().iter().flat_map(|writer| writer.tables()).collect()
    }

    fn not_ready(&self) -> Vec<String> {
        let has_stopped = self.upkeep.lock().as_ref().is_some_and(MaintenanceThread::has_stopped);
        let text = "the thread that merges files and deletes old ones has stopped; start the process again";
        let stopped = has_stopped.then(|| text.to_owned());
        let unopened = self.unopened.lock().values().cloned().collect::<BTreeSet<String>>();
        let writers = self.writers();
        let waiting = writers.iter().flat_map(|writer| writer.not_ready()).chain(stopped);
        unopened.into_iter().chain(waiting).collect()
    }
}
