//! Computes from its arguments how large the result of a call can become.
//!
//! All arithmetic saturates: a size that exceeds `usize` is too large anyway.

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::ColumnarValue;

use super::measure::{element_counts, row_bytes, value_bytes};
use super::text_length::text_bytes;

/// Overhead of a list element besides its value: an offset or a view.
const ELEMENT_BYTES: usize = 16;
/// The longest UTF-8 character.
const CHAR_BYTES: usize = 4;
/// A number or a time as text.
const NUMBER_TEXT_BYTES: usize = 40;

/// A call for some rows.
pub struct FunctionCall<'a> {
    pub args: &'a [ColumnarValue],
    /// One, if all arguments are constants.
    pub rows: usize,
}

/// A number for each row.
enum PerRow {
    Same(usize),
    Rows(Vec<usize>),
}

impl PerRow {
    fn get(&self, row: usize) -> usize {
        match self {
            PerRow::Same(number) => *number,
            PerRow::Rows(rows) => rows.get(row).copied().unwrap_or(0),
        }
    }
}

impl FunctionCall<'_> {
    /// The size of all arguments, with constants repeated for each row.
    pub fn bytes(&self) -> usize {
        let bytes = self.args.iter().map(|arg| value_bytes(arg, self.rows));
        bytes.fold(0, usize::saturating_add)
    }

    fn each(&self, at: usize, of_array: fn(&dyn Array) -> Vec<usize>) -> PerRow {
        match self.args.get(at) {
            Some(ColumnarValue::Array(array)) => PerRow::Rows(of_array(array)),
            Some(ColumnarValue::Scalar(scalar)) => match scalar.to_array() {
                Ok(array) => PerRow::Same(of_array(&array).first().copied().unwrap_or(0)),
                Err(_) => PerRow::Same(0),
            },
            None => PerRow::Same(0),
        }
    }

    /// The bytes of an argument in each row.
    fn widths(&self, at: usize) -> PerRow {
        self.each(at, row_bytes)
    }

    /// The bytes of a text in each row, without array overhead.
    fn texts(&self, at: usize) -> PerRow {
        self.each(at, |array| match array.data_type() {
            DataType::Utf8 => texts(array.as_string::<i32>().iter()),
            DataType::LargeUtf8 => texts(array.as_string::<i64>().iter()),
            DataType::Utf8View => texts(array.as_string_view().iter()),
            _ => row_bytes(array),
        })
    }

    fn elements(&self, at: usize) -> PerRow {
        self.each(at, element_counts)
    }

    /// A numeric argument in each row; negative numbers count as zero.
    fn numbers(&self, at: usize) -> PerRow {
        self.each(at, |array| {
            let numbers = match array.data_type() {
                DataType::UInt64 => array.as_primitive::<datafusion::arrow::datatypes::UInt64Type>().iter(),
                _ => return signed_numbers(array),
            };
            numbers
                .map(|number| usize::try_from(number.unwrap_or(0)).unwrap_or(usize::MAX))
                .collect()
        })
    }

    /// Overhead of an element besides its value; elements of fixed width have almost none.
    fn element_bytes(&self, at: usize) -> usize {
        let kind = self.args.get(at).map(ColumnarValue::data_type);
        match kind.is_some_and(|kind| kind.is_primitive() || kind == DataType::Boolean) {
            true => 1,
            false => ELEMENT_BYTES,
        }
    }

    /// Whether an argument is absent or ASCII only.
    fn is_ascii(&self, at: usize) -> bool {
        match self.args.get(at) {
            None => true,
            Some(ColumnarValue::Scalar(text)) => text.try_as_str().flatten().is_some_and(str::is_ascii),
            Some(ColumnarValue::Array(array)) => match array.data_type() {
                DataType::Utf8 => array.as_string::<i32>().is_ascii(),
                DataType::LargeUtf8 => array.as_string::<i64>().is_ascii(),
                DataType::Utf8View => array.as_string_view().is_ascii(),
                _ => false,
            },
        }
    }

    fn sum(&self, of_row: impl Fn(usize) -> usize) -> usize {
        (0..self.rows).map(of_row).fold(0, usize::saturating_add)
    }

    fn text_bytes(&self, of_row: impl Fn(usize) -> usize) -> usize {
        self.sum(of_row).saturating_add(self.rows.saturating_mul(ELEMENT_BYTES))
    }
}

fn texts<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> Vec<usize> {
    texts.map(|text| text.map_or(0, str::len)).collect()
}

