//! `min` and `max` of doubles by group. The library's start with the largest and the smallest finite double and compare with
//! `<`: the maximum of `-Infinity` alone would be -1.8e308, and NaN, which is above all numbers everywhere else, would never be
//! the maximum.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray as _, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err};
use datafusion::functions_aggregate::min_max::{max_udaf, min_udaf};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{AggregateUDF, GroupsAccumulator};

use super::floats::canonical;
use super::grouped::{GroupReduction, Grouped, GroupedRows, Groups};
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
            kind @ (DataType::Float64 | DataType::Float32) => Ok(Grouped::boxed(GroupedExtremes {
                kind: kind.clone(),
                is_max: self.is_max,
            })),
            _ => inner.create_groups_accumulator(args),
        }
    }
}

#[derive(Debug)]
struct GroupedExtremes {
    kind: DataType,
    is_max: bool,
}

impl GroupReduction for GroupedExtremes {
    type Group = Option<f64>;

    fn add(&self, groups: &mut Groups<Option<f64>>, values: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        for (at, value) in doubles(values)?.iter().enumerate() {
            let group = rows.group(at).and_then(|group| groups.all.get_mut(group));
            let (Some(value), Some(extreme)) = (value.map(canonical), group) else {
                continue;
            };
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

    fn result(&self, groups: Vec<Option<f64>>) -> Result<ArrayRef> {
        let array: ArrayRef = Arc::new(Float64Array::from(groups));
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
