//! `kafka`: writes one record per message, confirmed when the broker has it. Metadata becomes headers.

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use thalweg_config::{ComponentNode, Fields, kind};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext,
    Rejection, WriteError,
};
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message, Payload};
use tokio::sync::OnceCell;

use crate::cluster;
use crate::input::TOMBSTONE;
use crate::produce::{self, Producer, ProducerRecord, RecordEncoder};

const IN_FLIGHT: i64 = 10;
const IN_FLIGHT_MAX: i64 = 1000;
const MESSAGE_BYTES: &str = "1MB";
const IN_FLIGHT_BYTES: &str = "64MiB";
const COMPRESSIONS: [&str; 4] = ["none", "gzip", "snappy", "lz4"];

/// Metadata that only one stage uses.
const INTERNAL: [&str; 2] = ["_initialMetadata", "_incomingKeys"];

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read(&mut fields);
    produce::settle(&mut client);
    let topic = fields.required_node("topic", kind::INTERPOLATED);
    let key = fields.node("key", kind::INTERPOLATED);
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
    let (topic, key) = (topic?, key.map_or(Some(None), |key| key.map(Some))?);
    Some(Arc::new(KafkaOutputSpec {
        client,
        records: Arc::new(KafkaRecordEncoder { topic, key, exclude }),
        max_in_flight: usize::try_from(max_in_flight).unwrap_or(1),
        bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        batching,
    }))
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
    exclude: Vec<String>,
}

impl RecordEncoder for KafkaRecordEncoder {
    fn record(&self, messages: &[Message], index: usize) -> Result<ProducerRecord, Rejection> {
        let refused = |error: String| Rejection::permanent(index, DropReason::OutputRejected, error);
        let render = |name: &str, text: &Interpolation| {
            let rendered = text.render(messages, index);
            rendered.map_err(|error| refused(format!("{name}: {error}")))
        };
        let topic = render("topic", &self.topic)?;
        cluster::check_topic(&topic).map_err(refused)?;
        let key = self.key.as_ref().map(|key| render("key", key)).transpose()?;
        let Some(message) = messages.get(index) else {
            return Err(refused("there is no such message".to_owned()));
        };
        let is_excluded = |name: &str| self.exclude.iter().any(|prefix| name.starts_with(prefix));
        Ok(ProducerRecord {
            topic,
            key,
            headers: headers(message, is_excluded),
            value: value(message),
        })
    }
}

/// Returns the metadata as headers, except excluded names.
pub fn headers(message: &Message, is_excluded: impl Fn(&str) -> bool) -> OwnedHeaders {
    let mut headers = OwnedHeaders::new();
    for (name, value) in message.meta.iter() {
        if !INTERNAL.contains(&name) && !is_excluded(name) {
            headers = headers.insert(Header {
                key: name,
                value: Some(value.as_bytes()),
            });
        }
    }
    headers
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
