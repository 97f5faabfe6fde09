//! The components' metrics. Everything is counted per batch or per call, never per value.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use thalweg_flow::Component;
use thalweg_telemetry::{IntCounter, IntGauge, MetricDoc, Timing};

use crate::gaps::GapReason;
use crate::metric_docs as docs;
use crate::node_table::{FailureReason, NodeTable};
use crate::value::status;

/// How a connection was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reconnect {
    Reactivated,
    Transferred,
    Recreated,
}

impl Reconnect {
    pub fn as_str(self) -> &'static str {
        match self {
            Reconnect::Reactivated => "reactivated",
            Reconnect::Transferred => "transferred",
            Reconnect::Recreated => "recreated",
        }
    }
}

/// Why a received value does not enter the flow; no other counter includes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiscardReason {
    /// Its client handle was never assigned, or its tag is gone.
    UnknownItem,
    /// Its subscription was replaced or never requested.
    UnknownSubscription,
    /// Its message was already processed.
    Repeated,
    /// It was older than the buffer could keep before the paths of tags were final.
    HeldBack,
}

impl DiscardReason {
    const ALL: [DiscardReason; 4] = [
        DiscardReason::UnknownItem,
        DiscardReason::UnknownSubscription,
        DiscardReason::Repeated,
        DiscardReason::HeldBack,
    ];

    fn as_str(self) -> &'static str {
        match self {
            DiscardReason::UnknownItem => "unknown_item",
            DiscardReason::UnknownSubscription => "unknown_subscription",
            DiscardReason::Repeated => "repeated",
            DiscardReason::HeldBack => "held_back",
        }
    }
}

/// Maximum status labels of one counter; further ones share `other`.
const STATUS_LABELS_MAX: usize = 50;

/// A counter labelled with the name of a status, one per status seen.
pub(crate) struct StatusCounter {
    component: Component,
    doc: &'static MetricDoc,
    counters: Mutex<HashMap<String, IntCounter>>,
}

impl StatusCounter {
    pub fn new(component: &Component, doc: &'static MetricDoc) -> StatusCounter {
        StatusCounter {
            component: component.clone(),
            doc,
            counters: Mutex::default(),
        }
    }

    pub fn inc(&self, label: String) {
        let mut counters = self.counters.lock();
        let is_full = counters.len() >= STATUS_LABELS_MAX && !counters.contains_key(&label);
        let label = if is_full { "other".to_owned() } else { label };
        let component = &self.component;
        let counter = counters.entry(label).or_insert_with_key(|label| {
            component
                .metrics
                .counter_with(&component.id, self.doc, &[("status", label)])
        });
        counter.inc();
    }
}

/// Metrics of a connection of any component.
pub(crate) struct ConnectionMetrics {
    pub connected: IntGauge,
    reconnects: [IntCounter; 3],
}

impl ConnectionMetrics {
    pub fn new(component: &Component) -> ConnectionMetrics {
        let reconnects = [Reconnect::Reactivated, Reconnect::Transferred, Reconnect::Recreated].map(|how| {
            component
                .metrics
                .counter_with(&component.id, &docs::RECONNECTS, &[("how", how.as_str())])
        });
        ConnectionMetrics {
            connected: component.gauge(&docs::CONNECTED),
            reconnects,
        }
    }

    pub fn reconnected(&self, how: Reconnect) {
        if let Some(counter) = self.reconnects.get(how as usize) {
            counter.inc();
        }
    }
}

/// Metrics of an output.
pub(crate) struct WriteMetrics {
    pub held_up: IntGauge,
    repeated: StatusCounter,
}

impl WriteMetrics {
    pub fn new(component: &Component) -> WriteMetrics {
        WriteMetrics {
            held_up: component.gauge(&docs::NODES_HELD_UP),
            repeated: StatusCounter::new(component, &docs::WRITES_REPEATED),
        }
    }

    pub fn repeated(&self, status: String) {
        self.repeated.inc(status);
    }
}

pub(crate) struct InputMetrics {
    pub connections: ConnectionMetrics,
    pub browse_nodes: IntCounter,
    pub browse_variables: IntGauge,
    pub browse_frontier: IntGauge,
    pub browse_in_flight: IntGauge,
    pub browse_seconds: IntGauge,
    pub browse_done: IntGauge,
    browse_errors: StatusCounter,
    items_wanted: IntGauge,
    items_monitored: IntGauge,
    items_polled: IntGauge,
    items_failed: [IntGauge; FailureReason::ALL.len()],
    items_pending: IntGauge,
    subscription_failures: [IntCounter; FailureReason::ALL.len()],
    pub notifications: IntCounter,
    pub values: IntCounter,
    pub values_suppressed: IntCounter,
    values_discarded: [IntCounter; DiscardReason::ALL.len()],
    pub status_only: IntCounter,
    pub overflows: IntCounter,
    pub publish_in_flight: IntGauge,
    pub publish_latency: Timing,
    pub value_age: Timing,
    pub settled_age: Timing,
    messages_fetched: IntCounter,
    messages_given_up: IntCounter,
    gaps: [IntCounter; GapReason::ALL.len()],
    gap_milliseconds: Mutex<u64>,
    gap_seconds: IntCounter,
    pub poll_overruns: IntCounter,
}

