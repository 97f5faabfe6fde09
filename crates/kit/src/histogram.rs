//! Histograms of durations and sizes, with bucket bounds that grow by a factor of four. An observation costs two
//! relaxed additions, which is cheap enough for each block of the log but elsewhere should be done per batch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Each bucket bound is `1 << STEP_BITS` times the one before.
const STEP_BITS: u32 = 2;
const BUCKETS: usize = 16;

/// A histogram of whole numbers (microseconds, bytes, records).
#[derive(Debug)]
pub struct Histogram {
    /// The bound of the first bucket is `1 << first_bits`.
    first_bits: u32,
    /// The last bucket has no bound.
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

/// The state of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// The inclusive upper bound and the count of each bucket, except for the last, which has no bound.
    pub buckets: Vec<(u64, u64)>,
    pub beyond: u64,
    pub sum: u64,
}

impl Histogram {
    /// The first bound is `1 << first_bits`; the last is 4^14 times that.
    pub const fn new(first_bits: u32) -> Histogram {
        Histogram {
            first_bits,
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
        }
    }

    pub fn observe(&self, value: u64) {
        self.add(self.bucket_of(value), 1, value);
    }

    pub fn observe_time(&self, time: Duration) {
        self.observe(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The bucket of a value, for callers that count on their own first.
    pub fn bucket_of(&self, value: u64) -> usize {
        let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
        (bits.saturating_sub(self.first_bits).div_ceil(STEP_BITS) as usize).min(BUCKETS - 1)
    }

    /// Adds `count` values to a bucket, with their sum.
    pub fn add(&self, bucket: usize, count: u64, sum: u64) {
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(count, Relaxed);
            self.sum.fetch_add(sum, Relaxed);
        }
    }

    pub fn observed(&self) -> HistogramSnapshot {
        let bound = |n: u32| 1u64 << (self.first_bits + n * STEP_BITS);
        let (last, bounded) = (BUCKETS - 1, self.buckets.iter().take(BUCKETS - 1));
        HistogramSnapshot {
            buckets: (0..)
                .zip(bounded)
                .map(|(n, count)| (bound(n), count.load(Relaxed)))
                .collect(),
            beyond: self.buckets.get(last).map_or(0, |count| count.load(Relaxed)),
            sum: self.sum.load(Relaxed),
        }
    }
}

impl HistogramSnapshot {
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum::<u64>() + self.beyond
    }

    /// Adds `count` values to the first bucket.
    pub fn and_smallest(mut self, count: u64) -> HistogramSnapshot {
        if let Some((_, first)) = self.buckets.first_mut() {
            *first += count;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_value_is_counted_in_the_first_bucket_that_reaches_it(first in 0..13u32, value: u64, shift in 0..64u32) {
            let value = value >> shift;
            let histogram = Histogram::new(first);
            histogram.observe(value);
            let observed = histogram.observed();
            prop_assert_eq!((observed.count(), observed.sum), (1, value));
            let expected = observed.buckets.iter().position(|(bound, _)| value <= *bound);
            let counted = observed.buckets.iter().position(|(_, count)| *count == 1);
            prop_assert_eq!(counted, expected);
            prop_assert_eq!(observed.beyond, u64::from(expected.is_none()));
        }
    }
}
