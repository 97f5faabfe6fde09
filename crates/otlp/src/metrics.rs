//! Prometheus metrics of the receivers, prefix `thalweg_lake_`.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};
use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_lake::LakeMetrics;
use thalweg_lake::Signal;

use crate::validate::ValidationReport;

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
    pub fn register(registry: &Registry, lake: &LakeMetrics) -> prometheus::Result<ReceiverMetrics> {
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let seconds = vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
        let meters = ReceiverMetrics {
            requests: counters(
                "thalweg_lake_requests_total",
                "Export requests by outcome.",
                &["signal", "proto", "code"],
            )?,
            records: counters(
                "thalweg_lake_records_total",
                "Records of stored requests and of requests that were rejected as a whole, including rejected records.",
                &["signal"],
            )?,
            rejected: lake.refused_rows.clone(),
            bytes: counters(
                "thalweg_lake_bytes_total",
                "Bytes of requests by stage: as received, as uncompressed protobuf, and as logged.",
                &["signal", "stage"],
            )?,
            pressure: counters(
                "thalweg_lake_pressure_total",
                "Requests that were asked to retry later, by the exhausted limit.",
                &["cause"],
            )?,
            inflight_bytes: IntGauge::new(
                "thalweg_lake_inflight_bytes",
                "Bytes of requests that are not stored yet.",
            )?,
            ack_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "thalweg_lake_ack_seconds",
                    "Time from the last byte of a request until it is stored.",
                )
                .buckets(seconds),
            )?,
        };
        for cause in ["bytes", "requests", "queue"] {
            meters.pressure.with_label_values(&[cause]);
        }
        registry.register(Box::new(meters.requests.clone()))?;
        registry.register(Box::new(meters.records.clone()))?;
        registry.register(Box::new(meters.bytes.clone()))?;
        registry.register(Box::new(meters.pressure.clone()))?;
        registry.register(Box::new(meters.inflight_bytes.clone()))?;
        registry.register(Box::new(meters.ack_seconds.clone()))?;
        Ok(meters)
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
