//! Metrics that are computed on request, with labels that come and go: a value that is no longer reported disappears.

use prometheus::core::{Collector, Desc};
use prometheus::proto;

/// Labels of one value: name and value.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// The values of one moment, by metric.
#[derive(Default)]
pub struct MetricFamilies {
    families: Vec<proto::MetricFamily>,
}

/// A histogram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// The inclusive upper bound of each bucket, ascending, and the number of values in that bucket alone.
    pub buckets: Vec<(f64, u64)>,
    /// The number of values above the last bound.
    pub beyond: u64,
    pub sum: f64,
}

impl MetricFamilies {
    pub fn counter(&mut self, name: &str, help: &str, labels: Labels<'_>, value: u64) {
        let mut counter = proto::Counter::default();
        counter.set_value(value as f64);
        let mut metric = metric(labels);
        metric.set_counter(counter);
        self.add(name, help, proto::MetricType::COUNTER, metric);
    }

    pub fn gauge(&mut self, name: &str, help: &str, labels: Labels<'_>, value: f64) {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(value);
        let mut metric = metric(labels);
        metric.set_gauge(gauge);
        self.add(name, help, proto::MetricType::GAUGE, metric);
    }

    pub fn histogram(&mut self, name: &str, help: &str, labels: Labels<'_>, distribution: &Distribution) {
        let mut cumulative = 0;
        let bucket = |(bound, count): &(f64, u64)| {
            cumulative += count;
            let mut bucket = proto::Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            bucket
        };
        let buckets = distribution.buckets.iter().map(bucket).collect();
        let mut histogram = proto::Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_count(cumulative + distribution.beyond);
        histogram.set_sample_sum(distribution.sum);
        let mut metric = metric(labels);
        metric.set_histogram(histogram);
        self.add(name, help, proto::MetricType::HISTOGRAM, metric);
    }

    fn add(&mut self, name: &str, help: &str, kind: proto::MetricType, metric: proto::Metric) {
        let mut own = self.families.iter_mut().rev();
        if let Some(family) = own.find(|family| family.name() == name) {
            family.mut_metric().push(metric);
            return;
        }
        let mut family = proto::MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(vec![metric]);
        self.families.push(family);
    }
}

fn metric(labels: Labels<'_>) -> proto::Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = proto::LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric = proto::Metric::default();
    metric.set_label(labels.iter().map(pair).collect());
    metric
}

/// Calls `tell` for each request of the metrics.
pub(crate) struct CallbackCollector<F> {
    desc: Desc,
    tell: F,
}

impl<F: Fn(&mut MetricFamilies) + Send + Sync> CallbackCollector<F> {
    /// `name` is one of the metrics that `tell` reports; no other collector reports it.
    pub fn new(name: &str, tell: F) -> prometheus::Result<CallbackCollector<F>> {
        let desc = Desc::new(name.to_owned(), name.to_owned(), Vec::new(), Default::default())?;
        Ok(CallbackCollector { desc, tell })
    }
}

impl<F: Fn(&mut MetricFamilies) + Send + Sync> Collector for CallbackCollector<F> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let mut families = MetricFamilies::default();
        (self.tell)(&mut families);
        families.families
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::Metrics;

    use super::*;

    #[test]
    fn what_is_told_is_in_the_text_and_vanishes_when_it_is_not_told_any_more() {
        let metrics = Metrics::default();
        let queues = Arc::new(AtomicU64::new(2));
        let told = queues.clone();
        metrics.tell("depth", move |families| {
            for n in 0..told.load(Ordering::Relaxed) {
                let name = format!("q\"{n}");
                families.gauge("depth", "Messages.", &[("queue", &name)], n as f64 + 0.5);
                families.counter("all_total", "All.", &[("queue", &name), ("reason", "x")], n);
            }
            let distribution = Distribution {
                buckets: vec![(0.5, 2), (1.0, 3)],
                beyond: 1,
                sum: 7.25,
            };
            families.histogram("wait_seconds", "Waits.", &[], &distribution);
        });
        let text = metrics.text();
        for line in [
            "depth{queue=\"q\\\"1\"} 1.5",
            "all_total{queue=\"q\\\"1\",reason=\"x\"} 1",
            "wait_seconds_bucket{le=\"1\"} 5",
            "wait_seconds_bucket{le=\"+Inf\"} 6",
            "wait_seconds_sum 7.25",
            "wait_seconds_count 6",
            "# TYPE wait_seconds histogram",
        ] {
            assert!(text.contains(line), "{line} is missing in {text}");
        }
        queues.store(1, Ordering::Relaxed);
        let text = metrics.text();
        assert!(text.contains("q\\\"0") && !text.contains("q\\\"1"), "{text}");
    }
}
