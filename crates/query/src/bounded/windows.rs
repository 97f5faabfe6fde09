//! Charges window functions that return values of other rows or lists of them: `first_value(text)`, `max(text)`,
//! `array_agg(x)`.
//!
//! Each output row gets a copy, so a few rows can take very many bytes. Each copy is charged when it is made, and
//! released when as many rows followed as operators can hold at a time: some batches, and all rows that a window
//! buffers.
//!
//! The module also wraps `string_agg` as an aggregate: its text is copied as it grows, so the copy is reserved first.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::logical_expr::expr::{NullTreatment, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, ExpressionArgs, PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::window_state::WindowAggState;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, Documentation, Expr, LimitEffect, PartitionEvaluator, ReversedUDWF, Signature,
    WindowUDF, WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use parking_lot::Mutex;

use super::budget::Budget;
use super::measure::{array_bytes, scalar_bytes};
use crate::delegating_aggregate::{AggregateParts, delegating};

pub const STRING_AGG: &str = "string_agg";
/// Rows that operators hold at a time, over several batches and threads.
const ROWS_HELD: usize = 1 << 17;

/// A charged wrapper of an aggregate used as a window function.
pub fn aggregate(function: &Arc<AggregateUDF>, budget: &Budget) -> Arc<AggregateUDF> {
    let charged = ChargedAggregate {
        charges: Arc::new(Charges::new(budget)),
        is_window: true,
    };
    delegating(function.clone(), charged)
}

/// A wrapper of an aggregate whose state is one value that is copied as it grows.
pub fn growing(function: &Arc<AggregateUDF>, budget: &Budget) -> Arc<AggregateUDF> {
    let charged = ChargedAggregate {
        charges: Arc::new(Charges::new(budget)),
        is_window: false,
    };
    delegating(function.clone(), charged)
}

pub fn function(function: &Arc<WindowUDF>, budget: &Budget, look_around: LookAround) -> Arc<WindowUDF> {
    Arc::new(WindowUDF::new_from_impl(ChargedWindowFunction {
        inner: function.clone(),
        charges: Arc::new(Charges::new(budget)),
        look_around,
    }))
}

/// Which rows around the current one `lead` and `lag` read, as far as the library knows it.
///
/// With IGNORE NULLS its `WindowShiftEvaluator` loses count when it evaluates row by row, and a LIMIT cuts the rows that it
/// looks for; so it gets whole partitions. Its `lag` with a negative offset reads rows behind a LIMIT, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookAround {
    Known,
    /// No LIMIT may cut rows before.
    Following,
    /// All rows of a partition at once.
    Partition,
}

impl LookAround {
    pub fn of(function: &WindowUDF, params: &WindowFunctionParams) -> LookAround {
        if !["lead", "lag"].contains(&function.name()) {
            return LookAround::Known;
        }
        let offset = params.args.get(1);
        match (params.null_treatment, offset) {
            (Some(NullTreatment::IgnoreNulls), _) => LookAround::Partition,
            (_, None | Some(Expr::Literal(ScalarValue::Int64(Some(0..)), _))) => LookAround::Known,
            _ => LookAround::Following,
        }
    }
}

/// The charges for the copies of one function in two generations: the older one is released when the younger one is
/// full.
#[derive(Debug)]
struct Charges {
    budget: Budget,
    held: Mutex<ChargedCopies>,
}

#[derive(Debug)]
struct ChargedCopies {
    taken: Option<MemoryReservation>,
    rows: usize,
    bytes: usize,
    older_bytes: usize,
}

impl Charges {
    fn new(budget: &Budget) -> Charges {
        Charges {
            held: Mutex::new(ChargedCopies {
                taken: budget.reservation(),
                rows: 0,
                bytes: 0,
                older_bytes: 0,
            }),
            budget: budget.clone(),
        }
    }

    fn charge(&self, rows: usize, bytes: usize) -> Result<()> {
        self.budget.check_time()?;
        let mut held = self.held.lock();
        if held.rows > ROWS_HELD.max(self.budget.rows_waited_for()) {
            held.older_bytes = held.bytes;
            (held.rows, held.bytes) = (0, 0);
        }
        held.rows += rows;
        held.bytes = held.bytes.saturating_add(bytes);
        let all = held.bytes.saturating_add(held.older_bytes);
        match &held.taken {
            Some(taken) => taken.try_resize(all),
            None => Ok(()),
        }
    }
}

/// Two of them are equal if their functions are, whatever they have charged.
#[derive(Clone, Debug)]
struct ChargedAggregate {
    charges: Arc<Charges>,
    is_window: bool,
}

impl PartialEq for ChargedAggregate {
    fn eq(&self, other: &ChargedAggregate) -> bool {
        self.is_window == other.is_window
    }
}

impl Eq for ChargedAggregate {}

impl Hash for ChargedAggregate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_window.hash(state);
    }
}

impl ChargedAggregate {
    fn charged(&self, inner: Box<dyn Accumulator>) -> Box<dyn Accumulator> {
        let charges = self.charges.clone();
        if !self.is_window {
            return Box::new(GrowingAccumulator { inner, charges });
        }
        Box::new(ChargedAccumulator {
            inner,
            charges,
            rows_since: 0,
        })
    }
}

impl AggregateParts for ChargedAggregate {
    fn accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.charged(inner.accumulator(args)?))
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.charged(inner.create_sliding_accumulator(args)?))
    }

    fn has_groups_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> bool {
        !self.is_window && inner.groups_accumulator_supported(args)
    }
}

