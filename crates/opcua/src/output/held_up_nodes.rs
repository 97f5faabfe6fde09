//! Reports nodes whose writes are delayed: in the log, in the metrics, in the console, and in `/ready` when no write
//! succeeds any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_flow::Component;
use thalweg_kit::clock;

use super::node_queues::OperationId;
use super::write_failure::WriteFailure;
use crate::metrics::WriteMetrics;

pub(super) struct HeldUpNodes {
    component: Component,
    /// Called with the reason when no write succeeds.
    stands: Box<dyn Fn(&str) + Send>,
    metrics: WriteMetrics,
    /// Operations that failed temporarily, with the reason.
    held_up: BTreeMap<OperationId, String>,
    /// For the console.
    shown: Arc<Mutex<String>>,
    last_taken: Instant,
}

impl HeldUpNodes {
    pub fn new(component: Component, stands: impl Fn(&str) + Send + 'static, shown: Arc<Mutex<String>>) -> HeldUpNodes {
        HeldUpNodes {
            metrics: WriteMetrics::new(&component),
            component,
            stands: Box::new(stands),
            held_up: BTreeMap::new(),
            shown,
            last_taken: clock::now(),
        }
    }

    /// A value was accepted, or may be in a new session.
    pub fn taken(&mut self) {
        self.last_taken = clock::now();
    }

    /// An operation failed temporarily. While others succeed, this does not affect the whole output.
    pub fn held_up(&mut self, id: OperationId, failure: WriteFailure, standstill: Duration) {
        let WriteFailure { error, label, .. } = failure;
        self.metrics.repeated(label);
        self.component
            .warn_limited("write_failed", 1, || format!("write failed, retrying: {error}"));
        if self.last_taken.elapsed() >= standstill {
            (self.stands)(&error);
        }
        self.held_up.insert(id, error);
        self.show();
    }

    pub fn released(&mut self, id: OperationId) {
        if self.held_up.remove(&id).is_some() {
            self.show();
        }
    }

    pub fn nothing_held_up(&mut self) {
        self.held_up.clear();
        self.show();
    }

    pub fn no_namespaces(&self) {
        self.component.warn_limited("namespaces", 1, || {
            "cannot read the server's namespaces, which are needed to resolve nsu= in NodeIDs".to_owned()
        });
    }

    fn show(&self) {
        let nodes = self.held_up.len();
        self.metrics.held_up.set(i64::try_from(nodes).unwrap_or(i64::MAX));
        *self.shown.lock() = match self.held_up.values().next() {
            None => "no node".to_owned(),
            Some(why) => format!("{nodes} of the nodes; the oldest: {why}"),
        };
    }
}
