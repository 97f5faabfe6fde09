//! Filters whose columns the library would mix up. Its `ProjectionPushdown` lets a filter leave out columns itself, and later
//! reads those of a projection above it as columns of the filter's input (`FilterExec::try_swapping_with_projection`). That is
//! an error, or, where two joined tables have a column of one name, the other table's values. So filters give all columns before
//! that rule runs, and a projection above them selects.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::ProjectionExec;

type PhysicalRule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// The library's rules, with the one of this module before each that would mix up columns.
pub fn physical_rules() -> Vec<PhysicalRule> {
    let rules = PhysicalOptimizer::new().rules.into_iter();
    let rules = rules.map(|rule| match rule.name() == "ProjectionPushdown" {
        true => vec![Arc::new(WholeFilters) as PhysicalRule, rule],
        false => vec![rule],
    });
    rules.flatten().collect()
}

#[derive(Debug)]
struct WholeFilters;

impl PhysicalOptimizerRule for WholeFilters {
    fn name(&self) -> &str {
        "WholeFilters"
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(plan.transform_up(whole)?.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Moves the projection of a filter out, and into the projection above it.
fn whole(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>()
        && let Some(kept) = filter.projection()
    {
        let input = filter.input().schema();
        let columns = kept.iter().map(|index| {
            let name = input.field(*index).name();
            ProjectionExpr::new(Arc::new(Column::new(name, *index)), name.clone())
        });
        let columns: Vec<ProjectionExpr> = columns.collect();
        let all = FilterExecBuilder::from(filter).apply_projection(None)?.build()?;
        return Ok(Transformed::yes(Arc::new(ProjectionExec::try_new(
            columns,
            Arc::new(all),
        )?)));
    }
    let Some(above) = plan.downcast_ref::<ProjectionExec>() else {
        return Ok(Transformed::no(plan));
    };
    match above.input().downcast_ref::<ProjectionExec>() {
        Some(below) if below.input().is::<FilterExec>() => joined(above, below),
        _ => Ok(Transformed::no(plan)),
    }
}

/// Joins two projections if the lower one only selects columns.
fn joined(above: &ProjectionExec, below: &ProjectionExec) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let selected: Option<Vec<&Column>> = below.expr().iter().map(|one| one.expr.downcast_ref()).collect();
    let Some(selected) = selected else {
        return Ok(Transformed::no(Arc::new(above.clone())));
    };
    let exprs = above.expr().iter().map(|one| {
        let expr = one
            .expr
            .clone()
            .transform_up(|part| match part.downcast_ref::<Column>() {
                None => Ok(Transformed::no(part)),
                Some(column) => match selected.get(column.index()) {
                    Some(selected) => Ok(Transformed::yes(Arc::new((*selected).clone()) as Arc<dyn PhysicalExpr>)),
                    None => internal_err!("{column} is no column of {}", below.schema()),
                },
            })?;
        Ok(ProjectionExpr::new(expr.data, one.alias.clone()))
    });
    let exprs: Vec<ProjectionExpr> = exprs.collect::<Result<_>>()?;
    let joined = ProjectionExec::try_new_with_schema_metadata(exprs, below.input().clone(), above.schema().as_ref())?;
    Ok(Transformed::yes(Arc::new(joined)))
}
