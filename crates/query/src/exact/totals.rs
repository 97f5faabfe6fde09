//! `sum` of integers, durations and decimals, and `avg` of durations and decimals, which fail if the result is out of range. The
//! library's wrap (`add_wrapping` in its `Sum` and `Avg`). Values are added in 128 bits, so only the result counts, not the order
//! of the rows. Doubles do not wrap and are left to the library; so is `avg` of integers, which is one of doubles.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray as _, BooleanArray, Decimal32Array, Decimal64Array, Decimal128Array, Int64Array,
    UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, UInt64Type, i256};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::functions_aggregate::{average::avg_udaf, sum::sum_udaf};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::format_state_name;
use datafusion::logical_expr::{Accumulator, AggregateUDF, EmitTo, GroupsAccumulator, StatisticsArgs};

use super::integers::Integers;
use super::native_sums;
use crate::delegating_aggregate::{AggregateParts, delegating};
use crate::error::QueryError;

/// The type of a partial sum. As a sum of integers it is wide enough for 2^63 values.
const WIDE: DataType = DataType::Decimal128(38, 0);

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

impl ExactTotal {
    /// Whether the library's function with this result wraps, and this one is in its place.
    fn replaces(self, result: &DataType) -> bool {
        match result {
            DataType::Int64 | DataType::UInt64 => self == ExactTotal::Sum,
            DataType::Duration(_) | DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
                true
            }
            _ => false,
        }
    }
}

impl AggregateParts for ExactTotal {
    fn state_fields(&self, inner: &AggregateUDF, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        if !self.replaces(args.return_type()) {
            return inner.state_fields(args);
        }
        let name = |part: &str| format_state_name(args.name, part);
        Ok(match (args.is_distinct, self) {
            (true, _) => {
                let item = Field::new_list_field(WIDE, true);
                vec![Arc::new(Field::new_list(name("values"), item, true))]
            }
            (false, ExactTotal::Sum) => vec![Arc::new(Field::new(name("sum"), WIDE, true))],
            (false, ExactTotal::Average) => vec![
                Arc::new(Field::new(name("sum"), WIDE, true)),
                Arc::new(Field::new(name("count"), DataType::UInt64, true)),
            ],
        })
    }

    fn accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.replaces(args.return_type()) {
            true => Ok(Box::new(TotalOfRows::new(*self, &args)?)),
            false => match native_sums::accumulator(*self == ExactTotal::Sum, &args) {
                Some(checked) => Ok(checked),
                None => inner.accumulator(args),
            },
        }
    }

    fn sliding_accumulator(&self, inner: &AggregateUDF, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match self.replaces(args.return_type()) {
            true => Ok(Box::new(TotalOfRows::new(*self, &args)?)),
            false => match native_sums::accumulator(*self == ExactTotal::Sum, &args) {
                Some(checked) => Ok(checked),
                None => inner.create_sliding_accumulator(args),
            },
        }
    }

    fn groups_accumulator(
        &self,
        inner: &AggregateUDF,
        args: AccumulatorArgs<'_>,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        match self.replaces(args.return_type()) {
            true => Ok(Box::new(TotalsOfGroups {
                result: TotalResult::of(*self, &args)?,
                sums: Vec::new(),
            })),
            false => match native_sums::groups_accumulator(*self == ExactTotal::Sum, &args) {
                Some(checked) => Ok(checked),
                None => inner.create_groups_accumulator(args),
            },
        }
    }

    /// A sum that a file tells may have wrapped.
    fn value_from_stats(&self, _inner: &AggregateUDF, _args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
        None
    }
}

/// What is made of a sum.
#[derive(Clone, Debug)]
struct TotalResult {
    total: ExactTotal,
    kind: DataType,
    /// The average of decimals has more digits than they have: what their sum is multiplied with.
    factor: i128,
}

impl TotalResult {
    fn of(total: ExactTotal, args: &AccumulatorArgs<'_>) -> Result<TotalResult> {
        let kind = args.return_type().clone();
        let given = args.expr_fields.first().map(|field| field.data_type().clone());
        let more = match (total, given.as_ref().and_then(scale), scale(&kind)) {
            (ExactTotal::Average, Some(before), Some(after)) => u32::try_from(after - before).ok(),
            _ => Some(0),
        };
        match more.and_then(|more| 10_i128.checked_pow(more)) {
            Some(factor) => Ok(TotalResult { total, kind, factor }),
            None => exec_err!("the average of {given:?} as {kind}"),
        }
    }

