//! Rewrites the expressions of a plan. Columns keep their names.

use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

/// Rewrites each part of each expression, innermost first. `part` gets the schema of the inputs of the node.
pub fn rewritten(
    plan: LogicalPlan,
    part: impl Fn(Expr, &DFSchema) -> Result<Transformed<Expr>>,
) -> Result<LogicalPlan> {
    let all = plan.transform_up_with_subqueries(|node| {
        let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
        let rewritten = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let rewritten = expr.transform_up(|inner| part(inner, &schema))?;
            Ok(rewritten.update_data(|expr| name.restore(expr)))
        })?;
        match rewritten.transformed {
            true => Ok(Transformed::yes(rewritten.data.recompute_schema()?)),
            false => Ok(rewritten),
        }
    });
    Ok(all?.data)
}
