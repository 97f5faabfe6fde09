//! Lists with NULL: `a IN (1, NULL)` is `a IN (1) OR NULL`. The library merges `a IN (2, 3) AND a NOT IN (1, NULL)` into
//! `a IN (2, 3)` (its `inlist_except`), though no row fulfils the second condition.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;

/// Takes NULL out of lists.
#[derive(Debug)]
pub struct NullsInLists;

impl AnalyzerRule for NullsInLists {
    fn name(&self) -> &str {
        "nulls_in_lists"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, |expr, _| Ok(without_null(expr)))
    }
}

fn without_null(expr: Expr) -> Transformed<Expr> {
    let Expr::InList(list) = expr else {
        return Transformed::no(expr);
    };
    let InList { expr, list, negated } = list;
    let before = list.len();
    let list: Vec<Expr> = list.into_iter().filter(|value| !is_null(value)).collect();
    let (has_null, is_empty) = (list.len() < before, list.is_empty());
    let rest = Expr::InList(InList { expr, list, negated });
    let null = || Expr::Literal(ScalarValue::Boolean(None), None);
    match (has_null, is_empty, negated) {
        (false, _, _) => Transformed::no(rest),
        (true, true, _) => Transformed::yes(null()),
        (true, false, true) => Transformed::yes(rest.and(null())),
        (true, false, false) => Transformed::yes(rest.or(null())),
    }
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}
