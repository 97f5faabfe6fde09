//! A column of some rows, of whatever type it is.

use arrow::array::ArrayRef;

use super::numbers::NumberColumn;
use super::text::TextColumn;

/// As it lies in memory. It may end before its rows do; those behind are null.
#[derive(Clone)]
pub enum ColumnView<'a> {
    Longs(&'a NumberColumn<i64>),
    /// Nanoseconds, of which a column of type `timestamp` has the microseconds.
    Nanos(&'a NumberColumn<i64>),
    Integers(&'a NumberColumn<i32>),
    Doubles(&'a NumberColumn<f64>),
    Booleans(&'a NumberColumn<bool>),
    /// Valid UTF-8, or bytes if the column is of type `binary`.
    Texts(&'a TextColumn),
    /// Lists, structs and maps: one for each row.
    Nested(ArrayRef),
}
