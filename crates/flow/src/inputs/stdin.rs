//! `stdin`: the standard input, split into messages. The flow ends with it.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_record::{AckResult, Batch, DropReason, Message};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::scanner::{ScanStep, ScannedMessages, ScannerSpec};
use crate::BoxFuture;
use crate::component::{BuildContext, BuildError};
use crate::input::{Input, InputContext, InputError};
use crate::parse::ParseContext;
use crate::registry::InputSpec;

struct StdinInputSpec(ScannerSpec);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let scanner = ScannerSpec::read(&mut fields);
    super::read_auto_replay_nacks(&mut fields);
    fields.finish();
    Some(Arc::new(StdinInputSpec(scanner)))
}

impl InputSpec for StdinInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(StdinInput(self.0.clone())))
    }
}

struct StdinInput(ScannerSpec);

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
    spec: &ScannerSpec,
    context: &InputContext,
    mark: impl Fn(&mut Message),
    settle: impl Fn() -> S,
) -> std::io::Result<bool> {
    let mut scanner = spec.scanner(context.component.title())?;
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let read = tokio::select! {
            () = context.stop.cancelled() => return Ok(false),
            read = stream.read(&mut piece) => read?,
        };
        if read == 0 {
            return Ok(send(scanner.finish()?, context, &mark, &settle).await.is_ok());
        }
        let mut rest = piece.get(..read).unwrap_or_default();
        while let ScanStep::Messages(found) = scanner.step(&mut rest)? {
            if send(found, context, &mark, &settle).await.is_err() {
                return Ok(false);
            }
        }
    }
}

async fn send<S: FnOnce(AckResult) + Send + 'static>(
    found: ScannedMessages,
    context: &InputContext,
    mark: &impl Fn(&mut Message),
    settle: &impl Fn() -> S,
) -> Result<(), crate::SinkClosed> {
    let ScannedMessages {
        mut messages,
        too_large,
        malformed,
    } = found;
    let count = messages.len() + too_large + malformed;
    if count == 0 {
        return Ok(());
    }
    let component = &context.component;
    let mut ack = context.sink.enter(count, settle());
    if too_large > 0 {
        ack.dropped(DropReason::TooLarge, too_large);
        component.warn_limited("too_large", too_large as u64, || {
            "a message is larger than max_buffer and was dropped; raise max_buffer to let it pass".to_owned()
        });
    }
    if malformed > 0 {
        ack.dropped(DropReason::InvalidPayload, malformed);
        component.warn_limited("malformed", malformed as u64, || {
            "a document of the stream is not JSON and was dropped; correct the source, or use another scanner"
                .to_owned()
        });
    }
    let mut failures = messages.iter().filter_map(|message| message.failure.as_ref());
    if let Some(first) = failures.next() {
        let count = 1 + failures.count() as u64;
        component.warn_limited("flagged", count, || format!("message flagged: {}", first.error));
    }
    messages.iter_mut().for_each(mark);
    context.sink.send(Batch::new(messages, ack)).await
}
