//! The `lake` output and the one writer per table that all flows of the process share.
//!
//! The writer is opened by the first output that connects; a write is acknowledged when the Delta commit that holds it is
//! durable. Order is fixed when `write` is called, because the writer takes batches in the order of the calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::RwLock;
use thalweg_config::{ComponentNode, Config, Diagnostics, Fields, Pos};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext, Registry,
    Rejection, WriteError,
};
use thalweg_lake::attributes::Promotion;
use thalweg_lake::compaction::CompactionOptions;
use thalweg_lake::rollup::job::RollupOptions;
use thalweg_lake::store::SyncedStore;
use thalweg_lake::upkeep::UpkeepOptions;
use thalweg_lake::{AppendError, LakeMetrics, TagsWriter, WriterOptions};
use thalweg_record::{Message, Ticks};
use thalweg_telemetry::{Metrics, StatusSource, TableStatus};
use tokio::sync::OnceCell;

/// Writes of one flow that may wait for their commit at a time, as long as their bytes leave room for more: enough to fill
/// a commit.
const WRITES_IN_FLIGHT: usize = 64;

/// No log stands in front of the writer, so acknowledgements wait for its commits: they do not come later than this.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(2);
const FLUSH_INTERVAL_MIN: Duration = Duration::from_millis(10);

/// With less there is no room for two generations and the files made of one.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;

/// The tables of the process.
#[derive(Default)]
pub(crate) struct Lake {
    setup: RwLock<Option<Setup>>,
    tags: OnceCell<TagsWriter>,
}

#[derive(Clone)]
struct Setup {
    folder: PathBuf,
    metrics: LakeMetrics,
    options: WriterOptions,
}

impl Lake {
    /// Says where and how tables are written; opens nothing.
    pub fn start(self: &Arc<Lake>, config: &Config, options: WriterOptions, metrics: &Metrics) -> Result<LakeMetrics> {
        let metrics = LakeMetrics::register(metrics.registry())?;
        let limit = options.memory_bytes as u64;
        let lake = Arc::downgrade(self);
        metrics.watch_share("lake.memory", limit, move || {
            let lake = lake.upgrade();
            lake.and_then(|lake| lake.tags.get().map(TagsWriter::buffer_bytes))
                .unwrap_or(0)
        });
        *self.setup.write() = Some(Setup {
            folder: thalweg_lake::folder(&config.data_dir),
            metrics: metrics.clone(),
            options,
        });
        Ok(metrics)
    }

    async fn writer(&self) -> Result<&TagsWriter, OpenError> {
        let setup = self.setup.read().clone();
        let setup = setup.ok_or_else(|| OpenError::Permanent("the lake has not been started".to_owned()))?;
        let open = || TagsWriter::open(setup.folder, SyncedStore::new(), setup.metrics, setup.options);
        let writer = self.tags.get_or_try_init(open).await;
        writer.map_err(|error| match error.is_permanent() {
            true => OpenError::Permanent(error.to_string()),
            false => OpenError::Temporary(error.to_string()),
        })
    }

    /// Commits what was appended. What is not committed in time is given up.
    pub async fn stop(&self, timeout: Duration) {
        if let Some(writer) = self.tags.get()
            && tokio::time::timeout(timeout, writer.close()).await.is_err()
        {
            writer.abandon();
        }
    }
}

impl StatusSource for Lake {
    fn tables(&self) -> Vec<TableStatus> {
        self.tags.get().map(StatusSource::tables).unwrap_or_default()
    }

    fn not_ready(&self) -> Vec<String> {
        self.tags.get().map(StatusSource::not_ready).unwrap_or_default()
    }
}

/// The section `lake`.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub options: WriterOptions,
    /// Of [`OTLP_TABLES`].
    pub promotions: [Promotion; 3],
    /// `lake.memory`, if the file gives it; the options' own is set when the memory is divided.
    pub memory: Option<(u64, Pos)>,
    /// How old rows may be that came through the log when they are committed.
    pub log_flush_interval: Duration,
    pub upkeep: UpkeepOptions,
    /// `lake.compaction.memory`, if the file gives it.
    pub compaction_memory: Option<(u64, Pos)>,
}

/// Of rollups, as settings name them.
const RESOLUTIONS: [&str; 5] = ["10s", "1m", "5m", "20m", "1h"];

/// Fields of later versions: what this one does in their place.
const NOT_THERE: [(&str, &str); 3] = [
    ("url", "keeps the lake in data_dir"),
    ("publish", "publishes Delta tables only"),
    ("events", "has no table of events"),
];

