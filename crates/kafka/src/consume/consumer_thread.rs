//! The thread that drives the client: it collects batches while the flow has room for them, and keeps the group
//! membership alive while there is none.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use thalweg_kit::{clock, threads};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::batch_builder::{BatchBuilder, BatchLimits};
use super::callbacks::ConsumerCallbacks;
use super::poll_error::{self, ChecksumFailures, PollAction};
use super::prober::Prober;
use super::tracker::{SeekPosition, TopicPartition};
use super::{ConsumerOptions, ConsumerState, FetchedBatch, RecordDecoder};
use crate::link::reason;

/// An empty poll ends after this time, which also bounds the delay of the thread's other work.
const POLL: Duration = Duration::from_millis(100);
/// Fetching stops when the flow accepts nothing for longer than this. Pausing and resuming discards prefetched records,
/// so until then the client's fetch queue fills up to its limit, and messages of the group wait.
const HOLD_AFTER: Duration = Duration::from_secs(5);
/// Maximum wait for the last commit.
const LAST_COMMIT: Duration = Duration::from_secs(3);
/// Maximum time for the seeks of one round; the remaining partitions follow in the next round.
const SEEK: Duration = Duration::from_secs(5);
/// For this long, a partition that cannot be moved to its position is no warning.
const SEEK_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between attempts to read records with a wrong checksum; it grows with each attempt.
const PAUSE: Duration = Duration::from_millis(200);

pub struct ConsumerThread<C> {
    consumer: Arc<BaseConsumer<ConsumerCallbacks>>,
    shared: Arc<ConsumerState>,
    convert: C,
    out: mpsc::Sender<FetchedBatch>,
    commit_period: Duration,
    limits: BatchLimits,
    runtime: Handle,
    prober: Prober,
    gathered: BatchBuilder,
    damage: ChecksumFailures,
    /// Partitions that are paused until the flow has confirmed more of them.
    throttled: BTreeSet<TopicPartition>,
    last_commit: Instant,
    /// Since when some partition cannot be moved to its position.
    seeking_since: Option<Instant>,
    /// Since when the flow has accepted nothing.
    blocked_since: Option<Instant>,
}

impl<C: RecordDecoder> ConsumerThread<C> {
    pub fn new(
        consumer: BaseConsumer<ConsumerCallbacks>,
        shared: Arc<ConsumerState>,
        convert: C,
        out: mpsc::Sender<FetchedBatch>,
        options: ConsumerOptions,
        runtime: Handle,
    ) -> ConsumerThread<C> {
        let consumer = Arc::new(consumer);
        ConsumerThread {
            limits: BatchLimits::new(options.batching, options.checkpoint_limit),
            commit_period: options.commit_period,
            prober: Prober::new(consumer.clone(), shared.clone(), options, runtime.clone()),
            consumer,
            shared,
            convert,
            out,
            runtime,
            gathered: BatchBuilder::default(),
            damage: ChecksumFailures::default(),
            throttled: BTreeSet::new(),
            last_commit: clock::now(),
            seeking_since: None,
            blocked_since: None,
        }
    }

    /// Ends when everything is settled and committed; `Err` if it is pointless to continue.
    pub fn run(mut self) -> Result<(), String> {
        self.prober.subscribe()?;
        let read = self.read();
        self.commit_at_last();
        self.leave();
        self.prober.end();
        read
    }

    fn read(&mut self) -> Result<(), String> {
        while !self.shared.finished.load(Ordering::Relaxed) {
            self.tend();
            match self.room() {
                Some(room) => {
                    self.blocked_since = None;
                    self.gather(room)?;
                }
                None if self.is_blocked() => self.hold()?,
                None => {}
            }
        }
        Ok(())
    }

    /// Whether the flow has accepted nothing for so long that the group must not wait any more.
    fn is_blocked(&mut self) -> bool {
        let since = *self.blocked_since.get_or_insert_with(clock::now);
        since.elapsed() >= HOLD_AFTER || self.shared.draining.load(Ordering::Relaxed)
    }

    /// Reserves room for a batch, if the flow has some soon.
    fn room(&self) -> Option<mpsc::OwnedPermit<FetchedBatch>> {
        if self.shared.draining.load(Ordering::Relaxed) {
            return None;
        }
        let reserved = self.out.clone().reserve_owned();
        let in_time = async { tokio::time::timeout(POLL, reserved).await };
        threads::block_on(&self.runtime, in_time).ok()?.ok()
    }

