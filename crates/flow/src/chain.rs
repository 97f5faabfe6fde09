//! Processors that run one after the other: those of a flow, and those inside a `switch`, a `try` or a child of a
//! broker. Each has its own path, metrics and log, wherever the chain is.

use std::sync::Arc;
use std::time::Instant;

use thalweg_config::{ComponentKind, ComponentNode, Diagnostics, Node};
use thalweg_kit::clock;
use thalweg_record::Batch;
use thalweg_telemetry::{IntCounter, Metrics, Timing};

use crate::Processor;
use crate::component::{BuildError, Component};
use crate::context::{FlowScope, StageContext};
use crate::metrics::{self, PROCESSOR_ERROR};
use crate::named_spec::NamedSpec;
use crate::parse::ParseContext;
use crate::registry::{InputSpec, ProcessorSpec};
use crate::runtime::{NodeCounters, NodeDetails};

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
            received: component.counter(&metrics::PROCESSOR_RECEIVED),
            batch_received: component.counter(&metrics::PROCESSOR_BATCH_RECEIVED),
            sent: component.counter(&metrics::PROCESSOR_SENT),
            batch_sent: component.counter(&metrics::PROCESSOR_BATCH_SENT),
            latency: component.timing(&metrics::PROCESSOR_LATENCY),
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

impl Stage {
    fn process(&mut self, batch: Batch) -> Vec<Batch> {
        let metrics = &self.metrics;
        metrics.received.inc_by(batch.len() as u64);
        metrics.batch_received.inc();
        let mut results = Vec::with_capacity(1);
        let start = clock::now();
        self.processor.process(batch, &mut results);
        metrics.latency.observe(start.elapsed());
        metrics.count_sent(&results);
        results
    }
}

/// The checked configuration of a chain.
#[derive(Clone, Default)]
pub(crate) struct ChainSpec(Vec<NamedSpec<dyn ProcessorSpec>>);

