//! The table of all instances: the known topics, and the events pending for the next bundle.
//!
//! Invariants: a topic with pending events is never forgotten, so every event of a bundle has its topic in it. Within
//! the limits nothing is lost, because a caller that finds no room first takes the pending events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use thalweg_record::Ack;

use super::event::TopicEvent;

/// Approximate limits for the messages pending for a bundle, and for the newest messages of all topics, both with their
/// metadata.
const EVENTS_BYTES_MAX: usize = 32 << 20;
const TOPICS_BYTES_MAX: usize = 128 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BrowserLimits {
    pub topics_max: usize,
    pub events_per_topic_max: usize,
    pub events_max: usize,
    pub interval: Duration,
}

/// A pending event, and the acknowledgement of its message.
#[derive(Debug)]
pub(super) struct PendingEvent {
    pub event: Arc<TopicEvent>,
    pub ack: Ack,
}

impl PendingEvent {
    pub fn new(event: TopicEvent, ack: Ack) -> PendingEvent {
        let event = Arc::new(event);
        PendingEvent { event, ack }
    }
}

/// The contents of a bundle.
#[derive(Debug, Default)]
pub(super) struct BundleContents {
    /// The newest event of every topic.
    pub topics: Vec<Arc<TopicEvent>>,
    pub held: Vec<PendingEvent>,
}

struct TopicState {
    newest: Arc<TopicEvent>,
    /// Sequence number of its last use.
    used: u64,
    held: VecDeque<PendingEvent>,
}

pub(super) struct TopicTable {
    limits: BrowserLimits,
    topics: HashMap<u64, TopicState>,
    /// Ids of topics by their last use, the oldest first. Those with pending events come after those without.
    by_use: BTreeMap<u64, u64>,
    uses: u64,
    topics_bytes: usize,
    events: usize,
    events_bytes: usize,
    due: Option<Instant>,
}

impl TopicTable {
    pub fn new(limits: BrowserLimits) -> TopicTable {
        TopicTable {
            limits,
            topics: HashMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            topics_bytes: 0,
            events: 0,
            events_bytes: 0,
            due: None,
        }
    }

    /// When the next bundle is due; `None` while no topic is known.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Number of pending events.
    pub fn events(&self) -> usize {
        self.events
    }

    /// The newest event of every topic, the least recently used first.
    pub fn topics(&self) -> Vec<Arc<TopicEvent>> {
        let known = self.by_use.values().filter_map(|id| self.topics.get(id));
        known.map(|known| known.newest.clone()).collect()
    }

    /// Whether an event can be added without losing another one, except one of its own topic that it replaces.
    pub fn has_room_for(&self, event: &TopicEvent) -> bool {
        let known = self.topics.get(&event.id);
        let replaces = known.is_some_and(|known| known.held.len() >= self.limits.events_per_topic_max);
        let is_full = self.events >= self.limits.events_max && !replaces;
        let is_heavy = self.events_bytes + event.bytes > EVENTS_BYTES_MAX && self.events > 0;
        let is_crowded = known.is_none() && self.topics.len() >= self.limits.topics_max && self.idle().is_none();
        !(is_full || is_heavy || is_crowded)
    }

    /// Adds an event. Returns the one that it replaces.
    pub fn add(&mut self, held: PendingEvent, now: Instant) -> Option<PendingEvent> {
        let (event, id) = (held.event.clone(), held.event.id);
        self.uses += 1;
        self.events += 1;
        self.events_bytes += event.bytes;
        self.topics_bytes += event.bytes;
        self.due.get_or_insert(now + self.limits.interval);
        let known = self.topics.entry(id).or_insert_with(|| TopicState {
            newest: event.clone(),
            used: 0,
            held: VecDeque::new(),
        });
        match self.by_use.remove(&known.used) {
            Some(_id) => self.topics_bytes -= known.newest.bytes,
            None => debug_assert_eq!(known.used, 0, "a topic that is known was used before"),
        }
        self.by_use.insert(self.uses, id);
        known.used = self.uses;
        known.newest = event;
        let replaced = match known.held.len() < self.limits.events_per_topic_max {
            true => None,
            false => known.held.pop_front(),
        };
        known.held.push_back(held);
        if let Some(replaced) = &replaced {
            self.events -= 1;
            self.events_bytes -= replaced.event.bytes;
        }
        self.forget();
        replaced
    }

    /// Takes the pending events, and all topics. The next interval begins now.
    pub fn take(&mut self, now: Instant) -> BundleContents {
        let mut taken = BundleContents::default();
        for id in self.by_use.values() {
            let Some(known) = self.topics.get_mut(id) else {
                continue;
            };
            taken.topics.push(known.newest.clone());
            taken.held.extend(std::mem::take(&mut known.held));
        }
        self.events = 0;
        self.events_bytes = 0;
        self.forget();
        self.due = (!self.topics.is_empty()).then(|| now + self.limits.interval);
        taken
    }

    /// The least recently used topic, unless it has a pending event; then all topics have one.
    fn idle(&self) -> Option<(u64, u64)> {
        let (used, id) = self.by_use.first_key_value()?;
        let known = self.topics.get(id)?;
        known.held.is_empty().then_some((*used, *id))
    }

    /// Forgets topics until the others are within their limits.
    fn forget(&mut self) {
        while self.topics.len() > self.limits.topics_max || self.topics_bytes > TOPICS_BYTES_MAX {
            let Some((used, id)) = self.idle() else { break };
            self.by_use.remove(&used);
            if let Some(known) = self.topics.remove(&id) {
                self.topics_bytes -= known.newest.bytes;
            }
        }
    }
}
