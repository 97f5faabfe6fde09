//! One process with the whole path: a source, a queue and the event store after it, the lake after the queue, and a slow
//! consumer. It is assembled from the product's own parts, on simulated disks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use thalweg_config::{LoadOptions, LoadedConfig, SourceText, load};
use thalweg_delta::store::cut_disk::CutDisk;
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_events::{
    CategoryRead, DEFAULT, Direction, EmbeddedStore, EventsOptions, Namespace, NewNamespace, Scopes, Store as _,
    TokenDigest,
};
use thalweg_events_flow::SharedStore;
use thalweg_flow::{ComponentRegistry, Flow, FlowEnvironment, FlowSpec, ParseContext};
use thalweg_kit::clock;
use thalweg_lake_flow::{LakeContext, LakeOptions, LakeTables, SignalBatchLimits, ends_of};
use thalweg_log::clock::LogClock;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::{Durability, EmbeddedLog, Log, LogError, LogOptions};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{DeadLetterFilter, Queues, QueuesOptions};
use thalweg_queue_flow::SharedQueues;
use thalweg_telemetry::Metrics;

use crate::ends::{self, Ends};
use crate::ledger::DeadReadings;
use crate::machine::MachineClocks;

const MIB: u64 = 1 << 20;
const READINGS: &str = "readings";
const QUEUE: &str = r#"{queue: {name: readings, key: '${! json("key") }'}}"#;
const EVENTS: &str = r#"{events: {stream: 'reading-${! json("key") }', type: Read}}"#;

/// The flows. A message is in the queue and in the event store before its source hears so. PATTERN and OUTPUTS
/// follow from [`FanOutOrder`].
const FLOWS: &str = r#"
data_dir: /nowhere
flows:
  - name: collect
    input: {plant: {}}
    pipeline:
      processors:
        - mapping: 'root = this'
    output:
      broker:
        pattern: PATTERN
        outputs: [OUTPUTS]
  - name: archive
    input: {queue: {name: readings, group: archive}}
    pipeline:
      processors:
        - mapping: 'root = {"body": this.id.string(), "service_name": this.key}'
    output: {lake: {table: logs}}
  - name: slow
    input: {queue: {name: readings, group: slow, claim_batch: 20}}
    output: {consumer: {}}
"#;

/// The order in which the queue and the event store get a message. No later write of the other one covers what the last
/// one acknowledges too early.
#[derive(Clone, Copy)]
pub enum FanOutOrder {
    AtOnce,
    QueueLast,
    EventsLast,
}

impl FanOutOrder {
    fn flows(self) -> String {
        let (pattern, outputs) = match self {
            FanOutOrder::AtOnce => ("fan_out", [QUEUE, EVENTS]),
            FanOutOrder::QueueLast => ("fan_out_sequential", [EVENTS, QUEUE]),
            FanOutOrder::EventsLast => ("fan_out_sequential", [QUEUE, EVENTS]),
        };
        FLOWS
            .replace("PATTERN", pattern)
            .replace("OUTPUTS", &outputs.join(", "))
    }
}

/// The disks of one machine, which lose power at the same time.
#[derive(Clone)]
pub struct Disks {
    pub log: SimDisk,
    pub indexes: SimDisk,
    pub lake: CutDisk,
    pub folder: std::path::PathBuf,
}

pub struct Process {
    pub log: Arc<EmbeddedLog>,
    pub clock: Arc<LogClock>,
    pub namespace: Arc<dyn Namespace>,
    queues: Queues,
    tables: Arc<LakeTables>,
    flows: Vec<Flow>,
    _store: Arc<EmbeddedStore>,
}

impl Process {
    /// Starts everything on what the disks have. That must succeed without the help of a person.
    pub async fn start(disks: &Disks, ends: &Ends) -> Process {
        let clock = Arc::new(LogClock::new(Arc::new(MachineClocks)));
        let options = LogOptions {
            folder: "simulated".to_owned(),
            file_bytes: MIB / 4,
            first_file_bytes: MIB / 8,
            files_max: 4,
            min_free_bytes: Some(0),
            scrub: Duration::from_secs(40),
            clock: clock.clone(),
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(disks.log.clone()), 1, &options).unwrap());
        let dyn_log = log.clone() as Arc<dyn Log>;
        clock.resume(dyn_log.as_ref()).await.unwrap();
        let log_ends = ends_of(dyn_log.as_ref());
        let metrics = Arc::new(Metrics::new(false));

        let options = QueuesOptions {
            durability: Durability::Fsync,
            auto_create: false,
            memory_bytes: MIB,
            dedup_bytes: MIB,
            state_bytes: MIB,
        };
        let queues = Queues::open(dyn_log.clone(), clock.clone(), options).await.unwrap();
        if queues.get(READINGS).is_err() {
            let settings = QueueSettings {
                partitions: 3,
                visibility_timeout: Duration::from_secs(10),
                ..QueueSettings::default()
            };
            queues.create(READINGS, settings).await.unwrap();
        }
        let shared_queues = Arc::new(SharedQueues::default());
        shared_queues.open(queues.clone());

        let options = EventsOptions {
            durability: Durability::Fsync,
            in_memory: false,
            indexes: Some(Arc::new(disks.indexes.clone())),
            index_memory: 1 << 20,
            keep_deleted: false,
            accept_loss: false,
        };
        let store = Arc::new(EmbeddedStore::open(dyn_log.clone(), options).await.unwrap());
        if store.namespace(DEFAULT).await.is_err() {
            let new = NewNamespace {
                name: DEFAULT.to_owned(),
                description: String::new(),
                metadata: None,
                digest: TokenDigest::from_bytes([7; 32]),
                scopes: Scopes::ALL,
            };
            store.create(new).await.unwrap();
        }
        let shared_store = Arc::new(SharedStore::default());
        shared_store.open(store.clone(), MIB as usize);

