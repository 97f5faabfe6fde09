use proptest::prelude::*;
use thalweg_record::{Object, Ticks};

use super::*;

fn parsed(text: &str) -> Value {
    json::parse(text.as_bytes()).unwrap()
}

fn converted(data_type: &str, text: &str) -> Result<Value, String> {
    let data_type = DataType::parse(data_type).unwrap();
    data_type.convert(&parsed(text)).map_err(|error| error.to_string())
}

#[test]
fn every_conversion_of_the_table() {
    for (data_type, given, expected) in [
        ("Boolean", "true", Value::Bool(true)),
        ("Boolean", "\"T\"", Value::Bool(true)),
        ("Boolean", "\"False\"", Value::Bool(false)),
        ("Boolean", "0", Value::Bool(false)),
        ("Boolean", "-0.0", Value::Bool(false)),
        ("Boolean", "0.1", Value::Bool(true)),
        ("Boolean", "1e-400", Value::Bool(true)),
        ("SByte", "-128", Value::I8(-128)),
        ("SByte", "-128.9", Value::I8(-128)),
        ("Byte", "255.99", Value::U8(255)),
        ("Byte", "-0.9", Value::U8(0)),
        ("Int16", "\"-32768\"", Value::I16(i16::MIN)),
        ("UInt16", "\"6.5535e4\"", Value::U16(u16::MAX)),
        ("Int32", "2147483647", Value::I32(i32::MAX)),
        ("UInt32", "4294967295", Value::U32(u32::MAX)),
        ("Int64", "9223372036854775807", Value::I64(i64::MAX)),
        ("Int64", "\"-9223372036854775808\"", Value::I64(i64::MIN)),
        ("Int64", "9007199254740993.5", Value::I64(9_007_199_254_740_993)),
        ("UInt64", "18446744073709551615", Value::U64(u64::MAX)),
        ("UInt64", "\"18446744073709551615.9\"", Value::U64(u64::MAX)),
        ("Float", "0.1", Value::F32(0.1)),
        ("Float", "16777217", Value::F32(16_777_216.0)),
        ("Double", "\"2.5e3\"", Value::F64(2500.0)),
        ("Double", "1e-400", Value::F64(0.0)),
        ("String", "\"a\\\"b\"", Value::text("a\"b")),
        ("String", "true", Value::text("true")),
        ("String", "1.50", Value::text("1.50")),
        ("String", "18446744073709551615", Value::text("18446744073709551615")),
        ("String", "[1, \"a\"]", Value::text("[1,\"a\"]")),
        ("String", "{\"b\": 1, \"a\": null}", Value::text("{\"b\":1,\"a\":null}")),
        ("DateTime", "\"1970-01-01\"", Value::Time(Ticks(0))),
        ("DateTime", "\"1970-01-01 00:00:01\"", Value::Time(Ticks(10_000_000))),
        (
            "DateTime",
            "\"1970-01-01T01:00:00.0000001+01:00\"",
            Value::Time(Ticks(1)),
        ),
    ] {
        assert_eq!(converted(data_type, given), Ok(expected), "{given} as {data_type}");
    }
}

#[test]
fn what_does_not_fit_is_told_from_what_makes_no_sense() {
    for (data_type, given, error) in [
        ("Int16", "32768", "value 32768 is out of range for Int16"),
        ("Int16", "\"-32769\"", "value -32769 is out of range for Int16"),
        ("UInt64", "-1", "value -1 is out of range for UInt64"),
        (
            "UInt64",
            "18446744073709551616",
            "value 18446744073709551616 is out of range for UInt64",
        ),
        ("Int64", "1e400", "value 1e400 is out of range for Int64"),
        ("Float", "1e39", "value 1e39 is out of range for Float"),
        ("Double", "\"-1e400\"", "value -1e400 is out of range for Double"),
        (
            "DateTime",
            "\"1601-01-01\"",
            "value 1601-01-01 is out of range for DateTime",
        ),
        ("Int32", "\"abc\"", "value abc cannot be converted to Int32"),
        ("Int32", "true", "value true cannot be converted to Int32"),
        ("Int32", "[1]", "value [1] cannot be converted to Int32"),
        ("Double", "null", "value null cannot be converted to Double"),
        ("Boolean", "\"yes\"", "value yes cannot be converted to Boolean"),
        ("Boolean", "\"2\"", "value 2 cannot be converted to Boolean"),
        ("String", "null", "value null cannot be converted to String"),
        ("DateTime", "1", "value 1 cannot be converted to DateTime"),
        ("DateTime", "\"now\"", "value now cannot be converted to DateTime"),
    ] {
        assert_eq!(converted(data_type, given), Err(error.to_owned()));
    }
    let long = format!("\"{}\"", "x".repeat(1000));
    assert!(converted("Int32", &long).unwrap_err().len() < 300);
}

