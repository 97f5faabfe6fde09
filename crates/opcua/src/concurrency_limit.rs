//! The number of calls of a kind in flight: more while the latency is flat, half as many when a call times out or the
//! server refuses because of too many requests.

use std::time::{Duration, Instant};

use thalweg_kit::clock;

const START: usize = 2;

/// Upper limit, whatever the profile says.
const IN_FLIGHT_MAX: usize = 50;

/// A latency up to this multiple of the best one counts as flat.
const FLAT: u32 = 2;

#[derive(Clone, Debug)]
pub(crate) struct ConcurrencyLimit {
    now: usize,
    max: usize,
    best: Option<Duration>,
    good: usize,
    slowed: Option<Instant>,
}

impl ConcurrencyLimit {
    /// Starts slowly, to find out how many calls are useful.
    pub fn rising_to(max: usize) -> ConcurrencyLimit {
        let max = max.clamp(1, IN_FLIGHT_MAX);
        ConcurrencyLimit {
            now: START.min(max),
            max,
            best: None,
            good: 0,
            slowed: None,
        }
    }

    /// Starts with the maximum.
    pub fn of(max: usize) -> ConcurrencyLimit {
        let pace = ConcurrencyLimit::rising_to(max);
        ConcurrencyLimit { now: pace.max, ..pace }
    }

    pub fn get(&self) -> usize {
        self.now
    }

    /// Records a response; `operations` makes calls of different sizes comparable.
    pub fn answered(&mut self, latency: Duration, operations: usize) {
        let each = latency / u32::try_from(operations.max(1)).unwrap_or(u32::MAX);
        let best = self.best.map_or(each, |best| best.min(each));
        self.best = Some(best);
        if each > best * FLAT {
            self.good = 0;
            return;
        }
        self.good += 1;
        if self.good >= self.now && self.now < self.max {
            self.good = 0;
            self.now += 1;
        }
    }

    /// Records a call that was refused or timed out after this time. Calls that were in flight together halve the limit
    /// once.
    pub fn slow_down(&mut self, lasted: Duration) {
        if self.slowed.is_some_and(|at| at.elapsed() < lasted) {
            return;
        }
        self.now = (self.now / 2).max(1);
        self.good = 0;
        // Calls may have another size from now on, and so another latency per operation.
        self.best = None;
        self.slowed = Some(clock::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_latency_is_flat_and_halves_on_a_timeout() {
        let mut pace = ConcurrencyLimit::rising_to(60);
        assert_eq!(pace.get(), 2);
        (0..10_000).for_each(|_| pace.answered(Duration::from_millis(50), 50));
        assert_eq!(pace.get(), 50);
        pace.slow_down(Duration::from_secs(60));
        pace.answered(Duration::from_millis(50), 50);
        assert_eq!(pace.get(), 25);
        (0..10_000).for_each(|_| pace.answered(Duration::from_millis(500), 50));
        assert_eq!(pace.get(), 25);
    }

    #[test]
    fn calls_that_fail_together_halve_it_once() {
        let mut pace = ConcurrencyLimit::of(8);
        assert_eq!(pace.get(), 8);
        (0..8).for_each(|_| pace.slow_down(Duration::from_secs(60)));
        assert_eq!(pace.get(), 4);
        // Sent afterwards.
        pace.slow_down(Duration::ZERO);
        assert_eq!(pace.get(), 2);
        (0..10).for_each(|_| pace.slow_down(Duration::ZERO));
        assert_eq!(pace.get(), 1);
        (0..100).for_each(|_| pace.answered(Duration::from_millis(1), 1));
        assert_eq!(pace.get(), 8);
        // Small calls take longer per operation than the large ones before.
        pace.slow_down(Duration::ZERO);
        (0..100).for_each(|_| pace.answered(Duration::from_millis(50), 1));
        assert_eq!(pace.get(), 8);
    }
}
