//! Texts compared with numbers: what is a number is compared, and what is none is left out. Attributes are texts, and one odd
//! value must not end the query, as it would with the cast that the library adds.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, BinaryExpr, InList, TryCast};
use datafusion::logical_expr::{Expr, ExprSchemable as _, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;

/// A double holds each integer up to this one.
const EXACT_MAX: u64 = 1 << 53;

/// Runs before the types of operands are made equal.
#[derive(Debug)]
pub struct NumbersInTexts;

impl AnalyzerRule for NumbersInTexts {
    fn name(&self) -> &str {
        "numbers_in_texts"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, |expr, schema| Ok(compared(expr, schema)))
    }
}

fn compared(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) => {
            let (left_kind, right_kind) = (number_in(&left, &[&right], schema), number_in(&right, &[&left], schema));
            let made = left_kind.is_some() || right_kind.is_some();
            let (left, right) = (converted(left, left_kind), converted(right, right_kind));
            Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op, right }), made)
        }
        Expr::Between(between) => {
            let kind = number_in(&between.expr, &[&between.low, &between.high], schema);
            let made = kind.is_some();
            let expr = converted(between.expr, kind);
            Transformed::new_transformed(Expr::Between(Between { expr, ..between }), made)
        }
        Expr::InList(list) => {
            let kind = number_in(&list.expr, &list.list.iter().collect::<Vec<_>>(), schema);
            let made = kind.is_some();
            let expr = converted(list.expr, kind);
            Transformed::new_transformed(Expr::InList(InList { expr, ..list }), made)
        }
        other => Transformed::no(other),
    }
}

fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(
        operator,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

/// The type to which a text is converted to be compared with numbers. `None`: it is no text, or they are no numbers.
fn number_in(text: &Expr, numbers: &[&Expr], schema: &DFSchema) -> Option<DataType> {
    if matches!(text, Expr::Literal(..)) || !text.get_type(schema).ok()?.is_string() {
        return None;
    }
    let are_numbers = |number: &&Expr| number.get_type(schema).is_ok_and(|kind| kind.is_numeric());
    if numbers.is_empty() || !numbers.iter().all(are_numbers) {
        return None;
    }
    let is_long = |number: &&Expr| match number {
        Expr::Literal(ScalarValue::Int64(Some(number)), _) => number.unsigned_abs() > EXACT_MAX,
        Expr::Literal(ScalarValue::UInt64(Some(number)), _) => *number > EXACT_MAX,
        _ => false,
    };
    Some(match numbers.iter().any(is_long) {
        true => DataType::Int64,
        false => DataType::Float64,
    })
}

fn converted(expr: Box<Expr>, kind: Option<DataType>) -> Box<Expr> {
    match kind {
        Some(kind) => Box::new(Expr::TryCast(TryCast::new(expr, kind))),
        None => expr,
    }
}
