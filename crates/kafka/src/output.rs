//! `kafka`: writes one record per message, confirmed when the broker has it. Metadata becomes headers.

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::ClientConfig;
use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext,
    Rejection, WriteError,
};
use thalweg_mapping::{Interpolation, RenderedValue};
use thalweg_record::{DropReason, Message, Payload};
use tokio::sync::OnceCell;

use crate::input::TOMBSTONE;
use crate::produce::{self, Producer, ProducerRecord, RecordEncoder, RecordKey};
use crate::{cluster, header_list, text_bytes};

const IN_FLIGHT: i64 = 10;
const IN_FLIGHT_MAX: i64 = 1000;
const MESSAGE_BYTES: &str = "1MB";
const IN_FLIGHT_BYTES: &str = "64MiB";
/// This much of a wrong value is shown.
const SHOWN_CHARS: usize = 40;
const COMPRESSIONS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read(&mut fields);
    produce::settle(&mut client);
    let topic = fields.required_node("topic", kind::INTERPOLATED);
    let key = fields.node("key", kind::INTERPOLATED);
    let time = time(&mut fields);
    let mut metadata = fields.fields("metadata");
    let exclude = metadata.string_list("exclude_prefixes");
    metadata.finish();
    durability(&mut fields, &mut client);
    client.set("compression.type", fields.one_of("compression", &COMPRESSIONS, "none"));
    sizes(&mut fields, &mut client);
    let max_in_flight = fields.int_in("max_in_flight", IN_FLIGHT, 1..=IN_FLIGHT_MAX);
    let bytes_max = fields.size("max_in_flight_bytes", IN_FLIGHT_BYTES);
    let batching = Batching::read(&mut fields, context);
    fields.finish();
    let topic = topic.and_then(|node| {
        let text = context.interpolation(&node)?;
        if let Some(Err(error)) = text.is_static().map(cluster::check_topic) {
            context.diagnostics.error(&node, error);
        }
        Some(text)
    });
    let key = key.map(|node| context.interpolation(&node));
    let time = time.map(|(name, node)| Some((name, context.interpolation(&node)?)));
    let (topic, key) = (topic?, key.map_or(Some(None), |key| key.map(Some))?);
    // A key that is empty in the file is none.
    let key = key.filter(|key| key.is_static() != Some(""));
    let time = time.map_or(Some(None), |time| time.map(Some))?;
    Some(Arc::new(KafkaOutputSpec {
        client,
        records: Arc::new(KafkaRecordEncoder {
            topic,
            key,
            time,
            exclude,
        }),
        max_in_flight: usize::try_from(max_in_flight).unwrap_or(1),
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        batching,
    }))
}

/// The fields that give the time of a record, with their units in milliseconds.
const TIMES: [(&str, i64); 2] = [("timestamp_ms", 1), ("timestamp", 1000)];

/// Reads the time of records: the name of the field, and its text.
fn time(fields: &mut Fields<'_>) -> Option<(&'static str, Node)> {
    let [ms, seconds] = TIMES.map(|(name, _)| Some((name, fields.node(name, kind::INTERPOLATED)?)));
    if ms.is_some() && seconds.is_some() {
        fields.error(
            "timestamp",
            "timestamp_ms means the same in milliseconds; keep only one",
        );
    }
    ms.or(seconds)
}

/// Reads how many brokers must have a record before it is confirmed, and whether a resent record is deduplicated.
fn durability(fields: &mut Fields<'_>, client: &mut ClientConfig) {
    let all = fields.bool("ack_replicas", true);
    let once = fields.bool("idempotent_write", all);
    if once && !all {
        fields.error("idempotent_write", "it needs ack_replicas: true");
    }
    client.set("acks", if all { "all" } else { "1" });
    // Without the sequence numbers of the idempotent producer, a second request in flight could overtake a resent one.
    match once {
        true => client.set("enable.idempotence", "true"),
        false => client.set("max.in.flight.requests.per.connection", "1"),
    };
}

fn sizes(fields: &mut Fields<'_>, client: &mut ClientConfig) {
    let name = ["max_message_bytes", "max_msg_bytes"]
        .into_iter()
        .find(|name| fields.has(name));
    let name = name.unwrap_or("max_message_bytes");
    let bytes = fields.size(name, MESSAGE_BYTES);
    if !(1_000..=1_000_000_000).contains(&bytes) {
        fields.error(name, "expected 1 kB to 1 GB");
    }
    client.set("message.max.bytes", bytes.to_string());
}

