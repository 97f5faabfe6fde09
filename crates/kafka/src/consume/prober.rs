//! Probes the brokers periodically ([`probe`](super::probe)) and acts on the results: shows whether records can arrive,
//! sets the starting points of partitions, moves partitions to a recreated topic, and resubscribes when the group
//! assigns nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;
use thalweg_kit::{blocking, clock};
use tokio::runtime::Handle;

use super::callbacks::ConsumerCallbacks;
use super::coverage::{CoverageAction, CoverageMonitor, GroupCoverage};
use super::identity::{IdentityMatch, TopicIdentities};
use super::probe::{ConsumerProbe, ConsumerProbeReport};
use super::starting_point::StartingPoint;
use super::tracker::{PartitionStart, TopicPartition};
use super::{ConsumerOptions, ConsumerState, StartOffset, TopicSelection};
use crate::admin::{PinnedTopic, TopicId};

/// Interval while all is well. For this long, records of a recreated topic may be read at offsets of the old topic;
/// they are then read again at their own offsets.
const EVERY: Duration = Duration::from_secs(2);
/// Interval while something is wrong.
const SOON: Duration = Duration::from_secs(1);
/// Interval of the queries for all topics of the cluster, which expressions need.
const LIST_EVERY: Duration = Duration::from_secs(10);
/// A topic that is no longer selected is forgotten after this time. The client may have answers about it for a while.
const FORGET: Duration = Duration::from_secs(600);
/// Maximum wait for a running probe at the end: it shares the client, which leaves the group when its last reference is
/// dropped.
const LAST_LOOK: Duration = Duration::from_secs(3);

pub struct Prober {
    /// Dropped first, because they belong to the client.
    pinned: BTreeMap<String, PinnedTopic>,
    consumer: Arc<BaseConsumer<ConsumerCallbacks>>,
    shared: Arc<ConsumerState>,
    runtime: Handle,
    group: String,
    start: StartOffset,
    selection: TopicSelection,
    /// The topics that are read; `None` until expressions have been compared with the topics of the cluster.
    names: Option<Vec<String>>,
    last_list: Option<Instant>,
    /// Since when topics that were read are no longer selected.
    gone: BTreeMap<String, Instant>,
    is_assigned: bool,
    identities: TopicIdentities,
    coverage: CoverageMonitor,
    last: Option<Instant>,
    running: Option<mpsc::Receiver<ConsumerProbeReport>>,
    is_well: bool,
    /// Since when nothing can be read; `None` while it can.
    down_since: Option<Instant>,
    /// Whether a topic was missing in the last probe.
    is_missing: bool,
    /// Whether it was logged that the brokers have no topic ids.
    is_without_ids: bool,
}

impl Prober {
    pub fn new(
        consumer: Arc<BaseConsumer<ConsumerCallbacks>>,
        shared: Arc<ConsumerState>,
        options: ConsumerOptions,
        runtime: Handle,
    ) -> Prober {
        let names = match &options.topics {
            TopicSelection::Patterns(_) => None,
            TopicSelection::Names(_) | TopicSelection::Partitions(_) => Some(options.topics.names()),
        };
        Prober {
            pinned: BTreeMap::new(),
            consumer,
            shared,
            runtime,
            group: options.group,
            start: options.start,
            selection: options.topics,
            names,
            last_list: None,
            gone: BTreeMap::new(),
            is_assigned: false,
            identities: TopicIdentities::default(),
            coverage: CoverageMonitor::default(),
            last: None,
            running: None,
            is_well: false,
            down_since: Some(clock::now()),
            is_missing: false,
            is_without_ids: false,
        }
    }

