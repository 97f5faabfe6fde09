//! The Prometheus metrics of the lake, prefix `thalweg_lake_`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_telemetry::{
    GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, MetricDoc, MetricFamilies, MetricGroup, Metrics,
    metric_group,
};

const SECONDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

metric_group! {
    pub(crate) TABLE_METRICS("Tables", &[]) {
        FLUSH_SECONDS = MetricDoc::histogram("thalweg_lake_flush_seconds", "Duration of a flush by phase.")
            .with_labels(&["table", "phase"]);
        VISIBILITY_SECONDS = MetricDoc::histogram(
            "thalweg_lake_visibility_seconds",
            "Time from the arrival of a batch until its rows can be queried.",
        )
        .with_labels(&["table"]);
        COMMITS = MetricDoc::counter("thalweg_lake_commits_total", "Delta commit attempts.")
            .with_labels(&["table", "kind", "outcome"]);
        COMMIT_LAG = MetricDoc::gauge(
            "thalweg_lake_commit_lag_seconds",
            "Age of the oldest row that is not committed yet.",
        )
        .with_labels(&["table"]);
        FILES = MetricDoc::gauge("thalweg_lake_files", "Live files.").with_labels(&["table", "level"]);
        BYTES = MetricDoc::gauge("thalweg_lake_bytes", "Bytes of live files.").with_labels(&["table"]);
        ROWS = MetricDoc::gauge("thalweg_lake_rows", "Committed rows.").with_labels(&["table"]);
        BUFFER_BYTES = MetricDoc::gauge(
            "thalweg_lake_buffer_bytes",
            "Bytes of memory for rows that are not committed yet.",
        )
        .with_labels(&["table"]);
        BACKLOG_BYTES = MetricDoc::gauge(
            "thalweg_lake_backlog_bytes",
            "Bytes in the log that have not been consumed yet.",
        )
        .with_labels(&["queue"]);
        PROMOTED_COLUMNS = MetricDoc::gauge("thalweg_lake_promoted_columns", "Attributes with a column.")
            .with_labels(&["table"]);
        STORE_SECONDS = MetricDoc::histogram("thalweg_lake_store_seconds", "Duration of operations on the store.")
            .with_labels(&["op", "outcome"]);
        MEMORY_BYTES = MetricDoc::gauge(
            "thalweg_lake_memory_bytes",
            "Shares of the process's memory: what is used of each, and its limit.",
        )
        .with_labels(&["share", "kind"]);
    }
}

metric_group! {
    pub(crate) ENTRY_METRICS("Entries that become rows", &[]) {
        ENTRIES = MetricDoc::counter(
            "thalweg_lake_entries_total",
            "Log entries that became rows, by whether they were handed over in memory or read from the log.",
        )
        .with_labels(&["from"]);
        OVERFLOW_VALUES = MetricDoc::counter(
            "thalweg_lake_overflow_values_total",
            "Attribute values stored in overflow maps, because their attribute has no column.",
        )
        .with_labels(&["table"]);
        MISFIT_VALUES = MetricDoc::counter(
            "thalweg_lake_misfit_values_total",
            "Attribute values stored as texts in overflow maps, because they do not fit the declared type of their column.",
        )
        .with_labels(&["table", "column"]);
        CHANGED_VALUES = MetricDoc::counter(
            "thalweg_lake_changed_values_total",
            "Values that could not be stored as sent, by reason.",
        )
        .with_labels(&["table", "reason"]);
        REFUSED_ROWS = MetricDoc::counter(
            "thalweg_lake_rejected_records_total",
            "Records rejected because they can never become rows.",
        )
        .with_labels(&["signal", "reason"]);
        POISON_ENTRIES = MetricDoc::counter(
            "thalweg_lake_poison_entries_total",
            "Log entries that could not be decoded and were quarantined.",
        );
        POISON_RECORDS = MetricDoc::counter(
            "thalweg_lake_poison_records_total",
            "Records in log entries that could not be decoded, without rejected records.",
        );
        QUARANTINED = MetricDoc::counter(
            "thalweg_lake_quarantined_total",
            "Quarantined log entries and lines of files, which could not be read.",
        )
        .with_labels(&["source"]);
    }
}

