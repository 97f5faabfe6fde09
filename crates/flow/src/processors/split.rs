//! `split`: batches of at most `size` messages.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::Batch;

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

struct SplitSpec(usize);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let size = fields.int_in("size", 1, 1..=1_000_000);
    fields.finish();
    Some(Arc::new(SplitSpec(usize::try_from(size).unwrap_or(1))))
}

impl ProcessorSpec for SplitSpec {
    fn build(&self, _: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(SplitProcessor(self.0)))
    }
}

struct SplitProcessor(usize);

impl Processor for SplitProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let mut rest = messages.into_iter();
        loop {
            let part: Vec<_> = rest.by_ref().take(self.0).collect();
            let last = rest.len() == 0;
            if last {
                out.push(Batch::new(part, ack));
                return;
            }
            let part_ack = ack.split(part.len());
            out.push(Batch::new(part, part_ack));
        }
    }
}
