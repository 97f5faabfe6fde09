//! How many browsing calls are in flight: two at first, more while answers come as fast as before, fewer after a
//! timeout.

use std::time::Duration;

const START: usize = 2;

/// Whatever a profile says.
const IN_FLIGHT_MAX: usize = 50;

/// A latency up to this multiple of the best one counts as flat.
const FLAT: u32 = 2;

#[derive(Clone, Debug)]
pub(super) struct Pace {
    now: usize,
    max: usize,
    best: Option<Duration>,
    good: usize,
}

impl Pace {
    pub fn new(profile: usize) -> Pace {
        let max = profile.clamp(1, IN_FLIGHT_MAX);
        Pace {
            now: START.min(max),
            max,
            best: None,
            good: 0,
        }
    }

    pub fn get(&self) -> usize {
        self.now
    }

    /// A call was answered; `operations` makes calls of different sizes comparable.
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

    pub fn timed_out(&mut self) {
        self.now = (self.now / 2).max(1);
        self.good = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_latency_is_flat_and_halves_on_a_timeout() {
        let mut pace = Pace::new(60);
        assert_eq!(pace.get(), 2);
        (0..10_000).for_each(|_| pace.answered(Duration::from_millis(50), 50));
        assert_eq!(pace.get(), 50);
        pace.timed_out();
        assert_eq!(pace.get(), 25);
        (0..10_000).for_each(|_| pace.answered(Duration::from_millis(500), 50));
        assert_eq!(pace.get(), 25);
    }
}