        let tables = Arc::new(LakeTables::default());
        let mut options = LakeOptions {
            flush_interval: Duration::from_millis(400),
            memory_bytes: 64 << 20,
            ..LakeOptions::default()
        };
        options.maintenance.look_every = Duration::from_secs(1);
        options.maintenance.bytes_per_second = 0;
        let context = LakeContext {
            queues: queues.clone(),
            durability: Durability::Fsync,
            accept_loss: false,
            log_ends,
            site: LakeStorage::folder(
                &thalweg_lake::folder(&disks.folder),
                SyncedStore::with_disk(Arc::new(disks.lake.clone())),
            )
            .with_clock(clock.clone()),
            log: dyn_log,
            metrics: tables.register(&options, &metrics),
            entries: Default::default(),
            records: SignalBatchLimits {
                walk: Default::default(),
                window: Default::default(),
                decoded_bytes_max: MIB as usize,
            },
            options,
        };
        tables.start(context).await.unwrap();

        let mut registry = ComponentRegistry::new();
        ends::register(&mut registry, ends);
        thalweg_queue_flow::register(&mut registry, &shared_queues);
        thalweg_events_flow::register(&mut registry, &shared_store);
        thalweg_lake_flow::register(&mut registry, &tables, &shared_queues);
        let environment = FlowEnvironment {
            metrics,
            data_dir: disks.folder.clone(),
            runtime: tokio::runtime::Handle::current(),
            dead_letters: None,
        };
        let flows = flows(&registry, ends.order).into_iter();
        let flows = flows.map(|spec| Flow::start(spec, &environment).unwrap()).collect();
        Process {
            namespace: store.namespace(DEFAULT).await.unwrap(),
            log,
            clock,
            queues,
            tables,
            flows,
            _store: store,
        }
    }

    /// Why the log accepts nothing more.
    pub fn is_poisoned(&self) -> bool {
        matches!(self.log.status(), thalweg_log::LogStatus::Poisoned(_))
    }

    /// Takes note of a wall clock that was set, as the process does every second.
    pub async fn notice_clock(&self) -> Result<(), LogError> {
        self.clock.look(self.log.as_ref()).await.map(drop)
    }

    /// Ends the process as the product does, with this much time. When it returns, nothing of it is left.
    pub async fn stop(self, within: Duration) {
        let deadline = clock::now() + within;
        let left = || deadline.saturating_duration_since(clock::now());
        join_all(self.flows.into_iter().map(|flow| flow.stop(left()))).await;
        self.tables.stop(left()).await;
        let _ = tokio::time::timeout(left(), self.queues.close()).await;
        self.log.close();
    }

    /// The readings in the event store, with the number of times that each is there.
    pub async fn events(&self) -> BTreeMap<u64, u64> {
        let (mut found, mut from) = (BTreeMap::new(), None);
        loop {
            let read = CategoryRead {
                category: Some("reading"),
                from,
                direction: Direction::Forward,
                max: 500,
                types: &[],
                correlation: None,
                member: None,
            };
            let page = self.namespace.read_category(read).await.unwrap();
            for stored in &page.events {
                let value: serde_json::Value = serde_json::from_str(stored.event().data).unwrap();
                *found.entry(value["id"].as_u64().unwrap()).or_default() += 1;
            }
            match page.next {
                Some(next) => from = Some(next),
                None => return found,
            }
        }
    }

    /// The readings that the queue has given up. Those of a group that failed too often, or for longer than the queue
    /// tries, are no loss: a person finds them among the dead letters.
    pub async fn dead_readings(&self) -> DeadReadings {
        let queue = self.queues.get(READINGS).unwrap();
        let filter = DeadLetterFilter::default();
        let (mut dead, mut after) = (DeadReadings::default(), None);
        loop {
            let page = queue.dead_page(&filter, after, 500).await.unwrap();
            for letter in &page.letters {
                let properties = letter.properties.as_ref();
                let property = |name: &str| properties.get(name).unwrap_or_default();
                let reason = property("x-dlq-reason");
                assert!(matches!(reason, "max_retries" | "timeout"), "given up: {reason}");
                let value: serde_json::Value = serde_json::from_slice(&letter.payload).unwrap();
                let id = value["id"].as_u64().unwrap();
                match property("x-dlq-group") {
                    "archive" => dead.archive.insert(id),
                    "slow" => dead.slow.insert(id),
                    other => panic!("a dead letter of group {other:?}"),
                };
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return dead,
            }
        }
    }

    /// Messages of the queue that the archive has not confirmed.
    pub fn unarchived(&self) -> u64 {
        let queue = self.queues.get(READINGS).unwrap();
        let stats = queue.stats();
        let archive = stats.groups.iter().find(|group| group.name == "archive");
        archive.map_or(0, |group| group.backlog)
    }
}

fn flows(registry: &ComponentRegistry, order: FanOutOrder) -> Vec<FlowSpec> {
    let source = SourceText::new("simulated.yaml", order.flows());
    let LoadedConfig { config, diagnostics } = load(&source, &|_| None, &LoadOptions::default());
    let mut context = ParseContext::new(&diagnostics, registry, &config);
    let flows = config
        .flows
        .iter()
        .filter_map(|flow| FlowSpec::parse(flow, &mut context));
    let flows = flows.collect();
    assert_eq!(diagnostics.to_string(), "");
    flows
}
