//! Combines the columns of chunks into file columns.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, BooleanBufferBuilder, new_null_array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use hashbrown::HashMap;

use crate::memtable_view::overflow;
use thalweg_columns::attribute_types::{self, AttributeType};
use thalweg_columns::attributes::AttributeBindings;
use thalweg_columns::file::{FileColumn, ValidityBitmap};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::column_view::ColumnView;
use thalweg_columns::rows::numbers::NumberColumn;
use thalweg_columns::rows::text::{NULL, TextColumn, TextColumnEncoding};
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema;

const NANOS_PER_MICRO: i64 = 1_000;
const OVERFLOW: &str = "overflow";

/// A column of all rows of the chunks.
pub(super) fn column<'a>(
    spec: &TableSpec,
    chunks: &'a [Arc<MemtableChunk>],
    column: &schema::TableColumn,
    field: &Field,
    bindings: &AttributeBindings,
) -> Result<FileColumn<'a>, ArrowError> {
    if let Some(kind) = AttributeType::of_column(column) {
        return Ok(typed(chunks, column, kind));
    }
    let is_near = spec.near.contains(&column.name.as_str());
    let of_chunk = |chunk: &'a Arc<MemtableChunk>| -> Result<(usize, Option<ColumnView<'a>>), ArrowError> {
        Ok((chunk.rows(), values(chunk, column, bindings)?))
    };
    let parts: Vec<(usize, Option<ColumnView<'_>>)> = chunks.iter().map(of_chunk).collect::<Result<_, _>>()?;
    let Some(first) = parts.iter().find_map(|(_, values)| values.as_ref()) else {
        return Ok(FileColumn::Nothing);
    };
    macro_rules! numbers {
        ($variant:ident) => {
            together(&parts, |values| match values {
                ColumnView::$variant(column) => Some(column),
                _ => None,
            })
        };
    }
    Ok(match first {
        ColumnView::Longs(_) => {
            let (values, present) = numbers!(Longs);
            FileColumn::Longs {
                values,
                present,
                is_near,
            }
        }
        ColumnView::Nanos(_) => {
            let (mut values, present) = numbers!(Nanos);
            values
                .iter_mut()
                .for_each(|nanos| *nanos = nanos.div_euclid(NANOS_PER_MICRO));
            FileColumn::Longs {
                values,
                present,
                is_near,
            }
        }
        ColumnView::Integers(_) => {
            let (values, present) = numbers!(Integers);
            FileColumn::Integers(values, present)
        }
        ColumnView::Doubles(_) => {
            let (values, present) = numbers!(Doubles);
            FileColumn::Doubles(values, present)
        }
        ColumnView::Booleans(_) => {
            let (values, present) = numbers!(Booleans);
            FileColumn::Booleans(values, present)
        }
        ColumnView::Texts(_) => texts(&parts),
        ColumnView::Nested(_) => nested(&parts, field.data_type())?,
    })
}

/// The column of a chunk; `None` if no row has a value.
fn values<'a>(
    chunk: &'a MemtableChunk,
    column: &schema::TableColumn,
    bindings: &AttributeBindings,
) -> Result<Option<ColumnView<'a>>, ArrowError> {
    if column.name == OVERFLOW {
        return Ok(overflow(chunk, bindings)?.map(ColumnView::Nested));
    }
    let of_attribute = || attribute(chunk, column).map(ColumnView::Texts);
    let found = chunk.fixed(&column.name).or_else(of_attribute);
    Ok(found.filter(|values| match values {
        ColumnView::Longs(column) | ColumnView::Nanos(column) => !column.values().is_empty(),
        ColumnView::Integers(column) => !column.values().is_empty(),
        ColumnView::Doubles(column) => !column.values().is_empty(),
        ColumnView::Booleans(column) => !column.values().is_empty(),
        ColumnView::Texts(column) => !column.keys().is_empty(),
        ColumnView::Nested(array) => array.null_count() < array.len(),
    }))
}

fn attribute<'a>(chunk: &'a MemtableChunk, column: &schema::TableColumn) -> Option<&'a TextColumn> {
    let (source, name) = column.binding()?;
    chunk.attribute(AttributeSource::of_name(source)?, name)
}

