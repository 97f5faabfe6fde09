//! `min` and `max` of doubles by group. The library's start with the largest and the smallest finite double and compare with
//! `<`: the maximum of `-Infinity` alone would be -1.8e308, and NaN, which is above all numbers everywhere else, would never be
//! the maximum.

use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray as _, BooleanArray, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{AggregateUDF, EmitTo, GroupsAccumulator};

use super::floats::canonical;
use crate::delegating_aggregate::{AggregateParts, delegating};

/// The functions, which replace the library's.
pub fn functions() -> [Arc<AggregateUDF>; 2] {
    [(min_udaf(), false), (max_udaf(), true)].map(|(inner, is_max)| delegating(inner, ExtremeOfDoubles { is_max }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ExtremeOfDoubles {
    is_max: bool,
}

impl AggregateParts for ExtremeOfDoubles {
    fn groups_accumulator(
        &self,
        inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_type() {
            kind @ (DataType::Float64 | DataType::Float32) => Ok(Box::new(GroupedExtremes {
                kind: kind.clone(),
                is_max: self.is_max,
                extremes: Vec::new(),
            })),
            _ => inner.create_groups_accumulator(args),
        }
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
