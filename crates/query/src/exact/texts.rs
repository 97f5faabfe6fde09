//! Texts compared with numbers: what is a number is compared, and what is none is left out. Attributes are texts, and one odd
//! value must not end the query, as it would with the cast that the library adds.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Between, BinaryExpr, Case, InList, InSubquery, TryCast};
use datafusion::logical_expr::{Expr, ExprSchemable as _, LogicalPlan, LogicalPlanBuilder, Operator};
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
            let kinds = number_types(&[&left, &right], schema);
            let made = kinds.is_some();
            let [left, right] = converted([left, right], kinds);
            Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op, right }), made)
        }
        Expr::Between(Between {
            expr,
            negated,
            low,
            high,
        }) => {
            let kinds = number_types(&[&expr, &low, &high], schema);
            let made = kinds.is_some();
            let [expr, low, high] = converted([expr, low, high], kinds);
            let between = Between {
                expr,
                negated,
                low,
                high,
            };
            Transformed::new_transformed(Expr::Between(between), made)
        }
        Expr::InList(list) => in_list(list, schema),
        Expr::InSubquery(membership) => in_subquery(membership, schema),
        Expr::Case(case) => simple_case(case, schema),
        other => Transformed::no(other),
    }
}

fn in_list(list: InList, schema: &DFSchema) -> Transformed<Expr> {
    let mut operands = vec![list.expr.as_ref()];
    operands.extend(&list.list);
    let Some(kinds) = number_types(&operands, schema) else {
        return Transformed::no(Expr::InList(list));
    };
    let values = list.list.into_iter().zip(kinds.iter().skip(1));
    Transformed::yes(Expr::InList(InList {
        expr: Box::new(as_number(*list.expr, kinds.first())),
        list: values.map(|(value, kind)| as_number(value, Some(kind))).collect(),
        negated: list.negated,
    }))
}

/// `attr IN (SELECT number …)` and `number IN (SELECT attr …)`.
fn in_subquery(mut membership: InSubquery, schema: &DFSchema) -> Transformed<Expr> {
    let inner = membership.subquery.subquery.as_ref();
    let (Some((table, field)), Ok(kind)) = (inner.schema().iter().next(), membership.expr.get_type(schema)) else {
        return Transformed::no(Expr::InSubquery(membership));
    };
    if kind.is_string() && field.data_type().is_numeric() {
        let value = Box::new(as_number(*membership.expr, Some(&Some(DataType::Float64))));
        membership.expr = value;
        return Transformed::yes(Expr::InSubquery(membership));
    }
    if !kind.is_numeric() || !field.data_type().is_string() {
        return Transformed::no(Expr::InSubquery(membership));
    }
    let column = Expr::Column(Column::from((table, field)));
    let column = as_number(column, Some(&Some(DataType::Float64))).alias(field.name());
    let projected = LogicalPlanBuilder::from(inner.clone()).project([column]);
    match projected.and_then(LogicalPlanBuilder::build) {
        Ok(plan) => {
            membership.subquery.subquery = Arc::new(plan);
            Transformed::yes(Expr::InSubquery(membership))
        }
        Err(_) => Transformed::no(Expr::InSubquery(membership)),
    }
}

/// `CASE attr WHEN 9 THEN …`
fn simple_case(mut case: Case, schema: &DFSchema) -> Transformed<Expr> {
    let Some(value) = &case.expr else {
        return Transformed::no(Expr::Case(case));
    };
    let mut operands = vec![value.as_ref()];
    operands.extend(case.when_then_expr.iter().map(|(when, _)| when.as_ref()));
    let Some(kinds) = number_types(&operands, schema) else {
        return Transformed::no(Expr::Case(case));
    };
    case.expr = case.expr.map(|value| Box::new(as_number(*value, kinds.first())));
    for ((when, _), kind) in case.when_then_expr.iter_mut().zip(kinds.iter().skip(1)) {
        **when = as_number(std::mem::take(&mut **when), Some(kind));
    }
    Transformed::yes(Expr::Case(case))
}

fn is_comparison(operator: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(
        operator,
        Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom
    )
}

/// The types to which texts among compared operands are converted, if the others are numbers. `None`: nothing is converted.
fn number_types(operands: &[&Expr], schema: &DFSchema) -> Option<Vec<Option<DataType>>> {
    let is_text = |operand: &Expr| -> Option<bool> {
        let kind = operand.get_type(schema).ok()?;
        match kind {
            kind if kind.is_numeric() || kind.is_null() => Some(false),
            // A text in quotes is converted by the library, or is an error.
            kind if kind.is_string() && !matches!(operand, Expr::Literal(..)) => Some(true),
            _ => None,
        }
    };
    let texts: Vec<bool> = operands.iter().map(|operand| is_text(operand)).collect::<Option<_>>()?;
    let is_number = |operand: &&Expr| operand.get_type(schema).is_ok_and(|kind| kind.is_numeric());
    if !texts.contains(&true) || !operands.iter().any(is_number) {
        return None;
    }
    let is_long = |operand: &&Expr| match operand {
        Expr::Literal(ScalarValue::Int64(Some(number)), _) => number.unsigned_abs() > EXACT_MAX,
        Expr::Literal(ScalarValue::UInt64(Some(number)), _) => *number > EXACT_MAX,
        _ => false,
    };
    let kind = match operands.iter().any(is_long) {
        true => DataType::Int64,
        false => DataType::Float64,
    };
    Some(texts.into_iter().map(|is_text| is_text.then(|| kind.clone())).collect())
}

fn converted<const N: usize>(operands: [Box<Expr>; N], kinds: Option<Vec<Option<DataType>>>) -> [Box<Expr>; N] {
    let Some(kinds) = kinds else { return operands };
    let mut kinds = kinds.iter();
    operands.map(|operand| Box::new(as_number(*operand, kinds.next())))
}

fn as_number(expr: Expr, kind: Option<&Option<DataType>>) -> Expr {
    match kind {
        Some(Some(kind)) => Expr::TryCast(TryCast::new(Box::new(expr), kind.clone())),
        _ => expr,
    }
}
