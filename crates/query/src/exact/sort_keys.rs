//! Keys of sorts that are computed in columns of their own.
//!
//! The library derives how rows are sorted from the ranges of the parts of each key (`update_properties` of its
//! `EquivalenceProperties`). Where the range of a part is unknown this fails, as for `abs(i % 7)` or `length(g) > 3`. Then sorted
//! rows count as unsorted, and its `SanityCheckPlan` refuses the query. A column has no parts.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{Column, DFSchemaRef, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::sort_properties::ExprProperties;
use datafusion::logical_expr::{Aggregate, Expr, LogicalPlan, Operator, Projection, Window};
use datafusion::physical_expr::expressions::{BinaryExpr, Column as PhysicalColumn};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};

use super::output::unused;

/// Moves keys that the library cannot follow into a projection below their sort, window or aggregation. Expects an optimized plan.
pub fn in_columns(plan: LogicalPlan, state: &SessionState) -> Result<LogicalPlan> {
    Ok(plan
        .transform_up_with_subqueries(|node| with_columns(node, state))?
        .data)
}

fn with_columns(node: LogicalPlan, state: &SessionState) -> Result<Transformed<LogicalPlan>> {
    let schema = node.schema().clone();
    match node {
        LogicalPlan::Sort(mut sort) => {
            let mut columns = KeyColumns::of(sort.input.clone(), state);
            sort.expr.iter_mut().for_each(|key| columns.replace(&mut key.expr));
            match columns.projected()? {
                None => Ok(Transformed::no(LogicalPlan::Sort(sort))),
                Some(input) => {
                    sort.input = input;
                    Ok(Transformed::yes(selected(LogicalPlan::Sort(sort), &schema)?))
                }
            }
        }
        LogicalPlan::Window(mut window) => {
            let mut columns = KeyColumns::of(window.input.clone(), state);
            replace_in(&mut window.window_expr, &mut columns)?;
            match columns.projected()? {
                None => Ok(Transformed::no(LogicalPlan::Window(window))),
                Some(input) => {
                    let window = Window::try_new(window.window_expr, input)?;
                    Ok(Transformed::yes(selected(LogicalPlan::Window(window), &schema)?))
                }
            }
        }
        LogicalPlan::Aggregate(mut aggregate) => {
            let mut columns = KeyColumns::of(aggregate.input.clone(), state);
            replace_in(&mut aggregate.aggr_expr, &mut columns)?;
            Ok(match columns.projected()? {
                None => Transformed::no(LogicalPlan::Aggregate(aggregate)),
                Some(input) => {
                    let aggregate = Aggregate::try_new(input, aggregate.group_expr, aggregate.aggr_expr)?;
                    Transformed::yes(LogicalPlan::Aggregate(aggregate))
                }
            })
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Replaces the keys of calls. Their columns keep their names.
fn replace_in(calls: &mut [Expr], columns: &mut KeyColumns<'_>) -> Result<()> {
    for call in calls {
        let name = NamePreserver::new_for_projection().save(call);
        let replaced = std::mem::take(call).transform_up(|part| {
            Ok(match part {
                Expr::WindowFunction(mut call) => {
                    let WindowFunction { params, .. } = call.as_mut();
                    params.partition_by.iter_mut().for_each(|key| columns.replace(key));
                    params
                        .order_by
                        .iter_mut()
                        .for_each(|key| columns.replace(&mut key.expr));
                    Transformed::yes(Expr::WindowFunction(call))
                }
                Expr::AggregateFunction(mut call) if is_sorted(&call) => {
                    call.params
                        .order_by
                        .iter_mut()
                        .for_each(|key| columns.replace(&mut key.expr));
                    Transformed::yes(Expr::AggregateFunction(call))
                }
                other => Transformed::no(other),
            })
        })?;
        *call = name.restore(replaced.data);
    }
    Ok(())
}

/// Whether the function wants sorted rows, and not an order among its own values.
fn is_sorted(call: &AggregateFunction) -> bool {
    !call.func.supports_within_group_clause()
}

/// The columns of a plan.
fn selected(plan: LogicalPlan, columns: &DFSchemaRef) -> Result<LogicalPlan> {
    let columns = columns.iter().map(|column| Expr::Column(Column::from(column)));
    Ok(LogicalPlan::Projection(Projection::try_new(
        columns.collect(),
        Arc::new(plan),
    )?))
}

/// The columns for the keys of a node.
struct KeyColumns<'a> {
    input: Arc<LogicalPlan>,
    state: &'a SessionState,
    keys: Vec<(Expr, String)>,
}

impl<'a> KeyColumns<'a> {
    fn of(input: Arc<LogicalPlan>, state: &'a SessionState) -> KeyColumns<'a> {
        KeyColumns {
            input,
            state,
            keys: Vec::new(),
        }
    }

    /// Puts a column in the place of a key that the library cannot follow.
    fn replace(&mut self, key: &mut Expr) {
        let known = self
            .keys
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, name)| name.clone());
        let name = match known {
            Some(name) => name,
            None if self.is_followed(key) => return,
            None => {
                let fields = self.input.schema().fields().iter().map(|field| field.name().clone());
                let mut taken: HashSet<String> = fields.chain(self.keys.iter().map(|(_, name)| name.clone())).collect();
                let name = unused("sort key", &mut taken);
                self.keys.push((key.clone(), name.clone()));
                name
            }
        };
        *key = Expr::Column(Column::new_unqualified(name));
    }

    fn is_followed(&self, key: &Expr) -> bool {
        if let Expr::Column(_) = key {
            return true;
        }
        let (schema, props) = (self.input.schema(), self.state.execution_props());
        match create_physical_expr(key, schema, props, &PhysicalPlanningContext::default()) {
            Ok(key) => is_followed(&key, schema.as_arrow()),
            // The planner will say why.
            Err(_) => true,
        }
    }

    /// The input with a column for each replaced key.
    fn projected(self) -> Result<Option<Arc<LogicalPlan>>> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let columns = self
            .input
            .schema()
            .iter()
            .map(|column| Expr::Column(Column::from(column)));
        let mut columns: Vec<Expr> = columns.collect();
        columns.extend(self.keys.into_iter().map(|(key, name)| key.alias(name)));
        let projection = Projection::try_new(columns, self.input)?;
        Ok(Some(Arc::new(LogicalPlan::Projection(projection))))
    }
}

