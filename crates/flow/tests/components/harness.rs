//! An input that sends the configured batches, an output that records messages and fails as configured, a processor
//! that misbehaves, and a world in which flows of these and of the real components run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tempfile::TempDir;
use thalweg_config::{ComponentNode, Config, Diagnostics, Fields, LoadOptions, Node, SourceText, load};
use thalweg_flow::{
    Backoff, Batching, BoxFuture, BuildContext, BuildError, ComponentRegistry, DeadLetterOutput, Flow, FlowEnvironment,
    FlowHandle, FlowSpec, Input, InputContext, InputError, InputSpec, OpenError, Output, OutputContext, OutputSpec,
    ParseContext, Processor, ProcessorSpec, Rejection, StageContext, StopReport, WriteError,
};
use thalweg_record::{AckResult, Batch, DropReason, Message, Payload};
use thalweg_telemetry::{Metrics, StatusSource};
use tokio::sync::watch;

/// Longer than any test takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a state is reached.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "never reached: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What the test components of one world recorded.
#[derive(Clone, Default)]
pub struct Seen {
    /// The messages of each output, write by write.
    pub written: Arc<Mutex<BTreeMap<String, Vec<Vec<Message>>>>>,
    pub opened: Arc<Mutex<BTreeMap<String, usize>>>,
    pub settled: Arc<AtomicUsize>,
    pub nacked: Arc<AtomicUsize>,
}

pub struct World {
    pub registry: ComponentRegistry,
    pub seen: Seen,
    pub gate: watch::Sender<bool>,
    pub folder: TempDir,
    pub metrics: Arc<Metrics>,
    pub runtime: tokio::runtime::Runtime,
}

pub struct Running {
    flow: Option<Flow>,
    dead_letter: Option<DeadLetterOutput>,
    pub handle: Arc<FlowHandle>,
    pub dead_letter_status: Option<Arc<dyn StatusSource>>,
}

impl World {
    pub fn new() -> World {
        let (gate, closed) = watch::channel(false);
        let seen = Seen::default();
        let mut registry = ComponentRegistry::new();
        let s = seen.clone();
        registry.input("given", "", move |node, context| Given::parse(node, context, &s));
        let s = seen.clone();
        registry.output("kept", "", move |node, context| Kept::parse(node, context, &s, &closed));
        registry.processor("trip", "", Trip::parse);
        World {
            registry,
            seen,
            gate,
            folder: tempfile::tempdir().unwrap(),
            metrics: Arc::default(),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
        }
    }

    /// Returns the mistakes in a configuration, as an operator reads them. `DIR` is the folder of the world.
    pub fn check(&self, text: &str) -> String {
        self.parse(text).2
    }

    fn parse(&self, text: &str) -> (Config, Option<FlowSpec>, String) {
        let text = text.replace("DIR", &self.folder.path().display().to_string());
        let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
        let mut context = ParseContext::new(&loaded.diagnostics, &self.registry, &loaded.config);
        let flow = loaded.config.flows.first();
        let spec = flow.and_then(|flow| FlowSpec::parse(flow, &mut context));
        for kind in [
            thalweg_config::ComponentKind::Input,
            thalweg_config::ComponentKind::Processor,
            thalweg_config::ComponentKind::Output,
        ] {
            loaded
                .config
                .resources
                .of(kind)
                .iter()
                .for_each(|node| context.check(node));
        }
        let messages = loaded.diagnostics.to_string();
        (loaded.config, spec, messages)
    }

    pub fn start(&self, text: &str) -> Running {
        let (config, spec, messages) = self.parse(text);
        assert_eq!(messages, "", "for {text}");
        let mut environment = FlowEnvironment {
            metrics: self.metrics.clone(),
            data_dir: self.folder.path().to_owned(),
            runtime: self.runtime.handle().clone(),
            dead_letters: None,
        };
        let _guard = self.runtime.enter();
        let dead_letter = config.dead_letter.as_ref().map(|node| {
            let diagnostics = Diagnostics::new("t.yaml");
            let mut context = ParseContext::new(&diagnostics, &self.registry, &config);
            let spec = context.output(node).unwrap();
            DeadLetterOutput::start((&node.name, &node.path, ""), &spec, &environment).unwrap()
        });
        environment.dead_letters = dead_letter.as_ref().map(DeadLetterOutput::letters);
        let flow = Flow::start(spec.unwrap(), &environment).unwrap();
        Running {
            handle: flow.handle(),
            dead_letter_status: dead_letter.as_ref().map(DeadLetterOutput::status),
            flow: Some(flow),
            dead_letter,
        }
    }

    /// Runs a flow until it ends by itself.
    pub fn run(&self, text: &str) -> StopReport {
        let running = self.start(text);
        self.runtime.block_on(async {
            let ended = running.flow.as_ref().unwrap().ended();
            tokio::time::timeout(PATIENCE, ended)
                .await
                .expect("the flow ends by itself");
        });
        self.stop(running, PATIENCE)
    }

