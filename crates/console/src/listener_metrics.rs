//! The metrics of a listener. Those of the listeners of `ingest` have names of their own, because they have other clients.

use axum::http::StatusCode;
use thalweg_telemetry::{IntCounter, IntCounterVec, IntGauge, MetricDoc, MetricGroup, Metrics};

use crate::connection_slots::EvictionReason;

/// The declarations of a listener's metrics, in the order of [`ListenerMetrics`].
pub type ListenerMetricDocs = [MetricDoc; 5];

/// The metrics of one kind of listener; their names start with `$prefix`.
macro_rules! listener_metric_docs {
    ($prefix:literal) => {
        [
            MetricDoc::gauge(concat!($prefix, "_connections"), "Open connections of the listener."),
            MetricDoc::counter(
                concat!($prefix, "_connections_refused_total"),
                "Connections closed because there were too many.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_connections_closed_for_others_total"),
                "Connections closed to make room: half open for a second, slow for five, or idle.",
            )
            .with_labels(&["why"]),
            MetricDoc::counter(
                concat!($prefix, "_connections_passed_total"),
                "Connections accepted for a probe when all slots were in use.",
            ),
            MetricDoc::counter(
                concat!($prefix, "_refused_total"),
                "Requests that were refused, by the status of the answer.",
            )
            .with_labels(&["code"]),
        ]
    };
}

/// The listener of the console, or of an event server.
pub const HTTP_LISTENER: ListenerMetricDocs = listener_metric_docs!("thalweg_http");
/// The listeners of the section `ingest`.
pub const INGEST_LISTENERS: ListenerMetricDocs = listener_metric_docs!("thalweg_otlp");

/// What listeners export.
pub const METRICS: &[MetricGroup] = &[
    MetricGroup {
        title: "Section `http`, and the listener of an event server",
        labels: &[],
        metrics: &HTTP_LISTENER,
    },
    MetricGroup {
        title: "Section `ingest`: the listeners",
        labels: &[],
        metrics: &INGEST_LISTENERS,
    },
];

/// Metrics of the listener.
#[derive(Clone)]
pub struct ListenerMetrics {
    pub connections: IntGauge,
    pub refused: IntCounter,
    /// By eviction reason.
    pub made_room: IntCounterVec,
    pub passed: IntCounter,
    /// Refusals by status.
    refusals: IntCounterVec,
}

/// Statuses of refusals by the listener itself or by a path.
const REFUSED: [StatusCode; 12] = [
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNPROCESSABLE_ENTITY,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
    StatusCode::INSUFFICIENT_STORAGE,
];

impl ListenerMetrics {
    pub fn register(docs: &ListenerMetricDocs, metrics: &Metrics) -> ListenerMetrics {
        let [connections, refused, made_room, passed, refusals] = docs;
        let meters = ListenerMetrics {
            connections: metrics.process_gauge(connections),
            refused: metrics.process_counter(refused),
            made_room: metrics.counters(made_room),
            passed: metrics.process_counter(passed),
            refusals: metrics.counters(refusals),
        };
        // Counters start at zero, so that they are exported before the first event.
        for why in [EvictionReason::HalfOpen, EvictionReason::Slow, EvictionReason::Idle] {
            meters.made_room.with_label_values(&[why.as_str()]);
        }
        for status in REFUSED {
            meters.refusals.with_label_values(&[status.as_str()]);
        }
        meters
    }

    pub fn answered(&self, status: StatusCode) {
        if REFUSED.contains(&status) {
            self.refusals.with_label_values(&[status.as_str()]).inc();
        }
    }
}
