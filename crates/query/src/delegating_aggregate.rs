//! An aggregate function that is the library's but for some parts. [`AggregateParts`] has a hook for each part that one of
//! them replaces; the rest is passed on here, once for all of them.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{AggregateFunction, AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, Expr, GroupsAccumulator, Operator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};

/// What a function replaces. Each hook gets the library's function and by default calls it.
pub trait AggregateParts: Clone + Debug + Eq + Hash + Send + Sync + 'static {
    fn name<'a>(&'a self, inner: &'a AggregateUDF) -> &'a str {
        inner.name()
    }

    fn signature<'a>(&'a self, inner: &'a AggregateUDF) -> &'a Signature {
        inner.signature()
    }

    fn coerce_types(&self, inner: &AggregateUDF, given: &[DataType]) -> Result<Vec<DataType>> {
        inner.coerce_types(given)
    }

    fn state_fields(&self, inner: &AggregateUDF, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        inner.state_fields(args)
    }

    fn accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        inner.accumulator(args)
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        inner.create_sliding_accumulator(args)
    }

    fn has_groups_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> bool {
        inner.groups_accumulator_supported(args)
    }

    fn groups_accumulator(
        &self,
        inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        inner.create_groups_accumulator(args)
    }

    /// Whether it is an extreme in the order of its values: the last or the first.
    fn is_descending(&self, inner: &AggregateUDF) -> Option<bool> {
        inner.is_descending()
    }

    fn set_monotonicity(&self, inner: &AggregateUDF, kind: &DataType) -> SetMonotonicity {
        inner.inner().set_monotonicity(kind)
    }

    /// The result as far as exact statistics of a scan tell it.
    fn value_from_stats(&self, inner: &AggregateUDF, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        inner.value_from_stats(args)
    }
}

/// The function made of these parts and of the library's function.
pub fn delegating<P: AggregateParts>(inner: Arc<AggregateUDF>, parts: P) -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(DelegatingAggregate { inner, parts }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DelegatingAggregate<P> {
    inner: Arc<AggregateUDF>,
    parts: P,
}

#[warn(clippy::missing_trait_methods)]
impl<P: AggregateParts> AggregateUDFImpl for DelegatingAggregate<P> {
    fn name(&self) -> &str {
        self.parts.name(&self.inner)
    }

    fn aliases(&self) -> &[String] {
        match self.name() == self.inner.name() {
            true => self.inner.aliases(),
            false => &[],
        }
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

    fn signature(&self) -> &Signature {
        self.parts.signature(&self.inner)
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        self.parts.coerce_types(&self.inner, given)
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.inner.return_type(given)
    }

    fn return_field(&self, arg_fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(arg_fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.parts.accumulator(&self.inner, args)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.parts.state_fields(&self.inner, args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.parts.has_groups_accumulator(&self.inner, args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        self.parts.groups_accumulator(&self.inner, args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.parts.sliding_accumulator(&self.inner, args)
    }

    fn with_beneficial_ordering(self: Arc<Self>, ordering: bool) -> Result<Option<Arc<dyn AggregateUDFImpl>>> {
        let inner = self.inner.inner().clone().with_beneficial_ordering(ordering)?;
        Ok(inner.map(|inner| {
            Arc::new(DelegatingAggregate {
                inner: Arc::new(AggregateUDF::new_from_shared_impl(inner)),
                parts: self.parts.clone(),
            }) as Arc<dyn AggregateUDFImpl>
        }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    /// A simpler call would be one of the library's function.
    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        None
    }

    fn simplify_expr_op_literal(
        &self,
        _function: &AggregateFunction,
        _arg: &Expr,
        _op: Operator,
        _literal: &Expr,
        _arg_is_left: bool,
    ) -> Result<Option<Expr>> {
        Ok(None)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        match self.inner.reverse_udf() {
            ReversedUDAF::Reversed(inner) => ReversedUDAF::Reversed(delegating(inner, self.parts.clone())),
            other => other,
        }
    }

    fn is_descending(&self) -> Option<bool> {
        self.parts.is_descending(&self.inner)
    }

    fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.parts.value_from_stats(&self.inner, args)
    }

    fn default_value(&self, kind: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(kind)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }

    fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
        self.parts.set_monotonicity(&self.inner, kind)
    }
}
