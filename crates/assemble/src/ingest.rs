//! The section `ingest`: receivers of OpenTelemetry data, the queues of the log that they append to, and the tables that these
//! feed.

mod section;
mod sink;
mod taken;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::join_all;
use parking_lot::Mutex;
use thalweg_config::{AuthConfig, ListenerConfig};
use thalweg_console::{Console, Door, Limits, Running};
use thalweg_lake::ingest::{EntryLimits, Feed, FileRules, IngestOptions, TableWriter};
use thalweg_lake::live::{LiveRows, LiveTables};
use thalweg_lake::otlp::Signal;
use thalweg_lake::store::SyncedStore;
use thalweg_lake::tables::TableSpec;
use thalweg_lake::upkeep::Upkeep;
use thalweg_lake::{LakeMetrics, tables};
use thalweg_log::Durability;
use thalweg_otlp::Receiver;
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Queue, Queues};
use thalweg_telemetry::{Metrics, StatusSource, TableStatus};
use tokio::sync::OnceCell;

use crate::open_files;
pub(crate) use section::{INFLIGHT_MIN, Section, section};
use sink::{Logins, QueueSink};

use taken::Taken;

/// Of each signal: its queue, and the table that this feeds.
const SIGNALS: [(Signal, &str, &TableSpec); 3] = [
    (Signal::Logs, "lake.logs", &tables::LOGS),
    (Signal::Metrics, "lake.metrics", &tables::METRICS),
    (Signal::Traces, "lake.traces", &tables::TRACES),
];
/// The group of the queues whose positions let the log forget.
const GROUP: &str = "lake";
/// More partitions than that have no use on a machine of any size: each is a thread.
const PARTITIONS_MAX: usize = 4;

/// What receives, and what writes tables.
#[derive(Default)]
pub(crate) struct Ingest {
    running: OnceCell<Open>,
}

struct Open {
    writers: Vec<Arc<TableWriter>>,
    /// Of the tables, until the process ends.
    upkeep: Mutex<Option<Upkeep>>,
    listeners: Mutex<Vec<Running>>,
}

/// What the receivers stand on.
pub(crate) struct Ground<'a> {
    pub queues: Queues,
    pub log: Arc<dyn thalweg_log::Log>,
    /// The usual one of the log.
    pub durability: Durability,
    pub lake: std::path::PathBuf,
    pub lake_metrics: LakeMetrics,
    pub auth: &'a AuthConfig,
    pub metrics: &'a Metrics,
}

impl Ingest {
    /// Makes the queues, opens the tables and begins to receive. Must be called on a tokio runtime.
    pub async fn start(
        self: &Arc<Ingest>,
        section: &Section,
        lake: &crate::lake::Section,
        ground: Ground<'_>,
    ) -> Result<()> {
        let doors = open_doors(section, ground.auth).await?;
        let ingest = Arc::downgrade(self);
        let used = move || ingest.upgrade().map_or(0, |ingest| ingest.buffer_bytes());
        ground
            .lake_metrics
            .watch_share("lake.otlp", lake.options.memory_bytes as u64, used);
        let mut queues = Vec::new();
        let mut writers = Vec::new();
        for ((_, name, spec), promotion) in SIGNALS.into_iter().zip(&lake.promotions) {
            let queue = open_queue(&ground, name).await?;
            let feed = feed(&ground, &queue)?;
            let options = options(section, lake);
            let writer = TableWriter::open(
                &ground.lake,
                spec,
                SyncedStore::new(),
                feed,
                promotion.clone(),
                ground.lake_metrics.clone(),
                &options,
            );
            writers.push(Arc::new(writer.await?));
            queues.push(queue);
        }
        let queues = <[Arc<Queue>; 3]>::try_from(queues)
            .ok()
            .context("a queue of the lake is missing")?;
        let listeners = receive(section, doors, QueueSink(queues), ground.metrics)?;
        let upkeep = Upkeep::start(writers.clone(), lake.upkeep.clone(), ground.lake_metrics);
        let upkeep = upkeep.context("the thread that keeps tables in order cannot be started")?;
        let _ = self.running.set(Open {
            writers,
            upkeep: Mutex::new(Some(upkeep)),
            listeners: Mutex::new(listeners),
        });
        Ok(())
    }

    /// Receives nothing more, and commits what was taken from the log; the next start takes the rest.
    pub async fn stop(&self, within: Duration) {
        let Some(open) = self.running.get() else { return };
        let listeners = std::mem::take(&mut *open.listeners.lock());
        let stopped = join_all(listeners.into_iter().map(Running::stop));
        let _cut_off = tokio::time::timeout(within, stopped).await;
        let upkeep = open.upkeep.lock().take();
        if let Some(upkeep) = upkeep {
            // It ends with the row group that it writes; nothing is lost with it.
            let _cut_off = tokio::time::timeout(within, tokio::task::spawn_blocking(|| upkeep.stop())).await;
        }
        join_all(open.writers.iter().map(|writer| writer.close(within))).await;
    }

