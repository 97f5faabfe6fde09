//! The logical pass that leaves only bounded functions in a plan. What no bounded function can limit is refused by
//! name: fixed-width types, plans and types that grow with each level of nesting, compiled patterns.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode as _, TreeNodeRecursion};
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::{
    AggregateFunction, BinaryExpr, Like, ScalarFunction, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Distinct, Expr, ExprSchemable as _, LogicalPlan, Operator, ScalarUDF, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition,
};

use super::budget::Budget;
use super::measure::{TYPE_PARTS_MAX, scalar_bytes, type_size};
use super::{concatenation, conversion, function_list, like, scalar, substitution, windows};
use crate::error::QueryError;
use crate::exact::similar;

/// Limit for plan nodes. A common table expression counts once for each place that names it.
const NODES_MAX: usize = 4_096;
/// Columns of one node: each self-join of a query doubles them.
const COLUMNS_MAX: usize = 10_000;
/// Sort keys. Planning time grows with their square.
const SORTED_BY_MAX: usize = 256;
/// Bytes that a value takes by its type alone.
const FIXED_BYTES_MAX: usize = 4 << 10;
/// Centroids of a sketch, which is allocated for each group.
const CENTROIDS_MAX: u64 = 10_000;

/// What a plan evaluates for each row.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpressionCost {
    pub count: usize,
    /// Bytes of all constants, each of which may be repeated for each row.
    pub constant_bytes: usize,
}

/// Replaces the functions of a plan by bounded ones.
pub fn bound(plan: LogicalPlan, budget: &Budget) -> Result<LogicalPlan> {
    check_size(&plan)?;
    substitution::check(&plan)?;
    let bounded = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        // Nodes with window functions have one input.
        let schema = node
            .inputs()
            .first()
            .map_or_else(|| Arc::new(DFSchema::empty()), |input| input.schema().clone());
        let rewritten = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let bounded = expr.transform_up(|part| bound_expr(part, &schema, budget))?;
            Ok(bounded.update_data(|expr| name.restore(expr)))
        })?;
        match rewritten.transformed {
            true => Ok(Transformed::yes(rewritten.data.recompute_schema()?)),
            false => Ok(rewritten),
        }
    });
    Ok(bounded?.data)
}

/// Counts the expressions of an optimized plan, in which constants are already computed.
pub fn expressions(plan: &LogicalPlan, budget: &Budget) -> Result<ExpressionCost> {
    let mut all = ExpressionCost::default();
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                all.count += 1;
                if let Expr::Literal(value, _) = part {
                    all.constant_bytes = all.constant_bytes.saturating_add(scalar_bytes(value));
                }
                check_pattern(part, budget)?;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    Ok(all)
}

/// Replaces the functions of an expression by bounded ones.
pub fn functions(expr: Expr) -> Result<Expr> {
    Ok(expr.transform_up(|part| call(part).map(Transformed::yes))?.data)
}

/// Bounds a call; its arguments stay as they are.
pub fn call(expr: Expr) -> Result<Expr> {
    match expr {
        Expr::ScalarFunction(call) => bound_call(call),
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::StringConcat,
            right,
        }) => Ok(concatenation::call(*left, *right)),
        other => Ok(other),
    }
}

/// Bounds the call of a function that is on the list.
pub fn bounded_call(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(call) => {
            let func = scalar::bounded(&call.func).unwrap_or(call.func);
            Expr::ScalarFunction(ScalarFunction { func, ..call })
        }
        other => other,
    }
}

