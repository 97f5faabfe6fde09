//! A listener with the routes of queues over a log in a folder, and a client that asks it.

// Each test binary uses a part of it.
#![allow(dead_code)]

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use serde_json::{Value, json};
use tempfile::TempDir;
use thalweg_log::disk::Folder;
use thalweg_log::{Durability, EmbeddedLog, LogOptions};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Queues, QueuesOptions, SystemClock};
use tokio::runtime::Runtime;

pub struct Server {
    pub url: String,
    pub queues: Queues,
    pub runtime: Runtime,
    log: Arc<EmbeddedLog>,
    _folder: TempDir,
}

/// An answer with its body read.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
    pub json: Value,
}

impl Server {
    pub fn start() -> Server {
        Server::with(false)
    }

    pub fn with(auto_create: bool) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let options = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            min_free_bytes: Some(0),
            spare: 1,
            ..LogOptions::default()
        };
        let disk = Arc::new(Folder::open(folder.path()).unwrap());
        let log = Arc::new(EmbeddedLog::open(disk, 7, &options).unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        let options = QueuesOptions {
            durability: Durability::Fsync,
            auto_create,
        };
        let queues = runtime
            .block_on(Queues::open(log.clone(), Arc::new(SystemClock), options))
            .unwrap();
        let mounts = thalweg_telemetry::HttpRoutes::mounts(&thalweg_queue_api::routes(queues.clone()));
        let router = mounts
            .into_iter()
            .fold(Router::new(), |all, mount| all.merge(mount.router));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await });
        Server {
            url,
            queues,
            runtime,
            log,
            _folder: folder,
        }
    }

    /// A queue of one partition, without the call that is under test elsewhere.
    pub fn create(&self, name: &str) {
        let settings = QueueSettings {
            partitions: 1,
            ..QueueSettings::default()
        };
        self.create_with(name, settings);
    }

    pub fn create_with(&self, name: &str, settings: QueueSettings) {
        self.runtime.block_on(self.queues.create(name, settings)).unwrap();
    }

    pub fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        self.send_bytes(method, path, headers, body.as_bytes())
    }

    pub fn send_bytes(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut response = self.open(method, path, headers, body);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut text = String::new();
        response.body_mut().as_reader().read_to_string(&mut text).unwrap();
        let json = serde_json::from_str(&text).unwrap_or_default();
        Answer {
            status,
            headers,
            text,
            json,
        }
    }

    /// The answer with a body that still comes.
    pub fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> ureq::http::Response<ureq::Body> {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .proxy(None)
            .timeout_global(Some(Duration::from_secs(40)));
        let agent: ureq::Agent = config.build().into();
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/api/v1{path}", self.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.to_vec()).unwrap();
        agent.run(request).unwrap()
    }

    /// All messages that a group gets now.
    pub fn claim_all(&self, queue: &str, group: &str) -> Vec<Value> {
        let claimed = self.post(&format!("/queues/{queue}/groups/{group}/claim"), json!({"max": 10_000}));
        assert!([200, 204].contains(&claimed.status), "{claimed:?}");
        claimed.json["messages"].as_array().cloned().unwrap_or_default()
    }

    pub fn produce(&self, queue: &str, text: &str) -> Value {
        let produced = self.send("POST", &format!("/queues/{queue}/messages"), &[], text);
        assert_eq!(produced.status, 201, "{produced:?}");
        produced.json
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

impl Answer {
    /// An error in the one form that all have.
    pub fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, self.json["code"].as_str()),
            (status, Some(code)),
            "{self:?}"
        );
        assert_eq!(self.headers["content-type"], "application/problem+json");
        assert_eq!(self.json["status"], status);
        assert_eq!(self.json["type"], format!("urn:thalweg:error:{code}"));
        assert!(!self.detail().is_empty() && self.json["title"].is_string());
        let retry = self.headers.contains_key("retry-after");
        assert_eq!(retry, [429, 503, 507].contains(&status), "{self:?}");
    }

    pub fn detail(&self) -> &str {
        self.json["detail"].as_str().unwrap_or_default()
    }
}

pub fn json_lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}
