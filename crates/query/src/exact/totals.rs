//! `sum` of integers, durations, decimals and intervals, and `avg` of durations and decimals, which fail if the result is out of
//! range. The library's wrap (`add_wrapping` in its `Sum` and `Avg`). Integers, durations and most decimals are added in 128
//! bits, so only the result counts, not the order of the rows. Doubles do not wrap and are left to the library; so is `avg` of
//! integers, which is one of doubles.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array as _, ArrayRef, ArrowNativeTypeOp as _, AsArray as _, PrimitiveArray, UInt64Array,
};
use datafusion::arrow::datatypes::{
    ArrowNativeType as _, DataType, Decimal128Type, Decimal256Type, Field, FieldRef, IntervalDayTimeType,
    IntervalMonthDayNanoType, IntervalUnit, IntervalYearMonthType, UInt64Type,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::{average::avg_udaf, sum::sum_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, GroupsAccumulator, StatisticsArgs};

use super::grouped::{GroupReduction, Grouped, GroupedRows, Groups};
use super::summands::Summand;
use crate::delegating_aggregate::{AggregateParts, delegating};
use crate::error::QueryError;

/// Replaces the library's `sum`.
pub fn sum() -> Arc<AggregateUDF> {
    delegating(sum_udaf(), ExactTotal::Sum)
}

/// Replaces the library's `avg`.
pub fn average() -> Arc<AggregateUDF> {
    delegating(avg_udaf(), ExactTotal::Average)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ExactTotal {
    Sum,
    Average,
}

/// In which type values are added.
#[derive(Clone, Copy)]
enum SummandType {
    Wide,
    Decimal256,
    Interval(IntervalUnit),
}

impl ExactTotal {
    /// The type to add in, if the library's function with this result wraps.
    fn summand(self, result: &DataType) -> Option<SummandType> {
        match result {
            DataType::Int64 | DataType::UInt64 if self == ExactTotal::Sum => Some(SummandType::Wide),
            DataType::Duration(_) | DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
                Some(SummandType::Wide)
            }
            DataType::Decimal256(..) => Some(SummandType::Decimal256),
            DataType::Interval(unit) if self == ExactTotal::Sum => Some(SummandType::Interval(*unit)),
            _ => None,
        }
    }

    /// For one group or window.
    fn of_rows(self, args: &AccumulatorArgs<'_>) -> Result<Option<Box<dyn Accumulator>>> {
        Ok(match self.summand(args.return_type()) {
            None => None,
            Some(SummandType::Wide) => Some(TotalOfRows::<Decimal128Type>::boxed(self, args)?),
            Some(SummandType::Decimal256) => Some(TotalOfRows::<Decimal256Type>::boxed(self, args)?),
            Some(SummandType::Interval(unit)) => Some(match unit {
                IntervalUnit::YearMonth => TotalOfRows::<IntervalYearMonthType>::boxed(self, args)?,
                IntervalUnit::DayTime => TotalOfRows::<IntervalDayTimeType>::boxed(self, args)?,
                IntervalUnit::MonthDayNano => TotalOfRows::<IntervalMonthDayNanoType>::boxed(self, args)?,
            }),
        })
    }

    fn of_groups(self, args: &AccumulatorArgs<'_>) -> Result<Option<Box<dyn GroupsAccumulator>>> {
        Ok(match self.summand(args.return_type()) {
            None => None,
            Some(SummandType::Wide) => Some(Grouped::boxed(TotalResult::<Decimal128Type>::of(self, args)?)),
            Some(SummandType::Decimal256) => Some(Grouped::boxed(TotalResult::<Decimal256Type>::of(self, args)?)),
            Some(SummandType::Interval(unit)) => Some(match unit {
                IntervalUnit::YearMonth => Grouped::boxed(TotalResult::<IntervalYearMonthType>::of(self, args)?),
                IntervalUnit::DayTime => Grouped::boxed(TotalResult::<IntervalDayTimeType>::of(self, args)?),
                IntervalUnit::MonthDayNano => Grouped::boxed(TotalResult::<IntervalMonthDayNanoType>::of(self, args)?),
            }),
        })
    }
}

impl AggregateParts for ExactTotal {
    fn state_fields(&self, inner: &AggregateUDF, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        let state = match self.summand(args.return_type()) {
            None => return inner.state_fields(args),
            Some(SummandType::Wide) => Decimal128Type::STATE,
            Some(SummandType::Decimal256) => Decimal256Type::STATE,
            Some(SummandType::Interval(unit)) => DataType::Interval(unit),
        };
        let name = |part: &str| format_state_name(args.name, part);
        Ok(match (args.is_distinct, self) {
            (true, _) => {
                let item = Field::new_list_field(state, true);
                vec![Arc::new(Field::new_list(name("values"), item, true))]
            }
            (false, ExactTotal::Sum) => vec![Arc::new(Field::new(name("sum"), state, true))],
            (false, ExactTotal::Average) => vec![
                Arc::new(Field::new(name("sum"), state, true)),
                Arc::new(Field::new(name("count"), DataType::UInt64, true)),
            ],
        })
    }

    fn accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.of_rows(&args)? {
            Some(total) => Ok(total),
            None => inner.accumulator(args),
        }
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.of_rows(&args)? {
            Some(total) => Ok(total),
            None => inner.create_sliding_accumulator(args),
        }
    }

    fn groups_accumulator(
        &self,
        inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match self.of_groups(&args)? {
            Some(totals) => Ok(totals),
            None => inner.create_groups_accumulator(args),
        }
    }

    /// A sum that a file tells may have wrapped.
    fn value_from_stats(&self, _inner: &AggregateUDF, _args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        None
    }
}