metric_group! {
    pub(crate) MAINTENANCE_METRICS("Maintenance of tables", &[]) {
        COMPACTION_JOBS = MetricDoc::counter("thalweg_lake_compaction_jobs_total", "Compaction jobs, by outcome.")
            .with_labels(&["table", "outcome"]);
        COMPACTION_BYTES = MetricDoc::counter(
            "thalweg_lake_compaction_bytes_total",
            "Bytes of files that were merged, and of the resulting files.",
        )
        .with_labels(&["direction"]);
        COMPACTION_PENDING_BYTES = MetricDoc::gauge(
            "thalweg_lake_compaction_pending_bytes",
            "Bytes of files that would be merged now.",
        )
        .with_labels(&["table"]);
        ROLLUP_LAG_SECONDS = MetricDoc::gauge(
            "thalweg_lake_rollup_lag_seconds",
            "Time from the end of the last window that was made to the end of the last complete one.",
        )
        .with_labels(&["table", "resolution"]);
        ROLLUP_INEXACT = MetricDoc::counter(
            "thalweg_lake_rollup_inexact_total",
            "Rows that no rollup window could include.",
        );
        EXPIRED_FILES = MetricDoc::counter(
            "thalweg_lake_expired_files_total",
            "Files removed from tables because their rows exceeded the retention.",
        )
        .with_labels(&["table"]);
        VACUUMED_FILES = MetricDoc::counter("thalweg_lake_vacuumed_files_total", "Files deleted by the vacuum.")
            .with_labels(&["table"]);
    }
}

/// What the lake exports.
pub const METRICS: &[MetricGroup] = &[TABLE_METRICS, ENTRY_METRICS, MAINTENANCE_METRICS];

/// Counters and histograms of all tables. Clones share them.
#[derive(Clone)]
pub struct LakeMetrics {
    /// `table`, `phase`: `encode`, `store`, `commit`.
    pub flush_seconds: HistogramVec,
    /// `table`; from the append of a batch until its rows can be queried.
    pub visibility_seconds: HistogramVec,
    /// `table`, `kind`: `flush`, `create`, `columns`, `compact`, `retain`; `outcome`: `ok`, `conflict`, `error`.
    pub commits: IntCounterVec,
    /// `table`
    pub overflow_values: IntCounterVec,
    /// `table`, `column`
    pub misfit_values: IntCounterVec,
    /// `table`, `reason`: those of
    /// [`RowChangeCounts::reasons`](thalweg_columns::rows::change_counts::RowChangeCounts::reasons).
    pub changed_values: IntCounterVec,
    /// `signal`, `reason`
    pub refused_rows: IntCounterVec,
    /// `from`: `handoff`, `log`.
    pub entries: IntCounterVec,
    pub poison_entries: IntCounter,
    /// The records in these entries, without rejected ones.
    pub poison_records: IntCounter,
    /// `source`: `log`, `file`.
    pub quarantined: IntCounterVec,
    /// `op`: `put`, `commit`, `checkpoint`; `outcome`: `ok`, `error`.
    pub store_seconds: HistogramVec,
    /// `table`; `outcome`: `ok`, `dropped`, `failed`, `skipped`.
    pub compaction_jobs: IntCounterVec,
    /// `direction`: `in`, `out`.
    pub compaction_bytes: IntCounterVec,
    /// `table`
    pub compaction_pending_bytes: IntGaugeVec,
    /// `table`, `resolution`: complete windows that are not made yet.
    pub rollup_lag_seconds: GaugeVec,
    /// Rows that no window could include.
    pub rollup_inexact: IntCounter,
    /// `table`
    pub expired_files: IntCounterVec,
    /// `table`
    pub vacuumed_files: IntCounterVec,
    tables: Arc<LakeGauges>,
}

/// The values of a table at one scrape.
#[derive(Clone, Debug, Default)]
pub struct TableGauges {
    pub table: String,
    /// By level.
    pub files: Vec<(u32, u64)>,
    pub bytes: u64,
    pub rows: u64,
    pub buffer_bytes: u64,
    pub commit_lag: Duration,
    pub promoted_columns: u64,
    /// For a table that a queue feeds: the queue's name, and its unconsumed bytes.
    pub backlog: Option<(String, u64)>,
}

/// A source of gauges.
pub trait GaugeSource: Send + Sync {
    fn gauges(&self) -> TableGauges;
}