    /// Stops a flow and then the dead letter, as the process does.
    pub fn stop(&self, mut running: Running, timeout: Duration) -> StopReport {
        self.runtime.block_on(async {
            let deadline = Instant::now() + timeout;
            running.flow.take().unwrap().stop(timeout).await;
            if let Some(dead_letter) = running.dead_letter.take() {
                let left = deadline.saturating_duration_since(Instant::now());
                dead_letter.stop(left).await;
            }
        });
        running.handle.stop_report()
    }

    /// Returns the messages of an output as text.
    pub fn texts(&self, name: &str) -> Vec<String> {
        self.messages(name).iter().map(text).collect()
    }

    pub fn messages(&self, name: &str) -> Vec<Message> {
        let written = self.seen.written.lock();
        written.get(name).into_iter().flatten().flatten().cloned().collect()
    }

    /// The number of messages in each write of an output.
    pub fn writes(&self, name: &str) -> Vec<usize> {
        let written = self.seen.written.lock();
        written.get(name).into_iter().flatten().map(Vec::len).collect()
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// The sum of a metric over the label sets that contain `label`.
    pub fn metric(&self, name: &str, label: &str) -> f64 {
        let text = self.metrics.text();
        let lines = text.lines().filter(|line| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])) && line.contains(label)
        });
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}

pub fn text(message: &Message) -> String {
    String::from_utf8(message.bytes().into_owned()).unwrap()
}

/// `given: {batches: [[a, {text: b, meta: {k: v}}], [c]], forever: true, settles: true, waits: true}`
#[derive(Clone)]
struct Given {
    batches: Vec<Vec<Message>>,
    /// Keeps running when everything was sent.
    forever: bool,
    /// Ends when everything that it sent is settled, like an input that reports to its server.
    settles: bool,
    /// Declares that it waits for acknowledgements.
    waits: bool,
    seen: Seen,
}

impl Given {
    fn parse(node: &ComponentNode, context: &mut ParseContext<'_>, seen: &Seen) -> Option<Arc<dyn InputSpec>> {
        let mut fields = Fields::new(&node.body, context.diagnostics);
        let batches = fields.list("batches");
        let forever = fields.bool("forever", false);
        let settles = fields.bool("settles", false);
        let waits = fields.bool("waits", false);
        fields.finish();
        let batch = |batch: &Node| batch.as_seq().unwrap().iter().map(given_message).collect();
        Some(Arc::new(Given {
            batches: batches.iter().map(batch).collect(),
            forever,
            settles,
            waits,
            seen: seen.clone(),
        }))
    }
}

fn given_message(node: &Node) -> Message {
    let body = node.get("text").unwrap_or(node);
    let mut message = Message::raw(body.scalar_text().unwrap().to_owned());
    let meta = node.get("meta").and_then(Node::as_map);
    for (key, value) in meta.into_iter().flat_map(|meta| meta.iter()) {
        message.meta.set(key.as_str(), value.scalar_text().unwrap());
    }
    message
}

impl InputSpec for Given {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }

    fn waits_for_answers(&self) -> Option<&'static str> {
        self.waits.then_some("say waits: false")
    }
}

impl Input for Given {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            for batch in self.batches {
                let seen = self.seen.clone();
                let settle = move |outcome| {
                    let nacked = usize::from(outcome == AckResult::Nacked);
                    seen.nacked.fetch_add(nacked, Ordering::SeqCst);
                    seen.settled.fetch_add(1, Ordering::SeqCst);
                };
                if context.sink.send_all(batch, settle).await.is_err() {
                    break;
                }
            }
            if self.forever {
                context.stop.cancelled().await;
            }
            if self.settles {
                context.sink.settled().await;
            }
            Ok(())
        })
    }
}

/// `kept: {name: out}` records its messages, unless another field says otherwise.
struct Kept {
    name: String,
    /// Number of attempts to open that fail.
    open_fails: i64,
    /// It never opens, for this reason.
    never: String,
    /// Number of writes that fail temporarily.
    fails: Mutex<i64>,
    /// Messages with this text are rejected permanently.
    refuses: String,
    /// All writes fail permanently, for this reason.
    ends: String,
    /// Writes wait until the gate of the world is open.
    gated: Option<watch::Receiver<bool>>,
    panics: bool,
    close_hangs: bool,
    slots: usize,
    joins: usize,
    batching: Option<Batching>,
    seen: Seen,
}

struct KeptSpec(Arc<Kept>);

impl Kept {
    fn parse(
        node: &ComponentNode,
        context: &mut ParseContext<'_>,
        seen: &Seen,
        gate: &watch::Receiver<bool>,
    ) -> Option<Arc<dyn OutputSpec>> {
        let mut fields = Fields::new(&node.body, context.diagnostics);
        let size = |number: i64| usize::try_from(number).unwrap();
        let kept = Kept {
            name: fields.string("name", "out"),
            open_fails: fields.int("open_fails", 0),
            never: fields.string("never", ""),
            fails: Mutex::new(fields.int("fails", 0)),
            refuses: fields.string("refuses", ""),
            ends: fields.string("ends", ""),
            gated: fields.bool("gated", false).then(|| gate.clone()),
            panics: fields.bool("panics", false),
            close_hangs: fields.bool("close_hangs", false),
            slots: size(fields.int("slots", 1)),
            joins: size(fields.int("joins", 1)),
            batching: Batching::read(&mut fields, context),
            seen: seen.clone(),
        };
        fields.finish();
        Some(Arc::new(KeptSpec(Arc::new(kept))))
    }
}

