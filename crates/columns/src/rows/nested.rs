//! Columns of lists, structs and maps.

use std::sync::Arc;

use arrow::array::{ArrayRef, ListArray, MapArray, StringArray, StructArray};
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields};
use arrow::error::ArrowError;

use super::column_data::ColumnData;
use super::memory_usage::MemoryUsage;
use super::numbers::NumberColumn;
use super::text::TextBuffer;
use thalweg_delta::schema::{ColumnType, TableColumn, text_map_type};

/// One optional list per row. The items are the rows of an inner column.
#[derive(Debug)]
pub struct ListColumn {
    /// The end of each row's items.
    ends: NumberColumn<u32>,
    items: Box<ColumnData>,
    len: u32,
    /// The number of items that belong to a closed row.
    closed: u32,
    element: DataType,
}

impl ListColumn {
    pub fn new(element: &ColumnType) -> ListColumn {
        ListColumn {
            ends: NumberColumn::new(),
            items: Box::new(ColumnData::new(element, false)),
            len: 0,
            closed: 0,
            element: element.arrow().unwrap_or(DataType::Null),
        }
    }

    /// The inner column, and the index of the next item.
    #[inline]
    pub fn next_item(&mut self) -> (&mut ColumnData, usize) {
        let row = self.len as usize;
        self.len += 1;
        (&mut self.items, row)
    }

    /// Makes the items since the last closed row the list of this row.
    #[inline]
    pub fn close(&mut self, row: usize) {
        self.ends.push(row, self.len);
        self.closed = self.len;
    }

    /// Like [`ListColumn::close`], but the row gets no list if there are no items.
    #[inline]
    pub fn close_if_any(&mut self, row: usize) {
        if self.len > self.closed {
            self.close(row);
        }
    }

    pub fn array(&self, rows: usize) -> Result<ArrayRef, ArrowError> {
        let (offsets, nulls) = offsets(&self.ends, rows);
        let field = Arc::new(Field::new("element", self.element.clone(), true));
        let items = self.items.array(self.len as usize, &self.element)?;
        Ok(Arc::new(ListArray::try_new(field, offsets, items, nulls)?))
    }

    pub fn clear(&mut self) {
        self.ends.clear();
        self.items.clear();
        (self.len, self.closed) = (0, 0);
    }

    pub fn space(&self) -> MemoryUsage {
        self.ends.space() + self.items.space()
    }
}

/// One struct per row. The members are columns with as many rows.
#[derive(Debug)]
pub struct StructColumn {
    pub members: Vec<ColumnData>,
    fields: Fields,
}

impl StructColumn {
    pub fn new(members: &[TableColumn]) -> StructColumn {
        let field = |member: &TableColumn| {
            let kind = member.kind.arrow().unwrap_or(DataType::Null);
            Field::new(&member.name, kind, member.nullable)
        };
        StructColumn {
            members: members
                .iter()
                .map(|member| ColumnData::new(&member.kind, false))
                .collect(),
            fields: members.iter().map(field).collect(),
        }
    }

    pub fn array(&self, rows: usize) -> Result<ArrayRef, ArrowError> {
        let members = self.members.iter().zip(&self.fields);
        let arrays = members.map(|(member, field)| member.array(rows, field.data_type()));
        let arrays = arrays.collect::<Result<_, _>>()?;
        Ok(Arc::new(StructArray::try_new(self.fields.clone(), arrays, None)?))
    }
}

/// One optional map of texts per row.
#[derive(Debug, Default)]
pub struct TextMapColumn {
    ends: NumberColumn<u32>,
    keys: TextBuffer,
    values: TextBuffer,
    /// The number of entries that belong to a closed row.
    closed: usize,
}

impl TextMapColumn {
    /// Adds an entry to the map of the next closed row.
    #[inline]
    pub fn push(&mut self, key: &str, value: &str) {
        self.keys.push(key.as_bytes());
        self.values.push(value.as_bytes());
    }

    #[inline]
    pub fn close(&mut self, row: usize) {
        self.closed = self.keys.len();
        self.ends.push(row, u32::try_from(self.closed).unwrap_or(u32::MAX));
    }

    /// Like [`TextMapColumn::close`], but the row gets no map if there are no entries.
    #[inline]
    pub fn close_if_any(&mut self, row: usize) {
        if self.keys.len() > self.closed {
            self.close(row);
        }
    }

    pub fn array(&self, rows: usize) -> Result<ArrayRef, ArrowError> {
        let (offsets, nulls) = offsets(&self.ends, rows);
        let texts = |texts: &TextBuffer| -> ArrayRef {
            let text = |at| std::str::from_utf8(texts.get(at)).unwrap_or_default();
            Arc::new(StringArray::from_iter_values((0..texts.len()).map(text)))
        };
        let DataType::Map(entry, is_sorted) = text_map_type() else {
            return Err(ArrowError::SchemaError("the map type is not a map".to_owned()));
        };
        let DataType::Struct(fields) = entry.data_type() else {
            return Err(ArrowError::SchemaError("a map has no entries".to_owned()));
        };
        let entries = StructArray::try_new(fields.clone(), vec![texts(&self.keys), texts(&self.values)], None)?;
        Ok(Arc::new(MapArray::try_new(
            entry.clone(),
            offsets,
            entries,
            nulls,
            is_sorted,
        )?))
    }

    pub fn clear(&mut self) {
        self.ends.clear();
        self.keys.clear();
        self.values.clear();
        self.closed = 0;
    }

    pub fn space(&self) -> MemoryUsage {
        self.ends.space() + self.keys.space() + self.values.space()
    }
}

/// The offsets of each row's items; skipped rows have none.
fn offsets(ends: &NumberColumn<u32>, rows: usize) -> (OffsetBuffer<i32>, Option<NullBuffer>) {
    let mut last = 0;
    let mut offsets = Vec::with_capacity(rows + 1);
    offsets.push(0);
    for row in 0..rows {
        last = ends.get(row).unwrap_or(last);
        offsets.push(i32::try_from(last).unwrap_or(i32::MAX));
    }
    let nulls = NullBuffer::new(BooleanBuffer::collect_bool(rows, |row| ends.is_present(row)));
    (
        OffsetBuffer::new(offsets.into()),
        (nulls.null_count() > 0).then_some(nulls),
    )
}
