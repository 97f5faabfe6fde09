//! Flows with the components of this crate, an output that records messages, and a processor that loses batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_config::{Fields, LoadOptions, SourceText, load};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, ComponentRegistry, Flow, FlowEnvironment, FlowHandle, FlowSpec,
    Output, OutputSpec, ParseContext, Processor, ProcessorSpec, StageContext, StopReport, WriteError,
};
use thalweg_record::{Batch, Message};
use thalweg_telemetry::{Metrics, StatusSource as _};

/// Longer than anything takes; reaching it fails the test.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a state is reached.
pub fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !reached() {
        assert!(start.elapsed() < PATIENCE, "never reached: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct World {
    registry: ComponentRegistry,
    pub kept: Kept,
    /// Number of batches to give up.
    pub losses: Arc<AtomicUsize>,
    pub metrics: Arc<Metrics>,
    runtime: tokio::runtime::Runtime,
    pub folder: tempfile::TempDir,
}

pub struct Running {
    flow: Flow,
    pub handle: Arc<FlowHandle>,
}

impl World {
    pub fn new() -> World {
        let mut registry = ComponentRegistry::new();
        thalweg_mqtt_flow::register(&mut registry);
        let (kept, losses) = (Kept::default(), Arc::new(AtomicUsize::new(0)));
        let of_output = kept.clone();
        registry.output("kept", "", move |node, context| {
            Fields::new(&node.body, context.diagnostics).finish();
            Some(Arc::new(of_output.clone()))
        });
        let of_processor = losses.clone();
        registry.processor("lose", "", move |_, _| Some(Arc::new(Lose(of_processor.clone()))));
        World {
            registry,
            kept,
            losses,
            metrics: Arc::default(),
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn parse(&self, text: &str) -> (Option<FlowSpec>, String) {
        let text = text.replace("DIR", &self.folder.path().display().to_string());
        let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
        let mut context = ParseContext::new(&loaded.diagnostics, &self.registry, &loaded.config);
        let flow = loaded.config.flows.first();
        let spec = flow.and_then(|flow| FlowSpec::parse(flow, &mut context));
        (spec, loaded.diagnostics.to_string())
    }

    pub fn start(&self, text: &str) -> Running {
        let (spec, mistakes) = self.parse(text);
        assert_eq!(mistakes, "", "for {text}");
        let environment = FlowEnvironment {
            metrics: self.metrics.clone(),
            data_dir: self.folder.path().to_owned(),
            runtime: self.runtime.handle().clone(),
            dead_letters: None,
        };
        let _guard = self.runtime.enter();
        let flow = Flow::start(spec.unwrap(), &environment).unwrap();
        let handle = flow.handle();
        Running { flow, handle }
    }

    /// Stops a flow. The test fails unless the balance adds up, with nothing in flight.
    pub fn stop(&self, running: Running) -> StopReport {
        self.runtime.block_on(running.flow.stop(PATIENCE));
        let report = running.handle.stop_report();
        assert!(
            report.counts.adds_up() && report.counts.in_flight == 0,
            "{}",
            report.counts
        );
        report
    }

    /// Sends each message to an output; `rest` is the remainder of the configuration.
    pub fn send(&self, messages: &[String], rest: &str) -> StopReport {
        let running = self.start_sending(messages, rest);
        let handle = running.handle.clone();
        let total = messages.len() as u64;
        until("all is out", || {
            let counts = handle.counts();
            counts.out + counts.dropped_total() == total
        });
        self.stop(running)
    }

    pub fn start_sending(&self, messages: &[String], rest: &str) -> Running {
        std::fs::write(self.folder.path().join("in"), messages.join("\n") + "\n").unwrap();
        self.start(&format!("input: {{file: {{paths: [DIR/in]}}}}\n{rest}\n"))
    }

    pub fn wait_for(&self, count: usize) {
        until("all messages are there", || self.kept.0.messages.lock().len() >= count);
    }
}

impl Running {
    /// Why data cannot flow; empty if it can.
    pub fn trouble(&self) -> String {
        self.handle.not_ready().join("\n")
    }
}

/// `kept: {}` records its messages.
#[derive(Clone, Default)]
pub struct Kept(pub Arc<Inner>);

#[derive(Default)]
pub struct Inner {
    pub messages: Mutex<Vec<Message>>,
    /// While set, writes fail temporarily.
    pub is_shut: std::sync::atomic::AtomicBool,
    /// Messages that it collects for a write; 0: it does not.
    pub collects: AtomicUsize,
}

impl Kept {
    pub fn texts(&self) -> Vec<String> {
        let messages = self.0.messages.lock();
        let text = |message: &Message| String::from_utf8(message.bytes().into_owned()).unwrap();
        messages.iter().map(text).collect()
    }

    pub fn shut(&self, is_shut: bool) {
        self.0.is_shut.store(is_shut, Ordering::SeqCst);
    }
}

impl OutputSpec for Kept {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(self.clone()))
    }
}

impl Output for Kept {
    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let written = match self.0.is_shut.load(Ordering::SeqCst) {
            true => Err(WriteError::Temporary("it is shut".to_owned())),
            false => {
                self.0.messages.lock().extend(messages.iter().cloned());
                Ok(())
            }
        };
        Box::pin(std::future::ready(written))
    }

    fn batching(&self) -> Option<Batching> {
        let count = self.0.collects.load(Ordering::SeqCst);
        (count > 0).then_some(Batching {
            count,
            byte_size: 0,
            period: None,
        })
    }
}

/// `lose: {}` gives up as many batches as configured, and passes the others on.
struct Lose(Arc<AtomicUsize>);

impl ProcessorSpec for Lose {
    fn build(&self, _: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(Lose(self.0.clone())))
    }
}

impl Processor for Lose {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let lost = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match lost {
            Ok(_) => batch.ack.given_up(),
            Err(_) => out.push(batch),
        }
    }
}
