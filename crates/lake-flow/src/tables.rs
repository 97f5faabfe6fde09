//! The tables of the process. A queue of the log feeds each table. Queries see it together with its uncommitted rows,
//! and the maintenance thread keeps it in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::join_all;
use parking_lot::{Mutex, RwLock};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::{TAGS, TableSpec};
use thalweg_events::EmbeddedStore;
use thalweg_kit::{blocking, clock};
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
/// The consumer group whose positions let the log be trimmed.
const GROUP: &str = "lake";
/// A start waits no longer than this for an object store.
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
    /// Whether a component needs tables.
    wanted: AtomicBool,
    context: RwLock<Option<Arc<LakeContext>>>,
    tags: OnceCell<TableQueue>,
    /// In the order of [`Signal::ALL`].
    received: [OnceCell<TableQueue>; 3],
    writers: RwLock<Vec<Arc<TableWriter>>>,
    /// Tables that could not be opened yet, and why.
    unopened: Mutex<BTreeMap<&'static str, String>>,
    maintenance: Mutex<Option<MaintenanceThread>>,
    /// Memory for requests that receivers hand over.
    room: OnceLock<Arc<HandoffBudget>>,
    /// Queries may arrive before the tables of receivers are open.
    is_opening: watch::Sender<bool>,
}

/// The queue of a table, and the handoffs of its entries.
pub(crate) type TableQueue = (Arc<Queue>, Arc<HandoffQueue>);

impl LakeTables {
    pub(crate) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Registers the metrics of tables; opens nothing.
    pub fn register(self: &Arc<LakeTables>, options: &LakeOptions, metrics: &Metrics) -> LakeMetrics {
        let metrics = LakeMetrics::register(metrics);
        let lake = Arc::downgrade(self);
        let used = move || lake.upgrade().map_or(0, |lake| lake.used_bytes());
        metrics.watch_share("lake.memory", options.memory_bytes as u64, used);
        metrics
    }

