//! What the receivers tell Prometheus, prefix `thalweg_lake_`.

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, Opts, Registry};
use thalweg_lake::LakeMetrics;
use thalweg_lake::otlp::Signal;
use thalweg_lake::otlp::validate::{RejectionReason, ValidationReport};

/// Clones share them.
#[derive(Clone)]
pub struct ReceiverMetrics {
    /// `signal`, `proto`: `grpc`, `http`; `code`: `ok`, or what was refused.
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
    /// Records that are rejected count together with those that the lake rejects.
    pub fn register(registry: &Registry, lake: &LakeMetrics) -> prometheus::Result<ReceiverMetrics> {
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let seconds = vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
        let meters = ReceiverMetrics {
            requests: counters(
                "thalweg_lake_requests_total",
                "Export requests by what became of them.",
                &["signal", "proto", "code"],
            )?,
            records: counters(
                "thalweg_lake_records_total",
                "Records of requests that were stored, and of those that were rejected as a whole; rejected records included.",
                &["signal"],
            )?,
            rejected: lake.refused_rows.clone(),
            bytes: counters(
                "thalweg_lake_bytes_total",
                "Bytes of requests: as they were received, as protobuf and not compressed, and as they were logged.",
                &["signal", "stage"],
            )?,
            pressure: counters(
                "thalweg_lake_pressure_total",
                "Requests that were told to come later, by what there was no room in.",
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

    /// The records of a request, and those of them that were rejected.
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
