//! The metrics registry of the process, and the labels that distinguish components.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
    proto,
};
use thalweg_kit::blocking;

use crate::Timing;
use crate::families::{CallbackCollector, Labels, MetricFamilies};
use crate::metric_doc::{MetricDoc, VALID};

/// The component that a metric belongs to: the labels `label`, `path` and, when a file has several flows, `flow`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ComponentId {
    /// `None` when the file has the single-flow shorthand: then metrics carry no `flow` label.
    pub flow: Option<String>,
    /// `root.pipeline.processors.0`
    pub path: String,
    /// Chosen by the user; may be empty.
    pub label: String,
}

impl ComponentId {
    fn labels(&self) -> HashMap<String, String> {
        let mut labels = HashMap::from([
            ("label".to_owned(), self.label.clone()),
            ("path".to_owned(), self.path.clone()),
        ]);
        if let Some(flow) = &self.flow {
            labels.insert("flow".to_owned(), flow.clone());
        }
        labels
    }
}

/// The metrics of the process. Clones share one registry.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Registry,
    use_histogram_timing: bool,
    /// By name and labels: instances of a component on several threads share a metric.
    known: Arc<Mutex<HashMap<String, RegisteredMetric>>>,
    /// Held while the text is rendered, whose size grows with what the process manages.
    encoding: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Clone)]
enum RegisteredMetric {
    Counter(IntCounter),
    Gauge(IntGauge),
    Timing(Timing),
}

impl Metrics {
    pub fn new(use_histogram_timing: bool) -> Metrics {
        Metrics {
            use_histogram_timing,
            ..Metrics::default()
        }
    }

    pub fn counter(&self, id: &ComponentId, doc: &MetricDoc) -> IntCounter {
        self.counter_with(id, doc, &[])
    }

    /// A counter with further labels whose values are few and known at start.
    pub fn counter_with(&self, id: &ComponentId, doc: &MetricDoc, labels: Labels<'_>) -> IntCounter {
        let new = || IntCounter::with_opts(opts(id, doc, labels)).expect(VALID);
        match self.known(id, doc, labels, || RegisteredMetric::Counter(self.of_component(new()))) {
            RegisteredMetric::Counter(counter) => counter,
            _ => new(),
        }
    }

    pub fn gauge(&self, id: &ComponentId, doc: &MetricDoc) -> IntGauge {
        self.gauge_with(id, doc, &[])
    }

    pub fn gauge_with(&self, id: &ComponentId, doc: &MetricDoc, labels: Labels<'_>) -> IntGauge {
        let new = || IntGauge::with_opts(opts(id, doc, labels)).expect(VALID);
        match self.known(id, doc, labels, || RegisteredMetric::Gauge(self.of_component(new()))) {
            RegisteredMetric::Gauge(gauge) => gauge,
            _ => new(),
        }
    }

    pub fn timing(&self, id: &ComponentId, doc: &MetricDoc) -> Timing {
        let new = || Timing::new(doc, id.labels(), self.use_histogram_timing);
        match self.known(id, doc, &[], || RegisteredMetric::Timing(self.of_component(new()))) {
            RegisteredMetric::Timing(timing) => timing,
            _ => new(),
        }
    }

    /// The metric with this name and these labels, created on first use.
    fn known(
        &self,
        id: &ComponentId,
        doc: &MetricDoc,
        labels: Labels<'_>,
        make: impl FnOnce() -> RegisteredMetric,
    ) -> RegisteredMetric {
        let key = format!("{} {id:?} {labels:?}", doc.name);
        if let Some(known) = self.known.lock().get(&key) {
            return known.clone();
        }
        let made = make();
        self.known.lock().entry(key).or_insert(made).clone()
    }

    /// A counter of the process, without labels.
    pub fn process_counter(&self, doc: &MetricDoc) -> IntCounter {
        self.registered(IntCounter::with_opts(doc.opts()).expect(VALID))
    }

    /// A gauge of the process, without labels.
    pub fn process_gauge(&self, doc: &MetricDoc) -> IntGauge {
        self.registered(IntGauge::with_opts(doc.opts()).expect(VALID))
    }

    /// A histogram of the process, without labels. `bounds` are the inclusive upper bounds of its buckets, ascending.
    pub fn process_histogram(&self, doc: &MetricDoc, bounds: &[f64]) -> Histogram {
        self.registered(Histogram::with_opts(doc.histogram_opts(bounds)).expect(VALID))
    }

    /// Counters by the declared labels.
    pub fn counters(&self, doc: &MetricDoc) -> IntCounterVec {
        self.registered(doc.counters())
    }

    /// Gauges by the declared labels.
    pub fn gauges(&self, doc: &MetricDoc) -> IntGaugeVec {
        self.registered(doc.gauges())
    }

    /// Gauges of fractions by the declared labels.
    pub fn float_gauges(&self, doc: &MetricDoc) -> GaugeVec {
        self.registered(doc.float_gauges())
    }

    /// Histograms by the declared labels, with the bounds of [`Metrics::process_histogram`].
    pub fn histograms(&self, doc: &MetricDoc, bounds: &[f64]) -> HistogramVec {
        self.registered(doc.histograms(bounds))
    }

    /// Registers a callback that reports metrics on request; `doc` declares one of them.
    pub fn tell(&self, doc: &MetricDoc, tell: impl Fn(&mut MetricFamilies) + Send + Sync + 'static) {
        self.tell_of(doc, &[], tell);
    }

