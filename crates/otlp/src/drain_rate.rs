//! Measures how fast requests are stored, to estimate when there is room for more.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time constant in seconds: bytes stored this long ago count for a third (1/e) of bytes stored now.
const MEMORY: f64 = 5.0;
/// The estimate before anything is stored; a pause of one second does no harm.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Upper bound of estimates, beyond any pause that a sender is asked for.
const NEVER: Duration = Duration::from_secs(3600);

pub(crate) struct DrainRate(Mutex<DrainRateState>);

struct DrainRateState {
    begun: Instant,
    looked: Instant,
    /// Stored bytes, weighted by their age.
    bytes: f64,
}

impl DrainRate {
    pub fn new(now: Instant) -> DrainRate {
        DrainRate(Mutex::new(DrainRateState {
            begun: now,
            looked: now,
            bytes: 0.0,
        }))
    }

    /// Records that `bytes` were stored and freed their room.
    pub fn stored(&self, bytes: usize, now: Instant) {
        let mut stored = self.0.lock();
        stored.age(now);
        stored.bytes += bytes as f64;
    }

    /// Estimates how long it takes to store `queued` bytes at the recent rate.
    pub fn time_for(&self, queued: usize, now: Instant) -> Duration {
        let mut stored = self.0.lock();
        stored.age(now);
        if stored.bytes == 0.0 {
            return UNKNOWN;
        }
        // The total weight of the time since the start.
        let since = now.saturating_duration_since(stored.begun).as_secs_f64();
        let weight = MEMORY * (1.0 - (-since / MEMORY).exp());
        let seconds = queued as f64 * weight / stored.bytes;
        Duration::try_from_secs_f64(seconds).unwrap_or(NEVER).min(NEVER)
    }
}

impl DrainRateState {
    fn age(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.looked);
        self.bytes *= (-since.as_secs_f64() / MEMORY).exp();
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use thalweg_kit::clock;

    use super::*;

    #[test]
    fn the_time_is_what_is_queued_over_the_rate_of_late() {
        let begin = clock::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let drain = DrainRate::new(begin);
        assert_eq!(drain.time_for(1 << 30, at(1.0)), UNKNOWN);
        // 100 bytes per second.
        for tenth in 1..=600 {
            drain.stored(10, at(f64::from(tenth) / 10.0));
        }
        let close = |seconds: f64, to: f64| assert!((seconds / to - 1.0).abs() < 0.05, "{seconds} and not {to}");
        close(drain.time_for(1000, at(60.0)).as_secs_f64(), 10.0);
        close(drain.time_for(50, at(60.0)).as_secs_f64(), 0.5);
        // Nothing more is stored, so the estimates grow.
        close(drain.time_for(1000, at(65.0)).as_secs_f64(), 27.2);
        assert_eq!(drain.time_for(1000, at(600.0)), NEVER);
    }

    #[test]
    fn the_first_seconds_are_no_worse_than_later_ones() {
        let begin = clock::now();
        let drain = DrainRate::new(begin);
        for tenth in 1..=10_u32 {
            drain.stored(10, begin + Duration::from_millis(100 * u64::from(tenth)));
        }
        let seconds = drain.time_for(1000, begin + Duration::from_secs(1)).as_secs_f64();
        assert!((9.0..11.0).contains(&seconds), "{seconds}");
    }
}