fn signed_numbers(array: &dyn Array) -> Vec<usize> {
    let array: ArrayRef = array.slice(0, array.len());
    match cast(&array, &DataType::Int64) {
        Ok(numbers) => {
            let numbers = numbers.as_primitive::<Int64Type>().iter();
            numbers
                .map(|number| usize::try_from(number.unwrap_or(0)).unwrap_or(0))
                .collect()
        }
        Err(_) => vec![usize::MAX; array.len()],
    }
}

/// A cast to text, or from a dictionary to its values. Numbers get longer as text, and a short list far longer.
pub fn conversion(call: &FunctionCall<'_>) -> usize {
    let is_text = |kind: DataType| kind.is_string() || kind.is_binary();
    match call.args.first() {
        Some(value) if !is_text(value.data_type()) => {
            let texts = call.each(0, |array| text_bytes(array));
            call.text_bytes(|row| texts.get(row)).max(call.bytes())
        }
        _ => call.bytes(),
    }
}

/// `to_json(value)`
pub fn to_json(call: &FunctionCall<'_>) -> usize {
    let texts = call.each(0, |array| text_bytes(array));
    call.text_bytes(|row| texts.get(row))
}

/// The JSON that a function reads: a text, or a list, map or structure that becomes one.
fn json_bytes(call: &FunctionCall<'_>) -> PerRow {
    match call.args.first() {
        Some(value) if value.data_type().is_nested() => call.each(0, |array| text_bytes(array)),
        _ => call.texts(0),
    }
}

/// A part of a JSON text. A list, map or structure is written as a whole before.
pub fn json_text(call: &FunctionCall<'_>) -> usize {
    let texts = json_bytes(call);
    call.text_bytes(|row| texts.get(row))
}

/// The elements or names of a JSON text, the shortest of which have two bytes with their comma.
pub fn json_list(call: &FunctionCall<'_>) -> usize {
    let texts = json_bytes(call);
    call.text_bytes(|row| texts.get(row).saturating_mul(1 + size_of::<i32>()))
}

/// A number from a JSON text, and the time to read the text.
pub fn json_number(call: &FunctionCall<'_>) -> usize {
    // Bytes that are read in the time to write one.
    const READ_PER_BYTE: usize = 8;
    let texts = json_bytes(call);
    let is_written = call.args.first().is_some_and(|value| value.data_type().is_nested());
    call.text_bytes(|row| texts.get(row) / if is_written { 1 } else { READ_PER_BYTE })
}

/// `repeat(text, n)`
pub fn repeat(call: &FunctionCall<'_>) -> usize {
    let (texts, times) = (call.texts(0), call.numbers(1));
    call.text_bytes(|row| texts.get(row).saturating_mul(times.get(row)))
}

/// `lpad(text, n [, fill])`: n characters.
pub fn pad(call: &FunctionCall<'_>) -> usize {
    let (length, fill) = (call.numbers(1), call.texts(2));
    let char_bytes = match call.is_ascii(0) && call.is_ascii(2) {
        true => 1,
        false => CHAR_BYTES,
    };
    // The function also builds the longest fill once, besides the result.
    let longest = (0..call.rows).map(|row| length.get(row)).max().unwrap_or(0);
    call.text_bytes(|row| length.get(row).saturating_mul(char_bytes).saturating_add(fill.get(row)))
        .saturating_add(longest.saturating_mul(char_bytes))
}

/// `array_repeat(value, n)`
pub fn array_repeat(call: &FunctionCall<'_>) -> usize {
    let (widths, times) = (call.widths(0), call.numbers(1));
    let element = call.element_bytes(0);
    call.text_bytes(|row| widths.get(row).saturating_add(element).saturating_mul(times.get(row)))
}

/// `array_resize(list, n [, value])`
pub fn array_resize(call: &FunctionCall<'_>) -> usize {
    let (lists, length, fill) = (call.widths(0), call.numbers(1), call.widths(2));
    // Without a fill value, new elements are null.
    let element = match call.args.get(2) {
        Some(_) => call.element_bytes(2),
        None => ELEMENT_BYTES,
    };
    call.text_bytes(|row| {
        let added = fill.get(row).saturating_add(element).saturating_mul(length.get(row));
        lists.get(row).saturating_add(added)
    })
}

/// `replace(text, from, to)`
pub fn replace(call: &FunctionCall<'_>) -> usize {
    let (from, to) = (call.texts(1), call.texts(2));
    if let (PerRow::Same(1..), PerRow::Same(_)) = (&from, &to)
        && to.get(0) <= from.get(0)
        && let Some(text) = call.args.first()
    {
        return value_bytes(text, call.rows).saturating_add(call.rows.saturating_mul(ELEMENT_BYTES));
    }
    let texts = call.texts(0);
    call.text_bytes(|row| {
        let text = texts.get(row);
        let found = text / from.get(row).max(1);
        text.saturating_add(found.saturating_mul(to.get(row)))
    })
}

