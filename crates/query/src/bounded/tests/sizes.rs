//! Checks that the announced size of a call is never below the real size, and not far above it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, ListBuilder, MapBuilder,
    RecordBatch, StringArray, StringBuilder, StructArray, TimestampNanosecondArray, UInt32Array,
};
use datafusion::arrow::compute::{cast, take};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::common::config::ConfigOptions;
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};

use crate::bounded::function_list::{self, ResultBound};
use crate::bounded::measure::array_bytes;
use crate::bounded::sizes::FunctionCall;
use crate::bounded::text_length;
use crate::format::{RowFormat, RowWriter};

const TRIES: usize = 6_000;
/// Successful calls of each function.
const CALLS: usize = 60;
/// Offsets and null bits, which the sizes leave out where they are small.
const SLACK_PER_ROW: usize = 40;
const SLACK: usize = 1_024;
/// The most that an exact size may exceed the real one.
const FACTOR_MAX: usize = 8;
/// These become CASE during planning, or need arguments that this test does not generate: type names, constant keys,
/// unions, vectors.
const NOT_DRAWN: [&str; 20] = [
    "nvl",
    "nvl2",
    "coalesce",
    "inner_product",
    "map_entries",
    "arrow_cast",
    "arrow_try_cast",
    "cast_to_type",
    "try_cast_to_type",
    "named_struct",
    "union_extract",
    "encode",
    "decode",
    "sketch_quantile",
    "log_template",
    "map_extract",
    "to_char",
    "array_add",
    "array_subtract",
    "cosine_distance",
];

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    fn text(&mut self) -> Option<String> {
        const PARTS: [&str; 12] = ["a", "B", ",", "é", "ﬃ", "ß", "(a)", "x-y", "1", " ", "", "%Y"];
        let parts = self.below(9);
        let times = [1, 1, 1, 40][self.below(4)];
        let text: String = (0..parts).map(|_| PARTS[self.below(PARTS.len())]).collect();
        (self.below(7) > 0).then(|| text.repeat(times))
    }

    fn number(&mut self) -> Option<i64> {
        let number = self.below(60) as i64 - 5;
        (self.below(7) > 0).then_some(number)
    }
}

/// Rows of a random type, possibly a slice of a longer array.
fn column(random: &mut Random, rows: usize) -> ArrayRef {
    let all = rows + 8;
    let texts = |random: &mut Random| Arc::new((0..all).map(|_| random.text()).collect::<StringArray>()) as ArrayRef;
    let numbers = |random: &mut Random| Arc::new((0..all).map(|_| random.number()).collect::<Int64Array>()) as ArrayRef;
    let array: ArrayRef = match random.below(17) {
        0..3 => texts(random),
        3 => cast(&texts(random), &DataType::LargeUtf8).unwrap(),
        4 => cast(&texts(random), &DataType::Utf8View).unwrap(),
        5 => cast(
            &texts(random),
            &DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        )
        .unwrap(),
        6..9 => numbers(random),
        9 => Arc::new(
            (0..all)
                .map(|_| random.number().map(|n| n as f64 / 4.0))
                .collect::<Float64Array>(),
        ),
        10 => Arc::new(
            (0..all)
                .map(|_| random.number().map(|n| n > 9))
                .collect::<BooleanArray>(),
        ),
        11 => cast(&texts(random), &DataType::Binary).unwrap(),
        12 => match random.below(2) {
            0 => Arc::new(
                (0..all)
                    .map(|_| random.number().map(|n| n as i32))
                    .collect::<Date32Array>(),
            ),
            _ => Arc::new((0..all).map(|_| random.number()).collect::<TimestampNanosecondArray>()),
        },
        13 => list_of_texts(random, all),
        14 => {
            let lists = (0..all).map(|_| {
                let length = random.below(20);
                (random.below(7) > 0).then(|| (0..length).map(|_| random.number()).collect::<Vec<_>>())
            });
            let list = datafusion::arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
            match random.below(3) {
                0 => nested(&(Arc::new(list) as ArrayRef), random),
                _ => Arc::new(list),
            }
        }
        15 => Arc::new(StructArray::from(vec![
            (Arc::new(Field::new("first", DataType::Int64, true)), numbers(random)),
            (Arc::new(Field::new("second", DataType::Utf8, true)), texts(random)),
        ])),
        _ => map(random, all),
    };
    array.slice(random.below(8), rows)
}