    /// The same for one of several sources, which differ by labels.
    pub fn tell_of(
        &self,
        doc: &MetricDoc,
        labels: Labels<'_>,
        tell: impl Fn(&mut MetricFamilies) + Send + Sync + 'static,
    ) {
        self.register(CallbackCollector::new(doc, labels, tell));
    }

    /// Private, because a collector could report metrics that nothing declares.
    fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.registry.register(Box::new(collector)) {
            tracing::error!(%error, "a metric could not be registered and will be missing from /metrics");
        }
    }

    /// The Prometheus text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "the metrics could not be encoded");
        }
        text
    }

    /// The same, rendered on a blocking thread and once at a time, so that many concurrent requests multiply neither
    /// memory nor CPU. `None` if rendering panicked or the process shuts down.
    pub async fn text_aside(&self) -> Option<String> {
        let turn = self.encoding.clone().lock_owned().await;
        let metrics = self.clone();
        let text = blocking::spawn(move || {
            let text = metrics.text();
            // The lock is released when the work ends, even if the caller has gone.
            drop(turn);
            text
        });
        text.await.ok()
    }

    /// The sum of a counter or gauge over all its label sets, for tests and summaries.
    pub fn total(&self, name: &str) -> f64 {
        self.total_with(name, &[])
    }

    /// The same over the label sets that have all of these label values.
    pub fn total_with(&self, name: &str, values: &[&str]) -> f64 {
        let families = self.registry.gather();
        let metrics = families
            .iter()
            .filter(|family| family.name() == name)
            .flat_map(|family| family.get_metric());
        let has = |metric: &proto::Metric, value: &str| metric.get_label().iter().any(|label| label.value() == value);
        metrics
            .filter(|metric| values.iter().all(|value| has(metric, value)))
            .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value())
            .sum()
    }

    fn registered<C: Collector + Clone + 'static>(&self, metric: C) -> C {
        self.register(metric.clone());
        metric
    }

    fn of_component<C: Collector + Clone + 'static>(&self, metric: C) -> C {
        self.register(ComponentCollector::new(metric.clone()));
        metric
    }
}

/// A metric of a component. The registry refuses a metric whose label names differ from those of others of its name. But
/// the dead letter belongs to no flow, and flows with names have the label `flow`, so the compared hash is always equal.
struct ComponentCollector<C> {
    metric: C,
    descriptions: Vec<Desc>,
}

impl<C: Collector> ComponentCollector<C> {
    fn new(metric: C) -> ComponentCollector<C> {
        let with_equal_hash = |description: &Desc| Desc {
            dim_hash: 0,
            ..description.clone()
        };
        ComponentCollector {
            descriptions: metric.desc().into_iter().map(with_equal_hash).collect(),
            metric,
        }
    }
}

impl<C: Collector> Collector for ComponentCollector<C> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        self.metric.collect()
    }
}

fn opts(id: &ComponentId, doc: &MetricDoc, labels: Labels<'_>) -> Opts {
    let mut all = id.labels();
    all.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    doc.opts().const_labels(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(path: &str) -> ComponentId {
        ComponentId {
            flow: None,
            path: path.to_owned(),
            label: String::new(),
        }
    }

    #[test]
    fn components_share_a_name_and_differ_by_path() {
        const RECEIVED: MetricDoc = MetricDoc::counter("processor_received", "Messages.");
        let metrics = Metrics::default();
        metrics.counter(&id("root.a"), &RECEIVED).inc_by(2);
        metrics.counter(&id("root.b"), &RECEIVED).inc_by(3);
        let text = metrics.text();
        assert!(
            text.contains("processor_received{label=\"\",path=\"root.a\"} 2"),
            "{text}"
        );
        metrics.counter(&id("root.b"), &RECEIVED).inc();
        assert_eq!(
            metrics.total("processor_received"),
            6.0,
            "asked for again, it is the same counter"
        );
        assert_eq!(metrics.total_with("processor_received", &["root.b"]), 4.0);
    }

    /// The registry refuses a name that is registered again with another help text.
    #[test]
    fn sources_that_mean_something_else_by_a_name_are_all_exported() {
        const PROCESSED: MetricDoc = MetricDoc::counter("messages_processed", "Messages that were used.");
        let metrics = Metrics::default();
        let samples = PROCESSED.meaning("Samples with a topic.");
        let points = PROCESSED.meaning("Points of a curve.");
        metrics.counter(&id("root.a"), &samples).inc();
        metrics.counter(&id("root.b"), &points).inc();
        assert_eq!(metrics.total("messages_processed"), 2.0);
    }

    /// The registry refuses a name that is registered again with other labels.
    #[test]
    fn components_of_flows_and_of_none_are_all_exported() {
        const SENT: MetricDoc = MetricDoc::counter("output_sent", "Messages.");
        let metrics = Metrics::default();
        metrics.counter(&id("root.dead_letter"), &SENT).inc();
        let of_a = ComponentId {
            flow: Some("a".to_owned()),
            ..id("root.flows.a.output")
        };
        metrics.counter(&of_a, &SENT).inc();
        assert_eq!(metrics.total("output_sent"), 2.0, "{}", metrics.text());
    }

    #[test]
    fn timings_are_summaries_unless_histograms_are_asked_for() {
        for (histogram, line) in [
            (false, "x_ns{label=\"\",path=\"p\",quantile=\"0.5\"}"),
            (true, "x_ns_bucket{"),
        ] {
            let metrics = Metrics::new(histogram);
            metrics
                .timing(&id("p"), &MetricDoc::timing("x_ns", "x"))
                .observe(std::time::Duration::from_micros(3));
            assert!(metrics.text().contains(line), "{}", metrics.text());
        }
    }
}
