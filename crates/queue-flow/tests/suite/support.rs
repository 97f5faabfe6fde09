//! A log in a folder with queues, and a flow that uses them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{LoadOptions, SourceText, load};
use thalweg_flow::{ComponentRegistry, Flow, FlowEnvironment, FlowSpec, ParseContext, StopReport};
use thalweg_log::disk::FolderDisk;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::{Queue, Queues, QueuesOptions, SystemClock};
use thalweg_queue_flow::SharedQueues;
use thalweg_telemetry::{BalanceStatus, Metrics};
use tokio::runtime::Handle;

/// Memory for messages in the flow outside its buffer.
const FLOW_BYTES: usize = 16 << 20;
/// A flow stops within this time.
const STOP: Duration = Duration::from_secs(2);

/// The components, and the queues that they share.
pub fn registry() -> (ComponentRegistry, Arc<SharedQueues>) {
    let shared = Arc::new(SharedQueues::default());
    let mut registry = ComponentRegistry::new();
    thalweg_queue_flow::register(&mut registry, &shared);
    (registry, shared)
}

/// The parts of a process that runs one flow.
pub struct World {
    pub flow: Flow,
    queues: Queues,
    log: Arc<EmbeddedLog>,
}

impl World {
    /// Must be called on a tokio runtime.
    pub async fn start(folder: &Path, text: &str) -> World {
        let (registry, shared) = registry();
        let loaded = load(&SourceText::new("f.yaml", text), &|_| None, &LoadOptions::default());
        let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
        let spec = FlowSpec::parse(&loaded.config.flows[0], &mut context);
        assert_eq!(loaded.diagnostics.to_string(), "", "for {text}");
        assert!(shared.is_wanted());
        let mut spec = spec.unwrap();
        spec.limit_waiting(FLOW_BYTES);
        let (log, queues) = open(folder).await;
        shared.open(queues.clone());
        let environment = FlowEnvironment {
            metrics: Arc::new(Metrics::default()),
            data_dir: folder.to_owned(),
            runtime: Handle::current(),
            dead_letters: None,
        };
        let flow = Flow::start(spec, &environment).unwrap();
        World { flow, queues, log }
    }

    /// A queue that the flow creates.
    pub async fn queue(&self, name: &str) -> Arc<Queue> {
        eventually(|| self.queues.get(name).ok()).await
    }

    pub fn balance(&self) -> BalanceStatus {
        let balance = self.flow.handle().status().balance;
        assert!(balance.adds_up, "{balance:?}");
        balance
    }

    pub fn dropped(&self, reason: &str) -> u64 {
        let by = self.balance().dropped_by;
        by.iter().find(|(known, _)| known == reason).map_or(0, |(_, n)| *n)
    }

    /// Stops in the order of a process: the flow, the queues, the log.
    pub async fn stop(self) -> StopReport {
        let report = self.flow.stop(STOP).await;
        self.queues.close().await;
        let log = self.log;
        tokio::task::spawn_blocking(move || log.close()).await.unwrap();
        report
    }
}

async fn open(folder: &Path) -> (Arc<EmbeddedLog>, Queues) {
    let options = LogOptions {
        min_free_bytes: Some(0),
        spare: 1,
        ..LogOptions::default()
    };
    let disk = Arc::new(FolderDisk::open(folder).unwrap());
    let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
    let options = QueuesOptions {
        durability: Durability::Fsync,
        auto_create: false,
        memory_bytes: u64::MAX,
        dedup_bytes: u64::MAX,
        state_bytes: u64::MAX,
    };
    let queues = Queues::open(log.clone(), Arc::new(SystemClock), options).await;
    (log, queues.unwrap())
}

pub async fn eventually<T>(ask: impl Fn() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(answer) = ask() {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not reached within 30 s");
}