/// Checks the size before other code walks the plan, because duplicates can nest and grow exponentially.
fn check_size(plan: &LogicalPlan) -> Result<()> {
    let mut nodes = 0;
    plan.apply_with_subqueries(|node| {
        nodes += 1;
        if nodes > NODES_MAX {
            return refuse(format!(
                "the query has more than {NODES_MAX} steps, counting each use of a WITH table; split it into several \
                 queries"
            ));
        }
        let columns = node.schema().fields().len();
        if columns > COLUMNS_MAX {
            return refuse(format!(
                "a part of the query has {columns} columns, {COLUMNS_MAX} are allowed; name those you need"
            ));
        }
        let sorted_by = sorted_by(node);
        if sorted_by > SORTED_BY_MAX {
            return refuse(format!(
                "rows are sorted by {sorted_by} values, {SORTED_BY_MAX} are allowed; sort by those that tell rows apart"
            ));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn sorted_by(node: &LogicalPlan) -> usize {
    match node {
        LogicalPlan::Sort(sort) => sort.expr.len(),
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            distinct.on_expr.len() + distinct.sort_expr.as_ref().map_or(0, Vec::len)
        }
        LogicalPlan::Window(window) => {
            let of_one = |expr: &Expr| match expr {
                Expr::WindowFunction(call) => call.params.partition_by.len() + call.params.order_by.len(),
                _ => 0,
            };
            window.window_expr.iter().map(of_one).max().unwrap_or(0)
        }
        _ => 0,
    }
}

fn bound_expr(expr: Expr, schema: &DFSchema, budget: &Budget) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::ScalarFunction(call) => Transformed::yes(bound_call(call)?),
        Expr::HigherOrderFunction(call) => return not_here(call.func.name()),
        Expr::BinaryExpr(binary) => return bound_operator(binary, budget),
        Expr::AggregateFunction(call) => {
            check_aggregate(&call)?;
            bound_aggregate(call, budget)
        }
        Expr::WindowFunction(call) => Transformed::yes(bound_window(*call, schema, budget)?),
        Expr::Cast(cast) => {
            check_type(cast.field.data_type())?;
            bound_cast(Expr::Cast(cast.clone()), &cast.expr, schema)
        }
        Expr::TryCast(cast) => {
            check_type(cast.field.data_type())?;
            bound_cast(Expr::TryCast(cast.clone()), &cast.expr, schema)
        }
        Expr::Like(like) => {
            let pattern = literal(&like.pattern).cloned();
            let constant = pattern
                .as_ref()
                .map(|pattern| pattern.try_as_str().flatten().unwrap_or_default());
            Transformed::yes(like::bound(like, constant, budget)?)
        }
        Expr::SimilarTo(like) => {
            let pattern = literal(&like.pattern).cloned();
            let Some(pattern) = pattern else {
                return refuse("the pattern of SIMILAR TO must be a text in quotes".to_owned());
            };
            let comparison = similar::comparison(like, pattern.try_as_str().flatten())?;
            if let Expr::BinaryExpr(binary) = &comparison {
                check_constant_pattern("SIMILAR TO", &binary.right, budget)?;
            }
            Transformed::yes(comparison)
        }
        other => Transformed::no(other),
    })
}

/// Bounds a cast from a nested type: a list or structure becomes far longer as text, also while constants are computed,
/// and no optimizer rule needs such casts. Other casts are left to the optimizer and bounded later.
fn bound_cast(cast: Expr, value: &Expr, schema: &DFSchema) -> Transformed<Expr> {
    match value.get_type(schema).is_ok_and(|kind| kind.is_nested()) {
        true => conversion::bound_expr(cast, schema),
        false => Transformed::no(cast),
    }
}

fn bound_call(call: ScalarFunction) -> Result<Expr> {
    match scalar::bounded(&call.func) {
        Some(func) => Ok(Expr::ScalarFunction(ScalarFunction { func, ..call })),
        None => not_here(call.func.name()),
    }
}

fn bound_operator(binary: BinaryExpr, budget: &Budget) -> Result<Transformed<Expr>> {
    let BinaryExpr { left, op, right } = binary;
    match op {
        Operator::StringConcat => return Ok(Transformed::yes(concatenation::call(*left, *right))),
        Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch => {
            check_constant_pattern(&op.to_string(), &right, budget)?;
        }
        _ => {}
    }
    Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })))
}

/// The operators compile the pattern anew for each row; the functions cache it.
fn check_constant_pattern(operator: &str, pattern: &Expr, budget: &Budget) -> Result<()> {
    if let Some(text) = literal(pattern).and_then(|value| value.try_as_str()).flatten() {
        return budget.check_pattern(operator, text);
    }
    match pattern.any_column_refs() || pattern.is_volatile() {
        true => refuse(format!(
            "the pattern of {operator} must be a constant here; use regexp_like(text, pattern) for patterns of a column"
        )),
        false => Ok(()),
    }
}

