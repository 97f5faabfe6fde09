//! `sum` of intervals and of decimals of 256 bits, each added in its own type and checked at each step. Sums of distinct values
//! are left to the library.

use std::fmt::Debug;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array as _, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray as _, BooleanArray, PrimitiveArray,
    PrimitiveBuilder,
};
use datafusion::arrow::datatypes::{
    DataType, Decimal256Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::function::AccumulatorArgs;
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use crate::error::QueryError;

/// The accumulator for a sum of one of these types.
pub fn accumulator(is_sum: bool, args: &AccumulatorArgs<'_>) -> Option<Box<dyn Accumulator>> {
    if !is_sum || args.is_distinct {
        return None;
    }
    let kind = args.return_type();
    Some(match kind {
        DataType::Interval(IntervalUnit::YearMonth) => boxed::<IntervalYearMonthType>(kind),
        DataType::Interval(IntervalUnit::DayTime) => boxed::<IntervalDayTimeType>(kind),
        DataType::Interval(IntervalUnit::MonthDayNano) => boxed::<IntervalMonthDayNanoType>(kind),
        DataType::Decimal256(..) => boxed::<Decimal256Type>(kind),
        _ => return None,
    })
}

/// The same for many groups.
pub fn groups_accumulator(is_sum: bool, args: &AccumulatorArgs<'_>) -> Option<Box<dyn GroupsAccumulator>> {
    if !is_sum || args.is_distinct {
        return None;
    }
    let kind = args.return_type();
    Some(match kind {
        DataType::Interval(IntervalUnit::YearMonth) => grouped::<IntervalYearMonthType>(kind),
        DataType::Interval(IntervalUnit::DayTime) => grouped::<IntervalDayTimeType>(kind),
        DataType::Interval(IntervalUnit::MonthDayNano) => grouped::<IntervalMonthDayNanoType>(kind),
        DataType::Decimal256(..) => grouped::<Decimal256Type>(kind),
        _ => return None,
    })
}

fn boxed<T: ArrowPrimitiveType + Debug>(kind: &DataType) -> Box<dyn Accumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    Box::new(NativeSum::<T> {
        kind: kind.clone(),
        sum: T::Native::ZERO,
        count: 0,
    })
}

fn grouped<T: ArrowPrimitiveType + Debug>(kind: &DataType) -> Box<dyn GroupsAccumulator>
where
    T::Native: ArrowNativeTypeOp,
{
    Box::new(NativeSums::<T> {
        kind: kind.clone(),
        sums: Vec::new(),
    })
}

fn out_of_range(kind: &DataType) -> DataFusionError {
    DataFusionError::External(Box::new(QueryError::execute(format!(
        "the sum is out of the range of {kind}; leave out such values"
    ))))
}

fn native<T: ArrowPrimitiveType>(values: &[ArrayRef]) -> Result<&PrimitiveArray<T>> {
    match values.first().and_then(|values| values.as_primitive_opt::<T>()) {
        Some(values) => Ok(values),
        None => exec_err!("a sum of {}", T::DATA_TYPE),
    }
}

/// The sum of one group or of a window.
#[derive(Debug)]
struct NativeSum<T: ArrowPrimitiveType> {
    kind: DataType,
    sum: T::Native,
    /// Values that are not null; those that left the window are subtracted.
    count: u64,
}

impl<T: ArrowPrimitiveType + Debug> Accumulator for NativeSum<T>
where
    T::Native: ArrowNativeTypeOp,
{
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in native::<T>(values)?.iter().flatten() {
            self.sum = self.sum.add_checked(value).map_err(|_| out_of_range(&self.kind))?;
            self.count += 1;
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in native::<T>(values)?.iter().flatten() {
            self.sum = self.sum.sub_checked(value).map_err(|_| out_of_range(&self.kind))?;
            self.count = self.count.saturating_sub(1);
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = (self.count > 0).then_some(self.sum);
        ScalarValue::try_from_array(&array::<T>(vec![sum], &self.kind)?, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn size(&self) -> usize {
        size_of::<NativeSum<T>>()
    }
}

/// Fails if a decimal has more digits than its type.
fn array<T: ArrowPrimitiveType>(sums: Vec<Option<T::Native>>, kind: &DataType) -> Result<ArrayRef> {
    let mut builder = PrimitiveBuilder::<T>::with_capacity(sums.len());
    sums.into_iter().for_each(|sum| builder.append_option(sum));
    let sums: ArrayRef = Arc::new(builder.finish().with_data_type(kind.clone()));
    if let DataType::Decimal256(digits, _) = kind {
        let decimals = sums.as_primitive::<Decimal256Type>();
        decimals
            .validate_decimal_precision(*digits)
            .map_err(|_| out_of_range(kind))?;
    }
    Ok(sums)
}

/// The sums of many groups.
#[derive(Debug)]
struct NativeSums<T: ArrowPrimitiveType> {
    kind: DataType,
    sums: Vec<Option<T::Native>>,
}

impl<T: ArrowPrimitiveType + Debug> GroupsAccumulator for NativeSums<T>
where
    T::Native: ArrowNativeTypeOp,
{
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.resize(count, None);
        for (at, (value, group)) in native::<T>(values)?.iter().zip(groups).enumerate() {
            let is_wanted = filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
            if let (Some(value), true, Some(sum)) = (value, is_wanted, self.sums.get_mut(*group)) {
                let added = sum.unwrap_or(T::Native::ZERO).add_checked(value);
                *sum = Some(added.map_err(|_| out_of_range(&self.kind))?);
            }
        }
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.update_batch(states, groups, None, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        array::<T>(emit_to.take_needed(&mut self.sums), &self.kind)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = native::<T>(values)?.iter().enumerate();
        let wanted = |at: usize| filter.is_none_or(|filter| filter.is_valid(at) && filter.value(at));
        let kept = values.map(|(at, value)| value.filter(|_| wanted(at)));
        Ok(vec![array::<T>(kept.collect(), &self.kind)?])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<Option<T::Native>>()
    }
}
