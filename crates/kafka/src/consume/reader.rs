//! The thread that drives the client: gathers batches while there is room for them, and keeps the group's promises while there is
//! none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message as _};
use thalweg_record::Message;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::tracker::{Partition, Span};
use super::watch::Watch;
use super::{Convert, Fetched, Options, Shared};
use crate::link::reason;

const BATCH_RECORDS: usize = 1000;
const BATCH_BYTES: usize = 1 << 20;
/// A poll that finds nothing ends after this; what else the thread has to do waits so long at most.
const POLL: Duration = Duration::from_millis(100);
/// A flow that takes nothing for longer stops the fetching: to pause and resume gives up what was fetched ahead.
const HOLD_AFTER: Duration = Duration::from_millis(500);
/// Without an answer a broker is asked again so soon.
const ASK: Duration = Duration::from_secs(1);
/// The last commit is waited for so long.
const LAST_COMMIT: Duration = Duration::from_secs(3);
/// A partition is told to begin again elsewhere within this.
const SEEK: Duration = Duration::from_secs(5);

pub struct Reader<C> {
    consumer: BaseConsumer<Watch>,
    shared: Arc<Shared>,
    convert: C,
    out: mpsc::Sender<Fetched>,
    options: Options,
    runtime: Handle,
    gathered: Gathered,
    last_commit: Instant,
    last_ask: Option<Instant>,
    /// Since when no broker answers; `None` while one does.
    down_since: Option<Instant>,
    /// A topic did not exist when it was last asked for.
    is_missing: bool,
}

/// Records that were read and are not sent.
#[derive(Default)]
struct Gathered {
    messages: Vec<Message>,
    filtered: usize,
    bytes: usize,
    spans: Vec<Span>,
    epoch: u64,
}

impl Gathered {
    fn len(&self) -> usize {
        self.messages.len() + self.filtered
    }

    fn is_full(&self) -> bool {
        self.len() >= BATCH_RECORDS || self.bytes >= BATCH_BYTES
    }

    /// Notes where a record lies; `false` if it is not wanted, since its partition is to be read again from an earlier place.
    fn cover(&mut self, record: &BorrowedMessage<'_>, shared: &Shared) -> bool {
        let (topic, number, offset) = (record.topic(), record.partition(), record.offset());
        // Records come in runs of a partition, so it is found at the end.
        let known = |span: &&mut Span| span.partition.number == number && *span.partition.topic == *topic;
        if let Some(span) = self.spans.iter_mut().rev().find(known) {
            span.to = offset + 1;
            return true;
        }
        let partition = Partition {
            topic: topic.into(),
            number,
        };
        let tracker = shared.tracker.lock();
        if self.spans.is_empty() {
            self.epoch = tracker.epoch();
        }
        let wanted = tracker.wants(&partition);
        if wanted {
            self.spans.push(Span {
                partition,
                from: offset,
                to: offset + 1,
            });
        }
        wanted
    }
}

impl<C: Convert> Reader<C> {
    /// To be called on the runtime.
    pub fn new(
        consumer: BaseConsumer<Watch>,
        shared: Arc<Shared>,
        convert: C,
        out: mpsc::Sender<Fetched>,
        options: Options,
    ) -> Reader<C> {
        Reader {
            consumer,
            shared,
            convert,
            out,
            options,
            runtime: Handle::current(),
            gathered: Gathered::default(),
            last_commit: Instant::now(),
            last_ask: None,
            down_since: Some(Instant::now()),
            is_missing: false,
        }
    }

    /// Ends when all is settled and committed; `Err`: reading on is pointless.
    pub fn run(mut self) -> Result<(), String> {
        self.subscribe()?;
        while !self.shared.finished.load(Ordering::Relaxed) {
            self.tend();
            match self.room() {
                Some(room) => self.gather(room)?,
                None => self.hold()?,
            }
        }
        self.commit_at_last();
        Ok(())
    }

