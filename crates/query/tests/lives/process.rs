//! A process with the log and the lake, and queries to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::CompactionOptions;
use thalweg_columns::tables::{LOGS, TableSpec};
use thalweg_delta::store::cut_disk::CutDisk;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_lake::LakeMetrics;
use thalweg_lake::entry::{BoxFuture, EntryPosition};
use thalweg_lake::ingest::{Event, EventPartition, EventStore, IngestOptions, QueueSource, TableWriter};
use thalweg_lake::maintenance::{
    MaintenanceOptions, MaintenanceReport, MaintenanceRequest, MaintenanceTask, MaintenanceThread,
};
use thalweg_lake::memtable_view::{MemtableReader, MemtableView, VisibilityWaitError};
use thalweg_log::{EmbeddedLog, Log, LogOptions, PartitionId};
use thalweg_query::{Engine, QueryMetrics, QueryOptions, print};
use thalweg_telemetry::Metrics;

use crate::ledger::KEPT_DAYS;

pub const LOG_PARTITIONS: [PartitionId; 2] = [PartitionId::new(7, 0), PartitionId::new(7, 1)];
/// How long files stay after they have left their table.
pub const VACUUM_RETAIN: Duration = Duration::from_hours(1);
/// A wait of this length counts as endless.
pub const FOR_EVER: Duration = Duration::from_secs(60);

/// The namespaces of an event store, which outlive a process.
#[derive(Debug, Default)]
pub struct Namespaces {
    all: Mutex<Vec<EventPartition>>,
    last: AtomicU32,
    let_go: Mutex<Vec<PartitionId>>,
}

impl Namespaces {
    pub fn add(&self) -> EventPartition {
        let number = self.last.fetch_add(1, Ordering::SeqCst) + 1;
        EventPartition {
            number,
            id: PartitionId::new(PartitionId::EVENTS + number, 0),
            namespace: format!("n{number}"),
            is_deleted: false,
        }
    }

    pub fn is_made(&self, namespace: EventPartition) {
        self.all.lock().push(namespace);
    }

    pub fn delete(&self, number: u32) {
        let mut all = self.all.lock();
        let named = all.iter_mut().find(|namespace| namespace.number == number);
        named.unwrap().is_deleted = true;
    }

    pub fn there(&self) -> Vec<EventPartition> {
        let all = self.all.lock();
        all.iter().filter(|namespace| !namespace.is_deleted).cloned().collect()
    }

    pub fn has_deleted(&self) -> bool {
        self.all.lock().iter().any(|namespace| namespace.is_deleted)
    }

    /// Partitions that are not needed any more.
    pub fn take_let_go(&self) -> Vec<PartitionId> {
        std::mem::take(&mut *self.let_go.lock())
    }
}

impl EventStore for Namespaces {
    fn partitions(&self) -> Vec<EventPartition> {
        self.all.lock().clone()
    }

    fn let_go(&self, number: u32) {
        let mut all = self.all.lock();
        let gone = all.extract_if(.., |namespace| namespace.number == number);
        self.let_go.lock().extend(gone.map(|namespace| namespace.id));
    }

    fn event<'a>(&self, value: &'a [u8]) -> Result<Option<Event<'a>>, String> {
        let id = std::str::from_utf8(value).map_err(|error| error.to_string())?;
        Ok(Some(Event {
            id: id.into(),
            category: "order",
            stream: "order-1",
            kind: "Taken",
            position: 0,
            global: 1,
            data: "{}",
            metadata: None,
        }))
    }
}

/// The tables that a process writes.
struct Written(Vec<Arc<TableWriter>>);

impl MemtableReader for Written {
    fn tables(&self) -> Vec<&'static TableSpec> {
        self.0.iter().map(|writer| writer.spec()).collect()
    }

    fn rows(&self, table: &str) -> Option<MemtableView> {
        let writer = self.0.iter().find(|writer| writer.spec().name == table);
        Some(writer?.live())
    }

    fn wait_for<'a>(
        &'a self,
        position: &'a EntryPosition,
        within: Duration,
    ) -> BoxFuture<'a, Result<(), VisibilityWaitError>> {
        Box::pin(async move {
            let writer = self.0.iter().find(|writer| writer.queue() == position.queue);
            writer.unwrap().wait_for(position, within).await
        })
    }
}

pub struct Process {
    pub log: Arc<EmbeddedLog>,
    pub disk: CutDisk,
    pub store: SyncedStore,
    pub site: LakeStorage,
    pub engine: Engine,
    writers: Vec<Arc<TableWriter>>,
    maintenance: MaintenanceThread,
}