impl ChainSpec {
    /// Reads processors; `None` if one has mistakes.
    pub fn read<'n>(
        nodes: impl IntoIterator<Item = &'n ComponentNode>,
        context: &mut ParseContext<'_>,
    ) -> Option<ChainSpec> {
        // All processors are read before the result is decided, so that every mistake is reported.
        let read = |node| Some(NamedSpec::new(node, context.processor(node)?));
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

    /// See [`ProcessorSpec::holds_back`].
    pub fn holds_back(&self) -> Option<&'static str> {
        self.0.iter().find_map(|named| named.spec.holds_back())
    }

    /// Rejects processors that would deadlock the input: those that hold back messages whose acknowledgement `input`
    /// waits for. `nodes` is the configuration that the chain was read from. Returns `None` if there is one.
    pub fn unless_starved<'n>(
        self,
        nodes: impl IntoIterator<Item = &'n ComponentNode>,
        input: &dyn InputSpec,
        diagnostics: &Diagnostics,
    ) -> Option<ChainSpec> {
        let Some(cure) = input.waits_for_answers() else {
            return Some(self);
        };
        let mut is_starved = false;
        for (node, named) in nodes.into_iter().zip(&self.0) {
            let Some(part) = named.spec.holds_back() else { continue };
            is_starved = true;
            diagnostics.error_at(
                node.name_pos,
                format!(
                    "{part} holds messages back until later ones come, but the input delivers these only after the earlier ones \
                     are acknowledged, so nothing would flow; {cure}, or move it to the pipeline of a flow with buffer: {{queue: {{}}}}"
                ),
            );
        }
        (!is_starved).then_some(self)
    }

    /// Builds one instance of each processor. Instances for several threads share their component and thus its log
    /// limit.
    pub fn build(&self, flow: Option<&str>, metrics: &Arc<Metrics>, scope: &FlowScope) -> Result<Chain, BuildError> {
        let build = |named: &NamedSpec<dyn ProcessorSpec>| {
            let known = scope.nodes.component(&named.path);
            let component = known.unwrap_or_else(|| named.component(flow, metrics));
            let metrics = StageMetrics::new(&component);
            let errors = component.counter(&PROCESSOR_ERROR);
            let details = NodeDetails::default();
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
        let mut results = Vec::new();
        self.run(batch, &mut |result| results.push(result));
        results
    }

    /// Passes each result on before the next one is made, if processors accept batches in pieces.
    pub fn run(&mut self, batch: Batch, pass_on: &mut dyn FnMut(Batch)) {
        run(&mut self.0, batch, pass_on);
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

    /// The batches that one stage releases pass through the later stages before those release theirs.
    fn release(&mut self, out: &mut Vec<Batch>, what: impl Fn(&mut dyn Processor, &mut Vec<Batch>)) {
        for at in 0..self.0.len() {
            let mut released = Vec::new();
            if let Some(stage) = self.0.get_mut(at) {
                what(stage.processor.as_mut(), &mut released);
                stage.metrics.count_sent(&released);
            }
            let later = self.0.get_mut(at + 1..).unwrap_or_default();
            for batch in released {
                run(later, batch, &mut |result| out.push(result));
            }
        }
    }
}

/// Runs a batch through stages. A batch without messages ends before the next stage.
fn run(stages: &mut [Stage], batch: Batch, pass_on: &mut dyn FnMut(Batch)) {
    let [stage, later @ ..] = stages else {
        return pass_on(batch);
    };
    if batch.is_empty() {
        return batch.ack.delivered();
    }
    let mut rest = Some(batch);
    while let Some(batch) = rest.take() {
        let (piece, more) = cut(batch, stage.processor.messages_max());
        rest = more;
        for result in stage.process(piece) {
            run(later, result, pass_on);
        }
    }
}

/// Returns the first messages of a batch, and the rest if there is any.
fn cut(batch: Batch, messages_max: usize) -> (Batch, Option<Batch>) {
    let max = messages_max.max(1);
    if batch.len() <= max {
        return (batch, None);
    }
    let Batch { mut messages, mut ack } = batch;
    let others = messages.split_off(max);
    let first = Batch::new(messages, ack.split(max));
    (first, Some(Batch::new(others, ack)))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use thalweg_record::{Ack, FlowBalance, Message};

    use super::*;

    type Log = Arc<Mutex<Vec<String>>>;

    /// Doubles each message, and accepts at most `max` at once.
    struct Doubles {
        name: &'static str,
        max: usize,
        log: Log,
    }

    impl Processor for Doubles {
        fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
            let Batch { messages, mut ack } = batch;
            self.log.lock().push(format!("{} {}", self.name, messages.len()));
            ack.expanded(messages.len());
            let twice = messages.into_iter().flat_map(|message| [message.clone(), message]);
            out.push(Batch::new(twice.collect(), ack));
        }

        fn messages_max(&self) -> usize {
            self.max
        }
    }

    #[test]
    fn what_comes_of_a_piece_is_passed_on_before_the_next_one_is_taken() {
        let (log, context) = (Log::default(), StageContext::for_tests("doubles"));
        let stage = |name, max| Stage {
            processor: Box::new(Doubles {
                name,
                max,
                log: log.clone(),
            }),
            metrics: StageMetrics::new(&context.component),
        };
        let mut chain = Chain(vec![stage("a", 2), stage("b", 3)]);
        let balance = Arc::new(FlowBalance::default());
        let messages = (0..5).map(|n| Message::raw(n.to_string())).collect();
        let mut seen = String::new();
        chain.run(Batch::new(messages, Ack::enter(&balance, 5, |_| {})), &mut |batch| {
            assert_eq!(batch.len(), batch.ack.count());
            log.lock().push(format!("out {}", batch.len()));
            let texts = batch.messages.iter().map(|message| message.bytes().into_owned());
            seen.extend(texts.map(|text| String::from_utf8(text).unwrap()));
            batch.ack.delivered();
        });
        assert_eq!(
            *log.lock(),
            [
                "a 2", "b 3", "out 6", "b 1", "out 2", "a 2", "b 3", "out 6", "b 1", "out 2", "a 1", "b 2", "out 4"
            ]
        );
        assert_eq!(seen, "00001111222233334444");
        let counts = balance.snapshot();
        assert!(
            counts.adds_up() && counts.in_flight == 0 && counts.out == 20,
            "{counts}"
        );
    }
}
