//! What the receivers tell Prometheus.

use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// Clones share them.
#[derive(Clone)]
pub struct Meters {
    /// `signal`, `protocol`, `code`: `ok`, or what was refused.
    pub requests: IntCounterVec,
    /// `signal`
    pub records: IntCounterVec,
    /// `signal`, `reason`
    pub rejected: IntCounterVec,
    pub bytes: IntCounter,
    pub inflight_bytes: IntGauge,
    pub ack_seconds: Histogram,
}

impl Meters {
    pub fn register(registry: &Registry) -> prometheus::Result<Meters> {
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let seconds = vec![0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0];
        let meters = Meters {
            requests: counters(
                "thalweg_otlp_requests_total",
                "Export requests by what became of them.",
                &["signal", "protocol", "code"],
            )?,
            records: counters(
                "thalweg_otlp_records_total",
                "Records of requests that were taken, rejected ones included.",
                &["signal"],
            )?,
            rejected: counters(
                "thalweg_otlp_rejected_records_total",
                "Records that were rejected, which their senders were told.",
                &["signal", "reason"],
            )?,
            bytes: IntCounter::new("thalweg_otlp_bytes_total", "Bytes of requests as they were sent.")?,
            inflight_bytes: IntGauge::new(
                "thalweg_otlp_inflight_bytes",
                "Bytes of requests that are not stored yet.",
            )?,
            ack_seconds: Histogram::with_opts(
                HistogramOpts::new(
                    "thalweg_otlp_ack_seconds",
                    "Time from the last byte of a request until it is stored.",
                )
                .buckets(seconds),
            )?,
        };
        registry.register(Box::new(meters.requests.clone()))?;
        registry.register(Box::new(meters.records.clone()))?;
        registry.register(Box::new(meters.rejected.clone()))?;
        registry.register(Box::new(meters.bytes.clone()))?;
        registry.register(Box::new(meters.inflight_bytes.clone()))?;
        registry.register(Box::new(meters.ack_seconds.clone()))?;
        Ok(meters)
    }
}
