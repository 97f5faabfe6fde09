//! Runs queries. Concurrency, duration and total memory are limited, and query threads have a lower priority than the
//! threads that ingest data.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::{ParamValues, TableReference};
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, MemoryReservation, TrackConsumersPool};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::{SessionState, SessionStateBuilder, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::logical_expr::planner::ExprPlanner;
use datafusion::physical_plan::metrics::MetricValue;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement;
use futures::{FutureExt as _, Stream, StreamExt as _};
use object_store::ObjectStore;
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use thalweg_columns::tables::{self, TableSpec};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_kit::{WorkFolder, clock};
use thalweg_lake::entry::EntryPosition;
use thalweg_lake::memtable_view::MemtableReader;

use crate::bounded::text_length::{self, SizedBatch};
use crate::bounded::{Budget, conversion, planners, rewrite};
use crate::catalog::{CATALOG, LakeCatalog, QueryTables, SCHEMA, STORE, TableRegistry};
use crate::error::QueryError;
use crate::guard::{QueryCancellation, guard};
use crate::memory_watchdog::{MemoryWatchdog, WatchdogRegistration};
use crate::metrics::{QueryMetrics, ScanCounts};
use crate::{arenas, exact, functions, json, repeated_names, statement, versions, wait_for};

/// Result batches that wait for the reader.
const BATCHES_AHEAD: usize = 2;
/// Planning recurses into nested expressions.
const STACK_BYTES: usize = 32 << 20;
const BLOCKING_THREADS_MAX: usize = 32;
/// A row of an answer may take this fraction of `query.memory` as text.
const ROW_PART: usize = 4;
/// Sorts that a typical query runs at a time.
const SORTS_PER_QUERY: usize = 4;
/// The expressions of a batch may take this fraction of the query's memory. Each expression counts with this many bytes
/// per row, each constant with its size per row.
const BATCH_PART: usize = 16;
const EXPRESSION_BYTES: usize = 16;
const BATCH_ROWS_MIN: usize = 8;
/// Memory consumers that an error names.
const CONSUMERS_NAMED: usize = 5;

/// Limits of queries (`query.*`).
#[derive(Clone, Debug)]
pub struct QueryOptions {
    pub timeout: Duration,
    pub memory_bytes: usize,
    pub concurrency: usize,
    /// Queries that may wait in the queue.
    pub queue: usize,
    /// Cache of file footers.
    pub cache_bytes: usize,
    pub spill_bytes: u64,
}

impl Default for QueryOptions {
    fn default() -> QueryOptions {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        QueryOptions {
            timeout: Duration::from_secs(60),
            memory_bytes: 1 << 30,
            concurrency: 2 * cores,
            queue: 64,
            cache_bytes: 128 << 20,
            spill_bytes: 64 << 30,
        }
    }
}

/// A query to run.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub sql: String,
    pub params: Option<ParamValues>,
    /// The client, for metrics: `sql`, `cli`.
    pub api: &'static str,
    /// Log positions that the query has to see.
    pub wait_for: Vec<EntryPosition>,
}

impl Query {
    pub fn new(sql: impl Into<String>) -> Query {
        Query {
            sql: sql.into(),
            params: None,
            api: "sql",
            wait_for: Vec::new(),
        }
    }

    /// Makes the query wait until it sees a log position, or several separated by commas.
    pub fn waiting_for(self, positions: &str) -> Result<Query, QueryError> {
        Ok(Query {
            wait_for: wait_for::positions(positions)?,
            ..self
        })
    }
}

/// Queries one lake. Clones share limits and caches.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<EngineInner>,
}

struct EngineInner {
    tables: Arc<TableRegistry>,
    /// The local lake folder, in which a spill folder may be created.
    local: PathBuf,
    /// The session without a spill folder.
    in_memory: SessionState,
    /// The session with a spill folder, created once the lake folder exists.
    spilling: OnceLock<SpillSession>,
    making_spill_folder: parking_lot::Mutex<()>,
    options: QueryOptions,
    overflow: MemoryWatchdog,
    permits: Arc<Semaphore>,
    waiting: AtomicUsize,
    metrics: QueryMetrics,
    runtime: Option<Runtime>,
}

