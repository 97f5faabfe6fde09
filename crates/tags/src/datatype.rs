//! Converts a payload to the value of a sample, according to meta `datatype`.
//!
//! A number keeps its type and every digit unless another form is requested. A text that is entirely a decimal number
//! becomes that number. Every result is valid JSON: NaN and infinities are refused.

use std::borrow::Cow;

use thalweg_record::{Object, Text, Value, g_form, json, parse_decimal};
use thalweg_script::{number_seen, number_text, plain_form, text_form};

/// The value of meta `datatype`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Datatype {
    String,
    Number,
    Bool,
    /// Anything else, or missing.
    #[default]
    Any,
}

impl Datatype {
    pub fn of(text: Option<&str>) -> Datatype {
        match text {
            Some("string") => Datatype::String,
            Some("number") => Datatype::Number,
            Some("bool") => Datatype::Bool,
            _ => Datatype::Any,
        }
    }
}

/// The origin of a number, which determines its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Provenance {
    /// From the input, without any script stage.
    Untouched,
    /// From the input, unchanged by script stages.
    Input,
    /// From a script.
    Script,
    /// From nowhere: the input has a status and no value. What scripts make of null is no measurement.
    Absent,
}

/// Converts a payload. The error says why that is impossible, as one sentence.
pub(crate) fn convert(value: &Value, datatype: Datatype, provenance: Provenance) -> Result<Value, String> {
    if provenance == Provenance::Absent {
        return Ok(Value::Null);
    }
    match datatype {
        Datatype::Any => any(value),
        Datatype::String => Ok(Value::text(text(value, provenance))),
        Datatype::Number => number(value),
        Datatype::Bool => boolean(value, provenance),
    }
}

fn any(value: &Value) -> Result<Value, String> {
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::F32(n) if !n.is_finite() => Err(not_finite(value)),
        Value::F64(n) if !n.is_finite() => Err(not_finite(value)),
        number if number.is_number() => Ok(number.clone()),
        Value::Null => Ok(Value::text("<nil>")),
        Value::Array(_) | Value::Object(_) => nested_text(value),
        Value::Guid(_) | Value::Structured(_) => nested_text(&plain_form(value).unwrap_or(Value::Null)),
        other => Ok(match text_form(other).as_deref().and_then(decimal) {
            Some(number) => number,
            None => other.clone(),
        }),
    }
}

/// Whether a value can be written as JSON: NaN and infinities cannot, at any depth.
pub(crate) fn json_form(value: &Value) -> Result<(), String> {
    match is_finite(value) {
        true => Ok(()),
        false => Err(not_finite(value)),
    }
}

/// A value as JSON has it: within arrays and objects NaN and infinities become null, as with `JSON.stringify`. `None`
/// if the value itself is such a number: null in its place would be a value that nobody has measured.
pub(crate) fn json_value(value: Value) -> Option<Value> {
    match &value {
        Value::F32(_) | Value::F64(_) => is_finite(&value).then_some(value),
        _ if is_finite(&value) => Some(value),
        nested => Some(with_nulls(nested)),
    }
}

fn with_nulls(value: &Value) -> Value {
    match value {
        Value::F32(_) | Value::F64(_) if !is_finite(value) => Value::Null,
        Value::Array(values) => Value::Array(values.iter().map(with_nulls).collect()),
        Value::Object(object) => {
            let members = object.iter().map(|(name, member)| (name.clone(), with_nulls(member)));
            members.collect::<Object>().into()
        }
        other => other.clone(),
    }
}

fn not_finite(value: &Value) -> String {
    format!("the value {} has no JSON form", json::to_string(value))
}

/// Arrays and objects become their JSON text.
fn nested_text(value: &Value) -> Result<Value, String> {
    if !is_finite(value) {
        return Err("the value holds NaN or an infinity, which have no JSON form".to_owned());
    }
    let mut text = String::new();
    json::write_sorted(value, &mut text);
    Ok(Value::text(text))
}

