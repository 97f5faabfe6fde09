//! `generate`: creates messages with a mapping, at a fixed interval or as fast as the flow accepts them.

use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_mapping::{Mapping, MappingOutcome};
use thalweg_record::{Batch, DropReason, FilterReason, Message};

use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::input::{Input, InputContext, InputError};
use crate::parse::{ParseContext, compile_error};
use crate::registry::InputSpec;

#[derive(Clone)]
struct GenerateInput {
    mapping: Arc<Mapping>,
    /// `None` means no pause.
    interval: Option<Duration>,
    /// 0 means no end.
    count: u64,
    batch_size: usize,
}

const BATCH_SIZE_MAX: i64 = 100_000;

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let diagnostics = context.diagnostics;
    let mut fields = Fields::new(&node.body, diagnostics);
    let mapping = fields.required_node("mapping", kind::PROGRAM);
    let interval = fields.duration_or_empty("interval", Some("1s"));
    let interval = interval.filter(|interval| !interval.is_zero());
    let count = fields.int_in("count", 0, 0..=i64::MAX).unsigned_abs();
    let batch_size = fields.int_in("batch_size", 1, 1..=BATCH_SIZE_MAX).unsigned_abs() as usize;
    fields.finish();
    let mapping = mapping?;
    let text = mapping
        .expect_text()
        .map_err(|error| diagnostics.error(&mapping, error));
    let mapping = Mapping::compile(text.ok()?)
        .map_err(|error| compile_error(&mapping, &error, diagnostics))
        .ok()?;
    Some(Arc::new(GenerateInput {
        mapping: Arc::new(mapping),
        interval,
        count,
        batch_size,
    }))
}

impl InputSpec for GenerateInput {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(self.clone()))
    }
}

impl Input for GenerateInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            let mut timer = self.interval.map(tokio::time::interval);
            let mut made = 0;
            while self.count == 0 || made < self.count {
                let pause = async {
                    match &mut timer {
                        Some(timer) => drop(timer.tick().await),
                        None => context.sink.has_room().await,
                    }
                };
                tokio::select! {
                    biased;
                    () = context.stop.cancelled() => break,
                    () = pause => {}
                }
                let left = if self.count == 0 { u64::MAX } else { self.count - made };
                let size = left.min(self.batch_size as u64) as usize;
                made += size as u64;
                if self.send(size, &context).await.is_err() {
                    break;
                }
            }
            Ok(())
        })
    }
}

impl GenerateInput {
    async fn send(&self, size: usize, context: &InputContext) -> Result<(), crate::SinkClosed> {
        let mut ack = context.sink.enter(size, |_| {});
        let mut messages: Vec<Message> = (0..size).map(|_| Message::raw("")).collect();
        let mut index = 0;
        while index < messages.len() {
            match self.mapping.apply(&mut messages, index) {
                Ok(MappingOutcome::Kept) => index += 1,
                Ok(MappingOutcome::Deleted) => {
                    messages.remove(index);
                    ack.filtered(FilterReason::MappingDeleted, 1);
                }
                Err(error) => {
                    messages.remove(index);
                    ack.dropped(DropReason::ScriptError, 1);
                    context
                        .component
                        .warn_limited("script_error", 1, || format!("the mapping failed: {error}"));
                }
            }
        }
        context.sink.send(Batch::new(messages, ack)).await
    }
}
