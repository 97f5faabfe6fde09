//! The state machine of a persistent subscription: which messages of a source are settled, leased to a consumer,
//! waiting or parked. Candidates and the time are passed in; it has no clock and no store, so the same calls always
//! give the same state. Messages below `read` that are not open are settled: acknowledged, skipped, parked, or filtered
//! out.
//!
//! A message is in one of these states:
//!
//! | state | meaning | next |
//! |---|---|---|
//! | unread | at or above `read` | `offer`: ready; excluded by a filter: settled |
//! | ready | waits for a consumer | `fetch`: leased, attempt + 1 |
//! | leased | with a consumer until a deadline | `ack`, `nack` skip: settled · `nack` retry: delayed or ready · `nack` park: parked · deadline: ready · the last attempt failed: parked |
//! | delayed | is not delivered before a time | that time: ready |
//! | parked | put aside with a reason; others continue | `replay`: ready, attempts from 0 · `discard`: settled |
//! | settled | is never delivered again | `reset` to a position not above it: unread |
//!
//! An open message is ready, leased or delayed. With `byStream`, an open message holds back all later ones with its
//! cardinal id; parking it lets them continue.

mod codec;
mod deliver;
mod settle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thalweg_log::Micros;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use deliver::{LeaseRequest, LeasedMessage};
pub use settle::{Nack, SettingsChange, SettleOutcome};

use crate::names::cardinal_id;

/// Number of messages read ahead beyond those in flight, so that a blocked stream does not block the others.
pub const AHEAD_MAX: usize = 4096;
/// At this number of parked messages, delivery stops.
pub const PARKED_MAX: usize = 10_000;
/// Maximum length of a reason in bytes; longer ones are cut.
pub const REASON_BYTES_MAX: usize = 512;
/// Maximum length in bytes of the name of a subscription and of a consumer.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum number of types in the filter.
pub const TYPES_MAX: usize = 100;

/// The source of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionSource {
    Category(String),
    Stream(String),
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryStrategy {
    /// In order, one message per cardinal id at a time.
    #[default]
    ByStream,
    /// To the next consumer that asks, lower positions first, without waiting for other messages.
    RoundRobin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSettings {
    pub source: SubscriptionSource,
    /// Inclusive global position at which it started.
    pub from: u64,
    pub strategy: DeliveryStrategy,
    pub ack_timeout: Micros,
    /// Maximum number of deliveries before a message is parked.
    pub max_attempts: u32,
    /// Maximum number of messages in flight.
    pub max_in_flight: usize,
    /// Only these types, if any are given.
    pub types: Vec<String>,
    /// The category of `correlationStreamName` in the metadata.
    pub correlation: Option<String>,
}

/// A message that was read and may match the filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub global: u64,
    /// The key of its stream, from [`stream_key`].
    pub key: u64,
    pub bytes: u32,
}

/// The right to settle a message: its global position and a number that is unique per delivery. It is valid until the
/// message is delivered again, so that an acknowledgement after the deadline still counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    pub global: u64,
    pub number: u64,
}