/// Checks a pattern that was computed during planning.
fn check_pattern(expr: &Expr, budget: &Budget) -> Result<()> {
    let pattern = match expr {
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::RegexMatch | Operator::RegexIMatch | Operator::RegexNotMatch | Operator::RegexNotIMatch,
            right,
            ..
        }) => right,
        Expr::Like(Like { pattern, .. }) => {
            let pattern = literal(pattern).and_then(|pattern| pattern.try_as_str()).flatten();
            return pattern.map_or(Ok(()), |pattern| budget.check_like(pattern));
        }
        _ => return Ok(()),
    };
    match literal(pattern) {
        Some(value) => match value.try_as_str().flatten() {
            Some(text) => budget.check_pattern("~", text),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

fn check_aggregate(call: &AggregateFunction) -> Result<()> {
    let name = call.func.name();
    if !function_list::AGGREGATE.contains(&name) {
        return not_here(name);
    }
    let centroids = match name {
        "approx_percentile_cont" => call.params.args.get(2),
        "approx_percentile_cont_with_weight" => call.params.args.get(3),
        _ => None,
    };
    let Some(centroids) = centroids else { return Ok(()) };
    let number = literal(centroids).and_then(|value| value.cast_to(&DataType::UInt64).ok());
    match number {
        Some(ScalarValue::UInt64(Some(number))) if number <= CENTROIDS_MAX => Ok(()),
        _ => refuse(format!(
            "{name}: the number of centroids must be a number up to {CENTROIDS_MAX}, not {centroids}"
        )),
    }
}

fn bound_aggregate(mut call: AggregateFunction, budget: &Budget) -> Transformed<Expr> {
    let is_growing = call.func.name() == windows::STRING_AGG;
    if is_growing {
        call.func = windows::growing(&call.func, budget);
    }
    Transformed::new_transformed(Expr::AggregateFunction(call), is_growing)
}

fn bound_window(call: WindowFunction, schema: &DFSchema, budget: &Budget) -> Result<Expr> {
    let WindowFunction { fun, params } = call;
    budget.needs_around(rows_around(&fun, &params));
    let gives_values = !Expr::from(WindowFunction {
        fun: fun.clone(),
        params: params.clone(),
    })
    .get_type(schema)
    .is_ok_and(|kind| kind.is_primitive() || kind == DataType::Boolean);
    let fun = match fun {
        WindowFunctionDefinition::AggregateUDF(function) => {
            if !function_list::AGGREGATE.contains(&function.name()) {
                return not_here(function.name());
            }
            match gives_values {
                true => WindowFunctionDefinition::AggregateUDF(windows::aggregate(&function, budget)),
                false => WindowFunctionDefinition::AggregateUDF(function),
            }
        }
        WindowFunctionDefinition::WindowUDF(function) => {
            if !function_list::WINDOW.contains(&function.name()) {
                return not_here(function.name());
            }
            let look_around = windows::LookAround::of(&function, &params);
            match gives_values || look_around != windows::LookAround::Known {
                true => WindowFunctionDefinition::WindowUDF(windows::function(&function, budget, look_around)),
                false => WindowFunctionDefinition::WindowUDF(function),
            }
        }
    };
    Ok(Expr::from(WindowFunction { fun, params }))
}

/// How many rows before or after the current one a function reads, if its frame is a number of rows.
fn rows_around(function: &WindowFunctionDefinition, params: &WindowFunctionParams) -> usize {
    let number = |value: &ScalarValue| match value.cast_to(&DataType::Int64) {
        Ok(ScalarValue::Int64(Some(rows))) => usize::try_from(rows.unsigned_abs()).unwrap_or(usize::MAX),
        _ => 0,
    };
    let offset = match function.name() {
        "lag" | "lead" => params
            .args
            .get(1)
            .map_or(1, |offset| literal(offset).map_or(usize::MAX, number)),
        _ => 0,
    };
    let bound = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(rows) | WindowFrameBound::Following(rows) => number(rows),
        WindowFrameBound::CurrentRow => 0,
    };
    let frame = &params.window_frame;
    match frame.units {
        WindowFrameUnits::Rows => offset.max(bound(&frame.start_bound)).max(bound(&frame.end_bound)),
        // The number of rows in a range of values is unknown.
        WindowFrameUnits::Range | WindowFrameUnits::Groups => offset,
    }
}

/// Checks that a type, and the size of its values, are bounded.
pub fn check_type(kind: &DataType) -> Result<()> {
    let size = type_size(kind);
    if size.parts > TYPE_PARTS_MAX {
        return refuse(format!(
            "a type of more than {TYPE_PARTS_MAX} nested parts is not possible here; nest less"
        ));
    }
    if size.bytes > FIXED_BYTES_MAX {
        return refuse(format!(
            "a type whose values have {} bytes each is not possible here, {FIXED_BYTES_MAX} are allowed; use one of variable length",
            size.bytes
        ));
    }
    Ok(())
}

/// Returns the constant of an expression, also below the casts of typed literals.
fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        Expr::Cast(cast) => literal(&cast.expr),
        _ => None,
    }
}

fn not_here<T>(name: &str) -> Result<T> {
    plan_err!("the function {name} is not available here")
}

fn refuse<T>(message: String) -> Result<T> {
    Err(DataFusionError::External(Box::new(QueryError::too_complex(message))))
}

/// Keeps the functions that can be bounded, and bounds them.
pub fn scalar_functions(all: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    all.iter().filter_map(scalar::bounded).collect()
}
