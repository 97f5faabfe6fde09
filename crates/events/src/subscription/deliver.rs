//! Reading ahead and delivery to consumers.

use std::collections::HashSet;
use std::sync::Arc;

use thalweg_log::Micros;

use super::{AHEAD_MAX, Candidate, DeliveryStrategy, Lease, OpenMessage, OpenMessageState, PARKED_MAX, Subscription};

/// A consumer's request for messages.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    pub consumer: Arc<str>,
    pub max: usize,
    pub bytes_max: u64,
    /// Deliver at least one message, however large it is.
    pub at_least_one: bool,
}

/// A message that was just leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedMessage {
    pub lease: Lease,
    /// Starts at 1.
    pub attempt: u32,
    pub bytes: u32,
}

impl Subscription {
    /// How many more candidates fit.
    pub fn room(&self) -> usize {
        (self.settings.max_in_flight + AHEAD_MAX).saturating_sub(self.open.len())
    }

    /// Adds candidates that were read from [`Subscription::next`] up to but excluding `next`, in order. At most
    /// [`Subscription::room`] are allowed.
    pub fn offer(&mut self, candidates: &[Candidate], next: u64) {
        for candidate in candidates {
            if candidate.global < self.read {
                continue;
            }
            let open = OpenMessage {
                key: candidate.key,
                bytes: candidate.bytes,
                attempts: 0,
                state: OpenMessageState::Ready,
            };
            self.open.insert(candidate.global, open);
            self.read = candidate.global + 1;
        }
        self.read = self.read.max(next);
    }

    /// Whether delivery has stopped until parked messages are replayed or discarded.
    pub fn is_full(&self) -> bool {
        self.parked.len() >= PARKED_MAX
    }

    /// Whether the maximum number of messages is in flight.
    pub fn is_busy(&self, now: Micros) -> bool {
        self.leased(now).count() >= self.settings.max_in_flight
    }

    fn leased(&self, now: Micros) -> impl Iterator<Item = &OpenMessage> {
        let live = move |open: &&OpenMessage| matches!(open.state, OpenMessageState::Leased { deadline, .. } if deadline > now);
        self.open.values().filter(live)
    }

    /// Parks messages whose last attempt was not acknowledged in time. Returns their number.
    pub fn expire(&mut self, now: Micros) -> usize {
        let attempts_max = self.settings.max_attempts;
        let over = |open: &OpenMessage| match open.state {
            OpenMessageState::Leased { deadline, .. } => deadline <= now && open.attempts >= attempts_max,
            OpenMessageState::Delayed { until } => until <= now && open.attempts >= attempts_max,
            OpenMessageState::Ready => open.attempts >= attempts_max,
        };
        let globals: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| over(open))
            .map(|(global, _)| *global)
            .collect();
        if globals.is_empty() {
            return 0;
        }
        let reason: Arc<str> = match attempts_max {
            1 => "not acknowledged in its one attempt".into(),
            attempts => format!("not acknowledged in {attempts} attempts").into(),
        };
        for global in &globals {
            if let Some(open) = self.open.remove(global) {
                self.park(*global, &open, reason.clone(), now);
            }
        }
        globals.len()
    }

    /// Delivers messages, lower positions first. Delivers nothing while [`Subscription::is_full`].
    pub fn fetch(&mut self, fetch: &LeaseRequest, now: Micros) -> Vec<LeasedMessage> {
        if self.is_full() {
            return Vec::new();
        }
        self.expire(now);
        let mut held_back: HashSet<u64> = HashSet::new();
        let mut in_flight = 0;
        for open in self.leased(now) {
            held_back.insert(open.key);
            in_flight += 1;
        }
        let in_order = self.settings.strategy == DeliveryStrategy::ByStream;
        let mut room = fetch.max.min(self.settings.max_in_flight.saturating_sub(in_flight));
        let mut bytes = 0;
        let mut out = Vec::new();
        for (global, open) in &mut self.open {
            if room == 0 {
                break;
            }
            let available = match open.state {
                OpenMessageState::Ready => true,
                OpenMessageState::Delayed { until } => until <= now,
                OpenMessageState::Leased { deadline, .. } => deadline <= now,
            };
            // The first message of a key holds back the others, whether it is delivered now or waits.
            if in_order && !held_back.insert(open.key) || !available {
                continue;
            }
            bytes += u64::from(open.bytes);
            if bytes > fetch.bytes_max && !(fetch.at_least_one && out.is_empty()) {
                break;
            }
            room -= 1;
            self.numbered += 1;
            open.attempts += 1;
            open.state = OpenMessageState::Leased {
                number: self.numbered,
                deadline: now.saturating_add(self.settings.ack_timeout),
                consumer: fetch.consumer.clone(),
            };
            self.touched = self.touched.max(*global);
            let lease = Lease {
                global: *global,
                number: self.numbered,
            };
            out.push(LeasedMessage {
                lease,
                attempt: open.attempts,
                bytes: open.bytes,
            });
        }
        out
    }
}
