//! A view of a column of any type.

use arrow::array::ArrayRef;

use super::numbers::NumberColumn;
use super::text::TextColumn;

/// The column as stored. It may have fewer values than rows; the remaining rows are null.
#[derive(Clone)]
pub enum ColumnView<'a> {
    Longs(&'a NumberColumn<i64>),
    /// Nanoseconds; the `timestamp` column has them in microseconds.
    Nanos(&'a NumberColumn<i64>),
    Integers(&'a NumberColumn<i32>),
    Doubles(&'a NumberColumn<f64>),
    Booleans(&'a NumberColumn<bool>),
    /// Valid UTF-8, or bytes if the column type is `binary`.
    Texts(&'a TextColumn),
    /// Lists, structs or maps, one per row.
    Nested(ArrayRef),
}
