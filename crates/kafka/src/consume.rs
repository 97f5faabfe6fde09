//! A consumer of a group as an input: records come as batches, and what the flow has confirmed is committed.
//!
//! The client is driven by one thread of its own, since its calls block and its callbacks run within them. It fetches only while
//! the flow takes batches: one is gathered, one waits, and the client holds a bounded number of bytes more.

mod batch_builder;
mod callbacks;
mod commit_metadata;
mod consumer_thread;
mod coverage;
mod identity;
mod metrics;
mod poll_error;
mod probe;
mod prober;
mod starting_point;
mod tracker;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rdkafka::ClientConfig;
use rdkafka::config::{FromClientConfigAndContext as _, RDKafkaLogLevel};
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::BorrowedMessage;
use thalweg_flow::{InputContext, InputError};
use thalweg_record::{Batch, FilterReason, Message};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use callbacks::ConsumerCallbacks;
use consumer_thread::ConsumerThread;
pub use metrics::ConsumerMetrics;
use poll_error::AuthorizationFailure;
use tracker::OffsetTracker;

use crate::link::BrokerLink;

/// What the client holds in front of the flow if nothing else is said, in bytes.
pub const FETCHED_AHEAD: u64 = 16 << 20;
/// After the flow has settled everything, commit and farewell may take so long.
const FAREWELL: Duration = Duration::from_secs(8);

/// What is read, and how.
#[derive(Clone)]
pub struct ConsumerOptions {
    pub client: ClientConfig,
    pub addresses: String,
    pub topics: Vec<String>,
    pub commit_period: Duration,
    group: String,
    starts_from_oldest: bool,
}

impl ConsumerOptions {
    /// Of a member of `group`. `starts_from_oldest`: where it begins when the group has committed nothing.
    pub fn new(mut client: ClientConfig, group: &str, starts_from_oldest: bool) -> ConsumerOptions {
        client
            .set("group.id", group)
            // What is left when records were deleted before they were read. Where partitions begin is not left to the client.
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("allow.auto.create.topics", "false")
            .set("check.crcs", "true")
            // As the group's other members of the reference system: both kinds do not mix.
            .set("partition.assignment.strategy", "cooperative-sticky")
            // A topic that is made while it is subscribed to is found so soon.
            .set("topic.metadata.refresh.interval.ms", "10000")
            // That all was read that there is shows that it can be read.
            .set("enable.partition.eof", "true")
            // Resets of offsets are told in the client's log only.
            .set_log_level(RDKafkaLogLevel::Info)
            // A queue that was full is filled again soon after there is room.
            .set("fetch.queue.backoff.ms", "50");
        ConsumerOptions {
            addresses: client.get("bootstrap.servers").unwrap_or_default().to_owned(),
            client,
            topics: Vec::new(),
            commit_period: Duration::from_secs(1),
            group: group.to_owned(),
            starts_from_oldest,
        }
    }
}

/// Bounds what is fetched ahead, over all partitions: one answer of a broker may come on top of it, half as large.
pub fn fetch_ahead(client: &mut ClientConfig, bytes: u64) {
    client
        .set("queued.max.messages.kbytes", (bytes / 1024).to_string())
        .set("fetch.max.bytes", (bytes / 2).to_string());
}

/// Makes messages of records.
pub trait RecordDecoder: Send + 'static {
    /// `None`: the record is not wanted.
    fn message(&mut self, record: &BorrowedMessage<'_>) -> Option<Message>;
}

/// What the thread and the input share.
struct ConsumerState {
    link: BrokerLink,
    meters: ConsumerMetrics,
    tracker: Mutex<OffsetTracker>,
    /// Nothing more is fetched.
    draining: AtomicBool,
    /// All is settled: commit and leave.
    finished: AtomicBool,
    /// Partitions that are assigned now are not to be fetched yet.
    holding: AtomicBool,
    /// Brokers are to be looked at now.
    probe_now: AtomicBool,
    /// The client told that a partition goes on elsewhere; the record that shows where is still to come.
    was_reset: AtomicBool,
    /// Rights that are missing, as the client told.
    denied: Mutex<Option<AuthorizationFailure>>,
    topics: usize,
    /// When the commits were sent that are not answered, the oldest first.
    commits: Mutex<VecDeque<Instant>>,
}

/// A batch on its way to the flow.
struct FetchedBatch {
    messages: Vec<Message>,
    /// Records that are not wanted; they belong to the batch, since they are confirmed with it.
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
        denied: Mutex::default(),
        topics: options.topics.len(),
        commits: Mutex::default(),
    });
    let (out, mut fetched) = mpsc::channel(1);
    let (end, ended) = oneshot::channel();
    let (runtime, of_thread) = (Handle::current(), shared.clone());
    // The client is made and let go there: both may take their time.
    let read = move || {
        let consumer = BaseConsumer::from_config_and_context(&options.client, ConsumerCallbacks(of_thread.clone()))
            .map_err(|error| format!("the Kafka client refuses its settings: {error}"))?;
        ConsumerThread::new(consumer, of_thread, convert, out, options, runtime).run()
    };
    let spawned = std::thread::Builder::new()
        .name("kafka-read".to_owned())
        .spawn(move || drop(end.send(read())));
    spawned.map_err(|error| InputError(format!("no thread could be started to read from Kafka: {error}")))?;

    let leaving = ThreadStopGuard(&shared);
    if let StopReason::ThreadEnded = pass_on(&mut fetched, &shared, &context).await {
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
            "the broker did not answer to the last commit; records since the one before come again".to_owned()
        });
    }
    Ok(())
}

/// Lets the thread end, also when the flow gives the input up.
struct ThreadStopGuard<'s>(&'s ConsumerState);

impl Drop for ThreadStopGuard<'_> {
    fn drop(&mut self) {
        self.0.draining.store(true, Ordering::Relaxed);
        self.0.finished.store(true, Ordering::Relaxed);
    }
}

/// Why nothing more is passed on.
enum StopReason {
    Stopped,
    ThreadEnded,
}

async fn pass_on(
    fetched: &mut mpsc::Receiver<FetchedBatch>,
    shared: &Arc<ConsumerState>,
    context: &InputContext,
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
        let shared = shared.clone();
        let mut ack = context.sink.enter(messages.len() + filtered, move |outcome| {
            shared.tracker.lock().settled(number, outcome);
        });
        ack.filtered(FilterReason::KeyMismatch, filtered);
        if messages.is_empty() {
            ack.delivered();
            continue;
        }
        // Without a flow there is nothing to wait for but the stop.
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
        // The client takes both as they are.
        assert!(client.create::<rdkafka::consumer::BaseConsumer>().is_ok());
    }
}