/// What is made of a sum.
#[derive(Debug)]
struct TotalResult<T: Summand> {
    total: ExactTotal,
    kind: DataType,
    /// The average of decimals has more digits than they have: what their sum is multiplied with.
    factor: T::Native,
}

impl<T: Summand> TotalResult<T> {
    fn of(total: ExactTotal, args: &AccumulatorArgs<'_>) -> Result<TotalResult<T>> {
        let kind = args.return_type().clone();
        let given = args.expr_fields.first().map(|field| field.data_type().clone());
        let factor = match (total, given.as_ref().and_then(scale), scale(&kind)) {
            (ExactTotal::Average, Some(before), Some(after)) => u32::try_from(after - before)
                .ok()
                .and_then(|more| T::Native::from_usize(10)?.pow_checked(more).ok()),
            _ => Some(T::Native::ONE),
        };
        match factor {
            Some(factor) => Ok(TotalResult { total, kind, factor }),
            None => exec_err!("the average of {given:?} as {kind}"),
        }
    }

    /// The result for the sum of so many values, without a point if it is a decimal.
    fn value(&self, sum: T::Native, count: u64) -> Result<Option<T::Native>> {
        let value = match (self.total, count) {
            (_, 0) => return Ok(None),
            (ExactTotal::Sum, _) => Some(sum),
            (ExactTotal::Average, count) => self.average(sum, count),
        };
        match value.filter(|value| T::is_in_range(*value, &self.kind)) {
            Some(value) => Ok(Some(value)),
            None => Err(self.out_of_range()),
        }
    }

    /// In two parts, so that only the result must be in range, not the sum with more digits.
    fn average(&self, sum: T::Native, count: u64) -> Option<T::Native> {
        let count = T::Native::from_usize(usize::try_from(count).ok()?)?;
        let (whole, rest) = (sum.div_checked(count).ok()?, sum.mod_checked(count).ok()?);
        let whole = whole.mul_checked(self.factor).ok()?;
        let rest = rest.mul_checked(self.factor).ok()?.div_checked(count).ok()?;
        whole.add_checked(rest).ok()
    }

    fn out_of_range(&self) -> DataFusionError {
        let cure = match &self.kind {
            DataType::Int64 | DataType::UInt64 => {
                "convert the values before: sum(cast(… as decimal(38, 0))) or sum(cast(… as double))"
            }
            DataType::Duration(_) | DataType::Interval(_) => "leave out such values",
            _ => "convert the values before: cast(… as double)",
        };
        DataFusionError::External(Box::new(QueryError::execute(format!(
            "the sum is out of the range of {}; {cure}",
            self.kind
        ))))
    }
}

fn scale(kind: &DataType) -> Option<i8> {
    match kind {
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => Some(*scale),
        _ => None,
    }
}

/// Calls a function with the position and the value of each value.
fn each_value<T: Summand>(values: &[ArrayRef], visit: impl FnMut(usize, T::Native)) -> Result<()> {
    match values.first() {
        Some(values) => T::each(values, visit),
        None => exec_err!("a sum takes one value"),
    }
}

/// The total of one group or of a window.
#[derive(Debug)]
struct TotalOfRows<T: Summand> {
    result: TotalResult<T>,
    sum: T::Native,
    /// Values that are not null; those that left the window are subtracted.
    count: u64,
    /// For `DISTINCT`: how often each value is there.
    distinct: Option<HashMap<T::Native, u64>>,
}

impl<T: Summand> TotalOfRows<T> {
    fn boxed(total: ExactTotal, args: &AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(TotalOfRows::<T> {
            result: TotalResult::of(total, args)?,
            sum: T::Native::ZERO,
            count: 0,
            distinct: args.is_distinct.then(HashMap::new),
        }))
    }

    /// Adds partial sums, and how many values they are of.
    fn add_partial(&mut self, states: &[ArrayRef]) -> Result<()> {
        let counts = counts(states)?;
        let mut sum = Some(self.sum);
        each_value::<T>(states, |at, value| {
            self.count += counts.map_or(1, |counts| counts.value(at));
            sum = sum.and_then(|sum| sum.add_checked(value).ok());
        })?;
        self.sum = sum.ok_or_else(|| self.result.out_of_range())?;
        Ok(())
    }
}