    fn subscribe(&self) -> Result<(), String> {
        let topics: Vec<&str> = self.options.topics.iter().map(String::as_str).collect();
        let subscribed = self.consumer.subscribe(&topics);
        subscribed.map_err(|error| format!("cannot subscribe to {}: {error}", self.options.topics.join(", ")))
    }

    /// Place for a batch, if the flow gives it soon.
    fn room(&self) -> Option<mpsc::OwnedPermit<Fetched>> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return None;
        }
        let reserved = self.out.clone().reserve_owned();
        let in_time = async { tokio::time::timeout(HOLD_AFTER, reserved).await };
        self.runtime.block_on(in_time).ok()?.ok()
    }

    /// What else there is to do, between two polls.
    fn tend(&mut self) {
        self.read_again();
        if self.last_commit.elapsed() >= self.options.commit_period {
            self.last_commit = Instant::now();
            self.commit();
        }
        let asked_lately = self.last_ask.is_some_and(|asked| asked.elapsed() < ASK);
        let draining = self.shared.draining.load(Ordering::Relaxed);
        if self.shared.link.is_doubtful() && !asked_lately && !draining {
            self.last_ask = Some(Instant::now());
            self.ask();
        }
    }

    /// Takes partitions back to where the flow gave a batch back.
    fn read_again(&mut self) {
        let rewinds = self.shared.tracker.lock().rewinds();
        for (partition, at) in rewinds {
            let Partition { topic, number } = &partition;
            match self.consumer.seek(topic, *number, Offset::Offset(at), SEEK) {
                Ok(()) => self.shared.tracker.lock().rewound(&partition),
                // As while it is assigned and not fetched yet: the next round tries again.
                Err(error) => self.shared.link.component.warn_limited("seek", 1, || {
                    format!("{topic}, partition {number}, cannot be read again from offset {at} yet: {error}")
                }),
            }
        }
    }

    fn commit(&self) {
        let mut tracker = self.shared.tracker.lock();
        let due = tracker.due();
        self.shared.commit(&self.consumer, &mut tracker, due);
    }

    /// Finds out whether a broker answers and has the topics.
    fn ask(&mut self) {
        let wrong = self.what_is_wrong();
        let shared = &self.shared;
        shared.meters.connected.set(i64::from(wrong.is_none()));
        match wrong {
            Some(why) => {
                shared.meters.connection_errors.inc();
                shared.link.down(&why);
                self.down_since.get_or_insert_with(Instant::now);
            }
            None => {
                if let Some(since) = self.down_since.take() {
                    shared.meters.connection_time.observe(since.elapsed());
                }
                shared.link.connection.up();
            }
        }
    }

    fn what_is_wrong(&mut self) -> Option<String> {
        let was_missing = std::mem::take(&mut self.is_missing);
        for topic in &self.options.topics {
            match self.shared.link.has(self.consumer.client(), topic) {
                Ok(true) => {}
                Ok(false) => {
                    self.is_missing = true;
                    return Some(format!("the topic {topic} does not exist; it is read once it does"));
                }
                Err(why) => return Some(why),
            }
        }
        // So that the group learns of it now and not with the next look at all topics.
        if was_missing { self.subscribe().err() } else { None }
    }

    /// Reads what there is, up to a batch, and passes it on.
    fn gather(&mut self, room: mpsc::OwnedPermit<Fetched>) -> Result<(), String> {
        self.resume();
        let mut timeout = POLL;
        let mut begun = None;
        while !self.gathered.is_full() {
            if !poll(
                &self.consumer,
                &self.shared,
                &mut self.convert,
                &mut self.gathered,
                timeout,
            )? {
                break;
            }
            begun.get_or_insert_with(Instant::now);
            timeout = Duration::ZERO;
        }
        if let Some(begun) = begun {
            self.shared.meters.batch_time.observe(begun.elapsed());
        }
        if self.gathered.len() > 0 {
            self.pass_on(room);
        }
        Ok(())
    }

    fn pass_on(&mut self, room: mpsc::OwnedPermit<Fetched>) {
        let Gathered {
            messages,
            filtered,
            spans,
            epoch,
            ..
        } = std::mem::take(&mut self.gathered);
        let mut tracker = self.shared.tracker.lock();
        if tracker.epoch() != epoch {
            // Some of them may be another member's now. It happens at a rebalance, so the rest is simply read again.
            tracker.unsent(&spans);
            return;
        }
        self.shared.meters.received.inc_by((messages.len() + filtered) as u64);
        self.shared.meters.matching.inc_by(messages.len() as u64);
        let number = tracker.sent(&spans);
        drop(tracker);
        room.send(Fetched {
            messages,
            filtered,
            number,
        });
    }

    /// Fetches nothing, and stays a member of the group all the same.
    fn hold(&mut self) -> Result<(), String> {
        if !self.shared.holding.swap(true, Ordering::Relaxed) {
            self.pause();
        }
        if poll(
            &self.consumer,
            &self.shared,
            &mut self.convert,
            &mut self.gathered,
            POLL,
        )? {
            self.pause();
        }
        Ok(())
    }

    fn pause(&self) {
        let paused = self.consumer.assignment().and_then(|all| self.consumer.pause(&all));
        self.unless_done(paused, "paused");
    }

    fn resume(&self) {
        if self.shared.holding.swap(false, Ordering::Relaxed) {
            let resumed = self.consumer.assignment().and_then(|all| self.consumer.resume(&all));
            self.unless_done(resumed, "resumed");
        }
    }

    fn unless_done(&self, result: KafkaResult<()>, what: &str) {
        if let Err(error) = result {
            let component = &self.shared.link.component;
            component.warn_limited("pause", 1, || {
                format!("fetching could not be {what}: {}", reason(&error))
            });
        }
    }

    fn commit_at_last(&self) {
        let begun = Instant::now();
        let under_way = || !self.shared.commits.lock().is_empty();
        while begun.elapsed() < LAST_COMMIT {
            if !under_way() {
                self.commit();
            }
            if !under_way() {
                return;
            }
            // Nothing is sent any more, so nothing that comes is confirmed.
            let _ = self.consumer.poll(POLL);
        }
    }
}