struct KafkaOutputSpec {
    client: ClientConfig,
    records: Arc<KafkaRecordEncoder>,
    max_in_flight: usize,
    bytes_max: usize,
    batching: Option<Batching>,
}

impl OutputSpec for KafkaOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(KafkaOutput {
            client: self.client.clone(),
            records: self.records.clone(),
            max_in_flight: self.max_in_flight,
            bytes_max: self.bytes_max,
            batching: self.batching,
            producer: OnceCell::new(),
        }))
    }
}

struct KafkaOutput {
    client: ClientConfig,
    records: Arc<KafkaRecordEncoder>,
    max_in_flight: usize,
    bytes_max: usize,
    batching: Option<Batching>,
    producer: OnceCell<Producer>,
}

impl Output for KafkaOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let (records, topic) = (self.records.clone(), self.records.topic.is_static());
            let opening = || Producer::open(&self.client, topic, records, self.bytes_max, context);
            self.producer.get_or_try_init(opening).await.map(drop)
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        write(&self.producer, messages)
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight
    }

    fn batching(&self) -> Option<Batching> {
        self.batching
    }
}

/// Writes with a producer that was opened before.
pub fn write(producer: &OnceCell<Producer>, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
    match producer.get() {
        Some(producer) => producer.write(messages),
        None => {
            let error = WriteError::Temporary("the producer is not open yet".to_owned());
            Box::pin(std::future::ready(Err(error)))
        }
    }
}

struct KafkaRecordEncoder {
    topic: Interpolation,
    key: Option<Interpolation>,
    /// The name of the field, and its text.
    time: Option<(&'static str, Interpolation)>,
    exclude: Vec<String>,
}

impl RecordEncoder for KafkaRecordEncoder {
    fn record(&self, messages: &[Message], index: usize) -> Result<ProducerRecord, Rejection> {
        let Some(message) = messages.get(index) else {
            return Err(refused(index, "there is no such message".to_owned()));
        };
        let topic = self.topic.render(messages, index);
        let topic = topic.map_err(|error| refused(index, format!("topic: {error}")))?;
        cluster::check_topic(&topic).map_err(|error| refused(index, error))?;
        let is_excluded = |name: &str| self.exclude.iter().any(|prefix| name.starts_with(prefix));
        Ok(ProducerRecord {
            topic,
            key: self.key(messages, index, header_list::is_escaped(&message.meta))?,
            time_ms: self.time_ms(messages, index)?,
            headers: header_list::of_message(message, is_excluded),
            value: value(message),
        })
    }
}

fn refused(index: usize, error: String) -> Rejection {
    Rejection::permanent(index, DropReason::OutputRejected, error)
}

impl KafkaRecordEncoder {
    /// Returns no key if its expression gives null or nothing. An empty text is a key.
    fn key(&self, messages: &[Message], index: usize, is_escaped: bool) -> Result<Option<RecordKey>, Rejection> {
        let Some(key) = &self.key else { return Ok(None) };
        let rendered = key.render_optional(messages, index);
        let rendered = rendered.map_err(|error| refused(index, format!("key: {error}")))?;
        Ok(rendered.map(|value| match value {
            RenderedValue::Text(text) if is_escaped => RecordKey::Bytes(text_bytes::bytes_of(&text).into()),
            RenderedValue::Text(text) => RecordKey::Text(text),
            RenderedValue::Bytes(bytes) => RecordKey::Bytes(bytes),
        }))
    }