/// A parked message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedEntry {
    pub reason: Arc<str>,
    pub attempts: u32,
    pub at: Micros,
    key: u64,
    bytes: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct OpenMessage {
    key: u64,
    bytes: u32,
    attempts: u32,
    state: OpenMessageState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OpenMessageState {
    Ready,
    Delayed {
        until: Micros,
    },
    /// Until the message is delivered again, even after the deadline.
    Leased {
        number: u64,
        deadline: Micros,
        consumer: Arc<str>,
    },
}

/// Information about a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionInfo {
    pub settings: SubscriptionSettings,
    pub created_at: Micros,
    /// Inclusive global position up to which everything is settled or parked.
    pub position: u64,
    /// Inclusive global position up to which messages were read. Later imports below it are not seen.
    pub read: u64,
    /// Number of leased messages before their deadline.
    pub in_flight: usize,
    /// Number of messages that were read and will be delivered now or later.
    pub waiting: usize,
    pub parked: usize,
    /// Number of messages per consumer, in byte order.
    pub consumers: Vec<(Arc<str>, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    settings: SubscriptionSettings,
    created_at: Micros,
    /// The next global position to read.
    read: u64,
    /// The largest delivered global position; initially and after a reset, the one before the first. Open messages
    /// above it were never delivered and are not stored, because they can be read again.
    touched: u64,
    /// The last lease number.
    numbered: u64,
    open: BTreeMap<u64, OpenMessage>,
    parked: BTreeMap<u64, ParkedEntry>,
    /// The [`NamespaceWatermark::cleared`](crate::NamespaceWatermark::cleared) of the messages in this state. `None` if
    /// an older version stored it without the number.
    cleared: Option<u64>,
}

impl Subscription {
    pub fn new(settings: SubscriptionSettings, now: Micros) -> Subscription {
        Subscription {
            read: settings.from.max(1),
            touched: settings.from.max(1) - 1,
            // Starting at the time prevents a recreated subscription from reusing the lease numbers of a deleted one.
            numbered: now.max(0).unsigned_abs(),
            created_at: now,
            open: BTreeMap::new(),
            parked: BTreeMap::new(),
            cleared: None,
            settings,
        }
    }

    pub fn settings(&self) -> &SubscriptionSettings {
        &self.settings
    }

    /// The next global position to read.
    pub fn next(&self) -> u64 {
        self.read
    }

    pub fn parked(&self) -> &BTreeMap<u64, ParkedEntry> {
        &self.parked
    }

    /// Whether a lease is valid and before its deadline.
    pub fn is_live(&self, lease: Lease, now: Micros) -> bool {
        let open = self.open.get(&lease.global);
        open.is_some_and(|open| match open.state {
            OpenMessageState::Leased { number, deadline, .. } => number == lease.number && deadline > now,
            OpenMessageState::Ready | OpenMessageState::Delayed { .. } => false,
        })
    }

    /// The inclusive position up to which everything is settled or parked.
    pub fn position(&self) -> u64 {
        let next = self.open.keys().next().copied().unwrap_or(self.read);
        next.saturating_sub(1)
    }

    pub fn info(&self, now: Micros) -> SubscriptionInfo {
        let mut consumers: BTreeMap<Arc<str>, usize> = BTreeMap::new();
        for open in self.open.values() {
            if let OpenMessageState::Leased { consumer, deadline, .. } = &open.state
                && *deadline > now
            {
                *consumers.entry(consumer.clone()).or_default() += 1;
            }
        }
        let in_flight = consumers.values().sum();
        SubscriptionInfo {
            settings: self.settings.clone(),
            created_at: self.created_at,
            position: self.position(),
            read: self.read.saturating_sub(1),
            in_flight,
            waiting: self.open.len() - in_flight,
            parked: self.parked.len(),
            consumers: consumers.into_iter().collect(),
        }
    }

    /// When a message that is delayed or leased becomes available; `None` if no such time is ahead.
    pub fn due(&self, now: Micros) -> Option<Micros> {
        let times = self.open.values().filter_map(|open| match open.state {
            OpenMessageState::Delayed { until } => Some(until),
            OpenMessageState::Leased { deadline, .. } => Some(deadline),
            OpenMessageState::Ready => None,
        });
        times.filter(|time| *time > now).min()
    }

    /// Whether a lease is still valid.
    pub fn holds(&self, lease: Lease) -> bool {
        let open = self.open.get(&lease.global);
        open.is_some_and(|open| matches!(open.state, OpenMessageState::Leased { number, .. } if number == lease.number))
    }

    /// Parks a message, which is not open any more.
    fn park(&mut self, global: u64, open: &OpenMessage, reason: Arc<str>, now: Micros) {
        let parked = ParkedEntry {
            reason,
            attempts: open.attempts,
            at: now,
            key: open.key,
            bytes: open.bytes,
        };
        self.parked.insert(global, parked);
    }
}

/// The ordering key of a message: its cardinal id, or the name of its stream without one.
pub fn stream_key(stream: &str) -> u64 {
    match cardinal_id(stream) {
        Some(id) => xxh3_64_with_seed(id.as_bytes(), 0),
        None => xxh3_64_with_seed(stream.as_bytes(), 1),
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.global, self.number)
    }
}

impl FromStr for Lease {
    type Err = ();

    fn from_str(text: &str) -> Result<Lease, ()> {
        let (global, number) = text.split_once('.').ok_or(())?;
        let digits = |part: &str| match part.bytes().all(|byte| byte.is_ascii_digit()) {
            true => part.parse().map_err(|_| ()),
            false => Err(()),
        };
        Ok(Lease {
            global: digits(global)?,
            number: digits(number)?,
        })
    }
}
