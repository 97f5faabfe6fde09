//! `kafka`: reads topics as a member of a consumer group. Headers become metadata.

mod shared_maps;

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::message::{BorrowedMessage, Message as _};
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec, ParseContext};
use thalweg_record::{Message, Payload};

use crate::cluster;
use crate::consume::{self, ConsumerMetrics, ConsumerOptions, INPUT_KAFKA, RecordDecoder};

use shared_maps::SharedMaps;

/// Metadata that says whether a record has no value; such a record deletes its key in compacted topics.
pub const TOMBSTONE: &str = "kafka_tombstone_message";
const FETCH_BUFFER: &str = "16MiB";

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read(&mut fields);
    let ahead = fields.size("fetch_buffer_bytes", FETCH_BUFFER);
    if !(2_000_000..=1_000_000_000).contains(&ahead) {
        fields.error("fetch_buffer_bytes", "expected 2 MB to 1 GB");
    }
    consume::fetch_ahead(&mut client, ahead);
    let topics = fields.string_list("topics");
    if topics.is_empty() {
        fields.error("topics", "no topic is set; set a list such as [machines]");
    }
    for topic in &topics {
        if let Err(error) = cluster::check_topic(topic) {
            fields.error("topics", error);
        }
    }
    let group = fields.required_string("consumer_group");
    if fields.has("consumer_group") && group.is_empty() {
        fields.error("consumer_group", "it is empty; offsets are committed under this name");
    }
    let from_start = fields.bool("start_from_oldest", true);
    let mut options = ConsumerOptions::new(client, &group, from_start);
    options.topics = topics;
    options.commit_period = fields.duration("commit_period", "1s");
    fields.finish();
    Some(Arc::new(KafkaInputSpec(options)))
}

struct KafkaInputSpec(ConsumerOptions);

impl InputSpec for KafkaInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(KafkaInput(self.0.clone())))
    }
}

struct KafkaInput(ConsumerOptions);

impl Input for KafkaInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let meters = ConsumerMetrics::new(&context.component, &INPUT_KAFKA);
            consume::run(self.0, meters, KafkaRecordDecoder::default(), context).await
        })
    }
}

#[derive(Default)]
struct KafkaRecordDecoder {
    shared: SharedMaps,
}

impl RecordDecoder for KafkaRecordDecoder {
    fn message(&mut self, record: &BorrowedMessage<'_>) -> Option<Message> {
        Some(Message::new(
            Payload::Raw(payload(record)),
            self.shared.metadata(record),
        ))
    }
}

/// The value; empty for a tombstone.
pub fn payload(record: &BorrowedMessage<'_>) -> Bytes {
    Bytes::copy_from_slice(record.payload().unwrap_or_default())
}
