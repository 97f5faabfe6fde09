//! A growing column of any type.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Float64Array, Int32Array, Int64Array, StringArray, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::column_view::ColumnView;
use super::memory_usage::MemoryUsage;
use super::nested::{ListColumn, StructColumn, TextMapColumn};
use super::numbers::NumberColumn;
use super::text::{TextColumn, TextColumnEncoding};
use thalweg_delta::schema::ColumnType;

#[derive(Debug)]
pub enum ColumnData {
    Longs(NumberColumn<i64>),
    Integers(NumberColumn<i32>),
    Doubles(NumberColumn<f64>),
    Booleans(NumberColumn<bool>),
    Texts(TextColumn),
    Lists(ListColumn),
    Structs(StructColumn),
    Maps(TextMapColumn),
    /// Derived from other columns.
    Derived,
}

impl ColumnData {
    /// `is_plain`: most of its texts are distinct.
    pub fn new(kind: &ColumnType, is_plain: bool) -> ColumnData {
        match kind {
            ColumnType::Long => ColumnData::Longs(NumberColumn::new()),
            ColumnType::Integer => ColumnData::Integers(NumberColumn::new()),
            ColumnType::Double => ColumnData::Doubles(NumberColumn::new()),
            ColumnType::Boolean => ColumnData::Booleans(NumberColumn::new()),
            ColumnType::String | ColumnType::Binary => ColumnData::Texts(TextColumn::new(match is_plain {
                true => TextColumnEncoding::Plain,
                false => TextColumnEncoding::Dictionary,
            })),
            ColumnType::Array(element) => ColumnData::Lists(ListColumn::new(element)),
            ColumnType::Struct(members) => ColumnData::Structs(StructColumn::new(members)),
            ColumnType::TextMap => ColumnData::Maps(TextMapColumn::default()),
            ColumnType::Date | ColumnType::Timestamp | ColumnType::Other(_) => ColumnData::Derived,
        }
    }

    /// Flat columns as they are, nested ones as Arrow arrays.
    pub fn values(&self, rows: usize) -> Option<ColumnView<'_>> {
        Some(match self {
            ColumnData::Longs(column) => ColumnView::Longs(column),
            ColumnData::Integers(column) => ColumnView::Integers(column),
            ColumnData::Doubles(column) => ColumnView::Doubles(column),
            ColumnData::Booleans(column) => ColumnView::Booleans(column),
            ColumnData::Texts(column) => ColumnView::Texts(column),
            ColumnData::Lists(column) => ColumnView::Nested(column.array(rows).ok()?),
            ColumnData::Structs(column) => ColumnView::Nested(column.array(rows).ok()?),
            ColumnData::Maps(column) => ColumnView::Nested(column.array(rows).ok()?),
            ColumnData::Derived => return None,
        })
    }

    /// The column as an Arrow array, for members of nested columns. Texts are stored without a dictionary.
    pub(super) fn array(&self, rows: usize, as_type: &DataType) -> Result<ArrayRef, ArrowError> {
        fn numbers<T: Copy + Default>(column: &NumberColumn<T>, rows: usize) -> (Vec<T>, Option<NullBuffer>) {
            let mut values = column.values().to_vec();
            values.resize(rows, T::default());
            let nulls = NullBuffer::new(BooleanBuffer::collect_bool(rows, |row| column.is_present(row)));
            (values, (nulls.null_count() > 0).then_some(nulls))
        }
        Ok(match self {
            ColumnData::Longs(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Int64Array::new(values.into(), nulls))
            }
            ColumnData::Integers(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Int32Array::new(values.into(), nulls))
            }
            ColumnData::Doubles(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Float64Array::new(values.into(), nulls))
            }
            ColumnData::Booleans(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(BooleanArray::new(BooleanBuffer::from(values), nulls))
            }
            ColumnData::Texts(column) if *as_type == DataType::Binary => {
                Arc::new((0..rows).map(|row| column.text_of(row)).collect::<BinaryArray>())
            }
            ColumnData::Texts(column) => {
                let text = |row| column.text_of(row).and_then(|text| std::str::from_utf8(text).ok());
                Arc::new((0..rows).map(text).collect::<StringArray>())
            }
            ColumnData::Lists(column) => column.array(rows)?,
            ColumnData::Structs(column) => column.array(rows)?,
            ColumnData::Maps(column) => column.array(rows)?,
            ColumnData::Derived => new_null_array(as_type, rows),
        })
    }

    /// Removes all rows and keeps the buffers. A text column that gave up its dictionary begins with one again, unless
    /// it was created as plain.
    pub fn clear(&mut self) {
        match self {
            ColumnData::Longs(column) => column.clear(),
            ColumnData::Integers(column) => column.clear(),
            ColumnData::Doubles(column) => column.clear(),
            ColumnData::Booleans(column) => column.clear(),
            ColumnData::Texts(column) => column.clear(column.first_kind()),
            ColumnData::Lists(column) => column.clear(),
            ColumnData::Structs(column) => column.members.iter_mut().for_each(ColumnData::clear),
            ColumnData::Maps(column) => column.clear(),
            ColumnData::Derived => {}
        }
    }

    pub fn space(&self) -> MemoryUsage {
        match self {
            ColumnData::Longs(column) => column.space(),
            ColumnData::Integers(column) => column.space(),
            ColumnData::Doubles(column) => column.space(),
            ColumnData::Booleans(column) => column.space(),
            ColumnData::Texts(column) => column.space(),
            ColumnData::Lists(column) => column.space(),
            ColumnData::Structs(column) => column.members.iter().map(ColumnData::space).sum(),
            ColumnData::Maps(column) => column.space(),
            ColumnData::Derived => MemoryUsage::default(),
        }
    }
}