    /// Does the other work between two polls.
    fn tend(&mut self) {
        if self.prober.tend() {
            // Starting points are committed immediately.
            self.commit();
        }
        self.read_again();
        self.unthrottle();
        if self.last_commit.elapsed() >= self.commit_period {
            self.last_commit = clock::now();
            self.commit();
        }
    }

    /// Seeks partitions to the positions from which they are to be read: their starting points, or batches that the
    /// flow gave back.
    fn read_again(&mut self) {
        let mut tracker = self.shared.tracker.lock();
        let mut rewinds = tracker.rewinds();
        let is_read_again =
            |partition: &TopicPartition| rewinds.binary_search_by(|(other, _)| other.cmp(partition)).is_ok();
        if self.gathered.spans.iter().any(|span| is_read_again(&span.partition)) {
            // The collected batch is newer than the records to be read again.
            tracker.unsent(&std::mem::take(&mut self.gathered).spans);
            rewinds = tracker.rewinds();
        }
        drop(tracker);
        let begun = clock::now();
        if rewinds.is_empty() {
            self.seeking_since = None;
        }
        for (partition, start) in rewinds {
            let TopicPartition { topic, number } = &partition;
            let offset = match start {
                SeekPosition::At(at) => Offset::Offset(at),
                SeekPosition::Oldest => Offset::Beginning,
            };
            let rest = SEEK.saturating_sub(begun.elapsed());
            if rest.is_zero() {
                // The group waits for this thread. Without time left, the client would not report whether the seek has
                // succeeded.
                break;
            }
            match self.consumer.seek(topic, *number, offset, rest) {
                Ok(()) => {
                    self.shared.tracker.lock().rewound(&partition, start);
                    self.resume_one(topic, *number);
                    self.throttled.remove(&partition);
                }
                // This fails while the partition is assigned but not fetched yet: the next round tries again. Each
                // rebalance has such a moment, so a short one is no warning.
                Err(error) => {
                    let since = *self.seeking_since.get_or_insert_with(clock::now);
                    if since.elapsed() >= SEEK_PATIENCE {
                        self.shared.link.component.warn_limited("seek", 1, || {
                            format!("{topic}, partition {number}, cannot be read from {offset:?} yet: {error}")
                        });
                    }
                }
            }
        }
    }

    /// Pauses partitions of which the flow has as much as it may have.
    fn throttle(&mut self, partitions: impl Iterator<Item = TopicPartition>) {
        if self.limits.checkpoint() == usize::MAX {
            return;
        }
        let mut list = TopicPartitionList::new();
        let tracker = self.shared.tracker.lock();
        for partition in partitions.filter(|partition| tracker.in_flight(partition) >= self.limits.checkpoint()) {
            list.add_partition(&partition.topic, partition.number);
            self.throttled.insert(partition);
        }
        drop(tracker);
        if list.count() > 0 {
            self.unless_done(self.consumer.pause(&list), "paused");
        }
    }

    /// Resumes partitions of which the flow has confirmed enough.
    fn unthrottle(&mut self) {
        if self.throttled.is_empty() {
            return;
        }
        let mut list = TopicPartitionList::new();
        let (tracker, limit) = (self.shared.tracker.lock(), self.limits.checkpoint());
        self.throttled.retain(|partition| {
            let stays = tracker.in_flight(partition) >= limit;
            // One that is to be read from elsewhere is resumed when it is there.
            if !stays && tracker.wants(partition) {
                list.add_partition(&partition.topic, partition.number);
            }
            stays
        });
        drop(tracker);
        if list.count() > 0 && !self.shared.holding.load(Ordering::Relaxed) {
            self.unless_done(self.consumer.resume(&list), "resumed");
        }
    }

    /// Resumes one partition. Partitions are not fetched until their starting points are known.
    fn resume_one(&self, topic: &str, number: i32) {
        if !self.shared.holding.load(Ordering::Relaxed) {
            let mut one = TopicPartitionList::new();
            one.add_partition(topic, number);
            self.unless_done(self.consumer.resume(&one), "resumed");
        }
    }

    fn commit(&self) {
        let mut tracker = self.shared.tracker.lock();
        let due = tracker.due();
        self.shared.commit(&self.consumer, &mut tracker, due);
    }