impl Process {
    /// Starts the process, which must succeed without manual work.
    pub async fn start(
        log_disk: Arc<dyn thalweg_log::disk::Disk>,
        options: LogOptions,
        disk: CutDisk,
        folder: &std::path::Path,
        namespaces: Arc<Namespaces>,
    ) -> Process {
        let log = Arc::new(EmbeddedLog::open(log_disk, 0xab, &options).unwrap());
        options.clock.resume(log.as_ref()).await.unwrap();
        for id in LOG_PARTITIONS {
            if log.bounds(id).is_err() {
                log.create(id, thalweg_log::Durability::Fsync).await.unwrap();
            }
        }
        let store = SyncedStore::with_disk(Arc::new(disk.clone()));
        let site = LakeStorage::folder(&thalweg_lake::folder(folder), store.clone()).with_clock(options.clock.clone());
        let metrics = LakeMetrics::register(&Metrics::default());
        let ingest = IngestOptions {
            flush_interval: Duration::from_millis(15),
            checkpoint_interval: 5,
            ..IngestOptions::default()
        };
        let trimmed = Arc::downgrade(&log);
        let feed = QueueSource {
            queue: "lake.logs".to_owned(),
            log: log.clone(),
            partitions: LOG_PARTITIONS.to_vec(),
            // Entries are trimmed as soon as the table has them.
            taken: Arc::new(move |partition, offset| {
                let log = trimmed.upgrade();
                let trimmed = log.map(|log| log.trim(LOG_PARTITIONS[partition as usize], offset));
                drop(trimmed);
            }),
            handoffs: None,
        };
        let decoder = thalweg_otlp::entry_decoder(thalweg_lake::Signal::Logs);
        let logs = TableWriter::open(
            &site,
            &LOGS,
            feed,
            &decoder,
            AttributePromotion::default(),
            metrics.clone(),
            &ingest,
        );
        let logs = logs.await.unwrap();
        let promotion = AttributePromotion::default();
        let dyn_log = log.clone() as Arc<dyn Log>;
        let events = TableWriter::open_events(&site, dyn_log, namespaces, promotion, metrics.clone(), &ingest);
        let writers = vec![Arc::new(logs), Arc::new(events.await.unwrap())];
        let maintenance = MaintenanceThread::start(maintenance_options(), metrics).unwrap();
        writers.iter().for_each(|writer| maintenance.keep(writer.clone()));
        let limits = QueryOptions {
            memory_bytes: 64 << 20,
            cache_bytes: 1 << 20,
            ..QueryOptions::default()
        };
        let engine = Engine::open_at(site.clone(), folder, limits, QueryMetrics::unregistered()).unwrap();
        engine.set_live(Arc::new(Written(writers.clone())));
        Process {
            log,
            disk,
            store,
            site,
            engine,
            writers,
            maintenance,
        }
    }

    /// The names of the rows that a query returns.
    pub async fn ask(&self, sql: &str) -> Result<Vec<String>, String> {
        let answer = self.engine.execute(sql).await.map_err(|error| error.to_string())?;
        let mut text = Vec::new();
        let printed = print::csv(answer, &mut text).await;
        printed.map_err(|error| error.to_string())?;
        let text = String::from_utf8(text).unwrap();
        Ok(text.lines().skip(1).map(str::to_owned).collect())
    }

    /// Runs a maintenance task at once. Returns its errors.
    pub async fn by_hand(&self, task: MaintenanceTask, table: Option<&str>) -> Vec<String> {
        let mut told = self.maintenance.ask(MaintenanceRequest {
            task,
            table: table.map(str::to_owned),
            date: None,
            dry_run: false,
        });
        let mut errors = Vec::new();
        let all = async {
            while let Some(MaintenanceReport { error, .. }) = told.recv().await {
                errors.extend(error);
            }
        };
        // A dead process gives no answer.
        let done = tokio::time::timeout(FOR_EVER, all).await;
        assert!(done.is_ok() || self.disk.is_dead(), "{task:?} comes to no end");
        errors
    }

    pub fn commit_now(&self) {
        self.writers.iter().for_each(|writer| writer.hurry());
    }

    /// Why the tables accept no more rows.
    pub fn trouble(&self) -> Vec<String> {
        use thalweg_telemetry::StatusSource as _;
        self.writers.iter().flat_map(|writer| writer.not_ready()).collect()
    }

    /// Ends the process, cleanly or by a kill. Returns when nothing of it is left.
    pub async fn end(self, is_clean: bool) {
        let Process {
            log,
            engine,
            writers,
            maintenance,
            ..
        } = self;
        drop(engine);
        if is_clean {
            tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
            for writer in &writers {
                writer.close(FOR_EVER).await;
            }
        } else {
            drop(maintenance);
        }
        drop(writers);
        let closing = log.clone();
        tokio::task::spawn_blocking(move || closing.close()).await.unwrap();
        let is_gone = async {
            while Arc::strong_count(&log) > 1 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let is_gone = tokio::time::timeout(FOR_EVER, is_gone).await;
        is_gone.expect("nobody keeps the log of a process that has ended");
    }
}

fn maintenance_options() -> MaintenanceOptions {
    MaintenanceOptions {
        compaction: CompactionOptions {
            target: 32 << 10,
            inputs: 4,
            ..CompactionOptions::default()
        },
        bytes_per_second: 0,
        retention: vec![("logs", KEPT_DAYS), ("events", KEPT_DAYS)],
        vacuum_retain: VACUUM_RETAIN,
        look_every: Duration::from_millis(20),
        ..MaintenanceOptions::default()
    }
}
