//! The consumer of a group as an input: records become batches, and offsets that the flow has confirmed are committed.
//!
//! One dedicated thread drives the client, because its calls block and its callbacks run within them. It fetches only
//! while the flow accepts batches: one batch is collected, one waits, and the client's fetch queue is bounded in bytes.

mod batch_builder;
mod callbacks;
mod commit_metadata;
mod consumer_thread;
mod coverage;
mod identity;
mod lag;
mod metrics;
mod poll_error;
mod probe;
mod prober;
mod starting_point;
mod topic_selection;
mod tracker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::BorrowedMessage;
use thalweg_flow::{Batching, InputContext, InputError};
use thalweg_kit::threads;
use thalweg_record::{AckResult, Batch, FilterReason, Message};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use callbacks::ConsumerCallbacks;
use consumer_thread::ConsumerThread;
use lag::PartitionEnds;
pub use metrics::{ConsumerMetrics, INPUT_KAFKA, INPUT_KAFKA_METRICS, INPUT_UNS, INPUT_UNS_METRICS};
use poll_error::BrokerRefusal;
pub use topic_selection::TopicSelection;
use tracker::OffsetTracker;

use crate::link::BrokerLink;

/// Default limit of the client's fetch queue, in bytes.
pub const FETCHED_AHEAD: u64 = 16 << 20;
/// Maximum time for the last commit and leaving the group, after the flow has settled everything.
const FAREWELL: Duration = Duration::from_secs(8);

/// Where a group begins in a partition of which it has committed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOffset {
    Earliest,
    Latest,
    /// The partition is not read until something is committed.
    Committed,
}

/// What the consumer reads, and how.
#[derive(Clone)]
pub struct ConsumerOptions {
    pub client: ClientConfig,
    pub addresses: String,
    pub topics: TopicSelection,
    pub commit_period: Duration,
    /// Batches are collected up to one of these limits; without them they contain what is there.
    pub batching: Option<Batching>,
    /// Maximum records of a partition in the flow.
    pub checkpoint_limit: Option<usize>,
    /// Whether records that the flow gives back are read again; else they are committed.
    pub replays_nacks: bool,
    group: String,
    start: StartOffset,
}

impl ConsumerOptions {
    /// Options of a member of `group`.
    pub fn new(mut client: ClientConfig, group: &str, topics: TopicSelection, start: StartOffset) -> ConsumerOptions {
        client
            .set("group.id", group)
            // Applies when records were deleted before they were read: continue with the oldest one. The starting
            // points of partitions are not left to the client.
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("allow.auto.create.topics", "false")
            .set("check.crcs", "true")
            // The same strategy as the group's members of the reference system, because cooperative and eager members
            // cannot share a group.
            .set("partition.assignment.strategy", "cooperative-sticky")
            // A topic created after the subscription is discovered within this time.
            .set("topic.metadata.refresh.interval.ms", "10000")
            // Reaching the end of a partition shows that it can be read.
            .set("enable.partition.eof", "true")
            // The statistics are the only place where the client reports where a partition ends.
            .set("statistics.interval.ms", "3000")
            // The client reports offset resets only in its log.
            .set_log_level(RDKafkaLogLevel::Info)
            // Refill the fetch queue soon after it has room.
            .set("fetch.queue.backoff.ms", "50");
        ConsumerOptions {
            addresses: client.get("bootstrap.servers").unwrap_or_default().to_owned(),
            client,
            topics,
            commit_period: Duration::from_secs(1),
            batching: None,
            checkpoint_limit: None,
            replays_nacks: true,
            group: group.to_owned(),
            start,
        }
    }
}

/// Limits what is fetched ahead, over all partitions: one response of a broker may come on top, half as large.
pub fn fetch_ahead(client: &mut ClientConfig, bytes: u64) {
    client
        .set("queued.max.messages.kbytes", (bytes / 1024).to_string())
        .set("fetch.max.bytes", (bytes / 2).to_string());
}

/// Converts records to messages.
pub trait RecordDecoder: Send + 'static {
    /// Returns `None` if the record is filtered out.
    fn message(&mut self, record: &BorrowedMessage<'_>) -> Option<Message>;
}

/// State shared by the thread and the input.
struct ConsumerState {
    link: BrokerLink,
    meters: ConsumerMetrics,
    tracker: Mutex<OffsetTracker>,
    /// Fetch nothing more.
    draining: AtomicBool,
    /// Everything is settled: commit and leave.
    finished: AtomicBool,
    /// Newly assigned partitions must not be fetched yet.
    holding: AtomicBool,
    /// Run the probe now.
    probe_now: AtomicBool,
    /// The client reported an offset reset; the first record after it has not arrived yet.
    was_reset: AtomicBool,
    /// Why the broker refuses this client, as the client reported it.
    refused: Mutex<Option<BrokerRefusal>>,
    /// The number of topics that are read.
    topics: AtomicUsize,
    /// Whether partitions are assigned by hand and not by the group.
    is_assigned_by_hand: bool,
    /// Where partitions end.
    ends: Mutex<PartitionEnds>,
    /// When the unanswered commits were sent, the oldest first.
    commits: Mutex<VecDeque<Instant>>,
}