    /// The result for the sum of so many values, without a point if it is a decimal.
    fn value(&self, sum: i128, count: u64) -> Result<Option<i128>> {
        let value = match (self.total, count) {
            (_, 0) => return Ok(None),
            (ExactTotal::Sum, _) => Some(sum),
            (ExactTotal::Average, count) => {
                let sum = i256::from_i128(sum).checked_mul(i256::from_i128(self.factor));
                let average = sum.and_then(|sum| sum.checked_div(i256::from_i128(i128::from(count))));
                average.and_then(i256::to_i128)
            }
        };
        match value.filter(|value| self.is_in_range(*value)) {
            Some(value) => Ok(Some(value)),
            None => Err(self.out_of_range(Some(sum))),
        }
    }

    fn is_in_range(&self, value: i128) -> bool {
        let has_digits = |digits: u8| {
            let end = 10_u128.checked_pow(u32::from(digits));
            end.is_none_or(|end| value.unsigned_abs() < end)
        };
        match &self.kind {
            DataType::UInt64 => u64::try_from(value).is_ok(),
            DataType::Decimal32(digits, _) => i32::try_from(value).is_ok() && has_digits(*digits),
            DataType::Decimal64(digits, _) => i64::try_from(value).is_ok() && has_digits(*digits),
            DataType::Decimal128(digits, _) => has_digits(*digits),
            _ => i64::try_from(value).is_ok(),
        }
    }

    fn out_of_range(&self, sum: Option<i128>) -> DataFusionError {
        let (kind, sum) = (&self.kind, sum.map_or(String::new(), |sum| format!(" {sum}")));
        let cure = match kind {
            DataType::Int64 | DataType::UInt64 => {
                "convert the values before: sum(cast(… as decimal(38, 0))) or sum(cast(… as double))"
            }
            DataType::Duration(_) => "leave out such values",
            _ => "convert the values before: cast(… as double)",
        };
        DataFusionError::External(Box::new(QueryError::execute(format!(
            "the sum{sum} is out of the range of {kind}; {cure}"
        ))))
    }

    /// Results that are in range as an array.
    fn array(&self, values: Vec<Option<i128>>) -> Result<ArrayRef> {
        let values = values.into_iter();
        let longs = |values: std::vec::IntoIter<Option<i128>>| values.map(|value| i64::try_from(value?).ok());
        Ok(match self.kind {
            DataType::UInt64 => Arc::new(values.map(|value| u64::try_from(value?).ok()).collect::<UInt64Array>()),
            DataType::Decimal32(digits, scale) => {
                let values: Decimal32Array = values.map(|value| i32::try_from(value?).ok()).collect();
                Arc::new(values.with_precision_and_scale(digits, scale)?)
            }
            DataType::Decimal64(digits, scale) => {
                let values: Decimal64Array = longs(values).collect();
                Arc::new(values.with_precision_and_scale(digits, scale)?)
            }
            DataType::Decimal128(digits, scale) => {
                let values: Decimal128Array = values.collect();
                Arc::new(values.with_precision_and_scale(digits, scale)?)
            }
            _ => {
                let values: ArrayRef = Arc::new(longs(values).collect::<Int64Array>());
                cast(&values, &self.kind)?
            }
        })
    }
}

fn scale(kind: &DataType) -> Option<i8> {
    match kind {
        DataType::Decimal32(_, scale) | DataType::Decimal64(_, scale) | DataType::Decimal128(_, scale) => Some(*scale),
        _ => None,
    }
}

/// The total of one group or of a window.
#[derive(Debug)]
struct TotalOfRows {
    result: TotalResult,
    sum: i128,
    /// Values that are not null; those that left the window are subtracted.
    count: u64,
    /// For `DISTINCT`: how often each value is there.
    distinct: Option<HashMap<i128, u64>>,
}

impl TotalOfRows {
    fn new(total: ExactTotal, args: &AccumulatorArgs<'_>) -> Result<TotalOfRows> {
        Ok(TotalOfRows {
            result: TotalResult::of(total, args)?,
            sum: 0,
            count: 0,
            distinct: args.is_distinct.then(HashMap::new),
        })
    }

