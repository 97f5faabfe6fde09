//! `mapping` (also `bloblang`) and `mutation`: run a program per message. A message on which it fails is flagged and
//! passed on unchanged; a message that it deletes is filtered.

use std::sync::Arc;

use thalweg_config::ComponentNode;
use thalweg_mapping::{Mapping, MappingOutcome};
use thalweg_record::{Batch, FilterReason};

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::{ParseContext, compile_error};
use crate::registry::ProcessorSpec;

struct MappingSpec(Arc<Mapping>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    compile(node, context, Mapping::compile)
}

pub(super) fn parse_mutation(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    compile(node, context, Mapping::compile_mutation)
}

fn compile(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    compiler: fn(&str) -> Result<Mapping, thalweg_mapping::CompileError>,
) -> Option<Arc<dyn ProcessorSpec>> {
    let Some(text) = node.body.scalar_text() else {
        context.diagnostics.error(
            &node.body,
            node.body.expected("the text of a mapping such as \"root = this\""),
        );
        return None;
    };
    let mapping = compiler(text)
        .map_err(|error| compile_error(&node.body, &error, context.diagnostics))
        .ok()?;
    Some(Arc::new(MappingSpec(Arc::new(mapping))))
}

impl ProcessorSpec for MappingSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(MappingProcessor {
            mapping: self.0.clone(),
            context,
        }))
    }
}

struct MappingProcessor {
    mapping: Arc<Mapping>,
    context: StageContext,
}

impl Processor for MappingProcessor {
    fn process(&mut self, mut batch: Batch, out: &mut Vec<Batch>) {
        let mut deleted = vec![false; batch.len()];
        for index in 0..batch.len() {
            match self.mapping.apply(&mut batch.messages, index) {
                Ok(MappingOutcome::Kept) => {}
                Ok(MappingOutcome::Deleted) => {
                    if let Some(mark) = deleted.get_mut(index) {
                        *mark = true;
                    }
                }
                Err(error) => {
                    if let Some(message) = batch.messages.get_mut(index) {
                        self.context.flag(message, &error.to_string());
                    }
                }
            }
        }
        if deleted.contains(&true) {
            let mut marks = deleted.into_iter();
            batch.filter(FilterReason::MappingDeleted, |_| !marks.next().unwrap_or(false));
        }
        out.push(batch);
    }
}