impl Drop for EngineInner {
    fn drop(&mut self) {
        self.overflow.close();
        // A plain drop would block, which async callers must not do.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl EngineInner {
    fn state(&self) -> &SessionState {
        if let Some(spilling) = self.spilling.get() {
            return &spilling.state;
        }
        let _one_at_a_time = self.making_spill_folder.lock();
        if self.spilling.get().is_none() && self.local.is_dir() {
            match SpillSession::new(&self.in_memory, &self.local.join("_thalweg/spill"), &self.options) {
                Ok(spilling) => drop(self.spilling.set(spilling)),
                Err(error) => tracing::debug!("queries run in memory alone: {error}"),
            }
        }
        // Queries run in memory if no spill folder can be created.
        self.spilling.get().map_or(&self.in_memory, |spilling| &spilling.state)
    }
}

impl Engine {
    /// Opens the lake of a data folder for reading. The lake need not exist yet.
    pub fn open(data_dir: &Path, options: QueryOptions, metrics: QueryMetrics) -> Result<Engine, QueryError> {
        let site = LakeStorage::folder(&thalweg_lake::folder(data_dir), SyncedStore::new());
        Engine::open_at(site, data_dir, options, metrics)
    }

    /// Like [`Engine::open`] with a lake that may be elsewhere. Only spill files go to the data folder, if it exists.
    pub fn open_at(
        site: LakeStorage,
        data_dir: &Path,
        options: QueryOptions,
        metrics: QueryMetrics,
    ) -> Result<Engine, QueryError> {
        let data_dir = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let local = thalweg_lake::folder(&data_dir);
        let broken = |what: &str, error: String| QueryError::unavailable(format!("{what}: {error}"));
        let environment =
            environment(&site, &options).map_err(|e| broken("queries cannot be set up", e.to_string()))?;
        let mut in_memory = SessionStateBuilder::new()
            .with_config(session_config(&options))
            .with_runtime_env(environment)
            .with_default_features();
        let mut scalar_functions = in_memory.scalar_functions().clone().unwrap_or_default();
        scalar_functions.extend(crate::templates::functions());
        scalar_functions.push(crate::sketches::quantile_function());
        scalar_functions.push(crate::attribute_text::function());
        scalar_functions.extend(json::functions::all());
        let aggregate_functions = in_memory.aggregate_functions().clone().unwrap_or_default();
        let mut aggregate_functions = exact::aggregate_functions(aggregate_functions)
            .map_err(|e| broken("queries cannot be set up", e.to_string()))?;
        aggregate_functions.push(crate::sketches::merge_function());
        let mut planners: Vec<Arc<dyn ExprPlanner>> = vec![Arc::new(json::operators::JsonOperators)];
        planners.extend(in_memory.expr_planners().take().unwrap_or_default());
        let in_memory = in_memory
            .with_expr_planners(planners::bounded(planners))
            .with_scalar_functions(rewrite::scalar_functions(scalar_functions))
            // Lambdas cannot be bounded.
            .with_higher_order_functions(Vec::new())
            .with_aggregate_functions(aggregate_functions)
            .with_analyzer_rules(exact::analyzer_rules())
            .with_physical_optimizer_rules(exact::physical_rules())
            .build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .max_blocking_threads(BLOCKING_THREADS_MAX)
            .enable_all()
            .on_thread_start(|| {
                give_way();
                arenas::enter();
            })
            .build()
            .map_err(|e| broken("threads for queries cannot be started", e.to_string()))?;
        let overflow = MemoryWatchdog::new(options.memory_bytes, options.cache_bytes)
            .map_err(|e| broken("a thread for the memory of queries cannot be started", e.to_string()))?;
        let inner = EngineInner {
            overflow,
            tables: Arc::new(TableRegistry::new(site, metrics.clone())),
            local,
            in_memory,
            spilling: OnceLock::new(),
            making_spill_folder: parking_lot::Mutex::new(()),
            permits: Arc::new(Semaphore::new(options.concurrency.max(1))),
            waiting: AtomicUsize::new(0),
            options,
            metrics,
            runtime: Some(runtime),
        };
        Ok(Engine { inner: Arc::new(inner) })
    }