fn list_of_texts(random: &mut Random, rows: usize) -> ArrayRef {
    let mut lists = ListBuilder::new(StringBuilder::new());
    for _ in 0..rows {
        for _ in 0..random.below(12) {
            lists.values().append_option(random.text());
        }
        lists.append(random.below(7) > 0);
    }
    Arc::new(lists.finish())
}

/// Lists of lists.
fn nested(inner: &ArrayRef, random: &mut Random) -> ArrayRef {
    let rows = inner.len();
    let lengths: Vec<usize> = (0..rows).map(|_| random.below(4)).collect();
    let picked: UInt32Array = (0..lengths.iter().sum())
        .map(|_| Some(random.below(rows) as u32))
        .collect();
    let values = take(inner, &picked, None).unwrap();
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let offsets = datafusion::arrow::buffer::OffsetBuffer::from_lengths(lengths);
    Arc::new(datafusion::arrow::array::ListArray::new(field, offsets, values, None))
}

fn map(random: &mut Random, rows: usize) -> ArrayRef {
    let mut maps = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for _ in 0..rows {
        for key in 0..random.below(6) {
            maps.keys().append_value(format!("key {key}"));
            maps.values().append_option(random.text());
        }
        maps.append(true).unwrap();
    }
    Arc::new(maps.finish())
}

struct Made {
    given: usize,
    announced: usize,
    real: usize,
    rows: usize,
    call: String,
}

/// One call of a function with random arguments, if it accepts them.
fn call(function: &Arc<ScalarUDF>, size: ResultBound, random: &mut Random) -> Option<Made> {
    let rows = 1 + random.below(40);
    let count = [1, 2, 2, 3, 3, 4][random.below(6)];
    let drawn: Vec<ColumnarValue> = (0..count)
        .map(|_| {
            let column = column(random, rows);
            match random.below(3) {
                0 => ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0).unwrap()),
                _ => ColumnarValue::Array(column),
            }
        })
        .collect();
    let field = |value: &ColumnarValue| Arc::new(Field::new("a", value.data_type(), true));
    let fields: Vec<_> = drawn.iter().map(field).collect();
    let coerced = fields_with_udf(&fields, function.as_ref()).ok()?;
    let args = drawn
        .iter()
        .zip(&coerced)
        .map(|(value, field)| value.cast_to(field.data_type(), None));
    let args: Vec<ColumnarValue> = args.collect::<Result<_, _>>().ok()?;
    let scalars: Vec<Option<&ScalarValue>> = args
        .iter()
        .map(|arg| match arg {
            ColumnarValue::Scalar(scalar) => Some(scalar),
            ColumnarValue::Array(_) => None,
        })
        .collect();
    let fields: Vec<_> = args.iter().map(field).collect();
    let return_field = function.return_field_from_args(ReturnFieldArgs {
        arg_fields: &fields,
        scalar_arguments: &scalars,
    });
    let are_constants = scalars.iter().all(Option::is_some);
    let rows = if are_constants { 1 } else { rows };
    let told = FunctionCall { args: &args, rows };
    let (announced, given) = (size.asked(&told), told.bytes());
    let text = format!(
        "{}({})",
        function.name(),
        fields
            .iter()
            .map(|field| field.data_type().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    );
    let asked = ScalarFunctionArgs {
        args: args.clone(),
        arg_fields: fields,
        number_rows: rows,
        return_field: return_field.ok()?,
        config_options: Arc::new(ConfigOptions::default()),
    };
    // Some functions panic on invalid arguments.
    let made = catch_unwind(AssertUnwindSafe(|| function.invoke_with_args(asked)))
        .ok()?
        .ok()?;
    let array = made.into_array(rows).ok()?;
    Some(Made {
        given,
        announced,
        real: array_bytes(&array),
        rows,
        call: text,
    })
}

