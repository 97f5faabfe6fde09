//! The types in which [`super::totals`] adds values: integers, durations and decimals in 128 bits, decimals of 256 bits and
//! intervals in their own type.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array as _, ArrayRef, ArrowPrimitiveType, AsArray as _, Decimal32Array, Decimal64Array, Decimal128Array,
    Int64Array, PrimitiveArray, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, DecimalType as _, IntervalDayTimeType, IntervalMonthDayNanoType,
    IntervalYearMonthType,
};
use datafusion::common::{Result, exec_err};

use super::integers::{Integers, each};

/// A type in which values are added.
pub trait Summand: ArrowPrimitiveType<Native: Hash + Eq> + Debug + Sized {
    /// The type of partial sums.
    const STATE: DataType = Self::DATA_TYPE;

    /// Calls a function with the position and the value of each value that is not null.
    fn each(values: &ArrayRef, visit: impl FnMut(usize, Self::Native)) -> Result<()> {
        match values.as_primitive_opt::<Self>() {
            Some(values) => each(values, visit),
            None => return exec_err!("a sum of {} as {}", values.data_type(), Self::STATE),
        }
        Ok(())
    }

    /// Whether a result can be of this type.
    fn is_in_range(_value: Self::Native, _kind: &DataType) -> bool {
        true
    }

    /// Results that are in range as an array.
    fn array(values: Vec<Option<Self::Native>>, kind: &DataType) -> Result<ArrayRef> {
        let values = values.into_iter().collect::<PrimitiveArray<Self>>();
        Ok(Arc::new(values.with_data_type(kind.clone())))
    }
}

impl Summand for IntervalYearMonthType {}
impl Summand for IntervalDayTimeType {}
impl Summand for IntervalMonthDayNanoType {}

impl Summand for Decimal256Type {
    const STATE: DataType = DataType::Decimal256(76, 0);

    fn is_in_range(value: Self::Native, kind: &DataType) -> bool {
        match kind {
            DataType::Decimal256(digits, _) => Decimal256Type::is_valid_decimal_precision(value, *digits),
            _ => true,
        }
    }
}

impl Summand for Decimal128Type {
    /// As a sum of integers it is wide enough for 2^63 values.
    const STATE: DataType = DataType::Decimal128(38, 0);

    fn each(values: &ArrayRef, visit: impl FnMut(usize, i128)) -> Result<()> {
        Integers::of(values)?.each(visit);
        Ok(())
    }

    fn is_in_range(value: i128, kind: &DataType) -> bool {
        match kind {
            DataType::UInt64 => u64::try_from(value).is_ok(),
            DataType::Decimal32(digits, _) | DataType::Decimal64(digits, _) | DataType::Decimal128(digits, _) => {
                Decimal128Type::is_valid_decimal_precision(value, *digits)
            }
            _ => i64::try_from(value).is_ok(),
        }
    }

    fn array(values: Vec<Option<i128>>, kind: &DataType) -> Result<ArrayRef> {
        let values = values.into_iter();
        let longs = |values: std::vec::IntoIter<Option<i128>>| values.map(|value| i64::try_from(value?).ok());
        Ok(match kind {
            DataType::UInt64 => Arc::new(values.map(|value| u64::try_from(value?).ok()).collect::<UInt64Array>()),
            DataType::Decimal32(..) => {
                let values: Decimal32Array = values.map(|value| i32::try_from(value?).ok()).collect();
                Arc::new(values.with_data_type(kind.clone()))
            }
            DataType::Decimal64(..) => {
                let values: Decimal64Array = longs(values).collect();
                Arc::new(values.with_data_type(kind.clone()))
            }
            DataType::Decimal128(..) => {
                let values: Decimal128Array = values.collect();
                Arc::new(values.with_data_type(kind.clone()))
            }
            _ => {
                let values: ArrayRef = Arc::new(longs(values).collect::<Int64Array>());
                cast(&values, kind)?
            }
        })
    }
}
