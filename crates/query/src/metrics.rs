//! What queries tell Prometheus, prefix `thalweg_lake_query_`.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, IntGauge, Opts, Registry};

const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

/// Clones share their counts.
#[derive(Clone)]
pub struct QueryMetrics {
    seconds: HistogramVec,
    pub(crate) queued: IntGauge,
    scanned_bytes: IntCounterVec,
    files: IntCounterVec,
    rows: IntCounterVec,
}

impl QueryMetrics {
    pub fn register(registry: &Registry) -> prometheus::Result<QueryMetrics> {
        let metrics = QueryMetrics::new()?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        registry.register(Box::new(metrics.queued.clone()))?;
        registry.register(Box::new(metrics.scanned_bytes.clone()))?;
        registry.register(Box::new(metrics.files.clone()))?;
        registry.register(Box::new(metrics.rows.clone()))?;
        Ok(metrics)
    }

    /// Metrics that nobody scrapes.
    pub fn new() -> prometheus::Result<QueryMetrics> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        Ok(QueryMetrics {
            seconds: HistogramVec::new(
                HistogramOpts::new("thalweg_lake_query_seconds", "Duration of queries.").buckets(SECONDS.to_vec()),
                &["api", "outcome"],
            )?,
            queued: IntGauge::new("thalweg_lake_query_queued", "Queries that wait for their turn.")?,
            scanned_bytes: counter(
                "thalweg_lake_query_scanned_bytes_total",
                "Bytes read from files.",
                &["api"],
            )?,
            files: counter(
                "thalweg_lake_query_files_total",
                "Files of queried tables by what became of them.",
                &["stage"],
            )?,
            rows: counter(
                "thalweg_lake_query_rows_total",
                "Rows that scans gave to queries.",
                &["source"],
            )?,
        })
    }

    pub(crate) fn finished(&self, api: &str, outcome: &str, took: Duration) {
        self.seconds
            .with_label_values(&[api, outcome])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn files(&self, listed: usize, kept: usize) {
        self.files.with_label_values(&["listed"]).inc_by(listed as u64);
        self.files
            .with_label_values(&["pruned"])
            .inc_by(listed.saturating_sub(kept) as u64);
        self.files.with_label_values(&["read"]).inc_by(kept as u64);
    }

    pub(crate) fn scanned(&self, api: &str, bytes: usize, rows: usize) {
        self.scanned_bytes.with_label_values(&[api]).inc_by(bytes as u64);
        self.rows.with_label_values(&["raw"]).inc_by(rows as u64);
    }
}
