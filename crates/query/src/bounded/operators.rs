//! Bounds operators that repeat rows by the width of these rows.
//!
//! A join or an unnest copies an input row into each output row, some thousand at a time. Below it, `NarrowRows`
//! refuses rows of which a batch would exceed the result limit, and passes lists on in pieces. A window buffers all
//! rows of a partition and emits them at once: `WindowInput` reserves them, and `WindowOutput` releases the
//! reservation when they are gone. Output is cut into batches of few bytes: a view does not repeat a text, but a copy
//! of it does.

use std::collections::{HashMap, VecDeque};
use std::fmt::Formatter;
use std::sync::Arc;

use datafusion::arrow::array::{Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::unnest::{ListUnnest, UnnestExec};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use parking_lot::Mutex;

use super::budget::{Budget, too_large};
use super::measure::{array_bytes, batch_bytes, compact, element_counts, row_bytes, scalar_bytes, sum_rows};

/// The most bytes of an emitted batch when written out, unless it has only one row.
const BATCH_BYTES: usize = 8 << 20;
/// Limit for constants in the arguments of a window function.
const WINDOW_CONSTANT_BYTES_MAX: usize = 4 << 10;
const JOINS: [&str; 5] = [
    "NestedLoopJoinExec",
    "CrossJoinExec",
    "HashJoinExec",
    "SortMergeJoinExec",
    "PiecewiseMergeJoinExec",
];

/// These fill batches by row count alone, or have batches of their own size.
const CUT: [&str; 6] = [
    "DataSourceExec",
    "FilterExec",
    "CoalesceBatchesExec",
    "SortExec",
    "SortPreservingMergeExec",
    "AggregateExec",
];

/// Wraps an operator that repeats or buffers rows with checks of its input. Returns `None` for others.
pub fn bound(node: Arc<dyn ExecutionPlan>, budget: &Budget) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    if let Some(unnest) = node.downcast_ref::<UnnestExec>() {
        let lists = Repetition::Lists(unnest.list_column_indices().into());
        return narrow(&node, &lists, budget).map(Some);
    }
    if JOINS.contains(&node.name()) {
        return narrow(&node, &Repetition::Rows, budget).map(Some);
    }
    if CUT.contains(&node.name()) {
        return Ok(Some(passing(node, PassThroughRole::Cut, budget)));
    }
    if let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() {
        check_arguments(window.window_expr())?;
        let input = passing(
            window.input().clone(),
            PassThroughRole::WindowSlide(budget.rows_around()),
            budget,
        );
        return replace_children_if_necessary(node.clone(), vec![input]).map(Some);
    }
    let Some(window) = node.downcast_ref::<WindowAggExec>() else {
        return Ok(None);
    };
    check_arguments(window.window_expr())?;
    let rows = WindowReservations::default();
    let input = passing(
        window.input().clone(),
        PassThroughRole::WindowInput(rows.clone()),
        budget,
    );
    let window = replace_children_if_necessary(node.clone(), vec![input])?;
    Ok(Some(passing(window, PassThroughRole::WindowOutput(rows), budget)))
}

fn narrow(node: &Arc<dyn ExecutionPlan>, repeated: &Repetition, budget: &Budget) -> Result<Arc<dyn ExecutionPlan>> {
    let children = node.children().into_iter();
    let children = children.map(|child| passing(child.clone(), PassThroughRole::Narrow(repeated.clone()), budget));
    let node = replace_children_if_necessary(node.clone(), children.collect())?;
    Ok(passing(node, PassThroughRole::Cut, budget))
}

fn passing(input: Arc<dyn ExecutionPlan>, role: PassThroughRole, budget: &Budget) -> Arc<dyn ExecutionPlan> {
    let budget = budget.clone();
    Arc::new(PassThroughExec { input, role, budget })
}

