//! How long messages wait before they are handed out for the first time: since they were appended, or since they were due.
//!
//! For each claim, not for each message, something shared is touched: a claim of many counts by itself first.

use thalweg_log::{Histogram, Micros, Observed};

use crate::claim::Delivery;

/// The first bucket reaches to 64 µs, the last bound is 4^14 times that, five hours.
const FIRST_BITS: u32 = 6;
const BUCKETS: usize = 16;

/// Of one queue, in microseconds.
#[derive(Debug)]
pub struct Latency {
    histogram: Histogram,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            histogram: Histogram::new(FIRST_BITS),
        }
    }
}

impl Latency {
    /// Counts those of a claim that were never handed out before.
    pub fn observe(&self, now: Micros, given: &[Delivery]) {
        let (mut counts, mut sums) = ([0u64; BUCKETS], [0u64; BUCKETS]);
        for delivery in given.iter().filter(|delivery| delivery.delivery == 1) {
            let message = &delivery.message;
            let due = message.not_before.map_or(message.time, |due| due.max(message.time));
            let waited = u64::try_from(now - due).unwrap_or_default();
            let bucket = self.histogram.bucket_of(waited);
            if let (Some(count), Some(sum)) = (counts.get_mut(bucket), sums.get_mut(bucket)) {
                (*count, *sum) = (*count + 1, *sum + waited);
            }
        }
        for (bucket, (count, sum)) in counts
            .into_iter()
            .zip(sums)
            .enumerate()
            .filter(|(_, (count, _))| *count > 0)
        {
            self.histogram.add(bucket, count, sum);
        }
    }

    pub fn observed(&self) -> Observed {
        self.histogram.observed()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use thalweg_log::format::record::Properties;

    use super::*;
    use crate::message::Message;

    fn given(delivery: u32, time: Micros, not_before: Option<Micros>) -> Delivery {
        Delivery {
            partition: 0,
            delivery,
            deadline: 0,
            message: Message {
                offset: 0,
                time,
                payload: Bytes::new(),
                key: None,
                properties: Properties::default(),
                ttl_ms: None,
                not_before,
            },
        }
    }

    #[test]
    fn the_first_delivery_counts_from_the_append_or_from_the_time_it_was_due() {
        let latency = Latency::default();
        let all = [
            given(1, 1000, None),
            given(1, 900, Some(1990)),
            // Due before it was there.
            given(1, 1000, Some(5)),
            given(2, 0, None),
            // Of a clock that went back.
            given(1, 9000, None),
        ];
        latency.observe(2000, &all);
        let observed = latency.observed();
        assert_eq!((observed.count(), observed.sum), (4, 1000 + 10 + 1000));
        let counted: Vec<_> = observed.buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(64, 2), (1024, 2)]);
    }
}
