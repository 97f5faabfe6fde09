//! Prometheus metrics of the receivers, prefix `thalweg_lake_`.

use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;
use thalweg_telemetry::{Histogram, IntCounterVec, IntGauge, MetricDoc, MetricGroup, Metrics, metric_group};

use crate::validate::ValidationReport;

const SECONDS: [f64; 11] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];

metric_group! {
    pub(crate) RECEIVER_METRICS("Section `ingest`: the OpenTelemetry receivers", &[]) {
        REQUESTS = MetricDoc::counter("thalweg_lake_requests_total", "Export requests by outcome.")
            .with_labels(&["signal", "proto", "code"]);
        RECORDS = MetricDoc::counter(
            "thalweg_lake_records_total",
            "Records of stored requests and of requests that were rejected as a whole, including rejected records.",
        )
        .with_labels(&["signal"]);
        BYTES = MetricDoc::counter(
            "thalweg_lake_bytes_total",
            "Bytes of requests by stage: as received, as uncompressed protobuf, and as logged.",
        )
        .with_labels(&["signal", "stage"]);
        PRESSURE = MetricDoc::counter(
            "thalweg_lake_pressure_total",
            "Requests that were asked to retry later, by the exhausted limit.",
        )
        .with_labels(&["cause"]);
        INFLIGHT_BYTES = MetricDoc::gauge(
            "thalweg_lake_inflight_bytes",
            "Bytes of requests that are not stored yet.",
        );
        ACK_SECONDS = MetricDoc::histogram(
            "thalweg_lake_ack_seconds",
            "Time from the last byte of a request until it is stored.",
        );
    }
}

/// What the receivers export. Rejected records count in a metric of the lake.
pub const METRICS: &[MetricGroup] = &[RECEIVER_METRICS];

/// Clones share the counters.
#[derive(Clone)]
pub struct ReceiverMetrics {
    /// `signal`, `proto`: `grpc`, `http`; `code`: `ok`, or the code of the refusal.
    pub requests: IntCounterVec,
    /// `signal`
    records: IntCounterVec,
    /// `signal`, `reason`
    rejected: IntCounterVec,
    /// `signal`, `stage`: `received`, `decoded`, `logged`.
    bytes: IntCounterVec,
    /// `cause`: `bytes`, `requests`, `queue`.
    pub pressure: IntCounterVec,
    pub inflight_bytes: IntGauge,
    pub ack_seconds: Histogram,
}

impl ReceiverMetrics {
    /// Rejected records count in the metric in which the lake counts its rejections.
    pub fn register(metrics: &Metrics, lake: &LakeMetrics) -> ReceiverMetrics {
        let meters = ReceiverMetrics {
            requests: metrics.counters(&REQUESTS),
            records: metrics.counters(&RECORDS),
            rejected: lake.refused_rows.clone(),
            bytes: metrics.counters(&BYTES),
            pressure: metrics.counters(&PRESSURE),
            inflight_bytes: metrics.process_gauge(&INFLIGHT_BYTES),
            ack_seconds: metrics.process_histogram(&ACK_SECONDS, &SECONDS),
        };
        for cause in ["bytes", "requests", "queue"] {
            meters.pressure.with_label_values(&[cause]);
        }
        meters
    }

    pub fn count_bytes(&self, signal: Signal, stage: &str, bytes: usize) {
        let counter = self.bytes.with_label_values(&[signal.name(), stage]);
        counter.inc_by(bytes as u64);
    }

    /// Counts the records of a request, and the rejected ones among them.
    pub fn count_records(&self, signal: Signal, walked: &ValidationReport) {
        let signal = signal.name();
        self.records.with_label_values(&[signal]).inc_by(walked.records.into());
        for (reason, count) in RejectionReason::ALL.into_iter().zip(walked.reasons) {
            if count > 0 {
                let rejected = self.rejected.with_label_values(&[signal, reason.name()]);
                rejected.inc_by(count.into());
            }
        }
    }
}
