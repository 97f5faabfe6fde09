//! A column of some rows, of whatever type it is.

use arrow::array::ArrayRef;

use super::numbers::Numbers;
use super::text::TextColumn;

/// As it lies in memory. It may end before its rows do; those behind are null.
#[derive(Clone)]
pub enum Values<'a> {
    Longs(&'a Numbers<i64>),
    /// Nanoseconds, of which a column of type `timestamp` has the microseconds.
    Nanos(&'a Numbers<i64>),
    Integers(&'a Numbers<i32>),
    Doubles(&'a Numbers<f64>),
    Booleans(&'a Numbers<bool>),
    /// Valid UTF-8, or bytes if the column is of type `binary`.
    Texts(&'a TextColumn),
    /// Lists, structs and maps: one for each row.
    Nested(ArrayRef),
}
