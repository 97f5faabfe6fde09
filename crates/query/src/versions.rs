//! `at_version('logs', 12)` and `at_time('logs', '2026-11-21T10:00:00Z')` in place of a table: an older version of the
//! table, without uncommitted rows.
//!
//! Before planning, a call is replaced by the name of a table that only this query knows, because loading a version is
//! asynchronous and the planner is not.

use std::ops::ControlFlow;

use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DFSchema, ParamValues, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::sql::sqlparser::ast::{
    Expr as SqlExpr, FunctionArg, FunctionArgExpr, Ident, ObjectName, Statement, TableAlias, TableFactor, Value,
    VisitMut as _, VisitorMut,
};
use std::sync::Arc;

use crate::bounded::rewrite;
use crate::catalog::{QueryTables, VersionSelector};
use crate::error::QueryError;

const AT_VERSION: &str = "at_version";
const AT_TIME: &str = "at_time";

/// Replaces the calls in a statement and opens their tables.
pub async fn open(
    statement: &mut Statement,
    tables: &QueryTables,
    state: &SessionState,
    params: Option<&ParamValues>,
) -> Result<(), QueryError> {
    let mut calls = VersionCallVisitor::default();
    if let ControlFlow::Break(error) = statement.visit(&mut calls) {
        return Err(error);
    }
    for call in calls.found {
        let which = which(&call, state, params)?;
        tables.add_version(&call.name, &call.table, which).await?;
    }
    Ok(())
}

struct VersionCall {
    function: &'static str,
    /// The call as it was written; it becomes the table name in the statement.
    name: String,
    table: String,
    at: SqlExpr,
}

#[derive(Default)]
struct VersionCallVisitor {
    found: Vec<VersionCall>,
}

impl VisitorMut for VersionCallVisitor {
    type Break = QueryError;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<QueryError> {
        let TableFactor::Table { name, alias, args, .. } = factor else {
            return ControlFlow::Continue(());
        };
        let (Some(called), Some(given)) = (function(name), &args) else {
            return ControlFlow::Continue(());
        };
        let given: Vec<&SqlExpr> = given.args.iter().filter_map(plain).collect();
        let usage = || {
            QueryError::plan(match called {
                AT_TIME => "at_time takes the name of a table and a time: at_time('logs', '2026-11-21T10:00:00Z')",
                _ => "at_version takes the name of a table and a version: at_version('logs', 12)",
            })
        };
        let [table, at] = given[..] else {
            return ControlFlow::Break(usage());
        };
        let Some(table) = text(table) else {
            return ControlFlow::Break(usage());
        };
        let written = format!("{called}('{table}', {at})");
        self.found.push(VersionCall {
            function: called,
            name: written.clone(),
            table,
            at: at.clone(),
        });
        // As with other table functions, columns can be qualified with the function name.
        let new_alias = alias.take().unwrap_or_else(|| TableAlias {
            explicit: true,
            name: Ident::new(called),
            columns: Vec::new(),
            at: None,
        });
        *alias = Some(new_alias);
        *name = ObjectName::from(vec![Ident::with_quote('"', written)]);
        *args = None;
        ControlFlow::Continue(())
    }
}

fn function(name: &ObjectName) -> Option<&'static str> {
    let name = name.to_string();
    [AT_VERSION, AT_TIME]
        .into_iter()
        .find(|known| name.eq_ignore_ascii_case(known))
}

fn plain(argument: &FunctionArg) -> Option<&SqlExpr> {
    match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    }
}

fn text(expr: &SqlExpr) -> Option<String> {
    let SqlExpr::Value(value) = expr else { return None };
    match &value.value {
        Value::SingleQuotedString(text) => Some(text.clone()),
        _ => None,
    }
}

fn which(
    call: &VersionCall,
    state: &SessionState,
    params: Option<&ParamValues>,
) -> Result<VersionSelector, QueryError> {
    let value = constant(&call.at, state, params)?;
    match call.function {
        AT_TIME => {
            let is_time = value.data_type().is_temporal()
                || matches!(
                    value.data_type(),
                    DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8
                );
            let millis = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
            match is_time.then(|| value.cast_to(&millis)) {
                Some(Ok(ScalarValue::TimestampMillisecond(Some(at), _))) => Ok(VersionSelector::UnixMillis(at)),
                _ => Err(QueryError::plan(format!(
                    "at_time: {} is not a time; expected such as '2026-11-21T10:00:00Z' or now() - INTERVAL '1 hour'",
                    call.at
                ))),
            }
        }
        _ => match value.data_type().is_integer().then(|| value.cast_to(&DataType::Int64)) {
            Some(Ok(ScalarValue::Int64(Some(version)))) => Ok(VersionSelector::Version(version)),
            _ => Err(QueryError::plan(format!(
                "at_version: {} is not a version; expected a number",
                call.at
            ))),
        },
    }
}

/// Evaluates an expression without columns.
fn constant(expr: &SqlExpr, state: &SessionState, params: Option<&ParamValues>) -> Result<ScalarValue, QueryError> {
    let (failed, no_columns) = (QueryError::of_planning, DFSchema::empty());
    let planned = state
        .create_logical_expr(&expr.to_string(), &no_columns)
        .and_then(rewrite::functions)
        .map_err(failed)?;
    let filled = planned.transform(|part| match (&part, params) {
        (Expr::Placeholder(placeholder), Some(params)) => {
            let value = params.get_placeholders_with_values(&placeholder.id)?;
            Ok(Transformed::yes(Expr::Literal(value.value, None)))
        }
        _ => Ok(Transformed::no(part)),
    });
    let context = SimplifyContext::builder()
        .with_schema(Arc::new(no_columns.clone()))
        .with_config_options(state.config_options().clone())
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let simplifier = ExprSimplifier::new(context);
    let planned = simplifier.coerce(filled.map_err(failed)?.data, &no_columns);
    match planned
        .and_then(|planned| simplifier.simplify(planned))
        .map_err(failed)?
    {
        Expr::Literal(value, _) => Ok(value),
        _ => Err(QueryError::plan(format!("{expr} is not known before the query runs"))),
    }
}
