//! Prometheus metrics of queries, prefix `thalweg_lake_query_`.

use std::time::Duration;

use thalweg_telemetry::{HistogramVec, IntCounterVec, IntGauge, MetricDoc, MetricGroup, Metrics, metric_group};

const SECONDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0];

metric_group! {
    pub(crate) QUERY_METRICS("Section `query`: queries", &[]) {
        DURATION = MetricDoc::histogram("thalweg_lake_query_seconds", "Duration of queries.")
            .with_labels(&["api", "outcome"]);
        QUEUED = MetricDoc::gauge("thalweg_lake_query_queued", "Queries waiting to run.");
        SCANNED_BYTES = MetricDoc::counter("thalweg_lake_query_scanned_bytes_total", "Bytes read from files.")
            .with_labels(&["api"]);
        FILES = MetricDoc::counter("thalweg_lake_query_files_total", "Files of queried tables by stage.")
            .with_labels(&["stage"]);
        PRUNED = MetricDoc::counter(
            "thalweg_lake_query_pruned_total",
            "Files, row groups or rows that queries skipped, by the step that excluded them.",
        )
        .with_labels(&["stage", "unit"]);
        ROWS = MetricDoc::counter("thalweg_lake_query_rows_total", "Rows that scans returned to queries.")
            .with_labels(&["source"]);
    }
}

/// What queries export.
pub const METRICS: &[MetricGroup] = &[QUERY_METRICS];

/// Clones share their counts.
#[derive(Clone)]
pub struct QueryMetrics {
    seconds: HistogramVec,
    pub(crate) queued: IntGauge,
    scanned_bytes: IntCounterVec,
    files: IntCounterVec,
    pruned: IntCounterVec,
    rows: IntCounterVec,
}

/// What the scans of a query read and skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanCounts {
    pub bytes: usize,
    /// Rows from files of raw rows and of rollups.
    pub raw: usize,
    pub rollup: usize,
    pub row_groups_pruned: usize,
    pub row_groups_pruned_by_bloom: usize,
    /// Rows of pages whose bounds exclude them.
    pub page_rows_pruned: usize,
    /// Rows whose other columns were not decoded.
    pub filter_rows_pruned: usize,
}

impl std::ops::Add for ScanCounts {
    type Output = ScanCounts;

    fn add(self, more: ScanCounts) -> ScanCounts {
        ScanCounts {
            bytes: self.bytes + more.bytes,
            raw: self.raw + more.raw,
            rollup: self.rollup + more.rollup,
            row_groups_pruned: self.row_groups_pruned + more.row_groups_pruned,
            row_groups_pruned_by_bloom: self.row_groups_pruned_by_bloom + more.row_groups_pruned_by_bloom,
            page_rows_pruned: self.page_rows_pruned + more.page_rows_pruned,
            filter_rows_pruned: self.filter_rows_pruned + more.filter_rows_pruned,
        }
    }
}

impl QueryMetrics {
    pub fn register(metrics: &Metrics) -> QueryMetrics {
        QueryMetrics {
            seconds: metrics.histograms(&DURATION, &SECONDS),
            queued: metrics.process_gauge(&QUEUED),
            scanned_bytes: metrics.counters(&SCANNED_BYTES),
            files: metrics.counters(&FILES),
            pruned: metrics.counters(&PRUNED),
            rows: metrics.counters(&ROWS),
        }
    }

    /// Metrics that nothing exports.
    pub fn unregistered() -> QueryMetrics {
        QueryMetrics::register(&Metrics::default())
    }

    pub(crate) fn finished(&self, api: &str, outcome: &str, took: Duration) {
        self.seconds
            .with_label_values(&[api, outcome])
            .observe(took.as_secs_f64());
    }

    pub(crate) fn files(&self, listed: usize, by_date: usize, by_statistics: usize) {
        let pruned = (by_date + by_statistics).min(listed);
        let files = |stage: &str| self.files.with_label_values(&[stage]);
        files("listed").inc_by(listed as u64);
        files("pruned").inc_by(pruned as u64);
        files("read").inc_by((listed - pruned) as u64);
        self.prune("date", "files", by_date);
        self.prune("statistics", "files", by_statistics);
    }

    fn prune(&self, stage: &str, unit: &str, count: usize) {
        self.pruned.with_label_values(&[stage, unit]).inc_by(count as u64);
    }

    /// Counts rows that are in no file yet.
    pub(crate) fn buffered(&self, rows: usize) {
        self.rows.with_label_values(&["buffer"]).inc_by(rows as u64);
    }

    pub(crate) fn scanned(&self, api: &str, scanned: ScanCounts) {
        self.scanned_bytes
            .with_label_values(&[api])
            .inc_by(scanned.bytes as u64);
        let rows = |source: &str| self.rows.with_label_values(&[source]);
        rows("raw").inc_by(scanned.raw as u64);
        rows("rollup").inc_by(scanned.rollup as u64);
        self.prune("row_group", "row_groups", scanned.row_groups_pruned);
        self.prune("bloom", "row_groups", scanned.row_groups_pruned_by_bloom);
        self.prune("page", "rows", scanned.page_rows_pruned);
        self.prune("filter", "rows", scanned.filter_rows_pruned);
    }
}
