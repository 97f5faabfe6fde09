//! Starts a simulator and a flow that collects from it, keeps what arrives, and waits for the conditions of a test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opcua::types::DataValue;
use parking_lot::Mutex;
use tempfile::TempDir;
use thalweg_config::SourceText;
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, ComponentRegistry, Flow, FlowEnvironment, FlowHandle, FlowSpec, Output,
    OutputSpec, ParseContext, WriteError,
};
use thalweg_opcua::InputDirectory;
use thalweg_record::{BalanceCounts, Message};
use thalweg_simulator::Simulator;
pub use thalweg_simulator::SimulatorOptions;
use thalweg_telemetry::{HttpRoutes as _, Metrics};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;

/// Longer than any step takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of a simulator that starts immediately because it generates no keys.
pub fn open() -> SimulatorOptions {
    SimulatorOptions {
        port: 0,
        slow_nodes: 0,
        fast_nodes: 10,
        fast_rate: 0.1,
        secure: false,
        ..secured()
    }
}

/// With every kind of security; generating the certificate takes a second.
pub fn secured() -> SimulatorOptions {
    SimulatorOptions {
        port: 0,
        slow_nodes: 0,
        fast_nodes: 10,
        fast_rate: 0.1,
        auto_accept: true,
        ..SimulatorOptions::default()
    }
}

/// A simulator with its own folder.
pub struct Plant {
    simulator: Simulator,
    pub options: SimulatorOptions,
    pub folder: Arc<TempDir>,
}

impl Plant {
    pub async fn start(options: SimulatorOptions) -> Plant {
        Plant::start_in(options, Arc::new(tempfile::tempdir().unwrap())).await
    }

    async fn start_in(mut options: SimulatorOptions, folder: Arc<TempDir>) -> Plant {
        options.pki_dir = folder.path().join("pki");
        let simulator = thalweg_simulator::start(options.clone()).await.unwrap();
        Plant {
            simulator,
            options,
            folder,
        }
    }

    pub fn endpoint(&self) -> String {
        self.simulator.endpoint().to_owned()
    }

    pub fn port(&self) -> u16 {
        self.endpoint()
            .trim_end_matches('/')
            .rsplit(':')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Makes the server deny a node or serve it again.
    pub fn hide(&self, node: &str, hide: bool) {
        assert!(self.simulator.hide(node, hide), "there is a node {node}");
    }

    /// Gives a writable node a value or a status, or both.
    pub fn set(&self, node: &str, value: DataValue) {
        assert!(self.simulator.set(node, value), "{node} is writable");
    }

    /// Returns the number of monitored items of all live subscriptions of the server.
    pub async fn monitored_items(&self) -> u64 {
        self.simulator.stats().await.unwrap().monitored_items
    }

    /// Returns how often each fast node has changed.
    pub async fn fast_changes(&self) -> u64 {
        self.simulator.stats().await.unwrap().groups.fast.counter
    }

    pub fn cut(&self) {
        assert!(self.simulator.cut_connections() > 0, "there was a connection to cut");
    }

    /// Restarts the plant on the same port without its state, with its options modified by `change`.
    pub async fn restart(self, change: impl FnOnce(&mut SimulatorOptions)) -> Plant {
        let (port, folder, mut options) = (self.port(), self.folder.clone(), self.options.clone());
        self.simulator.shutdown().await;
        options.port = port;
        change(&mut options);
        Plant::start_in(options, folder).await
    }

    pub async fn stop(self) {
        self.simulator.shutdown().await;
    }
}

/// An output that keeps every message, and accepts none while its gate is closed.
struct Keep {
    messages: Arc<Mutex<Vec<Message>>>,
    gate: watch::Receiver<bool>,
}

impl Output for Keep {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (kept, mut gate) = (self.messages.clone(), self.gate.clone());
        Box::pin(async move {
            let _closed = gate.wait_for(|open| *open).await;
            kept.lock().extend(messages.iter().cloned());
            Ok(())
        })
    }
}

