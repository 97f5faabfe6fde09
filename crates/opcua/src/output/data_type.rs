//! The types that can be written, and the conversion of a message's value to them.
//!
//! | type | accepts |
//! |---|---|
//! | integers | numbers and decimal texts, truncated towards zero, within the type's range; exact to 64 bits |
//! | `Float`, `Double` | numbers and decimal texts, rounded to the nearest value, within its range |
//! | `Boolean` | booleans, numbers (all but 0 are true), and the words that `tag_processor` accepts as booleans |
//! | `String` | texts, numbers, booleans, times and bytes as their text, arrays and objects as JSON |
//! | `DateTime` | times, RFC 3339, and days with or without a time of day, in UTC |

use std::borrow::Cow;
use std::fmt;

use opcua::types::{DateTime, Variant};
use thalweg_record::{Text, Value, json};

use super::date_time;
use super::integer::ExactNumber;
use crate::value::ticks;

/// Longer values are truncated in messages.
const SHOWN_CHARS_MAX: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataType {
    Boolean,
    SByte,
    Byte,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Int64,
    UInt64,
    Float,
    Double,
    String,
    DateTime,
}

/// Why a value cannot be converted to a type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConvertError {
    #[error("value {value} is out of range for {data_type}")]
    OutOfRange { value: String, data_type: DataType },
    #[error("value {value} cannot be converted to {data_type}")]
    Impossible { value: String, data_type: DataType },
}

/// The same, without value and type.
enum Mistake {
    OutOfRange,
    Impossible,
}

impl DataType {
    pub const ALL: [DataType; 13] = [
        DataType::Boolean,
        DataType::SByte,
        DataType::Byte,
        DataType::Int16,
        DataType::UInt16,
        DataType::Int32,
        DataType::UInt32,
        DataType::Int64,
        DataType::UInt64,
        DataType::Float,
        DataType::Double,
        DataType::String,
        DataType::DateTime,
    ];

    pub fn parse(text: &str) -> Result<DataType, String> {
        let found = DataType::ALL.into_iter().find(|known| known.as_str() == text);
        found.ok_or_else(|| {
            let all = DataType::ALL.map(DataType::as_str).join(", ");
            format!("unsupported dataType '{text}'. Supported types are: {all}")
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            DataType::Boolean => "Boolean",
            DataType::SByte => "SByte",
            DataType::Byte => "Byte",
            DataType::Int16 => "Int16",
            DataType::UInt16 => "UInt16",
            DataType::Int32 => "Int32",
            DataType::UInt32 => "UInt32",
            DataType::Int64 => "Int64",
            DataType::UInt64 => "UInt64",
            DataType::Float => "Float",
            DataType::Double => "Double",
            DataType::String => "String",
            DataType::DateTime => "DateTime",
        }
    }

    /// Converts a value to this type, in the same form as it is read back.
    pub fn convert(self, value: &Value) -> Result<Value, ConvertError> {
        let converted = match self {
            DataType::Boolean => boolean(value).map(Value::Bool).ok_or(Mistake::Impossible),
            DataType::SByte => integer(value, Value::I8),
            DataType::Byte => integer(value, Value::U8),
            DataType::Int16 => integer(value, Value::I16),
            DataType::UInt16 => integer(value, Value::U16),
            DataType::Int32 => integer(value, Value::I32),
            DataType::UInt32 => integer(value, Value::U32),
            DataType::Int64 => integer(value, Value::I64),
            DataType::UInt64 => integer(value, Value::U64),
            DataType::Float => float(value).map(Value::F32),
            DataType::Double => double(value).map(Value::F64),
            DataType::String => text(value).map(Value::Text).ok_or(Mistake::Impossible),
            DataType::DateTime => time(value),
        };
        converted.map_err(|mistake| {
            let (value, data_type) = (shown(value).into_owned(), self);
            match mistake {
                Mistake::OutOfRange => ConvertError::OutOfRange { value, data_type },
                Mistake::Impossible => ConvertError::Impossible { value, data_type },
            }
        })
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn integer<T: TryFrom<i128>>(value: &Value, typed: fn(T) -> Value) -> Result<Value, Mistake> {
    let number = ExactNumber::of(value)
        .and_then(ExactNumber::truncated)
        .ok_or(Mistake::Impossible)?;
    T::try_from(number).map(typed).map_err(|_| Mistake::OutOfRange)
}

fn double(value: &Value) -> Result<f64, Mistake> {
    let (number, given_finite) = match ExactNumber::of(value).ok_or(Mistake::Impossible)? {
        ExactNumber::Integer(n) => (n as f64, true),
        ExactNumber::Float(n) => (n, n.is_finite()),
        ExactNumber::Decimal(text) => (text.parse().map_err(|_| Mistake::Impossible)?, true),
    };
    match number.is_finite() || !given_finite {
        true => Ok(number),
        false => Err(Mistake::OutOfRange),
    }
}

/// Converts directly, because a conversion through a double would round twice.
fn float(value: &Value) -> Result<f32, Mistake> {
    let (number, given_finite) = match ExactNumber::of(value).ok_or(Mistake::Impossible)? {
        ExactNumber::Integer(n) => (n as f32, true),
        ExactNumber::Float(n) => (n as f32, n.is_finite()),
        ExactNumber::Decimal(text) => (text.parse().map_err(|_| Mistake::Impossible)?, true),
    };
    match number.is_finite() || !given_finite {
        true => Ok(number),
        false => Err(Mistake::OutOfRange),
    }
}

fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::Text(text) => match text.as_str() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
            _ => None,
        },
        number => ExactNumber::of(number)?.is_zero().map(|is_zero| !is_zero),
    }
}

