//! Distributions of durations: cheap to record, exported as a Prometheus summary or histogram.
//!
//! There are four buckets per power of two, each at most 25 % wide, so a quantile is off by less than that. Recording
//! is two relaxed additions, at most once per batch.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus::core::{Collector, Desc};
use prometheus::proto;

use crate::metric_doc::{MetricDoc, VALID};

const SUB_BITS: u32 = 2;
const BUCKETS: usize = 64 << SUB_BITS;
const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

/// A distribution of durations in nanoseconds. Clones share their counts.
#[derive(Clone)]
pub struct Timing {
    inner: Arc<TimingInner>,
}

struct TimingInner {
    desc: Desc,
    as_histogram: bool,
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Timing {
    /// A summary by default, because most dashboards for these names expect one.
    pub(crate) fn new(doc: &MetricDoc, labels: HashMap<String, String>, as_histogram: bool) -> Timing {
        let desc = Desc::new(doc.name.to_owned(), doc.help.to_owned(), Vec::new(), labels);
        let buckets = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Timing {
            inner: Arc::new(TimingInner {
                desc: desc.expect(VALID),
                as_histogram,
                buckets,
                sum: AtomicU64::new(0),
            }),
        }
    }

    pub fn observe(&self, duration: Duration) {
        self.observe_many(duration, 1);
    }

    /// Records the same duration for each of the `n` messages of a batch.
    pub fn observe_many(&self, duration: Duration, n: u64) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.inner.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(n, Relaxed);
            self.inner.sum.fetch_add(nanos.saturating_mul(n), Relaxed);
        }
    }

    /// The upper bound of the bucket that contains the quantile, in nanoseconds; 0 before the first observation.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let counts: Vec<u64> = self.inner.buckets.iter().map(|b| b.load(Relaxed)).collect();
        quantile_of(&counts, quantile)
    }
}

fn quantile_of(counts: &[u64], quantile: f64) -> u64 {
    let total: u64 = counts.iter().sum();
    let rank = ((total as f64 * quantile).ceil() as u64).max(1);
    let mut seen = 0;
    for (bucket, count) in counts.iter().enumerate() {
        seen += count;
        if seen >= rank && total > 0 {
            return upper_bound(bucket);
        }
    }
    0
}

/// Each value below 4 has its own bucket; above, the top bit and the two bits below it select the bucket.
fn bucket_of(nanos: u64) -> usize {
    if nanos < 1 << SUB_BITS {
        return nanos as usize;
    }
    let top = 63 - nanos.leading_zeros();
    let sub = (nanos >> (top - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    (((top - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    if bucket < 1 << SUB_BITS {
        return bucket as u64;
    }
    let shift = (bucket >> SUB_BITS) as u32 - 1;
    let first = ((1u64 << SUB_BITS) + (bucket as u64 & ((1 << SUB_BITS) - 1))) << shift;
    first + ((1u64 << shift) - 1)
}

impl Collector for Timing {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.inner.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let inner = &*self.inner;
        let counts: Vec<u64> = inner.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let sum = inner.sum.load(Relaxed) as f64;
        let mut metric = proto::Metric::default();
        metric.set_label(inner.desc.const_label_pairs.clone());
        let mut family = proto::MetricFamily::default();
        family.set_name(inner.desc.fq_name.clone());
        family.set_help(inner.desc.help.clone());
        if inner.as_histogram {
            let mut histogram = proto::Histogram::default();
            let mut cumulative = 0;
            let mut buckets = Vec::new();
            for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                cumulative += count;
                let mut b = proto::Bucket::default();
                b.set_upper_bound(upper_bound(bucket) as f64);
                b.set_cumulative_count(cumulative);
                buckets.push(b);
            }
            histogram.set_bucket(buckets);
            histogram.set_sample_count(total);
            histogram.set_sample_sum(sum);
            metric.set_histogram(histogram);
            family.set_field_type(proto::MetricType::HISTOGRAM);
        } else {
            let mut summary = proto::Summary::default();
            let quantiles = QUANTILES.map(|quantile| {
                let mut q = proto::Quantile::default();
                q.set_quantile(quantile);
                q.set_value(quantile_of(&counts, quantile) as f64);
                q
            });
            summary.set_quantile(quantiles.to_vec());
            summary.set_sample_count(total);
            summary.set_sample_sum(sum);
            metric.set_summary(summary);
            family.set_field_type(proto::MetricType::SUMMARY);
        }
        family.set_metric(vec![metric]);
        vec![family]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_buckets_are_narrow() {
        for shift in 0..64 {
            for value in [
                1u64 << shift,
                (1u64 << shift) + (1u64 << shift) / 3,
                (1u64 << shift) - 1,
            ] {
                let bucket = bucket_of(value);
                assert!(bucket < BUCKETS);
                assert!(value <= upper_bound(bucket), "{value}");
                assert!(bucket == 0 || value > upper_bound(bucket - 1), "{value}");
                assert!(upper_bound(bucket) as f64 <= value as f64 * 1.25 + 1.0);
            }
        }
    }

    #[test]
    fn quantiles_come_from_the_recorded_values() {
        let timing = Timing::new(&MetricDoc::timing("x_ns", "x"), HashMap::new(), false);
        assert_eq!(timing.quantile_ns(0.5), 0);
        timing.observe_many(Duration::from_nanos(100), 99);
        timing.observe(Duration::from_micros(100));
        assert!((100..125).contains(&timing.quantile_ns(0.5)));
        assert!((100_000..125_000).contains(&timing.quantile_ns(1.0)));
    }
}
