//! `stdin`: the standard input, split into messages. The flow ends with it.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::{AckResult, Batch, DropReason, Message};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::codec::{InputCodec, SplitMessages};
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::input::{Input, InputContext, InputError};
use crate::parse::ParseContext;
use crate::registry::InputSpec;

struct StdinInputSpec(InputCodec);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let codec = InputCodec::read(&mut fields);
    fields.finish();
    Some(Arc::new(StdinInputSpec(codec)))
}

impl InputSpec for StdinInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(StdinInput(self.0.clone())))
    }
}

struct StdinInput(InputCodec);

impl Input for StdinInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            context.connection.up();
            let read = read_stream(tokio::io::stdin(), &self.0, &context, |_| {}, || |_| {}).await;
            let read = read.map_err(|error| InputError(format!("cannot read the standard input: {error}")));
            read.map(drop)
        })
    }
}

const PIECE_BYTES: usize = 64 << 10;

/// Reads a stream to its end or until the flow stops, and returns whether all of it was passed on. `mark` adds metadata to
/// each message; what `settle` returns is called with the result of a batch.
pub(super) async fn read_stream<S: FnOnce(AckResult) + Send + 'static>(
    mut stream: impl AsyncRead + Unpin,
    codec: &InputCodec,
    context: &InputContext,
    mark: impl Fn(&mut Message),
    settle: impl Fn() -> S,
) -> std::io::Result<bool> {
    let mut splitter = codec.splitter();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = tokio::select! {
            () = context.stop.cancelled() => return Ok(false),
            read = stream.read(&mut piece) => read?,
        };
        let end = read == 0;
        let cuts = if end {
            splitter.finish()
        } else {
            splitter.push(piece.get(..read).unwrap_or_default())
        };
        match send(cuts, context, &mark, &settle).await {
            Ok(()) if !end => {}
            sent => return Ok(sent.is_ok()),
        }
    }
}

async fn send<S: FnOnce(AckResult) + Send + 'static>(
    cuts: SplitMessages,
    context: &InputContext,
    mark: &impl Fn(&mut Message),
    settle: &impl Fn() -> S,
) -> Result<(), crate::SinkClosed> {
    let count = cuts.messages.len() + cuts.too_large;
    if count == 0 {
        return Ok(());
    }
    let mut ack = context.sink.enter(count, settle());
    if cuts.too_large > 0 {
        ack.dropped(DropReason::TooLarge, cuts.too_large);
        context.component.warn_limited("too_large", cuts.too_large as u64, || {
            "a message is larger than max_buffer and was dropped; raise max_buffer to let it pass".to_owned()
        });
    }
    let mut messages: Vec<Message> = cuts.messages.into_iter().map(Message::raw).collect();
    messages.iter_mut().for_each(mark);
    context.sink.send(Batch::new(messages, ack)).await
}
