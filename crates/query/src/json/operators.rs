//! The operators of JSON as calls: `body -> 'a'` is `json_get(body, 'a')`, `->>` reads a value as text, `#>` and `#>>` take a whole
//! path, and `?` asks for a member. On lists, maps and structures they give the element or member itself.
//!
//! Where a number is needed, a text from JSON is one, as an attribute is: in arithmetic and in aggregate functions of numbers.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::functions::core::expr_fn::get_field;
use datafusion::functions_nested::array_has::array_has;
use datafusion::functions_nested::extract::array_element;
use datafusion::functions_nested::map_extract::map_extract;
use datafusion::functions_nested::map_keys::map_keys;
use datafusion::logical_expr::expr::{Cast, ScalarFunction, TryCast};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr};
use datafusion::logical_expr::{Expr, ExprSchemable as _, lit};
use datafusion::sql::sqlparser::ast::BinaryOperator;

use super::functions::{JsonResult, is_text_of_json, of_operator, to_json};
use crate::functions::{is_arithmetic, takes_numbers};

/// Plans the operators. It stands before the planners of the library.
#[derive(Debug)]
pub struct JsonOperators;

impl ExprPlanner for JsonOperators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = expr;
        let result = match op {
            BinaryOperator::Arrow | BinaryOperator::HashArrow => JsonResult::Json,
            BinaryOperator::LongArrow | BinaryOperator::HashLongArrow => JsonResult::Text,
            BinaryOperator::Question => JsonResult::HasKey,
            _ => {
                let (left, right) = match is_arithmetic(&op) {
                    true => numbers(left, right, schema),
                    false => (left, right),
                };
                return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
            }
        };
        let right = match op {
            BinaryOperator::HashArrow | BinaryOperator::HashLongArrow => path(right)?,
            _ => right,
        };
        Ok(PlannerResult::Planned(access(left, right, result, schema)?))
    }

    fn plan_aggregate(&self, mut expr: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        if takes_numbers(expr.func.name()) {
            expr.args = expr.args.into_iter().map(number).collect();
        }
        Ok(PlannerResult::Original(expr))
    }
}

fn call(result: JsonResult, args: Vec<Expr>) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(of_operator(result), args))
}

/// A value, an element or a member of the left operand.
fn access(left: Expr, right: Expr, result: JsonResult, schema: &DFSchema) -> Result<Expr> {
    let kind = left.get_type(schema)?;
    let is_list = matches!(
        kind,
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
    );
    let part = match (&kind, result, literal_text(&right), literal_position(&right)) {
        (DataType::Map(..), JsonResult::HasKey, ..) => return Ok(array_has(map_keys(left), right)),
        (_, JsonResult::HasKey, ..) if is_list => return Ok(array_has(left, right)),
        (DataType::Map(..) | DataType::Struct(_), _, Some(name), _) => get_field(left, name),
        (DataType::Map(..), ..) if right.get_type(schema)?.is_string() => {
            array_element(map_extract(left, right), lit(1_i64))
        }
        // Lists count from 1, JSON from 0.
        (_, _, _, Some(position)) if is_list => {
            let position = position + i64::from(position >= 0);
            array_element(left, lit(position))
        }
        _ => return Ok(call(result, vec![left, right])),
    };
    match result {
        JsonResult::Text => as_text(part, schema),
        _ => Ok(part),
    }
}

fn as_text(value: Expr, schema: &DFSchema) -> Result<Expr> {
    let kind = value.get_type(schema)?;
    Ok(match kind.is_nested() {
        true => Expr::ScalarFunction(ScalarFunction::new_udf(to_json(), vec![value])),
        false if kind.is_string() => value,
        false => Expr::Cast(Cast::new(Box::new(value), DataType::Utf8View)),
    })
}

fn literal_text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(value, _) => value.try_as_str().flatten().map(str::to_owned),
        _ => None,
    }
}

/// A position that can be counted on by one.
fn literal_position(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(ScalarValue::Int64(Some(position)), _) => Some(*position).filter(|position| *position < i64::MAX),
        Expr::Negative(value) => literal_position(value).map(|position| -position),
        _ => None,
    }
}

/// The path of `#>`: a list, or a text as PostgreSQL writes lists: `'{a,0,b}'`.
fn path(expr: Expr) -> Result<Expr> {
    let Some(text) = literal_text(&expr) else {
        return Ok(expr);
    };
    let Some(inner) = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
        return plan_err!("#> '{text}': write a path as '{{a,0,b}}' or as ['a', '0', 'b']");
    };
    let steps: Vec<ScalarValue> = inner
        .split(',')
        .map(|step| step.trim().trim_matches('"'))
        .filter(|_| !inner.trim().is_empty())
        .map(|step| ScalarValue::Utf8View(Some(step.to_owned())))
        .collect();
    let list = ScalarValue::new_list(&steps, &DataType::Utf8View, true);
    Ok(Expr::Literal(ScalarValue::List(list), None))
}

/// Texts from JSON as numbers, if the other operand is a number.
fn numbers(left: Expr, right: Expr, schema: &DFSchema) -> (Expr, Expr) {
    if !is_text_of_json(&left) && !is_text_of_json(&right) {
        return (left, right);
    }
    let is_number = |expr: &Expr| is_text_of_json(expr) || expr.get_type(schema).is_ok_and(|kind| kind.is_numeric());
    match is_number(&left) && is_number(&right) {
        true => (number(left), number(right)),
        false => (left, right),
    }
}

fn number(expr: Expr) -> Expr {
    match is_text_of_json(&expr) {
        true => Expr::TryCast(TryCast::new(Box::new(expr), DataType::Float64)),
        false => expr,
    }
}
