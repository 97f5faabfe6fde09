//! `sum` of integers and durations that fails if the result is out of range. The library's wraps (`add_wrapping` in its
//! `Sum`). Values are added in 128 bits, so only the result counts, not the order of the rows. Other types are summed by the
//! library: doubles and decimals do not wrap.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray as _, BooleanArray, Decimal128Array, Int64Array, PrimitiveArray,
    UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF,
    SetMonotonicity, Signature,
};

use crate::error::QueryError;

/// The type of a partial sum, wide enough for 2^63 values.
const WIDE: DataType = DataType::Decimal128(38, 0);

/// Replaces the library's function.
pub fn function() -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::new_from_impl(CheckedSum {
        inner: datafusion::functions_aggregate::sum::sum_udaf(),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedSum {
    inner: Arc<AggregateUDF>,
}

/// Whether the library's sums of this type wrap.
fn wraps(kind: &DataType) -> bool {
    matches!(kind, DataType::Int64 | DataType::UInt64 | DataType::Duration(_))
}

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        self.inner.return_type(given)
    }

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match wraps(args.return_type()) {
            true => Ok(Box::new(IntegerSum::new(args.return_type(), args.is_distinct))),
            false => self.inner.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        match wraps(args.return_type()) {
            true => Ok(Box::new(IntegerSum::new(args.return_type(), args.is_distinct))),
            false => self.inner.create_sliding_accumulator(args),
        }
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match wraps(args.return_type()) {
            true => Ok(Box::new(GroupedIntegerSum::new(args.return_type()))),
            false => self.inner.create_groups_accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
        if !wraps(args.return_type()) {
            return self.inner.state_fields(args);
        }
        let name = format_state_name(args.name, "sum");
        let field = match args.is_distinct {
            true => Field::new_list(name, Field::new_list_field(args.return_type().clone(), true), true),
            false => Field::new(name, WIDE, true),
        };
        Ok(vec![Arc::new(field)])
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(kind)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// Values of one of the types that wrap.
enum Integers {
    Signed(Int64Array),
    Unsigned(UInt64Array),
    /// Partial sums.
    Wide(Decimal128Array),
}

impl Integers {
    fn of(values: Option<&ArrayRef>) -> Result<Integers> {
        let Some(values) = values else {
            return exec_err!("sum takes one value");
        };
        Ok(match values.data_type() {
            DataType::Int64 => Integers::Signed(values.as_primitive::<Int64Type>().clone()),
            DataType::UInt64 => Integers::Unsigned(values.as_primitive::<UInt64Type>().clone()),
            DataType::Decimal128(..) => Integers::Wide(values.as_primitive::<Decimal128Type>().clone()),
            DataType::Duration(_) => {
                Integers::Signed(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
            }
            other => return exec_err!("sum of {other}"),
        })
    }

    /// Calls a function with the position and the value of each value that is not null.
    fn each(&self, visit: impl FnMut(usize, i128)) {
        match self {
            Integers::Signed(values) => each(values, visit),
            Integers::Unsigned(values) => each(values, visit),
            Integers::Wide(values) => each(values, visit),
        }
    }
}

fn each<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, mut visit: impl FnMut(usize, i128))
where
    T::Native: Into<i128>,
{
    match values.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => values
            .values()
            .iter()
            .enumerate()
            .for_each(|(at, value)| visit(at, (*value).into())),
        Some(nulls) => {
            for at in nulls.valid_indices() {
                visit(at, values.value(at).into());
            }
        }
    }
}

/// A sum in its final type.
fn narrow(sum: Option<i128>, kind: &DataType) -> Result<ScalarValue> {
    let out_of_range = |sum: i128| {
        DataFusionError::External(Box::new(QueryError::execute(format!(
            "the sum {sum} is out of the range of {kind}; convert the values before: sum(cast(… as decimal(38, 0))) or \
             sum(cast(… as double))"
        ))))
    };
    match (kind, sum) {
        (DataType::UInt64, Some(sum)) => Ok(ScalarValue::UInt64(Some(
            u64::try_from(sum).map_err(|_| out_of_range(sum))?,
        ))),
        (_, Some(sum)) => ScalarValue::Int64(Some(i64::try_from(sum).map_err(|_| out_of_range(sum))?)).cast_to(kind),
        (_, None) => ScalarValue::try_from(kind),
    }
}

/// The sum of one group or of a window.
#[derive(Debug)]
struct IntegerSum {
    kind: DataType,
    sum: i128,
    /// Values that are not null; those that left the window are subtracted.
    count: u64,
    /// For `sum(DISTINCT …)`: how often each value is there.
    distinct: Option<HashMap<i128, u64>>,
}

impl IntegerSum {
    fn new(kind: &DataType, is_distinct: bool) -> IntegerSum {
        IntegerSum {
            kind: kind.clone(),
            sum: 0,
            count: 0,
            distinct: is_distinct.then(HashMap::new),
        }
    }

    fn add(&mut self, values: Option<&ArrayRef>) -> Result<()> {
        Integers::of(values)?.each(|_, value| {
            self.count += 1;
            let is_new = match &mut self.distinct {
                None => true,
                Some(known) => {
                    let times = known.entry(value).or_default();
                    *times += 1;
                    *times == 1
                }
            };
            if is_new {
                self.sum += value;
            }
        });
        Ok(())
    }
}

impl Accumulator for IntegerSum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values.first())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        match (states, &self.distinct) {
            ([lists], Some(_)) => {
                let lists = lists.as_list::<i32>();
                lists.iter().flatten().try_for_each(|values| self.add(Some(&values)))
            }
            _ => self.add(states.first()),
        }
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        Integers::of(values.first())?.each(|_, value| {
            self.count -= 1;
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
                self.sum -= value;
            }
        });
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        narrow((self.count > 0).then_some(self.sum), &self.kind)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let Some(known) = &self.distinct else {
            let sum = (self.count > 0).then_some(self.sum);
            return Ok(vec![ScalarValue::Decimal128(sum, 38, 0)]);
        };
        let values: Vec<ScalarValue> = known
            .keys()
            .map(|value| narrow(Some(*value), &self.kind))
            .collect::<Result<_>>()?;
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(
            &values, &self.kind,
        ))])
    }

    fn size(&self) -> usize {
        let known = self.distinct.as_ref().map_or(0, HashMap::capacity);
        size_of::<IntegerSum>() + known * size_of::<(i128, u64)>()
    }
}