#[test]
fn no_call_makes_more_than_was_announced_and_none_is_announced_far_too_large() {
    let seed = std::env::var("THALWEG_SIM_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut seldom = Vec::new();
    // Caught panics are not printed.
    std::panic::set_hook(Box::new(|_| {}));
    for function in SessionStateDefaults::default_scalar_functions() {
        let size = function_list::scalar(function.name()).unwrap();
        if matches!(size, ResultBound::Plain | ResultBound::Refused) {
            continue;
        }
        let mut random = Random(seed.unwrap_or(1_u64).wrapping_mul(7_919));
        let calls: Vec<Made> = (0..TRIES)
            .filter_map(|_| call(&function, size, &mut random))
            .take(CALLS)
            .collect();
        if calls.is_empty() && !NOT_DRAWN.contains(&function.name()) {
            seldom.push(function.name().to_owned());
        }
        for made in calls {
            let Made {
                given,
                announced,
                real,
                rows,
                call,
            } = made;
            let slack = SLACK + rows * SLACK_PER_ROW;
            let told = format!("{call}: {announced} were announced and {real} made of {given} and {rows} rows");
            if announced + slack < real {
                let _ = std::panic::take_hook();
                panic!("too few: {told}");
            }
            let is_told = matches!(size, ResultBound::Exact(_) | ResultBound::Inputs(_));
            if is_told && announced > (given + real) * FACTOR_MAX + slack {
                let _ = std::panic::take_hook();
                panic!("too many: {told}");
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(seldom.is_empty(), "nothing was drawn that these take: {seldom:?}");
}

#[test]
fn an_answer_is_no_longer_as_a_text_than_was_told() {
    let mut random = Random(3);
    for _ in 0..2_000 {
        let rows = 1 + random.below(30);
        let columns: Vec<ArrayRef> = (0..=random.below(3)).map(|_| column(&mut random, rows)).collect();
        let names = ["a", "a \"quoted\" name", "\u{1}\u{2}\u{3}", "z"];
        let columns: Vec<_> = names.into_iter().zip(columns).collect();
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)));
        let batch = batch.unwrap();
        let parts = text_length::parts(&batch, usize::MAX).unwrap();
        let told: usize = parts.iter().map(|part| part.bytes).sum();
        assert_eq!(parts.iter().map(|part| part.rows.num_rows()).sum::<usize>(), rows);
        let each: usize = batch
            .columns()
            .iter()
            .flat_map(|column| text_length::text_bytes(column))
            .sum();
        let names: usize = batch
            .schema()
            .fields()
            .iter()
            .map(|field| 6 * field.name().len() + 4)
            .sum();
        for (format, times) in [(RowFormat::Json, 1), (RowFormat::NdJson, 1), (RowFormat::Csv, 3)] {
            let mut writer = RowWriter::new(format, &batch.schema()).unwrap();
            let Ok(bytes) = writer.write(&batch) else { continue };
            let length = bytes.len();
            // Brackets around rows.
            let most = times * (each + rows * (names + 4) + names + 8);
            assert!(
                length <= most,
                "{format:?}: {length} bytes, {most} were told of {:?}",
                batch.schema()
            );
            assert!(
                length <= 3 * (told + 16),
                "{format:?}: {length} bytes, {told} were usual of {:?}",
                batch.schema()
            );
        }
    }
}

/// Sizes are those of rows as written out, whatever array contains them.
#[test]
fn a_dictionary_and_a_slice_are_as_long_as_what_they_stand_for() {
    let long = "x".repeat(10_000);
    let keys = Int32Array::from(vec![1, 1, 1, 0, 1]);
    let values: ArrayRef = Arc::new(StringArray::from(vec![long.as_str(), "y"]));
    let dictionary: ArrayRef = Arc::new(datafusion::arrow::array::DictionaryArray::new(keys, values));
    let written = cast(&dictionary, &DataType::Utf8).unwrap();
    let bytes = array_bytes(&dictionary);
    assert!(
        (10_000..11_000).contains(&bytes) && array_bytes(&written) <= bytes + 64,
        "{bytes}"
    );
    assert!(array_bytes(&dictionary.slice(0, 3)) < 100);
}
