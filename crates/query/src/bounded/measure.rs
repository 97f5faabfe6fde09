//! Measures the bytes of values when each row is written out separately.
//!
//! The memory of an array says little about that: a view or a dictionary shares a value between many rows, and a slice
//! keeps its whole parent array alive. The bounds are about an operator that copies each row.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, GenericListArray, MapArray, OffsetSizeTrait, RecordBatch,
    RecordBatchOptions, StringViewArray,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::arrow::error::ArrowError;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;

/// A view of a text or bytes; the data that it points to is shared.
const VIEW_BYTES: usize = 16;

/// Bytes of all rows.
pub fn array_bytes(array: &dyn Array) -> usize {
    let rows = array.len();
    if let Some(width) = array.data_type().primitive_width() {
        return rows * width;
    }
    match array.data_type() {
        DataType::Null => 0,
        DataType::Boolean => rows,
        DataType::Utf8View | DataType::BinaryView => view_bytes(views(array)) + rows * VIEW_BYTES,
        DataType::Utf8 => offset_bytes(array.as_string::<i32>().value_offsets()),
        DataType::Binary => offset_bytes(array.as_binary::<i32>().value_offsets()),
        DataType::LargeUtf8 => offset_bytes(array.as_string::<i64>().value_offsets()),
        DataType::LargeBinary => offset_bytes(array.as_binary::<i64>().value_offsets()),
        DataType::Struct(_) => array.as_struct().columns().iter().map(|part| array_bytes(part)).sum(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            offset_bytes_of(list.value_offsets(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            offset_bytes_of(list.value_offsets(), list.values())
        }
        DataType::Map(_, _) => {
            let map = array.as_map();
            let (start, length) = span(map.value_offsets());
            array_bytes(&map.entries().slice(start, length)) + size_of_val(map.value_offsets())
        }
        DataType::FixedSizeList(_, _) => array_bytes(array.as_fixed_size_list().values()),
        _ => row_bytes(array).into_iter().sum(),
    }
}

fn offset_bytes<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
    span(offsets).1 + size_of_val(offsets)
}

fn offset_bytes_of<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> usize {
    let (start, length) = span(offsets);
    array_bytes(&values.slice(start, length)) + size_of_val(offsets)
}

/// The offset of the first value of some rows, and the length of all.
pub fn span<O: OffsetSizeTrait>(offsets: &[O]) -> (usize, usize) {
    let at = |offset: Option<&O>| offset.map_or(0, |offset| offset.as_usize());
    let (start, end) = (at(offsets.first()), at(offsets.last()));
    (start, end.saturating_sub(start))
}

fn views(array: &dyn Array) -> &[u128] {
    if let Some(texts) = array.as_any().downcast_ref::<StringViewArray>() {
        return texts.views();
    }
    let bytes = array.as_any().downcast_ref::<BinaryViewArray>();
    bytes.map_or(&[], |bytes| bytes.views())
}

/// The low 32 bits of a view are its length.
fn view_length(view: &u128) -> usize {
    *view as u32 as usize
}

/// Runs for every batch between two operators, so it is a loop without a call per view.
fn view_bytes(views: &[u128]) -> usize {
    views.iter().map(view_length).sum()
}

/// Bytes of each row.
pub fn row_bytes(array: &dyn Array) -> Vec<usize> {
    let rows = array.len();
    if let Some(width) = array.data_type().primitive_width() {
        return vec![width; rows];
    }
    match array.data_type() {
        DataType::Null | DataType::Boolean => vec![1; rows],
        DataType::FixedSizeBinary(width) => vec![usize::try_from(*width).unwrap_or(0); rows],
        DataType::Utf8View | DataType::BinaryView => {
            let widths = views(array).iter().map(|view| view_length(view) + VIEW_BYTES);
            widths.collect()
        }
        DataType::Utf8 => lengths(array.as_string::<i32>().value_offsets()),
        DataType::Binary => lengths(array.as_binary::<i32>().value_offsets()),
        DataType::LargeUtf8 => lengths(array.as_string::<i64>().value_offsets()),
        DataType::LargeBinary => lengths(array.as_binary::<i64>().value_offsets()),
        DataType::List(_) => of_lists(array.as_list::<i32>().value_offsets(), array.as_list::<i32>().values()),
        DataType::LargeList(_) => of_lists(array.as_list::<i64>().value_offsets(), array.as_list::<i64>().values()),
        DataType::Map(_, _) => {
            let map = array.as_map();
            of_lists(map.value_offsets(), &(Arc::new(map.entries().clone()) as ArrayRef))
        }
        DataType::FixedSizeList(_, width) => {
            let (each, width) = (row_bytes(array.as_fixed_size_list().values()), (*width).max(0) as usize);
            (0..rows)
                .map(|row| sum(&each, row * width, (row + 1) * width))
                .collect()
        }
        DataType::Struct(_) => {
            let mut all = vec![0; rows];
            for part in array.as_struct().columns() {
                all.iter_mut()
                    .zip(row_bytes(part))
                    .for_each(|(sum, bytes)| *sum += bytes);
            }
            all
        }
        DataType::Dictionary(_, _) => of_dictionary(array, row_bytes),
        // Unions, run-end encoded arrays and list views are not in tables and rare elsewhere; each row counts as the
        // whole array.
        _ => vec![array.get_array_memory_size(); rows],
    }
}

/// The size of each row's dictionary value.
pub fn of_dictionary(array: &dyn Array, of_values: fn(&dyn Array) -> Vec<usize>) -> Vec<usize> {
    let dictionary = array.as_any_dictionary();
    if dictionary.values().is_empty() {
        return vec![0; array.len()];
    }
    let each = of_values(dictionary.values());
    let keys = dictionary.normalized_keys().into_iter();
    keys.map(|key| each.get(key).copied().unwrap_or(0)).collect()
}

fn lengths<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<usize> {
    offsets.windows(2).map(|pair| span(pair).1 + size_of::<O>()).collect()
}

fn of_lists<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> Vec<usize> {
    if let Some(width) = values.data_type().primitive_width() {
        return offsets
            .windows(2)
            .map(|pair| span(pair).1 * width + size_of::<O>())
            .collect();
    }
    let (start, length) = span(offsets);
    let each = row_bytes(&values.slice(start, length));
    let bytes = |pair: &[O]| {
        let (at, length) = span(pair);
        sum(&each, at - start, at - start + length) + size_of::<O>()
    };
    offsets.windows(2).map(bytes).collect()
}

pub fn sum(each: &[usize], from: usize, to: usize) -> usize {
    each.get(from..to).unwrap_or_default().iter().sum()
}

/// Bytes of each row over several columns.
pub fn sum_rows(rows: usize, columns: impl Iterator<Item = Vec<usize>>) -> Vec<usize> {
    let mut sums = vec![0_usize; rows];
    for column in columns {
        sums.iter_mut()
            .zip(column)
            .for_each(|(sum, bytes)| *sum = sum.saturating_add(bytes));
    }
    sums
}

/// Elements of each row of a list; 1 for other types.
pub fn element_counts(array: &dyn Array) -> Vec<usize> {
    let counts = |offsets: &[i32]| offsets.windows(2).map(|pair| span(pair).1).collect();
    match array.data_type() {
        DataType::List(_) => counts(array.as_list::<i32>().value_offsets()),
        DataType::Map(_, _) => counts(array.as_map().value_offsets()),
        DataType::LargeList(_) => {
            let offsets = array.as_list::<i64>().value_offsets();
            offsets.windows(2).map(|pair| span(pair).1).collect()
        }
        DataType::FixedSizeList(_, width) => vec![(*width).max(0) as usize; array.len()],
        _ => vec![1; array.len()],
    }
}

/// Bytes of an argument for `rows` rows; a constant counts once per row.
pub fn value_bytes(value: &ColumnarValue, rows: usize) -> usize {
    match value {
        ColumnarValue::Array(array) => array_bytes(array),
        ColumnarValue::Scalar(scalar) => scalar_bytes(scalar).saturating_mul(rows),
    }
}

pub fn scalar_bytes(scalar: &ScalarValue) -> usize {
    match scalar {
        ScalarValue::Utf8(text) | ScalarValue::LargeUtf8(text) | ScalarValue::Utf8View(text) => {
            text.as_ref().map_or(0, String::len) + VIEW_BYTES
        }
        ScalarValue::List(list) => array_bytes(list.as_ref()),
        ScalarValue::LargeList(list) => array_bytes(list.as_ref()),
        ScalarValue::FixedSizeList(list) => array_bytes(list.as_ref()),
        ScalarValue::Struct(parts) => array_bytes(parts.as_ref()),
        ScalarValue::Map(map) => array_bytes(map.as_ref()),
        other => match other.data_type().primitive_width() {
            Some(width) => width,
            None => other.size(),
        },
    }
}

/// The most bytes that the rows of a batch take when all columns are written out.
pub fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|column| array_bytes(column)).sum()
}

