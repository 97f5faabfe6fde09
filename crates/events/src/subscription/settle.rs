//! What becomes of messages that were handed out or parked, and what an operator changes.

use std::sync::Arc;

use thalweg_log::Micros;

use super::{DeliveryStrategy, Lease, OpenMessage, OpenMessageState, REASON_BYTES_MAX, Subscription};

/// What is to become of a message that a consumer could not do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nack {
    /// Again, not before `delay` is over; parked if this was the last attempt.
    Retry {
        delay: Micros,
        reason: String,
    },
    Park {
        reason: String,
    },
    /// It counts as done.
    Skip,
    /// Nobody was given it: as if it had not been handed out.
    Back,
}

/// What came of the leases that were named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettleOutcome {
    pub settled: usize,
    /// Those that did not hold any more: settled before, or handed out anew.
    pub stale: Vec<Lease>,
}

/// Settings to be changed; the others stay.
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

    /// Each message whose lease holds is taken out and given to `settle`.
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

    /// The message is not there any more: deleted, or older than what is retained.
    pub fn gone(&mut self, global: u64) {
        self.open.remove(&global);
    }

    /// Has parked messages handed out again, with their attempts counted from the first: the named ones, or, if none is
    /// named, the lowest `max`. How many.
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

    /// Parked messages count as done, chosen as for [`Subscription::replay`]. How many.
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

    /// Goes on from a global position. Nothing that is open stays: what is below counts as done, what is not below is read
    /// again; no lease holds any more. Parked messages below stay parked.
    pub fn reset(&mut self, from: u64) {
        self.read = from.max(1);
        self.touched = self.read - 1;
        self.open.clear();
        self.parked.split_off(&self.read);
    }

    /// Says of which messages it is asked. After all were removed it begins at the first of those that came since, wherever
    /// it was: they are new to it, and a place among the old ones says nothing of them. Nothing stays open or parked, and no
    /// lease holds. `false` if it has nothing to do with that; so it is where another server has heard of it and this one
    /// has not.
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
            // What nobody has had yet is chosen anew.
            self.open.split_off(&(self.touched + 1));
            self.read = self.touched + 1;
        }
    }
}

fn cut(reason: &str) -> Arc<str> {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason.get(..end).unwrap_or_default().into()
}