/// Reads the section `lake`; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> Section {
    let mut section = Section {
        options: WriterOptions::default(),
        promotions: Default::default(),
        memory: None,
        log_flush_interval: LOG_FLUSH_INTERVAL,
        upkeep: UpkeepOptions::default(),
        compaction_memory: None,
    };
    let Some(node) = &config.lake else { return section };
    let options = &mut section.options;
    let mut fields = Fields::new(node, diagnostics);
    let memory = fields.opt_size("memory");
    section.memory = memory.map(|bytes| (bytes, fields.pos_of("memory")));
    section.log_flush_interval = read_flush(fields.fields("flush"), options);
    // There is nothing new more often.
    section.upkeep.look_every = section
        .log_flush_interval
        .clamp(LOOK_EVERY_MIN, section.upkeep.look_every);
    section.upkeep.bytes_per_second = fields.size("io_bytes_per_second", "256MiB");
    section.compaction_memory = read_compaction(fields.fields("compaction"), &mut section.upkeep.compaction);
    let mut retention = fields.fields("retention");
    for name in OTLP_TABLES {
        let days = retention.int_in(name, 0, 0..=DAYS_MAX);
        section.upkeep.retention.push((name, u32::try_from(days).unwrap_or(0)));
    }
    let mut rollup = retention.fields("metrics_rollup");
    for (name, days) in RESOLUTIONS.into_iter().zip(&mut section.upkeep.rollup_retention) {
        *days = u32::try_from(rollup.int_in(name, 0, 0..=DAYS_MAX)).unwrap_or(0);
    }
    rollup.finish();
    not_there(&mut retention, "tags", "keeps all tags");
    retention.finish();
    read_rollup(fields.fields("rollup"), &mut section.upkeep.rollup);
    let mut vacuum = fields.fields("vacuum");
    section.upkeep.vacuum_retain = vacuum.duration("retain", "24h");
    if section.upkeep.vacuum_retain < VACUUM_RETAIN_MIN {
        vacuum.error(
            "retain",
            "expected at least 1m: queries and other readers may use older versions",
        );
    }
    vacuum.finish();
    let mut parquet = fields.fields("parquet");
    let row_group = parquet.size("row_group_bytes", "32MiB");
    if !(ROW_GROUP_BYTES_MIN..=ROW_GROUP_BYTES_MAX).contains(&row_group) {
        parquet.error("row_group_bytes", "expected 1MiB to 1GiB");
    }
    options.files.row_group_bytes = usize::try_from(row_group).unwrap_or(options.files.row_group_bytes);
    not_there(&mut parquet, "encodings", "writes the encodings that every reader has");
    parquet.finish();
    if let Some(promotion) = promotion(fields.fields("tags")) {
        options.promotion = promotion;
    }
    for (name, of) in OTLP_TABLES.into_iter().zip(&mut section.promotions) {
        let mut table = fields.fields(name);
        if name == "logs" {
            not_there(&mut table, "sort", "orders rows by service and time");
        }
        *of = promotion(table).unwrap_or_default();
    }
    for (name, instead) in NOT_THERE {
        not_there(&mut fields, name, instead);
    }
    fields.finish();
    section
}

/// The tables that receivers of OpenTelemetry data feed.
pub(crate) const OTLP_TABLES: [&str; 3] = ["logs", "metrics", "traces"];

/// Which attributes of a table have columns.
fn promotion(mut table: Fields<'_>) -> Option<Promotion> {
    let promoted = usize::try_from(table.int_in("max_promoted", 256, 0..=10_000)).unwrap_or(256);
    let (promote, never) = (table.string_list("promote"), table.string_list("never_promote"));
    let promotion = Promotion::new(promoted, promote, &never);
    if let Err(error) = &promotion {
        table.error("never_promote", error);
    }
    not_there(&mut table, "types", "keeps attributes as text");
    not_there(&mut table, "bloom", "writes no Bloom filters");
    table.finish();
    promotion.ok()
}

/// Rows are on disk in the log, and seen by queries, long before.
const LOG_FLUSH_INTERVAL: Duration = Duration::from_secs(60);
const TARGET_MIN: u64 = 1 << 20;
const TARGET_MAX: u64 = 4 << 30;
/// Two open files, and a row group.
pub(crate) const COMPACTION_MEMORY_MIN: u64 = 16 << 20;
const LOOK_EVERY_MIN: Duration = Duration::from_millis(100);
const DAYS_MAX: i64 = 36_500;
const VACUUM_RETAIN_MIN: Duration = Duration::from_secs(60);
const ROW_GROUP_BYTES_MIN: u64 = 1 << 20;
const ROW_GROUP_BYTES_MAX: u64 = 1 << 30;