    /// Lets tables be opened. Entries that the log still has become rows, whoever feeds the queues now. Must be called
    /// on a tokio runtime.
    pub async fn start(self: &Arc<LakeTables>, context: LakeContext) -> Result<()> {
        // A store that does not answer in time may do so later.
        if let Ok(Err(error)) = tokio::time::timeout(OPEN_WITHIN, context.site.claim()).await
            && is_final(&error)
        {
            return Err(error.into());
        }
        let maintenance = MaintenanceThread::start(context.options.maintenance.clone(), context.metrics.clone());
        *self.maintenance.lock() = Some(maintenance.context("the maintenance thread cannot be started")?);
        let has = |name: &str| context.queues.get(name).is_ok();
        let has_tags = has(TAGS_QUEUE);
        let signals = Signal::ALL.into_iter().filter(|signal| has(queue_of(*signal)));
        let signals: Vec<Signal> = signals.collect();
        *self.context.write() = Some(Arc::new(context));
        // The feeding component retries, and gives up if that is useless.
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

    /// Opens the table `tags`, which outputs feed, and returns its queue.
    pub(crate) async fn tags(self: &Arc<LakeTables>) -> Result<TableQueue, TableOpenError> {
        let promotion = |context: &LakeContext| context.options.tags_promotion.clone();
        let open = || self.open(&TAGS, TAGS_QUEUE, thalweg_lake::tags::entry_decoder(), promotion);
        self.tags.get_or_try_init(open).await.cloned()
    }

    /// Opens a table that receivers and outputs feed, and returns its queue.
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

    /// Limits for messages to these tables.
    pub(crate) fn records(&self) -> Option<SignalBatchLimits> {
        Some(self.context.read().as_ref()?.records)
    }

    /// Whether callers that need a table should wait until it is open.
    pub fn set_opening(&self, is_opening: bool) {
        self.is_opening.send_replace(is_opening);
    }

    /// Opens a table, and creates its queue if needed. If an object store does not answer, the table is opened later;
    /// its entries wait in the queue.
    async fn open(
        self: &Arc<LakeTables>,
        spec: &'static TableSpec,
        name: &'static str,
        decoder: DecoderFactory,
        promotion: impl FnOnce(&LakeContext) -> AttributePromotion,
    ) -> Result<TableQueue, TableOpenError> {
        let context = self.context.read().clone().ok_or(TableOpenError::NoGround)?;
        let room = self.room.get_or_init(|| HandoffBudget::new(context.memory_part()));
        let promotion = Box::new(promotion(&context));
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

    /// Opens the table `events`, which the partitions of the event store feed.
    pub async fn open_events(self: &Arc<LakeTables>, store: Arc<EmbeddedStore>) -> Result<(), TableOpenError> {
        let context = self.context.read().clone().ok_or(TableOpenError::NoGround)?;
        let table = TableSource::Events(Arc::new(LakeEventStore(store)));
        self.open_table(PendingTable { context, table }).await
    }

    /// Opens a table now, or in the background if waiting may help.
    async fn open_table(self: &Arc<LakeTables>, opening: PendingTable) -> Result<(), TableOpenError> {
        match opening.open_within(OPEN_WITHIN).await {
            Ok(writer) => self.keep(writer),
            Err(error) if opening.is_worth_waiting(&error) => {
                // Saved before new entries arrive that the table could take for ones it has.
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
        if let Some(maintenance) = &*self.maintenance.lock() {
            maintenance.keep(writer);
        }
    }

    pub(crate) fn set_unopened(&self, spec: &TableSpec, error: &TableError) {
        let text = error.to_string();
        let before = self.unopened.lock().insert(spec.name, text.clone());
        if before.as_ref() != Some(&text) {
            tracing::error!(
                table = spec.name,
                "{text}; received data stays in the log until it can be opened"
            );
        }
    }

    /// Also true before the start.
    pub(crate) fn is_stopped(&self) -> bool {
        self.context.read().is_none()
    }

    /// Counts messages that will not become rows, by reason.
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

    /// The tables that this process maintains.
    pub fn kept(&self) -> Vec<String> {
        self.maintenance
            .lock()
            .as_ref()
            .map(MaintenanceThread::tables)
            .unwrap_or_default()
    }

    /// Requests maintenance; `None` if the maintenance thread does not run.
    pub fn ask(&self, asked: MaintenanceRequest) -> Option<UnboundedReceiver<MaintenanceReport>> {
        self.maintenance.lock().as_ref().map(|thread| thread.ask(asked))
    }

    /// The state of each table: its rows, the commit lag, and its progress in the log.
    pub fn states(&self) -> Vec<(TableStatus, Duration, Vec<PartitionProgress>)> {
        let state = |writer: &Arc<TableWriter>| {
            let status = writer.tables().into_iter().next()?;
            Some((status, writer.lag(), writer.progress()))
        };
        self.writers().iter().filter_map(state).collect()
    }

    /// Bytes of uncommitted rows, of tag dictionaries, and of requests that wait to become rows.
    fn used_bytes(&self) -> u64 {
        let of = |writer: &Arc<TableWriter>| writer.buffer_bytes() + writer.remembered_bytes();
        let rows: u64 = self.writers.read().iter().map(of).sum();
        rows + self.room.get().map_or(0, |room| room.used() as u64)
    }

    /// Commits what the log has, as far as time allows; the next start does the rest.
    pub async fn stop(&self, within: Duration) {
        let maintenance = self.maintenance.lock().take();
        if let Some(maintenance) = maintenance {
            // It stops after the row group that it is writing, and nothing is lost.
            let _cut_off = tokio::time::timeout(within, blocking::spawn(|| maintenance.stop())).await;
        }
        let writers = self.writers();
        join_all(writers.iter().map(|writer| writer.close(within))).await;
        let context = self.context.write().take();
        if let Some(context) = context {
            // Without a release, the next process waits until the lease expires.
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
            let until = clock::now() + within;
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
            let left = until.saturating_duration_since(clock::now());
            writer.wait_for(position, left).await
        })
    }
}

impl StatusSource for LakeTables {
    fn tables(&self) -> Vec<TableStatus> {
        self.writers().iter().flat_map(|writer| writer.tables()).collect()
    }

    fn not_ready(&self) -> Vec<String> {
        let has_stopped = self
            .maintenance
            .lock()
            .as_ref()
            .is_some_and(MaintenanceThread::has_stopped);
        let text = "the maintenance thread has stopped; restart the process";
        let stopped = has_stopped.then(|| text.to_owned());
        let unopened = self.unopened.lock().values().cloned().collect::<BTreeSet<String>>();
        let writers = self.writers();
        let waiting = writers.iter().flat_map(|writer| writer.not_ready()).chain(stopped);
        unopened.into_iter().chain(waiting).collect()
    }
}
