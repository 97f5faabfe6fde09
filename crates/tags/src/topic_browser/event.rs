//! A message as an event of its topic.

use std::sync::OnceLock;

use thalweg_record::{DropReason, Message, Object, Payload, Text, Value, json};
use thalweg_script::{payload_value, text_form};
use xxhash_rust::xxh64::xxh64;

use crate::datatype::json_form;
use crate::results::DropCause;
use crate::topic::TopicParts;

/// What the Kafka input says of when a message was produced.
const KAFKA_TIMESTAMP_MS: &str = "kafka_timestamp_ms";

/// A message, and what was read of it once.
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
    /// The entry of its topic in bundles, for as long as this is the newest event of it: quiet topics are encoded once.
    pub topic_entry: OnceLock<Vec<u8>>,
}

impl TopicEvent {
    /// Its memory counts the metadata that the topic's messages share in full, since this one may be the last that holds it, and once
    /// more for the entry of bundles, which is made of the same texts and counted before it is there.
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

    /// The value that the topic has now, and since when.
    pub fn last(&self) -> (Value, i64) {
        match &self.content {
            EventContent::Series { value, time_ms } => (value.clone(), *time_ms),
            EventContent::Relational => (payload_value(&self.message.payload).into_owned(), self.produced_at_ms),
        }
    }
}

/// What a payload is to consumers.
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
    (object.len() == 2).then(|| EventContent::of_parts(value, time.as_i64()))
}

fn no_object(why: &str) -> DropCause {
    let text = format!("the payload is no JSON object: {why}; a topic's messages are samples or other objects");
    (DropReason::InvalidPayload, text)
}

/// The xxHash64 by which consumers know a topic: of each of its parts, with a NUL behind it.
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

/// An id as texts have it.
pub(super) fn id_text(id: u64) -> String {
    format!("{id:016x}")
}