    /// Makes uncommitted rows of `live` visible to queries.
    pub fn set_live(&self, live: Arc<dyn MemtableReader>) {
        self.inner.tables.set_live(live);
    }

    /// Bytes reserved by running queries, out of [`QueryOptions::memory_bytes`].
    pub fn memory_used(&self) -> usize {
        self.inner.in_memory.runtime_env().memory_pool.reserved()
    }

    /// Bytes of cached file footers, out of [`QueryOptions::cache_bytes`].
    pub fn cache_used(&self) -> usize {
        let cache = self
            .inner
            .in_memory
            .runtime_env()
            .cache_manager
            .get_file_metadata_cache();
        cache.list_entries().values().map(|entry| entry.size_bytes).sum()
    }

    /// Runs SQL. Returns once the columns are known; rows follow while the answer is read. Dropping the future or the
    /// answer cancels the query.
    pub async fn execute(&self, sql: &str) -> Result<QueryStream, QueryError> {
        self.run(Query::new(sql)).await
    }

    pub async fn run(&self, query: Query) -> Result<QueryStream, QueryError> {
        let start = clock::now();
        let waited = self.inner.tables.wait_for(&query.wait_for).await;
        let api = if query.api.is_empty() { "sql" } else { query.api };
        let watch = Arc::new(QueryCancellation::new(self.inner.options.timeout));
        let mut counted = OutcomeRecorder {
            metrics: self.inner.metrics.clone(),
            api,
            start,
            watch: watch.clone(),
            done: false,
        };
        if let Err(error) = waited {
            counted.finish(error.code());
            return Err(error);
        }
        let permit = match self.admit(&watch).await {
            Ok(permit) => permit,
            Err(error) => {
                counted.finish(error.code());
                return Err(error);
            }
        };
        let (schema_sender, schema) = oneshot::channel();
        let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let task = QueryTask {
            inner: self.inner.clone(),
            counted,
            _watched: self.inner.overflow.enter(&watch),
            watch: watch.clone(),
            _permit: permit,
        };
        let Some(runtime) = &self.inner.runtime else {
            return Err(QueryError::unavailable("the query engine has shut down"));
        };
        let running = QueryHandle {
            task: runtime.spawn(task.run(query, schema_sender, sender)),
            watch: watch.clone(),
        };
        // The timeout runs on this thread, because query threads may be too busy to check it.
        match tokio::time::timeout_at(watch.deadline().into(), schema).await {
            Err(_) => Err(watch.expired()),
            Ok(Ok(Ok(schema))) => Ok(QueryStream {
                schema,
                batches,
                reading: None,
                deadline: Some(Box::pin(tokio::time::sleep_until(watch.deadline().into()))),
                running,
            }),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(QueryError::execute("the query ended without an answer; this is a bug")),
        }
    }

    /// Waits for a permit to run.
    async fn admit(&self, watch: &QueryCancellation) -> Result<OwnedSemaphorePermit, QueryError> {
        let inner = &self.inner;
        if let Ok(permit) = inner.permits.clone().try_acquire_owned() {
            return Ok(permit);
        }
        let _waiting = QueuedQuery::enter(inner)?;
        match tokio::time::timeout_at(watch.deadline().into(), inner.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(QueryError::unavailable("the query engine has shut down")),
            Err(_) => Err(watch.expired()),
        }
    }
}

/// A query in the queue. It is counted until it is dropped.
struct QueuedQuery<'a>(&'a EngineInner);

