//! Lists: `a IN (1, 2)`, and `a = 1 OR a = 2` and `array_has([1, 2], a)`, which the library makes such lists of. Its optimizer merges
//! two lists of one value that stand beside each other (`inlist_intersection` and `inlist_except` of its `Simplifier`), and is wrong in three ways:
//!
//! - A NULL in a list is one of its values: `a IN (2, 3) AND a NOT IN (1, NULL)` becomes `a IN (2, 3)`. Here `a IN (1, NULL)`
//!   becomes `a IN (1) OR NULL` before.
//! - `a IN (b) AND a IN (c)` becomes false, though `b` and `c` may be equal. Here lists with columns become comparisons.
//! - `a IN (1) AND a IN (2)` becomes false, though it is NULL if `a` is NULL, so that `NOT (…)` would be true. Here the values of
//!   such lists look different.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::{BinaryExpr, InList, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;
use super::opaque::hidden;

/// A longer list with columns stays one: comparisons nest.
const COMPARISONS_MAX: usize = 32;

/// Rewrites lists that the optimizer would merge wrongly.
#[derive(Debug)]
pub struct SeparateLists;

impl AnalyzerRule for SeparateLists {
    fn name(&self) -> &str {
        "separate_lists"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut numbered = 0;
        let plan = rewritten(plan, |expr, _| Ok(without_null(expr)))?;
        let plan = plan.transform_up_with_subqueries(|node| separated(node, &mut numbered))?;
        Ok(plan.data)
    }
}

fn without_null(expr: Expr) -> Transformed<Expr> {
    let Expr::InList(InList { expr, list, negated }) = expr else {
        return Transformed::no(expr);
    };
    let before = list.len();
    let list: Vec<Expr> = list.into_iter().filter(|value| !is_null(value)).collect();
    let (has_null, is_empty) = (list.len() < before, list.is_empty());
    let rest = without_columns(InList { expr, list, negated });
    let null = || Expr::Literal(ScalarValue::Boolean(None), None);
    match (has_null, is_empty, negated) {
        (false, _, _) => rest,
        (true, true, _) => Transformed::yes(null()),
        (true, false, true) => Transformed::yes(rest.data.and(null())),
        (true, false, false) => Transformed::yes(rest.data.or(null())),
    }
}

/// Whether a value of a list differs between rows.
fn has_columns(value: &Expr) -> bool {
    value.any_column_refs() || value.contains_outer()
}