    /// Returns no time if its expression gives null, nothing or an empty text.
    fn time_ms(&self, messages: &[Message], index: usize) -> Result<Option<i64>, Rejection> {
        let Some((name, text)) = &self.time else {
            return Ok(None);
        };
        let rendered = text.render_optional(messages, index);
        let rendered = rendered.map_err(|error| refused(index, format!("{name}: {error}")))?;
        let Some(rendered) = rendered else { return Ok(None) };
        let text = String::from_utf8_lossy(rendered.as_bytes());
        if text.trim().is_empty() {
            return Ok(None);
        }
        let unit_ms = TIMES
            .iter()
            .find(|(known, _)| known == name)
            .map_or(1, |(_, unit_ms)| *unit_ms);
        let number = text.trim().parse::<i64>().ok().filter(|number| *number >= 0);
        let time_ms = number.and_then(|number| number.checked_mul(unit_ms));
        time_ms.map(Some).ok_or_else(|| {
            let unit = if unit_ms == 1 { "milliseconds" } else { "seconds" };
            let shown: String = text.chars().take(SHOWN_CHARS).collect();
            let error = format!("{name}: expected {unit} since 1970 as a whole number, got \"{shown}\"");
            Rejection::permanent(index, DropReason::InvalidValue, error)
        })
    }
}

/// Returns the payload. A tombstone has none, because an empty value would not delete its key.
pub fn value(message: &Message) -> Option<Bytes> {
    let bytes = match &message.payload {
        Payload::Raw(bytes) => bytes.clone(),
        _ => Bytes::from(message.bytes().into_owned()),
    };
    let is_tombstone = || message.meta.get(TOMBSTONE).is_some_and(|text| text == "true");
    if bytes.is_empty() && is_tombstone() {
        None
    } else {
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoder(key: &str, time: Option<(&'static str, &str)>) -> KafkaRecordEncoder {
        let compile = |text: &str| Interpolation::compile(text).unwrap();
        KafkaRecordEncoder {
            topic: compile("t"),
            key: Some(compile(key)),
            time: time.map(|(name, text)| (name, compile(text))),
            exclude: vec!["kafka_".to_owned()],
        }
    }

    fn key(text: &str, message: Message) -> Option<Vec<u8>> {
        let record = encoder(text, None).record(&[message], 0).ok().unwrap();
        record.key.map(|key| key.as_bytes().to_vec())
    }

    #[test]
    fn a_key_is_what_its_expression_gives() {
        for (text, expected) in [
            ("${! json(\"id\") }", None),
            ("${! json(\"none\") }", None),
            ("${! meta(\"none\") }", None),
            ("${! @none }", None),
            ("${! nothing() }", None),
            ("${! json(\"empty\") }", Some(&b""[..])),
            ("${! json(\"n\") }", Some(b"7")),
            ("${! json(\"text\") }", Some(b"null")),
            ("plant-${! json(\"id\") }", Some(b"plant-null")),
            ("${! json(\"bytes\").decode(\"base64\") }", Some(b"\xff\x00")),
        ] {
            let message = Message::raw(r#"{"id": null, "empty": "", "n": 7, "text": "null", "bytes": "/wA="}"#);
            assert_eq!(key(text, message).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn private_characters_are_bytes_only_in_messages_that_were_read_so() {
        let mut message = Message::raw("x");
        message.meta.set("kafka_key", "\u{f7e9}1");
        let text = "${! @kafka_key }-";
        assert_eq!(key(text, message.clone()).unwrap(), "\u{f7e9}1-".as_bytes());
        message.meta.set(text_bytes::ESCAPED, "true");
        assert_eq!(key(text, message).unwrap(), b"\xe91-");
    }

    #[test]
    fn the_time_of_a_record_may_be_set() {
        let time = |name: &'static str, text: &str| {
            let mut message = Message::raw("{}");
            message.meta.set("ms", " 1700000000123 ");
            let record = encoder("k", Some((name, text))).record(&[message], 0);
            record.map(|record| record.time_ms)
        };
        assert_eq!(time("timestamp_ms", "${! @ms }").ok().unwrap(), Some(1_700_000_000_123));
        assert_eq!(time("timestamp", "1700000000").ok().unwrap(), Some(1_700_000_000_000));
        for absent in ["${! @none }", "${! json(\"none\") }", "", " "] {
            assert_eq!(time("timestamp_ms", absent).ok().unwrap(), None, "{absent}");
        }
        for wrong in ["-1", "1.5", "soon", "9223372036854775807"] {
            let rejection = time("timestamp", wrong).err().unwrap();
            assert_eq!(rejection.permanent, Some(DropReason::InvalidValue), "{wrong}");
            let error = format!("timestamp: expected seconds since 1970 as a whole number, got \"{wrong}\"");
            assert_eq!(rejection.error.as_str(), error);
        }
    }
}
