//! Settling delivered and parked messages, and changes by an operator.

use std::sync::Arc;

use thalweg_log::Micros;

use super::{DeliveryStrategy, Lease, OpenMessage, OpenMessageState, REASON_BYTES_MAX, Subscription};

/// What should happen to a message that a consumer could not process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nack {
    /// Deliver it again after `delay`; park it if this was the last attempt.
    Retry {
        delay: Micros,
        reason: String,
    },
    Park {
        reason: String,
    },
    /// Treat it as done.
    Skip,
    /// It never reached a consumer, so the delivery is undone.
    Back,
}

/// The outcome for a list of leases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleOutcome {
    pub settled: usize,
    /// Leases that are no longer valid, because the message was settled or delivered again.
    pub stale: Vec<Lease>,
}

/// Changes of settings; absent ones stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettingsChange {
    pub strategy: Option<DeliveryStrategy>,
    pub ack_timeout: Option<Micros>,
    pub max_attempts: Option<u32>,
    pub max_in_flight: Option<usize>,
    pub types: Option<Vec<String>>,
    pub correlation: Option<Option<String>>,
}

impl Subscription {
    pub fn ack(&mut self, leases: &[Lease]) -> SettleOutcome {
        self.each(leases, |_, _, _| ())
    }

    pub fn nack(&mut self, leases: &[Lease], nack: &Nack, now: Micros) -> SettleOutcome {
        let attempts_max = self.settings.max_attempts;
        match nack {
            Nack::Skip => self.ack(leases),
            Nack::Back => self.each(leases, |all, global, mut open| {
                open.attempts = open.attempts.saturating_sub(1);
                open.state = OpenMessageState::Ready;
                all.open.insert(global, open);
            }),
            Nack::Park { reason } => {
                let reason = cut(reason);
                self.each(leases, |all, global, open| all.park(global, &open, reason.clone(), now))
            }
            Nack::Retry { delay, reason } => {
                let reason = cut(reason);
                self.each(leases, |all, global, mut open| {
                    if open.attempts >= attempts_max {
                        all.park(global, &open, reason.clone(), now);
                        return;
                    }
                    open.state = match *delay {
                        ..=0 => OpenMessageState::Ready,
                        delay => OpenMessageState::Delayed {
                            until: now.saturating_add(delay),
                        },
                    };
                    all.open.insert(global, open);
                })
            }
        }
    }

    /// Removes each message with a valid lease and passes it to `settle`.
    fn each(&mut self, leases: &[Lease], settle: impl Fn(&mut Subscription, u64, OpenMessage)) -> SettleOutcome {
        let mut out = SettleOutcome::default();
        for lease in leases {
            match self.open.remove(&lease.global) {
                Some(open) if matches!(open.state, OpenMessageState::Leased { number, .. } if number == lease.number) =>
                {
                    settle(self, lease.global, open);
                    out.settled += 1;
                }
                other => {
                    if let Some(open) = other {
                        self.open.insert(lease.global, open);
                    }
                    out.stale.push(*lease);
                }
            }
        }
        out
    }

    /// Removes a message that no longer exists: it was deleted or is hidden by retention.
    pub fn gone(&mut self, global: u64) {
        self.open.remove(&global);
    }

    /// Makes parked messages ready again with their attempts reset: the named ones or, if none are named, the lowest
    /// `max`. Returns their number.
    pub fn replay(&mut self, globals: &[u64], max: usize) -> usize {
        let taken = self.take_parked(globals, max);
        let count = taken.len();
        for (global, parked) in taken {
            let open = OpenMessage {
                key: parked.key,
                bytes: parked.bytes,
                attempts: 0,
                state: OpenMessageState::Ready,
            };
            self.open.insert(global, open);
        }
        count
    }

    /// Settles parked messages, selected as in [`Subscription::replay`]. Returns their number.
    pub fn discard(&mut self, globals: &[u64], max: usize) -> usize {
        self.take_parked(globals, max).len()
    }

    fn take_parked(&mut self, globals: &[u64], max: usize) -> Vec<(u64, super::ParkedEntry)> {
        let chosen: Vec<u64> = match globals {
            [] => self.parked.keys().copied().take(max).collect(),
            named => named.iter().copied().take(max).collect(),
        };
        let taken = chosen.into_iter();
        taken
            .filter_map(|global| self.parked.remove(&global).map(|parked| (global, parked)))
            .collect()
    }

    /// Continues from a global position. Open messages are dropped: those below count as done, the others are read
    /// again. All leases become invalid. Parked messages below the position stay parked.
    pub fn reset(&mut self, from: u64) {
        self.read = from.max(1);
        self.touched = self.read - 1;
        self.open.clear();
        self.parked.split_off(&self.read);
    }

    /// Informs the subscription of the namespace's clearing generation. After a clearing it restarts at the first
    /// message: the new messages are unknown to it, and old positions mean nothing for them. No message stays open or
    /// parked, and all leases become invalid. Returns whether it restarted; an older generation than the known one,
    /// from a server that has not heard of a clearing yet, changes nothing.
    pub fn is_of(&mut self, cleared: u64) -> bool {
        let before = self.cleared.replace(cleared.max(self.cleared.unwrap_or(0)));
        if before.is_none_or(|before| before >= cleared) {
            return false;
        }
        self.reset(1);
        self.parked.clear();
        true
    }

    pub fn update(&mut self, change: SettingsChange) {
        let wanted_others = change.types.is_some() || change.correlation.is_some();
        let settings = &mut self.settings;
        settings.strategy = change.strategy.unwrap_or(settings.strategy);
        settings.ack_timeout = change.ack_timeout.unwrap_or(settings.ack_timeout);
        settings.max_attempts = change.max_attempts.unwrap_or(settings.max_attempts);
        settings.max_in_flight = change.max_in_flight.unwrap_or(settings.max_in_flight);
        if let Some(types) = change.types {
            settings.types = types;
        }
        if let Some(correlation) = change.correlation {
            settings.correlation = correlation;
        }
        if wanted_others {
            // Messages that were never delivered are filtered again.
            self.open.split_off(&(self.touched + 1));
            self.read = self.touched + 1;
        }
    }
}

fn cut(reason: &str) -> Arc<str> {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason.get(..end).unwrap_or_default().into()
}
