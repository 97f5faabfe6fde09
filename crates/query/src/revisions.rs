//! Tables whose rows have revisions: among rows with the same key only the newest counts.
//!
//! Few files contain rows that replace others, and the table's log says which. Only these files and those that overlap
//! them are compared; all others are read directly.

use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::Result;
use datafusion::datasource::provider_as_source;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::functions_window::expr_fn::row_number;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, ExprFunctionExt, LogicalPlanBuilder, col, ident, lit};
use datafusion::physical_plan::ExecutionPlan;
use thalweg_columns::tables::{METRICS_ROLLUP, TAGS_ROLLUP, TableSpec};
use thalweg_delta::FileEntry;

use crate::exact;
use crate::table::LakeTable;

const NUMBER: &str = "__revision";

/// The spec of a table, if its rows have revisions.
pub fn spec_of(name: &str) -> Option<&'static TableSpec> {
    [&METRICS_ROLLUP, &TAGS_ROLLUP]
        .into_iter()
        .find(|spec| spec.name == name)
}

/// The filters on key columns, which keep either all revisions of a row or none.
pub fn of_keys(spec: &TableSpec, filters: &[Expr]) -> Vec<Expr> {
    let is_key = |name: &str| {
        let is_fixed = spec.sort.contains(&name) || spec.partitions.contains(&name) || name == "time";
        let is_attribute = ["attr_", "resource_", "scope_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        name != "revision" && (is_fixed || is_attribute)
    };
    let is_of_keys = |filter: &&Expr| filter.column_refs().iter().all(|column| is_key(&column.name));
    filters.iter().filter(is_of_keys).cloned().collect()
}

/// Splits files into those whose rows have to be compared, and all others.
pub fn split(files: Vec<Arc<FileEntry>>) -> (Vec<Arc<FileEntry>>, Vec<Arc<FileEntry>>) {
    let revising: Vec<Arc<FileEntry>> = files.iter().filter(|file| file.revises).cloned().collect();
    let is_compared = |file: &Arc<FileEntry>| {
        revising.iter().any(|revising| {
            let overlap = file
                .times
                .zip(revising.times)
                .is_none_or(|(a, b)| a.0 <= b.1 && b.0 <= a.1);
            overlap && file.partition == revising.partition
        })
    };
    files.into_iter().partition(is_compared)
}

/// Plans the newest row of each key. `wanted` names columns of the table.
pub async fn newest(
    state: &dyn Session,
    spec: &TableSpec,
    table: LakeTable,
    filters: &[Expr],
    wanted: &[String],
) -> Result<Arc<dyn ExecutionPlan>> {
    let revision = "revision";
    let keys = spec
        .partitions
        .iter()
        .chain(spec.sort)
        .filter(|name| **name != revision);
    let numbered = row_number()
        .partition_by(keys.map(|name| ident(*name)).collect())
        .order_by(vec![col(revision).sort(false, false)])
        .build()?
        .alias(NUMBER);
    let mut plan = LogicalPlanBuilder::scan(spec.name, provider_as_source(Arc::new(table)), None)?;
    if let Some(filter) = conjunction(of_keys(spec, filters)) {
        plan = plan.filter(filter)?;
    }
    let plan = plan
        .window([numbered])?
        .filter(col(NUMBER).eq(lit(1_u64)))?
        .project(wanted.iter().map(ident))?
        .build()?;
    match state.as_any().downcast_ref::<SessionState>() {
        Some(own) => {
            // Its texts stay views like those of the other parts.
            let within = SessionStateBuilder::new_from_existing(own.clone());
            let within = within.with_analyzer_rules(exact::analyzer_rules_of_parts());
            within.build().create_physical_plan(&plan).await
        }
        None => state.create_physical_plan(&plan).await,
    }
}
