//! Values of integers, durations and decimals as integers of 128 bits.

use datafusion::arrow::array::{
    Array as _, ArrayRef, ArrowPrimitiveType, AsArray as _, Decimal32Array, Decimal64Array, Decimal128Array,
    Int64Array, PrimitiveArray, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Decimal32Type, Decimal64Type, Decimal128Type, Int64Type, UInt64Type};
use datafusion::common::{Result, exec_err};

/// Values of one of these types; decimals without their point.
pub enum Integers {
    Signed(Int64Array),
    Unsigned(UInt64Array),
    Decimal32(Decimal32Array),
    Decimal64(Decimal64Array),
    /// Also partial sums.
    Wide(Decimal128Array),
}

impl Integers {
    pub fn of(values: &ArrayRef) -> Result<Integers> {
        Ok(match values.data_type() {
            DataType::Int64 => Integers::Signed(values.as_primitive::<Int64Type>().clone()),
            DataType::UInt64 => Integers::Unsigned(values.as_primitive::<UInt64Type>().clone()),
            DataType::Decimal32(..) => Integers::Decimal32(values.as_primitive::<Decimal32Type>().clone()),
            DataType::Decimal64(..) => Integers::Decimal64(values.as_primitive::<Decimal64Type>().clone()),
            DataType::Decimal128(..) => Integers::Wide(values.as_primitive::<Decimal128Type>().clone()),
            DataType::Duration(_) => {
                Integers::Signed(cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
            }
            other => return exec_err!("a sum of {other}"),
        })
    }

    /// Calls a function with the position and the value of each value that is not null.
    pub fn each(&self, mut visit: impl FnMut(usize, i128)) {
        match self {
            Integers::Signed(values) => each(values, |at, value| visit(at, value.into())),
            Integers::Unsigned(values) => each(values, |at, value| visit(at, value.into())),
            Integers::Decimal32(values) => each(values, |at, value| visit(at, value.into())),
            Integers::Decimal64(values) => each(values, |at, value| visit(at, value.into())),
            Integers::Wide(values) => each(values, visit),
        }
    }
}

/// The same for values of any type.
pub fn each<T: ArrowPrimitiveType>(values: &PrimitiveArray<T>, mut visit: impl FnMut(usize, T::Native)) {
    match values.nulls().filter(|nulls| nulls.null_count() > 0) {
        None => values
            .values()
            .iter()
            .enumerate()
            .for_each(|(at, value)| visit(at, *value)),
        Some(nulls) => {
            for at in nulls.valid_indices() {
                visit(at, values.value(at));
            }
        }
    }
}
