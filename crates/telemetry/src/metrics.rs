//! The metrics registry of the process, and the labels that distinguish components.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntGauge, Opts, Registry, TextEncoder};
use thalweg_kit::blocking;

use crate::Timing;
use crate::families::{CallbackCollector, MetricFamilies};

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

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    pub fn counter(&self, id: &ComponentId, name: &str, help: &str) -> IntCounter {
        self.counter_with(id, name, help, &[])
    }

    /// A counter with further labels whose values are few and known at start.
    pub fn counter_with(&self, id: &ComponentId, name: &str, help: &str, labels: &[(&str, &str)]) -> IntCounter {
        let make = || RegisteredMetric::Counter(self.registered(IntCounter::with_opts(opts(id, name, help, labels))));
        match self.known(id, name, labels, make) {
            RegisteredMetric::Counter(counter) => counter,
            _ => IntCounter::with_opts(opts(id, name, help, labels)).expect(VALID),
        }
    }

    pub fn gauge(&self, id: &ComponentId, name: &str, help: &str) -> IntGauge {
        self.gauge_with(id, name, help, &[])
    }

    pub fn gauge_with(&self, id: &ComponentId, name: &str, help: &str, labels: &[(&str, &str)]) -> IntGauge {
        let make = || RegisteredMetric::Gauge(self.registered(IntGauge::with_opts(opts(id, name, help, labels))));
        match self.known(id, name, labels, make) {
            RegisteredMetric::Gauge(gauge) => gauge,
            _ => IntGauge::with_opts(opts(id, name, help, labels)).expect(VALID),
        }
    }

    pub fn timing(&self, id: &ComponentId, name: &str, help: &str) -> Timing {
        let make = || {
            RegisteredMetric::Timing(self.registered(Timing::new(name, help, id.labels(), self.use_histogram_timing)))
        };
        match self.known(id, name, &[], make) {
            RegisteredMetric::Timing(timing) => timing,
            _ => Timing::new(name, help, id.labels(), self.use_histogram_timing).expect(VALID),
        }
    }

    /// The metric with this name and these labels, created on first use.
    fn known(
        &self,
        id: &ComponentId,
        name: &str,
        labels: &[(&str, &str)],
        make: impl FnOnce() -> RegisteredMetric,
    ) -> RegisteredMetric {
        let key = format!("{name} {id:?} {labels:?}");
        if let Some(known) = self.known.lock().get(&key) {
            return known.clone();
        }
        let made = make();
        self.known.lock().entry(key).or_insert(made).clone()
    }

    /// Adds a collector that computes its values on request.
    pub fn register(&self, collector: impl Collector + 'static) {
        if let Err(error) = self.registry.register(Box::new(collector)) {
            tracing::error!(%error, "a metric could not be registered and will be missing from /metrics");
        }
    }

    /// Registers a callback that reports metrics on request; `name` is one of them.
    pub fn tell(&self, name: &str, tell: impl Fn(&mut MetricFamilies) + Send + Sync + 'static) {
        self.register(CallbackCollector::new(name, tell).expect(VALID));
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
        let families = self.registry.gather();
        let metrics = families
            .iter()
            .filter(|f| f.name() == name)
            .flat_map(|f| f.get_metric());
        metrics
            .map(|m| m.get_counter().get_value() + m.get_gauge().get_value())
            .sum()
    }

    fn registered<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> C {
        let metric = metric.expect(VALID);
        self.register(metric.clone());
        metric
    }
}

/// Label values come from the configuration and may be any text; names are constants of this program.
const VALID: &str = "metric names and label names are valid constants";

fn opts(id: &ComponentId, name: &str, help: &str, labels: &[(&str, &str)]) -> Opts {
    let mut all = id.labels();
    all.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    Opts::new(name, help).const_labels(all)
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
        let metrics = Metrics::default();
        metrics
            .counter(&id("root.a"), "processor_received", "Messages.")
            .inc_by(2);
        metrics
            .counter(&id("root.b"), "processor_received", "Messages.")
            .inc_by(3);
        assert!(
            metrics
                .text()
                .contains("processor_received{label=\"\",path=\"root.a\"} 2"),
            "{}",
            metrics.text()
        );
        metrics.counter(&id("root.b"), "processor_received", "Messages.").inc();
        assert_eq!(
            metrics.total("processor_received"),
            6.0,
            "asked for again, it is the same counter"
        );
    }

    #[test]
    fn timings_are_summaries_unless_histograms_are_asked_for() {
        for (histogram, line) in [
            (false, "x_ns{label=\"\",path=\"p\",quantile=\"0.5\"}"),
            (true, "x_ns_bucket{"),
        ] {
            let metrics = Metrics::new(histogram);
            metrics
                .timing(&id("p"), "x_ns", "x")
                .observe(std::time::Duration::from_micros(3));
            assert!(metrics.text().contains(line), "{}", metrics.text());
        }
    }
}