/// Whether the library can derive how rows are sorted. It may put an expression of unknown range in the place of a column that
/// is equal to it by a filter, and fails if those of the sides of a comparison differ.
fn is_followed(key: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    !compares(key) && properties(key, Some(schema)).is_ok() && properties(key, None).is_ok()
}

fn compares(expr: &Arc<dyn PhysicalExpr>) -> bool {
    use Operator::{And, Gt, GtEq, Lt, LtEq, Or};
    let is_comparison = |binary: &BinaryExpr| matches!(binary.op(), Gt | GtEq | Lt | LtEq | And | Or);
    expr.downcast_ref().is_some_and(is_comparison) || expr.children().into_iter().any(compares)
}

/// What the library derives of a key before it knows how its columns are sorted.
fn properties(expr: &Arc<dyn PhysicalExpr>, schema: Option<&Schema>) -> Result<ExprProperties> {
    if expr.is::<PhysicalColumn>() {
        let mut known = ExprProperties::new_unknown();
        known.strictly_order_preserving = true;
        if let Some(schema) = schema {
            known.range = Interval::make_unbounded(&expr.data_type(schema)?)?;
        }
        return Ok(known);
    }
    let parts = expr.children().into_iter().map(|part| properties(part, schema));
    expr.get_properties(&parts.collect::<Result<Vec<_>>>()?)
}
