//! One flow of the configuration file, checked; the mistakes of every component have been reported.

use std::sync::Arc;

use thalweg_config::{BufferConfig, ComponentNode, FlowConfig};

use crate::batching::Batching;
use crate::buffer::BufferSpec;
use crate::chain::ChainSpec;
use crate::named_spec::NamedSpec;
use crate::parse::ParseContext;
use crate::registry::{InputSpec, OutputSpec};

/// A flow that can be started.
pub struct FlowSpec {
    pub name: String,
    /// Whether metrics carry the label `flow`, because the file has a list of flows.
    pub(crate) labelled: bool,
    pub(crate) input: NamedSpec<dyn InputSpec>,
    pub(crate) buffer: Option<NamedSpec<dyn BufferSpec>>,
    /// The processors at the input, in the pipeline and at the output; the workers run all of them.
    pub(crate) processors: ChainSpec,
    pub(crate) output: NamedSpec<dyn OutputSpec>,
    pub(crate) threads: usize,
    /// How the buffer collects messages.
    pub(crate) batch_policy: Option<Batching>,
    /// Limit of each queue of the flow.
    pub(crate) queue_bytes: usize,
}

/// Default for all bytes that wait in a flow.
const WAITING_BYTES: usize = 128 << 20;
/// The number of shares: the queue in front of the processors and the one in front of the output.
const PARTS: usize = 2;
/// With a buffer, also the queue in front of it and the memory of its reader.
const PARTS_BUFFERED: usize = 4;

impl FlowSpec {
    /// Limits the messages that wait in the flow to `bytes`: half in front of the processors, half in front of the
    /// output. With a buffer each share is a quarter, one of them in front of the buffer.
    pub fn limit_waiting(&mut self, bytes: usize) {
        let parts = if self.buffer.is_some() { PARTS_BUFFERED } else { PARTS };
        self.queue_bytes = (bytes / parts).max(1);
    }

    /// Reads a flow; `None` if it has mistakes, all of which are then in the diagnostics.
    pub fn parse(flow: &FlowConfig, context: &mut ParseContext<'_>) -> Option<FlowSpec> {
        let (inputs, outputs) = (context.resolve(&flow.input), context.resolve(&flow.output));
        let input = inputs.as_deref().and_then(|way| {
            let spec = context.bare_input(way.last()?)?;
            Some(found(way, spec))
        });
        // In the order of the stream: the processors of a resource are nearer to the source, or to the destination.
        let before = inputs.iter().flatten().rev().flat_map(|node| &node.processors);
        let after = outputs.iter().flatten().flat_map(|node| &node.processors);
        let wanted: Vec<&ComponentNode> = before.chain(&flow.pipeline.processors).chain(after).collect();
        let processors = ChainSpec::read(wanted.iter().copied(), context);
        let output = outputs.as_deref().and_then(|way| {
            let spec = context.bare_output(way.last()?)?;
            Some(found(way, spec))
        });
        let (buffer, parts) = match &flow.buffer {
            BufferConfig::None | BufferConfig::Memory { .. } => (None, PARTS),
            BufferConfig::Queue(node) => {
                let registry = context.registry;
                let spec = registry.parse_buffer(node, flow, context);
                (Some(spec.map(buffer_of)), PARTS_BUFFERED)
            }
        };
        let waiting = match &flow.buffer {
            BufferConfig::Memory { limit, .. } => usize::try_from(*limit).unwrap_or(usize::MAX),
            BufferConfig::None | BufferConfig::Queue(_) => WAITING_BYTES,
        };
        let batch_policy = match &flow.buffer {
            BufferConfig::Memory { batch_policy, .. } => batch_policy.map(Batching::from),
            BufferConfig::None | BufferConfig::Queue(_) => None,
        };
        let (input, mut processors) = (input?, processors?);
        // A buffer acknowledges what it has stored, whatever is held back after it.
        if buffer.is_none() {
            processors = processors.unless_starved(wanted, input.spec.as_ref(), context.diagnostics)?;
        }
        let threads = if processors.is_empty() || processors.joins_series() {
            1
        } else {
            flow.pipeline.threads.max(1)
        };
        let labelled = context.config.root.get("flows").is_some();
        Some(FlowSpec {
            name: flow.name.clone(),
            labelled,
            input,
            buffer: match buffer {
                Some(buffer) => Some(buffer?),
                None => None,
            },
            processors,
            output: output?,
            threads,
            batch_policy,
            queue_bytes: waiting / parts,
        })
    }
}

fn buffer_of(spec: Arc<dyn BufferSpec>) -> NamedSpec<dyn BufferSpec> {
    NamedSpec {
        name: "queue".to_owned(),
        path: "root.buffer".to_owned(),
        label: String::new(),
        spec,
    }
}

/// Returns a component at its own path in the flow, with the name and label of the resource that it refers to.
fn found<S: ?Sized>(way: &[ComponentNode], spec: Arc<S>) -> NamedSpec<S> {
    let name = way.last().map(|node| node.name.clone());
    NamedSpec {
        name: name.unwrap_or_default(),
        path: way.first().map(|node| node.path.clone()).unwrap_or_default(),
        label: way.iter().find_map(|node| node.label.clone()).unwrap_or_default(),
        spec,
    }
}