    /// Reads the available records, up to a batch, and passes them on.
    fn gather(&mut self, room: mpsc::OwnedPermit<FetchedBatch>) -> Result<(), String> {
        self.resume();
        let mut timeout = self.gathered.rest(&self.limits).unwrap_or(POLL).min(POLL);
        let mut begun = None;
        let mut next = PollAction::GoOn;
        while !self.gathered.is_full(&self.limits) && next == PollAction::GoOn {
            match self.poll(timeout)? {
                Some(found) => next = found,
                None => break,
            }
            begun.get_or_insert_with(clock::now);
            timeout = Duration::ZERO;
        }
        if let Some(begun) = begun {
            self.shared.meters.batch_time.observe(begun.elapsed());
        }
        if self.gathered.is_ripe(&self.limits) {
            self.pass_on(room);
        }
        if next == PollAction::ReadAgain {
            self.read_on_again();
        }
        Ok(())
    }

    /// Rewinds all partitions to the last batch that was passed on, because the client does not say which partition is
    /// affected.
    fn read_on_again(&mut self) {
        threads::sleep(PAUSE * self.damage.tries());
        let mut tracker = self.shared.tracker.lock();
        tracker.unsent(&std::mem::take(&mut self.gathered).spans);
        tracker.read_on_again();
    }

    /// Receives a record; `None` if none arrived in time.
    fn poll(&mut self, timeout: Duration) -> Result<Option<PollAction>, String> {
        match self.consumer.poll(timeout) {
            None => Ok(None),
            Some(Ok(record)) => {
                self.gathered
                    .add(&record, &self.shared, &mut self.convert, &self.limits);
                Ok(Some(PollAction::GoOn))
            }
            Some(Err(error)) => poll_error::after(
                &error,
                &self.consumer,
                &self.shared,
                &self.gathered.spans,
                &mut self.damage,
            )
            .map(Some),
        }
    }

    fn pass_on(&mut self, room: mpsc::OwnedPermit<FetchedBatch>) {
        let BatchBuilder {
            messages,
            filtered,
            spans,
            epoch,
            ..
        } = std::mem::take(&mut self.gathered);
        let mut tracker = self.shared.tracker.lock();
        if tracker.epoch() != epoch {
            // Some of them may belong to another member now. This happens only at a rebalance, so the rest is simply
            // read again.
            tracker.unsent(&spans);
            return;
        }
        self.shared.meters.received.inc_by((messages.len() + filtered) as u64);
        self.shared.meters.matching.inc_by(messages.len() as u64);
        self.shared.read_of(spans.iter().map(|span| &span.partition.topic));
        let number = tracker.sent(&spans);
        drop(tracker);
        room.send(FetchedBatch {
            messages,
            filtered,
            number,
        });
        self.throttle(spans.into_iter().map(|span| span.partition));
    }

    /// Fetches nothing but stays a member of the group.
    fn hold(&mut self) -> Result<(), String> {
        if !self.shared.holding.swap(true, Ordering::Relaxed) {
            self.pause();
        }
        match self.poll(POLL)? {
            None => {}
            Some(PollAction::GoOn) => self.pause(),
            Some(PollAction::ReadAgain) => self.read_on_again(),
        }
        Ok(())
    }

    fn pause(&self) {
        let paused = self.consumer.assignment().and_then(|all| self.consumer.pause(&all));
        self.unless_done(paused, "paused");
    }

    fn resume(&self) {
        if self.shared.holding.swap(false, Ordering::Relaxed) {
            // The others follow when they have been moved to their positions.
            let mut read = TopicPartitionList::new();
            let partitions = self.shared.tracker.lock().read();
            for TopicPartition { topic, number } in partitions.iter().filter(|one| !self.throttled.contains(*one)) {
                read.add_partition(topic, *number);
            }
            self.unless_done(self.consumer.resume(&read), "resumed");
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

    /// Unsubscribes explicitly if there are no partitions. A client without partitions closes without notifying its
    /// group, which then waits at its next rebalance for this member's session to time out.
    fn leave(&self) {
        if self.shared.tracker.lock().is_empty() {
            self.consumer.unsubscribe();
            let _ = self.consumer.poll(POLL);
        }
    }

    fn commit_at_last(&self) {
        let begun = clock::now();
        // Brokers discard the offsets committed in a topic that is deleted. If it was recreated unnoticed, this commit
        // lets the next member notice.
        self.shared.tracker.lock().all_uncommitted();
        let under_way = || !self.shared.commits.lock().is_empty();
        while begun.elapsed() < LAST_COMMIT {
            if !under_way() {
                self.commit();
            }
            if !under_way() {
                return;
            }
            // Nothing more is sent to the flow, so records that arrive now are never confirmed.
            let _ = self.consumer.poll(POLL);
        }
    }
}