/// `a IN (b, 1)` as `a = b OR a = 1`.
fn without_columns(list: InList) -> Transformed<Expr> {
    let is_long = list.list.len() > COMPARISONS_MAX || list.expr.is_volatile();
    if is_long || !list.list.iter().any(has_columns) {
        return Transformed::no(Expr::InList(list));
    }
    let InList { expr, list, negated } = list;
    let comparisons = list.into_iter().map(|value| match negated {
        true => expr.as_ref().clone().not_eq(value),
        false => expr.as_ref().clone().eq(value),
    });
    let combined = comparisons.reduce(|all, next| match negated {
        true => all.and(next),
        false => all.or(next),
    });
    match combined {
        Some(combined) => Transformed::yes(combined),
        None => Transformed::no(Expr::InList(InList {
            expr,
            list: Vec::new(),
            negated,
        })),
    }
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

/// Lets the values of lists look different where a wrong merge would change the result.
fn separated(node: LogicalPlan, numbered: &mut usize) -> Result<Transformed<LogicalPlan>> {
    let context = match node {
        LogicalPlan::Filter(_) | LogicalPlan::Join(_) => ListContext::Filter,
        _ => ListContext::Value,
    };
    let names = NamePreserver::new(&node);
    let separated = node.map_expressions(|expr| {
        let mut values = Vec::new();
        collect(&expr, context, &mut values)?;
        let is_repeated = |value: &Expr| values.iter().filter(|known| *known == uncast(value)).nth(1).is_some();
        if !values.iter().any(is_repeated) {
            return Ok(Transformed::no(expr));
        }
        let name = names.save(&expr);
        let separated = expr.transform_up(|part| {
            Ok(match part {
                Expr::InList(mut list) if is_repeated(list.expr.as_ref()) => {
                    number(&mut list.expr, numbered);
                    Transformed::yes(Expr::InList(list))
                }
                equality if compared(&equality).is_some_and(is_repeated) => {
                    Transformed::yes(with_number(equality, numbered))
                }
                Expr::ScalarFunction(mut call) if looked_for(&call).is_some_and(is_repeated) => {
                    if let Some(value) = call.args.last_mut() {
                        number(value, numbered);
                    }
                    Transformed::yes(Expr::ScalarFunction(call))
                }
                other => Transformed::no(other),
            })
        })?;
        Ok(separated.update_data(|expr| name.restore(expr)))
    })?;
    match separated.transformed {
        true => Ok(Transformed::yes(separated.data.recompute_schema()?)),
        false => Ok(separated),
    }
}

/// What a wrong NULL would change.
#[derive(Clone, Copy, PartialEq)]
enum ListContext {
    /// Nothing: a filter leaves out what is NULL as well as what is false.
    Filter,
    /// Beside OR, a `NOT IN` that is true and not NULL.
    FilterOr,
    Value,
}

/// Collects the values of lists that must not be merged.
fn collect(expr: &Expr, context: ListContext, values: &mut Vec<Expr>) -> Result<()> {
    let context = match expr {
        Expr::BinaryExpr(BinaryExpr { op: Operator::And, .. }) => context,
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Or,
            right,
        }) => match context {
            ListContext::Value => {
                let sides = [left.as_ref(), right.as_ref()];
                values.extend(sides.into_iter().filter_map(compared).map(uncast).cloned());
                ListContext::Value
            }
            _ => ListContext::FilterOr,
        },
        Expr::InList(list) => {
            let is_wrong = match context {
                ListContext::Filter => false,
                ListContext::FilterOr => list.negated,
                ListContext::Value => true,
            };
            if is_wrong || list.list.iter().any(has_columns) {
                values.push(uncast(&list.expr).clone());
            }
            ListContext::Value
        }
        Expr::ScalarFunction(call) if context == ListContext::Value => {
            values.extend(looked_for(call).map(uncast).cloned());
            ListContext::Value
        }
        _ => ListContext::Value,
    };
    expr.apply_children(|part| {
        collect(part, context, values)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// What is looked for in a constant list.
fn looked_for(call: &ScalarFunction) -> Option<&Expr> {
    match call.args.as_slice() {
        [list, value] if call.name() == "array_has" && !has_columns(list) => Some(value),
        _ => None,
    }
}

/// The column that is equal to a constant.
fn compared(expr: &Expr) -> Option<&Expr> {
    let Expr::BinaryExpr(BinaryExpr {
        left,
        op: Operator::Eq,
        right,
    }) = expr
    else {
        return None;
    };
    match (uncast(left), uncast(right)) {
        (Expr::Column(_), _) if !has_columns(right) => Some(left),
        (_, Expr::Column(_)) if !has_columns(left) => Some(right),
        _ => None,
    }
}

/// The optimizer compares a value without its casts.
fn uncast(value: &Expr) -> &Expr {
    match value {
        Expr::Cast(cast) => uncast(&cast.expr),
        value => value,
    }
}

fn with_number(equality: Expr, numbered: &mut usize) -> Expr {
    let Expr::BinaryExpr(mut equality) = equality else {
        return equality;
    };
    match uncast(&equality.left) {
        Expr::Column(_) => number(&mut equality.left, numbered),
        _ => number(&mut equality.right, numbered),
    }
    Expr::BinaryExpr(equality)
}

/// Gives a value another look.
fn number(value: &mut Expr, numbered: &mut usize) {
    *numbered += 1;
    *value = hidden(std::mem::take(value), *numbered);
}
