//! `queue`: writes messages to a queue, and confirms them when they are as durable as the queue promises. Key, delay,
//! time to live and properties may depend on the message.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, ComponentRegistry, OpenError, Output, OutputContext, OutputSpec,
    ParseContext, Rejection, WriteError, all_but,
};
use thalweg_log::format::record::KEY_MAX;
use thalweg_log::{SUBMISSION_BYTES_MAX, SUBMISSION_RECORDS_MAX};
use thalweg_mapping::Interpolation;
use thalweg_queue::{NewMessage, PROPERTIES_BYTES_MAX, Queue, QueueError};
use thalweg_record::{DropReason, Message, Payload};

use crate::SharedQueues;
use crate::names::QueueReference;

/// Batches that share one append, which costs the same for one message as for many.
const BATCHES_JOINED: usize = 256;
/// The most that a record takes besides key, properties and value.
const RECORD_BYTES: usize = 64;

pub(super) fn register(registry: &mut ComponentRegistry, store: Arc<SharedQueues>) {
    registry.output(
        "queue",
        include_str!("../reference/output-queue.txt"),
        move |node, context| parse(node, context, &store),
    );
}

struct QueueOutputSpec {
    store: Arc<SharedQueues>,
    name: String,
    fields: Arc<MessageTemplate>,
    batching: Option<Batching>,
}

struct MessageTemplate {
    key: Option<Interpolation>,
    delay: Option<Interpolation>,
    ttl: Option<Interpolation>,
    properties: Vec<(String, Interpolation)>,
}

fn parse(
    node: &ComponentNode,
    context: &mut ParseContext<'_>,
    store: &Arc<SharedQueues>,
) -> Option<Arc<dyn OutputSpec>> {
    store.want();
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let name = fields.required_string("name");
    if !name.is_empty()
        && let Err(error) = thalweg_queue::names::check_name(&name)
    {
        fields.error("name", error);
    }
    store.uses(QueueReference {
        name: name.clone(),
        pos: fields.pos_of("name"),
        reader: None,
    });
    let key = fields.node("key", kind::INTERPOLATED);
    let delay = fields.node("delay", kind::INTERPOLATED_DURATION);
    let ttl = fields.node("ttl", kind::INTERPOLATED_DURATION);
    let properties = fields.node_or("properties", kind::INTERPOLATED_MAPPING, "{}");
    let batching = Batching::read(&mut fields, context);
    fields.finish();
    let mut known = Vec::new();
    if let Some(properties) = properties {
        match properties.expect_map() {
            Ok(map) => {
                for (property, value) in map.iter() {
                    if let Some(message) = misplaced(property.as_str()) {
                        context.diagnostics.error(value, message);
                    }
                    known.push((property.as_str().to_owned(), context.interpolation(value)?));
                }
            }
            Err(error) => context.diagnostics.error(&properties, error),
        }
    }
    let fields = MessageTemplate {
        key: optional(key.as_ref(), context)?,
        delay: optional(delay.as_ref(), context)?,
        ttl: optional(ttl.as_ref(), context)?,
        properties: known,
    };
    Some(Arc::new(QueueOutputSpec {
        store: store.clone(),
        name,
        fields: Arc::new(fields),
        batching,
    }))
}

/// These names control the queue; as properties they would only be stored.
fn misplaced(property: &str) -> Option<String> {
    let instead = match property {
        "partition-key" => "set the field key instead",
        "delay" => "set the field delay instead",
        "deliver-at" => "set the field delay instead, to the time that is left",
        "dedup-id" => "leave it out, since this output sends no dedup-ids",
        _ => return None,
    };
    Some(format!("a property {property} has no effect here; {instead}"))
}

/// Returns `None` after an error.
fn optional(node: Option<&thalweg_config::Node>, context: &mut ParseContext<'_>) -> Option<Option<Interpolation>> {
    match node {
        Some(node) => context.interpolation(node).map(Some),
        None => Some(None),
    }
}

impl OutputSpec for QueueOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(QueueOutput {
            store: self.store.clone(),
            name: self.name.clone(),
            fields: self.fields.clone(),
            batching: self.batching,
            queue: Arc::default(),
        }))
    }
}

struct QueueOutput {
    store: Arc<SharedQueues>,
    name: String,
    fields: Arc<MessageTemplate>,
    batching: Option<Batching>,
    /// The queue that had the name at the last lookup.
    queue: Arc<Mutex<Option<Arc<Queue>>>>,
}