/// The second column of partial averages.
fn counts(states: &[ArrayRef]) -> Result<Option<&UInt64Array>> {
    match states.get(1) {
        None => Ok(None),
        Some(counts) => match counts.as_primitive_opt::<UInt64Type>() {
            Some(counts) => Ok(Some(counts)),
            None => exec_err!("a partial average has no count"),
        },
    }
}

impl<T: Summand> Accumulator for TotalOfRows<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut sum = Some(self.sum);
        each_value::<T>(values, |_, value| {
            let is_new = match &mut self.distinct {
                None => true,
                Some(known) => {
                    let times = known.entry(value).or_default();
                    *times += 1;
                    *times == 1
                }
            };
            if is_new {
                self.count += 1;
                sum = sum.and_then(|sum| sum.add_checked(value).ok());
            }
        })?;
        self.sum = sum.ok_or_else(|| self.result.out_of_range())?;
        Ok(())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        match (states, &self.distinct) {
            ([lists], Some(_)) => {
                let lists = lists.as_list::<i32>();
                lists
                    .iter()
                    .flatten()
                    .try_for_each(|values| self.update_batch(&[values]))
            }
            _ => self.add_partial(states),
        }
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut sum = Some(self.sum);
        each_value::<T>(values, |_, value| {
            let is_last = match &mut self.distinct {
                None => true,
                Some(known) => match known.get_mut(&value) {
                    Some(times) if *times > 1 => {
                        *times -= 1;
                        false
                    }
                    _ => known.remove(&value).is_some(),
                },
            };
            if is_last {
                self.count = self.count.saturating_sub(1);
                sum = sum.and_then(|sum| sum.sub_checked(value).ok());
            }
        })?;
        self.sum = sum.ok_or_else(|| self.result.out_of_range())?;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.result.value(self.sum, self.count)?;
        ScalarValue::try_from_array(&T::array(vec![value], &self.result.kind)?, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let Some(known) = &self.distinct else {
            let states = self.result.state(vec![(self.sum, self.count)])?;
            return states
                .iter()
                .map(|state| ScalarValue::try_from_array(state, 0))
                .collect();
        };
        let values = partial_sums::<T>(known.keys().map(|value| Some(*value)));
        let values = (0..values.len()).map(|at| ScalarValue::try_from_array(&values, at));
        let values: Vec<ScalarValue> = values.collect::<Result<_>>()?;
        let list = ScalarValue::new_list_nullable(&values, &T::STATE);
        Ok(vec![ScalarValue::List(list)])
    }

    fn size(&self) -> usize {
        let known = self.distinct.as_ref().map_or(0, HashMap::capacity);
        size_of::<TotalOfRows<T>>() + known * size_of::<(T::Native, u64)>()
    }
}

fn partial_sums<T: Summand>(sums: impl Iterator<Item = Option<T::Native>>) -> ArrayRef {
    Arc::new(sums.collect::<PrimitiveArray<T>>().with_data_type(T::STATE))
}

/// The totals of many groups: the sum and the number of values of each.
impl<T: Summand> GroupReduction for TotalResult<T> {
    type Group = (T::Native, u64);

    fn add(&self, groups: &mut Groups<Self::Group>, values: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        // Values have no counts.
        self.merge(groups, values.get(..1).unwrap_or_default(), rows)
    }

    fn merge(&self, groups: &mut Groups<Self::Group>, states: &[ArrayRef], rows: GroupedRows<'_>) -> Result<()> {
        let counts = counts(states)?;
        let mut is_in_range = true;
        each_value::<T>(states, |at, value| {
            let group = rows.group(at).and_then(|group| groups.all.get_mut(group));
            let Some((sum, count)) = group else { return };
            match sum.add_checked(value) {
                Ok(added) => *sum = added,
                Err(_) => is_in_range = false,
            }
            *count += counts.map_or(1, |counts| counts.value(at));
        })?;
        match is_in_range {
            true => Ok(()),
            false => Err(self.out_of_range()),
        }
    }

    fn result(&self, groups: Vec<Self::Group>) -> Result<ArrayRef> {
        let values = groups.into_iter().map(|(sum, count)| self.value(sum, count));
        T::array(values.collect::<Result<_>>()?, &self.kind)
    }

    fn state(&self, groups: Vec<Self::Group>) -> Result<Vec<ArrayRef>> {
        let sums = partial_sums::<T>(groups.iter().map(|(sum, count)| (*count > 0).then_some(*sum)));
        Ok(match self.total {
            ExactTotal::Sum => vec![sums],
            ExactTotal::Average => {
                let counts = groups.iter().map(|(_, count)| *count);
                vec![sums, Arc::new(UInt64Array::from_iter_values(counts))]
            }
        })
    }
}
