//! The order of writes, through their failures.
//!
//! | state | new writes | what happens |
//! |---|---|---|
//! | flowing | are sent as they come | any number is on its way, and a client keeps the order of each partition |
//! | draining: some record failed for now, or a topic is there again | wait | the writes on their way are waited for; what fails of them joins |
//! | repeating: nothing is on its way | wait | what waited for a topic is sent; after a pause, what failed is sent again in the order of its writes; then flowing |
//!
//! A client hands many requests to a broker, and when one fails for good the next may be taken. So a record that the broker has
//! although an older one of its topic and key failed is sent again behind that one: it is there twice, and the last of its key
//! is the newest. For this a write that the broker has is held, and not confirmed, until the older ones with its topics are done
//! ([`order`](super::order)); a crash in between then sends both again. Held writes count as being in flight, which bounds them.
//!
//! A record that is refused for good ends in any state. One whose topic is refused waits beside all of this
//! ([`topics`](super::topics)), unless there is one topic only. To give failures back to the flow, which repeats writes too, was
//! rejected: it repeats each write by itself, so that two of them would change places.
//!
//! Messages are prepared one write at a time, beside whatever is on its way, and those that come later wait behind them.
//!
//! A broker refuses requests, and a client puts records of several writes into one. So a request that is too large, or has an
//! invalid record, says nothing of the others: each is sent again with nothing else on its way, and only then it is refused by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::Headers as _;
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig};
use thalweg_flow::{BoxFuture, WriteError, all_but};
use thalweg_record::{Message, Text};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::deliveries::{FailingWrites, InFlightRecord, PendingDeliveries};
use super::order::WriteOrder;
use super::probe::{ProducerProbe, ProducerProbeReport, StalledWrite};
use super::retry_decision::{RetryDecision, fate};
use super::topics::{Gate, TopicGates};
use super::write::{WaitingKeys, WriteRequest, WriteState};
use super::{ProducerClient, ProducerRecord, RecordEncoder, connect, drop_aside};
use crate::link::{BrokerLink, died_of};

const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Whether something has to be asked of a broker is looked at so often.
const ASK: Duration = Duration::from_secs(1);
/// A write that is not confirmed for longer is told of.
const STALLED: Duration = Duration::from_secs(10);
/// To name its topics, so many of its messages are looked at.
const STALLED_MESSAGES: usize = 100;
/// A topic that must have one partition is looked at so often.
const COUNT_PARTITIONS: Duration = Duration::from_secs(2);

/// A write on its way, for those who wonder where it is.
struct InFlightWrite {
    since: Instant,
    messages: Arc<Vec<Message>>,
    bytes: usize,
}

type RecordErrors = Vec<(usize, KafkaError)>;

pub struct ProducerTask {
    client: ProducerClient,
    settings: ClientConfig,
    link: Arc<BrokerLink>,
    encode: Arc<dyn RecordEncoder>,
    topic: Option<String>,
    topics: TopicGates,
    bytes_max: usize,
    /// Of what is on its way.
    bytes: usize,
    jobs: mpsc::UnboundedReceiver<WriteRequest>,
    /// What was called last, until its messages are prepared; one at most.
    preparing: FuturesUnordered<BoxFuture<'static, WriteRequest>>,
    /// The newest write, until it may be sent.
    next: Option<WriteState>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (WriteState, RecordErrors)>>,
    begun: BTreeMap<u64, InFlightWrite>,
    failing: FailingWrites,
    order: WriteOrder,
    /// Writes with records that are to be sent again.
    again: BTreeMap<u64, WriteState>,
    /// Writes of which no record is to be sent now, behind older ones that are not done.
    held: BTreeMap<u64, WriteState>,
    /// Writes of which all that is left waits for a topic.
    parked: BTreeMap<u64, WriteState>,
    /// Of the records of parked writes.
    late: WaitingKeys,
    /// The newest write when a topic was closed: what is newer has no records of it that were sent.
    closed_at: u64,
    /// Topics that are there again, and open when nothing is on its way.
    opening: Vec<Text>,
    /// One at most.
    inquiries: FuturesUnordered<BoxFuture<'static, Option<ProducerProbeReport>>>,
    place: u64,
    pause: Duration,
    is_client_lost: bool,
    last_count: Option<Instant>,
    /// Why nothing new is written any more.
    over: Option<String>,
}

