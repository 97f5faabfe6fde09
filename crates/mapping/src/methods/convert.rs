//! Conversions between types, and fallbacks for absent or wrong values.

use thalweg_record::{Value, json, parse_decimal};

use super::{Method, MethodSpec, custom, given, plain, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Param, ParamKind};
use crate::view::{self, Number};

pub(super) static METHODS: &[MethodSpec] = &[
    with(
        "bool",
        &[Param::optional("default", ParamKind::Any)],
        |value, arguments, _| or_default(to_bool(&value), arguments),
    ),
    plain("bytes", |value, context| {
        let bytes = match value {
            Value::Bytes(bytes) => bytes,
            other => {
                let text = view::to_text(&other)?;
                context.spend_bytes(text.len())?;
                text.as_bytes().to_vec().into()
            }
        };
        Ok(ExprValue::Value(Value::Bytes(bytes)))
    }),
    custom("catch", &[Param::needed("fallback", ParamKind::Query)], |arguments| {
        Ok(Method::Catch(arguments.query(0)?))
    }),
    plain("float32", |value, _| {
        Ok(ExprValue::Value(Value::F32(to_float(&value)? as f32)))
    }),
    plain("float64", |value, _| {
        Ok(ExprValue::Value(Value::F64(to_float(&value)?)))
    }),
    plain("int8", |value, _| {
        to_integer(&value, "int8", i8::MIN.into(), i8::MAX.into())
    }),
    plain("int16", |value, _| {
        to_integer(&value, "int16", i16::MIN.into(), i16::MAX.into())
    }),
    plain("int32", |value, _| {
        to_integer(&value, "int32", i32::MIN.into(), i32::MAX.into())
    }),
    plain("int64", |value, _| {
        to_integer(&value, "int64", i64::MIN.into(), i64::MAX.into())
    }),
    plain("not_empty", not_empty),
    plain("not_null", |value, _| match value {
        Value::Null => Err(Fault::text("value is null")),
        value => Ok(ExprValue::Value(value)),
    }),
    with(
        "number",
        &[Param::optional("default", ParamKind::Any)],
        |value, arguments, _| or_default(to_number(&value), arguments),
    ),
    custom("or", &[Param::needed("fallback", ParamKind::Any)], |arguments| {
        Ok(Method::Or(arguments.value(0)?))
    }),
    plain("string", |value, context| {
        let text = view::to_text(&value)?;
        context.spend_bytes(text.len())?;
        super::built(text)
    }),
    custom("type", &[], |_| Ok(Method::Type)),
    plain("uint8", |value, _| to_integer(&value, "uint8", 0, u8::MAX.into())),
    plain("uint16", |value, _| to_integer(&value, "uint16", 0, u16::MAX.into())),
    plain("uint32", |value, _| to_integer(&value, "uint32", 0, u32::MAX.into())),
    plain("uint64", |value, _| to_integer(&value, "uint64", 0, u64::MAX.into())),
];

fn or_default(converted: EvalResult<Value>, arguments: &[Option<Value>]) -> EvalResult<ExprValue> {
    match (converted, given(arguments, 0)) {
        (Ok(value), _) => Ok(ExprValue::Value(value)),
        (Err(_), Some(default)) => Ok(ExprValue::Value(default.clone())),
        (Err(fault), None) => Err(fault),
    }
}

fn to_bool(value: &Value) -> EvalResult<Value> {
    let truth = match value {
        Value::Bool(truth) => Some(*truth),
        other => match (Number::of(other), view::text(other).as_deref()) {
            (Some(number), _) => Some(number.float() != 0.0),
            (None, Some("1" | "t" | "T" | "TRUE" | "true" | "True")) => Some(true),
            (None, Some("0" | "f" | "F" | "FALSE" | "false" | "False")) => Some(false),
            _ => None,
        },
    };
    truth.map(Value::Bool).ok_or_else(|| view::mismatch("bool", value))
}

/// Converts text to a number without losing digits: valid JSON numbers are parsed as JSON does. Numbers stay as they
/// are.
pub(super) fn to_number(value: &Value) -> EvalResult<Value> {
    if Number::of(value).is_some() {
        return Ok(value.clone());
    }
    let text = match value {
        Value::Time(_) => None,
        other => view::text(other),
    };
    let text = text.ok_or_else(|| view::mismatch("number", value))?;
    let plain = text.strip_prefix('+').unwrap_or(&text);
    let parsed = match json::parse(plain.as_bytes()) {
        Ok(number) if number.is_number() && !plain.contains(char::is_whitespace) => Some(number),
        // Numbers that are not valid JSON: `007`, `.5`.
        _ => match text.parse::<i64>() {
            Ok(integer) => Some(Value::I64(integer)),
            Err(_) => parse_decimal(&text).filter(|n| n.is_finite()).map(Value::F64),
        },
    };
    let finite = parsed.filter(|number| Number::of(number).is_some_and(|number| number.float().is_finite()));
    finite.ok_or_else(|| view::mismatch("number", value))
}

fn to_float(value: &Value) -> EvalResult<f64> {
    Ok(Number::need(&to_number(value)?)?.float())
}

/// Converts to an integer without changing the value: a fraction or a number outside of the type is a fault. Texts may be
/// hexadecimal, octal or binary.
fn to_integer(value: &Value, name: &'static str, min: i128, max: i128) -> EvalResult<ExprValue> {
    let number = match view::text(value).and_then(|text| based_integer(&text)) {
        Some(integer) => Number::Integer(integer),
        None => Number::need(&to_number(value)?)?,
    };
    let integer = match number {
        Number::Integer(integer) => integer,
        // Floats beyond the range of i128 saturate, and are out of range below.
        Number::Float(float) if float.fract() == 0.0 => float as i128,
        Number::Float(float) => {
            let message =
                format!("{float} is no {name}, because it has a fraction: use round(), floor() or ceil() first");
            return Err(Fault::text(message));
        }
    };
    if !(min..=max).contains(&integer) {
        let message = format!("{integer} is no {name}, which goes from {min} to {max}");
        return Err(Fault::text(message));
    }
    Ok(ExprValue::Value(Number::Integer(integer).value()))
}

/// `0xff`, `0o17`, `0b11`, with an optional sign.
fn based_integer(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let radix = match digits.get(..2)? {
        "0x" | "0X" => 16,
        "0o" | "0O" => 8,
        "0b" | "0B" => 2,
        _ => return None,
    };
    let digits = digits.get(2..).filter(|digits| !digits.starts_with(['+', '-']))?;
    i128::from_str_radix(&format!("{sign}{digits}"), radix).ok()
}

fn not_empty(value: Value, _: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let is_empty = match &value {
        Value::Array(values) => values.is_empty(),
        other => match (view::text(other), view::object(other)) {
            (Some(text), _) => text.is_empty(),
            (None, Some(object)) => object.is_empty(),
            (None, None) => return Err(view::mismatch("string, array or object", other)),
        },
    };
    if is_empty {
        return Err(Fault::text(format!("{} value is empty", view::kind(&value))));
    }
    Ok(ExprValue::Value(value))
}
