//! A column that grows, of whatever type it is.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Float64Array, Int32Array, Int64Array, StringArray, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use super::nested::{Lists, Structs, TextMaps};
use super::numbers::Numbers;
use super::space::Space;
use super::text::{Kind, TextColumn};
use super::values::Values;
use crate::delta::schema::ColumnType;

#[derive(Debug)]
pub enum Data {
    Longs(Numbers<i64>),
    Integers(Numbers<i32>),
    Doubles(Numbers<f64>),
    Booleans(Numbers<bool>),
    Texts(TextColumn),
    Lists(Lists),
    Structs(Structs),
    Maps(TextMaps),
    /// It is made of others.
    Derived,
}

impl Data {
    /// `is_plain`: most of its texts are new.
    pub fn new(kind: &ColumnType, is_plain: bool) -> Data {
        match kind {
            ColumnType::Long => Data::Longs(Numbers::new()),
            ColumnType::Integer => Data::Integers(Numbers::new()),
            ColumnType::Double => Data::Doubles(Numbers::new()),
            ColumnType::Boolean => Data::Booleans(Numbers::new()),
            ColumnType::String | ColumnType::Binary => Data::Texts(TextColumn::new(match is_plain {
                true => Kind::Plain,
                false => Kind::Dictionary,
            })),
            ColumnType::Array(element) => Data::Lists(Lists::new(element)),
            ColumnType::Struct(members) => Data::Structs(Structs::new(members)),
            ColumnType::TextMap => Data::Maps(TextMaps::default()),
            ColumnType::Date | ColumnType::Timestamp | ColumnType::Other(_) => Data::Derived,
        }
    }

    /// As it is, or as Arrow has it where it is nested.
    pub fn values(&self, rows: usize) -> Option<Values<'_>> {
        Some(match self {
            Data::Longs(column) => Values::Longs(column),
            Data::Integers(column) => Values::Integers(column),
            Data::Doubles(column) => Values::Doubles(column),
            Data::Booleans(column) => Values::Booleans(column),
            Data::Texts(column) => Values::Texts(column),
            Data::Lists(column) => Values::Nested(column.array(rows).ok()?),
            Data::Structs(column) => Values::Nested(column.array(rows).ok()?),
            Data::Maps(column) => Values::Nested(column.array(rows).ok()?),
            Data::Derived => return None,
        })
    }

    /// As members of nested columns are, with texts one behind the other.
    pub(super) fn array(&self, rows: usize, as_type: &DataType) -> Result<ArrayRef, ArrowError> {
        fn numbers<T: Copy + Default>(column: &Numbers<T>, rows: usize) -> (Vec<T>, Option<NullBuffer>) {
            let mut values = column.values().to_vec();
            values.resize(rows, T::default());
            let nulls = NullBuffer::new(BooleanBuffer::collect_bool(rows, |row| column.is_present(row)));
            (values, (nulls.null_count() > 0).then_some(nulls))
        }
        Ok(match self {
            Data::Longs(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Int64Array::new(values.into(), nulls))
            }
            Data::Integers(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Int32Array::new(values.into(), nulls))
            }
            Data::Doubles(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(Float64Array::new(values.into(), nulls))
            }
            Data::Booleans(column) => {
                let (values, nulls) = numbers(column, rows);
                Arc::new(BooleanArray::new(BooleanBuffer::from(values), nulls))
            }
            Data::Texts(column) if *as_type == DataType::Binary => {
                Arc::new((0..rows).map(|row| column.text_of(row)).collect::<BinaryArray>())
            }
            Data::Texts(column) => {
                let text = |row| column.text_of(row).and_then(|text| std::str::from_utf8(text).ok());
                Arc::new((0..rows).map(text).collect::<StringArray>())
            }
            Data::Lists(column) => column.array(rows)?,
            Data::Structs(column) => column.array(rows)?,
            Data::Maps(column) => column.array(rows)?,
            Data::Derived => new_null_array(as_type, rows),
        })
    }

    /// Empties it and keeps its room. A column whose texts were new most of the time is tried as a dictionary again, unless it
    /// never is one.
    pub fn clear(&mut self) {
        match self {
            Data::Longs(column) => column.clear(),
            Data::Integers(column) => column.clear(),
            Data::Doubles(column) => column.clear(),
            Data::Booleans(column) => column.clear(),
            Data::Texts(column) => column.clear(column.first_kind()),
            Data::Lists(column) => column.clear(),
            Data::Structs(column) => column.members.iter_mut().for_each(Data::clear),
            Data::Maps(column) => column.clear(),
            Data::Derived => {}
        }
    }

    pub fn space(&self) -> Space {
        match self {
            Data::Longs(column) => column.space(),
            Data::Integers(column) => column.space(),
            Data::Doubles(column) => column.space(),
            Data::Booleans(column) => column.space(),
            Data::Texts(column) => column.space(),
            Data::Lists(column) => column.space(),
            Data::Structs(column) => column.members.iter().map(Data::space).sum(),
            Data::Maps(column) => column.space(),
            Data::Derived => Space::default(),
        }
    }
}