/// `regexp_replace(text, pattern, replacement [, flags])`: matches can be empty, and a replacement can refer to groups.
pub fn regexp_replace(call: &FunctionCall<'_>) -> usize {
    let (texts, to, flags) = (call.texts(0), call.texts(2), call.texts(3));
    call.text_bytes(|row| {
        let (text, to) = (texts.get(row), to.get(row));
        let found = if flags.get(row) == 0 { 1 } else { text.saturating_add(1) };
        // A reference takes two bytes. All matches together are no longer than the text.
        let named = (to / 2).saturating_mul(text);
        text.saturating_add(found.saturating_mul(to)).saturating_add(named)
    })
}

/// `regexp_match(text, pattern)`: the text once for each group.
pub fn regexp_match(call: &FunctionCall<'_>) -> usize {
    let (texts, patterns) = (call.texts(0), call.texts(1));
    let groups = match call.args.get(1) {
        Some(ColumnarValue::Scalar(pattern)) => {
            pattern.try_as_str().flatten().map(|text| text.matches('(').count() + 1)
        }
        _ => None,
    };
    call.text_bytes(|row| {
        let groups = groups.unwrap_or(patterns.get(row));
        texts.get(row).saturating_add(ELEMENT_BYTES).saturating_mul(groups)
    })
}

/// `concat_ws(separator, …)`
pub fn concat_ws(call: &FunctionCall<'_>) -> usize {
    let separators = call.texts(0);
    let between = call.args.len();
    call.bytes()
        .saturating_add(call.sum(|row| separators.get(row).saturating_mul(between)))
}

/// `array_to_string(list, separator [, null])`
pub fn array_to_string(call: &FunctionCall<'_>) -> usize {
    let (lists, separators, nulls) = (call.widths(0), call.texts(1), call.texts(2));
    let counts = leaf_counts(call);
    call.text_bytes(|row| {
        let one = separators
            .get(row)
            .saturating_add(nulls.get(row))
            .saturating_add(NUMBER_TEXT_BYTES);
        lists.get(row).saturating_add(counts.get(row).saturating_mul(one))
    })
}

/// An upper bound for the elements of the first argument; for nested lists, of the innermost lists.
fn leaf_counts(call: &FunctionCall<'_>) -> PerRow {
    let is_nested = call.args.first().is_some_and(|list| match list.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_nested()
        }
        _ => true,
    });
    // The smallest element takes one byte.
    if is_nested { call.widths(0) } else { call.elements(0) }
}

/// `string_to_array(text, separator)`
pub fn string_to_array(call: &FunctionCall<'_>) -> usize {
    let (texts, separators) = (call.texts(0), call.texts(1));
    call.text_bytes(|row| {
        let text = texts.get(row);
        let parts = text / separators.get(row).max(1) + 1;
        text.saturating_add(parts.saturating_mul(2 * ELEMENT_BYTES))
    })
}

/// `array_replace(list, from, to)` replaces the first match.
pub fn array_replace(call: &FunctionCall<'_>) -> usize {
    replaced(call, |_| 1)
}

/// `array_replace_n(list, from, to, n)`
pub fn array_replace_n(call: &FunctionCall<'_>) -> usize {
    let times = call.numbers(3);
    replaced(call, |row| times.get(row))
}

/// `array_replace_all(list, from, to)`
pub fn array_replace_all(call: &FunctionCall<'_>) -> usize {
    replaced(call, |_| usize::MAX)
}

fn replaced(call: &FunctionCall<'_>, times: impl Fn(usize) -> usize) -> usize {
    let (counts, to) = (call.elements(0), call.widths(2));
    call.bytes()
        .saturating_add(call.sum(|row| counts.get(row).min(times(row)).saturating_mul(to.get(row))))
}

/// `arrays_zip(list, …)`: all lists become as long as the longest.
pub fn arrays_zip(call: &FunctionCall<'_>) -> usize {
    let all: Vec<PerRow> = (0..call.args.len()).map(|at| call.elements(at)).collect();
    let padding = call.sum(|row| {
        let longest = all.iter().map(|counts| counts.get(row)).max().unwrap_or(0);
        longest.saturating_mul(all.len()).saturating_mul(2 * ELEMENT_BYTES)
    });
    call.bytes().saturating_add(padding)
}

