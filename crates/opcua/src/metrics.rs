//! The components' metrics by their names in `/metrics`. Everything is counted per batch or per call, never per value.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use thalweg_flow::Component;
use thalweg_telemetry::{IntCounter, IntGauge, Timing};

use crate::gaps::GapReason;
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
    name: &'static str,
    help: &'static str,
    counters: Mutex<HashMap<String, IntCounter>>,
}

impl StatusCounter {
    pub fn new(component: &Component, name: &'static str, help: &'static str) -> StatusCounter {
        StatusCounter {
            component: component.clone(),
            name,
            help,
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
                .counter_with(&component.id, self.name, self.help, &[("status", label)])
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
            component.metrics.counter_with(
                &component.id,
                "thalweg_opcua_reconnects_total",
                "Connections that came back, by how.",
                &[("how", how.as_str())],
            )
        });
        ConnectionMetrics {
            connected: component.gauge("thalweg_opcua_connected", "1 while values can flow."),
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
        let help = "Writes of a value that failed for now, by status; they are repeated.";
        WriteMetrics {
            held_up: component.gauge(
                "thalweg_opcua_nodes_held_up",
                "Nodes whose next value failed for now and is written again.",
            ),
            repeated: StatusCounter::new(component, "thalweg_opcua_writes_repeated_total", help),
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
        let name = |name: &str| format!("thalweg_opcua_{name}");
        let counter = |n: &str, help: &str| component.counter(&name(n), help);
        let gauge = |n: &str, help: &str| component.gauge(&name(n), help);
        let labelled = |n: &str, help: &str, key: &str, value: &str| {
            component.metrics.counter_with(&component.id, n, help, &[(key, value)])
        };
        let failed = |reason: &str| {
            let help = "Wanted nodes that are neither monitored nor polled, by reason.";
            component
                .metrics
                .gauge_with(&component.id, &name("items_failed"), help, &[("reason", reason)])
        };
        let subscription_failures = FailureReason::ALL.map(|reason| {
            let help = "Monitored items that the server refused, by reason.";
            labelled("opcua_subscription_failures_total", help, "reason", reason.as_str())
        });
        let gaps = GapReason::ALL.map(|reason| {
            let help = "Spans of time in which values may be missing, by reason.";
            labelled(&name("gaps_total"), help, "reason", reason.as_str())
        });
        let missing = |outcome: &str| {
            let help = "Notification messages that were lost on the way: asked for again and fetched, or given up.";
            labelled(&name("messages_missing_total"), help, "outcome", outcome)
        };
        let values_discarded = DiscardReason::ALL.map(|reason| {
            let help = "Values that belong to no tag, came twice or found no room, by reason.";
            labelled(&name("values_discarded_total"), help, "reason", reason.as_str())
        });
        InputMetrics {
            connections: ConnectionMetrics::new(component),
            browse_nodes: counter("browse_nodes_total", "Nodes found by browsing."),
            browse_variables: gauge("browse_variables", "Variables found by browsing."),
            browse_frontier: gauge("browse_frontier", "Nodes that are still to be browsed."),
            browse_in_flight: gauge("browse_in_flight", "Browse and read calls in flight while browsing."),
            browse_seconds: gauge("browse_seconds", "How long the browse has taken or takes."),
            browse_done: gauge("browse_done", "1 once the first browse is complete."),
            browse_errors: StatusCounter::new(
                component,
                "thalweg_opcua_browse_errors_total",
                "Nodes that could not be browsed, by status.",
            ),
            items_wanted: gauge(
                "items_wanted",
                "Variables that are wanted: monitored, polled and failed ones.",
            ),
            items_monitored: gauge("items_monitored", "Wanted nodes with a monitored item."),
            items_polled: gauge("items_polled", "Wanted nodes that are read periodically."),
            items_failed: FailureReason::ALL.map(|reason| failed(reason.as_str())),
            items_pending: failed("pending"),
            subscription_failures,
            notifications: counter("notifications_total", "Notification messages received."),
            values: counter("values_total", "Values received."),
            values_suppressed: counter(
                "values_suppressed_total",
                "Values within their deadband, filtered here.",
            ),
            values_discarded,
            status_only: counter("status_only_total", "Notifications without a value."),
            overflows: counter("overflows_total", "Values marked by the server as following lost ones."),
            publish_in_flight: gauge("publish_in_flight", "Publish requests that the server holds."),
            publish_latency: component.timing(&name("publish_latency_ns"), "From a publish request to its answer."),
            value_age: component.timing(
                &name("value_age_ns"),
                "From a batch's newest source timestamp to its arrival.",
            ),
            settled_age: component.timing(
                &name("settled_age_ns"),
                "From each value's source timestamp to its acknowledgement by the output, at most an eighth too long.",
            ),
            messages_fetched: missing("fetched"),
            messages_given_up: missing("given_up"),
            gaps,
            gap_milliseconds: Mutex::new(0),
            gap_seconds: counter("gap_seconds_total", "Length of all gaps together."),
            poll_overruns: counter(
                "poll_overruns_total",
                "Poll cycles that were skipped, the one before still running.",
            ),
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
        let counter = StatusCounter::new(&component, "thalweg_opcua_test_total", "For this test.");
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
