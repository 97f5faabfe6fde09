//! Methods that take arrays apart and number their elements.

use thalweg_record::{Text, Value};

use super::{MethodSpec, elements, given, integer_argument, needed, pair, plain, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Param, ParamKind};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[
    with("enumerated", &[], |value, _, context| {
        let values = elements(&value)?;
        context.spend_elements(values.len().saturating_mul(3))?;
        let numbered = values.iter().zip(0_i64..);
        let numbered = numbered.map(|(value, index)| pair(("index", Value::I64(index)), ("value", value.clone())));
        Ok(ExprValue::Value(Value::Array(numbered.collect())))
    }),
    plain("flatten", flatten),
    with(
        "slice",
        &[
            Param::needed("low", ParamKind::Integer),
            Param::optional("high", ParamKind::Integer),
        ],
        slice,
    ),
];

/// Puts the elements of arrays in the place of those arrays, one level deep.
fn flatten(value: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let values = elements(&value)?;
    let inner = |value: &Value| match value {
        Value::Array(inner) => inner.len(),
        _ => 1,
    };
    context.spend_elements(values.iter().map(inner).fold(0, usize::saturating_add))?;
    let mut flat = Vec::new();
    for value in values {
        match value {
            Value::Array(inner) => flat.extend(inner.iter().cloned()),
            single => flat.push(single.clone()),
        }
    }
    Ok(ExprValue::Value(flat.into()))
}

/// The elements, characters or bytes from `low` to before `high`; negative bounds count from the end.
fn slice(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let low = integer_argument(needed(arguments, 0), "low")?;
    let high = match given(arguments, 1) {
        Some(high) => Some(integer_argument(high, "high")?),
        None => None,
    };
    let bounds = |length: usize| bounds(low, high, length);
    Ok(ExprValue::Value(match &value {
        Value::Array(values) => {
            let (low, high) = bounds(values.len())?;
            context.spend_elements(high - low)?;
            Value::Array(values.get(low..high).unwrap_or_default().iter().cloned().collect())
        }
        Value::Bytes(bytes) => {
            let (low, high) = bounds(bytes.len())?;
            context.spend_bytes(high - low)?;
            Value::Bytes(bytes.get(low..high).unwrap_or_default().to_vec().into())
        }
        other => {
            let text = view::text(other).ok_or_else(|| view::mismatch("string, bytes or array", other))?;
            context.spend(text.len())?;
            let (low, high) = bounds(text.chars().count())?;
            let part: String = text.chars().skip(low).take(high - low).collect();
            context.spend_bytes(part.len())?;
            Value::Text(Text::from(part))
        }
    }))
}

fn bounds(low: i64, high: Option<i64>, length: usize) -> EvalResult<(usize, usize)> {
    if let Some(high) = high
        && (low < 0) == (high < 0)
        && low >= high
    {
        let message = format!("the lower bound {low} must be less than the upper bound {high}");
        return Err(Fault::text(message));
    }
    let resolve = |bound: i64| {
        let distance = usize::try_from(bound.unsigned_abs()).unwrap_or(usize::MAX);
        match bound < 0 {
            true => length.saturating_sub(distance),
            false => distance.min(length),
        }
    };
    let (low, high) = (resolve(low), high.map_or(length, resolve));
    Ok((low, high.max(low)))
}
