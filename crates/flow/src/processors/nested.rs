//! Processors inside processors: a chain with a path and metrics of its own per step.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode, Node};
use thalweg_record::Batch;
use thalweg_telemetry::ComponentId;

use crate::Processor;
use crate::component::{BuildError, Component};
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

/// The checked configuration of a chain.
pub(super) struct ChainSpec(Vec<Step>);

struct Step {
    name: String,
    path: String,
    label: String,
    spec: Arc<dyn ProcessorSpec>,
}

impl ChainSpec {
    /// Reads a list of processors; `None` if one has mistakes.
    pub fn parse(node: &ComponentNode, list: &Node, steps: &str, context: &mut ParseContext<'_>) -> Option<ChainSpec> {
        let nodes = node.children(list, ComponentKind::Processor, steps, context.diagnostics);
        let listed = list.as_seq().map_or(0, <[Node]>::len);
        let chain: Vec<Step> = nodes
            .into_iter()
            .filter_map(|node| {
                let spec = context.processor(&node)?;
                Some(Step {
                    name: node.name,
                    path: node.path,
                    label: node.label.unwrap_or_default(),
                    spec,
                })
            })
            .collect();
        (chain.len() == listed).then_some(ChainSpec(chain))
    }

    pub fn build(&self, parent: &StageContext) -> Result<Chain, BuildError> {
        let build = |step: &Step| {
            let id = ComponentId {
                path: step.path.clone(),
                label: step.label.clone(),
                ..(*parent.component.id).clone()
            };
            let component = Component::new(&step.name, id, parent.component.metrics.clone());
            step.spec.build(StageContext {
                component,
                ..parent.clone()
            })
        };
        Ok(Chain(self.0.iter().map(build).collect::<Result<_, _>>()?))
    }
}

/// Processors that run one after the other within one stage.
pub(super) struct Chain(Vec<Box<dyn Processor>>);

impl Chain {
    pub fn process(&mut self, batch: Batch) -> Vec<Batch> {
        self.process_from(0, vec![batch])
    }

    fn process_from(&mut self, first: usize, mut batches: Vec<Batch>) -> Vec<Batch> {
        for processor in self.0.iter_mut().skip(first) {
            let mut results = Vec::with_capacity(batches.len());
            for batch in batches {
                processor.process(batch, &mut results);
            }
            batches = results;
        }
        batches
    }

    pub fn next_tick(&self) -> Option<std::time::Instant> {
        self.0.iter().filter_map(|processor| processor.next_tick()).min()
    }

    pub fn tick(&mut self, now: std::time::Instant, out: &mut Vec<Batch>) {
        self.release(out, |processor, released| {
            if processor.next_tick().is_some_and(|due| due <= now) {
                processor.tick(now, released);
            }
        });
    }

    pub fn flush(&mut self, out: &mut Vec<Batch>) {
        self.release(out, |processor, released| processor.flush(released));
    }

    fn release(&mut self, out: &mut Vec<Batch>, what: impl Fn(&mut dyn Processor, &mut Vec<Batch>)) {
        for at in 0..self.0.len() {
            let mut released = Vec::new();
            if let Some(processor) = self.0.get_mut(at) {
                what(processor.as_mut(), &mut released);
            }
            out.extend(self.process_from(at + 1, released));
        }
    }
}

/// `resource: label`: a processor that is defined in `processor_resources`.
pub(super) fn parse_resource(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let target = context.resource(node, ComponentKind::Processor)?;
    context.processor(&target)
}

impl ChainSpec {
    /// A chain of one.
    pub fn single(node: ComponentNode, context: &mut ParseContext<'_>) -> Option<ChainSpec> {
        let spec = context.processor(&node)?;
        Some(ChainSpec(vec![Step {
            name: node.name,
            path: node.path,
            label: node.label.unwrap_or_default(),
            spec,
        }]))
    }
}
