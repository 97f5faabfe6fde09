//! A listener with the routes of queues over a log in a folder, and a client.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Queues, QueuesOptions, SystemClock};
use thalweg_tests::Api;
use tokio::runtime::Runtime;

pub struct Server {
    api: Api,
    pub queues: Queues,
    pub runtime: Runtime,
    log: Arc<EmbeddedLog>,
    folder: Option<TempDir>,
}

impl Server {
    pub fn start() -> Server {
        Server::with(false)
    }

    pub fn with(auto_create: bool) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(FolderDisk::open(folder.path()).unwrap());
        let mut server = Server::on(disk, auto_create);
        server.folder = Some(folder);
        server
    }

    /// With the existing content of the disk.
    pub fn on(disk: Arc<dyn Disk>, auto_create: bool) -> Server {
        Server::on_log(disk, auto_create, small_files())
    }

    pub fn on_log(disk: Arc<dyn Disk>, auto_create: bool, options: LogOptions) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        Server::within(runtime.unwrap(), disk, auto_create, options)
    }

    /// All requests on one thread.
    pub fn on_one_thread(disk: Arc<dyn Disk>) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Server::within(runtime.unwrap(), disk, false, small_files())
    }

    fn within(runtime: Runtime, disk: Arc<dyn Disk>, auto_create: bool, options: LogOptions) -> Server {
        let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
        let options = QueuesOptions {
            durability: Durability::Fsync,
            auto_create,
            memory_bytes: u64::MAX,
            dedup_bytes: u64::MAX,
            state_bytes: u64::MAX,
        };
        let queues = runtime
            .block_on(Queues::open(log.clone(), Arc::new(SystemClock), options))
            .unwrap();
        let mounts = thalweg_telemetry::HttpRoutes::mounts(&thalweg_queue_api::routes(queues.clone()));
        let router = mounts
            .into_iter()
            .fold(Router::new(), |all, mount| all.merge(mount.router));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let api = Api::new(&listener.local_addr().unwrap().to_string());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Server {
            api,
            queues,
            runtime,
            log,
            folder: None,
        }
    }

    /// Creates a queue of one partition directly, because the API call is tested elsewhere.
    pub fn create(&self, name: &str) {
        let settings = QueueSettings {
            partitions: 1,
            ..QueueSettings::default()
        };
        self.create_with(name, settings);
    }

    /// The same with these messages.
    pub fn create_of(&self, name: &str, texts: &[&str]) {
        self.create(name);
        for text in texts {
            self.produce(name, text);
        }
    }

    pub fn create_with(&self, name: &str, settings: QueueSettings) {
        self.runtime.block_on(self.queues.create(name, settings)).unwrap();
    }

    /// All messages that a group gets now.
    pub fn claim_all(&self, queue: &str, group: &str) -> Vec<Value> {
        let claimed = self.post(
            &format!("/queues/{queue}/groups/{group}/claim"),
            &json!({"max": 10_000}),
        );
        assert!([200, 204].contains(&claimed.status), "{claimed:?}");
        claimed.json["messages"].as_array().cloned().unwrap_or_default()
    }

    pub fn claim_receipts(&self, queue: &str, group: &str) -> Vec<Value> {
        let messages = self.claim_all(queue, group);
        messages.iter().map(|message| message["receipt"].clone()).collect()
    }

    /// The oldest offset of partition 0; a queue in memory does not begin at 0.
    pub fn first(&self, queue: &str) -> u64 {
        let stats = self.get(&format!("/queues/{queue}/stats")).json;
        stats["partitions"][0]["first"].as_u64().unwrap()
    }

    pub fn produce(&self, queue: &str, text: &str) -> Value {
        let produced = self.send("POST", &format!("/queues/{queue}/messages"), &[], text);
        assert_eq!(produced.status, 201, "{produced:?}");
        produced.json
    }
}

fn small_files() -> LogOptions {
    LogOptions {
        file_bytes: 4 << 20,
        first_file_bytes: 1 << 20,
        min_free_bytes: Some(0),
        spare: 1,
        ..LogOptions::default()
    }
}

/// Dereferences to its client.
impl Deref for Server {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.runtime.block_on(self.queues.close());
        self.log.close();
        // A request that hangs fails its test and no other.
        let idle = tokio::runtime::Builder::new_current_thread().build().unwrap();
        std::mem::replace(&mut self.runtime, idle).shutdown_timeout(Duration::from_secs(5));
    }
}

pub fn json_lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}