/// A window writes out its arguments for all buffered rows.
fn check_arguments(functions: &[Arc<dyn WindowExpr>]) -> Result<()> {
    for function in functions {
        let bytes: usize = function.expressions().iter().map(constant_bytes).sum();
        if bytes > WINDOW_CONSTANT_BYTES_MAX {
            return Err(too_large(
                "a constant in a window function",
                bytes,
                WINDOW_CONSTANT_BYTES_MAX,
            ));
        }
    }
    Ok(())
}

/// Reserves the rows that a sliding window buffers, and the copy that each batch makes of them.
struct SlidingWindowReservation {
    rows_kept: usize,
    taken: Option<MemoryReservation>,
    batches: VecDeque<(usize, usize)>,
    rows: usize,
    bytes: usize,
}

impl SlidingWindowReservation {
    fn new(rows_kept: usize, budget: &Budget) -> SlidingWindowReservation {
        SlidingWindowReservation {
            rows_kept,
            taken: budget.reservation(),
            batches: VecDeque::new(),
            rows: 0,
            bytes: 0,
        }
    }

    fn take(&mut self, batch: &RecordBatch) -> Result<()> {
        // One batch needs far less than the memory of a query.
        if self.rows_kept <= batch.num_rows() {
            return Ok(());
        }
        let bytes = batch_bytes(batch).saturating_mul(2);
        self.batches.push_back((batch.num_rows(), bytes));
        (self.rows, self.bytes) = (self.rows + batch.num_rows(), self.bytes.saturating_add(bytes));
        while let Some((rows, bytes)) = self.batches.front().copied()
            && self.rows - rows > self.rows_kept
        {
            self.batches.pop_front();
            (self.rows, self.bytes) = (self.rows - rows, self.bytes - bytes);
        }
        self.taken.as_ref().map_or(Ok(()), |taken| taken.try_resize(self.bytes))
    }
}

fn constant_bytes(expr: &Arc<dyn PhysicalExpr>) -> usize {
    match expr.downcast_ref::<Literal>() {
        Some(constant) => scalar_bytes(constant.value()),
        None => expr.children().into_iter().map(constant_bytes).sum(),
    }
}

/// What an operator repeats.
#[derive(Clone, Debug)]
enum Repetition {
    /// Each row, up to a full batch.
    Rows,
    /// Each row, once per list element.
    Lists(Arc<[ListUnnest]>),
}

#[derive(Clone, Debug)]
enum PassThroughRole {
    Narrow(Repetition),
    Cut,
    WindowInput(WindowReservations),
    /// A sliding window keeps this many rows around its current row.
    WindowSlide(usize),
    WindowOutput(WindowReservations),
}

/// The reservation for the buffered rows of each partition.
type WindowReservations = Arc<Mutex<HashMap<usize, Arc<MemoryReservation>>>>;

/// Passes batches on, with the checks of its role.
#[derive(Clone, Debug)]
struct PassThroughExec {
    input: Arc<dyn ExecutionPlan>,
    role: PassThroughRole,
    budget: Budget,
}