impl<'a> QueuedQuery<'a> {
    fn enter(inner: &'a EngineInner) -> Result<QueuedQuery<'a>, QueryError> {
        let before = inner.waiting.fetch_add(1, Ordering::AcqRel);
        inner.metrics.queued.inc();
        let waiting = QueuedQuery(inner);
        if before >= inner.options.queue {
            return Err(QueryError::busy(before));
        }
        Ok(waiting)
    }
}

impl Drop for QueuedQuery<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
        self.0.metrics.queued.dec();
    }
}

/// The rows of a query while it runs.
pub struct QueryStream {
    pub schema: SchemaRef,
    batches: mpsc::Receiver<Result<ReservedBatch, QueryError>>,
    /// Memory for the batch that was returned last.
    reading: Option<MemoryReservation>,
    /// `None` once it has passed.
    deadline: Option<Pin<Box<tokio::time::Sleep>>>,
    running: QueryHandle,
}

impl Stream for QueryStream {
    type Item = Result<RecordBatch, QueryError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(deadline) = &mut self.deadline else {
            return Poll::Ready(None);
        };
        if deadline.as_mut().poll(context).is_ready() {
            self.deadline = None;
            self.running.end();
            return Poll::Ready(Some(Err(self.running.watch.expired())));
        }
        self.reading = None;
        self.batches.poll_recv(context).map(|next| {
            let sent = next?;
            Some(sent.map(|sent| {
                self.reading = sent.taken;
                sent.rows
            }))
        })
    }
}

/// A batch on its way to the reader.
struct ReservedBatch {
    rows: RecordBatch,
    /// Memory to format the batch, if it is long.
    taken: Option<MemoryReservation>,
}

/// Cancels the query when it is dropped.
struct QueryHandle {
    task: tokio::task::JoinHandle<()>,
    watch: Arc<QueryCancellation>,
}

impl QueryHandle {
    fn end(&self) {
        self.watch.leave();
        self.task.abort();
    }
}

impl Drop for QueryHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Counts each query once, however it ends, also if it is cancelled and none of its code runs any more.
struct OutcomeRecorder {
    metrics: QueryMetrics,
    api: &'static str,
    start: Instant,
    watch: Arc<QueryCancellation>,
    done: bool,
}

impl OutcomeRecorder {
    fn finish(&mut self, outcome: &str) {
        if !std::mem::replace(&mut self.done, true) {
            self.metrics.finished(self.api, outcome, self.start.elapsed());
        }
    }
}

impl Drop for OutcomeRecorder {
    fn drop(&mut self) {
        let outcome = self.watch.left();
        self.finish(outcome.code());
    }
}

/// A running query.
struct QueryTask {
    inner: Arc<EngineInner>,
    counted: OutcomeRecorder,
    watch: Arc<QueryCancellation>,
    _watched: WatchdogRegistration,
    _permit: OwnedSemaphorePermit,
}

struct PlannedQuery {
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    budget: Budget,
}

type SchemaSender = oneshot::Sender<Result<SchemaRef, QueryError>>;

impl QueryTask {
    async fn run(
        mut self,
        query: Query,
        schema: SchemaSender,
        batches: mpsc::Sender<Result<ReservedBatch, QueryError>>,
    ) {
        let PlannedQuery { plan, context, budget } = match self.in_time(whole(self.plan(query))).await {
            Ok(planned) => planned,
            Err(error) => {
                self.counted.finish(error.code());
                // The caller may be gone.
                let _ = schema.send(Err(error));
                return;
            }
        };
        if schema.send(Ok(plan.schema())).is_err() {
            return;
        }
        let outcome = whole(self.stream(&plan, context, (&batches, &budget))).await;
        self.inner.metrics.scanned(self.counted.api, scanned(plan.as_ref()));
        let code = outcome.as_ref().err().map_or("ok", |error| error.code());
        self.counted.finish(code);
        if let Err(error) = outcome {
            let _ = batches.send(Err(error)).await;
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, QueryError>>) -> Result<T, QueryError> {
        tokio::select! {
            biased;
            error = self.watch.outgrown() => Err(error),
            outcome = tokio::time::timeout_at(self.watch.deadline().into(), work) => match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(self.watch.expired()),
            },
        }
    }

