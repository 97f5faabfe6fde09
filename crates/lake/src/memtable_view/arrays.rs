//! Memtable columns as Arrow arrays, for queries.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, StringViewArray,
    TimestampMicrosecondArray, make_view, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;

use thalweg_columns::attribute_types::{self, AttributeType};
use thalweg_columns::rows::column_view::ColumnView;
use thalweg_columns::rows::numbers::NumberColumn;
use thalweg_columns::rows::text::{NULL, TextColumn};

const NANOS_PER_MICRO: i64 = 1_000;
const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// An array of `rows` values. Texts become views.
pub(super) fn array(values: &ColumnView<'_>, rows: usize, as_type: &DataType) -> Result<ArrayRef, ArrowError> {
    Ok(match values {
        ColumnView::Longs(column) => Arc::new(Int64Array::new(numbers(column, rows).into(), present(column, rows))),
        ColumnView::Nanos(column) => {
            let micros = numbers(column, rows)
                .into_iter()
                .map(|nanos| nanos.div_euclid(NANOS_PER_MICRO));
            let micros: Vec<i64> = micros.collect();
            let array = TimestampMicrosecondArray::new(micros.into(), present(column, rows));
            Arc::new(array.with_timezone("UTC"))
        }
        ColumnView::Integers(column) => Arc::new(Int32Array::new(numbers(column, rows).into(), present(column, rows))),
        ColumnView::Doubles(column) => Arc::new(Float64Array::new(numbers(column, rows).into(), present(column, rows))),
        ColumnView::Booleans(column) => {
            let values = BooleanBuffer::from(numbers(column, rows));
            Arc::new(BooleanArray::new(values, present(column, rows)))
        }
        ColumnView::Texts(column) => texts(column, rows, as_type)?,
        ColumnView::Nested(array) if array.len() >= rows => array.slice(0, rows),
        ColumnView::Nested(array) => concat(&[
            array.as_ref(),
            new_null_array(array.data_type(), rows - array.len()).as_ref(),
        ])?,
    })
}

/// The values of the texts of an attribute that fit its type.
pub(super) fn typed(texts: &TextColumn, rows: usize, kind: AttributeType) -> ArrayRef {
    match kind {
        AttributeType::Long => Arc::new(texts.converted(rows, attribute_types::long).collect::<Int64Array>()),
        AttributeType::Double => Arc::new(texts.converted(rows, attribute_types::double).collect::<Float64Array>()),
        AttributeType::Boolean => Arc::new(
            texts
                .converted(rows, attribute_types::boolean)
                .collect::<BooleanArray>(),
        ),
    }
}

/// The day of each time.
pub(super) fn days(times: &NumberColumn<i64>, rows: usize) -> ArrayRef {
    let days = numbers(times, rows)
        .into_iter()
        .map(|nanos| nanos.div_euclid(NANOS_PER_DAY));
    let days: Vec<i32> = days.map(|day| i32::try_from(day).unwrap_or_default()).collect();
    Arc::new(Date32Array::new(days.into(), None))
}

fn numbers<T: Copy + Default>(column: &NumberColumn<T>, rows: usize) -> Vec<T> {
    let mut values = column.values().to_vec();
    values.resize(rows, T::default());
    values
}

fn present<T: Copy + Default>(column: &NumberColumn<T>, rows: usize) -> Option<NullBuffer> {
    let is_whole = column.nulls() == 0 && column.values().len() >= rows;
    let bits = || BooleanBuffer::collect_bool(rows, |row| column.is_present(row));
    (!is_whole).then(|| NullBuffer::new(bits()))
}

/// Copies each distinct text once; rows refer to it.
fn texts(column: &TextColumn, rows: usize, as_type: &DataType) -> Result<ArrayRef, ArrowError> {
    let views = views(column);
    let of_row = |row: usize| column.keys().get(row).copied().filter(|key| *key != NULL);
    let gathered: Vec<u128> = (0..rows)
        .map(|row| {
            of_row(row)
                .and_then(|key| views.views.get(key as usize).copied())
                .unwrap_or_default()
        })
        .collect();
    let nulls = NullBuffer::new(BooleanBuffer::collect_bool(rows, |row| of_row(row).is_some()));
    let nulls = (nulls.null_count() > 0).then_some(nulls);
    Ok(match as_type {
        DataType::BinaryView => Arc::new(BinaryViewArray::try_new(gathered.into(), views.blocks, nulls)?),
        _ => Arc::new(StringViewArray::try_new(gathered.into(), views.blocks, nulls)?),
    })
}

/// The views of a column's distinct texts.
struct TextViews {
    views: Vec<u128>,
    blocks: Vec<Buffer>,
}

fn views(column: &TextColumn) -> TextViews {
    let texts = column.texts();
    let (mut bytes, mut views) = (Vec::new(), Vec::with_capacity(texts.len()));
    for key in 0..texts.len() {
        let text = texts.get(key);
        let begin = bytes.len();
        bytes.extend_from_slice(text);
        // Short texts are stored in their views. The text of a column is limited to far less than an offset can
        // address.
        views.push(make_view(text, 0, u32::try_from(begin).unwrap_or_default()));
    }
    TextViews {
        views,
        blocks: vec![Buffer::from_vec(bytes)],
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{Int64Type, TimestampMicrosecondType};

    use super::*;
    use thalweg_columns::rows::text::TextColumnEncoding;

    #[test]
    fn rows_without_a_value_are_null_wherever_they_are() {
        let mut longs = NumberColumn::new();
        longs.push(1, 1_500);
        longs.push(2, -1_500);
        let array = array(&ColumnView::Longs(&longs), 5, &DataType::Int64).unwrap();
        let found: Vec<Option<i64>> = array.as_primitive::<Int64Type>().iter().collect();
        assert_eq!(found, [None, Some(1_500), Some(-1_500), None, None]);
        let times = super::array(&ColumnView::Nanos(&longs), 3, &DataType::Null).unwrap();
        let found: Vec<Option<i64>> = times.as_primitive::<TimestampMicrosecondType>().iter().collect();
        assert_eq!(
            found,
            [None, Some(1), Some(-2)],
            "times before 1970 are rounded down, too"
        );
        assert_eq!(
            days(&longs, 3).as_primitive::<arrow::datatypes::Date32Type>().values()[..],
            [0, 0, -1]
        );
    }

    #[test]
    fn texts_of_both_kinds_become_views() {
        let long = "a text that is too long to lie in a view";
        for kind in [TextColumnEncoding::Dictionary, TextColumnEncoding::Plain] {
            let mut column = TextColumn::new(kind);
            for (row, text) in [(0, "a"), (2, long), (3, ""), (4, long)] {
                column.push(row, text.as_bytes());
            }
            let array = array(&ColumnView::Texts(&column), 6, &DataType::Utf8View).unwrap();
            let found: Vec<Option<&str>> = array.as_string_view().iter().collect();
            assert_eq!(
                found,
                [Some("a"), None, Some(long), Some(""), Some(long), None],
                "{kind:?}"
            );
            let bytes = super::array(&ColumnView::Texts(&column), 6, &DataType::BinaryView).unwrap();
            assert_eq!(bytes.as_binary_view().value(2), long.as_bytes());
        }
    }

    #[test]
    fn nested_columns_are_as_long_as_their_rows() {
        let lists: ArrayRef = Arc::new(arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            None,
        ]));
        let array = array(&ColumnView::Nested(lists), 4, &DataType::Null).unwrap();
        assert_eq!((array.len(), array.null_count()), (4, 3));
    }
}