    fn add(&mut self, values: Option<&ArrayRef>) -> Result<()> {
        let mut sum = Some(self.sum);
        Integers::of(values)?.each(|_, value| {
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
                sum = sum.and_then(|sum| sum.checked_add(value));
            }
        });
        self.sum = sum.ok_or_else(|| self.result.out_of_range(None))?;
        Ok(())
    }

    /// Adds partial sums, and how many values they are of.
    fn add_partial(&mut self, states: &[ArrayRef]) -> Result<()> {
        let counts = counts(states)?;
        let mut sum = Some(self.sum);
        Integers::of(states.first())?.each(|at, value| {
            self.count += counts.map_or(1, |counts| counts.value(at));
            sum = sum.and_then(|sum| sum.checked_add(value));
        });
        self.sum = sum.ok_or_else(|| self.result.out_of_range(None))?;
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

impl Accumulator for TotalOfRows {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values.first())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        match (states, &self.distinct) {
            ([lists], Some(_)) => {
                let lists = lists.as_list::<i32>();
                lists.iter().flatten().try_for_each(|values| self.add(Some(&values)))
            }
            _ => self.add_partial(states),
        }
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut sum = Some(self.sum);
        Integers::of(values.first())?.each(|_, value| {
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
                sum = sum.and_then(|sum| sum.checked_sub(value));
            }
        });
        self.sum = sum.ok_or_else(|| self.result.out_of_range(None))?;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let value = self.result.value(self.sum, self.count)?;
        ScalarValue::try_from_array(&self.result.array(vec![value])?, 0)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let Some(known) = &self.distinct else {
            let sum = ScalarValue::Decimal128((self.count > 0).then_some(self.sum), 38, 0);
            return Ok(match self.result.total {
                ExactTotal::Sum => vec![sum],
                ExactTotal::Average => vec![sum, ScalarValue::UInt64(Some(self.count))],
            });
        };
        let values = known.keys().map(|value| ScalarValue::Decimal128(Some(*value), 38, 0));
        let values: Vec<ScalarValue> = values.collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &WIDE))])
    }

    fn size(&self) -> usize {
        let known = self.distinct.as_ref().map_or(0, HashMap::capacity);
        size_of::<TotalOfRows>() + known * size_of::<(i128, u64)>()
    }
}

/// The totals of many groups: the sum and the number of values of each.
#[derive(Debug)]
struct TotalsOfGroups {
    result: TotalResult,
    sums: Vec<(i128, u64)>,
}

impl TotalsOfGroups {
    /// Adds values or partial sums to their groups.
    fn add(
        &mut self,
        (values, counts): (&Integers, Option<&UInt64Array>),
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.resize(count, (0, 0));
        let mut is_in_range = true;
        values.each(|at, value| {
            if filter.is_some_and(|filter| !(filter.is_valid(at) && filter.value(at))) {
                return;
            }
            let Some((sum, rows)) = groups.get(at).and_then(|group| self.sums.get_mut(*group)) else {
                return;
            };
            match sum.checked_add(value) {
                Some(added) => *sum = added,
                None => is_in_range = false,
            }
            *rows += counts.map_or(1, |counts| counts.value(at));
        });
        match is_in_range {
            true => Ok(()),
            false => Err(self.result.out_of_range(None)),
        }
    }

    fn state_of(&self, sums: &[(i128, u64)]) -> Vec<ArrayRef> {
        let wide = sums.iter().map(|(sum, count)| (*count > 0).then_some(*sum));
        let wide: ArrayRef = Arc::new(wide.collect::<Decimal128Array>().with_data_type(WIDE));
        match self.result.total {
            ExactTotal::Sum => vec![wide],
            ExactTotal::Average => {
                let counts = sums.iter().map(|(_, count)| *count);
                vec![wide, Arc::new(UInt64Array::from_iter_values(counts))]
            }
        }
    }
}

impl GroupsAccumulator for TotalsOfGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.add((&Integers::of(values.first())?, None), groups, filter, count)
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        let counts = counts(states)?;
        self.add((&Integers::of(states.first())?, counts), groups, None, count)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = emit_to.take_needed(&mut self.sums);
        let values = sums.into_iter().map(|(sum, count)| self.result.value(sum, count));
        self.result.array(values.collect::<Result<_>>()?)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let sums = emit_to.take_needed(&mut self.sums);
        Ok(self.state_of(&sums))
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |values| values.len());
        let mut each = TotalsOfGroups {
            result: self.result.clone(),
            sums: Vec::new(),
        };
        let groups: Vec<usize> = (0..rows).collect();
        each.add((&Integers::of(values.first())?, None), &groups, filter, rows)?;
        Ok(self.state_of(&each.sums))
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<(i128, u64)>()
    }
}
