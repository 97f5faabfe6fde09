//! The thread that drives the client: gathers batches while there is room for them, and keeps the group's promises while there is
//! none.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use super::gathered::Gathered;
use super::tracker::Partition;
use super::trouble::{self, Damage, Next};
use super::watch::Watch;
use super::{Convert, Fetched, Options, Shared};
use crate::link::{ANSWER, Trouble, reason};

/// A poll that finds nothing ends after this; what else the thread has to do waits so long at most.
const POLL: Duration = Duration::from_millis(100);
/// A flow that takes nothing for longer stops the fetching: to pause and resume gives up what was fetched ahead. Until then what
/// the client holds fills up to its limit, and what the group has to say waits.
const HOLD_AFTER: Duration = Duration::from_secs(5);
/// Without an answer a broker is asked again so soon.
const ASK: Duration = Duration::from_secs(1);
/// The last commit is waited for so long.
const LAST_COMMIT: Duration = Duration::from_secs(3);
/// A partition is told to begin again elsewhere within this.
const SEEK: Duration = Duration::from_secs(5);
/// Between the tries to read what does not fit its checksum, longer each time.
const PAUSE: Duration = Duration::from_millis(200);

pub struct Reader<C> {
    consumer: Arc<BaseConsumer<Watch>>,
    shared: Arc<Shared>,
    convert: C,
    out: mpsc::Sender<Fetched>,
    options: Options,
    runtime: Handle,
    gathered: Gathered,
    damage: Damage,
    last_commit: Instant,
    last_ask: Option<Instant>,
    /// A broker is being asked.
    asked: Option<oneshot::Receiver<Option<Wrong>>>,
    /// Since when no broker answers; `None` while one does.
    down_since: Option<Instant>,
    /// Since when the flow takes nothing.
    blocked_since: Option<Instant>,
    /// A topic did not exist when it was last asked for.
    is_missing: bool,
}

/// Why nothing can be read.
struct Wrong {
    why: String,
    is_missing: bool,
}

impl<C: Convert> Reader<C> {
    pub fn new(
        consumer: BaseConsumer<Watch>,
        shared: Arc<Shared>,
        convert: C,
        out: mpsc::Sender<Fetched>,
        options: Options,
        runtime: Handle,
    ) -> Reader<C> {
        Reader {
            consumer: Arc::new(consumer),
            shared,
            convert,
            out,
            options,
            runtime,
            gathered: Gathered::default(),
            damage: Damage::default(),
            last_commit: Instant::now(),
            last_ask: None,
            asked: None,
            down_since: Some(Instant::now()),
            blocked_since: None,
            is_missing: false,
        }
    }