impl ProducerTask {
    pub fn new(
        client: ProducerClient,
        settings: ClientConfig,
        link: Arc<BrokerLink>,
        encode: Arc<dyn RecordEncoder>,
        topic: Option<String>,
        bytes_max: usize,
        jobs: mpsc::UnboundedReceiver<WriteRequest>,
    ) -> ProducerTask {
        ProducerTask {
            client,
            settings,
            link,
            encode,
            topics: TopicGates::new(topic.is_none()),
            topic,
            bytes_max,
            bytes: 0,
            jobs,
            preparing: FuturesUnordered::new(),
            next: None,
            on_their_way: FuturesUnordered::new(),
            begun: BTreeMap::new(),
            failing: FailingWrites::default(),
            order: WriteOrder::default(),
            again: BTreeMap::new(),
            held: BTreeMap::new(),
            parked: BTreeMap::new(),
            late: WaitingKeys::new(),
            closed_at: 0,
            opening: Vec::new(),
            inquiries: FuturesUnordered::new(),
            place: 0,
            pause: PAUSE,
            is_client_lost: false,
            last_count: None,
            over: None,
        }
    }

    /// Ends when nobody can write any more; what is on its way then is nobody's.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_flowing = self.is_flowing();
            if is_flowing && let Some(write) = self.next.take() {
                self.launch(write);
                continue;
            }
            // The ticks are always waited for, so that one branch is whatever the others wait for.
            tokio::select! {
                Some((write, failed)) = self.on_their_way.next() => self.ended(write, failed),
                Some(findings) = self.inquiries.next() => self.found(findings),
                Some(job) = self.preparing.next() => self.prepared(job),
                job = self.jobs.recv(), if is_flowing && self.next.is_none() && self.preparing.is_empty() => match job {
                    Some(job) => self.begin(job),
                    None => break,
                },
                _ = ticks.tick() => match self.jobs.is_closed() {
                    true => break,
                    false => self.look(),
                },
            }
            self.open_topics();
            while self.on_their_way.is_empty() && !self.again.is_empty() && !self.jobs.is_closed() {
                self.repeat().await;
            }
        }
        drop_aside(self.client).await;
    }

    /// Whether something new may be sent. The client's thread may end this at any time.
    fn is_flowing(&self) -> bool {
        let has_room = self.has_room();
        let is_failing = self.failing.load(Ordering::Acquire) > 0;
        self.again.is_empty() && self.opening.is_empty() && !is_failing && has_room
    }

    fn has_room(&self) -> bool {
        self.bytes == 0 || self.bytes < self.bytes_max
    }

    fn begin(&mut self, job: WriteRequest) {
        let mut preparing = self.encode.clone().prepare(job.messages.clone());
        // So it is for nearly every write.
        match preparing.as_mut().now_or_never() {
            Some(()) => self.prepared(job),
            None => self.preparing.push(Box::pin(async move {
                preparing.await;
                job
            })),
        }
    }

    fn prepared(&mut self, job: WriteRequest) {
        if let Some(why) = &self.over {
            let _ = job.done.send(Err(WriteError::Permanent(why.clone())));
            return;
        }
        self.place += 1;
        self.next = Some(WriteState::new(self.place, job));
    }

    /// Sends what is wanted of a write, together with whatever else is sent.
    fn launch(&mut self, mut write: WriteState) {
        let wanted = std::mem::take(&mut write.wanted);
        write.bytes = 0;
        let sent = self.send(&mut write, &wanted);
        let begun = InFlightWrite {
            since: Instant::now(),
            messages: write.job.messages.clone(),
            bytes: write.bytes,
        };
        self.bytes += begun.bytes;
        self.begun.insert(write.place, begun);
        self.on_their_way.push(Box::pin(async move {
            let failed = sent.finished().await;
            (write, failed)
        }));
    }

    /// Gives records to the client, which sends them in this order.
    fn send(&mut self, write: &mut WriteState, indexes: &[usize]) -> Arc<PendingDeliveries> {
        let pending = PendingDeliveries::new(self.failing.clone(), self.topics.is_many());
        let mut stopped: Option<KafkaError> = None;
        for &index in indexes {
            // What is behind a record that has to wait waits, too.
            if let Some(error) = &stopped {
                pending.failed(index, error.clone());
                continue;
            }
            let record = match self.encode.record(&write.job.messages, index) {
                Ok(record) => record,
                Err(rejection) => {
                    write.refused.push(rejection);
                    continue;
                }
            };
            if !write.topics.contains(&record.topic) {
                write.topics.insert(record.topic.clone());
            }
            match self.topics.gate(&record.topic) {
                Gate::Open => stopped = self.hand_over(record, index, write, &pending),
                // No broker has refused it.
                Gate::Closed => write.astray.push(index),
                Gate::Over(why) => write.give_up(index, why),
            }
        }
        self.order.enter(write.place, &write.topics);
        pending.ended();
        pending
    }

    /// Returns the error if the records behind it have to wait.
    fn hand_over(
        &mut self,
        record: ProducerRecord,
        index: usize,
        write: &mut WriteState,
        pending: &Arc<PendingDeliveries>,
    ) -> Option<KafkaError> {
        pending.begun();
        let place = Box::new(InFlightRecord {
            write: pending.clone(),
            index,
        });
        let bytes = bytes(&record);
        let mut out = BaseRecord::with_opaque_to(&record.topic, place).headers(record.headers);
        // Should it get more, until that is seen the order is kept.
        out.partition = self.encode.needs_one_partition().then_some(0);
        out.payload = record.value.as_deref();
        out.key = record.key.as_ref().map(|key| key.as_bytes());
        let Err((error, _)) = self.client.send(out) else {
            write.sent(index, bytes);
            return None;
        };
        pending.ended();
        match fate(&error) {
            // It is larger than this client is allowed to send, by itself.
            RetryDecision::Together(reason, why) => write.refuse(index, reason, why),
            RetryDecision::Topic(why) if self.topics.is_many() => {
                self.close(&record.topic, &why);
                pending.failed(index, error);
            }
            RetryDecision::Refused(..) => pending.failed(index, error),
            RetryDecision::Again(_) | RetryDecision::Topic(_) | RetryDecision::ClientLost(_) => {
                pending.failed(index, error.clone());
                return Some(error);
            }
        }
        None
    }

    /// All records of a write have an answer.
    fn ended(&mut self, mut write: WriteState, mut failed: RecordErrors) {
        if let Some(begun) = self.begun.remove(&write.place) {
            self.bytes = self.bytes.saturating_sub(begun.bytes);
        }
        failed.sort_by_key(|(index, _)| *index);
        write.wanted.clear();
        let was_alone = write.is_split;
        let mut why_again = None;
        for (index, error) in failed {
            match fate(&error) {
                RetryDecision::Refused(reason, why) => write.refuse(index, reason, why),
                RetryDecision::Together(reason, why) if was_alone => write.refuse(index, reason, why),
                RetryDecision::Together(..) => {
                    write.is_split = true;
                    write.wanted.push(index);
                }
                RetryDecision::Topic(why) if self.topics.is_many() => self.leave_aside(&mut write, index, &why),
                RetryDecision::Again(why) | RetryDecision::Topic(why) => {
                    why_again = Some(why);
                    write.wanted.push(index);
                }
                RetryDecision::ClientLost(why) => {
                    self.is_client_lost = true;
                    why_again = Some(died_of(self.client.client(), &why));
                    write.wanted.push(index);
                }
            }
        }
        if let Some(why) = why_again {
            self.link
                .down(&format!("records are not taken for now, and sent again: {why}"));
        } else {
            self.pause = PAUSE;
        }
        self.keep(write);
    }

    /// What is left of a write waits where it has to.
    fn keep(&mut self, mut write: WriteState) {
        if !write.wanted.is_empty() {
            write.want_astray();
            self.again.insert(write.place, write);
        } else {
            let place = write.place;
            self.held.insert(place, write);
            self.release(place);
        }
    }

    /// Lets a held write go if it is behind nothing, and then those that were behind it.
    fn release(&mut self, place: u64) {
        let mut next = vec![place];
        while let Some(place) = next.pop() {
            let held = self.held.get(&place);
            if held.is_some_and(|write| self.order.is_first(place, &write.topics))
                && let Some(write) = self.held.remove(&place)
            {
                next.extend(self.order.leave(place, &write.topics));
                self.finish(write);
            }
        }
    }

    /// Nothing older has to be sent again before it, except for what waits for a topic.
    fn finish(&mut self, mut write: WriteState) {
        let may_overtake = !self.late.is_empty() && write.place <= self.closed_at;
        if may_overtake || !write.astray.is_empty() {
            let overtakers = write.overtakers(&*self.encode, &mut self.late);
            write.astray.extend(overtakers);
            write.astray.sort_unstable();
        }
        if write.astray.is_empty() {
            let _ = write.job.done.send(all_but(write.refused));
        } else {
            // Next time it is not alone.
            write.is_split = false;
            self.parked.insert(write.place, write);
        }
    }

    fn close(&mut self, topic: &Text, why: &str) {
        self.topics.failed(topic, why);
        self.closed_at = self.place;
    }

    /// The topic of a record is refused.
    fn leave_aside(&mut self, write: &mut WriteState, index: usize, why: &str) {
        let record = match self.encode.record(&write.job.messages, index) {
            Ok(record) => record,
            Err(rejection) => return write.refused.push(rejection),
        };
        self.close(&record.topic, why);
        match self.topics.gate(&record.topic) {
            Gate::Over(why) => write.give_up(index, why),
            Gate::Open | Gate::Closed => write.astray.push(index),
        }
        let topic = &record.topic;
        self.link.component.warn_limited("topic", 1, || {
            format!("records to the topic {topic} wait, and are refused in the end if it does not take them: {why}")
        });
    }

    /// Sends what failed again, in order, with what overtook it, and before anything newer.
    async fn repeat(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        if std::mem::take(&mut self.is_client_lost) {
            match connect(&self.settings, &self.link).await {
                Ok(client) => drop_aside(std::mem::replace(&mut self.client, client)).await,
                Err(why) => {
                    self.is_client_lost = true;
                    return self.link.down(&why);
                }
            }
        }
        self.join_overtakers();
        let mut rest = std::mem::take(&mut self.again).into_iter();
        while let Some((_, mut write)) = rest.next() {
            let wanted = write.wanted.clone();
            let failed = match write.is_split {
                true => self.send_each(&mut write, &wanted).await,
                false => {
                    let sent = self.send(&mut write, &wanted);
                    self.wait_for(&write, &wanted, &sent).await
                }
            };
            self.ended(write, failed);
            if !self.again.is_empty() {
                self.again.extend(rest.by_ref());
            }
        }
    }

    /// What overtook something that is to be sent again is sent again, too.
    fn join_overtakers(&mut self) {
        let mut writes = std::mem::take(&mut self.again);
        writes.append(&mut self.held);
        let mut late = WaitingKeys::new();
        for (place, mut write) in writes {
            let overtakers = write.overtakers(&*self.encode, &mut late);
            if write.wanted.is_empty() && overtakers.is_empty() {
                self.held.insert(place, write);
            } else {
                write.wanted.extend(overtakers);
                write.want_astray();
                self.again.insert(place, write);
            }
        }
    }

    /// Sends each record by itself, up to one that has to wait.
    async fn send_each(&mut self, write: &mut WriteState, wanted: &[usize]) -> RecordErrors {
        let mut failed = RecordErrors::new();
        let mut rest = wanted.iter();
        while let Some(index) = rest.next() {
            let one = std::slice::from_ref(index);
            let sent = self.send(write, one);
            let of_one = self.wait_for(write, one, &sent).await;
            if let Some((_, error)) = of_one.iter().find(|(_, error)| self.holds_up(error)) {
                failed.extend(rest.by_ref().map(|index| (*index, error.clone())));
            }
            failed.extend(of_one);
        }
        failed
    }

    /// Whether what is behind a record with this error has to wait.
    fn holds_up(&self, error: &KafkaError) -> bool {
        match fate(error) {
            RetryDecision::Again(_) | RetryDecision::ClientLost(_) => true,
            RetryDecision::Topic(_) => !self.topics.is_many(),
            RetryDecision::Together(..) | RetryDecision::Refused(..) => false,
        }
    }

    /// Waits for the answers to what was sent while nothing else is, and tells when none comes.
    async fn wait_for(&mut self, write: &WriteState, indexes: &[usize], sent: &Arc<PendingDeliveries>) -> RecordErrors {
        let since = Instant::now();
        loop {
            if let Ok(failed) = tokio::time::timeout(STALLED, sent.finished()).await {
                return failed;
            }
            if self.jobs.is_closed() {
                // Nobody waits for it; the lane is about to end.
                let gone = KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue);
                return indexes.iter().map(|index| (*index, gone.clone())).collect();
            }
            self.purge_if_dead();
            let stalled = Some(self.stalled(write.place, since, &write.job.messages));
            let inquiry = ProducerProbe {
                is_there: true,
                stalled,
                ..ProducerProbe::default()
            };
            if let Some(findings) = self.inquire(inquiry).await {
                self.tell(&findings);
            }
        }
    }

    /// Asks a broker, if there is doubt that one is there, a write that is not confirmed, or a topic that is refused.
    fn look(&mut self) {
        self.purge_if_dead();
        let now = Instant::now();
        let stalled = self.oldest_stalled(now);
        if stalled.is_some() {
            // It would keep the topics from opening, and these all that is new.
            self.opening.clear();
        }
        if !self.inquiries.is_empty() {
            return;
        }
        let counts = self.encode.needs_one_partition()
            && self
                .last_count
                .is_none_or(|last| now.saturating_duration_since(last) >= COUNT_PARTITIONS);
        if counts {
            self.last_count = Some(now);
        }
        let inquiry = ProducerProbe {
            is_there: self.link.is_doubtful() || stalled.is_some() || counts,
            partitions: counts,
            stalled,
            refused: self.topics.due(now),
        };
        if inquiry.is_needless() {
            if let Some(why) = self.waits_for() {
                self.link.down(&why);
            }
            return self.unpark_if_changed();
        }
        let asked = self.inquire(inquiry);
        self.inquiries.push(asked);
    }

    /// A client that died sends nothing any more. What it had on its way comes back into its queue, and stays there without a word.
    fn purge_if_dead(&self) {
        if self.client.client().fatal_error().is_some() {
            let client = self.client.clone();
            drop(tokio::task::spawn_blocking(move || {
                client.purge(PurgeConfig::default().queue());
            }));
        }
    }

    fn oldest_stalled(&self, now: Instant) -> Option<StalledWrite> {
        let mut begun = self.begun.iter();
        let (place, oldest) = begun.find(|(_, begun)| now.saturating_duration_since(begun.since) >= STALLED)?;
        Some(self.stalled(*place, oldest.since, &oldest.messages))
    }

    fn stalled(&self, place: u64, since: Instant, messages: &[Message]) -> StalledWrite {
        let topics = match &self.topic {
            Some(topic) => BTreeSet::from([Text::from(topic.as_str())]),
            None => {
                let looked_at = 0..messages.len().min(STALLED_MESSAGES);
                let topic = |index| Some(self.encode.record(messages, index).ok()?.topic);
                looked_at.filter_map(topic).collect()
            }
        };
        StalledWrite {
            place,
            since,
            topics: topics.into_iter().collect(),
        }
    }

    fn inquire(&self, inquiry: ProducerProbe) -> BoxFuture<'static, Option<ProducerProbeReport>> {
        let (link, client, own) = (self.link.clone(), self.client.clone(), self.topic.clone());
        let asked = tokio::task::spawn_blocking(move || inquiry.ask(&link, &client, own.as_deref()));
        // `None` while the process stops.
        Box::pin(async move { asked.await.ok() })
    }

    fn found(&mut self, findings: Option<ProducerProbeReport>) {
        let Some(mut findings) = findings else { return };
        if let (Some(topic), Some(count)) = (&self.topic, findings.partitions) {
            self.over = self.over.take().or(not_one_partition(topic, count));
        }
        // What waits for an answer for long would keep topics from opening, and these all that is new: they are asked for again.
        let may_open = self.oldest_stalled(Instant::now()).is_none();
        for (topic, why) in findings.refused.drain(..) {
            match why {
                Some(why) => self.topics.heard(&topic, Some(why)),
                None if may_open => self.opening.push(topic),
                None => {}
            }
        }
        if self.opening.is_empty() {
            self.unpark_if_changed();
        } else {
            self.open_topics();
        }
        if findings
            .stalled
            .as_ref()
            .is_some_and(|(place, _)| !self.begun.contains_key(place))
        {
            findings.stalled = None;
        }
        self.tell(&findings);
    }

    /// Opens topics that are there again, which happens here and nowhere else, and when nothing is on its way: a record that found
    /// the topic closed and waits for others of its write would be sent behind newer ones.
    fn open_topics(&mut self) {
        if self.opening.is_empty() || !self.on_their_way.is_empty() {
            return;
        }
        for topic in self.opening.drain(..) {
            self.topics.heard(&topic, None);
        }
        // What is held is behind something that is sent again, and so are its records that wait for a topic.
        let held = self.held.extract_if(.., |_, write| !write.astray.is_empty());
        self.again.extend(held.map(|(place, mut write)| {
            write.want_astray();
            (place, write)
        }));
        self.unpark();
    }

    /// Some topics may be over, or forgotten for others: what waits for them is refused, or tried again.
    fn unpark_if_changed(&mut self) {
        if self.topics.take_changed() {
            self.unpark();
        }
    }

    /// Tries what waits for its topic: with what is sent again, if there is any, since that comes before anything newer.
    fn unpark(&mut self) {
        self.late.clear();
        for (place, mut write) in std::mem::take(&mut self.parked) {
            write.want_astray();
            // What there is no room for, and then all that is behind it, is sent when nothing else is on its way.
            if self.again.is_empty() && self.has_room() {
                // What has only its other topics does not wait for it.
                write.topics.clear();
                self.launch(write);
            } else {
                self.order.enter(place, &write.topics);
                self.again.insert(place, write);
            }
        }
    }

    /// What messages wait for before they can be sent.
    fn waits_for(&self) -> Option<String> {
        match self.preparing.is_empty() {
            true => None,
            false => self.encode.waits_for(),
        }
    }

    /// Shows whether data can flow.
    fn tell(&self, findings: &ProducerProbeReport) {
        if let Some(why) = self.over.clone().or_else(|| self.waits_for()) {
            return self.link.down(&why);
        }
        match (&findings.broker, &findings.stalled) {
            (Some(Err(why)), _) | (_, Some((_, why))) => self.link.down(why),
            (Some(Ok(())), None) if self.again.is_empty() => self.link.connection.up(),
            _ => {}
        }
    }
}

/// What is wrong with a topic that has to have one partition.
pub fn not_one_partition(topic: &str, partitions: usize) -> Option<String> {
    (partitions != 1).then(|| {
        format!(
            "the topic {topic} has {partitions} partitions, and the unified namespace needs exactly one, which keeps the order of \
             all messages; make the topic anew with one partition"
        )
    })
}

/// What the client copies of a record.
fn bytes(record: &ProducerRecord) -> usize {
    let headers = record.headers.iter();
    let headers = headers.map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
    let value = record.value.as_ref().map_or(0, |value| value.len());
    value + record.key.as_ref().map_or(0, |key| key.len()) + headers.sum::<usize>()
}

#[cfg(test)]
mod tests;