/// An attribute column that has no texts: the values of the texts that fit its type. The others are in the overflow map.
fn typed<'a>(chunks: &[Arc<MemtableChunk>], column: &schema::TableColumn, kind: AttributeType) -> FileColumn<'a> {
    let made = match kind {
        AttributeType::Long => {
            of_texts(chunks, column, attribute_types::long).map(|(values, present)| FileColumn::Longs {
                values,
                present,
                is_near: false,
            })
        }
        AttributeType::Double => of_texts(chunks, column, attribute_types::double)
            .map(|(values, present)| FileColumn::Doubles(values, present)),
        AttributeType::Boolean => of_texts(chunks, column, attribute_types::boolean)
            .map(|(values, present)| FileColumn::Booleans(values, present)),
    };
    made.unwrap_or(FileColumn::Nothing)
}

/// The values of all rows; `None` if no row has one.
fn of_texts<T: Copy + Default>(
    chunks: &[Arc<MemtableChunk>],
    column: &schema::TableColumn,
    of_text: fn(&[u8]) -> Option<T>,
) -> Option<(Vec<T>, ValidityBitmap)> {
    let rows = chunks.iter().map(|chunk| chunk.rows()).sum();
    let (mut values, mut present) = (Vec::with_capacity(rows), BooleanBufferBuilder::new(rows));
    for chunk in chunks {
        let Some(texts) = attribute(chunk, column) else {
            values.resize(values.len() + chunk.rows(), T::default());
            present.append_n(chunk.rows(), false);
            continue;
        };
        for value in texts.converted(chunk.rows(), of_text) {
            values.push(value.unwrap_or_default());
            present.append(value.is_some());
        }
    }
    let present = present.finish();
    match present.count_set_bits() {
        0 => None,
        all if all == rows => Some((values, None)),
        _ => Some((values, Some(present))),
    }
}

type ChunkColumn<'a> = (usize, Option<ColumnView<'a>>);

fn together<'a, T: Copy + Default + 'a>(
    parts: &[ChunkColumn<'a>],
    of: impl Fn(&ColumnView<'a>) -> Option<&'a NumberColumn<T>>,
) -> (Vec<T>, ValidityBitmap) {
    let rows: usize = parts.iter().map(|(rows, _)| rows).sum();
    let columns = || {
        parts
            .iter()
            .map(|(rows, values)| (*rows, values.as_ref().and_then(&of)))
    };
    let mut all = Vec::with_capacity(rows);
    let mut is_whole = true;
    for (rows, column) in columns() {
        let (end, known) = (all.len() + rows, column.map_or(&[][..], NumberColumn::values));
        all.extend_from_slice(known.get(..rows.min(known.len())).unwrap_or_default());
        is_whole &= all.len() == end && column.is_some_and(|column| column.nulls() == 0);
        all.resize(end, T::default());
    }
    let present = || {
        let mut bits = BooleanBufferBuilder::new(rows);
        for (rows, column) in columns() {
            match column {
                Some(column) => (0..rows).for_each(|row| bits.append(column.is_present(row))),
                None => bits.append_n(rows, false),
            }
        }
        bits.finish()
    };
    let present: Option<BooleanBuffer> = (!is_whole).then(present);
    (all, present)
}

fn texts<'a>(parts: &[ChunkColumn<'a>]) -> FileColumn<'a> {
    fn column<'a>(values: &Option<ColumnView<'a>>) -> Option<&'a TextColumn> {
        match values {
            Some(ColumnView::Texts(column)) => Some(column),
            _ => None,
        }
    }
    let rows: usize = parts.iter().map(|(rows, _)| rows).sum();
    let is_plain =
        |(_, values): &ChunkColumn<'_>| column(values).is_some_and(|column| column.kind() == TextColumnEncoding::Plain);
    if parts.iter().any(is_plain) {
        let mut all = Vec::with_capacity(rows);
        for (rows, values) in parts {
            let end = all.len() + rows;
            if let Some(column) = column(values) {
                all.extend((0..*rows).map(|row| column.text_of(row)));
            }
            all.resize(end, None);
        }
        return FileColumn::Plain(all);
    }
    let mut columns = parts.iter().filter_map(|(_, values)| column(values));
    let last = columns.next_back();
    // Later chunks mostly inherit the texts of earlier ones, so the keys are valid for all.
    if let Some(last) = last.filter(|last| columns.all(|column| column.line() == last.line())) {
        let mut ids = Vec::with_capacity(rows);
        for (rows, values) in parts {
            let (end, keys) = (ids.len() + rows, column(values).map_or(&[][..], TextColumn::keys));
            ids.extend_from_slice(keys.get(..*rows).unwrap_or(keys));
            ids.resize(end, NULL);
        }
        let texts = (0..last.texts().len()).map(|at| last.texts().get(at)).collect();
        return FileColumn::Dictionary { texts, ids };
    }
    let distinct = parts
        .iter()
        .filter_map(|(_, values)| column(values).map(|column| column.texts().len()));
    let mut known: HashMap<&[u8], u32> = HashMap::with_capacity(distinct.max().unwrap_or_default());
    let (mut texts, mut ids) = (Vec::new(), Vec::with_capacity(rows));
    for (rows, values) in parts {
        let end = ids.len() + rows;
        if let Some(column) = column(values) {
            let all = column.texts();
            let id_of = |key: usize| {
                let text = all.get(key);
                *known.entry(text).or_insert_with(|| {
                    texts.push(text);
                    texts.len() as u32 - 1
                })
            };
            let id_of: Vec<u32> = (0..all.len()).map(id_of).collect();
            let id = |key: &u32| id_of.get(*key as usize).copied().unwrap_or(NULL);
            ids.extend(column.keys().iter().take(*rows).map(id));
        }
        ids.resize(end, NULL);
    }
    FileColumn::Dictionary { texts, ids }
}

