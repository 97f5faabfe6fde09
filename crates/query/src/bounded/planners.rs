//! Bounds the functions that expression planners substitute for syntax such as `[a, b]`, `{a: b}`, `a || b` or
//! `(a, b)`. Each step of a nested structure doubles its type, so it must be stopped before there is a plan to check.

use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DFSchema, Result, TableReference};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr, RawDictionaryExpr, RawFieldAccessExpr, RawWindowExpr,
};

use super::rewrite;

/// Wraps planners so that they return bounded functions.
pub fn bounded(planners: Vec<Arc<dyn ExprPlanner>>) -> Vec<Arc<dyn ExprPlanner>> {
    let one = |planner| Arc::new(BoundedExprPlanner(planner)) as Arc<dyn ExprPlanner>;
    planners.into_iter().map(one).collect()
}

#[derive(Debug)]
struct BoundedExprPlanner(Arc<dyn ExprPlanner>);

/// Bounds the new call and calls that the planner put into its arguments; the other arguments are bounded already.
fn bound<T>(planned: PlannerResult<T>) -> Result<PlannerResult<T>> {
    match planned {
        PlannerResult::Planned(expr) => {
            let with_arguments = expr
                .map_children(|part| Ok(Transformed::yes(rewrite::call(part)?)))?
                .data;
            Ok(PlannerResult::Planned(rewrite::call(with_arguments)?))
        }
        original => Ok(original),
    }
}

type Exprs = Result<PlannerResult<Vec<Expr>>>;

#[warn(clippy::missing_trait_methods)]
impl ExprPlanner for BoundedExprPlanner {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        bound(self.0.plan_binary_op(expr, schema)?)
    }

    fn plan_field_access(
        &self,
        expr: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        bound(self.0.plan_field_access(expr, schema)?)
    }

    fn plan_array_literal(&self, exprs: Vec<Expr>, schema: &DFSchema) -> Exprs {
        bound(self.0.plan_array_literal(exprs, schema)?)
    }

    fn plan_position(&self, args: Vec<Expr>) -> Exprs {
        bound(self.0.plan_position(args)?)
    }

    fn plan_dictionary_literal(
        &self,
        expr: RawDictionaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawDictionaryExpr>> {
        bound(self.0.plan_dictionary_literal(expr, schema)?)
    }

    fn plan_extract(&self, args: Vec<Expr>) -> Exprs {
        bound(self.0.plan_extract(args)?)
    }

    fn plan_substring(&self, args: Vec<Expr>) -> Exprs {
        bound(self.0.plan_substring(args)?)
    }

    fn plan_struct_literal(&self, args: Vec<Expr>, is_named: bool) -> Exprs {
        bound(self.0.plan_struct_literal(args, is_named)?)
    }

    fn plan_overlay(&self, args: Vec<Expr>) -> Exprs {
        bound(self.0.plan_overlay(args)?)
    }

    fn plan_make_map(&self, args: Vec<Expr>) -> Exprs {
        bound(self.0.plan_make_map(args)?)
    }

    fn plan_compound_identifier(
        &self,
        field: &Field,
        qualifier: Option<&TableReference>,
        nested_names: &[String],
    ) -> Exprs {
        bound(self.0.plan_compound_identifier(field, qualifier, nested_names)?)
    }

    fn plan_aggregate(&self, expr: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        self.0.plan_aggregate(expr)
    }

    fn plan_window(&self, expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        self.0.plan_window(expr)
    }
}