/// Takes a record in; `false` if none came in time.
fn poll(
    consumer: &BaseConsumer<Watch>,
    shared: &Shared,
    convert: &mut impl Convert,
    gathered: &mut Gathered,
    timeout: Duration,
) -> Result<bool, String> {
    let record = match consumer.poll(timeout) {
        None => return Ok(false),
        Some(Ok(record)) => record,
        Some(Err(error)) => {
            failed(shared, &error)?;
            return Ok(true);
        }
    };
    if gathered.cover(&record, shared) {
        gathered.bytes += record.payload_len() + record.key_len();
        match convert.message(&record) {
            Some(message) => gathered.messages.push(message),
            None => gathered.filtered += 1,
        }
    }
    Ok(true)
}

/// An error between records. `Err`: what follows it must not be read.
fn failed(shared: &Shared, error: &KafkaError) -> Result<(), String> {
    shared.meters.poll_errors.inc();
    let why = reason(error);
    match error {
        // The client passes over such records.
        KafkaError::MessageConsumption(RDKafkaErrorCode::NotImplemented) => {
            return Err(
                "records are compressed with zstd, which this build does not read; let the producer or the topic use \
                        lz4, snappy or gzip"
                    .to_owned(),
            );
        }
        KafkaError::MessageConsumptionFatal(_) => {
            return Err(format!(
                "the client gave up: {why}; a restart begins at the last commit"
            ));
        }
        _ => {}
    }
    let component = &shared.link.component;
    component.warn_limited("poll", 1, || format!("fetching failed, it is tried again: {why}"));
    Ok(())
}