fn is_finite(value: &Value) -> bool {
    match value {
        Value::F32(n) => n.is_finite(),
        Value::F64(n) => n.is_finite(),
        Value::Array(values) => values.iter().all(is_finite),
        Value::Object(object) => object.iter().all(|(_, member)| is_finite(member)),
        _ => true,
    }
}

/// The number that a text represents, if all of it is a number within the range of doubles. Its digits are kept.
pub(crate) fn decimal(text: &str) -> Option<Value> {
    let first = text.as_bytes().first()?;
    if !(first.is_ascii_digit() || matches!(first, b'+' | b'-' | b'.')) || !parse_decimal(text)?.is_finite() {
        return None;
    }
    json::parse(json_number(text).as_bytes()).ok()
}

/// A decimal number in JSON's narrower form: no `+`, no leading zeros, digits on both sides of the point.
fn json_number(text: &str) -> Cow<'_, str> {
    let plain = |b: &[u8]| !matches!(b, [b'0', b'0'..=b'9', ..]) && b.first().is_some_and(u8::is_ascii_digit);
    let digits = text.strip_prefix('-').unwrap_or(text);
    if plain(digits.as_bytes()) && !text.contains('.') {
        return Cow::Borrowed(text);
    }
    let (sign, digits) = match text.as_bytes().first() {
        Some(b'-') => ("-", digits),
        _ => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let exponent = digits.find(['e', 'E']).unwrap_or(digits.len());
    let (mantissa, exponent) = digits.split_at(exponent);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let point = if fraction.is_empty() { "" } else { "." };
    Cow::Owned(format!("{sign}{whole}{point}{fraction}{exponent}"))
}

fn number(value: &Value) -> Result<Value, String> {
    // Digits beyond the range of doubles, such as 1e400, are not a number to readers of the payload.
    if value.is_number() && value.as_f64().is_some_and(f64::is_finite) {
        return Ok(value.clone());
    }
    let text = text(value, Provenance::Untouched);
    decimal(&text).ok_or_else(|| {
        let why = match parse_decimal(&text) {
            Some(_) => "out of range",
            None => "not a decimal number",
        };
        format!("cannot convert \"{}\" to number: {why}", shortened(&text))
    })
}

fn boolean(value: &Value, provenance: Provenance) -> Result<Value, String> {
    if let Value::Bool(_) = value {
        return Ok(value.clone());
    }
    let text = text(value, provenance);
    match text.as_str() {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(Value::Bool(true)),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(Value::Bool(false)),
        _ => Err(format!(
            "cannot convert \"{}\" to bool: not a truth value",
            shortened(&text)
        )),
    }
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(200) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// The text of a value as metadata shows what a script wrote: `2`, `2.5e+06`, `[10 20 30]`, `map[a:1]`, `<nil>`.
pub(crate) fn metadata_text(value: &Value) -> Text {
    text(value, Provenance::Script)
}

/// The text of a value, in the form used in metadata.
fn text(value: &Value, provenance: Provenance) -> Text {
    if let Some(text) = text_form(value) {
        return text.into();
    }
    let mut out = String::new();
    write_text(value, provenance, &mut out);
    out.into()
}

fn write_text(value: &Value, provenance: Provenance, out: &mut String) {
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Array(values) => {
            out.push('[');
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                write_text(value, provenance, out);
            }
            out.push(']');
        }
        Value::Object(object) => {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_by(|a, b| a.0.cmp(b.0));
            out.push_str("map[");
            for (i, (name, member)) in members.into_iter().enumerate() {
                if i > 0 {
                    out.push(' ');
                }
                out.push_str(name);
                out.push(':');
                write_text(member, provenance, out);
            }
            out.push(']');
        }
        Value::Guid(_) | Value::Structured(_) => {
            write_text(&plain_form(value).unwrap_or(Value::Null), provenance, out);
        }
        number if number.is_number() => out.push_str(&number_as_text(number, provenance)),
        other => out.push_str(&text_form(other).unwrap_or_default()),
    }
}