    /// Bytes of rows that are not committed.
    pub fn buffer_bytes(&self) -> u64 {
        let writers = self.running.get().map_or(&[][..], |open| &open.writers);
        writers.iter().map(|writer| writer.buffer_bytes()).sum()
    }
}

impl LiveTables for Ingest {
    fn tables(&self) -> Vec<&'static TableSpec> {
        let writers = self.running.get().map_or(&[][..], |open| &open.writers);
        writers.iter().map(|writer| writer.spec()).collect()
    }

    fn rows(&self, table: &str) -> Option<LiveRows> {
        let mut writers = self.running.get()?.writers.iter();
        Some(writers.find(|writer| writer.spec().name == table)?.live())
    }
}

impl StatusSource for Ingest {
    fn tables(&self) -> Vec<TableStatus> {
        let writers = self.running.get().map_or(&[][..], |open| &open.writers);
        writers.iter().flat_map(|writer| writer.tables()).collect()
    }

    fn not_ready(&self) -> Vec<String> {
        let writers = self.running.get().map_or(&[][..], |open| &open.writers);
        writers.iter().flat_map(|writer| writer.not_ready()).collect()
    }
}

/// Addresses are taken before anything is opened, so that a taken port is found first.
async fn open_doors(section: &Section, auth: &AuthConfig) -> Result<[Option<Door>; 2]> {
    let open = |config: &ListenerConfig| {
        let config = config.clone();
        async move {
            match config.enabled {
                true => Door::open(&config, auth).await.map(Some),
                false => Ok(None),
            }
        }
    };
    Ok([open(&section.grpc).await?, open(&section.http).await?])
}

async fn open_queue(ground: &Ground<'_>, name: &str) -> Result<Arc<Queue>> {
    if let Ok(queue) = ground.queues.get(name) {
        return Ok(queue);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let settings = QueueSettings {
        partitions: u32::try_from(cores.min(PARTITIONS_MAX)).unwrap_or(1),
        // What tables are fed from has to be in the log.
        durability: (ground.durability == Durability::Memory).then_some(Durability::Os),
        ..QueueSettings::of_lake()
    };
    let made = ground.queues.create(name, settings).await;
    made.with_context(|| format!("the queue {name} cannot be made"))
}

fn feed(ground: &Ground<'_>, queue: &Arc<Queue>) -> Result<Feed> {
    let partitions = queue.data_ids();
    let taken = Taken::new(partitions.len());
    let group = queue.group(GROUP)?;
    tokio::spawn(taken.clone().commit(queue.clone(), group));
    Ok(Feed {
        queue: queue.name().to_string(),
        log: ground.log.clone(),
        partitions,
        taken: Arc::new(move |partition, offset| taken.up_to(partition, offset)),
    })
}

fn options(section: &Section, lake: &crate::lake::Section) -> IngestOptions {
    let options = &lake.options;
    IngestOptions {
        flush_bytes: options.flush_bytes.min(options.memory_bytes / MEMORY_PARTS).max(1),
        flush_interval: lake.log_flush_interval,
        checkpoint_interval: options.checkpoint_interval,
        files: FileRules {
            zstd_level: options.files.zstd_level,
            row_group_bytes: options.files.row_group_bytes,
        },
        entries: EntryLimits {
            window: section.window,
            decoded_bytes_max: section.receiver.decoded_bytes_max,
        },
        ..IngestOptions::default()
    }
}

/// Each of three tables has rows that grow, rows that are committed, and files that are made of them; the table of tags has as
/// much.
const MEMORY_PARTS: usize = 12;

fn receive(section: &Section, doors: [Option<Door>; 2], sink: QueueSink, metrics: &Metrics) -> Result<Vec<Running>> {
    let Some(admission) = doors.iter().flatten().map(|door| door.admission.clone()).next() else {
        return Ok(Vec::new());
    };
    let (sink, logins) = (Arc::new(sink), Arc::new(Logins(admission)));
    let receiver = Receiver::new(sink, logins, section.receiver.clone(), metrics.registry())?;
    let routers = [
        thalweg_otlp::grpc_router(&receiver),
        thalweg_otlp::http_router(&receiver),
    ];
    let mut served = Vec::new();
    for ((door, router), protocol) in doors.into_iter().zip(routers).zip(["grpc", "http"]) {
        let Some(door) = door else { continue };
        tracing::info!(protocol, address = %door.address, tls = door.tls.is_some(), "OpenTelemetry data is received");
        served.push((door, router));
    }
    Ok(Console::serve_doors("thalweg_otlp", served, limits(section), metrics))
}

/// Bodies have the limits of the receiver.
fn limits(section: &Section) -> Limits {
    let share = open_files::for_connections(Limits::default().connections_max);
    Limits {
        connections_max: share.connections_max,
        descriptors_max: Some(share.descriptors_max),
        request_stall_max: Some(section.receiver.body_timeout),
        ..Limits::default()
    }
}
