//! Keeps the order of writes through failures.
//!
//! | state | new writes | what happens |
//! |---|---|---|
//! | flowing | are sent as they arrive | any number is in flight, and the client keeps the order of each partition |
//! | draining: a record failed temporarily, or a topic exists again | wait | the writes in flight are awaited; their failures join |
//! | repeating: nothing is in flight | wait | records that waited for a topic are sent; after a pause, failed records are resent in the order of their writes; then flowing |
//!
//! A client pipelines many requests to a broker, and when one fails, the next may succeed. So a record that the broker
//! has although an older one of its topic and key failed is resent after that one: it is stored twice, and the last
//! record of its key is the newest. For this, a write that the broker has is held, and not confirmed, until the older
//! ones that share its topics are finished ([`order`](super::order)); after a crash in between, both are resent. Held
//! writes count as in flight, which bounds them.
//!
//! A permanent rejection ends a record in any state. A record whose topic is rejected waits separately
//! ([`topics`](super::topics)), unless there is only one topic. Returning failures to the flow, which retries writes
//! too, was rejected: it retries each write by itself, so two of them could be reordered.
//!
//! Messages are prepared one write at a time, concurrently with writes in flight, and later ones wait.
//!
//! A broker rejects whole requests, and the client puts records of several writes into one. So a rejection as too large
//! or with an invalid record does not identify the record: each is resent with nothing else in flight, and rejected
//! only if it fails alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use rdkafka::ClientConfig;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseRecord, Producer as _, PurgeConfig};
use thalweg_flow::{BoxFuture, WriteError, all_but};
use thalweg_kit::backoff::Backoff;
use thalweg_kit::{blocking, clock};
use thalweg_record::{Message, Text};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::deliveries::{FailingWrites, InFlightRecord, PendingDeliveries};
use super::order::WriteOrder;
use super::probe::{ProducerProbe, ProducerProbeReport, StalledWrite};
use super::retry_decision::{RetryDecision, fate};
use super::topics::{Gate, TopicGates};
use super::write::{WaitingKeys, WriteRequest, WriteState};
use super::{ProducerClient, ProducerRecord, RecordEncoder, RecordKey, connect, drop_aside};
use crate::headers;
use crate::link::{BrokerLink, died_of};

const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Interval of the checks whether a broker must be queried.
const ASK: Duration = Duration::from_secs(1);
/// A write that is not confirmed for longer is reported.
const STALLED: Duration = Duration::from_secs(10);
/// Maximum messages examined to name the topics of a stalled write.
const STALLED_MESSAGES: usize = 100;
/// Interval of the checks of a topic that must have one partition.
const COUNT_PARTITIONS: Duration = Duration::from_secs(2);

