//! The Prometheus metrics of the lake, prefix `thalweg_lake_`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, proto,
};

const SECONDS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

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
    pub fn register(registry: &Registry) -> prometheus::Result<LakeMetrics> {
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = LakeMetrics {
            flush_seconds: histogram(
                "thalweg_lake_flush_seconds",
                "Duration of a flush by phase.",
                &["table", "phase"],
            )?,
            visibility_seconds: histogram(
                "thalweg_lake_visibility_seconds",
                "Time from the arrival of a batch until its rows can be queried.",
                &["table"],
            )?,
            commits: counter(
                "thalweg_lake_commits_total",
                "Delta commit attempts.",
                &["table", "kind", "outcome"],
            )?,
            overflow_values: counter(
                "thalweg_lake_overflow_values_total",
                "Attribute values stored in overflow maps, because their attribute has no column.",
                &["table"],
            )?,
            changed_values: counter(
                "thalweg_lake_changed_values_total",
                "Values that could not be stored as sent, by reason.",
                &["table", "reason"],
            )?,
            refused_rows: counter(
                "thalweg_lake_rejected_records_total",
                "Messages that were refused because they can never become a row.",
                &["signal", "reason"],
            )?,
            entries: counter(
                "thalweg_lake_entries_total",
                "Log entries that became rows, by whether they were handed over in memory or read from the log.",
                &["from"],
            )?,
            poison_entries: IntCounter::new(
                "thalweg_lake_poison_entries_total",
                "Log entries that could not be decoded and were quarantined.",
            )?,
            poison_records: IntCounter::new(
                "thalweg_lake_poison_records_total",
                "Records in log entries that could not be decoded, without rejected records.",
            )?,
            quarantined: counter(
                "thalweg_lake_quarantined_total",
                "Quarantined log entries and lines of files, which could not be read.",
                &["source"],
            )?,
            store_seconds: histogram(
                "thalweg_lake_store_seconds",
                "Duration of operations on the store.",
                &["op", "outcome"],
            )?,
            compaction_jobs: counter(
                "thalweg_lake_compaction_jobs_total",
                "Compaction jobs, by outcome.",
                &["table", "outcome"],
            )?,
            compaction_bytes: counter(
                "thalweg_lake_compaction_bytes_total",
                "Bytes of files that were merged, and of the resulting files.",
                &["direction"],
            )?,
            compaction_pending_bytes: IntGaugeVec::new(
                Opts::new(
                    "thalweg_lake_compaction_pending_bytes",
                    "Bytes of files that would be merged now.",
                ),
                &["table"],
            )?,
            rollup_lag_seconds: GaugeVec::new(
                Opts::new(
                    "thalweg_lake_rollup_lag_seconds",
                    "Time from the end of the last window that was made to the end of the last complete one.",
                ),
                &["table", "resolution"],
            )?,
            rollup_inexact: IntCounter::new(
                "thalweg_lake_rollup_inexact_total",
                "Rows that no rollup window could include.",
            )?,
            expired_files: counter(
                "thalweg_lake_expired_files_total",
                "Files removed from tables because their rows exceeded the retention.",
                &["table"],
            )?,
            vacuumed_files: counter(
                "thalweg_lake_vacuumed_files_total",
                "Files deleted by the vacuum.",
                &["table"],
            )?,
            tables: Arc::new(LakeGauges::new()?),
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
        registry.register(Box::new(metrics.rollup_lag_seconds.clone()))?;
        registry.register(Box::new(metrics.rollup_inexact.clone()))?;
        registry.register(Box::new(metrics.expired_files.clone()))?;
        registry.register(Box::new(metrics.vacuumed_files.clone()))?;
        registry.register(Box::new(metrics.compaction_jobs.clone()))?;
        registry.register(Box::new(metrics.compaction_bytes.clone()))?;
        registry.register(Box::new(metrics.compaction_pending_bytes.clone()))?;
        registry.register(Box::new(metrics.flush_seconds.clone()))?;
        registry.register(Box::new(metrics.visibility_seconds.clone()))?;
        registry.register(Box::new(metrics.commits.clone()))?;
        registry.register(Box::new(metrics.overflow_values.clone()))?;
        registry.register(Box::new(metrics.changed_values.clone()))?;
        registry.register(Box::new(metrics.refused_rows.clone()))?;
        registry.register(Box::new(metrics.entries.clone()))?;
        registry.register(Box::new(metrics.poison_entries.clone()))?;
        registry.register(Box::new(metrics.poison_records.clone()))?;
        registry.register(Box::new(metrics.quarantined.clone()))?;
        registry.register(Box::new(metrics.store_seconds.clone()))?;
        registry.register(Box::new(LakeGaugeCollector(metrics.tables.clone())))?;
        Ok(metrics)
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

struct LakeGauges {
    sources: Mutex<Vec<Weak<dyn GaugeSource>>>,
    shares: Mutex<Vec<MemoryShare>>,
    memory_bytes: IntGaugeVec,
    files: IntGaugeVec,
    bytes: IntGaugeVec,
    rows: IntGaugeVec,
    buffer_bytes: IntGaugeVec,
    backlog_bytes: IntGaugeVec,
    promoted_columns: IntGaugeVec,
    commit_lag: GaugeVec,
}

impl LakeGauges {
    fn new() -> prometheus::Result<LakeGauges> {
        let gauge = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        Ok(LakeGauges {
            sources: Mutex::default(),
            shares: Mutex::default(),
            memory_bytes: gauge(
                "thalweg_lake_memory_bytes",
                "Shares of the process's memory: what is used of each, and its limit.",
                &["share", "kind"],
            )?,
            files: gauge("thalweg_lake_files", "Live files.", &["table", "level"])?,
            bytes: gauge("thalweg_lake_bytes", "Bytes of live files.", &["table"])?,
            rows: gauge("thalweg_lake_rows", "Committed rows.", &["table"])?,
            buffer_bytes: gauge(
                "thalweg_lake_buffer_bytes",
                "Bytes of memory for rows that are not committed yet.",
                &["table"],
            )?,
            backlog_bytes: gauge(
                "thalweg_lake_backlog_bytes",
                "Bytes in the log that have not been consumed yet.",
                &["queue"],
            )?,
            promoted_columns: gauge("thalweg_lake_promoted_columns", "Attributes with a column.", &["table"])?,
            commit_lag: GaugeVec::new(
                Opts::new(
                    "thalweg_lake_commit_lag_seconds",
                    "Age of the oldest row that is not committed yet.",
                ),
                &["table"],
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 8] {
        [
            &self.files,
            &self.bytes,
            &self.rows,
            &self.buffer_bytes,
            &self.backlog_bytes,
            &self.promoted_columns,
            &self.commit_lag,
            &self.memory_bytes,
        ]
    }

    fn look(&self) {
        let int = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut shares: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for share in self.shares.lock().iter() {
            let (used, limit) = shares.entry(share.name).or_default();
            *used += (share.used)();
            *limit = share.limit;
        }
        for (name, (used, limit)) in shares {
            for (kind, bytes) in [("used", used), ("limit", limit)] {
                self.memory_bytes.with_label_values(&[name, kind]).set(int(bytes));
            }
        }
        let mut sources = self.sources.lock();
        sources.retain(|source| source.strong_count() > 0);
        for gauges in sources.iter().filter_map(Weak::upgrade).map(|source| source.gauges()) {
            let table = gauges.table.as_str();
            for (level, files) in &gauges.files {
                self.files
                    .with_label_values(&[table, &level.to_string()])
                    .set(int(*files));
            }
            self.bytes.with_label_values(&[table]).set(int(gauges.bytes));
            self.rows.with_label_values(&[table]).set(int(gauges.rows));
            self.buffer_bytes
                .with_label_values(&[table])
                .set(int(gauges.buffer_bytes));
            if let Some((queue, bytes)) = &gauges.backlog {
                self.backlog_bytes.with_label_values(&[queue]).set(int(*bytes));
            }
            self.promoted_columns
                .with_label_values(&[table])
                .set(int(gauges.promoted_columns));
            self.commit_lag
                .with_label_values(&[table])
                .set(gauges.commit_lag.as_secs_f64());
        }
    }
}

struct LakeGaugeCollector(Arc<LakeGauges>);

impl Collector for LakeGaugeCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.all().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        self.0.look();
        self.0.all().into_iter().flat_map(Collector::collect).collect()
    }
}
