//! The types of the language for a [`Value`]: eight types, whatever the record types are.
//!
//! Every integer and float type is a number. XML and NodeIds are strings. GUIDs and structured OPC UA values are the
//! objects of their JSON form. Access converts nothing unless the types differ in kind.

use std::borrow::Cow;

use thalweg_record::{Object, Text, Value, json};

use crate::error::{EvalResult, Fault};
use crate::limits;

/// The type's name for `type()` and error messages.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Text(_) | Value::Xml(_) | Value::NodeId(_) => "string",
        Value::Bytes(_) => "bytes",
        Value::Time(_) => "timestamp",
        Value::Array(_) => "array",
        Value::Object(_) | Value::Guid(_) | Value::Structured(_) => "object",
        _ => "number",
    }
}

/// Builds the fault for a wrong type, with the value or its first 40 characters.
pub(crate) fn mismatch(wanted: &'static str, value: &Value) -> Fault {
    const SHOWN_CHARS_MAX: usize = 40;
    let shown = match value {
        Value::Null | Value::Array(_) | Value::Object(_) | Value::Bytes(_) | Value::Structured(_) => String::new(),
        Value::Text(text) if text.chars().count() > SHOWN_CHARS_MAX => {
            let start: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            format!(" ({}...)", json::to_string(&Value::text(start)))
        }
        scalar => format!(" ({})", json::to_string(scalar)),
    };
    Fault::expected(wanted, kind(value), shown)
}

/// The text of a string, a timestamp, or UTF-8 bytes; `None` for everything else.
pub(crate) fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Some(Cow::Borrowed(text)),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Value::Time(time) => Some(Cow::Owned(time.to_string())),
        _ => None,
    }
}

pub(crate) fn need_text(value: &Value) -> EvalResult<Cow<'_, str>> {
    text(value).ok_or_else(|| mismatch("string", value))
}

/// The bytes of bytes, a string or a timestamp.
pub(crate) fn bytes(value: &Value) -> Option<Cow<'_, [u8]>> {
    match value {
        Value::Bytes(bytes) => Some(Cow::Borrowed(bytes)),
        other => text(other).map(|text| match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }),
    }
}

/// Converts any value to text: strings stay as they are, everything else becomes JSON.
pub(crate) fn to_text(value: &Value) -> EvalResult<Text> {
    match value {
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Ok(text.clone()),
        Value::Bytes(bytes) => std::str::from_utf8(bytes).map(Text::new).map_err(|error| {
            let at = error.valid_up_to();
            Fault::text(format!(
                "the bytes are not UTF-8 text (at byte {at}): encode them, as with encode(\"base64\")"
            ))
        }),
        Value::Time(time) => Ok(time.to_string().into()),
        Value::Array(_) | Value::Object(_) => {
            limits::check(value)?;
            Ok(json::to_string(value).into())
        }
        other => Ok(json::to_string(other).into()),
    }
}

/// The object for an object, GUID or structured value.
pub(crate) fn object(value: &Value) -> Option<Cow<'_, Object>> {
    match value {
        Value::Object(object) => Some(Cow::Borrowed(object)),
        Value::Guid(_) | Value::Structured(_) => match unfold(value) {
            Value::Object(object) => Some(Cow::Owned((*object).clone())),
            _ => None,
        },
        _ => None,
    }
}

/// Cost of one pass over a value without its nested values, in bytes of work.
pub(crate) fn shallow_size(value: &Value) -> usize {
    match value {
        Value::Array(values) => values.len(),
        Value::Object(object) => object.len(),
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        _ => 0,
    }
}

/// A GUID or structured value as the object of its JSON form.
pub(crate) fn unfold(value: &Value) -> Value {
    json::parse(json::to_string(value).as_bytes()).unwrap_or(Value::Null)
}

/// A number in one of the two forms of arithmetic. Integers are exact up to 38 digits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    pub fn of(value: &Value) -> Option<Number> {
        Some(match value {
            Value::U64(n) => Number::Integer(i128::from(*n)),
            Value::F64(n) => Number::Float(*n),
            Value::F32(n) => Number::Float(as_printed(*n)),
            Value::Decimal(text) => match text.parse() {
                Ok(integer) => Number::Integer(integer),
                Err(_) => Number::Float(text.parse().ok()?),
            },
            other => Number::Integer(i128::from(other.as_i64()?)),
        })
    }

    pub fn need(value: &Value) -> EvalResult<Number> {
        Number::of(value).ok_or_else(|| mismatch("number", value))
    }

    pub fn float(self) -> f64 {
        match self {
            Number::Integer(n) => n as f64,
            Number::Float(n) => n,
        }
    }

    /// The narrowest exact value: 64 bits, otherwise a decimal.
    pub fn value(self) -> Value {
        match self {
            Number::Float(n) => Value::F64(n),
            Number::Integer(n) => match (i64::try_from(n), u64::try_from(n)) {
                (Ok(n), _) => Value::I64(n),
                (_, Ok(n)) => Value::U64(n),
                _ => Value::Decimal(n.to_string().into()),
            },
        }
    }
}

/// Widens a float as its JSON text shows it: 0.1, not 0.10000000149011612.
fn as_printed(n: f32) -> f64 {
    if !n.is_finite() || n.fract() == 0.0 {
        return f64::from(n);
    }
    let mut text = String::with_capacity(24);
    thalweg_record::write_f32(n, &mut text);
    text.parse().unwrap_or(f64::from(n))
}

/// A whole number that fits 64 bits, of any type.
pub(crate) fn integer(value: &Value) -> Option<i64> {
    match Number::of(value)? {
        Number::Integer(n) => i64::try_from(n).ok(),
        Number::Float(n) => whole(n),
    }
}

/// A float without a fraction as an integer. 2^63 does not fit, so the upper bound is exclusive.
pub(crate) fn whole(n: f64) -> Option<i64> {
    const BOUND: f64 = 9_223_372_036_854_775_808.0;
    (n.fract() == 0.0 && (-BOUND..BOUND).contains(&n)).then_some(n as i64)
}
