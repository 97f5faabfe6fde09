//! Methods for rounding, and for sums and extremes of arrays.

use std::cmp::Ordering;

use thalweg_record::Value;

use super::{MethodSpec, at_element, elements, plain};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::operators;
use crate::view::{Number, shallow_size, whole};

pub(super) static METHODS: &[MethodSpec] = &[
    plain("abs", |value, _| {
        Ok(ExprValue::Value(match Number::need(&value)? {
            Number::Integer(n) => Number::Integer(n.saturating_abs()).value(),
            Number::Float(n) => Value::F64(n.abs()),
        }))
    }),
    plain("ceil", |value, _| round(&value, f64::ceil)),
    plain("floor", |value, _| round(&value, f64::floor)),
    plain("max", |value, context| extreme(&value, Ordering::is_gt, context)),
    plain("min", |value, context| extreme(&value, Ordering::is_lt, context)),
    plain("round", |value, _| round(&value, f64::round)),
    plain("sum", |value, context| sum(&value, context)),
];

/// Returns an integer if it fits 64 bits, otherwise a float.
fn round(value: &Value, rounding: fn(f64) -> f64) -> EvalResult<ExprValue> {
    Ok(ExprValue::Value(match Number::need(value)? {
        Number::Integer(_) => value.clone(),
        Number::Float(n) => {
            let rounded = rounding(n);
            whole(rounded).map_or(Value::F64(rounded), Value::I64)
        }
    }))
}

fn extreme(value: &Value, is_better: fn(Ordering) -> bool, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    context.spend(shallow_size(value))?;
    let mut best: Option<&Value> = None;
    for (index, value) in elements(value)?.iter().enumerate() {
        Number::need(value).map_err(|fault| at_element(index, fault))?;
        let order = best.and_then(|best| operators::compare(value, best).flatten());
        if best.is_none() || order.is_some_and(is_better) {
            best = Some(value);
        }
    }
    match best {
        Some(best) => Ok(ExprValue::Value(best.clone())),
        None => Err(Fault::text("the array is empty")),
    }
}

/// The sum is exact while all elements are integers and the sum fits.
fn sum(value: &Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    context.spend(shallow_size(value))?;
    let mut sum = Number::Integer(0);
    for (index, value) in elements(value)?.iter().enumerate() {
        let next = Number::need(value).map_err(|fault| at_element(index, fault))?;
        sum = match (sum, next) {
            (Number::Integer(sum), Number::Integer(next)) => match sum.checked_add(next) {
                Some(sum) => Number::Integer(sum),
                None => Number::Float(sum as f64 + next as f64),
            },
            (sum, next) => Number::Float(sum.float() + next.float()),
        };
    }
    Ok(ExprValue::Value(sum.value()))
}
