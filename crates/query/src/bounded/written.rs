//! How long rows are as text. What writes an answer makes it of whole rows, and a row can be far longer as text than an operator
//! holds: columns share a value, a character is escaped, names stand in each row. So rows are cut by the length of their text,
//! and one that is longer than an answer may have is refused.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::budget::too_large;
use super::measure::{array_bytes, batch_bytes, of_dictionary, row_bytes, span, sum, sum_rows};

/// Several rows are handed on together up to this length.
pub const PART_BYTES: usize = 4 << 20;
/// A character can become `\u0001`.
const ESCAPED_BYTES: usize = 6;
/// Quotes, a colon or a comma.
const MARKS_BYTES: usize = 4;
/// `null`, `true` or `false`.
const WORD_BYTES: usize = 6;
/// A whole number in quotes; another one or a time; one of more than 64 bits.
const INTEGER_BYTES: usize = 24;
const NUMBER_BYTES: usize = 40;
const WIDE_NUMBER_BYTES: usize = 120;
/// In longer texts the characters that are escaped are counted.
const COUNTED_BYTES: usize = 64 << 10;

/// Some rows of an answer, and how long they are as text, at most.
#[derive(Debug)]
pub struct Part {
    pub rows: RecordBatch,
    pub bytes: usize,
}

/// The same rows in parts of some length. A row that is longer than allowed is an error.
pub fn parts(batch: &RecordBatch, row_max: usize) -> Result<Vec<Part>> {
    let names = names_bytes(batch.schema_ref().fields());
    let rows = batch.num_rows();
    if let Some(bytes) = flat_bytes(batch, names).filter(|bytes| *bytes <= PART_BYTES) {
        let rows = batch.clone();
        return Ok(vec![Part { rows, bytes }]);
    }
    // Characters are counted of what is not too long anyway.
    let held = sum_rows(rows, batch.columns().iter().map(|column| row_bytes(column)));
    if let Some(widest) = held.into_iter().max().filter(|widest| *widest > row_max) {
        return Err(too_large("a row of the answer", widest, row_max));
    }
    let widths = sum_rows(rows, batch.columns().iter().map(|column| text_bytes(column)));
    let (mut parts, mut from, mut bytes) = (Vec::new(), 0, 0_usize);
    for (row, width) in widths.into_iter().enumerate() {
        let width = width.saturating_add(names);
        if width > row_max {
            return Err(too_large("a row of the answer", width, row_max));
        }
        if row > from && bytes.saturating_add(width) > PART_BYTES {
            let rows = batch.slice(from, row - from);
            parts.push(Part { rows, bytes });
            (from, bytes) = (row, 0);
        }
        bytes = bytes.saturating_add(width);
    }
    if rows > from {
        let rows = batch.slice(from, rows - from);
        parts.push(Part { rows, bytes });
    }
    Ok(parts)
}

/// The same of all rows at once, where it is told without a look at each: most batches are far below the limit.
fn flat_bytes(batch: &RecordBatch, names: usize) -> Option<usize> {
    let is_flat = |column: &ArrayRef| {
        let kind = column.data_type();
        !kind.is_nested() && !matches!(kind, DataType::Dictionary(_, _) | DataType::RunEndEncoded(_, _))
    };
    if !batch.columns().iter().all(is_flat) {
        return None;
    }
    let values = batch
        .num_columns()
        .saturating_mul(WIDE_NUMBER_BYTES)
        .saturating_add(names);
    let texts = batch_bytes(batch).saturating_mul(ESCAPED_BYTES);
    Some(values.saturating_mul(batch.num_rows()).saturating_add(texts))
}

fn names_bytes<'a>(fields: impl IntoIterator<Item = &'a Arc<Field>>) -> usize {
    let one = |field: &Arc<Field>| field.name().len().saturating_mul(ESCAPED_BYTES) + MARKS_BYTES;
    fields.into_iter().map(one).fold(0, usize::saturating_add)
}

/// Of each value, at most.
pub fn text_bytes(array: &dyn Array) -> Vec<usize> {
    let rows = array.len();
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().map(escaped).collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().map(escaped).collect(),
        DataType::Utf8View => array.as_string_view().iter().map(escaped).collect(),
        // Base64: four characters for three bytes.
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            let widths = row_bytes(array).into_iter();
            widths.map(|width| width.div_ceil(3) * 4 + MARKS_BYTES).collect()
        }
        DataType::Struct(fields) => {
            let names = names_bytes(fields);
            let mut all = sum_rows(rows, array.as_struct().columns().iter().map(|part| text_bytes(part)));
            all.iter_mut()
                .for_each(|bytes| *bytes = bytes.saturating_add(names + MARKS_BYTES));
            all
        }
        DataType::List(_) => of_lists(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values()),
        DataType::LargeList(_) => of_lists(array.as_list::<i64>().value_offsets(), array.as_list::<i64>().values()),
        DataType::Map(_, _) => {
            let entries: ArrayRef = Arc::new(array.as_map().entries().clone());
            of_lists(array.as_map().value_offsets(), &entries)
        }
        DataType::FixedSizeList(_, width) => {
            let (list, width) = (array.as_fixed_size_list(), usize::try_from(*width).unwrap_or(0));
            let each = text_bytes(list.values());
            (0..rows)
                .map(|row| of_elements(&each, row * width, (row + 1) * width))
                .collect()
        }
        DataType::Dictionary(_, _) => of_dictionary(array, text_bytes),
        DataType::Null | DataType::Boolean => vec![WORD_BYTES; rows],
        kind if kind.is_integer() => vec![INTEGER_BYTES; rows],
        kind => match kind.primitive_width() {
            Some(width) if width <= size_of::<u64>() => vec![NUMBER_BYTES; rows],
            Some(_) => vec![WIDE_NUMBER_BYTES; rows],
            // Rare: each row counts as all of them.
            None => vec![array_bytes(array).saturating_mul(ESCAPED_BYTES); rows],
        },
    }
}

fn escaped(text: Option<&str>) -> usize {
    let text = text.unwrap_or_default();
    let bytes = match text.len() > COUNTED_BYTES {
        true => text.len() + text.bytes().map(added_bytes).sum::<usize>(),
        false => text.len() * ESCAPED_BYTES,
    };
    bytes + MARKS_BYTES
}

fn added_bytes(byte: u8) -> usize {
    match byte {
        b'"' | b'\\' => 1,
        0..0x20 => ESCAPED_BYTES - 1,
        _ => 0,
    }
}

fn of_lists<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> Vec<usize> {
    let (start, length) = span(offsets);
    let each = text_bytes(&values.slice(start, length));
    let bytes = |pair: &[O]| {
        let (at, length) = span(pair);
        of_elements(&each, at - start, at - start + length)
    };
    offsets.windows(2).map(bytes).collect()
}

fn of_elements(each: &[usize], from: usize, to: usize) -> usize {
    // A comma after each.
    sum(each, from, to).saturating_add(to - from + MARKS_BYTES)
}