/// The last part: whether it stores a status without a value.
struct KeepSpec(Arc<Mutex<Vec<Message>>>, watch::Receiver<bool>, bool);

impl OutputSpec for KeepSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(Keep {
            messages: self.0.clone(),
            gate: self.1.clone(),
        }))
    }

    fn stores_bad_values(&self) -> bool {
        self.2
    }
}

/// A running flow from an `opcua` input to an output that keeps everything.
pub struct Collector {
    flow: Flow,
    handle: Arc<FlowHandle>,
    messages: Arc<Mutex<Vec<Message>>>,
    pub gate: watch::Sender<bool>,
    pub metrics: Arc<Metrics>,
    pub directory: Arc<InputDirectory>,
    _data: Arc<TempDir>,
}

/// Starts a collector; `fields` are further fields as flow-style YAML members, such as `subscribeEnabled: true`.
pub async fn collect(endpoint: &str, fields: &str) -> Collector {
    collect_in(endpoint, fields, Arc::new(tempfile::tempdir().unwrap())).await
}

pub async fn collect_in(endpoint: &str, fields: &str, data: Arc<TempDir>) -> Collector {
    collect_with(endpoint, fields, data, Duration::from_secs(60)).await
}

/// Starts a collector that retries failed nodes soon.
pub async fn collect_retrying(endpoint: &str, fields: &str) -> Collector {
    let data = Arc::new(tempfile::tempdir().unwrap());
    collect_with(endpoint, fields, data, Duration::from_millis(200)).await
}

async fn collect_with(endpoint: &str, fields: &str, data: Arc<TempDir>, first_retry: Duration) -> Collector {
    collect_into("keep: {}", endpoint, fields, data, first_retry)
}

/// Starts a collector whose output is `output`: `keep`, or `table`, which is like the table `tags`.
pub fn collect_for(output: &str, endpoint: &str, fields: &str) -> Collector {
    let data = Arc::new(tempfile::tempdir().unwrap());
    collect_into(output, endpoint, fields, data, Duration::from_secs(60))
}

fn collect_into(output: &str, endpoint: &str, fields: &str, data: Arc<TempDir>, first_retry: Duration) -> Collector {
    let nodes = if fields.contains("nodeIDs") {
        ""
    } else {
        "nodeIDs: [\"ns=3;s=OpcPlc\"], "
    };
    let yaml = format!(
        "data_dir: {}\ninput: {{opcua: {{endpoint: \"{endpoint}\", {nodes}reconnectIntervalInSeconds: 1, {fields}}}}}\noutput: {{{output}}}\n",
        data.path().display()
    );
    let source = SourceText {
        name: "flow.yaml".to_owned(),
        text: yaml,
    };
    let loaded = thalweg_config::load(&source, &thalweg_config::process_environment, &Default::default());
    let directory = InputDirectory::new();
    let messages = Arc::new(Mutex::new(Vec::new()));
    let (gate, gate_open) = watch::channel(true);
    let mut registry = ComponentRegistry::new();
    thalweg_opcua::register_retrying_after(&mut registry, directory.clone(), first_retry);
    for (name, stores_bad_values) in [("keep", false), ("table", true)] {
        let (kept, gate_open) = (messages.clone(), gate_open.clone());
        registry.output(name, "", move |_, _| {
            Some(Arc::new(KeepSpec(kept.clone(), gate_open.clone(), stores_bad_values)))
        });
    }
    let mut context = ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
    let spec = loaded
        .config
        .flows
        .first()
        .and_then(|flow| FlowSpec::parse(flow, &mut context));
    let spec = spec.unwrap_or_else(|| panic!("{}\n{}", source.text, loaded.diagnostics));
    let metrics = Arc::new(Metrics::default());
    let environment = FlowEnvironment {
        metrics: metrics.clone(),
        data_dir: data.path().to_owned(),
        runtime: tokio::runtime::Handle::current(),
        dead_letters: None,
    };
    let flow = Flow::start(spec, &environment).unwrap();
    let handle = flow.handle();
    Collector {
        flow,
        handle,
        messages,
        gate,
        metrics,
        directory,
        _data: data,
    }
}

