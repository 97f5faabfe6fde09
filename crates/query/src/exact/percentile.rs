//! `percentile_cont` with exact interpolation. The library's rounds the weight to a millionth (`INTERPOLATION_PRECISION`), so
//! the result is off in the seventh digit between two values that are far apart.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray as _, Float64Array, Float64Builder, ListArray, ListBuilder};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::types::logical_float64;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, Coercion, GroupsAccumulator, Signature, TypeSignatureClass, Volatility,
};
use datafusion::physical_expr::expressions::Literal;

use super::floats::canonical;
use super::grouped::{GroupReduction, Grouped, GroupedRows, Groups};
use super::ordered_doubles::OrderedDoubles;
use crate::delegating_aggregate::{AggregateParts, delegating};

/// Replaces the library's function.
pub fn function() -> Result<Arc<AggregateUDF>> {
    let number = || {
        Coercion::new_implicit(
            TypeSignatureClass::Native(logical_float64()),
            vec![TypeSignatureClass::Numeric],
            datafusion::common::types::NativeType::Float64,
        )
    };
    let signature = Signature::coercible(vec![number(), number()], Volatility::Immutable)
        .with_parameter_names(vec!["expr", "percentile"])?;
    Ok(delegating(percentile_cont_udaf(), ExactPercentile { signature }))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ExactPercentile {
    signature: Signature,
}

impl AggregateParts for ExactPercentile {
    fn signature<'a>(&'a self, _inner: &'a AggregateUDF) -> &'a Signature {
        &self.signature
    }

    fn state_fields(&self, inner: &AggregateUDF, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let values = Field::new_list_field(DataType::Float64, true);
        let name = format_state_name(args.name, inner.name());
        Ok(vec![Arc::new(Field::new_list(name, values, true))])
    }

    fn accumulator(&self, _inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(PercentileValues {
            wanted: WantedPercentile::of(&args)?,
            values: OrderedDoubles::default(),
        }))
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.accumulator(inner, args)
    }

    fn has_groups_accumulator(&self, _inner: &AggregateUDF, _args: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn groups_accumulator(
        &self,
        _inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Grouped::boxed(WantedPercentile::of(&args)?))
    }
}

#[derive(Clone, Copy, Debug)]
struct WantedPercentile {
    percentile: f64,
    is_descending: bool,
    is_distinct: bool,
}

impl WantedPercentile {
    fn of(args: &AccumulatorArgs<'_>) -> Result<WantedPercentile> {
        let constant = args.exprs.get(1).and_then(|expr| expr.downcast_ref::<Literal>());
        let Some(ScalarValue::Float64(Some(percentile))) = constant.map(Literal::value) else {
            return plan_err!("{}: the percentile must be a constant number from 0 to 1", args.name);
        };
        if !(0.0..=1.0).contains(percentile) {
            return plan_err!("{}: the percentile {percentile} is not from 0 to 1", args.name);
        }
        Ok(WantedPercentile {
            percentile: *percentile,
            is_descending: args.order_bys.first().is_some_and(|sort| sort.options.descending),
            is_distinct: args.is_distinct,
        })
    }

    /// The percentile of values in any order.
    fn among(self, values: &mut Vec<f64>) -> Option<f64> {
        values.iter_mut().for_each(|value| *value = canonical(*value));
        values.sort_unstable_by(f64::total_cmp);
        if self.is_distinct {
            values.dedup_by(|a, b| a.to_bits() == b.to_bits());
        }
        self.between(values.len(), |at| values.get(at).copied())
    }

    /// Interpolates between the two values next to the position `percentile * (n - 1)`. `at` gives those of an ascending order.
    fn between(self, count: usize, at: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        let last = count.checked_sub(1)?;
        let position = self.percentile * last as f64;
        let (before, after) = (position.floor(), position.ceil());
        let weight = position - before;
        let at = |index: f64| {
            let index = (index as usize).min(last);
            at(if self.is_descending { last - index } else { index })
        };
        let (low, high) = (at(before)?, at(after)?);
        Some(match weight == 0.0 || low == high {
            true => low,
            // Not `low + (high - low) * weight`: the difference of two doubles can be infinite.
            false => low * (1.0 - weight) + high * weight,
        })
    }
}