fn nested<'a>(parts: &[ChunkColumn<'a>], kind: &DataType) -> Result<FileColumn<'a>, ArrowError> {
    let array = |(rows, values): &ChunkColumn<'a>| -> Vec<ArrayRef> {
        match values {
            Some(ColumnView::Nested(array)) if array.len() >= *rows => vec![array.slice(0, *rows)],
            Some(ColumnView::Nested(array)) => vec![array.clone(), new_null_array(kind, rows - array.len())],
            _ => vec![new_null_array(kind, *rows)],
        }
    };
    let arrays: Vec<ArrayRef> = parts.iter().flat_map(array).collect();
    let arrays: Vec<&dyn arrow::array::Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(FileColumn::Nested(concat(&arrays)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts are columns with their number of rows. Returns the size of the dictionary, and each row's text.
    fn of_rows(parts: &[(usize, Option<&TextColumn>)]) -> (usize, Vec<Option<String>>) {
        let parts: Vec<ChunkColumn<'_>> = parts
            .iter()
            .map(|(rows, column)| (*rows, column.map(ColumnView::Texts)))
            .collect();
        let text = |text: &[u8]| String::from_utf8(text.to_vec()).unwrap();
        match texts(&parts) {
            FileColumn::Dictionary { texts, ids } => {
                let row = |id: &u32| texts.get(*id as usize).map(|of_row| text(of_row));
                (texts.len(), ids.iter().map(row).collect())
            }
            FileColumn::Plain(rows) => (0, rows.into_iter().map(|row| row.map(text)).collect()),
            _ => panic!("texts are a dictionary or plain"),
        }
    }

    #[test]
    fn columns_that_took_over_texts_are_one_dictionary_and_so_are_others() {
        let mut first = TextColumn::new(TextColumnEncoding::Dictionary);
        let known = first.intern(b"known");
        first.push_key(1, known);
        let mut second = first.heir().unwrap();
        second.push(0, b"new");
        second.push_key(1, known);
        let mut other = TextColumn::new(TextColumnEncoding::Dictionary);
        other.push(0, b"new");
        other.push(1, b"other");
        let row = |text: &str| Some(text.to_owned());
        let of_line = [(3, Some(&first)), (1, None), (2, Some(&second))];
        let expected = vec![None, row("known"), None, None, row("new"), row("known")];
        assert_eq!(of_rows(&of_line), (2, expected.clone()));
        let with_other = [&of_line[..], &[(2, Some(&other))]].concat();
        let expected = [expected, vec![row("new"), row("other")]].concat();
        assert_eq!(of_rows(&with_other), (3, expected.clone()));
        let mut plain = TextColumn::new(TextColumnEncoding::Plain);
        plain.push(0, b"new");
        let with_plain = [&with_other[..], &[(1, Some(&plain))]].concat();
        assert_eq!(of_rows(&with_plain), (0, [expected, vec![row("new")]].concat()));
        assert_eq!(of_rows(&[(1, None)]), (0, vec![None]));
    }
}