impl Collector {
    /// Waits until a condition holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Collector) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(
                start.elapsed() < PATIENCE,
                "never came: {what}\n{:?}\n{}",
                self.not_ready(),
                self.metrics.text()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub async fn until_served(&self, tags: usize) {
        self.until("all tags served", |c| {
            c.metric("items_monitored") + c.metric("items_polled") == tags as f64 && c.not_ready().is_none()
        })
        .await;
    }

    /// Returns a metric, given without its prefix, summed over its labels.
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics.total(&format!("thalweg_opcua_{name}"))
    }

    /// Returns a metric with one label.
    pub fn labelled(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics.text();
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("thalweg_opcua_{name}{{")) && line.contains(label));
        line.and_then(|line| line.rsplit(' ').next())
            .map_or(0.0, |value| value.parse().unwrap())
    }

    /// Returns the reason that `/ready` reports.
    pub fn not_ready(&self) -> Option<String> {
        self.handle
            .status()
            .nodes
            .first()
            .and_then(|node| node.not_ready.clone())
    }

    pub fn detail(&self, name: &str) -> String {
        let status = self.handle.status();
        let details = status
            .nodes
            .first()
            .map(|node| node.details.clone())
            .unwrap_or_default();
        let found = details.into_iter().find(|detail| detail.name == name);
        found
            .map(|detail| detail.value.to_string().trim_matches('"').to_owned())
            .unwrap_or_default()
    }

    pub fn messages(&self) -> Vec<Message> {
        self.messages.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.messages.lock().len()
    }

    pub fn forget(&self) {
        self.messages.lock().clear();
    }

    /// Returns the values of one tag in order of arrival.
    pub fn values_of(&self, node: &str) -> Vec<String> {
        self.of(node).iter().map(payload).collect()
    }

    pub fn of(&self, node: &str) -> Vec<Message> {
        let messages = self.messages.lock();
        messages
            .iter()
            .filter(|message| meta(message, "opcua_attr_nodeid") == node)
            .cloned()
            .collect()
    }

    /// Returns the latest message of each tag, by name.
    pub fn latest(&self) -> BTreeMap<String, Message> {
        self.messages
            .lock()
            .iter()
            .map(|message| (meta(message, "opcua_tag_name"), message.clone()))
            .collect()
    }

    pub fn counts(&self) -> BalanceCounts {
        self.handle.counts()
    }

    /// Returns the response to an HTTP client.
    pub async fn get(&self, path: &str) -> serde_json::Value {
        let router = self.directory.mounts().remove(0).router;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        server.abort();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// Stops gracefully and checks the message balance.
    pub async fn stop(self) -> BalanceCounts {
        let _open = self.gate.send(true);
        let handle = self.flow.handle();
        self.flow.stop(Duration::from_secs(20)).await;
        let counts = handle.counts();
        assert!(
            counts.adds_up() && counts.in_flight == 0 && counts.dropped_total() == 0,
            "{counts}"
        );
        counts
    }
}

pub fn payload(message: &Message) -> String {
    String::from_utf8_lossy(&message.bytes()).into_owned()
}

/// Returns a metadata value; empty if the message does not have the key.
pub fn meta(message: &Message, key: &str) -> String {
    message
        .meta
        .get(key)
        .map(|value| value.into_owned())
        .unwrap_or_default()
}

/// Returns whether the numbers increase by one each, as every change of the simulator does.
pub fn is_unbroken(values: &[String]) -> bool {
    let numbers: Vec<u32> = values.iter().map(|value| value.parse().unwrap()).collect();
    numbers.windows(2).all(|pair| pair[1] == pair[0].wrapping_add(1))
}
