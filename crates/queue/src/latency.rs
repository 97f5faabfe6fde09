//! How long messages wait for their first delivery, since they were appended or since they were due.
//!
//! Claims count into [`LatencySamples`] under the partition lock that they have anyway. A reader of the metric merges
//! these into [`Latency`]. So claims share no counters.

use thalweg_kit::histogram::{Histogram, HistogramSnapshot};
use thalweg_log::Micros;

use crate::claim::Delivery;

/// The first bucket ends at 64 µs; the last bound is 4^14 times that, five hours.
const FIRST_BITS: u32 = 6;
const BUCKETS: usize = 16;

/// The histogram of one queue, in microseconds.
#[derive(Debug)]
pub(crate) struct Latency {
    histogram: Histogram,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            histogram: Histogram::new(FIRST_BITS),
        }
    }
}

/// The samples of one partition and group since the last merge.
#[derive(Debug, Default)]
pub(crate) struct LatencySamples {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl LatencySamples {
    /// Counts first deliveries.
    pub fn observe(&mut self, latency: &Latency, now: Micros, given: &[Delivery]) {
        for delivery in given.iter().filter(|delivery| delivery.delivery == 1) {
            let message = &delivery.message;
            let due = message.not_before.map_or(message.time, |due| due.max(message.time));
            let waited = u64::try_from(now - due).unwrap_or_default();
            if let Some(count) = self.counts.get_mut(latency.histogram.bucket_of(waited)) {
                *count += 1;
                self.sum += waited;
            }
        }
    }
}

impl Latency {
    /// Merges the samples and resets them.
    pub fn join(&self, waits: &mut LatencySamples) {
        let LatencySamples { counts, sum } = std::mem::take(waits);
        for (bucket, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            self.histogram.add(bucket, count, 0);
        }
        self.histogram.add(0, 0, sum);
    }

    pub fn observed(&self) -> HistogramSnapshot {
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
            tag: crate::ids::LeaseTag::default(),
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
                deliver_at: None,
            },
        }
    }

    #[test]
    fn the_first_delivery_counts_from_the_append_or_from_the_time_it_was_due() {
        let latency = Latency::default();
        let all = [
            given(1, 1000, None),
            given(1, 900, Some(1990)),
            // Due before it was appended.
            given(1, 1000, Some(5)),
            given(2, 0, None),
            // From a clock that went back.
            given(1, 9000, None),
        ];
        let mut waits = LatencySamples::default();
        waits.observe(&latency, 2000, &all);
        assert_eq!(latency.observed().count(), 0, "not yet");
        latency.join(&mut waits);
        latency.join(&mut waits);
        let observed = latency.observed();
        assert_eq!((observed.count(), observed.sum), (4, 1000 + 10 + 1000));
        let counted: Vec<_> = observed.buckets.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(64, 2), (1024, 2)]);
    }
}
