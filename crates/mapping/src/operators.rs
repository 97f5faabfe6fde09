//! Arithmetic, comparison and equality of values.
//!
//! Integers stay integers and exact. An operation with a float, and every division, returns a float. Values of
//! different types are never equal. Ordering them is a fault that names both types.

use std::cmp::Ordering;

use thalweg_record::Value;

use crate::error::{EvalResult, Fault};
use crate::limits;
use crate::view::{self, Number};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Multiply,
    Divide,
    Remainder,
    Coalesce,
    Add,
    Subtract,
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    And,
    Or,
}

impl Op {
    pub fn of(sign: &str) -> Option<Op> {
        Some(match sign {
            "*" => Op::Multiply,
            "/" => Op::Divide,
            "%" => Op::Remainder,
            "|" => Op::Coalesce,
            "+" => Op::Add,
            "-" => Op::Subtract,
            "==" => Op::Equal,
            "!=" => Op::Unequal,
            "<" => Op::Less,
            "<=" => Op::LessEqual,
            ">" => Op::Greater,
            ">=" => Op::GreaterEqual,
            "&&" => Op::And,
            "||" => Op::Or,
            _ => return None,
        })
    }

    /// The precedence: 0 binds first. Operators of the same level group from left to right.
    pub fn level(self) -> usize {
        match self {
            Op::Multiply | Op::Divide | Op::Remainder | Op::Coalesce => 0,
            Op::Add | Op::Subtract => 1,
            Op::And => 3,
            Op::Or => 4,
            _ => 2,
        }
    }

    pub const LEVELS: usize = 5;

    fn verb(self) -> &'static str {
        match self {
            Op::Multiply => "multiply",
            Op::Divide => "divide",
            Op::Remainder => "take the remainder of",
            Op::Add => "add",
            Op::Subtract => "subtract",
            Op::And | Op::Or | Op::Coalesce => "combine",
            _ => "compare",
        }
    }
}

/// Why an operation has no result.
pub(crate) enum OperationError {
    /// The types do not match the operation. The caller adds where the operands came from.
    Types,
    Fault(Fault),
}

impl From<Fault> for OperationError {
    fn from(fault: Fault) -> OperationError {
        OperationError::Fault(fault)
    }
}

/// Builds the fault for operands of unsuitable types.
pub(crate) fn unfit(op: Op, left: (&str, String), right: (&str, String)) -> Fault {
    let verb = op.verb();
    let ((left, left_source), (right, right_source)) = (left, right);
    Fault::text(format!(
        "cannot {verb} types {left} (from {left_source}) and {right} (from {right_source})"
    ))
}

pub(crate) fn operate(op: Op, left: &Value, right: &Value) -> Result<Value, OperationError> {
    let order = |fits: fn(Ordering) -> bool| match compare(left, right) {
        Some(order) => Ok(Value::Bool(order.is_some_and(fits))),
        None => Err(OperationError::Types),
    };
    match op {
        Op::Equal => Ok(Value::Bool(equal(left, right))),
        Op::Unequal => Ok(Value::Bool(!equal(left, right))),
        Op::Less => order(Ordering::is_lt),
        Op::LessEqual => order(Ordering::is_le),
        Op::Greater => order(Ordering::is_gt),
        Op::GreaterEqual => order(Ordering::is_ge),
        Op::Add => match concat(left, right)? {
            Some(text) => Ok(text),
            None => calculate(op, left, right),
        },
        _ => calculate(op, left, right),
    }
}

/// Concatenates strings or bytes; `None` if an operand is neither.
fn concat(left: &Value, right: &Value) -> EvalResult<Option<Value>> {
    if let (Value::Bytes(left), Value::Bytes(right)) = (left, right) {
        limits::check_bytes(left.len() + right.len())?;
        return Ok(Some(Value::Bytes([&**left, &**right].concat().into())));
    }
    let (Some(left), Some(right)) = (view::text(left), view::text(right)) else {
        return Ok(None);
    };
    limits::check_bytes(left.len() + right.len())?;
    Ok(Some(Value::text([&*left, &*right].concat())))
}

