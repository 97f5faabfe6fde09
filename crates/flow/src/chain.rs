//! Processors that run one after the other: those of a flow, and those inside a `switch`, a `try` or a broker's child.
//! Each has its own place, metrics and log, wherever the chain stands.

use std::sync::Arc;
use std::time::Instant;

use thalweg_config::{ComponentKind, ComponentNode, Node};
use thalweg_record::Batch;
use thalweg_telemetry::{IntCounter, Metrics, Timing};

use crate::Processor;
use crate::component::{BuildError, Component};
use crate::context::{Scope, StageContext};
use crate::named::Named;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;
use crate::runtime::{Details, NodeCounters};

/// The metrics of one processor, shared by its instances on all threads.
#[derive(Clone)]
pub(crate) struct StageMetrics {
    pub received: IntCounter,
    batch_received: IntCounter,
    pub sent: IntCounter,
    batch_sent: IntCounter,
    latency: Timing,
}

impl StageMetrics {
    fn new(component: &Component) -> StageMetrics {
        StageMetrics {
            received: component.counter("processor_received", "Messages received."),
            batch_received: component.counter("processor_batch_received", "Batches received."),
            sent: component.counter("processor_sent", "Messages passed on."),
            batch_sent: component.counter("processor_batch_sent", "Batches passed on."),
            latency: component.timing("processor_latency_ns", "Time to process a batch."),
        }
    }

    fn count_sent(&self, batches: &[Batch]) {
        if !batches.is_empty() {
            self.sent.inc_by(batches.iter().map(|batch| batch.len() as u64).sum());
            self.batch_sent.inc_by(batches.len() as u64);
        }
    }
}

/// A processor instance with its metrics.
struct Stage {
    processor: Box<dyn Processor>,
    metrics: StageMetrics,
}

/// The checked configuration of a chain.
#[derive(Clone, Default)]
pub(crate) struct ChainSpec(Vec<Named<dyn ProcessorSpec>>);

impl ChainSpec {
    /// Reads processors; `None` if one has mistakes.
    pub fn read<'n>(
        nodes: impl IntoIterator<Item = &'n ComponentNode>,
        context: &mut ParseContext<'_>,
    ) -> Option<ChainSpec> {
        // All of them are read before the verdict, so that every mistake is reported.
        let read = |node| Some(Named::new(node, context.processor(node)?));
        let chain: Vec<Option<_>> = nodes.into_iter().map(read).collect();
        Some(ChainSpec(chain.into_iter().collect::<Option<_>>()?))
    }

    /// Reads the list of processors at `steps` inside a component's body.
    pub fn parse(node: &ComponentNode, list: &Node, steps: &str, context: &mut ParseContext<'_>) -> Option<ChainSpec> {
        let nodes = node.children(list, ComponentKind::Processor, steps, context.diagnostics);
        let listed = list.as_seq().map_or(0, <[Node]>::len);
        let chain = ChainSpec::read(&nodes, context)?;
        (chain.0.len() == listed).then_some(chain)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// See [`ProcessorSpec::joins_series`].
    pub fn joins_series(&self) -> bool {
        self.0.iter().any(|named| named.spec.joins_series())
    }

    /// One instance of each processor. Instances for several threads share their component and so their log limit.
    pub fn build(&self, flow: Option<&str>, metrics: &Arc<Metrics>, scope: &Scope) -> Result<Chain, BuildError> {
        let build = |named: &Named<dyn ProcessorSpec>| {
            let known = scope.nodes.component(&named.path);
            let component = known.unwrap_or_else(|| named.component(flow, metrics));
            let metrics = StageMetrics::new(&component);
            let errors = component.counter("processor_error", "Messages that the stage failed on.");
            let details = Details::default();
            let node = NodeCounters::processor(&component, &metrics, errors.clone(), details.clone());
            scope.nodes.add(node);
            let context = StageContext {
                component,
                errors,
                details,
                scope: scope.clone(),
            };
            let processor = named.spec.build(context)?;
            Ok(Stage { processor, metrics })
        };
        Ok(Chain(self.0.iter().map(build).collect::<Result<_, BuildError>>()?))
    }

    /// As [`ChainSpec::build`], for a chain inside a processor.
    pub fn build_within(&self, parent: &StageContext) -> Result<Chain, BuildError> {
        let component = &parent.component;
        self.build(component.id.flow.as_deref(), &component.metrics, &parent.scope)
    }
}

/// Processors that run one after the other.
pub(crate) struct Chain(Vec<Stage>);

impl Chain {
    pub fn process(&mut self, batch: Batch) -> Vec<Batch> {
        self.run_from(0, vec![batch])
    }

    /// Runs batches through the stages from `first` on. Batches without messages end here.
    fn run_from(&mut self, first: usize, mut batches: Vec<Batch>) -> Vec<Batch> {
        for stage in self.0.iter_mut().skip(first) {
            let mut results = Vec::with_capacity(batches.len());
            for batch in batches {
                if batch.is_empty() {
                    batch.ack.delivered();
                    continue;
                }
                stage.metrics.received.inc_by(batch.len() as u64);
                stage.metrics.batch_received.inc();
                let start = Instant::now();
                stage.processor.process(batch, &mut results);
                stage.metrics.latency.observe(start.elapsed());
            }
            stage.metrics.count_sent(&results);
            batches = results;
        }
        batches
    }

    pub fn next_tick(&self) -> Option<Instant> {
        self.0.iter().filter_map(|stage| stage.processor.next_tick()).min()
    }

    pub fn tick(&mut self, now: Instant, out: &mut Vec<Batch>) {
        self.release(out, |processor, released| {
            if processor.next_tick().is_some_and(|due| due <= now) {
                processor.tick(now, released);
            }
        });
    }

    pub fn flush(&mut self, out: &mut Vec<Batch>) {
        self.release(out, |processor, released| processor.flush(released));
    }

    /// What one stage releases passes through those behind it before they release theirs.
    fn release(&mut self, out: &mut Vec<Batch>, what: impl Fn(&mut dyn Processor, &mut Vec<Batch>)) {
        for at in 0..self.0.len() {
            let mut released = Vec::new();
            if let Some(stage) = self.0.get_mut(at) {
                what(stage.processor.as_mut(), &mut released);
                stage.metrics.count_sent(&released);
            }
            out.extend(self.run_from(at + 1, released));
        }
    }
}