    async fn plan(&self, query: Query) -> Result<PlannedQuery, QueryError> {
        let mut statement = statement::parse(&query.sql)?;
        let tables = Arc::new(QueryTables::new(self.inner.tables.clone()));
        let shared = self.inner.state();
        let memory = self.inner.options.memory_bytes;
        let budget = Budget::new(&shared.runtime_env().memory_pool, memory, &self.watch);
        let mut state = SessionStateBuilder::new_from_existing(shared.clone())
            .with_config(shared.config().clone().with_option_extension(budget.clone()))
            .with_catalog_list(Arc::new(LakeCatalog(tables.clone())))
            .build();
        // Sets the value of `now()`.
        state.mark_start_execution();
        if let Some(sql) = statement::sql_of(&mut statement) {
            versions::open(sql, &tables, &state, query.params.as_ref()).await?;
        }
        let names = self.check_tables(&state, &statement, &tables).await?;
        if let Some(sql) = statement::sql_of(&mut statement) {
            let has_functions = functions::may_use(&query.sql);
            let mut schemas = HashMap::new();
            if has_functions || repeated_names::has_columns_beside_all(sql) {
                for name in names {
                    let table = tables.open(&name).await.map_err(QueryError::of_planning)?;
                    schemas.extend(table.map(|table| (name, table.schema.clone())));
                }
            }
            if has_functions {
                functions::rewrite(sql, &schemas)?;
            }
            repeated_names::rename(sql, &schemas);
        }
        let plan = state
            .statement_to_plan(statement)
            .await
            .map_err(QueryError::of_planning)?;
        let read_only = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        read_only.verify_plan(&plan).map_err(QueryError::of_planning)?;
        let plan = match query.params {
            Some(params) => plan
                .replace_params_with_values(&params)
                .map_err(QueryError::of_planning)?,
            None => plan,
        };
        self.plan_bounded(state, plan, budget)
            .await
            .map_err(QueryError::of_planning)
    }

    /// Plans the query with a batch size for which expression results take a small fraction of its memory.
    async fn plan_bounded(
        &self,
        mut state: SessionState,
        plan: LogicalPlan,
        budget: Budget,
    ) -> datafusion::common::Result<PlannedQuery> {
        let plan = rewrite::bound(plan, &budget)?;
        let plan = conversion::bound(exact::floats::with_canonical_keys(state.optimize(&plan)?)?)?;
        let plan = exact::sort_keys::in_columns(plan, &state)?;
        let expressions = rewrite::expressions(&plan, &budget)?;
        let row_bytes = expressions.constant_bytes + expressions.count * EXPRESSION_BYTES;
        let rows = self.inner.options.memory_bytes / BATCH_PART / row_bytes.max(1);
        let usual = state.config().batch_size();
        let batch_rows = ConfigNonZeroUsize::try_new(rows.clamp(BATCH_ROWS_MIN.min(usual), usual))?;
        let options = state.config_mut().options_mut();
        options.execution.batch_size = batch_rows;
        options.optimizer.enable_topk_aggregation &= !exact::floats::are_aggregated(&plan)?;
        let state = exact::dynamic_filters::restricted(state, &plan)?;
        let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
        let plan = guard(plan, &self.watch, &budget)?;
        budget.planned(expressions.count);
        let context = state.task_ctx();
        Ok(PlannedQuery { plan, context, budget })
    }

