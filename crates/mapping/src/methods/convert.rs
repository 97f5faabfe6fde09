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
    custom("catch", &[Param::needed("fallback", ParamKind::Query)], |arguments| {
        Ok(Method::Catch(arguments.query(0)?))
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
fn to_number(value: &Value) -> EvalResult<Value> {
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