/// A batch for the flow.
struct FetchedBatch {
    messages: Vec<Message>,
    /// Records that were filtered out; they belong to the batch, because they are confirmed with it.
    filtered: usize,
    number: u64,
}

/// Reads until the flow stops.
pub async fn run(
    options: ConsumerOptions,
    meters: ConsumerMetrics,
    convert: impl RecordDecoder,
    context: InputContext,
) -> Result<(), InputError> {
    let link = BrokerLink::new(
        context.component.clone(),
        context.connection.clone(),
        options.addresses.clone(),
    );
    let shared = Arc::new(ConsumerState {
        link,
        meters,
        tracker: Mutex::default(),
        draining: AtomicBool::new(false),
        finished: AtomicBool::new(false),
        holding: AtomicBool::new(false),
        probe_now: AtomicBool::new(false),
        was_reset: AtomicBool::new(false),
        refused: Mutex::default(),
        topics: AtomicUsize::new(options.topics.names().len()),
        is_assigned_by_hand: matches!(options.topics, TopicSelection::Partitions(_)),
        ends: Mutex::default(),
        commits: Mutex::default(),
    });
    lag::export(&shared, &context.component);
    let replays_nacks = options.replays_nacks;
    let (out, mut fetched) = mpsc::channel(1);
    let (end, ended) = oneshot::channel();
    let (runtime, of_thread) = (Handle::current(), shared.clone());
    // The client is created and dropped on this thread, because both may take long.
    let read = move || {
        let consumer = BaseConsumer::from_config_and_context(&options.client, ConsumerCallbacks(of_thread.clone()))
            .map_err(|error| format!("the Kafka client rejects its settings: {error}"))?;
        ConsumerThread::new(consumer, of_thread, convert, out, options, runtime).run()
    };
    let spawned = threads::spawn("kafka-read", move || drop(end.send(read())));
    spawned.map_err(|error| InputError(format!("cannot start the thread that reads from Kafka: {error}")))?;

    let leaving = ThreadStopGuard(&shared);
    if let StopReason::ThreadEnded = pass_on(&mut fetched, &shared, &context, replays_nacks).await {
        let why = ended.await.ok().and_then(Result::err);
        let why = why.unwrap_or_else(|| "the thread that reads from Kafka has failed; restart the process".to_owned());
        context.connection.given_up(&why);
        return Err(InputError(why));
    }
    shared.draining.store(true, Ordering::Relaxed);
    context.sink.settled().await;
    drop(leaving);
    if tokio::time::timeout(FAREWELL, ended).await.is_err() {
        context.component.warn_limited("farewell", 1, || {
            "the broker did not answer the last commit; records since the previous commit will be read again".to_owned()
        });
    }
    Ok(())
}

/// Makes the thread end, also when the flow gives the input up.
struct ThreadStopGuard<'s>(&'s ConsumerState);

impl Drop for ThreadStopGuard<'_> {
    fn drop(&mut self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.finished.store(true, Ordering::Relaxed);
    }
}

/// Why no more batches are passed on.
enum StopReason {
    Stopped,
    ThreadEnded,
}

async fn pass_on(
    fetched: &mut mpsc::Receiver<FetchedBatch>,
    shared: &Arc<ConsumerState>,
    context: &InputContext,
    replays_nacks: bool,
) -> StopReason {
    loop {
        let next = async {
            context.sink.has_room().await;
            fetched.recv().await
        };
        let next = tokio::select! {
            biased;
            () = context.stop.cancelled() => return StopReason::Stopped,
            next = next => next,
        };
        let Some(FetchedBatch {
            messages,
            filtered,
            number,
        }) = next
        else {
            return StopReason::ThreadEnded;
        };
        let (shared, stop) = (shared.clone(), context.stop.clone());
        let mut ack = context
            .sink
            .enter_redeliverable(messages.len() + filtered, move |outcome| {
                // What a stop gives up comes again in any case.
                let comes_again = replays_nacks || stop.is_cancelled();
                let outcome = if comes_again { outcome } else { AckResult::Acked };
                shared.tracker.lock().settled(number, outcome);
            });
        ack.filtered(FilterReason::KeyMismatch, filtered);
        if messages.is_empty() {
            ack.delivered();
            continue;
        }
        // Without a flow, only the stop remains to wait for.
        if context.sink.send(Batch::new(messages, ack)).await.is_err() {
            context.stop.cancelled().await;
            return StopReason::Stopped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fetched_ahead_is_bounded_over_all_partitions_and_for_one_answer() {
        let mut client = ClientConfig::new();
        fetch_ahead(&mut client, FETCHED_AHEAD);
        let said = |name: &str| client.get(name).and_then(|value| value.parse::<u64>().ok());
        assert_eq!(said("queued.max.messages.kbytes"), Some(FETCHED_AHEAD / 1024));
        assert_eq!(said("fetch.max.bytes"), Some(FETCHED_AHEAD / 2));
        // The client accepts both values.
        assert!(client.create::<rdkafka::consumer::BaseConsumer>().is_ok());
    }
}
