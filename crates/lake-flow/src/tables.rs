//! The tables of the process: each is fed from a queue of the log, seen by queries together with what it has not committed yet,
//! and kept in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::{TAGS, TableSpec};
use thalweg_events::EmbeddedStore;
use thalweg_lake::entry::{BoxFuture, EntryPosition};
use thalweg_lake::ingest::{DecoderFactory, HandoffBudget, HandoffQueue, PartitionProgress, TableWriter};
use thalweg_lake::maintenance::{MaintenanceReport, MaintenanceRequest, MaintenanceThread};
use thalweg_lake::memtable_view::{MemtableReader, MemtableView, VisibilityWaitError};
use thalweg_lake::{LakeMetrics, OpenError as TableError, Signal};
use thalweg_queue::Queue;
use thalweg_telemetry::{Metrics, StatusSource, TableStatus};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OnceCell, watch};

use crate::committed_offsets::CommittedOffsets;
use crate::context::LakeContext;
use crate::event_store::LakeEventStore;
use crate::options::LakeOptions;
use crate::pending::{PendingTable, TableOpenError, TableSource, is_final};
use crate::signal_batch::SignalBatchLimits;
use crate::sink::QueueSink;

/// The queue that feeds the table `tags`.
const TAGS_QUEUE: &str = "lake.tags";
/// The group of the queues whose positions let the log forget.
const GROUP: &str = "lake";
/// A start does not wait longer for an object store.
const OPEN_WITHIN: Duration = Duration::from_secs(5);
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// The queue that feeds the table of a signal.
fn queue_of(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs => "lake.logs",
        Signal::Metrics => "lake.metrics",
        Signal::Traces => "lake.traces",
    }
}

/// The tables of the process.
#[derive(Default)]
pub struct LakeTables {
    /// A component asks for tables.
    wanted: AtomicBool,
    context: RwLock<Option<Arc<LakeContext>>>,
    tags: OnceCell<TableQueue>,
    /// Of [`Signal::ALL`].
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

impl LakeTables {
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Has the metrics of tables told; opens nothing.
    pub fn register(self: &Arc<LakeTables>, options: &LakeOptions, metrics: &Metrics) -> Result<LakeMetrics> {
        let metrics = LakeMetrics::register(metrics.registry())?;
        let lake = Arc::downgrade(self);
        let used = move || lake.upgrade().map_or(0, |lake| lake.used_bytes());
        metrics.watch_share("lake.memory", options.memory_bytes as u64, used);
        Ok(metrics)
    }

    /// From now on tables can be opened. What the log has for them from earlier times becomes rows, whoever feeds them now. Must
    /// be called on a tokio runtime.
    pub async fn start(self: &Arc<LakeTables>, context: LakeContext) -> Result<()> {
        // A store that does not answer in time may do so later.
        if let Ok(Err(error)) = tokio::time::timeout(OPEN_WITHIN, context.site.claim()).await
            && is_final(&error)
        {
            return Err(error.into());
        }
        let upkeep = MaintenanceThread::start(context.options.upkeep.clone(), context.metrics.clone());
        *self.upkeep.lock() = Some(upkeep.context("the thread that keeps tables in order cannot be started")?);
        let has = |name: &str| context.queues.get(name).is_ok();
        let has_tags = has(TAGS_QUEUE);
        let signals = Signal::ALL.into_iter().filter(|signal| has(queue_of(*signal)));
        let signals: Vec<Signal> = signals.collect();
        *self.context.write() = Some(Arc::new(context));
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
    pub(crate) async fn tags(self: &Arc<LakeTables>) -> Result<TableQueue, TableOpenError> {
        let promotion = |context: &LakeContext| context.options.tags_promotion.clone();
        let open = || self.open(&TAGS, TAGS_QUEUE, thalweg_lake::tags::entry_decoder(), promotion);
        self.tags.get_or_try_init(open).await.cloned()
    }

    /// A table that receivers feed, and outputs: its queue, which is open.
    pub(crate) async fn received(self: &Arc<LakeTables>, signal: Signal) -> Result<TableQueue, TableOpenError> {
        let at = signal as usize;
        let promotion = |context: &LakeContext| context.options.promotions[at].clone();
        let (spec, name) = (signal.table(), queue_of(signal));
        let open = || self.open(spec, name, thalweg_otlp::entry_decoder(signal), promotion);
        self.received[at].get_or_try_init(open).await.cloned()
    }

    /// Opens all tables that receivers feed.
    pub async fn sink(self: &Arc<LakeTables>) -> Result<QueueSink, TableOpenError> {
        Ok(QueueSink {
            logs: self.received(Signal::Logs).await?,
            metrics: self.received(Signal::Metrics).await?,
            traces: self.received(Signal::Traces).await?,
        })
    }

    /// What messages for such a table may be.
    pub(crate) fn records(&self) -> Option<SignalBatchLimits> {
        Some(self.context.read().as_ref()?.records)
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
        decoder: DecoderFactory,
        promotion: impl FnOnce(&LakeContext) -> AttributePromotion,
    ) -> Result<TableQueue, TableOpenError> {
        let context = self.context.read().clone().ok_or(TableOpenError::NoGround)?;
        let room = self.room.get_or_init(|| HandoffBudget::new(context.memory_part()));
        let promotion = promotion(&context);
        let unmade = |source| TableOpenError::Queue { name, source };
        let queue = context.queue(name).await.map_err(unmade)?;
        let group = queue.group(GROUP).map_err(unmade)?;
        let taken = CommittedOffsets::new(queue.data_ids().len());
        let handoffs = context.handoffs(&queue, room);
        let table = TableSource::Fed {
            spec,
            feed: context.feed(&queue, &taken, &handoffs),
            decoder,
            promotion,
        };
        self.open_table(PendingTable { context, table }).await?;
        tokio::spawn(taken.commit(queue.clone(), group));
        Ok((queue, handoffs))
    }

    /// Opens the table `events`, which the partitions of the store feed.
    pub async fn open_events(self: &Arc<LakeTables>, store: Arc<EmbeddedStore>) -> Result<(), TableOpenError> {
        let context = self.context.read().clone().ok_or(TableOpenError::NoGround)?;
        let table = TableSource::Events(Arc::new(LakeEventStore(store)));
        self.open_table(PendingTable { context, table }).await
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

    pub(crate) fn keep(&self, writer: TableWriter) {
        let writer = Arc::new(writer);
        self.unopened.lock().remove(writer.spec().name);
        self.writers.write().push(writer.clone());
        if let Some(upkeep) = &*self.upkeep.lock() {
            upkeep.keep(writer);
        }
    }

    pub(crate) fn set_unopened(&self, spec: &TableSpec, error: &TableError) {
        let text = error.to_string();
        let before = self.unopened.lock().insert(spec.name, text.clone());
        if before.as_ref() != Some(&text) {
            tracing::error!(
                table = spec.name,
                "{text}; what is received stays in the log until it can be"
            );
        }
    }

    /// Not started yet counts, too.
    pub(crate) fn is_stopped(&self) -> bool {
        self.context.read().is_none()
    }

    /// These will be no rows: of each reason so many.
    pub(crate) fn count_refused<'r>(&self, table: &str, refused: impl IntoIterator<Item = (&'r str, u64)>) {
        let Some(context) = self.context.read().clone() else {
            return;
        };
        for (reason, count) in refused {
            let rows = &context.metrics.refused_rows;
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
        let context = self.context.write().take();
        if let Some(context) = context {
            // Not told, whoever comes next waits until the lease has expired.
            let _cut_off = tokio::time::timeout(RELEASE_WITHIN, context.site.release()).await;
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