impl InputMetrics {
    pub fn new(component: &Component) -> InputMetrics {
        let labelled = |doc: &MetricDoc, key: &str, value: &str| {
            component.metrics.counter_with(&component.id, doc, &[(key, value)])
        };
        let failed = |reason: &str| {
            component
                .metrics
                .gauge_with(&component.id, &docs::ITEMS_FAILED, &[("reason", reason)])
        };
        InputMetrics {
            connections: ConnectionMetrics::new(component),
            browse_nodes: component.counter(&docs::BROWSE_NODES),
            browse_variables: component.gauge(&docs::BROWSE_VARIABLES),
            browse_frontier: component.gauge(&docs::BROWSE_FRONTIER),
            browse_in_flight: component.gauge(&docs::BROWSE_IN_FLIGHT),
            browse_seconds: component.gauge(&docs::BROWSE_SECONDS),
            browse_done: component.gauge(&docs::BROWSE_DONE),
            browse_errors: StatusCounter::new(component, &docs::BROWSE_ERRORS),
            items_wanted: component.gauge(&docs::ITEMS_WANTED),
            items_monitored: component.gauge(&docs::ITEMS_MONITORED),
            items_polled: component.gauge(&docs::ITEMS_POLLED),
            items_failed: FailureReason::ALL.map(|reason| failed(reason.as_str())),
            items_pending: failed("pending"),
            subscription_failures: FailureReason::ALL
                .map(|reason| labelled(&docs::SUBSCRIPTION_FAILURES, "reason", reason.as_str())),
            notifications: component.counter(&docs::NOTIFICATIONS),
            values: component.counter(&docs::VALUES),
            values_suppressed: component.counter(&docs::VALUES_SUPPRESSED),
            values_discarded: DiscardReason::ALL
                .map(|reason| labelled(&docs::VALUES_DISCARDED, "reason", reason.as_str())),
            status_only: component.counter(&docs::STATUS_ONLY),
            overflows: component.counter(&docs::OVERFLOWS),
            publish_in_flight: component.gauge(&docs::PUBLISH_IN_FLIGHT),
            publish_latency: component.timing(&docs::PUBLISH_LATENCY),
            value_age: component.timing(&docs::VALUE_AGE),
            settled_age: component.timing(&docs::SETTLED_AGE),
            messages_fetched: labelled(&docs::MESSAGES_MISSING, "outcome", "fetched"),
            messages_given_up: labelled(&docs::MESSAGES_MISSING, "outcome", "given_up"),
            gaps: GapReason::ALL.map(|reason| labelled(&docs::GAPS, "reason", reason.as_str())),
            gap_milliseconds: Mutex::new(0),
            gap_seconds: component.counter(&docs::GAP_SECONDS),
            poll_overruns: component.counter(&docs::POLL_OVERRUNS),
        }
    }

    pub fn discarded(&self, reason: DiscardReason, values: usize) {
        if let Some(counter) = self.values_discarded.get(reason as usize) {
            counter.inc_by(values as u64);
        }
    }

    /// Counts missing messages by their outcome.
    pub fn recovered(&self, fetched: u32, given_up: u32) {
        self.messages_fetched.inc_by(fetched.into());
        self.messages_given_up.inc_by(given_up.into());
    }

    pub fn browse_error(&self, status: u32) {
        self.browse_errors.inc(status::name(status));
    }

    pub fn item_refused(&self, reason: FailureReason) {
        if let Some(counter) = self.subscription_failures.get(reason as usize) {
            counter.inc();
        }
    }

    pub fn gap(&self, reason: GapReason, length: std::time::Duration) {
        if let Some(counter) = self.gaps.get(reason as usize) {
            counter.inc();
        }
        // The counter has whole seconds; the remainder is carried over.
        let mut rest = self.gap_milliseconds.lock();
        *rest += u64::try_from(length.as_millis())
            .unwrap_or(u64::MAX)
            .min(u64::from(u32::MAX));
        self.gap_seconds.inc_by(*rest / 1000);
        *rest %= 1000;
    }

    /// Updates the counts of all variables by state; pending ones count as failed, so that the sum is always correct.
    pub fn show_items(&self, table: &Arc<RwLock<NodeTable>>) {
        let counts = table.read().counts();
        let set = |gauge: &IntGauge, count: usize| gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        set(&self.items_wanted, counts.wanted());
        set(&self.items_monitored, counts.monitored);
        set(&self.items_polled, counts.polled);
        set(&self.items_pending, counts.pending);
        for (gauge, count) in self.items_failed.iter().zip(counts.failed) {
            set(gauge, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server may send any of four billion status codes.
    #[test]
    fn statuses_beyond_the_limit_are_counted_as_one() {
        let component = crate::fake_server::component();
        const COUNTED: MetricDoc = MetricDoc::counter("thalweg_opcua_test_total", "For this test.");
        let counter = StatusCounter::new(&component, &COUNTED);
        for n in 0..STATUS_LABELS_MAX + 7 {
            counter.inc(format!("0x{n:08X}"));
        }
        counter.inc("0x00000000".to_owned());
        let text = component.metrics.text();
        let of_it = |line: &&str| line.starts_with("thalweg_opcua_test_total{");
        let lines: Vec<&str> = text.lines().filter(of_it).collect();
        let value = |status: &str| {
            let line = lines.iter().find(|line| line.contains(&format!("status=\"{status}\"")));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        };
        assert_eq!(lines.len(), STATUS_LABELS_MAX + 1);
        assert_eq!(
            (value("other"), value("0x00000000"), value("0x00000031")),
            (Some(7), Some(2), Some(1))
        );
    }
}
