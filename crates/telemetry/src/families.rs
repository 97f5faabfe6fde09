//! Metrics that are computed on request, with labels that come and go: a value that is no longer reported disappears.

use prometheus::core::{Collector, Desc};
use prometheus::{IntCounterVec, proto};

use crate::metric_doc::{MetricDoc, VALID};

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
    pub fn counter(&mut self, doc: &MetricDoc, labels: Labels<'_>, value: u64) {
        self.float_counter(doc, labels, value as f64);
    }

    /// A counter of fractions, such as seconds.
    pub fn float_counter(&mut self, doc: &MetricDoc, labels: Labels<'_>, value: f64) {
        let mut counter = proto::Counter::default();
        counter.set_value(value);
        let mut metric = metric(labels);
        metric.set_counter(counter);
        self.add(doc, proto::MetricType::COUNTER, metric);
    }

    /// All counters of a vector that is not registered itself.
    pub fn counters(&mut self, counters: &IntCounterVec) {
        self.families.extend(counters.collect());
    }

    pub fn gauge(&mut self, doc: &MetricDoc, labels: Labels<'_>, value: f64) {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(value);
        let mut metric = metric(labels);
        metric.set_gauge(gauge);
        self.add(doc, proto::MetricType::GAUGE, metric);
    }

    pub fn histogram(&mut self, doc: &MetricDoc, labels: Labels<'_>, distribution: &Distribution) {
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
        self.add(doc, proto::MetricType::HISTOGRAM, metric);
    }

    fn add(&mut self, doc: &MetricDoc, kind: proto::MetricType, metric: proto::Metric) {
        let mut own = self.families.iter_mut().rev();
        if let Some(family) = own.find(|family| family.name() == doc.name) {
            family.mut_metric().push(metric);
            return;
        }
        let mut family = proto::MetricFamily::default();
        family.set_name(doc.name.to_owned());
        family.set_help(doc.help.to_owned());
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
    /// `doc` declares one of the metrics that `tell` reports; no other collector reports it with these labels.
    pub fn new(doc: &MetricDoc, labels: Labels<'_>, tell: F) -> CallbackCollector<F> {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let desc = Desc::new(doc.name.to_owned(), doc.help.to_owned(), Vec::new(), labels.collect());
        CallbackCollector {
            desc: desc.expect(VALID),
            tell,
        }
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

    const DEPTH: MetricDoc = MetricDoc::gauge("depth", "Messages.");
    const ALL: MetricDoc = MetricDoc::counter("all_total", "All.");
    const WAITS: MetricDoc = MetricDoc::histogram("wait_seconds", "Waits.");

    #[test]
    fn what_is_told_is_in_the_text_and_vanishes_when_it_is_not_told_any_more() {
        let metrics = Metrics::default();
        let queues = Arc::new(AtomicU64::new(2));
        let told = queues.clone();
        metrics.tell(&DEPTH, move |families| {
            for n in 0..told.load(Ordering::Relaxed) {
                let name = format!("q\"{n}");
                families.gauge(&DEPTH, &[("queue", &name)], n as f64 + 0.5);
                families.counter(&ALL, &[("queue", &name), ("reason", "x")], n);
            }
            let distribution = Distribution {
                buckets: vec![(0.5, 2), (1.0, 3)],
                beyond: 1,
                sum: 7.25,
            };
            families.histogram(&WAITS, &[], &distribution);
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
