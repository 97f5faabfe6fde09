//! A persistent subscription: which messages of a source are settled, which are with a consumer, which wait and which are
//! parked. It is given candidates and the time, and has neither clock nor store: the same calls always give the same state.
//! What is below `read` and not open is settled: acknowledged, skipped, parked, or never wanted.
//!
//! A message is in one of these states:
//!
//! | state | means | next |
//! |---|---|---|
//! | unread | at or above `read` | `offer`: ready; wanted by no filter: settled |
//! | ready | waits for a consumer | `fetch`: leased, attempt + 1 |
//! | leased | with a consumer until a deadline | `ack`, `nack` skip: settled · `nack` retry: delayed or ready · `nack` park: parked · deadline: ready · the last attempt failed: parked |
//! | delayed | is not handed out before a time | that time: ready |
//! | parked | put aside with a reason; others go on | `replay`: ready, attempts from 0 · `discard`: settled |
//! | settled | is never handed out again | `reset` to a position not above it: unread |
//!
//! An open message is ready, leased or delayed. In `byStream` an open message that was handed out before holds back all
//! later ones of its cardinal id; parking one lets them go on.

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

/// Messages read ahead of what may be in flight, so that a stream that stands still does not hold up the others.
pub const AHEAD_MAX: usize = 4096;
/// With so many parked nothing is handed out any more.
pub const PARKED_MAX: usize = 10_000;
/// Bytes of a reason; what is longer is cut.
pub const REASON_BYTES_MAX: usize = 512;
/// Bytes of the name of a subscription, and of a consumer.
pub const NAME_BYTES_MAX: usize = 255;
/// Types that a subscription can name.
pub const TYPES_MAX: usize = 100;

/// What a subscription reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SubscriptionSource {
    Category(String),
    Stream(String),
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeliveryStrategy {
    /// One message of a cardinal id at a time, in order.
    #[default]
    ByStream,
    /// To whoever asks next; lower positions first, but nothing waits for another.
    RoundRobin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionSettings {
    pub source: SubscriptionSource,
    /// Global position from which it was to read, inclusive.
    pub from: u64,
    pub strategy: DeliveryStrategy,
    pub ack_timeout: Micros,
    /// How often a message is handed out before it is parked.
    pub max_attempts: u32,
    /// Messages with consumers at the same time.
    pub max_in_flight: usize,
    /// Only these, if any is named.
    pub types: Vec<String>,
    /// The category of `correlationStreamName` in the metadata.
    pub correlation: Option<String>,
}

/// A message that was read and could be wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub global: u64,
    /// Of the stream, from [`stream_key`].
    pub key: u64,
    pub bytes: u32,
}

/// The right to settle a message: its global position, and a number that no other handing out has had. It holds until the
/// message is handed out again, so that an answer that comes late, but not too late, counts.
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
    /// Until the message is handed out again, also past its deadline.
    Leased {
        number: u64,
        deadline: Micros,
        consumer: Arc<str>,
    },
}

/// What is told of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionInfo {
    pub settings: SubscriptionSettings,
    pub created_at: Micros,
    /// Global position up to which, inclusive, everything is settled or parked.
    pub position: u64,
    /// Up to which messages were looked at. What is imported below is not seen.
    pub read: u64,
    /// With consumers, whose time is not up.
    pub in_flight: usize,
    /// Looked at and to be handed out, now or later.
    pub waiting: usize,
    pub parked: usize,
    /// How many messages each has, in byte order.
    pub consumers: Vec<(Arc<str>, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    settings: SubscriptionSettings,
    created_at: Micros,
    /// Global position that is looked at next.
    read: u64,
    /// The largest global position that was handed out; at first, and after a reset, the one before the first. What is open
    /// above it is as good as unread, and is not stored.
    touched: u64,
    /// The number that was given last.
    numbered: u64,
    open: BTreeMap<u64, OpenMessage>,
    parked: BTreeMap<u64, ParkedEntry>,
    /// As with [`NamespaceWatermark::cleared`](crate::NamespaceWatermark::cleared), of the messages that all this is about. `None`: stored by a
    /// version that did not note it.
    cleared: Option<u64>,
}

impl Subscription {
    pub fn new(settings: SubscriptionSettings, now: Micros) -> Subscription {
        Subscription {
            read: settings.from.max(1),
            touched: settings.from.max(1) - 1,
            // A subscription that has the name of one that was deleted does not give its leases again.
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

    /// Global position that is to be read next.
    pub fn next(&self) -> u64 {
        self.read
    }

    pub fn parked(&self) -> &BTreeMap<u64, ParkedEntry> {
        &self.parked
    }

    /// Whether a lease holds and its time is not up.
    pub fn is_live(&self, lease: Lease, now: Micros) -> bool {
        let open = self.open.get(&lease.global);
        open.is_some_and(|open| match open.state {
            OpenMessageState::Leased { number, deadline, .. } => number == lease.number && deadline > now,
            OpenMessageState::Ready | OpenMessageState::Delayed { .. } => false,
        })
    }

    /// Everything up to it, inclusive, is settled or parked.
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

    /// When a message that nobody can have now could be had; `None` if that takes more than time.
    pub fn due(&self, now: Micros) -> Option<Micros> {
        let times = self.open.values().filter_map(|open| match open.state {
            OpenMessageState::Delayed { until } => Some(until),
            OpenMessageState::Leased { deadline, .. } => Some(deadline),
            OpenMessageState::Ready => None,
        });
        times.filter(|time| *time > now).min()
    }

    /// Whether a lease still holds.
    pub fn holds(&self, lease: Lease) -> bool {
        let open = self.open.get(&lease.global);
        open.is_some_and(|open| matches!(open.state, OpenMessageState::Leased { number, .. } if number == lease.number))
    }

    /// Puts a message aside. It is not open any more.
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

/// By what messages are kept in order: the cardinal id of their stream, or its name if it has none.
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
