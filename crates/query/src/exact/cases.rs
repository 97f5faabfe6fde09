//! CASE that may be NULL. The library's logical plan knows of some that they never are (`CASE WHEN k >= id THEN k ELSE 0 END`: a
//! comparison with NULL is not true), and its physical plan does not. Its aggregation refuses a query for that
//! (`Physical input schema should be the same`). So both do not know.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{Expr, ExprSchemable as _, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;
use super::opaque::hidden;

/// Hides such expressions.
#[derive(Debug)]
pub struct NullableCases;

impl AnalyzerRule for NullableCases {
    fn name(&self) -> &str {
        "nullable_cases"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, |expr, schema| {
            Ok(match is_never_null_by_its_conditions(&expr, schema)? {
                true => Transformed::yes(hidden(expr, 0)),
                false => Transformed::no(expr),
            })
        })
    }
}

fn is_never_null_by_its_conditions(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let Expr::Case(case) = expr else { return Ok(false) };
    let may_be_null = |value: &Expr| value.nullable(schema);
    let mut results = case.when_then_expr.iter().map(|(_, result)| may_be_null(result));
    Ok(results.any(|is_nullable| is_nullable.unwrap_or(true)) && !expr.nullable(schema)?)
}