impl DisplayAs for PassThroughExec {
    fn fmt_as(&self, _kind: DisplayFormatType, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl ExecutionPlan for PassThroughExec {
    fn name(&self) -> &str {
        match self.role {
            PassThroughRole::Narrow(_) => "NarrowRows",
            PassThroughRole::Cut => "CutBatches",
            PassThroughRole::WindowInput(_) => "WindowInput",
            PassThroughRole::WindowSlide(_) => "WindowSlide",
            PassThroughRole::WindowOutput(_) => "WindowOutput",
        }
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _each: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        match <[_; 1]>::try_from(children) {
            Ok([input]) => Ok(Arc::new(PassThroughExec {
                input,
                ..(*self).clone()
            })),
            Err(_) => exec_err!("{} has one input", self.name()),
        }
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let (schema, batch_rows) = (self.schema(), context.session_config().batch_size());
        let budget = self.budget.clone();
        match &self.role {
            PassThroughRole::Narrow(Repetition::Rows) => {
                let input = self.input.execute(partition, context)?;
                let checked = input.map(move |batch| {
                    let batch = batch?;
                    check_width(&batch, batch_rows, &budget)?;
                    compact(&batch)
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, checked)))
            }
            PassThroughRole::Narrow(Repetition::Lists(lists)) => {
                let (input, lists) = (self.input.execute(partition, context)?, lists.clone());
                let pieces = input.map(move |batch| {
                    Ok::<_, DataFusionError>(stream::iter(
                        pieces(&batch?, &lists, batch_rows, &budget)?.into_iter().map(Ok),
                    ))
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, pieces.try_flatten())))
            }
            PassThroughRole::Cut => {
                let input = self.input.execute(partition, context)?;
                let checked = input.map(move |batch| budget.check_time().and(batch));
                let checked = Box::pin(RecordBatchStreamAdapter::new(schema.clone(), checked));
                Ok(cut_stream(schema, checked, batch_rows))
            }
            PassThroughRole::WindowSlide(rows) => {
                let (input, mut slide) = (
                    self.input.execute(partition, context)?,
                    SlidingWindowReservation::new(*rows, &budget),
                );
                let reserved = input.map(move |batch| {
                    let batch = batch?;
                    slide.take(&batch)?;
                    Ok(batch)
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, reserved)))
            }
            PassThroughRole::WindowInput(rows) => {
                let taken = budget.reservation().map(Arc::new);
                if let Some(taken) = &taken {
                    rows.lock().insert(partition, taken.clone());
                }
                let input = self.input.execute(partition, context)?;
                let reserved = input.map(move |batch| {
                    let batch = batch?;
                    budget.waits_for(batch.num_rows());
                    if let Some(taken) = &taken {
                        // The window copies the rows into one batch.
                        taken.try_grow(batch_bytes(&batch).saturating_mul(2))?;
                    }
                    Ok(batch)
                });
                Ok(Box::pin(RecordBatchStreamAdapter::new(schema, reserved)))
            }
            PassThroughRole::WindowOutput(rows) => {
                let input = self.input.execute(partition, context)?;
                let taken = rows.lock().remove(&partition);
                // The reservation lives until the end of the stream.
                let kept = input.map(move |batch| {
                    let _rows = &taken;
                    batch
                });
                let kept: SendableRecordBatchStream = Box::pin(RecordBatchStreamAdapter::new(schema.clone(), kept));
                Ok(cut_stream(schema, kept, batch_rows))
            }
        }
    }
}

/// A join copies values other than views into each output row.
fn check_width(batch: &RecordBatch, batch_rows: usize, budget: &Budget) -> Result<()> {
    // In most batches no row can be too wide.
    let allowed = budget.result_max();
    if copied_bytes(batch).saturating_mul(batch_rows) <= allowed {
        return Ok(());
    }
    let widest = copied_row_bytes(batch).into_iter().max().unwrap_or(0);
    match widest.saturating_mul(batch_rows) {
        bytes if bytes > allowed => Err(too_large(&format!("a join of rows of {widest} bytes"), bytes, allowed)),
        _ => Ok(()),
    }
}

fn is_copied(kind: &DataType) -> bool {
    !kind.is_primitive()
        && !matches!(
            kind,
            DataType::Utf8View | DataType::BinaryView | DataType::Boolean | DataType::Null
        )
}

fn copied_bytes(batch: &RecordBatch) -> usize {
    let copied = batch.columns().iter().filter(|column| is_copied(column.data_type()));
    copied.map(|column| array_bytes(column)).sum()
}

fn copied_row_bytes(batch: &RecordBatch) -> Vec<usize> {
    let copied = batch.columns().iter().filter(|column| is_copied(column.data_type()));
    sum_rows(batch.num_rows(), copied.map(|column| row_bytes(column)))
}

