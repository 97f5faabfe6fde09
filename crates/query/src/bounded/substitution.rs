//! Limits the growth of predicates during planning. The planner pushes a predicate down to the tables and replaces each
//! column by the expression that computes it. A column `a + a` over another `a + a` doubles with each step, so forty
//! short lines give a predicate with 10^12 columns. This module counts the result before anything is moved.

use std::collections::HashMap;

use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{DataFusionError, Result, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan};

use crate::error::QueryError;

/// Limit for the columns of all predicates together and of one column, each occurrence counted after substitution.
const WRITTEN_MAX: u64 = 200_000;

/// Refuses a plan whose predicates would become too large.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    check_below(plan, 1)
}

/// `outer` is the most that a column of the outer query expands to.
fn check_below(plan: &LogicalPlan, outer: u64) -> Result<()> {
    plan.visit(&mut Substitution {
        made: Vec::new(),
        total: 0,
        outer,
    })?;
    Ok(())
}

struct Substitution {
    /// The expansion of the columns of each input whose parent node was not visited yet.
    made: Vec<Vec<u64>>,
    /// The sum over all predicates.
    total: u64,
    outer: u64,
}

impl TreeNodeVisitor<'_> for Substitution {
    type Node = LogicalPlan;

    fn f_up(&mut self, node: &LogicalPlan) -> Result<TreeNodeRecursion> {
        let inputs = self.made.split_off(self.made.len().saturating_sub(node.inputs().len()));
        let read = InputColumns::of(node, &inputs, self.outer);
        let largest = read.largest;
        let count = node.schema().fields().len();
        let made = match node {
            LogicalPlan::Projection(projection) => projection
                .expr
                .iter()
                .map(|expr| read.columns(expr))
                .collect::<Result<_>>()?,
            LogicalPlan::Filter(filter) => {
                self.add(read.columns(&filter.predicate)?)?;
                inputs.into_iter().next().unwrap_or_default()
            }
            LogicalPlan::Join(join) => {
                for (left, right) in &join.on {
                    self.add(read.columns(left)?.saturating_add(read.columns(right)?))?;
                }
                for filter in join.filter.iter() {
                    self.add(read.columns(filter)?)?;
                }
                inputs.concat()
            }
            // A predicate is pushed into each branch.
            LogicalPlan::Union(_) => (0..count)
                .map(|at| {
                    let branches = inputs.iter().filter_map(|input| input.get(at));
                    branches.fold(0, |sum: u64, written| sum.saturating_add(*written))
                })
                .collect(),
            _ => inputs.into_iter().next().unwrap_or_default(),
        };
        // Other nodes: their columns expand to no more than the columns they read.
        let made = match made.len() == count {
            true => made,
            false => vec![largest; count],
        };
        if let Some(written) = made.iter().find(|written| **written > WRITTEN_MAX) {
            return Err(too_complex(*written));
        }
        let largest = largest.max(self.outer);
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                let below = match part {
                    Expr::ScalarSubquery(query) => Some(query),
                    Expr::InSubquery(query) => Some(&query.subquery),
                    Expr::Exists(query) => Some(&query.subquery),
                    _ => None,
                };
                if let Some(query) = below {
                    check_below(&query.subquery, largest)?;
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        self.made.push(made);
        Ok(TreeNodeRecursion::Continue)
    }
}

impl Substitution {
    fn add(&mut self, columns: u64) -> Result<()> {
        self.total = self.total.saturating_add(columns);
        match self.total > WRITTEN_MAX {
            true => Err(too_complex(self.total)),
            false => Ok(()),
        }
    }
}

/// The expansion of the columns that a node reads.
struct InputColumns<'a> {
    columns: HashMap<(Option<&'a TableReference>, &'a str), u64>,
    /// The largest of them.
    largest: u64,
    outer: u64,
}

impl<'a> InputColumns<'a> {
    fn of(node: &'a LogicalPlan, inputs: &[Vec<u64>], outer: u64) -> InputColumns<'a> {
        let mut columns = HashMap::new();
        for (input, written) in node.inputs().into_iter().zip(inputs) {
            let named = input
                .schema()
                .iter()
                .map(|(table, field)| (table, field.name().as_str()));
            columns.extend(named.zip(written.iter().copied()));
        }
        let largest = inputs.iter().flatten().copied().max().unwrap_or(1);
        InputColumns {
            columns,
            largest,
            outer,
        }
    }

    /// The columns that an expression expands to, at least one.
    fn columns(&self, expr: &Expr) -> Result<u64> {
        let mut sum: u64 = 0;
        expr.apply(|part| {
            let written = match part {
                Expr::Column(column) => {
                    let named = (column.relation.as_ref(), column.name.as_str());
                    self.columns.get(&named).copied().unwrap_or(self.largest)
                }
                Expr::OuterReferenceColumn(..) => self.outer,
                _ => 0,
            };
            sum = sum.saturating_add(written);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(sum.max(1))
    }
}

fn too_complex(columns: u64) -> DataFusionError {
    let columns = match columns {
        u64::MAX => "more columns than can be counted".to_owned(),
        columns => format!("{columns} columns"),
    };
    DataFusionError::External(Box::new(QueryError::too_complex(format!(
        "predicates would read {columns} once each column is replaced by the expression that makes it, and {WRITTEN_MAX} are allowed; \
         split it into several queries"
    ))))
}
