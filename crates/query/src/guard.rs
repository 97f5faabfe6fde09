//! Makes a plan cancellable: operators that can run for long without emitting a batch check the deadline.
//!
//! Queries share their threads, and an operator that never yields cannot be interrupted. Joins that multiply rows
//! therefore yield after some batches. The filter of a nested-loop join, which is evaluated once per row of one side,
//! ends the query when its time is over or nobody reads its answer.

use std::fmt::{Display, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{NestedLoopJoinExec, NestedLoopJoinExecBuilder};

use thalweg_kit::clock;
use tokio::sync::Notify;

use crate::bounded::{Budget, operators};
use crate::error::QueryError;

/// Operators that can emit many rows for few.
const MULTIPLYING: [&str; 6] = [
    "NestedLoopJoinExec",
    "CrossJoinExec",
    "HashJoinExec",
    "SortMergeJoinExec",
    "UnnestExec",
    "RecursiveQueryExec",
];

/// Decides when a query has to end.
#[derive(Debug)]
pub struct QueryCancellation {
    timeout: Duration,
    deadline: Instant,
    gone: AtomicBool,
    /// If the query has to end for its memory: the bytes that queries use, and the limit.
    outgrown: OnceLock<(usize, usize)>,
    told: Notify,
}

impl QueryCancellation {
    pub fn new(timeout: Duration) -> QueryCancellation {
        QueryCancellation {
            timeout,
            deadline: clock::now() + timeout,
            gone: AtomicBool::new(false),
            outgrown: OnceLock::new(),
            told: Notify::new(),
        }
    }

    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Records that nobody reads the answer any more.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Ends this query because queries use more memory than allowed.
    pub fn outgrow(&self, held: usize, allowed: usize) {
        let _ = self.outgrown.set((held, allowed));
        self.told.notify_waiters();
    }

    pub fn is_outgrown(&self) -> bool {
        self.outgrown.get().is_some()
    }

    /// Returns when the query has to end for its memory.
    pub async fn outgrown(&self) -> QueryError {
        loop {
            let told = self.told.notified();
            if let Some((held, allowed)) = self.outgrown.get() {
                return QueryError::outgrown(*held, *allowed);
            }
            told.await;
        }
    }

    pub fn expired(&self) -> QueryError {
        QueryError::timeout(self.timeout.as_secs_f64())
    }

    /// Why nobody reads the answer any more: the time is over, or the reader left.
    pub fn left(&self) -> QueryError {
        match clock::now() < self.deadline {
            true => QueryError::cancelled(),
            false => self.expired(),
        }
    }

    /// Fails if the query has to end.
    pub fn check(&self) -> Result<()> {
        if let Some((held, allowed)) = self.outgrown.get() {
            return Err(DataFusionError::External(Box::new(QueryError::outgrown(
                *held, *allowed,
            ))));
        }
        if self.gone.load(Ordering::Relaxed) || clock::now() >= self.deadline {
            return Err(DataFusionError::External(Box::new(self.expired())));
        }
        Ok(())
    }
}

/// Makes a plan cancellable and bounds operators that repeat rows.
pub fn guard(
    plan: Arc<dyn ExecutionPlan>,
    watch: &Arc<QueryCancellation>,
    budget: &Budget,
) -> Result<Arc<dyn ExecutionPlan>> {
    let guarded = plan.transform_up(|node| {
        let is_multiplying = MULTIPLYING.contains(&node.name());
        let node = watch_filter(node, watch)?;
        let bounded = operators::bound(node.clone(), budget)?;
        if !is_multiplying {
            return Ok(match bounded {
                Some(bounded) => Transformed::yes(bounded),
                None => Transformed::no(node),
            });
        }
        Ok(Transformed::yes(
            Arc::new(CooperativeExec::new(bounded.unwrap_or(node))) as Arc<dyn ExecutionPlan>,
        ))
    });
    Ok(guarded?.data)
}

fn watch_filter(node: Arc<dyn ExecutionPlan>, watch: &Arc<QueryCancellation>) -> Result<Arc<dyn ExecutionPlan>> {
    let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() else {
        return Ok(node);
    };
    let Some(filter) = join.filter() else { return Ok(node) };
    let watched = CancellableExpr {
        inner: filter.expression().clone(),
        watch: watch.clone(),
    };
    let filter = JoinFilter::new(
        Arc::new(watched),
        filter.column_indices().to_vec(),
        filter.schema().clone(),
    );
    Ok(Arc::new(
        NestedLoopJoinExecBuilder::from(join)
            .with_filter(Some(filter))
            .build()?,
    ))
}

/// An expression that is evaluated only while the query may run.
#[derive(Debug)]
struct CancellableExpr {
    inner: Arc<dyn PhysicalExpr>,
    watch: Arc<QueryCancellation>,
}

impl Display for CancellableExpr {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl PartialEq for CancellableExpr {
    fn eq(&self, other: &CancellableExpr) -> bool {
        self.inner.eq(&other.inner)
    }
}

impl Eq for CancellableExpr {}

impl Hash for CancellableExpr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl PhysicalExpr for CancellableExpr {
    fn data_type(&self, input: &Schema) -> Result<DataType> {
        self.inner.data_type(input)
    }

    fn nullable(&self, input: &Schema) -> Result<bool> {
        self.inner.nullable(input)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.watch.check()?;
        self.inner.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.inner]
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Arc<dyn PhysicalExpr>>) -> Result<Arc<dyn PhysicalExpr>> {
        let inner = children.into_iter().next().unwrap_or_else(|| self.inner.clone());
        Ok(Arc::new(CancellableExpr {
            inner,
            watch: self.watch.clone(),
        }))
    }

    fn fmt_sql(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt_sql(f)
    }
}
