//! The `lake` output and the one writer per table that all flows of the process share.
//!
//! The writer is opened by the first output that connects; a write is acknowledged when the Delta commit that holds it is
//! durable. Order is fixed when `write` is called, because the writer takes batches in the order of the calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use thalweg_config::{ComponentNode, Config, Diagnostics, Fields};
use thalweg_flow::{
    BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext, Registry, Rejection,
    WriteError,
};
use thalweg_lake::attributes::Promotion;
use thalweg_lake::store::SyncedStore;
use thalweg_lake::{AppendError, LakeMetrics, TagsWriter, WriterOptions};
use thalweg_record::{Message, Ticks};
use thalweg_telemetry::{Metrics, StatusSource, TableStatus};
use tokio::sync::OnceCell;

/// Writes of one flow that may wait for their commit at a time: enough to fill a commit, few enough to stay in memory.
const WRITES_IN_FLIGHT: usize = 64;

/// No log stands in front of the writer, so acknowledgements wait for its commits: they do not come later than this.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(2);

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
    pub fn start(&self, config: &Config, metrics: &Metrics) -> anyhow::Result<()> {
        let metrics = LakeMetrics::register(metrics.registry())?;
        let options = options(config, &Diagnostics::new(""));
        *self.setup.write() = Some(Setup {
            folder: thalweg_lake::folder(&config.data_dir),
            metrics,
            options,
        });
        Ok(())
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

/// Reads the section `lake`; mistakes go to the diagnostics.
pub(crate) fn options(config: &Config, diagnostics: &Diagnostics) -> WriterOptions {
    let mut options = WriterOptions::default();
    // 30 % of the process's memory, at most 768 MiB.
    let share = (config.memory.limit / 10 * 3).min(768 << 20);
    options.memory_bytes = usize::try_from(share).unwrap_or(options.memory_bytes);
    let Some(node) = &config.lake else { return options };
    let mut fields = Fields::new(node, diagnostics);
    if let Some(bytes) = fields.opt_size("memory") {
        options.memory_bytes = usize::try_from(bytes).unwrap_or(options.memory_bytes);
    }
    let mut flush = fields.fields("flush");
    options.flush_bytes = usize::try_from(flush.size("bytes", "64MiB")).unwrap_or(options.flush_bytes);
    options.flush_interval = flush
        .duration("interval", "2s")
        .clamp(Duration::from_millis(10), FLUSH_INTERVAL_MAX);
    flush.finish();
    let mut tags = fields.fields("tags");
    let promoted = usize::try_from(tags.int_in("max_promoted", 256, 0..=10_000)).unwrap_or(256);
    let (promote, never) = (tags.string_list("promote"), tags.string_list("never_promote"));
    match Promotion::new(promoted, promote, &never) {
        Ok(promotion) => options.promotion = promotion,
        Err(error) => tags.error("never_promote", error),
    }
    tags.finish();
    fields.finish();
    options
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

    fn max_in_flight(&self) -> usize {
        WRITES_IN_FLIGHT
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