/// Cuts a batch so that the unnested rows of each piece are one small batch. A row that exceeds the result limit is
/// refused.
fn pieces(batch: &RecordBatch, lists: &[ListUnnest], batch_rows: usize, budget: &Budget) -> Result<Vec<RecordBatch>> {
    let rows = batch.num_rows();
    let times = list_rows(batch, lists);
    let is_list = |at: &usize| lists.iter().any(|list| list.index_in_input_schema == *at);
    let columns = batch.columns().iter().enumerate();
    let other = columns
        .clone()
        .filter(|(at, _)| !is_list(at))
        .map(|(_, column)| row_bytes(column));
    let other = sum_rows(rows, other);
    let own = sum_rows(
        rows,
        columns
            .filter(|(at, _)| is_list(at))
            .map(|(_, column)| row_bytes(column)),
    );
    let allowed = budget.result_max();
    let (mut pieces, mut from, mut bytes, mut made) = (Vec::new(), 0, 0_usize, 0_usize);
    for row in 0..rows {
        let get = |all: &[usize]| all.get(row).copied().unwrap_or(0);
        let unnested = get(&other).saturating_mul(get(&times)).saturating_add(get(&own));
        if unnested > allowed {
            return Err(too_large("unnest", unnested, allowed));
        }
        // The operator would slice a piece that makes more rows, and lists must not be slices.
        let is_full = bytes.saturating_add(unnested) > BATCH_BYTES || made.saturating_add(get(&times)) > batch_rows;
        if row > from && is_full {
            pieces.push(compact(&batch.slice(from, row - from))?);
            (from, bytes, made) = (row, 0, 0);
        }
        bytes = bytes.saturating_add(unnested);
        made = made.saturating_add(get(&times));
    }
    pieces.push(compact(&batch.slice(from, rows - from))?);
    Ok(pieces)
}

/// The most output rows of each input row.
fn list_rows(batch: &RecordBatch, lists: &[ListUnnest]) -> Vec<usize> {
    let is_deep = lists.iter().any(|list| list.depth > 1);
    let mut all = vec![usize::from(is_deep); batch.num_rows()];
    for list in lists {
        let Some(column) = batch.columns().get(list.index_in_input_schema) else {
            continue;
        };
        let counts = match list.depth {
            0 | 1 => element_counts(column),
            // The smallest element of a nested list takes one byte.
            _ => row_bytes(column),
        };
        for (sum, count) in all.iter_mut().zip(counts) {
            // Parallel lists give as many rows as the longest; nested lists multiply.
            *sum = if is_deep {
                sum.saturating_mul(count.max(1))
            } else {
                sum.saturating_add(count)
            };
        }
    }
    all
}

fn cut_stream(schema: SchemaRef, input: SendableRecordBatchStream, batch_rows: usize) -> SendableRecordBatchStream {
    let cut =
        input.map(move |batch| Ok::<_, DataFusionError>(stream::iter(cut(&batch?, batch_rows).into_iter().map(Ok))));
    Box::pin(RecordBatchStreamAdapter::new(schema, cut.try_flatten()))
}

/// Cuts a batch into batches of few bytes without copying.
fn cut(batch: &RecordBatch, batch_rows: usize) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    let batch_rows = batch_rows.max(1);
    if rows <= batch_rows && batch_bytes(batch) <= BATCH_BYTES {
        return vec![batch.clone()];
    }
    let widths = sum_rows(rows, batch.columns().iter().map(|column| row_bytes(column)));
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0_usize);
    for (row, width) in widths.into_iter().enumerate() {
        let is_full = row - from >= batch_rows || bytes.saturating_add(width) > BATCH_BYTES;
        if row > from && is_full {
            parts.push(batch.slice(from, row - from));
            (from, bytes) = (row, 0);
        }
        bytes = bytes.saturating_add(width);
    }
    if rows > from {
        parts.push(batch.slice(from, rows - from));
    }
    parts
}