fn text(value: &Value) -> Option<Text> {
    match value {
        Value::Null => None,
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Some(text.clone()),
        other => Some(plain(other).into()),
    }
}

fn time(value: &Value) -> Result<Value, Mistake> {
    let time = match value {
        Value::Time(time) => *time,
        Value::Text(text) => date_time::parse(text).ok_or(Mistake::Impossible)?,
        _ => return Err(Mistake::Impossible),
    };
    match ticks::to_opcua(time) {
        Some(_) => Ok(Value::Time(time)),
        None => Err(Mistake::OutOfRange),
    }
}

/// Formats as JSON, without the quotes of a single text.
fn plain(value: &Value) -> String {
    let text = json::to_string(value);
    match value {
        // Neither base64 nor a time contains anything that JSON escapes.
        Value::Bytes(_) | Value::Time(_) => text.trim_matches('"').to_owned(),
        _ => text,
    }
}

/// Formats a value for errors.
pub(super) fn shown(value: &Value) -> Cow<'_, str> {
    let text = match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(plain(value)),
    };
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => text,
    }
}

/// Returns a converted value in the protocol's form; empty for values that no conversion returns.
pub(super) fn variant(value: &Value) -> Variant {
    match value {
        Value::Bool(truth) => Variant::Boolean(*truth),
        Value::I8(n) => Variant::SByte(*n),
        Value::U8(n) => Variant::Byte(*n),
        Value::I16(n) => Variant::Int16(*n),
        Value::U16(n) => Variant::UInt16(*n),
        Value::I32(n) => Variant::Int32(*n),
        Value::U32(n) => Variant::UInt32(*n),
        Value::I64(n) => Variant::Int64(*n),
        Value::U64(n) => Variant::UInt64(*n),
        Value::F32(n) => Variant::Float(*n),
        Value::F64(n) => Variant::Double(*n),
        Value::Text(text) => Variant::String(text.as_str().into()),
        Value::Time(time) => ticks::to_opcua(*time).map_or(Variant::Empty, |steps| DateTime::from(steps).into()),
        _ => Variant::Empty,
    }
}

#[cfg(test)]
mod tests;