fn read_compaction(mut fields: Fields<'_>, options: &mut CompactionOptions) -> Option<(u64, Pos)> {
    options.target = fields.size("target", "256MiB");
    if !(TARGET_MIN..=TARGET_MAX).contains(&options.target) {
        fields.error("target", "expected 1MiB to 4GiB");
    }
    options.seal_after = fields.duration("seal_after", "2h");
    options.zstd_level = i32::try_from(fields.int_in("zstd", 3, 1..=22)).unwrap_or(3);
    let memory = fields.opt_size("memory").map(|bytes| (bytes, fields.pos_of("memory")));
    fields.finish();
    memory
}

fn read_rollup(mut fields: Fields<'_>, options: &mut RollupOptions) {
    let mut lateness = fields.fields("lateness");
    let defaults = ["30s", "60s", "120s", "300s", "300s"];
    for ((name, default), late) in RESOLUTIONS.into_iter().zip(defaults).zip(&mut options.lateness) {
        *late = lateness.duration(name, default);
    }
    lateness.finish();
    options.late_every = fields.duration("late_interval", "5m");
    fields.finish();
}

/// Returns the interval of tables that the log feeds.
fn read_flush(mut flush: Fields<'_>, options: &mut WriterOptions) -> Duration {
    options.flush_bytes = usize::try_from(flush.size("bytes", "64MiB")).unwrap_or(options.flush_bytes);
    let interval = flush.duration("interval", "60s");
    if interval < FLUSH_INTERVAL_MIN {
        flush.error("interval", "expected at least 10ms");
    }
    let interval = interval.max(FLUSH_INTERVAL_MIN);
    // No log stands in front of the table of tags.
    options.flush_interval = interval.min(FLUSH_INTERVAL_MAX);
    options.files.zstd_level = i32::try_from(flush.int_in("zstd", 1, 1..=22)).unwrap_or(1);
    flush.finish();
    interval
}

/// An error for a field that the format has and this version does not.
pub(crate) fn not_there(fields: &mut Fields<'_>, name: &str, instead: &str) {
    if fields.node(name).is_some() {
        fields.error(name, format!("not in this version, which {instead}; remove it"));
    }
}

pub(crate) fn register(registry: &mut Registry, lake: Arc<Lake>) {
    registry.output("lake", move |node, context| parse(node, context, &lake));
}

fn parse(node: &ComponentNode, context: &mut ParseContext<'_>, lake: &Arc<Lake>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let _only_one = fields.one_of("table", &["tags"], "tags");
    fields.finish();
    Some(Arc::new(Spec(lake.clone())))
}

struct Spec(Arc<Lake>);

impl OutputSpec for Spec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        Ok(Arc::new(LakeOutput {
            lake: self.0.clone(),
            source: context.source.clone(),
        }))
    }
}

struct LakeOutput {
    lake: Arc<Lake>,
    /// The column `source`.
    source: Arc<str>,
}

impl Output for LakeOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            self.lake.writer().await?;
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(writer) = self.lake.tags.get() else {
            return Box::pin(std::future::ready(Err(WriteError::Temporary(
                "the table tags is not open yet".to_owned(),
            ))));
        };
        let append = writer.append(&self.source, messages, Ticks::now());
        Box::pin(async move { append.await.map_err(write_error) })
    }

    /// One, once the messages that wait for their commit take their part of the writer's memory: then they wait in the
    /// flow's own queue, whose bytes are limited, too.
    fn max_in_flight(&self) -> usize {
        let full = self.lake.tags.get().is_some_and(|writer| !writer.has_room());
        if full { 1 } else { WRITES_IN_FLIGHT }
    }

    fn hurry(&self) {
        if let Some(writer) = self.lake.tags.get() {
            writer.hurry();
        }
    }
}

fn write_error(error: AppendError) -> WriteError {
    match error {
        AppendError::Refused(refused) => WriteError::Some(
            refused
                .into_iter()
                .map(|refused| Rejection::permanent(refused.index, refused.refusal.reason, refused.refusal.error))
                .collect(),
        ),
        other => WriteError::Temporary(other.to_string()),
    }
}