impl OutputSpec for KeptSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(self.0.clone())
    }
}

impl Output for Kept {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let mut opened = self.seen.opened.lock();
            let times = opened.entry(self.name.clone()).or_default();
            *times += 1;
            if !self.never.is_empty() {
                return Err(OpenError::Permanent(self.never.clone()));
            }
            if *times as i64 <= self.open_fails {
                return Err(OpenError::Temporary(format!("{} is away", self.name)));
            }
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        assert!(!self.panics, "a fault in the output");
        if !self.ends.is_empty() {
            return Box::pin(std::future::ready(Err(WriteError::Permanent(self.ends.clone()))));
        }
        let mut fails = self.fails.lock();
        if *fails > 0 {
            *fails -= 1;
            let why = format!("{} is busy", self.name);
            return Box::pin(std::future::ready(Err(WriteError::Temporary(why))));
        }
        let (seen, name, gate) = (self.seen.clone(), self.name.clone(), self.gated.clone());
        let refuses = self.refuses.clone();
        Box::pin(async move {
            if let Some(mut gate) = gate {
                gate.wait_for(|open| *open).await.unwrap();
            }
            let mut refused = Vec::new();
            let mut taken = Vec::new();
            for (index, message) in messages.iter().enumerate() {
                if !refuses.is_empty() && text(message) == refuses {
                    refused.push(Rejection::permanent(index, DropReason::OutputRejected, "not this one"));
                } else {
                    taken.push(message.clone());
                }
            }
            seen.written.lock().entry(name).or_default().push(taken);
            if refused.is_empty() {
                Ok(())
            } else {
                Err(WriteError::Some(refused))
            }
        })
    }

    fn max_in_flight(&self) -> usize {
        self.slots
    }

    fn joins(&self) -> usize {
        self.joins
    }

    fn batching(&self) -> Option<Batching> {
        self.batching
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(Duration::from_millis(1), Duration::from_millis(20)).with_jitter(0.5)
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        if self.close_hangs {
            return Box::pin(std::future::pending());
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

/// `trip: fails` fails on every message, `panics` panics, `blocks` blocks the thread for longer than any test, `holds`
/// holds everything until a tick some milliseconds later, `keeps` until a flush. `joins` makes one series of all: each
/// message becomes its number.
struct Trip {
    how: String,
    /// Messages that all instances have numbered.
    numbered: Arc<AtomicUsize>,
    context: StageContext,
    held: Option<Batch>,
    due: Option<Instant>,
}

struct TripSpec {
    how: String,
    numbered: Arc<AtomicUsize>,
}

impl Trip {
    fn parse(node: &ComponentNode, _: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
        Some(Arc::new(TripSpec {
            how: node.body.scalar_text()?.to_owned(),
            numbered: Arc::default(),
        }))
    }
}

impl ProcessorSpec for TripSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(Trip {
            how: self.how.clone(),
            numbered: self.numbered.clone(),
            context,
            held: None,
            due: None,
        }))
    }

    fn joins_series(&self) -> bool {
        self.how == "joins"
    }

    fn holds_back(&self) -> Option<&'static str> {
        (self.how == "holds").then_some("trip")
    }
}

impl Processor for Trip {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        match self.how.as_str() {
            "fails" => {
                let Batch { messages, mut ack } = batch;
                for message in messages {
                    self.context
                        .fail(&mut ack, message, DropReason::ScriptError, "it trips");
                }
                out.push(Batch::new(Vec::new(), ack));
            }
            "blocks" => {
                std::thread::sleep(PATIENCE * 2);
                out.push(batch);
            }
            "holds" | "keeps" => {
                match &mut self.held {
                    Some(held) => held.append(batch),
                    None => self.held = Some(batch),
                }
                self.due = (self.how == "holds").then(|| Instant::now() + Duration::from_millis(5));
            }
            "joins" => {
                let Batch { mut messages, ack } = batch;
                for message in &mut messages {
                    let number = self.numbered.fetch_add(1, Ordering::SeqCst);
                    // Another worker would be faster now.
                    let pause = if number.is_multiple_of(2) { 5 } else { 0 };
                    std::thread::sleep(Duration::from_millis(pause));
                    message.payload = Payload::Raw(number.to_string().into());
                }
                out.push(Batch::new(messages, ack));
            }
            _ => panic!("a fault in the processor"),
        }
    }

    fn next_tick(&self) -> Option<Instant> {
        self.due
    }

    fn tick(&mut self, _: Instant, out: &mut Vec<Batch>) {
        self.flush(out);
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        self.due = None;
        out.extend(self.held.take());
    }
}