/// A write in flight, for the detection of stalled writes.
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
    /// Bytes in flight.
    bytes: usize,
    jobs: mpsc::UnboundedReceiver<WriteRequest>,
    /// The last write, until its messages are prepared; at most one.
    preparing: FuturesUnordered<BoxFuture<'static, WriteRequest>>,
    /// The newest write, until it may be sent.
    next: Option<WriteState>,
    on_their_way: FuturesUnordered<BoxFuture<'static, (WriteState, RecordErrors)>>,
    begun: BTreeMap<u64, InFlightWrite>,
    failing: FailingWrites,
    order: WriteOrder,
    /// Writes with records to be resent.
    again: BTreeMap<u64, WriteState>,
    /// Writes without a record to send, behind older unfinished ones.
    held: BTreeMap<u64, WriteState>,
    /// Writes whose remaining records wait for a topic.
    parked: BTreeMap<u64, WriteState>,
    /// The keys of the records of parked writes.
    late: WaitingKeys,
    /// The newest write when a topic was closed: newer writes have sent no records of that topic.
    closed_at: u64,
    /// Topics that exist again; they open when nothing is in flight.
    opening: Vec<Text>,
    /// At most one.
    inquiries: FuturesUnordered<BoxFuture<'static, Option<ProducerProbeReport>>>,
    place: u64,
    pauses: Backoff,
    is_client_lost: bool,
    last_count: Option<Instant>,
    /// Why no new writes are accepted.
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
            pauses: PAUSES,
            is_client_lost: false,
            last_count: None,
            over: None,
        }
    }

    /// Ends when no more writes can arrive; the writes in flight are then abandoned.
    pub async fn run(mut self) {
        let mut ticks = tokio::time::interval(ASK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_flowing = self.is_flowing();
            if is_flowing && let Some(write) = self.next.take() {
                self.launch(write);
                continue;
            }
            // The ticks are always polled, so that the select never has all branches disabled.
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

    /// Whether a new write may be sent. The client's thread may change this at any time.
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
        // The usual case: nothing needs to be loaded.
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

    /// Sends the wanted records of a write, concurrently with other writes.
    fn launch(&mut self, mut write: WriteState) {
        let wanted = std::mem::take(&mut write.wanted);
        write.bytes = 0;
        let sent = self.send(&mut write, &wanted);
        let begun = InFlightWrite {
            since: clock::now(),
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

    /// Passes records to the client, which sends them in this order.
    fn send(&mut self, write: &mut WriteState, indexes: &[usize]) -> Arc<PendingDeliveries> {
        let pending = PendingDeliveries::new(self.failing.clone(), self.topics.is_many());
        let mut stopped: Option<KafkaError> = None;
        for &index in indexes {
            // Records after one that must wait also wait.
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
                // No broker has rejected it.
                Gate::Closed => write.astray.push(index),
                Gate::Over(why) => write.give_up(index, why),
            }
        }
        self.order.enter(write.place, &write.topics);
        pending.ended();
        pending
    }

    /// Returns the error if later records must wait.
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
        // If the topic gets more partitions, the order is kept until that is noticed.
        out.partition = self.encode.needs_one_partition().then_some(0);
        out.payload = record.value.as_deref();
        out.key = record.key.as_ref().map(RecordKey::as_bytes);
        out.timestamp = record.time_ms;
        let Err((error, _)) = self.client.send(out) else {
            write.sent(index, bytes);
            return None;
        };
        pending.ended();
        match fate(&error) {
            // The record by itself exceeds the client's size limit.
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

    /// All records of a write have a delivery report.
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
            self.link.down(&format!(
                "records are temporarily not accepted, and are sent again: {why}"
            ));
        } else {
            self.pauses.reset();
        }
        self.keep(write);
    }

    /// Stores a write where its remaining records have to wait.
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

    /// Finishes a held write if it is first, and then the writes after it.
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

    /// No older record must be resent before this write, except those that wait for a topic.
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
            // It need not be alone the next time.
            write.is_split = false;
            self.parked.insert(write.place, write);
        }
    }

    fn close(&mut self, topic: &Text, why: &str) {
        self.topics.failed(topic, why);
        self.closed_at = self.place;
    }

    /// The topic of a record is rejected.
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
            format!("records to the topic {topic} wait, and are rejected if it keeps refusing them: {why}")
        });
    }

    /// Resends failed records in order, with the records that overtook them, before anything newer.
    async fn repeat(&mut self) {
        tokio::time::sleep(self.pauses.next_pause()).await;
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

    /// Adds the records that overtook a record to be resent.
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

    /// Sends each record alone, up to one that must wait.
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

    /// Whether records after one with this error must wait.
    fn holds_up(&self, error: &KafkaError) -> bool {
        match fate(error) {
            RetryDecision::Again(_) | RetryDecision::ClientLost(_) => true,
            RetryDecision::Topic(_) => !self.topics.is_many(),
            RetryDecision::Together(..) | RetryDecision::Refused(..) => false,
        }
    }

    /// Waits for the reports of these records while nothing else is in flight, and reports a stall.
    async fn wait_for(&mut self, write: &WriteState, indexes: &[usize], sent: &Arc<PendingDeliveries>) -> RecordErrors {
        let since = clock::now();
        loop {
            if let Ok(failed) = tokio::time::timeout(STALLED, sent.finished()).await {
                return failed;
            }
            if self.jobs.is_closed() {
                // Nobody waits for it; the task is about to end.
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

    /// Queries a broker if its availability is in doubt, a write is stalled, or a topic is rejected.
    fn look(&mut self) {
        self.purge_if_dead();
        let now = clock::now();
        let stalled = self.oldest_stalled(now);
        if stalled.is_some() {
            // It would keep the topics from opening, and these would block all new writes.
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

    /// Purges the queue of a client that died. It sends nothing any more, and records in flight return to its queue and
    /// stay there silently.
    fn purge_if_dead(&self) {
        if self.client.client().fatal_error().is_some() {
            let client = self.client.clone();
            drop(blocking::spawn(move || {
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
        let asked = blocking::spawn(move || inquiry.ask(&link, &client, own.as_deref()));
        // `None` while the process stops.
        Box::pin(async move { asked.await.ok() })
    }

    fn found(&mut self, findings: Option<ProducerProbeReport>) {
        let Some(mut findings) = findings else { return };
        if let (Some(topic), Some(count)) = (&self.topic, findings.partitions) {
            self.over = self.over.take().or(not_one_partition(topic, count));
        }
        // A stalled write would keep topics from opening, and these would block all new writes: query them again later.
        let may_open = self.oldest_stalled(clock::now()).is_none();
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

    /// Opens topics that exist again. This happens only here and only when nothing is in flight: otherwise a record
    /// that found its topic closed and waits for other records of its write would be sent after newer ones.
    fn open_topics(&mut self) {
        if self.opening.is_empty() || !self.on_their_way.is_empty() {
            return;
        }
        for topic in self.opening.drain(..) {
            self.topics.heard(&topic, None);
        }
        // A held write is after one that is resent, and so are its records that wait for a topic.
        let held = self.held.extract_if(.., |_, write| !write.astray.is_empty());
        self.again.extend(held.map(|(place, mut write)| {
            write.want_astray();
            (place, write)
        }));
        self.unpark();
    }

    /// Some topics may be over, or evicted for others: records that wait for them are rejected or retried.
    fn unpark_if_changed(&mut self) {
        if self.topics.take_changed() {
            self.unpark();
        }
    }

    /// Retries records that wait for their topic: together with resends, if there are any, because these precede
    /// anything newer.
    fn unpark(&mut self) {
        self.late.clear();
        for (place, mut write) in std::mem::take(&mut self.parked) {
            write.want_astray();
            // If there is no room, this write and all later ones are sent when nothing else is in flight.
            if self.again.is_empty() && self.has_room() {
                // Writes that share only its other topics do not wait for it.
                write.topics.clear();
                self.launch(write);
            } else {
                self.order.enter(place, &write.topics);
                self.again.insert(place, write);
            }
        }
    }

    /// Why messages cannot be sent yet.
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

/// Returns the error for a topic that must have one partition.
pub fn not_one_partition(topic: &str, partitions: usize) -> Option<String> {
    (partitions != 1).then(|| {
        format!(
            "the topic {topic} has {partitions} partitions, but the unified namespace needs exactly one, which keeps the order of \
             all messages; recreate the topic with one partition"
        )
    })
}

/// The bytes of a record that the client copies.
fn bytes(record: &ProducerRecord) -> usize {
    let value = record.value.as_ref().map_or(0, |value| value.len());
    value + record.key.as_ref().map_or(0, |key| key.as_bytes().len()) + headers::bytes(&record.headers)
}

#[cfg(test)]
mod tests;
