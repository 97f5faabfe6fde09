//! One flow of the configuration file, checked: every component's mistakes have been reported.

use thalweg_config::{BufferConfig, ComponentNode, FlowConfig};

use crate::chain::ChainSpec;
use crate::named::Named;
use crate::parse::ParseContext;
use crate::registry::{InputSpec, OutputSpec};

/// A flow that can be started.
pub struct FlowSpec {
    pub name: String,
    /// Whether metrics carry the label `flow`: the file has a list of flows.
    pub(crate) labelled: bool,
    pub(crate) input: Named<dyn InputSpec>,
    /// Those at the input, of the pipeline, and at the output: the workers run them all.
    pub(crate) processors: ChainSpec,
    pub(crate) output: Named<dyn OutputSpec>,
    pub(crate) threads: usize,
    pub(crate) queue_bytes: usize,
}

/// What waits between the input and the processors, and between them and the output, when no buffer is configured.
const QUEUE_BYTES: usize = 64 << 20;

impl FlowSpec {
    /// Lets messages that take `bytes` in all wait in the flow: half in front of the processors, half in front of the
    /// output.
    pub fn limit_waiting(&mut self, bytes: usize) {
        self.queue_bytes = (bytes / 2).max(1);
    }

    /// Reads a flow; `None` if it has mistakes, all of which are in the diagnostics then.
    pub fn parse(flow: &FlowConfig, context: &mut ParseContext<'_>) -> Option<FlowSpec> {
        let (inputs, outputs) = (context.resolve(&flow.input), context.resolve(&flow.output));
        let input = inputs.as_deref().and_then(|way| {
            let spec = context.bare_input(way.last()?)?;
            Some(found(way, spec))
        });
        // In the order of the stream: what stands at the resource is nearer to the source, or to the destination.
        let before = inputs.iter().flatten().rev().flat_map(|node| &node.processors);
        let after = outputs.iter().flatten().flat_map(|node| &node.processors);
        let wanted: Vec<&ComponentNode> = before.chain(&flow.pipeline.processors).chain(after).collect();
        let processors = ChainSpec::read(wanted, context);
        let output = outputs.as_deref().and_then(|way| {
            let spec = context.bare_output(way.last()?)?;
            Some(found(way, spec))
        });
        let queue_bytes = match &flow.buffer {
            BufferConfig::None => Some(QUEUE_BYTES),
            // Messages wait in two queues, which share the limit.
            BufferConfig::Memory { limit, .. } => Some(usize::try_from(*limit / 2).unwrap_or(usize::MAX)),
            BufferConfig::Queue(node) => {
                context.diagnostics.error(
                    node,
                    "this version has no durable queue; use `none: {}` or `memory: {limit: 500MiB}`",
                );
                None
            }
        };
        let processors = processors?;
        let threads = if processors.is_empty() {
            1
        } else {
            flow.pipeline.threads.max(1)
        };
        let labelled = context.config.root.get("flows").is_some();
        Some(FlowSpec {
            name: flow.name.clone(),
            labelled,
            input: input?,
            processors,
            output: output?,
            threads,
            queue_bytes: queue_bytes?,
        })
    }
}

/// A component of the flow at its own place, under the name and label of the resource that it stands for.
fn found<S: ?Sized>(way: &[ComponentNode], spec: std::sync::Arc<S>) -> Named<S> {
    let name = way.last().map(|node| node.name.clone());
    Named {
        name: name.unwrap_or_default(),
        path: way.first().map(|node| node.path.clone()).unwrap_or_default(),
        label: way.iter().find_map(|node| node.label.clone()).unwrap_or_default(),
        spec,
    }
}
