//! `kafka`: reads topics as a member of a consumer group. Headers become metadata.

mod shared_maps;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::message::{BorrowedMessage, Message as _};
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec, ParseContext,
};
use thalweg_record::{Message, Payload};

use crate::cluster;
use crate::consume::{self, ConsumerMetrics, ConsumerOptions, INPUT_KAFKA, RecordDecoder, StartOffset, TopicSelection};

use shared_maps::SharedMaps;

/// Metadata that says whether a record has no value; such a record deletes its key in compacted topics.
pub const TOMBSTONE: &str = "kafka_tombstone_message";
const FETCH_BUFFER: &str = "16MiB";
const CHECKPOINT_MAX: i64 = 1_000_000;
const SESSION_MIN: Duration = Duration::from_secs(1);
const SESSION_MAX: Duration = Duration::from_secs(30 * 60);
const HEARTBEAT_MIN: Duration = Duration::from_millis(100);
/// The client gives its partitions back when it is not called for longer.
const POLL_INTERVAL: Duration = Duration::from_secs(300);

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read(&mut fields);
    fetching(&mut fields, &mut client);
    let topics = topics(&mut fields);
    let as_lists = fields.bool("multi_header", false);
    let group = group(&mut fields, &mut client);
    let start = start(&mut fields);
    let commit_period = fields.duration("commit_period", "1s");
    let checkpoint_limit = fields.opt_int_in("checkpoint_limit", 1..=CHECKPOINT_MAX);
    let replays_nacks = fields.bool("auto_replay_nacks", true);
    let batching = Batching::read(&mut fields, context);
    fields.finish();
    let mut options = ConsumerOptions::new(client, &group, topics?, start);
    options.commit_period = commit_period;
    options.batching = batching;
    options.checkpoint_limit = checkpoint_limit.and_then(|limit| usize::try_from(limit).ok());
    options.replays_nacks = replays_nacks;
    Some(Arc::new(KafkaInputSpec { options, as_lists }))
}

/// Reads what is fetched, and from where.
fn fetching(fields: &mut Fields<'_>, client: &mut ClientConfig) {
    let ahead = fields.size("fetch_buffer_bytes", FETCH_BUFFER);
    if !(2_000_000..=1_000_000_000).contains(&ahead) {
        fields.error("fetch_buffer_bytes", "expected 2 MB to 1 GB");
    }
    consume::fetch_ahead(client, ahead);
    if let Some(bytes) = fields.opt_size("fetch_max_bytes") {
        if !(1_000..=1_000_000_000).contains(&bytes) {
            fields.error("fetch_max_bytes", "expected 1 kB to 1 GB");
        }
        client.set("fetch.max.bytes", bytes.min(ahead / 2).to_string());
    }
    let timeout = fields.duration("timeout", "60s");
    if !(Duration::from_secs(2)..=Duration::from_secs(300)).contains(&timeout) {
        fields.error("timeout", "expected 2s to 5m");
    }
    client.set("socket.timeout.ms", timeout.as_millis().to_string());
}

/// Returns `None` after a mistake.
fn topics(fields: &mut Fields<'_>) -> Option<TopicSelection> {
    let topics = fields.string_list("topics");
    let are_patterns = fields.bool("regexp_topics", false);
    if topics.is_empty() {
        fields.error("topics", "no topic is set; set a list such as [machines]");
        return None;
    }
    match TopicSelection::parse(&topics, are_patterns) {
        Ok(topics) => Some(topics),
        Err(errors) => {
            errors.iter().for_each(|error| fields.error("topics", error));
            None
        }
    }
}

/// Reads the group and the membership in it.
fn group(fields: &mut Fields<'_>, client: &mut ClientConfig) -> String {
    let group = fields.required_string("consumer_group");
    if fields.has("consumer_group") && group.is_empty() {
        fields.error("consumer_group", "it is empty; offsets are committed under this name");
    }
    let id = cluster::either(fields, "group_instance_id", "instance_id");
    if !id.is_empty() {
        client.set("group.instance.id", id);
    }
    let session = fields.duration("session_timeout", "45s");
    if !(SESSION_MIN..=SESSION_MAX).contains(&session) {
        fields.error("session_timeout", "expected 1s to 30m");
    }
    let heartbeat = fields.duration("heartbeat_interval", "3s");
    if heartbeat < HEARTBEAT_MIN {
        fields.error("heartbeat_interval", "expected at least 100ms");
    }
    if heartbeat >= session {
        fields.error(
            "heartbeat_interval",
            "it must be shorter than session_timeout; a third of it is usual",
        );
    }
    client
        .set("session.timeout.ms", session.as_millis().to_string())
        .set("heartbeat.interval.ms", heartbeat.as_millis().to_string())
        // The client requires it to be at least as long.
        .set(
            "max.poll.interval.ms",
            session.max(POLL_INTERVAL).as_millis().to_string(),
        );
    group
}

fn start(fields: &mut Fields<'_>) -> StartOffset {
    let start = fields.opt_one_of("start_offset", &["earliest", "latest", "committed"]);
    let is_oldest = fields.bool("start_from_oldest", true);
    if start.is_some() && fields.has("start_from_oldest") {
        fields.error("start_from_oldest", "start_offset says the same; keep only one");
    }
    match (start, is_oldest) {
        (Some("committed"), _) => StartOffset::Committed,
        (Some("latest"), _) | (None, false) => StartOffset::Latest,
        _ => StartOffset::Earliest,
    }
}

struct KafkaInputSpec {
    options: ConsumerOptions,
    as_lists: bool,
}

impl InputSpec for KafkaInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        Ok(Box::new(KafkaInput {
            options: self.options.clone(),
            records: KafkaRecordDecoder {
                shared: SharedMaps::new(self.as_lists),
            },
        }))
    }
}

struct KafkaInput {
    options: ConsumerOptions,
    records: KafkaRecordDecoder,
}

impl Input for KafkaInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let meters = ConsumerMetrics::new(&context.component, &INPUT_KAFKA);
            consume::run(self.options, meters, self.records, context).await
        })
    }
}

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
