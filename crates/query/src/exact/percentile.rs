//! `percentile_cont` with exact interpolation. The library's rounds the weight to a millionth (`INTERPOLATION_PRECISION`), so
//! the result is off in the seventh digit between two values that are far apart.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array as _, ArrayRef, AsArray as _, BooleanArray, Float64Array, Float64Builder, ListArray, ListBuilder,
};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Float64Type};
use datafusion::common::types::logical_float64;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Coercion, Documentation, EmitTo, GroupsAccumulator, Signature,
    TypeSignatureClass, Volatility,
};
use datafusion::physical_expr::expressions::Literal;

use super::floats::canonical;

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
    let inner = datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf();
    Ok(Arc::new(AggregateUDF::new_from_impl(ExactPercentile {
        signature,
        inner,
    })))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ExactPercentile {
    signature: Signature,
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for ExactPercentile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let values = Field::new_list_field(DataType::Float64, true);
        let name = format_state_name(args.name, self.name());
        Ok(vec![Arc::new(Field::new_list(name, values, true))])
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(PercentileValues {
            wanted: WantedPercentile::of(&args)?,
            values: Vec::new(),
        }))
    }

    fn groups_accumulator_supported(&self, _args: AccumulatorArgs<'_>) -> bool {
        true
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(GroupedPercentileValues {
            wanted: WantedPercentile::of(&args)?,
            groups: Vec::new(),
        }))
    }

    fn supports_within_group_clause(&self) -> bool {
        true
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
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

    /// Interpolates between the two values next to the position `percentile * (n - 1)`.
    fn among(self, values: &mut Vec<f64>) -> Option<f64> {
        values.iter_mut().for_each(|value| *value = canonical(*value));
        values.sort_unstable_by(f64::total_cmp);
        if self.is_distinct {
            values.dedup_by(|a, b| a.to_bits() == b.to_bits());
        }
        let last = values.len().checked_sub(1)?;
        let position = self.percentile * last as f64;
        let (before, after) = (position.floor(), position.ceil());
        let weight = position - before;
        let at = |index: f64| {
            let index = (index as usize).min(last);
            let index = if self.is_descending { last - index } else { index };
            values.get(index).copied()
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
fn reserve(values: &mut Vec<f64>, more: usize) -> Result<()> {
    let failed = |error| DataFusionError::ResourcesExhausted(format!("percentile_cont: {error}"));
    values.try_reserve(more).map_err(failed)
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
    values: Vec<f64>,
}

impl Accumulator for PercentileValues {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = doubles(values.first())?;
        reserve(&mut self.values, values.len())?;
        self.values.extend(values.iter().flatten());
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
            let bits = canonical(value).to_bits();
            let at = self.values.iter().position(|known| canonical(*known).to_bits() == bits);
            match at {
                Some(at) => drop(self.values.swap_remove(at)),
                None => return exec_err!("percentile_cont: {value} leaves a window that it is not in"),
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        // A window goes on with all of its values.
        let mut values = self.values.clone();
        Ok(ScalarValue::Float64(self.wanted.among(&mut values)))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let lists = state(vec![std::mem::take(&mut self.values)]);
        Ok(vec![ScalarValue::try_from_array(&lists, 0)?])
    }

    fn size(&self) -> usize {
        size_of::<PercentileValues>() + 2 * self.values.capacity() * size_of::<f64>()
    }
}

/// The values of many groups.
#[derive(Debug)]
struct GroupedPercentileValues {
    wanted: WantedPercentile,
    groups: Vec<Vec<f64>>,
}

impl GroupsAccumulator for GroupedPercentileValues {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.groups.resize_with(count, Vec::new);
        let values = doubles(values.first())?;
        for (at, (value, group)) in values.iter().zip(groups).enumerate() {
            let is_wanted = filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
            if let (Some(value), true, Some(group)) = (value, is_wanted, self.groups.get_mut(*group)) {
                group.push(value);
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.groups.resize_with(count, Vec::new);
        for (values, group) in lists(states)?.iter().zip(groups) {
            if let (Some(values), Some(group)) = (values, self.groups.get_mut(*group)) {
                let values = doubles(Some(&values))?;
                reserve(group, values.len())?;
                group.extend(values.iter().flatten());
            }
        }
        Ok(())
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let mut groups = emit_to.take_needed(&mut self.groups);
        let all = groups.iter_mut().map(|values| self.wanted.among(values));
        Ok(Arc::new(all.collect::<Float64Array>()))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![state(emit_to.take_needed(&mut self.groups))])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = doubles(values.first())?;
        let wanted = |at: usize| filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let each = values.iter().enumerate();
        let each = each.map(|(at, value)| value.filter(|_| wanted(at)).into_iter().collect());
        Ok(vec![state(each.collect())])
    }

    fn size(&self) -> usize {
        let values: usize = self.groups.iter().map(Vec::capacity).sum();
        values * size_of::<f64>() + self.groups.capacity() * size_of::<Vec<f64>>()
    }
}
