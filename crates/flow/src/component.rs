//! The identity of a component of a flow, and what it may use when it is built.

use std::path::PathBuf;
use std::sync::Arc;

use thalweg_telemetry::{ComponentId, IntCounter, IntGauge, LogDecision, LogLimiter, MetricDoc, Metrics, Timing};

use crate::context::FlowScope;

/// A component's identity, metrics and log. Clones share everything.
#[derive(Clone)]
pub struct Component {
    /// `opcua`, `tag_processor`, …
    pub name: Arc<str>,
    /// The labels of its metrics: label, path and flow.
    pub id: Arc<ComponentId>,
    pub metrics: Arc<Metrics>,
    limiter: Arc<LogLimiter>,
}

impl Component {
    pub fn new(name: &str, id: ComponentId, metrics: Arc<Metrics>) -> Component {
        Component {
            name: name.into(),
            id: Arc::new(id),
            metrics,
            limiter: Arc::default(),
        }
    }

    /// The name of the component in logs and tables: the label if the user gave one, otherwise the path.
    pub fn title(&self) -> &str {
        if self.id.label.is_empty() {
            &self.id.path
        } else {
            &self.id.label
        }
    }

    pub fn counter(&self, doc: &MetricDoc) -> IntCounter {
        self.metrics.counter(&self.id, doc)
    }

    pub fn gauge(&self, doc: &MetricDoc) -> IntGauge {
        self.metrics.gauge(&self.id, doc)
    }

    pub fn timing(&self, doc: &MetricDoc) -> Timing {
        self.metrics.timing(&self.id, doc)
    }

    /// Logs an event that may repeat for every message: the first of a kind in full, then one summary per 10 s.
    pub fn warn_limited(&self, kind: &'static str, n: u64, text: impl FnOnce() -> String) {
        if let LogDecision::Log { held_back } = self.limiter.check(kind, n) {
            let (text, component) = (text(), self.title());
            match held_back {
                0 => tracing::warn!(component, "{text}"),
                more => tracing::warn!(component, more_like_it = more, "{text}"),
            }
        }
    }

    /// Logs how many events were held back: those whose 10 s are over, or all at the end (`all`).
    pub(crate) fn log_held_back(&self, all: bool) {
        let held_back = if all { self.limiter.drain() } else { self.limiter.due() };
        for (kind, count) in held_back {
            tracing::warn!(component = self.title(), "{count} more events of kind {kind}");
        }
    }
}

/// What a component may use when it is built from its specification.
#[derive(Clone)]
pub struct BuildContext {
    pub component: Component,
    /// The label of the flow's input, otherwise its path. Tables store it as the source of the messages.
    pub source: Arc<str>,
    pub data_dir: PathBuf,
    /// [`OutputSpec::stores_bad_values`](crate::OutputSpec::stores_bad_values) of the flow's output.
    pub stores_bad_values: bool,
    pub(crate) scope: FlowScope,
}

/// Why a component cannot start: one sentence with the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BuildError(pub String);

impl BuildError {
    pub fn new(text: impl Into<String>) -> BuildError {
        BuildError(text.into())
    }
}