/// Values that a script or another server can produce, but JSON cannot.
#[test]
fn typed_values_are_taken_as_they_are() {
    for (data_type, given, expected) in [
        (
            DataType::Double,
            Value::F64(f64::INFINITY),
            Some(Value::F64(f64::INFINITY)),
        ),
        (
            DataType::Float,
            Value::F64(f64::NEG_INFINITY),
            Some(Value::F32(f32::NEG_INFINITY)),
        ),
        (DataType::Int32, Value::F64(f64::INFINITY), None),
        (DataType::Int32, Value::F64(f64::NAN), None),
        (DataType::Boolean, Value::F32(f32::NAN), None),
        (DataType::UInt32, Value::Status(7), Some(Value::U32(7))),
        (DataType::Float, Value::F32(0.1), Some(Value::F32(0.1))),
        (DataType::DateTime, Value::Time(Ticks(5)), Some(Value::Time(Ticks(5)))),
        (DataType::DateTime, Value::Time(Ticks::MISSING), None),
        (
            DataType::String,
            Value::Time(Ticks(0)),
            Some(Value::text("1970-01-01T00:00:00Z")),
        ),
        (DataType::String, Value::Bytes([1, 2].into()), Some(Value::text("AQI="))),
        (DataType::String, Value::from(Object::new()), Some(Value::text("{}"))),
    ] {
        assert_eq!(data_type.convert(&given).ok(), expected, "{given:?} as {data_type}");
    }
}

#[test]
fn an_unknown_type_is_answered_with_the_list() {
    assert_eq!(
        DataType::parse("int16").unwrap_err(),
        "unsupported dataType 'int16'. Supported types are: Boolean, SByte, Byte, Int16, UInt16, Int32, UInt32, Int64, \
         UInt64, Float, Double, String, DateTime"
    );
    for data_type in DataType::ALL {
        assert_eq!(DataType::parse(data_type.as_str()), Ok(data_type));
    }
}

/// The bounds of the integer types.
const RANGES: [(DataType, i128, i128); 8] = [
    (DataType::SByte, i8::MIN as i128, i8::MAX as i128),
    (DataType::Byte, 0, u8::MAX as i128),
    (DataType::Int16, i16::MIN as i128, i16::MAX as i128),
    (DataType::UInt16, 0, u16::MAX as i128),
    (DataType::Int32, i32::MIN as i128, i32::MAX as i128),
    (DataType::UInt32, 0, u32::MAX as i128),
    (DataType::Int64, i64::MIN as i128, i64::MAX as i128),
    (DataType::UInt64, 0, u64::MAX as i128),
];

/// Integers of every size, and those around the bounds of the types.
fn any_integer() -> impl Strategy<Value = i128> {
    let ends: Vec<i128> = RANGES.iter().flat_map(|(_, low, high)| [*low, *high]).collect();
    prop_oneof![
        any::<i8>().prop_map(i128::from),
        any::<i32>().prop_map(i128::from),
        any::<i64>().prop_map(i128::from),
        any::<u64>().prop_map(i128::from),
        (prop::sample::select(ends), -2i128..=2).prop_map(|(end, step)| end + step),
    ]
}

proptest! {
    /// Compared with the plain model: an integer with decimals is that integer, if it is within the bounds.
    #[test]
    fn an_integer_type_takes_exactly_what_is_between_its_ends(
        n in any_integer(),
        fraction in "(\\.[0-9]{1,3})?",
        as_text: bool,
    ) {
        let digits = format!("{n}{fraction}");
        let value = if as_text { Value::text(digits.as_str()) } else { parsed(&digits) };
        for (data_type, low, high) in RANGES {
            let converted = data_type.convert(&value);
            if (low..=high).contains(&n) {
                prop_assert_eq!(json::to_string(&converted.unwrap()), n.to_string());
            } else {
                let text = format!("value {digits} is out of range for {data_type}");
                prop_assert_eq!(converted.unwrap_err().to_string(), text);
            }
        }
    }

    #[test]
    fn a_double_is_cut_off_towards_zero(n in -1e20f64..1e20) {
        let whole = n.trunc();
        let converted = DataType::Int64.convert(&Value::F64(n));
        if whole >= -(2f64.powi(63)) && whole < 2f64.powi(63) {
            prop_assert_eq!(converted, Ok(Value::I64(whole as i64)));
        } else {
            prop_assert!(converted.is_err());
        }
    }

    #[test]
    fn a_converted_value_is_one_of_its_type_and_stays_the_same(n in any_integer()) {
        let value = parsed(&n.to_string());
        for data_type in DataType::ALL {
            let Ok(converted) = data_type.convert(&value) else { continue };
            prop_assert_eq!(converted.type_name(), data_type.as_str().to_lowercase());
            prop_assert_eq!(data_type.convert(&converted), Ok(converted.clone()));
            prop_assert_ne!(variant(&converted), Variant::Empty);
        }
    }
}