impl LakeMetrics {
    pub fn register(metrics: &Metrics) -> LakeMetrics {
        let tables = Arc::new(LakeGauges::default());
        let told = tables.clone();
        metrics.tell(&ROWS, move |to| told.tell(to));
        let metrics = LakeMetrics {
            flush_seconds: metrics.histograms(&FLUSH_SECONDS, &SECONDS),
            visibility_seconds: metrics.histograms(&VISIBILITY_SECONDS, &SECONDS),
            commits: metrics.counters(&COMMITS),
            overflow_values: metrics.counters(&OVERFLOW_VALUES),
            misfit_values: metrics.counters(&MISFIT_VALUES),
            changed_values: metrics.counters(&CHANGED_VALUES),
            refused_rows: metrics.counters(&REFUSED_ROWS),
            entries: metrics.counters(&ENTRIES),
            poison_entries: metrics.process_counter(&POISON_ENTRIES),
            poison_records: metrics.process_counter(&POISON_RECORDS),
            quarantined: metrics.counters(&QUARANTINED),
            store_seconds: metrics.histograms(&STORE_SECONDS, &SECONDS),
            compaction_jobs: metrics.counters(&COMPACTION_JOBS),
            compaction_bytes: metrics.counters(&COMPACTION_BYTES),
            compaction_pending_bytes: metrics.gauges(&COMPACTION_PENDING_BYTES),
            rollup_lag_seconds: metrics.float_gauges(&ROLLUP_LAG_SECONDS),
            rollup_inexact: metrics.process_counter(&ROLLUP_INEXACT),
            expired_files: metrics.counters(&EXPIRED_FILES),
            vacuumed_files: metrics.counters(&VACUUMED_FILES),
            tables,
        };
        // Counters start at zero, so that they are exported before the first event.
        for (counters, label) in [
            (&metrics.entries, ["handoff", "log"]),
            (&metrics.quarantined, ["log", "file"]),
            (&metrics.compaction_bytes, ["in", "out"]),
        ] {
            for value in label {
                counters.with_label_values(&[value]);
            }
        }
        metrics
    }

    /// Adds a table to scrapes, while it exists.
    pub fn watch(&self, source: Weak<dyn GaugeSource>) {
        self.tables.sources.lock().push(source);
    }

    /// Adds a share of the process's memory to scrapes: its limit and usage in bytes. If several components use one
    /// share, their usage is summed.
    pub fn watch_share(&self, share: &'static str, limit: u64, used: impl Fn() -> u64 + Send + Sync + 'static) {
        let share = MemoryShare {
            name: share,
            limit,
            used: Box::new(used),
        };
        self.tables.shares.lock().push(share);
    }

    pub(crate) fn observe_store(&self, op: &str, ok: bool, took: Duration) {
        let outcome = if ok { "ok" } else { "error" };
        self.store_seconds
            .with_label_values(&[op, outcome])
            .observe(took.as_secs_f64());
    }
}

struct MemoryShare {
    name: &'static str,
    limit: u64,
    used: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// What is read at each scrape: values of what does not exist any more disappear.
#[derive(Default)]
struct LakeGauges {
    sources: Mutex<Vec<Weak<dyn GaugeSource>>>,
    shares: Mutex<Vec<MemoryShare>>,
}

impl LakeGauges {
    fn tell(&self, to: &mut MetricFamilies) {
        let mut shares: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for share in self.shares.lock().iter() {
            let (used, limit) = shares.entry(share.name).or_default();
            *used += (share.used)();
            *limit = share.limit;
        }
        for (share, (used, limit)) in shares {
            for (kind, bytes) in [("used", used), ("limit", limit)] {
                to.gauge(&MEMORY_BYTES, &[("kind", kind), ("share", share)], bytes as f64);
            }
        }
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        for gauges in sources.iter().filter_map(Weak::upgrade).map(|source| source.gauges()) {
            tell_table(to, &gauges);
        }
    }
}

fn tell_table(to: &mut MetricFamilies, gauges: &TableGauges) {
    let table = ("table", gauges.table.as_str());
    for (level, files) in &gauges.files {
        let level = level.to_string();
        to.gauge(&FILES, &[("level", level.as_str()), table], *files as f64);
    }
    for (doc, value) in [
        (&BYTES, gauges.bytes),
        (&ROWS, gauges.rows),
        (&BUFFER_BYTES, gauges.buffer_bytes),
        (&PROMOTED_COLUMNS, gauges.promoted_columns),
    ] {
        to.gauge(doc, &[table], value as f64);
    }
    to.gauge(&COMMIT_LAG, &[table], gauges.commit_lag.as_secs_f64());
    if let Some((queue, bytes)) = &gauges.backlog {
        to.gauge(&BACKLOG_BYTES, &[("queue", queue.as_str())], *bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct MergedTable(Mutex<Vec<(u32, u64)>>);

    impl GaugeSource for MergedTable {
        fn gauges(&self) -> TableGauges {
            TableGauges {
                table: "logs".to_owned(),
                files: self.0.lock().clone(),
                ..TableGauges::default()
            }
        }
    }

    #[test]
    fn a_level_whose_files_were_merged_is_not_counted_any_more() {
        let metrics = Metrics::default();
        let lake = LakeMetrics::register(&metrics);
        let table = Arc::new(MergedTable(Mutex::new(vec![(0, 8), (1, 2)])));
        let source: Arc<dyn GaugeSource> = table.clone();
        lake.watch(Arc::downgrade(&source));
        assert_eq!(metrics.total("thalweg_lake_files"), 10.0);
        *table.0.lock() = vec![(1, 3)];
        assert_eq!(metrics.total("thalweg_lake_files"), 3.0);
    }
}
