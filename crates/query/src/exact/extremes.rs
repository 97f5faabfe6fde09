//! `min` and `max` of doubles by group. The library's start with the largest and the smallest finite double and compare with
//! `<`: the maximum of `-Infinity` alone would be -1.8e308, and NaN, which is above all numbers everywhere else, would never be
//! the maximum.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray as _, BooleanArray, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Float64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature, StatisticsArgs,
};

use super::floats::canonical;

/// The functions, which replace the library's.
pub fn functions() -> [Arc<AggregateUDF>; 2] {
    [(min_udaf(), false), (max_udaf(), true)]
        .map(|(inner, is_max)| Arc::new(AggregateUDF::new_from_impl(Extreme { inner, is_max })))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme {
    inner: Arc<AggregateUDF>,
    is_max: bool,
}

impl AggregateUDFImpl for Extreme {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.inner.return_type(given)
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(given)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.inner.create_sliding_accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_type() {
            kind @ (DataType::Float64 | DataType::Float32) => Ok(Box::new(GroupedExtremes {
                kind: kind.clone(),
                is_max: self.is_max,
                extremes: Vec::new(),
            })),
            _ => self.inner.create_groups_accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn default_value(&self, kind: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(kind)
    }

    fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(kind)
    }

    fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        self.inner.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

#[derive(Debug)]
struct GroupedExtremes {
    kind: DataType,
    is_max: bool,
    extremes: Vec<Option<f64>>,
}

impl GroupedExtremes {
    fn add(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.extremes.resize(count, None);
        let values = doubles(values)?;
        for (at, (value, group)) in values.iter().zip(groups).enumerate() {
            let is_wanted = filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
            let (Some(value), true, Some(extreme)) = (value, is_wanted, self.extremes.get_mut(*group)) else {
                continue;
            };
            let value = canonical(value);
            let is_better = |known: &f64| match self.is_max {
                true => value.total_cmp(known).is_gt(),
                false => value.total_cmp(known).is_lt(),
            };
            if extreme.as_ref().is_none_or(is_better) {
                *extreme = Some(value);
            }
        }
        Ok(())
    }

    fn array(&self, extremes: Vec<Option<f64>>) -> Result<ArrayRef> {
        let array: ArrayRef = Arc::new(Float64Array::from(extremes));
        Ok(cast(&array, &self.kind)?)
    }
}

/// A single is a double without loss.
fn doubles(values: &[ArrayRef]) -> Result<Float64Array> {
    match values.first() {
        Some(values) => Ok(cast(values, &DataType::Float64)?.as_primitive::<Float64Type>().clone()),
        None => exec_err!("min and max take one value"),
    }
}

impl GroupsAccumulator for GroupedExtremes {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.add(values, groups, filter, count)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.add(states, groups, None, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let extremes = emit_to.take_needed(&mut self.extremes);
        self.array(extremes)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = doubles(values)?;
        let wanted = |at: usize| filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let kept = values.iter().enumerate();
        let kept = kept.map(|(at, value)| value.filter(|_| wanted(at))).collect();
        Ok(vec![self.array(kept)?])
    }

    fn size(&self) -> usize {
        self.extremes.capacity() * size_of::<Option<f64>>()
    }
}
