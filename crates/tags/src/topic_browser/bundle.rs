//! The wire form of a bundle: protobuf in hexadecimal digits, between marker lines.
//!
//! The map of topics is assembled from encoded entries, because most topics have no event in most intervals; on the
//! wire a map is a list of entries, each with its key and its value.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use prost::encoding::{WireType, encode_key, encode_varint};
use thalweg_record::{Message, Metadata, Payload, Value};
use thalweg_script::{number_seen, text_form};

use super::event::{EventContent, TopicEvent, id_text};
use crate::topic;

const BRIDGED_BY: &str = "bridged_by";

/// Fields of the bundle: a message with the entries of the map, and one with the events.
const TOPICS: u32 = 1;
const EVENTS: u32 = 2;
/// The field of either that contains its entries.
const ENTRIES: u32 = 1;

/// An entry of the map of topics.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TopicEntry {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub topic: Option<BundleTopic>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleTopic {
    #[prost(string, tag = "1")]
    pub level0: String,
    #[prost(string, repeated, tag = "2")]
    pub sublevels: Vec<String>,
    #[prost(string, tag = "3")]
    pub contract: String,
    #[prost(string, optional, tag = "4")]
    pub virtual_path: Option<String>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub metadata: BTreeMap<String, String>,
}

/// An event.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct BundleEvent {
    /// The key of its topic in the map.
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(enumeration = "PayloadFormat", tag = "2")]
    pub format: i32,
    #[prost(message, optional, tag = "5")]
    pub raw: Option<RawMessage>,
    #[prost(string, optional, tag = "6")]
    pub bridged_by: Option<String>,
    #[prost(uint64, tag = "7")]
    pub produced_at_ms: u64,
    #[prost(message, optional, tag = "10")]
    pub series: Option<SeriesPayload>,
    #[prost(message, optional, tag = "11")]
    pub relational: Option<RelationalPayload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum PayloadFormat {
    Unspecified = 0,
    Series = 1,
    Relational = 2,
}

/// The original message.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RawMessage {
    #[prost(btree_map = "string, string", tag = "1")]
    pub headers: BTreeMap<String, String>,
    #[prost(bytes = "bytes", tag = "2")]
    pub payload: Bytes,
}

/// Exactly one of the three values is set, each in its own message, so that 0, false and the empty text are on the wire
/// too.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SeriesPayload {
    #[prost(enumeration = "ScalarType", tag = "1")]
    pub scalar: i32,
    #[prost(message, optional, tag = "2")]
    pub number: Option<f64>,
    #[prost(message, optional, tag = "3")]
    pub text: Option<String>,
    #[prost(message, optional, tag = "4")]
    pub truth: Option<bool>,
    #[prost(int64, tag = "5")]
    pub timestamp_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ScalarType {
    Unspecified = 0,
    Number = 1,
    Text = 2,
    Truth = 3,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RelationalPayload {
    #[prost(bytes = "bytes", tag = "1")]
    pub json: Bytes,
}

/// The payload of the message that carries a bundle.
pub(super) fn text(topics: &[Arc<TopicEvent>], events: &[Arc<TopicEvent>], now_ms: i64) -> String {
    let bytes = encode(topics, events);
    let mut text = String::with_capacity(bytes.len() * 2 + 80);
    text.push_str("STARTSTARTSTART\n");
    for byte in bytes {
        text.push(hex_digit(byte >> 4));
        text.push(hex_digit(byte & 0xf));
    }
    text.push_str("\nENDDATAENDDATAENDDATA\n");
    text.push_str(&now_ms.to_string());
    text.push_str("\nENDENDENDEND");
    text
}

fn hex_digit(digit: u8) -> char {
    char::from(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 })
}

fn encode(topics: &[Arc<TopicEvent>], events: &[Arc<TopicEvent>]) -> Vec<u8> {
    let mut bundle = Vec::new();
    let entries = || {
        topics
            .iter()
            .map(|newest| newest.topic_entry.get_or_init(|| topic_entry(newest)))
    };
    encode_key(TOPICS, WireType::LengthDelimited, &mut bundle);
    encode_varint(entries().map(|entry| entry.len() as u64).sum(), &mut bundle);
    entries().for_each(|entry| bundle.extend_from_slice(entry));
    let mut table = Vec::new();
    for event in events {
        put(ENTRIES, &entry(event), &mut table);
    }
    encode_key(EVENTS, WireType::LengthDelimited, &mut bundle);
    encode_varint(table.len() as u64, &mut bundle);
    bundle.append(&mut table);
    bundle
}

/// A field with a message.
fn put(field: u32, message: &impl prost::Message, out: &mut Vec<u8>) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(message.encoded_len() as u64, out);
    message.encode_raw(out);
}

/// The entry of a topic, as a field of the map.
fn topic_entry(newest: &TopicEvent) -> Vec<u8> {
    let topic = topic::parts(&newest.topic).ok().map(|(place, name)| BundleTopic {
        level0: place.level0().to_owned(),
        sublevels: place.sublevels().map(str::to_owned).collect(),
        contract: place.contract.to_owned(),
        virtual_path: Some(place.path.to_owned()).filter(|path| !path.is_empty()),
        name: name.to_owned(),
        metadata: texts(&newest.message.meta),
    });
    let mut out = Vec::new();
    let id = id_text(newest.id);
    put(ENTRIES, &TopicEntry { id, topic }, &mut out);
    out
}

fn entry(event: &TopicEvent) -> BundleEvent {
    let message = &event.message;
    let payload = payload_bytes(message);
    let (format, series, relational) = match &event.content {
        EventContent::Series { value, time_ms } => (PayloadFormat::Series, Some(series(value, *time_ms)), None),
        EventContent::Relational => {
            let json = payload.clone();
            (PayloadFormat::Relational, None, Some(RelationalPayload { json }))
        }
    };
    BundleEvent {
        id: id_text(event.id),
        format: format.into(),
        raw: Some(RawMessage {
            headers: texts(&message.meta),
            payload,
        }),
        bridged_by: message.meta.get(BRIDGED_BY).map(Into::into),
        produced_at_ms: u64::try_from(event.produced_at_ms).unwrap_or_default(),
        series,
        relational,
    }
}

fn series(value: &Value, timestamp_ms: i64) -> SeriesPayload {
    // A double with the digits of the payload, even for a single-precision number.
    let number = number_seen(value);
    let truth = match value {
        Value::Bool(truth) => Some(*truth),
        _ => None,
    };
    let scalar = match (number, truth) {
        (Some(_), _) => ScalarType::Number,
        (_, Some(_)) => ScalarType::Truth,
        (None, None) => ScalarType::Text,
    };
    SeriesPayload {
        scalar: scalar.into(),
        number,
        text: text_form(value).map(Into::into),
        truth,
        timestamp_ms,
    }
}

fn payload_bytes(message: &Message) -> Bytes {
    match &message.payload {
        Payload::Raw(bytes) => bytes.clone(),
        _ => message.bytes().into_owned().into(),
    }
}

fn texts(meta: &Metadata) -> BTreeMap<String, String> {
    meta.iter()
        .map(|(key, text)| (key.to_owned(), text.into_owned()))
        .collect()
}
