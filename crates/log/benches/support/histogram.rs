//! A latency histogram. Recording takes nanoseconds and allocates nothing, however many values there are.

use std::time::Duration;

/// Buckets per doubling, for a precision of 3 %.
const PARTS: u64 = 32;

/// Counts of nanoseconds in exponential buckets. Recording allocates nothing.
pub struct Histogram {
    counts: Vec<u64>,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; 64 * PARTS as usize],
            max: 0,
        }
    }
}

impl Histogram {
    pub fn record(&mut self, value: Duration) {
        let value = value.as_nanos() as u64;
        self.max = self.max.max(value);
        let doublings = value.max(PARTS).ilog2() - PARTS.ilog2();
        let bucket = u64::from(doublings) * PARTS + (value >> doublings);
        self.counts[bucket as usize] += 1;
    }

    pub fn add(&mut self, other: &Histogram) {
        self.max = self.max.max(other.max);
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
    }

    /// The upper bound of the bucket below which the fraction `part` of the values lies.
    pub fn quantile(&self, part: f64) -> Duration {
        let all: u64 = self.counts.iter().sum();
        let mut rest = (all as f64 * part).ceil() as u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            rest = rest.saturating_sub(*count);
            if rest == 0 {
                let bucket = bucket as u64;
                let doublings = (bucket / PARTS).saturating_sub(1);
                let end = (bucket - doublings * PARTS + 1) << doublings;
                return Duration::from_nanos(end.min(self.max));
            }
        }
        Duration::from_nanos(self.max)
    }
}