fn calculate(op: Op, left: &Value, right: &Value) -> Result<Value, OperationError> {
    let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) else {
        return Err(OperationError::Types);
    };
    let number = match (op, left, right) {
        (Op::Divide, _, _) => Number::Float(float(op, left.float(), right.float())?),
        (Op::Remainder, _, _) => Number::Integer(remainder(left, right)?),
        (_, Number::Integer(left), Number::Integer(right)) => Number::Integer(exact(op, left, right)?),
        _ => Number::Float(float(op, left.float(), right.float())?),
    };
    Ok(number.value())
}

fn exact(op: Op, left: i128, right: i128) -> EvalResult<i128> {
    let result = match op {
        Op::Multiply => left.checked_mul(right),
        Op::Subtract => left.checked_sub(right),
        _ => left.checked_add(right),
    };
    result.ok_or_else(|| Fault::text(format!("cannot {} {left} and {right}: more than 38 digits", op.verb())))
}

fn float(op: Op, left: f64, right: f64) -> EvalResult<f64> {
    if op == Op::Divide && right == 0.0 {
        return Err(by_zero());
    }
    let result = match op {
        Op::Multiply => left * right,
        Op::Divide => left / right,
        Op::Subtract => left - right,
        _ => left + right,
    };
    if !result.is_finite() && left.is_finite() && right.is_finite() {
        return Err(Fault::text(format!(
            "cannot {} {left:e} and {right:e}: the result is out of range",
            op.verb()
        )));
    }
    Ok(result)
}

/// The remainder of whole numbers; fractions are cut off first.
fn remainder(left: Number, right: Number) -> EvalResult<i128> {
    let cut = |number| match number {
        Number::Integer(n) => n,
        Number::Float(n) => n as i128,
    };
    let (left, right) = (cut(left), cut(right));
    if right == 0 {
        return Err(by_zero());
    }
    Ok(left.checked_rem(right).unwrap_or(0))
}

fn by_zero() -> Fault {
    Fault::text("attempted to divide by zero")
}

pub(crate) fn negate(value: &Value) -> EvalResult<Value> {
    match Number::need(value)? {
        Number::Float(n) => Ok(Value::F64(-n)),
        // Number::of returns no integer of more than 38 digits, but the smallest i128 has no negative.
        Number::Integer(n) => match n.checked_neg() {
            Some(n) => Ok(Number::Integer(n).value()),
            None => Err(Fault::text("cannot negate a number of more than 38 digits")),
        },
    }
}

/// Compares two values of one type: `None` if the type has no order, `Some(None)` if one is NaN.
pub(crate) fn compare(left: &Value, right: &Value) -> Option<Option<Ordering>> {
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Some(compare_numbers(left, right));
    }
    if let (Value::Time(left), Value::Time(right)) = (left, right) {
        return Some(Some(left.cmp(right)));
    }
    let (left, right) = (view::text(left)?, view::text(right)?);
    Some(Some(left.as_bytes().cmp(right.as_bytes())))
}

fn compare_numbers(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Integer(left), Number::Integer(right)) => Some(left.cmp(&right)),
        _ => left.float().partial_cmp(&right.float()),
    }
}

/// Deep equality. Numbers compare by value, strings and bytes by content, members regardless of their order.
pub(crate) fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Null, Value::Null) => true,
        (Value::Bool(left), Value::Bool(right)) => left == right,
        (Value::Text(left), Value::Text(right)) => left == right,
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right.iter()).all(|(left, right)| equal(left, right))
        }
        _ => match (view::object(left), view::object(right)) {
            (Some(left), Some(right)) => {
                left.len() == right.len()
                    && left
                        .iter()
                        .all(|(name, value)| right.get(name).is_some_and(|other| equal(value, other)))
            }
            _ => equal_scalars(left, right),
        },
    }
}

fn equal_scalars(left: &Value, right: &Value) -> bool {
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return compare_numbers(left, right) == Some(Ordering::Equal);
    }
    match (view::bytes(left), view::bytes(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}