    /// Returns the lake tables that a statement names. For an unknown table, the error lists the known ones.
    async fn check_tables(
        &self,
        state: &SessionState,
        statement: &Statement,
        opened: &QueryTables,
    ) -> Result<Vec<String>, QueryError> {
        let references = state
            .resolve_table_references(statement)
            .map_err(QueryError::of_planning)?;
        if !references.is_empty() {
            let looked = self.inner.tables.look().await;
            looked.map_err(|error| QueryError::unavailable(error.to_string()))?;
        }
        let known = self.inner.tables.names();
        let mut names = Vec::new();
        for reference in references {
            let in_lake = match &reference {
                TableReference::Bare { .. } => true,
                TableReference::Partial { schema, .. } => **schema == *SCHEMA,
                TableReference::Full { catalog, schema, .. } => **catalog == *CATALOG && **schema == *SCHEMA,
            };
            let name = reference.table();
            if in_lake && !known.iter().any(|known| known == name) && !opened.is_version(name) {
                return Err(QueryError::no_table(name, &known));
            }
            if in_lake {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    async fn stream(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        (batches, budget): (&mpsc::Sender<Result<ReservedBatch, QueryError>>, &Budget),
    ) -> Result<(), QueryError> {
        let row_max = self.inner.options.memory_bytes / ROW_PART;
        let stream = execute_stream(plan.clone(), context);
        let mut stream = stream.map_err(QueryError::of_execution)?;
        loop {
            let next = async { Ok(stream.next().await) };
            match self.in_time(next).await? {
                None => return Ok(()),
                Some(Err(error)) => return Err(QueryError::of_execution(error)),
                Some(Ok(batch)) if batch.num_rows() == 0 => {}
                Some(Ok(batch)) => {
                    // The formatter writes out each part as a whole.
                    for part in text_length::parts(&batch, row_max).map_err(QueryError::of_execution)? {
                        let part = ReservedBatch::new(part, budget).map_err(QueryError::of_execution)?;
                        let sent = async { Ok(batches.send(Ok(part)).await) };
                        if self.in_time(sent).await?.is_err() {
                            return Err(self.watch.left());
                        }
                    }
                }
            }
        }
    }
}

impl ReservedBatch {
    fn new(part: SizedBatch, budget: &Budget) -> datafusion::common::Result<ReservedBatch> {
        let taken = match part.bytes > text_length::PART_BYTES {
            true => budget.reservation(),
            false => None,
        };
        if let Some(taken) = &taken {
            taken.try_grow(part.bytes)?;
        }
        Ok(ReservedBatch { rows: part.rows, taken })
    }
}

/// Turns a panic in a function into an error of the query, so that it never truncates the answer.
async fn whole<T>(work: impl Future<Output = Result<T, QueryError>>) -> Result<T, QueryError> {
    match std::panic::AssertUnwindSafe(work).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("unknown cause");
            Err(QueryError::execute(format!(
                "a function of the query failed on its arguments: {text}"
            )))
        }
    }
}

/// Sums what the scans of a plan read and skipped.
fn scanned(plan: &dyn ExecutionPlan) -> ScanCounts {
    let children = plan.children();
    if !children.is_empty() {
        let of_children = children.into_iter().map(|child| scanned(child.as_ref()));
        return of_children.fold(ScanCounts::default(), |sum, child| sum + child);
    }
    let files = plan
        .downcast_ref::<DataSourceExec>()
        .and_then(|exec| exec.data_source().downcast_ref::<FileScanConfig>());
    let (Some(files), Some(metrics)) = (files, plan.metrics()) else {
        return ScanCounts::default();
    };
    let count = |name: &str| match metrics.sum_by_name(name) {
        Some(MetricValue::PruningMetrics { pruning_metrics, .. }) => pruning_metrics.pruned(),
        Some(value) => value.as_usize(),
        None => 0,
    };
    let rows = metrics.output_rows().unwrap_or(0);
    let is_rollup = files.file_groups.iter().flat_map(|group| group.files()).any(|file| {
        let table = file.object_meta.location.parts().next();
        let spec = table.and_then(|table| tables::spec_of(table.as_ref()));
        spec.is_some_and(TableSpec::has_revisions)
    });
    ScanCounts {
        bytes: count("bytes_scanned"),
        raw: if is_rollup { 0 } else { rows },
        rollup: if is_rollup { rows } else { 0 },
        row_groups_pruned: count("row_groups_pruned_statistics") + count("row_groups_pruned_dynamic_filter"),
        row_groups_pruned_by_bloom: count("row_groups_pruned_bloom_filter"),
        page_rows_pruned: count("page_index_rows_pruned"),
        filter_rows_pruned: count("pushdown_rows_pruned"),
    }
}

fn session_config(limits: &QueryOptions) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_information_schema(true)
        .with_create_default_catalog_and_schema(false)
        .with_default_catalog_and_schema(CATALOG, SCHEMA);
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    // Each sort reserves memory to merge its spill files; together they must leave room for the rows.
    let sorts = options.execution.target_partitions.max(1) * SORTS_PER_QUERY;
    options.execution.sort_spill_reservation_bytes = options
        .execution
        .sort_spill_reservation_bytes
        .min(limits.memory_bytes / (2 * sorts));
    // The operators would repeat the value of a scalar subquery for each row; a join checks its width first.
    options.optimizer.enable_physical_uncorrelated_scalar_subquery = false;
    // `exact::output` does this without mixing up columns.
    options.optimizer.expand_views_at_output = false;
    // It loses the table of an attribute that two tables are joined by.
    options.optimizer.enable_leaf_expression_pushdown = false;
    config
}