/// `to_char(time, format)`
pub fn to_char(call: &FunctionCall<'_>) -> usize {
    let formats = call.texts(1);
    // The longest expansion of a two-character specifier.
    call.text_bytes(|row| formats.get(row).saturating_mul(NUMBER_TEXT_BYTES / 2))
}

/// `levenshtein(a, b)`: rows of a matrix, and the time to fill it.
pub fn levenshtein(call: &FunctionCall<'_>) -> usize {
    let (a, b) = (call.texts(0), call.texts(1));
    // Character pairs that can be compared in the time to write a byte.
    const PAIRS_PER_BYTE: usize = 64;
    let time = call.sum(|row| a.get(row).saturating_mul(b.get(row))) / PAIRS_PER_BYTE;
    call.bytes().saturating_mul(size_of::<usize>()).saturating_add(time)
}

/// `range([start,] stop [, step])` and `generate_series`: numbers, days or times.
pub fn range(call: &FunctionCall<'_>) -> usize {
    let columns: Vec<Option<Int64Array>> = call.args.iter().map(|arg| whole_numbers(arg, call.rows)).collect();
    if let Some(columns) = columns.into_iter().collect::<Option<Vec<_>>>() {
        return call.text_bytes(|row| {
            let value = |at: usize| {
                columns
                    .get(at)
                    .filter(|column| column.is_valid(row))
                    .map(|column| column.value(row))
            };
            let (start, stop, step) = match columns.len() {
                1 => (Some(0), value(0), Some(1)),
                2 => (value(0), value(1), Some(1)),
                _ => (value(0), value(1), value(2)),
            };
            let (Some(start), Some(stop), Some(step)) = (start, stop, step) else {
                return 0;
            };
            steps(i128::from(start), i128::from(stop), i128::from(step))
        });
    }
    call.text_bytes(|row| {
        let value = |at: usize| call.args.get(at).and_then(|arg| at_row(arg, row));
        let (Some(start), Some(stop), Some(step)) = (value(0), value(1), value(2)) else {
            return 0;
        };
        match (nanoseconds(&start), nanoseconds(&stop), shortest(&step)) {
            (Some(start), Some(stop), Some(step)) => steps(start, stop, step),
            _ => 0,
        }
    })
}

/// Bytes of the values from `start` to `stop`.
fn steps(start: i128, stop: i128, step: i128) -> usize {
    let (span, step) = (stop - start, step);
    if step == 0 || (span > 0) != (step > 0) && span != 0 {
        return 0;
    }
    let count = (span / step).unsigned_abs() + 1;
    usize::try_from(count)
        .unwrap_or(usize::MAX)
        .saturating_mul(size_of::<i64>())
}

fn whole_numbers(arg: &ColumnarValue, rows: usize) -> Option<Int64Array> {
    if !arg.data_type().is_integer() {
        return None;
    }
    let array = arg.to_array(rows).ok()?;
    let numbers = cast(&array, &DataType::Int64).ok()?;
    Some(numbers.as_primitive::<Int64Type>().clone())
}

fn at_row(arg: &ColumnarValue, row: usize) -> Option<ScalarValue> {
    match arg {
        ColumnarValue::Scalar(scalar) => Some(scalar.clone()),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(array, row).ok(),
    }
    .filter(|value| !value.is_null())
}

fn nanoseconds(time: &ScalarValue) -> Option<i128> {
    const DAY: i128 = 86_400_000_000_000;
    if let ScalarValue::Date32(Some(days)) = time {
        return Some(i128::from(*days) * DAY);
    }
    match time.cast_to(&DataType::Timestamp(TimeUnit::Microsecond, None)).ok()? {
        ScalarValue::TimestampMicrosecond(Some(micros), _) => Some(i128::from(micros) * 1_000),
        _ => None,
    }
}

/// The smallest number of nanoseconds that an interval can span.
fn shortest(interval: &ScalarValue) -> Option<i128> {
    const DAY: i128 = 86_400_000_000_000;
    let ScalarValue::IntervalMonthDayNano(Some(interval)) = interval else {
        return None;
    };
    let rest = i128::from(interval.days) * DAY + i128::from(interval.nanoseconds);
    let months = i128::from(interval.months);
    let shortest = [28, 31].map(|days| months * days * DAY + rest);
    let [a, b] = shortest;
    // A month forward and 30 days back may be a step of one day or of zero.
    match (a > 0) == (b > 0) {
        true if a.abs() < b.abs() => Some(a),
        true => Some(b),
        false => Some(if a.abs() > b.abs() { a.signum() } else { b.signum() }),
    }
}
