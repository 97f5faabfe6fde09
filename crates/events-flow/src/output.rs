//! The output `events`: appends each message of the flow to a stream and confirms it once it is as durable as the store
//! promises. A write is one append if the limits of an append allow it.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields as ConfigFields, Node, kind};
use thalweg_events::{EventsError, Namespace};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, ComponentRegistry, OpenError, Output, OutputContext, OutputSpec,
    ParseContext, Rejection, WriteError, all_but,
};
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message};
use tokio::sync::OnceCell;

use crate::SharedStore;
use crate::group::{StreamGroup, appends, borrowed};
use crate::prepare::{EventFields, Metadata, STREAM_BYTES_MAX, TYPE_BYTES_MAX, expected_of, named};

/// The most batches that share an append, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 256;

pub(crate) fn register(registry: &mut ComponentRegistry, store: Arc<SharedStore>) {
    registry.output(
        "events",
        include_str!("../reference/output-events.txt"),
        move |node, context| parse(node, context, &store),
    );
}

struct EventsOutputSpec {
    store: Arc<SharedStore>,
    namespace: String,
    fields: Arc<EventFields>,
    batching: Option<Batching>,
}

fn parse(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    store: &Arc<SharedStore>,
) -> Option<Arc<dyn OutputSpec>> {
    store.want();
    let mut fields = ConfigFields::new(&node.body, context.diagnostics);
    let namespace = fields.string("namespace", thalweg_events::DEFAULT);
    crate::check_namespace(&namespace, fields.pos_of("namespace"), context.diagnostics);
    let stream = fields.required_node("stream", kind::INTERPOLATED);
    let message_type = fields.required_node("type", kind::INTERPOLATED);
    let metadata = fields.node("metadata", kind::INTERPOLATED_OR_MAPPING);
    let id = fields.node("id", kind::INTERPOLATED);
    let expected = fields.node("expected_version", kind::INTERPOLATED);
    let batching = Batching::read(&mut fields, context);
    fields.finish();
    // Checks every field, so that every mistake is reported.
    let stream = stream.and_then(|node| checked(&node, context, |text| named("stream", text, STREAM_BYTES_MAX)));
    let message_type =
        message_type.and_then(|node| checked(&node, context, |text| named("type", text, TYPE_BYTES_MAX)));
    let metadata = metadata.map(|node| members(&node, context));
    let id = id.map(|node| context.interpolation(&node));
    let expected = expected.map(|node| checked(&node, context, |text| expected_of(&text)));
    let fields = EventFields {
        stream: stream?,
        kind: message_type?,
        metadata: given(metadata)?,
        id: given(id)?,
        expected: given(expected)?,
    };
    Some(Arc::new(EventsOutputSpec {
        store: store.clone(),
        namespace,
        fields: Arc::new(fields),
        batching,
    }))
}

/// `None` for a field with a mistake.
fn given<T>(field: Option<Option<T>>) -> Option<Option<T>> {
    match field {
        None => Some(None),
        Some(read) => read.map(Some),
    }
}

/// A text that is the same for all messages is checked now.
fn checked<T>(
    node: &Node,
    context: &mut ParseContext<'_>,
    check: impl FnOnce(String) -> Result<T, String>,
) -> Option<Interpolation> {
    let text = context.interpolation(node)?;
    if let Some(Err(error)) = text.is_static().map(|text| check(text.to_owned())) {
        context.diagnostics.error(node, error);
        return None;
    }
    Some(text)
}

fn members(node: &Node, context: &mut ParseContext<'_>) -> Option<Metadata> {
    let Some(map) = node.as_map() else {
        return context.interpolation(node).map(Metadata::Text);
    };
    let member = |(name, value): (&thalweg_config::Key, &Node)| {
        let value = context.interpolation(value)?;
        Some((name.as_str().to_owned(), value))
    };
    map.iter().map(member).collect::<Option<_>>().map(Metadata::Members)
}

impl OutputSpec for EventsOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(EventsOutput {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            fields: self.fields.clone(),
            batching: self.batching,
            opened: OnceCell::new(),
        }))
    }
}