/// Integers beyond this are not exact as doubles.
const EXACT_MAX: u64 = 1 << 53;

fn number_as_text(value: &Value, provenance: Provenance) -> String {
    let own = || json::to_string(value);
    let beyond_exact = match value {
        Value::I64(n) => n.unsigned_abs() > EXACT_MAX,
        Value::U64(n) => *n > EXACT_MAX,
        Value::Decimal(text) => text.bytes().all(|b| b.is_ascii_digit() || b == b'-'),
        _ => false,
    };
    match (provenance, number_seen(value)) {
        (Provenance::Untouched | Provenance::Absent, _) | (_, None) => own(),
        _ if beyond_exact => own(),
        (Provenance::Input, Some(number)) => g_form(number),
        (Provenance::Script, Some(number)) => number_text(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use thalweg_record::{Guid, Ticks};

    fn to(datatype: &str, value: Value) -> String {
        match convert(&value, Datatype::of(Some(datatype)), Provenance::Input) {
            Ok(value) => json::to_string(&value),
            Err(error) => error,
        }
    }

    fn parsed(text: &str) -> Value {
        json::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn without_a_datatype_numbers_and_bools_stay_and_numeric_texts_become_numbers() {
        for (value, json) in [
            (parsed("5"), "5"),
            (parsed("1.50"), "1.50"),
            (Value::U64(u64::MAX), "18446744073709551615"),
            (Value::F32(0.1), "0.1"),
            (parsed("true"), "true"),
            (parsed("\"12\""), "12"),
            (parsed("\"-0.50\""), "-0.50"),
            (parsed("\"007\""), "7"),
            (parsed("\"+1.5e3\""), "1.5e3"),
            (parsed("\".5\""), "0.5"),
            (parsed("\"5.\""), "5"),
            (parsed("\"18446744073709551616\""), "18446744073709551616"),
            (parsed("\"-0\""), "-0"),
            (parsed("\"00\""), "0"),
            (parsed("\"\""), "\"\""),
            (parsed("\" 1\""), "\" 1\""),
            (parsed("\"NaN\""), "\"NaN\""),
            (parsed("\"Inf\""), "\"Inf\""),
            (parsed("\"0x1p4\""), "\"0x1p4\""),
            (parsed("\"1_000\""), "\"1_000\""),
            (parsed("\"1e999\""), "\"1e999\""),
            (parsed("\"text\""), "\"text\""),
            (parsed("null"), "\"<nil>\""),
            (parsed("[1,\"a\",{\"b\":1.10}]"), "\"[1,\\\"a\\\",{\\\"b\\\":1.10}]\""),
            (
                parsed("{\"b\":\"<&>\",\"a\":null}"),
                "\"{\\\"a\\\":null,\\\"b\\\":\\\"\\\\u003c\\\\u0026\\\\u003e\\\"}\"",
            ),
            (Value::Time(Ticks(0)), "\"1970-01-01T00:00:00Z\""),
            (Value::Bytes(Arc::from([0xd7, 0x6d, 0xf8])), "1234"),
        ] {
            assert_eq!(to("", value), json);
        }
        let guid = Value::Guid(Guid {
            data1: 1,
            data2: 2,
            data3: 3,
            data4: [0; 8],
        });
        assert_eq!(
            to("", guid),
            r#""{\"Data1\":1,\"Data2\":2,\"Data3\":3,\"Data4\":\"AAAAAAAAAAA=\"}""#
        );
        assert_eq!(to("", Value::F64(f64::NAN)), "the value NaN has no JSON form");
        assert_eq!(to("", Value::F32(f32::NEG_INFINITY)), "the value -Inf has no JSON form");
        let array = Value::from(vec![Value::F64(1.0), Value::F64(f64::NAN)]);
        assert_eq!(
            to("", array),
            "the value holds NaN or an infinity, which have no JSON form"
        );
    }

    #[test]
    fn texts_of_numbers_depend_on_where_they_come_from() {
        let text = |value: &Value, provenance| json::to_string(&convert(value, Datatype::String, provenance).unwrap());
        for (value, untouched, input, script) in [
            (Value::I64(2_500_000), "2500000", "2.5e+06", "2500000"),
            (Value::F64(0.5), "0.5", "0.5", "0.5"),
            (parsed("1.50"), "1.50", "1.5", "1.5"),
            (
                Value::I64(9_007_199_254_740_993),
                "9007199254740993",
                "9007199254740993",
                "9007199254740993",
            ),
            (
                Value::U64(u64::MAX),
                "18446744073709551615",
                "18446744073709551615",
                "18446744073709551615",
            ),
            (Value::F64(1e20), "100000000000000000000", "1e+20", "1e+20"),
            (Value::F32(0.1), "0.1", "0.1", "0.1"),
            (
                parsed("[1000000,{\"k\":\"v\",\"a\":null}]"),
                "[1000000 map[a:<nil> k:v]]",
                "[1e+06 map[a:<nil> k:v]]",
                "[1000000 map[a:<nil> k:v]]",
            ),
            (Value::Bool(true), "true", "true", "true"),
            (Value::Null, "<nil>", "<nil>", "<nil>"),
            (Value::text("007"), "007", "007", "007"),
        ] {
            assert_eq!(text(&value, Provenance::Untouched), format!("\"{untouched}\""));
            assert_eq!(text(&value, Provenance::Input), format!("\"{input}\""));
            assert_eq!(text(&value, Provenance::Script), format!("\"{script}\""));
        }
    }

    #[test]
    fn numbers_and_bools_are_converted_or_refused() {
        for (datatype, value, result) in [
            ("number", "5", "5"),
            ("number", "\"007\"", "7"),
            ("number", "\"1e3\"", "1e3"),
            ("number", "1e308", "1e308"),
            ("number", "18446744073709551616", "18446744073709551616"),
            ("number", "1e400", "cannot convert \"1e400\" to number: out of range"),
            ("number", "-1e400", "cannot convert \"-1e400\" to number: out of range"),
            (
                "number",
                "\"abc\"",
                "cannot convert \"abc\" to number: not a decimal number",
            ),
            (
                "number",
                "true",
                "cannot convert \"true\" to number: not a decimal number",
            ),
            (
                "number",
                "null",
                "cannot convert \"<nil>\" to number: not a decimal number",
            ),
            (
                "number",
                "\"1e999\"",
                "cannot convert \"1e999\" to number: out of range",
            ),
            ("bool", "true", "true"),
            ("bool", "\"T\"", "true"),
            ("bool", "1", "true"),
            ("bool", "0", "false"),
            ("bool", "\"False\"", "false"),
            ("bool", "\"yes\"", "cannot convert \"yes\" to bool: not a truth value"),
            ("bool", "2", "cannot convert \"2\" to bool: not a truth value"),
        ] {
            assert_eq!(to(datatype, parsed(value)), result);
        }
        assert_eq!(
            to("number", Value::F64(f64::NAN)),
            "cannot convert \"NaN\" to number: not a decimal number"
        );
    }

    proptest! {
        /// For any text the result is JSON, and a number only if the text is one of the same value.
        #[test]
        fn any_text_gives_json(text in "[-+]?[0-9]{0,4}\\.?[0-9]{0,4}([eE][-+]?[0-9]{0,4})?|\\PC{0,8}") {
            let value = convert(&Value::text(text.as_str()), Datatype::Any, Provenance::Input).unwrap();
            let printed = json::to_string(&value);
            let back = json::parse(printed.as_bytes()).unwrap();
            match parse_decimal(&text).filter(|n| n.is_finite()) {
                Some(number) => prop_assert_eq!(back.as_f64(), Some(number)),
                None => prop_assert_eq!(back.as_str(), Some(text.as_str())),
            }
        }
    }
}