fn doubles(values: Option<&ArrayRef>) -> Result<&Float64Array> {
    match values.and_then(|values| values.as_primitive_opt::<Float64Type>()) {
        Some(values) => Ok(values),
        None => exec_err!("percentile_cont takes doubles"),
    }
}

fn lists(states: &[ArrayRef]) -> Result<&ListArray> {
    match states.first().and_then(|states| states.as_list_opt::<i32>()) {
        Some(lists) => Ok(lists),
        None => exec_err!("percentile_cont merges lists"),
    }
}

/// Memory for the values is reserved after a batch, so a batch that does not fit must not end the process.
fn no_memory(error: std::collections::TryReserveError) -> DataFusionError {
    DataFusionError::ResourcesExhausted(format!("percentile_cont: {error}"))
}

fn state(groups: Vec<Vec<f64>>) -> ArrayRef {
    let mut lists = ListBuilder::new(Float64Builder::new());
    for values in groups {
        lists.values().append_slice(&values);
        lists.append(true);
    }
    Arc::new(lists.finish())
}

/// The values of one group or window.
#[derive(Debug)]
struct PercentileValues {
    wanted: WantedPercentile,
    values: OrderedDoubles,
}

impl Accumulator for PercentileValues {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = doubles(values.first())?;
        self.values.reserve(values.len()).map_err(no_memory)?;
        values
            .iter()
            .flatten()
            .for_each(|value| self.values.add(canonical(value)));
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let lists = lists(states)?;
        lists
            .iter()
            .flatten()
            .try_for_each(|values| self.update_batch(&[values]))
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in doubles(values.first())?.iter().flatten() {
            if !self.values.remove(canonical(value)) {
                return exec_err!("percentile_cont: {value} leaves a window that it is not in");
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // A window goes on with all of its values.
        self.values.sort();
        Ok(ScalarValue::Float64(match self.wanted.is_distinct {
            true => self.wanted.among(&mut self.values.all()),
            false => self.wanted.between(self.values.len(), |at| self.values.at(at)),
        }))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let lists = state(vec![std::mem::take(&mut self.values).all()]);
        Ok(vec![ScalarValue::try_from_array(&lists, 0)?])
    }

    fn size(&self) -> usize {
        size_of::<PercentileValues>() + self.values.bytes()
    }
}

/// The values of many groups.
impl GroupReduction for WantedPercentile {
    type Group = Vec<f64>;

    fn add(&self, groups: &mut Groups<Vec<f64>>, values: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        for (at, value) in doubles(values.first())?.iter().enumerate() {
            if let (Some(value), Some(group)) = (value, rows.group(at)) {
                extend(groups, group, std::iter::once(Some(value)))?;
            }
        }
        Ok(())
    }

    fn merge(&self, groups: &mut Groups<Vec<f64>>, states: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        for (at, values) in lists(states)?.iter().enumerate() {
            if let (Some(values), Some(group)) = (values, rows.group(at)) {
                extend(groups, group, doubles(Some(&values))?.iter())?;
            }
        }
        Ok(())
    }

    fn result(&self, mut groups: Vec<Vec<f64>>) -> Result<ArrayRef> {
        let all = groups.iter_mut().map(|values| self.among(values));
        Ok(Arc::new(all.collect::<Float64Array>()))
    }

    fn state(&self, groups: Vec<Vec<f64>>) -> Result<Vec<ArrayRef>> {
        Ok(vec![state(groups)])
    }

    fn allocated_bytes(group: &Vec<f64>) -> usize {
        group.capacity() * size_of::<f64>()
    }
}

fn extend(
    groups: &mut Groups<Vec<f64>>,
    group: usize,
    values: impl ExactSizeIterator<Item = Option<f64>>,
) -> Result<()> {
    let Some(group) = groups.all.get_mut(group) else {
        return Ok(());
    };
    let before = WantedPercentile::allocated_bytes(group);
    group.try_reserve(values.len()).map_err(no_memory)?;
    group.extend(values.flatten());
    groups.bytes += WantedPercentile::allocated_bytes(group) - before;
    Ok(())
}
