//! `kafka`: records of topics, shared among the members of a consumer group. Headers become metadata.

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec, ParseContext};
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text};
use xxhash_rust::xxh3::xxh3_64;

use crate::cluster;
use crate::consume::{self, Convert, Meters, Options};

/// Metadata that says whether a record has no value, by which its key is deleted where topics are compacted.
pub const TOMBSTONE: &str = "kafka_tombstone_message";
const FETCH_BUFFER: &str = "16MiB";

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read(&mut fields);
    let ahead = fields.size("fetch_buffer_bytes", FETCH_BUFFER);
    if !(2_000_000..=1_000_000_000).contains(&ahead) {
        fields.error("fetch_buffer_bytes", "what is fetched ahead is 2 MB to 1 GB");
    }
    consume::fetch_ahead(&mut client, ahead);
    let topics = fields.string_list("topics");
    if topics.is_empty() {
        fields.error("topics", "no topic is given; give a list, as [machines]");
    }
    for topic in &topics {
        if let Err(error) = cluster::check_topic(topic) {
            fields.error("topics", error);
        }
    }
    let group = fields.required_string("consumer_group");
    if fields.has("consumer_group") && group.is_empty() {
        fields.error(
            "consumer_group",
            "it is empty; what was confirmed is kept under its name",
        );
    }
    let from_start = fields.bool("start_from_oldest", true);
    let mut options = Options::new(client, &group, from_start);
    options.topics = topics;
    options.commit_period = fields.duration("commit_period", "1s");
    fields.finish();
    Some(Arc::new(Spec(options)))
}

struct Spec(Options);

impl InputSpec for Spec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(KafkaInput(self.0.clone())))
    }
}

struct KafkaInput(Options);

impl Input for KafkaInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let meters = Meters::new(&context.component, "input_kafka");
            consume::run(self.0, meters, Records, context).await
        })
    }
}

struct Records;

impl Convert for Records {
    fn message(&mut self, record: &BorrowedMessage<'_>) -> Option<Message> {
        let text = |bytes: &[u8]| Text::from(String::from_utf8_lossy(bytes));
        let headers = record.headers().into_iter().flat_map(|headers| headers.iter());
        let mut entries: Vec<(Text, Text)> = headers
            .map(|header| (header.key.into(), text(header.value.unwrap_or_default())))
            .collect();
        let mut add = |name, value| entries.push((Text::new_static(name), value));
        if let Some(key) = record.key() {
            add("kafka_key", text(key));
        }
        add("kafka_topic", record.topic().into());
        add("kafka_partition", record.partition().to_string().into());
        add("kafka_offset", record.offset().to_string().into());
        if let Some(ms) = record.timestamp().to_millis() {
            add("kafka_timestamp_ms", ms.to_string().into());
            add("kafka_timestamp_unix", ms.div_euclid(1000).to_string().into());
        }
        let tombstone = if record.payload().is_some() { "false" } else { "true" };
        add(TOMBSTONE, Text::new_static(tombstone));
        let meta = Metadata::shared(Arc::new(MetaMap::new(entries, Some(series(record)))));
        Some(Message::new(Payload::Raw(payload(record)), meta))
    }
}

/// What is kept in order: a key, and without one the partition.
fn series(record: &BorrowedMessage<'_>) -> u64 {
    match record.key() {
        Some(key) => xxh3_64(key),
        None => xxh3_64(&record.partition().to_le_bytes()),
    }
}

/// The value; empty for a tombstone.
pub fn payload(record: &BorrowedMessage<'_>) -> Bytes {
    Bytes::copy_from_slice(record.payload().unwrap_or_default())
}
