//! `split`: batches of at most `size` messages and `byte_size` bytes.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::{Batch, Message};

use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

#[derive(Clone)]
struct SplitProcessor {
    size: usize,
    /// 0 means no limit.
    byte_size: usize,
}

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let size = fields.int_in("size", 1, 1..=1_000_000);
    let byte_size = fields.size("byte_size", "0");
    fields.finish();
    Some(Arc::new(SplitProcessor {
        size: usize::try_from(size).unwrap_or(1),
        byte_size: usize::try_from(byte_size).unwrap_or(usize::MAX),
    }))
}

impl ProcessorSpec for SplitProcessor {
    fn build(&self, _: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl SplitProcessor {
    /// The number of messages of the next batch, at least one.
    fn next_part(&self, rest: &[Message]) -> usize {
        let mut bytes = 0_usize;
        let fits = |message: &&Message| {
            if self.byte_size == 0 {
                return true;
            }
            bytes = bytes.saturating_add(message.bytes().len());
            bytes <= self.byte_size
        };
        rest.iter().take(self.size).take_while(fits).count().max(1)
    }
}

impl Processor for SplitProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let mut rest = messages.into_iter();
        loop {
            let count = self.next_part(rest.as_slice());
            let part: Vec<_> = rest.by_ref().take(count).collect();
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