/// The sums of many groups.
#[derive(Debug)]
struct GroupedIntegerSum {
    kind: DataType,
    sums: Vec<Option<i128>>,
}

impl GroupedIntegerSum {
    fn new(kind: &DataType) -> GroupedIntegerSum {
        GroupedIntegerSum {
            kind: kind.clone(),
            sums: Vec::new(),
        }
    }

    fn add(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.resize(count, None);
        Integers::of(values.first())?.each(|at, value| {
            if filter.is_some_and(|filter| !(filter.is_valid(at) && filter.value(at))) {
                return;
            }
            if let Some(sum) = groups.get(at).and_then(|group| self.sums.get_mut(*group)) {
                *sum = Some(sum.unwrap_or(0) + value);
            }
        });
        Ok(())
    }
}

fn wide(sums: impl IntoIterator<Item = Option<i128>>) -> ArrayRef {
    let sums: Decimal128Array = sums.into_iter().collect();
    Arc::new(sums.with_data_type(WIDE))
}

impl GroupsAccumulator for GroupedIntegerSum {
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
        let sums = emit_to.take_needed(&mut self.sums);
        if let Some(sum) = sums
            .iter()
            .flatten()
            .find(|sum| narrow(Some(**sum), &self.kind).is_err())
        {
            narrow(Some(*sum), &self.kind)?;
        }
        match &self.kind {
            DataType::UInt64 => {
                let sums = sums.into_iter().map(|sum| sum.and_then(|sum| u64::try_from(sum).ok()));
                Ok(Arc::new(sums.collect::<UInt64Array>()))
            }
            kind => {
                let sums = sums.into_iter().map(|sum| sum.and_then(|sum| i64::try_from(sum).ok()));
                let sums: ArrayRef = Arc::new(sums.collect::<Int64Array>());
                Ok(cast(&sums, kind)?)
            }
        }
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![wide(emit_to.take_needed(&mut self.sums))])
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |values| values.len());
        let mut sums = GroupedIntegerSum::new(&self.kind);
        let groups: Vec<usize> = (0..rows).collect();
        sums.add(values, &groups, filter, rows)?;
        Ok(vec![wide(sums.sums)])
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<Option<i128>>()
    }
}