/// Measures a type: the bytes of a value that depend on the type alone, and the number of nested types.
pub fn type_size(kind: &DataType) -> TypeSize {
    let mut size = TypeSize { bytes: 0, parts: 0 };
    size.add(kind, 1);
    size
}

#[derive(Clone, Copy, Debug)]
pub struct TypeSize {
    pub bytes: usize,
    pub parts: usize,
}

/// Counting stops here, because nested types can grow exponentially.
pub const TYPE_PARTS_MAX: usize = 1_000;

impl TypeSize {
    fn add(&mut self, kind: &DataType, times: usize) {
        self.parts += 1;
        if self.parts > TYPE_PARTS_MAX {
            return;
        }
        match kind {
            DataType::FixedSizeBinary(width) => self.grow(*width, times),
            DataType::FixedSizeList(field, width) => {
                let times = times.saturating_mul(usize::try_from(*width).unwrap_or(0));
                self.bytes = self.bytes.saturating_add(times);
                self.add(field.data_type(), times);
            }
            DataType::Struct(fields) => fields.iter().for_each(|field| self.add(field.data_type(), times)),
            DataType::Union(fields, _) => fields.iter().for_each(|(_, field)| self.add(field.data_type(), times)),
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::ListView(field)
            | DataType::LargeListView(field)
            | DataType::Map(field, _) => self.add_field(field, times),
            DataType::Dictionary(key, value) => {
                self.add(key, times);
                self.add(value, times);
            }
            DataType::RunEndEncoded(ends, values) => {
                self.add_field(ends, times);
                self.add_field(values, times);
            }
            other => self.grow(other.primitive_width().unwrap_or(1) as i32, times),
        }
    }