#[derive(Debug)]
struct ChargedAccumulator {
    inner: Box<dyn Accumulator>,
    charges: Arc<Charges>,
    /// Rows read since the last value. The value of a whole partition is computed once for all rows.
    rows_since: usize,
}

impl Accumulator for ChargedAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.rows_since += values.first().map_or(0, |values| values.len());
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.inner.evaluate()?;
        let rows = std::mem::take(&mut self.rows_since).max(1);
        self.charges.charge(rows, scalar_bytes(&value).saturating_mul(rows))?;
        Ok(value)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

#[derive(Debug)]
struct GrowingAccumulator {
    inner: Box<dyn Accumulator>,
    charges: Arc<Charges>,
}

impl GrowingAccumulator {
    /// Reserves memory for the copy into a buffer twice as large.
    fn grow(&self, values: &[ArrayRef]) -> Result<Option<MemoryReservation>> {
        let given = values
            .iter()
            .map(|values| array_bytes(values))
            .fold(self.inner.size(), usize::saturating_add);
        self.charges.budget.take(STRING_AGG, given.saturating_mul(2))
    }
}

impl Accumulator for GrowingAccumulator {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let _grown = self.grow(values)?;
        self.inner.update_batch(values)
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let _grown = self.grow(states)?;
        self.inner.merge_batch(states)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}

#[derive(Debug)]
struct ChargedWindowFunction {
    inner: Arc<WindowUDF>,
    charges: Arc<Charges>,
    look_around: LookAround,
}

impl PartialEq for ChargedWindowFunction {
    fn eq(&self, other: &ChargedWindowFunction) -> bool {
        (self.look_around, &self.inner) == (other.look_around, &other.inner)
    }
}

impl Eq for ChargedWindowFunction {}

impl Hash for ChargedWindowFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

#[warn(clippy::missing_trait_methods)]
impl WindowUDFImpl for ChargedWindowFunction {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn expressions(&self, args: ExpressionArgs<'_>) -> Vec<Arc<dyn PhysicalExpr>> {
        self.inner.inner().expressions(args)
    }

    fn partition_evaluator(&self, args: PartitionEvaluatorArgs<'_>) -> Result<Box<dyn PartitionEvaluator>> {
        let constants = args
            .input_exprs()
            .iter()
            .filter_map(|expr| expr.downcast_ref::<Literal>());
        Ok(Box::new(ChargedEvaluator {
            constant_bytes: constants.map(|constant| scalar_bytes(constant.value())).sum(),
            inner: self.inner.inner().partition_evaluator(args)?,
            charges: self.charges.clone(),
            needs_partition: self.look_around == LookAround::Partition,
        }))
    }

    fn simplify(&self) -> Option<datafusion::logical_expr::function::WindowFunctionSimplification> {
        None
    }

    fn field(&self, args: WindowUDFFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.field(args)
    }

    fn sort_options(&self) -> Option<datafusion::arrow::compute::SortOptions> {
        self.inner.sort_options()
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn reverse_expr(&self) -> ReversedUDWF {
        match self.inner.reverse_expr() {
            ReversedUDWF::Reversed(inner) => {
                ReversedUDWF::Reversed(Arc::new(WindowUDF::new_from_impl(ChargedWindowFunction {
                    inner,
                    charges: self.charges.clone(),
                    look_around: self.look_around,
                })))
            }
            other => other,
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn limit_effect(&self, args: &[Arc<dyn PhysicalExpr>]) -> LimitEffect {
        match self.look_around {
            LookAround::Known => self.inner.inner().limit_effect(args),
            LookAround::Following | LookAround::Partition => LimitEffect::Unknown,
        }
    }
}

#[derive(Debug)]
struct ChargedEvaluator {
    inner: Box<dyn PartitionEvaluator>,
    charges: Arc<Charges>,
    /// Each row may return the default value.
    constant_bytes: usize,
    needs_partition: bool,
}

#[warn(clippy::missing_trait_methods)]
impl PartitionEvaluator for ChargedEvaluator {
    fn memoize(&mut self, state: &mut WindowAggState) -> Result<()> {
        self.inner.memoize(state)
    }

    fn get_range(&self, idx: usize, n_rows: usize) -> Result<Range<usize>> {
        self.inner.get_range(idx, n_rows)
    }

    fn is_causal(&self) -> bool {
        self.inner.is_causal()
    }

    fn evaluate_all(&mut self, values: &[ArrayRef], num_rows: usize) -> Result<ArrayRef> {
        let given = values.first().map_or(0, |values| array_bytes(values));
        let constants = self.constant_bytes.saturating_mul(num_rows);
        self.charges.charge(num_rows, given.saturating_add(constants))?;
        self.inner.evaluate_all(values, num_rows)
    }

    fn evaluate(&mut self, values: &[ArrayRef], range: &Range<usize>) -> Result<ScalarValue> {
        let value = self.inner.evaluate(values, range)?;
        self.charges.charge(1, scalar_bytes(&value))?;
        Ok(value)
    }

    fn evaluate_all_with_rank(&self, num_rows: usize, ranks_in_partition: &[Range<usize>]) -> Result<ArrayRef> {
        self.inner.evaluate_all_with_rank(num_rows, ranks_in_partition)
    }

    fn supports_bounded_execution(&self) -> bool {
        !self.needs_partition && self.inner.supports_bounded_execution()
    }

    fn uses_window_frame(&self) -> bool {
        self.inner.uses_window_frame()
    }

    fn include_rank(&self) -> bool {
        self.inner.include_rank()
    }
}
