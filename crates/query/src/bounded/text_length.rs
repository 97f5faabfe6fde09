//! Limits the length of rows as text. The response writer formats whole rows, and a row can be far longer as text than
//! in memory: columns share values, characters are escaped, names repeat in each row. Batches are therefore cut by the
//! length of their text, and a row that exceeds the limit is refused.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::Result;

use super::budget::too_large;
use super::measure::{array_bytes, of_dictionary, row_bytes, span, sum, sum_rows};

/// Rows are passed on together up to this length.
pub const PART_BYTES: usize = 8 << 20;
/// A character can become `\u0001`. In usual texts few characters are escaped.
const ESCAPED_BYTES: usize = 6;
const ESCAPED_BYTES_USUAL: usize = 2;
/// Quotes, a colon or a comma.
const MARKS_BYTES: usize = 4;
/// `null`, `true` or `false`.
const WORD_BYTES: usize = 6;
/// An integer in quotes; another number or a time; a number of more than 64 bits.
const INTEGER_BYTES: usize = 24;
const NUMBER_BYTES: usize = 40;
const WIDE_NUMBER_BYTES: usize = 120;
/// In longer texts, escaped characters are counted exactly.
const COUNTED_BYTES: usize = 64 << 10;

/// Rows of an answer, and their length as text.
#[derive(Debug)]
pub struct SizedBatch {
    pub rows: RecordBatch,
    pub bytes: usize,
}

/// Cuts a batch into parts of limited length. A row longer than `row_max` is an error.
pub fn parts(batch: &RecordBatch, row_max: usize) -> Result<Vec<SizedBatch>> {
    let mut parts = Vec::new();
    let names = names_bytes(batch.schema_ref().fields());
    let limits = TextLimits {
        part: PART_BYTES.min(row_max),
        row: row_max,
    };
    add_parts(batch, names, limits, &mut parts)?;
    Ok(parts)
}

#[derive(Clone, Copy)]
struct TextLimits {
    part: usize,
    row: usize,
}

/// Most batches are one part, which an estimate shows without a scan of each row. Larger ones are halved.
fn add_parts(batch: &RecordBatch, names: usize, limits: TextLimits, parts: &mut Vec<SizedBatch>) -> Result<()> {
    let count = batch.num_rows();
    let columns = batch.columns().iter().map(|column| usual_bytes(column));
    let bytes = columns.fold(names.saturating_mul(count), usize::saturating_add);
    if bytes > limits.part && count > 1 {
        let half = count / 2;
        add_parts(&batch.slice(0, half), names, limits, parts)?;
        return add_parts(&batch.slice(half, count - half), names, limits, parts);
    }
    let bytes = match bytes > limits.part {
        true => row_length(batch, names, limits.row)?,
        false => bytes,
    };
    let rows = batch.clone();
    parts.push(SizedBatch { rows, bytes });
    Ok(())
}

/// The length of a row. Escaped characters are counted only if the row is not too long without them.
fn row_length(row: &RecordBatch, names: usize, row_max: usize) -> Result<usize> {
    let sum = |of_column: fn(&dyn Array) -> Vec<usize>| {
        let columns = row.columns().iter().flat_map(|column| of_column(column));
        columns.fold(names, usize::saturating_add)
    };
    let held = sum(row_bytes);
    let length = if held > row_max { held } else { sum(text_bytes) };
    match length > row_max {
        true => Err(too_large("a row of the answer", length, row_max)),
        false => Ok(length),
    }
}

/// An estimate for usual texts; the worst case is at most three times as long.
fn usual_bytes(array: &dyn Array) -> usize {
    let rows = array.len();
    match array.data_type() {
        DataType::Struct(fields) => {
            let columns = array.as_struct().columns().iter().map(|part| usual_bytes(part));
            columns.fold(
                rows.saturating_mul(names_bytes(fields) + MARKS_BYTES),
                usize::saturating_add,
            )
        }
        DataType::List(_) => usual_of_lists(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values()),
        DataType::LargeList(_) => {
            usual_of_lists(array.as_list::<i64>().value_offsets(), array.as_list::<i64>().values())
        }
        DataType::Map(_, _) => {
            let entries: ArrayRef = Arc::new(array.as_map().entries().clone());
            usual_of_lists(array.as_map().value_offsets(), &entries)
        }
        kind if kind.is_string() || kind.is_binary() => {
            array_bytes(array).saturating_mul(ESCAPED_BYTES_USUAL) + rows * MARKS_BYTES
        }
        kind => match width_as_text(kind) {
            Some(width) => rows * width,
            None => text_bytes(array).into_iter().fold(0, usize::saturating_add),
        },
    }
}

fn usual_of_lists<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> usize {
    let (start, length) = span(offsets);
    usual_bytes(&values.slice(start, length)).saturating_add(length + offsets.len() * MARKS_BYTES)
}

/// For types whose values have similar lengths.
fn width_as_text(kind: &DataType) -> Option<usize> {
    match kind {
        DataType::Null | DataType::Boolean => Some(WORD_BYTES),
        kind if kind.is_integer() => Some(INTEGER_BYTES),
        kind => kind.primitive_width().map(|width| match width <= size_of::<u64>() {
            true => NUMBER_BYTES,
            false => WIDE_NUMBER_BYTES,
        }),
    }
}

fn names_bytes<'a>(fields: impl IntoIterator<Item = &'a Arc<Field>>) -> usize {
    let one = |field: &Arc<Field>| counted(field.name()) + MARKS_BYTES;
    fields.into_iter().map(one).fold(0, usize::saturating_add)
}

/// The longest possible text of each value.
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
        kind => match width_as_text(kind) {
            Some(width) => vec![width; rows],
            // Rare types: each row counts as the whole array.
            None => vec![array_bytes(array).saturating_mul(ESCAPED_BYTES); rows],
        },
    }
}

fn escaped(text: Option<&str>) -> usize {
    let text = text.unwrap_or_default();
    let bytes = match text.len() > COUNTED_BYTES {
        true => counted(text),
        false => text.len() * ESCAPED_BYTES,
    };
    bytes + MARKS_BYTES
}

/// The length with escapes counted.
fn counted(text: &str) -> usize {
    text.len() + text.bytes().map(added_bytes).sum::<usize>()
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
    // A comma after each element.
    sum(each, from, to).saturating_add(to - from + MARKS_BYTES)
}
