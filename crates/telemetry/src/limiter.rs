//! Keeps repeated events from flooding the log: the first event of each kind is logged in full, then one summary per 10
//! seconds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_kit::clock;

const PERIOD: Duration = Duration::from_secs(10);

/// The most kinds. Any further kinds, which would be a bug, share one more entry.
const KINDS_MAX: usize = 256;

/// One per component. Kinds are reasons, of which there are few.
#[derive(Default)]
pub struct LogLimiter {
    kinds: Mutex<HashMap<&'static str, EventWindow>>,
}

struct EventWindow {
    window_start: Instant,
    held_back: u64,
}

/// What to do with an event.
#[derive(Debug, PartialEq, Eq)]
pub enum LogDecision {
    /// Log it, and mention how many of its kind were suppressed since the last line.
    Log {
        held_back: u64,
    },
    HoldBack,
}

impl LogLimiter {
    /// Call once per event, or once per batch with its number of events.
    pub fn check(&self, kind: &'static str, n: u64) -> LogDecision {
        self.check_at(kind, n, clock::now())
    }

    fn check_at(&self, kind: &'static str, n: u64, now: Instant) -> LogDecision {
        let mut kinds = self.kinds.lock();
        let kind = if kinds.len() >= KINDS_MAX && !kinds.contains_key(kind) {
            "other"
        } else {
            kind
        };
        match kinds.get_mut(kind) {
            Some(seen) if now.duration_since(seen.window_start) < PERIOD => {
                seen.held_back += n;
                LogDecision::HoldBack
            }
            Some(seen) => {
                let held_back = seen.held_back + n.saturating_sub(1);
                *seen = EventWindow {
                    window_start: now,
                    held_back: 0,
                };
                LogDecision::Log { held_back }
            }
            None => {
                kinds.insert(
                    kind,
                    EventWindow {
                        window_start: now,
                        held_back: n.saturating_sub(1),
                    },
                );
                LogDecision::Log { held_back: 0 }
            }
        }
    }

    /// Kinds with events that were suppressed for a whole period: their summary is due even if no further event
    /// arrives. Call about once a second. Each returned kind starts a new period, so it gets one line per period.
    pub fn due(&self) -> Vec<(&'static str, u64)> {
        self.due_at(clock::now())
    }

    fn due_at(&self, now: Instant) -> Vec<(&'static str, u64)> {
        let mut kinds = self.kinds.lock();
        let due = kinds
            .iter_mut()
            .filter(|(_, seen)| seen.held_back > 0 && now.duration_since(seen.window_start) >= PERIOD);
        due.map(|(kind, seen)| {
            seen.window_start = now;
            (*kind, std::mem::take(&mut seen.held_back))
        })
        .collect()
    }

    /// All suppressed events by kind, for the shutdown.
    pub fn drain(&self) -> Vec<(&'static str, u64)> {
        let mut kinds = self.kinds.lock();
        let held = kinds.iter_mut().filter(|(_, seen)| seen.held_back > 0);
        held.map(|(kind, seen)| (*kind, std::mem::take(&mut seen.held_back)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_and_the_rest_summed_up_after_ten_seconds() {
        let limiter = LogLimiter::default();
        let start = clock::now();
        assert_eq!(limiter.check_at("a", 1, start), LogDecision::Log { held_back: 0 });
        assert_eq!(
            limiter.check_at("a", 5, start + Duration::from_secs(1)),
            LogDecision::HoldBack
        );
        assert_eq!(
            limiter.check_at("b", 1, start + Duration::from_secs(1)),
            LogDecision::Log { held_back: 0 }
        );
        assert_eq!(
            limiter.check_at("a", 1, start + Duration::from_secs(11)),
            LogDecision::Log { held_back: 5 }
        );
        assert_eq!(
            limiter.check_at("a", 2, start + Duration::from_secs(12)),
            LogDecision::HoldBack
        );
        assert_eq!(limiter.drain(), [("a", 2)]);
        assert!(limiter.drain().is_empty());
    }

    #[test]
    fn a_summary_is_due_ten_seconds_after_the_last_line_and_only_once() {
        let limiter = LogLimiter::default();
        let start = clock::now();
        let second = |n| start + Duration::from_secs(n);
        limiter.check_at("a", 4, second(0));
        assert!(limiter.due_at(second(9)).is_empty());
        assert_eq!(limiter.due_at(second(10)), [("a", 3)]);
        assert_eq!(limiter.check_at("a", 1, second(11)), LogDecision::HoldBack);
        assert!(limiter.due_at(second(19)).is_empty());
        assert_eq!(limiter.due_at(second(20)), [("a", 1)]);
        assert!(limiter.due_at(second(40)).is_empty());
    }
}