struct EventsOutput {
    store: Arc<SharedStore>,
    namespace: String,
    fields: Arc<EventFields>,
    batching: Option<Batching>,
    /// Set once the store is open and the namespace was found.
    opened: OnceCell<crate::OpenStore>,
}

impl Output for EventsOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let opened = self.store.get();
            let opened = opened.ok_or_else(|| OpenError::Temporary("the event store is not open yet".to_owned()))?;
            // A namespace may be created while the process runs.
            let found = opened.store.namespace(&self.namespace).await;
            found.map_err(|error| OpenError::Temporary(error.to_string()))?;
            let _ = self.opened.set(opened);
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(opened) = self.opened.get().cloned() else {
            return Box::pin(std::future::ready(Err(WriteError::Temporary(
                "the event store is not open yet".to_owned(),
            ))));
        };
        let (mut wanted, mut refused) = (Vec::with_capacity(messages.len()), Vec::new());
        for index in 0..messages.len() {
            match self.fields.prepare(&messages, index, opened.message_bytes_max) {
                Ok(message) => wanted.push(message),
                Err(rejection) => refused.push(rejection),
            }
        }
        let name = self.namespace.clone();
        Box::pin(async move {
            // Looked up for each write: the namespace may have been deleted and created again.
            let namespace = opened.store.namespace(&name).await.map_err(temporary)?;
            // When an append fails, the retry repeats the earlier ones too: at least once.
            for groups in appends(wanted) {
                append(namespace.as_ref(), groups, &mut refused)
                    .await
                    .map_err(temporary)?;
            }
            all_but(refused)
        })
    }

    fn joins(&self) -> usize {
        BATCHES_JOINED
    }

    fn batching(&self) -> Option<Batching> {
        self.batching
    }
}

/// Every such error can be resolved by an operator.
fn temporary(error: EventsError) -> WriteError {
    WriteError::Temporary(error.to_string())
}

/// Appends everything that the store does not refuse permanently. The store refuses an append as a whole, so the
/// culprits are removed and the rest is retried.
async fn append(
    namespace: &dyn Namespace,
    groups: Vec<StreamGroup>,
    refused: &mut Vec<Rejection>,
) -> Result<(), EventsError> {
    let mut waiting = VecDeque::from([groups]);
    while let Some(groups) = waiting.pop_front() {
        let Err(error) = namespace.append(&borrowed(&groups)).await else {
            continue;
        };
        let text = error.to_string();
        match error {
            EventsError::VersionConflict { stream, .. } | EventsError::StreamDeleted(stream)
                if has(&groups, &stream) =>
            {
                let (bad, rest): (Vec<StreamGroup>, Vec<StreamGroup>) =
                    groups.into_iter().partition(|group| is_of(group, &stream));
                refuse(bad, DropReason::OutputRejected, &text, refused);
                if !rest.is_empty() {
                    waiting.push_front(rest);
                }
            }
            // A message that is already stored is accepted, but only in an append of its own.
            EventsError::IdConflict { .. } | EventsError::TooLarge(_) => {
                let messages: Vec<_> = groups.into_iter().flatten().collect();
                if messages.len() <= 1 {
                    refuse(vec![messages], DropReason::OutputRejected, &text, refused);
                    continue;
                }
                let singles = messages.into_iter().map(|message| vec![vec![message]]);
                singles.rev().for_each(|single| waiting.push_front(single));
            }
            other => return Err(other),
        }
    }
    Ok(())
}

fn is_of(group: &StreamGroup, stream: &str) -> bool {
    group.first().is_some_and(|first| first.stream == stream)
}

fn has(groups: &[StreamGroup], stream: &str) -> bool {
    groups.iter().any(|group| is_of(group, stream))
}

fn refuse(groups: Vec<StreamGroup>, reason: DropReason, error: &str, refused: &mut Vec<Rejection>) {
    let all = groups.into_iter().flatten();
    refused.extend(all.map(|message| Rejection::permanent(message.index, reason, error)));
}
