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
use datafusion::logical_expr::expr::{AggregateFunctionParams, NullTreatment, WindowFunctionParams};
use datafusion::logical_expr::function::{
    AccumulatorArgs, ExpressionArgs, PartitionEvaluatorArgs, StateFieldsArgs, WindowUDFFieldArgs,
};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::window_state::WindowAggState;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Expr, GroupsAccumulator, LimitEffect,
    PartitionEvaluator, ReversedUDAF, ReversedUDWF, SetMonotonicity, Signature, StatisticsArgs, WindowUDF,
    WindowUDFImpl,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use parking_lot::Mutex;

use super::budget::Budget;
use super::measure::{array_bytes, scalar_bytes};

pub const STRING_AGG: &str = "string_agg";
/// Rows that operators hold at a time, over several batches and threads.
const ROWS_HELD: usize = 1 << 17;

/// A charged wrapper of an aggregate used as a window function.
pub fn aggregate(function: &Arc<AggregateUDF>, budget: &Budget) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(ChargedAggregate {
        inner: function.clone(),
        charges: Arc::new(Charges::new(budget)),
        is_window: true,
    }))
}

/// A wrapper of an aggregate whose state is one value that is copied as it grows.
pub fn growing(function: &Arc<AggregateUDF>, budget: &Budget) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(ChargedAggregate {
        inner: function.clone(),
        charges: Arc::new(Charges::new(budget)),
        is_window: false,
    }))
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

#[derive(Debug)]
struct ChargedAggregate {
    inner: Arc<AggregateUDF>,
    charges: Arc<Charges>,
    is_window: bool,
}

impl PartialEq for ChargedAggregate {
    fn eq(&self, other: &ChargedAggregate) -> bool {
        (self.is_window, &self.inner) == (other.is_window, &other.inner)
    }
}

impl Eq for ChargedAggregate {}

impl Hash for ChargedAggregate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
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

impl AggregateUDFImpl for ChargedAggregate {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.charged(self.inner.accumulator(args)?))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(self.charged(self.inner.create_sliding_accumulator(args)?))
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.schema_name(params)
    }

    fn human_display(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.human_display(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_schema_name(params)
    }

    fn display_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.inner.display_name(params)
    }

    fn window_function_display_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.inner.window_function_display_name(params)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn with_beneficial_ordering(self: Arc<Self>, ordering: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let inner = self.inner.inner().clone().with_beneficial_ordering(ordering)?;
        Ok(inner.map(|inner| {
            Arc::new(ChargedAggregate {
                inner: Arc::new(AggregateUDF::new_from_shared_impl(inner)),
                charges: self.charges.clone(),
                is_window: self.is_window,
            }) as Arc<dyn AggregateUDFImpl>
        }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.inner.reverse_udf() {
            ReversedUDAF::Reversed(inner) => {
                ReversedUDAF::Reversed(Arc::new(AggregateUDF::new_from_impl(ChargedAggregate {
                    inner,
                    charges: self.charges.clone(),
                    is_window: self.is_window,
                })))
            }
            other => other,
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        !self.is_window && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(arg_fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
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
