//! The columns of an answer: each has a name of its own, and texts are no views, which some readers of Arrow do not know.
//!
//! The library turns views into texts as well (`expand_views_at_output`), but its new columns lose the names of their tables,
//! so that `SELECT a.tag, b.tag` is refused.

use std::collections::HashSet;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

/// Adds a projection to a plan if it is needed.
#[derive(Debug)]
pub struct OutputColumns;

impl AnalyzerRule for OutputColumns {
    fn name(&self) -> &str {
        "output_columns"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let mut taken = HashSet::new();
        let (mut columns, mut is_needed) = (Vec::new(), false);
        for (table, field) in plan.schema().iter() {
            let name = unused(field.name(), &mut taken);
            let column = Expr::Column(Column::from((table, field)));
            let kind = match field.data_type() {
                DataType::Utf8View => Some(DataType::LargeUtf8),
                DataType::BinaryView => Some(DataType::LargeBinary),
                _ => None,
            };
            is_needed |= kind.is_some() || name != *field.name();
            let value = match kind {
                Some(kind) => Expr::Cast(Cast::new(Box::new(column), kind)),
                None => column,
            };
            columns.push(match name == *field.name() {
                true => value.alias_qualified(table.cloned(), name),
                false => value.alias(name),
            });
        }
        match is_needed {
            true => LogicalPlanBuilder::from(plan).project(columns)?.build(),
            false => Ok(plan),
        }
    }
}

/// A name that is not taken yet: `time`, `time_1`, `time_2`.
pub fn unused(name: &str, taken: &mut HashSet<String>) -> String {
    let mut unused = name.to_owned();
    let mut number = 0;
    while !taken.insert(unused.clone()) {
        number += 1;
        unused = format!("{name}_{number}");
    }
    unused
}