impl Output for QueueOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let queues = self.store.queues();
            let queues = queues.ok_or_else(|| OpenError::Temporary("the log is not open yet".to_owned()))?;
            let queue = queues.get_or_create(&self.name).await;
            // A queue may be created while the process runs.
            let queue = queue.map_err(|error| OpenError::Temporary(error.to_string()))?;
            *self.queue.lock() = Some(queue);
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(queue) = self.queue.lock().clone() else {
            return Box::pin(std::future::ready(Err(WriteError::Temporary(
                "the queue is not open yet".to_owned(),
            ))));
        };
        if queue.is_removed() {
            return self.look_again();
        }
        let (mut wanted, mut places, mut refused) = (Vec::with_capacity(messages.len()), Vec::new(), Vec::new());
        let now = queue.clock().now();
        let limit = queue.settings().max_message_size;
        for index in 0..messages.len() {
            match self.fields.message(&messages, index, now) {
                Ok(message) if too_large(&message, limit).is_some() => {
                    let what = too_large(&message, limit).unwrap_or_default();
                    let error = format!("{what} of queue {}", self.name);
                    refused.push(Rejection::permanent(index, DropReason::TooLarge, error));
                }
                Ok(message) => {
                    wanted.push(message);
                    places.push(index);
                }
                Err(error) => refused.push(Rejection::permanent(index, DropReason::OutputRejected, error)),
            }
        }
        Box::pin(async move {
            let mut rest = wanted.into_iter().peekable();
            // Messages that exceed the limits of the queue never fit into it.
            let (count_max, bytes_max) = queue.most_together();
            let (count_max, bytes_max) = (
                count_max.min(SUBMISSION_RECORDS_MAX),
                bytes_max.min(SUBMISSION_BYTES_MAX),
            );
            while rest.peek().is_some() {
                let (mut piece, mut bytes) = (Vec::new(), 0);
                while let Some(message) = rest.next_if(|next| {
                    let fits = bytes + next.bytes() + RECORD_BYTES <= bytes_max;
                    piece.is_empty() || (fits && piece.len() < count_max)
                }) {
                    bytes += message.bytes() + RECORD_BYTES;
                    piece.push(message);
                }
                // If a piece fails, the earlier pieces are written again with it: delivery is at least once.
                queue.produce_all(piece).await.map_err(temporary)?;
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

impl QueueOutput {
    /// The queue was deleted. The next attempt writes to the queue that has its name then.
    fn look_again(&self) -> BoxFuture<'static, Result<(), WriteError>> {
        let (store, name, slot) = (self.store.clone(), self.name.clone(), self.queue.clone());
        Box::pin(async move {
            let queues = store.queues();
            let queues = queues.ok_or_else(|| WriteError::Temporary("the log is not open any more".to_owned()))?;
            let queue = queues.get_or_create(&name).await.map_err(temporary)?;
            if queue.is_removed() {
                return Err(WriteError::Temporary(format!("queue {name} is closed")));
            }
            tracing::warn!(queue = %name, "its queue was deleted and created again; the flow continues with the new one");
            *slot.lock() = Some(queue);
            Err(WriteError::Temporary(format!(
                "queue {name} was deleted and created again"
            )))
        })
    }
}

/// Why a message can never be stored, unless a limit is changed.
fn too_large(message: &NewMessage, limit: u64) -> Option<String> {
    let key = message.key.as_ref().map_or(0, Bytes::len);
    let properties = message.properties.as_ref().text_bytes();
    if message.payload.len() as u64 > limit {
        let bytes = message.payload.len();
        Some(format!("{bytes} bytes exceed max_message_size ({limit})"))
    } else if key > KEY_MAX {
        Some(format!("a key of {key} bytes exceeds the limit of {KEY_MAX}"))
    } else if properties > PROPERTIES_BYTES_MAX {
        Some(format!(
            "properties of {properties} bytes exceed the limit of {PROPERTIES_BYTES_MAX}"
        ))
    } else {
        None
    }
}

/// An operator or a consumer can resolve any of these errors.
fn temporary(error: QueueError) -> WriteError {
    WriteError::Temporary(error.to_string())
}

impl MessageTemplate {
    fn message(&self, batch: &[Message], index: usize, now: i64) -> Result<NewMessage, String> {
        let message = batch.get(index).ok_or("no such message")?;
        let render = |what: &str, field: &Option<Interpolation>| -> Result<Option<String>, String> {
            let Some(field) = field else { return Ok(None) };
            let text = field.render(batch, index);
            let text = text.map_err(|error| format!("no {what} for the message: {error}"))?;
            Ok(Some(text.as_str().to_owned()))
        };
        let mut properties = Vec::with_capacity(self.properties.len());
        for (name, value) in &self.properties {
            let text = value.render(batch, index);
            let text = text.map_err(|error| format!("no property {name} for the message: {error}"))?;
            properties.push((name.as_str(), text.as_str().to_owned()));
        }
        let mut new = NewMessage {
            payload: payload(message),
            key: render("key", &self.key)?.filter(|key| !key.is_empty()).map(Bytes::from),
            properties: properties.iter().map(|(name, value)| (*name, value.as_str())).collect(),
            ..NewMessage::default()
        };
        if let Some(delay) = render("delay", &self.delay)? {
            let delay = thalweg_queue::message_times::parse_delay(&delay).map_err(|error| error.to_string())?;
            new.not_before = Some(now + delay.as_micros() as i64);
        }
        if let Some(ttl) = render("ttl", &self.ttl)? {
            new.ttl = Some(thalweg_queue::message_times::parse_ttl(&ttl).map_err(|error| error.to_string())?);
        }
        Ok(new)
    }
}

fn payload(message: &Message) -> Bytes {
    match &message.payload {
        Payload::Raw(bytes) => bytes.clone(),
        _ => Bytes::from(message.bytes().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::format::record::Properties;

    use super::*;

    #[test]
    fn what_is_larger_than_its_queue_takes_is_told_with_the_limit() {
        let message = |payload: usize, key: usize, property: usize| NewMessage {
            key: Some(vec![0; key].into()),
            properties: [("n", "x".repeat(property))].into_iter().collect::<Properties>(),
            ..NewMessage::of(vec![0; payload])
        };
        let told = |message: &NewMessage| too_large(message, 1000).unwrap_or_default();
        assert_eq!(told(&message(1000, KEY_MAX, PROPERTIES_BYTES_MAX - 1)), "");
        assert_eq!(told(&message(1001, 0, 0)), "1001 bytes exceed max_message_size (1000)");
        assert_eq!(
            told(&message(0, KEY_MAX + 1, 0)),
            "a key of 65537 bytes exceeds the limit of 65536"
        );
        assert_eq!(
            told(&message(0, 0, PROPERTIES_BYTES_MAX)),
            "properties of 65537 bytes exceed the limit of 65536"
        );
    }
}
