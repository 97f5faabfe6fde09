//! Which filters may move towards the scans of a physical plan.
//!
//! The library binds the columns of a computed key (`ORDER BY a + b LIMIT 3`) to wrong places of the scan, which is an error,
//! or another column of the same type. The filter of `max(a), max(b + c)` knows `a` alone and drops rows with the largest
//! `b + c`, so aggregates get none. Where it moves a filter through a projection it finds columns by their names alone, so
//! that `x.g IS NULL` above an outer join would filter `y.g`.

use std::collections::HashSet;

use datafusion::common::config::OptimizerOptions;
use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Expr, Join, LogicalPlan};

/// The optimizer rules that move filters; the second moves those that operators make while they run.
const MOVING_FILTERS: &str = "FilterPushdown";

/// The session for an optimized plan, without the filters that would be wrong.
pub fn restricted(mut state: SessionState, plan: &LogicalPlan) -> Result<SessionState> {
    restrict(&mut state.config_mut().options_mut().optimizer, plan)?;
    if !filters_outer_join(plan)? {
        return Ok(state);
    }
    let rules = state.physical_optimizers().iter();
    let rules = rules
        .filter(|rule| !rule.name().starts_with(MOVING_FILTERS))
        .cloned()
        .collect();
    let builder = SessionStateBuilder::new_from_existing(state.clone());
    Ok(builder.with_physical_optimizer_rules(rules).build())
}

/// Whether a filter stands above an outer join whose sides have a column name in common. Filters above other joins are below
/// them by now.
fn filters_outer_join(plan: &LogicalPlan) -> Result<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        if matches!(node, LogicalPlan::Filter(_)) {
            node.apply(|below| {
                if let LogicalPlan::Join(join) = below {
                    let is_outer = matches!(join.join_type, JoinType::Left | JoinType::Right | JoinType::Full);
                    found |= is_outer && shares_names(join);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(found)
}

fn shares_names(join: &Join) -> bool {
    let right: HashSet<&String> = join.right.schema().fields().iter().map(|field| field.name()).collect();
    join.left
        .schema()
        .fields()
        .iter()
        .any(|field| right.contains(field.name()))
}

fn restrict(options: &mut OptimizerOptions, plan: &LogicalPlan) -> Result<()> {
    options.enable_aggregate_dynamic_filter_pushdown = false;
    let mut computed = HashSet::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Projection(projection) = node {
            for (expr, field) in projection.expr.iter().zip(projection.schema.fields()) {
                if !is_column(expr) {
                    computed.insert(field.name().clone());
                }
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let is_plain = |key: &Expr| match key {
        Expr::Column(column) => !computed.contains(&column.name),
        _ => false,
    };
    let (mut joins, mut are_ambiguous) = (0, false);
    plan.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Sort(sort) => {
                options.enable_topk_dynamic_filter_pushdown &= sort.expr.iter().all(|key| is_plain(&key.expr));
            }
            LogicalPlan::Join(join) => {
                options.enable_join_dynamic_filter_pushdown &=
                    join.on.iter().all(|(left, right)| is_plain(left) && is_plain(right));
                joins += 1;
                are_ambiguous |= shares_names(join);
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if are_ambiguous {
        options.enable_topk_dynamic_filter_pushdown = false;
        options.enable_join_dynamic_filter_pushdown &= joins == 1;
    }
    Ok(())
}

fn is_column(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_column(&alias.expr),
        expr => matches!(expr, Expr::Column(_)),
    }
}