    fn add_field(&mut self, field: &Field, times: usize) {
        self.add(field.data_type(), times);
    }

    fn grow(&mut self, width: i32, times: usize) {
        let bytes = usize::try_from(width).unwrap_or(0).saturating_mul(times);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Copies lists so that they contain only the elements of these rows. A slice keeps all elements, and code that copies
/// rows allocates in proportion to them.
pub fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch
        .columns()
        .iter()
        .map(compact_column)
        .collect::<Result<Vec<_>, _>>()?;
    // A batch may have rows but no columns.
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(batch.schema(), columns, &options)?)
}

fn compact_column(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    Ok(match column.data_type() {
        DataType::List(field) => compact_list(column.as_list::<i32>(), field)?,
        DataType::LargeList(field) => compact_list(column.as_list::<i64>(), field)?,
        DataType::Map(field, is_sorted) => {
            let map = column.as_map();
            let (start, length) = span(map.value_offsets());
            if length == map.entries().len() {
                return Ok(column.clone());
            }
            let offsets = OffsetBuffer::from_lengths(map.offsets().lengths());
            let entries = map.entries().slice(start, length);
            Arc::new(MapArray::try_new(
                field.clone(),
                offsets,
                entries,
                map.nulls().cloned(),
                *is_sorted,
            )?)
        }
        _ => column.clone(),
    })
}

fn compact_list<O: OffsetSizeTrait>(list: &GenericListArray<O>, field: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let (start, length) = span(list.value_offsets());
    if length == list.values().len() {
        return Ok(Arc::new(list.clone()));
    }
    let offsets = OffsetBuffer::<O>::from_lengths(list.offsets().lengths());
    let values = list.values().slice(start, length);
    Ok(Arc::new(GenericListArray::try_new(
        field.clone(),
        offsets,
        values,
        list.nulls().cloned(),
    )?))
}