    /// Ends when all is settled and committed; `Err`: reading on is pointless.
    pub fn run(mut self) -> Result<(), String> {
        self.subscribe()?;
        let read = self.read();
        self.commit_at_last();
        // Whoever asks shares the client, which says farewell to the group when the last one lets it go.
        if let Some(asked) = self.asked.take() {
            let _ = self
                .runtime
                .block_on(async { tokio::time::timeout(ANSWER, asked).await });
        }
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

    /// Whether the flow takes nothing for so long that the group must not wait any more.
    fn is_blocked(&mut self) -> bool {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        since.elapsed() >= HOLD_AFTER || self.shared.draining.load(Ordering::Relaxed)
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
        let in_time = async { tokio::time::timeout(POLL, reserved).await };
        self.runtime.block_on(in_time).ok()?.ok()
    }

    /// What else there is to do, between two polls.
    fn tend(&mut self) {
        self.read_again();
        if self.last_commit.elapsed() >= self.options.commit_period {
            self.last_commit = Instant::now();
            self.commit();
        }
        self.ask();
    }

    /// Takes partitions back to where the flow gave a batch back.
    fn read_again(&mut self) {
        let mut tracker = self.shared.tracker.lock();
        let mut rewinds = tracker.rewinds();
        if !rewinds.is_empty() && self.gathered.len() > 0 {
            // It lies behind what comes now.
            tracker.unsent(&std::mem::take(&mut self.gathered).spans);
            rewinds = tracker.rewinds();
        }
        drop(tracker);
        for (partition, at) in rewinds {
            let Partition { topic, number } = &partition;
            match self.consumer.seek(topic, *number, Offset::Offset(at), SEEK) {
                Ok(()) => self.shared.tracker.lock().rewound(&partition, at),
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

    /// Has found out whether a broker answers and has the topics, if there is doubt: on another thread, since the group waits for
    /// this one.
    fn ask(&mut self) {
        if let Some(asked) = &mut self.asked {
            match asked.try_recv() {
                Ok(wrong) => self.answered(wrong),
                Err(oneshot::error::TryRecvError::Empty) => return,
                // The process stops.
                Err(oneshot::error::TryRecvError::Closed) => {}
            }
            self.asked = None;
        }
        let asked_lately = self.last_ask.is_some_and(|asked| asked.elapsed() < ASK);
        let draining = self.shared.draining.load(Ordering::Relaxed);
        if !self.shared.link.is_doubtful() || asked_lately || draining {
            return;
        }
        self.last_ask = Some(Instant::now());
        let (consumer, shared, topics) = (self.consumer.clone(), self.shared.clone(), self.options.topics.clone());
        let (answer, asked) = oneshot::channel();
        self.asked = Some(asked);
        self.runtime.spawn_blocking(move || {
            let wrong = what_is_wrong(&consumer, &shared, &topics);
            drop(consumer);
            let _ = answer.send(wrong);
        });
    }

    fn answered(&mut self, mut wrong: Option<Wrong>) {
        let was_missing = std::mem::replace(
            &mut self.is_missing,
            wrong.as_ref().is_some_and(|wrong| wrong.is_missing),
        );
        if was_missing && !self.is_missing {
            // So that the group learns of it now and not with the next look at all topics.
            wrong = wrong.or_else(|| Wrong::of(self.subscribe().err()?));
        }
        // Told by what was fetched: who may ask for a topic need not have the right to read it.
        wrong = wrong.or_else(|| Wrong::of(self.shared.denied.lock().as_ref()?.why.clone()));
        let shared = &self.shared;
        shared.meters.connected.set(i64::from(wrong.is_none()));
        match wrong {
            Some(Wrong { why, .. }) => {
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

    /// Reads what there is, up to a batch, and passes it on.
    fn gather(&mut self, room: mpsc::OwnedPermit<Fetched>) -> Result<(), String> {
        self.resume();
        let mut timeout = POLL;
        let mut begun = None;
        let mut next = Next::GoOn;
        while !self.gathered.is_full() && next == Next::GoOn {
            match self.poll(timeout)? {
                Some(found) => next = found,
                None => break,
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
        if next == Next::ReadAgain {
            self.read_on_again();
        }
        Ok(())
    }

    /// Goes back to behind what was passed on, in all partitions, since the client does not say which one it is.
    fn read_on_again(&mut self) {
        std::thread::sleep(PAUSE * self.damage.tries());
        let mut tracker = self.shared.tracker.lock();
        tracker.unsent(&std::mem::take(&mut self.gathered).spans);
        tracker.read_on_again();
        let places = tracker.places().into_iter();
        drop(tracker);
        // Those of which nothing was read begin where they began.
        let mut unread = TopicPartitionList::new();
        for (partition, _) in places.filter(|(_, next)| next.is_none()) {
            unread.add_partition(&partition.topic, partition.number);
        }
        if unread.count() > 0 {
            let begun = self.consumer.incremental_unassign(&unread);
            self.unless_done(
                begun.and_then(|()| self.consumer.incremental_assign(&unread)),
                "begun again",
            );
        }
    }

    /// Takes a record in; `None` if none came in time.
    fn poll(&mut self, timeout: Duration) -> Result<Option<Next>, String> {
        match self.consumer.poll(timeout) {
            None => Ok(None),
            Some(Ok(record)) => {
                self.gathered.add(&record, &self.shared, &mut self.convert);
                Ok(Some(Next::GoOn))
            }
            Some(Err(error)) => trouble::after(
                &error,
                &self.consumer,
                &self.shared,
                &self.gathered.spans,
                &mut self.damage,
            )
            .map(Some),
        }
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
        self.shared.read_of(spans.iter().map(|span| &span.partition.topic));
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
        match self.poll(POLL)? {
            None => {}
            Some(Next::GoOn) => self.pause(),
            Some(Next::ReadAgain) => self.read_on_again(),
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

impl Wrong {
    fn of(why: String) -> Option<Wrong> {
        Some(Wrong { why, is_missing: false })
    }
}

fn what_is_wrong(consumer: &BaseConsumer<Watch>, shared: &Shared, topics: &[String]) -> Option<Wrong> {
    topics
        .iter()
        .find_map(|topic| match shared.link.trouble(consumer.client(), topic) {
            Ok(None) => None,
            Ok(Some(Trouble::Missing)) => Some(Wrong {
                why: format!("the topic {topic} does not exist; it is read once it does"),
                is_missing: true,
            }),
            Ok(Some(Trouble::Denied)) => Wrong::of(format!(
                "the topic {topic} must not be seen by this client; give it the right to describe and read it"
            )),
            Err(why) => Wrong::of(why),
        })
}
