//! A message as an event of its topic.

use std::sync::OnceLock;

use thalweg_record::{DropReason, Message, Object, Payload, Text, Value, json};
use thalweg_script::{payload_value, text_form};
use xxhash_rust::xxh64::xxh64;

use crate::datatype::json_form;
use crate::results::DropCause;
use crate::time::whole_ms;
use crate::topic::TopicParts;

/// Metadata key of the Kafka input with the time at which a message was produced.
const KAFKA_TIMESTAMP_MS: &str = "kafka_timestamp_ms";

/// A message with its parsed properties.
#[derive(Debug)]
pub(super) struct TopicEvent {
    /// The topic's id, see [`id_of`].
    pub id: u64,
    pub topic: Text,
    pub message: Message,
    pub content: EventContent,
    pub produced_at_ms: i64,
    /// Approximate memory, see [`TopicEvent::new`].
    pub bytes: usize,
    /// The entry of its topic in bundles, while this is the topic's newest event, so that quiet topics are encoded
    /// once.
    pub topic_entry: OnceLock<Vec<u8>>,
}

impl TopicEvent {
    /// The memory includes all of the metadata shared by the topic's messages, because this event may be the last
    /// reference to it. It counts this twice, because the entry of bundles is built from the same texts later.
    pub fn new(mut message: Message, topic: Text, id: u64, content: EventContent, arrived_ms: i64) -> TopicEvent {
        message.payload.detach();
        let produced_at_ms = message.meta.get(KAFKA_TIMESTAMP_MS).and_then(|text| text.parse().ok());
        let meta = &message.meta;
        let shared = meta.shared_map().memory_bytes();
        let of_entry = topic.len() + meta.heap_bytes() + shared;
        TopicEvent {
            id,
            produced_at_ms: produced_at_ms.unwrap_or(arrived_ms),
            bytes: size_of::<TopicEvent>() + message.own_bytes() + topic.len() + shared + of_entry,
            topic,
            message,
            content,
            topic_entry: OnceLock::new(),
        }
    }

    /// The current value of the topic, and its time.
    pub fn last(&self) -> (Value, i64) {
        match &self.content {
            EventContent::Series { value, time_ms } => (value.clone(), *time_ms),
            EventContent::Relational => (payload_value(&self.message.payload).into_owned(), self.produced_at_ms),
        }
    }
}

/// How consumers classify a payload.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum EventContent {
    /// Exactly a scalar `value` and its `timestamp_ms`.
    Series { value: Value, time_ms: i64 },
    /// Any other object.
    Relational,
}

impl EventContent {
    pub fn of(payload: &Payload) -> Result<EventContent, DropCause> {
        let parsed;
        let value = match payload {
            Payload::Sample { value, time_ms } => {
                json_form(value).map_err(|why| (DropReason::InvalidValue, why))?;
                return Ok(EventContent::of_parts(value, Some(*time_ms)));
            }
            Payload::Value(value) => value,
            Payload::Raw(bytes) => {
                parsed = json::parse(bytes).map_err(|error| no_object(&error.to_string()))?;
                &parsed
            }
        };
        let Value::Object(object) = value else {
            return Err(no_object(&format!("it is of type {}", value.type_name())));
        };
        json_form(value).map_err(|why| (DropReason::InvalidValue, why))?;
        Ok(sample_of(object).unwrap_or(EventContent::Relational))
    }

    fn of_parts(value: &Value, time_ms: Option<i64>) -> EventContent {
        let is_scalar = matches!(value, Value::Bool(_)) || value.is_number() || text_form(value).is_some();
        match time_ms.filter(|_| is_scalar) {
            Some(time_ms) => EventContent::Series {
                value: value.clone(),
                time_ms,
            },
            None => EventContent::Relational,
        }
    }
}

fn sample_of(object: &Object) -> Option<EventContent> {
    let (value, time) = (object.get("value")?, object.get("timestamp_ms")?);
    (object.len() == 2).then(|| EventContent::of_parts(value, whole_ms(time)))
}

fn no_object(why: &str) -> DropCause {
    let text = format!("the payload is not a JSON object: {why}; a topic's messages are samples or other objects");
    (DropReason::InvalidPayload, text)
}

/// The xxHash64 by which consumers identify a topic, over its parts, each followed by a NUL.
pub(super) fn id_of((place, name): (TopicParts<'_>, &str)) -> u64 {
    let parts = place.location.split('.').chain([place.contract]);
    let path = Some(place.path).filter(|path| !path.is_empty());
    let mut text = String::new();
    for part in parts.chain(path).chain([name]) {
        text.push_str(part);
        text.push('\0');
    }
    xxh64(text.as_bytes(), 0)
}

/// An id in text form.
pub(super) fn id_text(id: u64) -> String {
    format!("{id:016x}")
}
