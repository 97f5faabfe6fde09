//! One flow of the configuration file, checked: every component's mistakes have been reported.

use std::sync::Arc;

use thalweg_config::{BufferConfig, ComponentNode, FlowConfig};
use thalweg_telemetry::{ComponentId, Metrics};

use crate::component::Component;
use crate::parse::ParseContext;
use crate::registry::{InputSpec, OutputSpec, ProcessorSpec};

/// A component's checked configuration and what it is called.
pub(crate) struct Named<S: ?Sized> {
    pub name: String,
    pub path: String,
    pub label: String,
    pub spec: Arc<S>,
}

impl<S: ?Sized> Named<S> {
    fn new(node: &ComponentNode, spec: Arc<S>) -> Named<S> {
        Named {
            name: node.name.clone(),
            path: node.path.clone(),
            label: node.label.clone().unwrap_or_default(),
            spec,
        }
    }

    pub fn component(&self, flow: Option<&str>, metrics: &Arc<Metrics>) -> Component {
        let id = ComponentId {
            flow: flow.map(str::to_owned),
            path: self.path.clone(),
            label: self.label.clone(),
        };
        Component::new(&self.name, id, metrics.clone())
    }
}

/// A flow that can be started.
pub struct FlowSpec {
    pub name: String,
    /// Whether metrics carry the label `flow`: the file has a list of flows.
    pub(crate) labelled: bool,
    pub(crate) input: Named<dyn InputSpec>,
    pub(crate) processors: Vec<Named<dyn ProcessorSpec>>,
    pub(crate) output: Named<dyn OutputSpec>,
    pub(crate) threads: usize,
    pub(crate) queue_bytes: usize,
}

/// What waits between the input and the processors, and between them and the output, when no buffer is configured.
const QUEUE_BYTES: usize = 64 << 20;

impl FlowSpec {
    /// Reads a flow; `None` if it has mistakes, all of which are in the diagnostics then.
    pub fn parse(flow: &FlowConfig, context: &mut ParseContext<'_>) -> Option<FlowSpec> {
        let input = context.input(&flow.input).map(|spec| Named::new(&flow.input, spec));
        let all = [
            &flow.input.processors,
            &flow.pipeline.processors,
            &flow.output.processors,
        ];
        let wanted: Vec<&ComponentNode> = all.into_iter().flatten().collect();
        let processors: Vec<_> = wanted
            .iter()
            .filter_map(|node| Some(Named::new(node, context.processor(node)?)))
            .collect();
        let output = context.output(&flow.output).map(|spec| Named::new(&flow.output, spec));
        let queue_bytes = match &flow.buffer {
            BufferConfig::None => Some(QUEUE_BYTES),
            BufferConfig::Memory { limit } => Some(usize::try_from(*limit).unwrap_or(usize::MAX)),
            BufferConfig::Queue(node) => {
                context.diagnostics.error(
                    node,
                    "this version has no durable queue; use `none: {}` or `memory: {limit: 500MiB}`",
                );
                None
            }
        };
        let complete = processors.len() == wanted.len();
        let threads = if processors.is_empty() {
            1
        } else {
            flow.pipeline.threads.max(1)
        };
        let labelled = context.config.root.get("flows").is_some();
        let (input, output, queue_bytes) = (input?, output?, queue_bytes?);
        complete.then(|| FlowSpec {
            name: flow.name.clone(),
            labelled,
            input,
            processors,
            output,
            threads,
            queue_bytes,
        })
    }
}