fn environment(site: &LakeStorage, options: &QueryOptions) -> datafusion::common::Result<Arc<RuntimeEnv>> {
    let pool = TrackConsumersPool::new(
        FairSpillPool::new(options.memory_bytes),
        std::num::NonZeroUsize::new(CONSUMERS_NAMED).unwrap_or(std::num::NonZeroUsize::MIN),
    );
    RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(pool))
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled))
        .with_object_store_registry(Arc::new(LakeStoreRegistry::new(site)))
        .with_metadata_cache_limit(options.cache_bytes)
        .build_arc()
}

/// A session with a spill folder.
struct SpillSession {
    state: SessionState,
    /// Used by this process only.
    _folder: WorkFolder,
}

impl SpillSession {
    /// Shares memory and caches with another session. Removes spill folders that ended processes left in `parent`.
    fn new(of: &SessionState, parent: &Path, options: &QueryOptions) -> datafusion::common::Result<SpillSession> {
        WorkFolder::sweep(parent);
        let folder = WorkFolder::new(parent)?;
        let disk = DiskManagerBuilder::default()
            .with_mode(DiskManagerMode::Directories(vec![folder.path().to_owned()]))
            .with_max_temp_directory_size(options.spill_bytes);
        let environment = RuntimeEnvBuilder::from_runtime_env(of.runtime_env())
            .with_disk_manager_builder(disk)
            .build_arc()?;
        let state = SessionStateBuilder::new_from_existing(of.clone())
            .with_runtime_env(environment)
            .build();
        Ok(SpillSession { state, _folder: folder })
    }
}

/// Lowers the priority of a query thread when cores are scarce.
fn give_way() {
    // If the process is not allowed to, only the order of work changes.
    let _ = rustix::process::nice(5);
}

/// Resolves the lake's own store, the only one that a query can name.
#[derive(Debug)]
struct LakeStoreRegistry {
    store: Option<Arc<dyn ObjectStore>>,
}

impl LakeStoreRegistry {
    fn new(site: &LakeStorage) -> LakeStoreRegistry {
        LakeStoreRegistry {
            store: site.reader().ok(),
        }
    }
}

impl ObjectStoreRegistry for LakeStoreRegistry {
    fn register_store(&self, _url: &url::Url, _store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &url::Url) -> datafusion::common::Result<Arc<dyn ObjectStore>> {
        match &self.store {
            Some(store) if url.as_str().trim_end_matches('/') == STORE => Ok(store.clone()),
            _ => datafusion::common::plan_err!("queries read the tables of the lake only, not {url}"),
        }
    }
}