    pub fn subscribe(&mut self) -> Result<(), String> {
        let names = self.names.as_deref().unwrap_or_default();
        for name in names {
            if !self.pinned.contains_key(name)
                && let Some(topic) = PinnedTopic::of(self.consumer.client(), name)
            {
                self.pinned.insert(name.clone(), topic);
            }
        }
        let subscribed = match &self.selection {
            TopicSelection::Partitions(_) if self.is_assigned => Ok(()),
            TopicSelection::Partitions(partitions) => {
                let mut list = TopicPartitionList::new();
                for (topic, numbers) in partitions {
                    for number in numbers {
                        list.add_partition(topic, *number);
                    }
                }
                self.is_assigned = true;
                self.shared.assign_by_hand(&self.consumer, &list)
            }
            TopicSelection::Names(_) | TopicSelection::Patterns(_) if names.is_empty() => {
                self.consumer.unsubscribe();
                Ok(())
            }
            TopicSelection::Names(_) | TopicSelection::Patterns(_) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.consumer.subscribe(&names)
            }
        };
        subscribed.map_err(|error| format!("cannot subscribe to {}: {error}", names.join(", ")))
    }

    /// The topics that the expressions select are others than before.
    fn select(&mut self, listed: Vec<String>) -> Result<(), String> {
        self.forget(&listed);
        if self.names.as_ref() == Some(&listed) {
            return Ok(());
        }
        // What has come since the first list is read from its first record.
        for name in listed
            .iter()
            .filter(|name| self.names.as_ref().is_some_and(|known| !known.contains(name)))
        {
            self.identities.missing(name);
        }
        self.shared.topics.store(listed.len(), Ordering::Relaxed);
        self.names = Some(listed);
        self.subscribe()
    }

    /// Forgets topics that have been gone for long: names may come and go without end.
    fn forget(&mut self, listed: &[String]) {
        let now = clock::now();
        // They are sorted.
        let is_gone = |name: &String| listed.binary_search(name).is_err();
        self.gone.retain(|name, _| is_gone(name));
        for name in self.pinned.keys().filter(|name| is_gone(name)) {
            self.gone.entry(name.clone()).or_insert(now);
        }
        let is_over = |since: &mut Instant| now.saturating_duration_since(*since) >= FORGET;
        for (name, _) in self.gone.extract_if(.., |_, since| is_over(since)) {
            self.pinned.remove(&name);
            self.identities.forget(&name);
        }
    }

    /// Returns `true` if starting points were found.
    pub fn tend(&mut self) -> bool {
        let mut has_placed = false;
        if let Some(running) = &self.running {
            match running.try_recv() {
                Ok(findings) => has_placed = self.act(findings),
                Err(TryRecvError::Empty) => return false,
                // The process is stopping.
                Err(TryRecvError::Disconnected) => {}
            }
            self.running = None;
        }
        if self.is_due() {
            self.begin();
        }
        has_placed
    }

    /// Waits for a running probe.
    pub fn end(&mut self) {
        if let Some(running) = self.running.take() {
            // This must not use the runtime, which may be gone by then.
            let _ = running.recv_timeout(LAST_LOOK);
        }
    }

    fn is_due(&self) -> bool {
        if self.shared.draining.load(Ordering::Relaxed) {
            return false;
        }
        let pause = match self.is_well && !self.shared.link.is_doubtful() {
            true => EVERY,
            false => SOON,
        };
        let is_over = self.last.is_none_or(|last| last.elapsed() >= pause);
        self.shared.probe_now.swap(false, Ordering::Relaxed) || is_over
    }

    fn begin(&mut self) {
        self.last = Some(clock::now());
        self.shared.link.forget_doubt();
        let (consumer, shared, probe) = (self.consumer.clone(), self.shared.clone(), self.probe());
        let identities = self.identities.clone();
        let (answer, running) = mpsc::sync_channel(1);
        self.running = Some(running);
        blocking::spawn_on(&self.runtime, move || {
            let findings = probe.look(&consumer, &shared, &identities);
            drop(consumer);
            let _ = answer.send(findings);
        });
    }

    fn probe(&mut self) -> ConsumerProbe {
        let list = match &self.selection {
            TopicSelection::Patterns(patterns) if self.last_list.is_none_or(|last| last.elapsed() >= LIST_EVERY) => {
                self.last_list = Some(clock::now());
                Some(patterns.clone())
            }
            _ => None,
        };
        let by_hand = match &self.selection {
            TopicSelection::Partitions(partitions) => partitions.clone(),
            TopicSelection::Names(_) | TopicSelection::Patterns(_) => BTreeMap::new(),
        };
        ConsumerProbe {
            topics: self.names.clone().unwrap_or_default(),
            group: self.group.clone(),
            start: self.start,
            list,
            are_selected: matches!(self.selection, TopicSelection::Patterns(_)),
            by_hand,
        }
    }

    /// Returns `true` if partitions were placed.
    fn act(&mut self, mut findings: ConsumerProbeReport) -> bool {
        let selected = findings.listed.take().map(|listed| self.select(listed));
        self.place(&findings.placed);
        self.compare(&findings);
        let is_missing = |topic: &Result<_, _>| *topic == Err(RDKafkaErrorCode::UnknownTopicOrPartition);
        // Without a response the state is unknown.
        let is_missing = match findings.topics.is_empty() {
            true => self.is_missing,
            false => findings.topics.values().any(is_missing),
        };
        let has_appeared = self.is_missing && !is_missing;
        self.is_missing = is_missing;
        let mut wrong = findings.wrong.or_else(|| selected?.err());
        if has_appeared && wrong.is_none() {
            // The group learns of the topic now instead of at the client's next metadata refresh.
            wrong = self.subscribe().err();
        }
        // Reported by fetches: the permission to describe a topic does not include reading it.
        let refused = self.shared.refused.lock().as_ref().map(|refused| refused.why.clone());
        match wrong.or(refused) {
            Some(why) => self.down(&why),
            None => self.cover(findings.found),
        }
        !findings.placed.is_empty()
    }

    fn cover(&mut self, found: Option<GroupCoverage>) {
        match found.map(|found| self.coverage.found(found, clock::now())) {
            None | Some(CoverageAction::Connected) => self.up(),
            Some(CoverageAction::Wait(why)) => {
                self.is_well = false;
                self.shared.meters.connected.set(0);
                self.shared.link.connection.progress(why);
                self.down_since.get_or_insert_with(clock::now);
            }
            Some(CoverageAction::Refresh) => {
                self.is_well = false;
                if let Err(why) = self.subscribe() {
                    self.down(&why);
                }
            }
            Some(CoverageAction::Down { why, subscribe }) => self.not_given(&why, subscribe),
        }
    }

    fn place(&mut self, placed: &[(PartitionStart, StartingPoint)]) {
        for (placed, beginning) in placed {
            self.shared.tracker.lock().placed(placed);
            if let StartingPoint::Recreated { committed } = beginning {
                self.recreated(&placed.partition, *committed, placed.mark.topic);
            }
        }
    }

    /// Compares the topics with the known ones.
    fn compare(&mut self, findings: &ConsumerProbeReport) {
        for (name, topic) in &findings.topics {
            let topic = match topic {
                Ok(topic) => topic,
                Err(RDKafkaErrorCode::UnknownTopicOrPartition) => {
                    self.identities.missing(name);
                    continue;
                }
                Err(_) => continue,
            };
            let Some(id) = topic.id else {
                self.tell_without_ids(name);
                continue;
            };
            if self.identities.seen(name, topic) == IdentityMatch::Outdated {
                continue;
            }
            let moved = self.shared.tracker.lock().found_in(name, id);
            for (partition, next) in &moved {
                self.recreated(partition, next.unwrap_or(0), topic.id);
            }
        }
    }

    /// The position in a partition belongs to a deleted topic. This is logged and counted once per topic.
    fn recreated(&mut self, partition: &TopicPartition, place: i64, id: Option<TopicId>) {
        let TopicPartition { topic, number } = partition;
        if self.identities.is_news(topic, id) {
            self.shared.meters.topics_recreated.inc();
            self.shared.link.component.warn_limited("recreated", 1, || {
                format!(
                    "the topic {topic} was deleted and recreated: offset {place} of partition {number} belongs to the old topic; all \
                     records of the new one are read"
                )
            });
        }
    }

    fn tell_without_ids(&mut self, topic: &str) {
        if !std::mem::replace(&mut self.is_without_ids, true) {
            self.shared.link.component.warn_limited("without_ids", 1, || {
                format!(
                    "the brokers provide no topic ids (they are older than Kafka 2.8 or omit them): if {topic} is deleted and \
                     recreated, records of the new topic may be skipped"
                )
            });
        }
    }

    /// The group assigns nothing to this member.
    fn not_given(&mut self, why: &str, subscribe: bool) {
        if subscribe {
            // Without unsubscribing, the client would treat the same topics as the same subscription.
            self.consumer.unsubscribe();
            if let Err(why) = self.subscribe() {
                return self.down(&why);
            }
        }
        self.down(why);
    }

    fn up(&mut self) {
        self.is_well = true;
        let shared = &self.shared;
        shared.meters.connected.set(1);
        if let Some(since) = self.down_since.take() {
            shared.meters.connection_time.observe(since.elapsed());
        }
        shared.link.connection.up();
    }

    fn down(&mut self, why: &str) {
        self.is_well = false;
        let shared = &self.shared;
        shared.meters.connected.set(0);
        shared.meters.connection_errors.inc();
        shared.link.down(why);
        self.down_since.get_or_insert_with(clock::now);
    }
}
