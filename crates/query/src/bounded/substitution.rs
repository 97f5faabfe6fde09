//! Limits the growth of expressions during planning, in two ways that a short text can have. Both are counted before anything
//! is moved.
//!
//! The planner pushes a predicate down to the tables and replaces each column by the expression that computes it. A column
//! `a + a` over another `a + a` doubles with each step, so forty short lines give a predicate with 10^12 columns.
//!
//! It writes some operators out in terms of others, with an operand in each part: `a BETWEEN b AND c` becomes `a >= b AND
//! a <= c`. Nested in itself forty times, the innermost operand would be there 10^12 times.

use std::collections::HashMap;

use datafusion::common::tree_node::{TreeNode as _, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::common::{DataFusionError, Result, TableReference};
use datafusion::logical_expr::{Expr, LogicalPlan, Operator};

use crate::error::QueryError;

/// Limit for the columns of all predicates together and of one column, each occurrence counted after substitution.
const WRITTEN_MAX: u64 = 200_000;

/// Limit for the copies of one operand, once the operators around it are written out.
const COPIES_MAX: u64 = 1_024;

/// Functions that become `CASE WHEN a IS NOT NULL THEN …`.
const CASES: [&str; 3] = ["coalesce", "nvl", "nvl2"];
/// The function that becomes `IN` over an array of constants.
const MEMBERSHIP: &str = "array_has";

/// What a column or an expression expands to.
#[derive(Clone, Copy)]
struct Expansion {
    /// The columns of the tables below, each occurrence counted.
    columns: u64,
    /// The most copies of one operand, once all columns are replaced by their expressions, as in a predicate.
    copies: u64,
    /// The same, once those columns are replaced that are replaced outside predicates, too.
    merged: u64,
}

const ITSELF: Expansion = Expansion {
    columns: 1,
    copies: 1,
    merged: 1,
};

impl Expansion {
    /// Of two expressions side by side.
    fn beside(self, other: Expansion) -> Expansion {
        Expansion {
            columns: self.columns.saturating_add(other.columns),
            ..self.largest(other)
        }
    }

    fn largest(self, other: Expansion) -> Expansion {
        Expansion {
            columns: self.columns.max(other.columns),
            copies: self.copies.max(other.copies),
            merged: self.merged.max(other.merged),
        }
    }
}

/// Refuses a plan whose expressions would become too large.
pub fn check(plan: &LogicalPlan) -> Result<()> {
    check_below(plan, ITSELF)
}

/// `outer` is the most that a column of the outer query expands to.
fn check_below(plan: &LogicalPlan, outer: Expansion) -> Result<()> {
    plan.visit(&mut Substitution {
        made: Vec::new(),
        total: 0,
        outer,
    })?;
    Ok(())
}

struct Substitution {
    /// The expansion of the columns of each input whose parent node was not visited yet.
    made: Vec<Vec<Expansion>>,
    /// The sum over all predicates.
    total: u64,
    outer: Expansion,
}

impl TreeNodeVisitor<'_> for Substitution {
    type Node = LogicalPlan;

    fn f_up(&mut self, node: &LogicalPlan) -> Result<TreeNodeRecursion> {
        let inputs = self.made.split_off(self.made.len().saturating_sub(node.inputs().len()));
        let read = InputColumns::of(node, &inputs, self.outer);
        let count = node.schema().fields().len();
        let mut largest = read.largest;
        node.apply_expressions(|expr| {
            if read.copies(expr, |column| column.merged, copies_of_operand)? > COPIES_MAX {
                return Err(too_many_copies());
            }
            let expansion = read.expansion(expr)?;
            largest = Expansion {
                columns: largest.columns,
                ..largest.largest(expansion)
            };
            Ok(TreeNodeRecursion::Continue)
        })?;
        let made = match node {
            LogicalPlan::Projection(projection) => projection
                .expr
                .iter()
                .map(|expr| read.expansion(expr))
                .collect::<Result<_>>()?,
            LogicalPlan::Filter(filter) => {
                self.add(read.expansion(&filter.predicate)?)?;
                inputs.into_iter().next().unwrap_or_default()
            }
            LogicalPlan::Join(join) => {
                for (left, right) in &join.on {
                    self.add(read.expansion(left)?.beside(read.expansion(right)?))?;
                }
                for filter in join.filter.iter() {
                    self.add(read.expansion(filter)?)?;
                }
                inputs.concat()
            }
            // A predicate is pushed into each branch.
            LogicalPlan::Union(_) => (0..count)
                .map(|at| {
                    let branches = inputs.iter().filter_map(|input| input.get(at).copied());
                    branches.reduce(Expansion::beside).unwrap_or(ITSELF)
                })
                .collect(),
            _ => inputs.into_iter().next().unwrap_or_default(),
        };
        // Other nodes: their columns expand to no more columns than they read.
        let made = match made.len() == count {
            true => made,
            false => vec![largest; count],
        };
        if let Some(written) = made.iter().find(|written| written.columns > WRITTEN_MAX) {
            return Err(too_complex(written.columns));
        }
        let largest = largest.largest(self.outer);
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
    fn add(&mut self, predicate: Expansion) -> Result<()> {
        if predicate.copies > COPIES_MAX {
            return Err(too_many_copies());
        }
        self.total = self.total.saturating_add(predicate.columns);
        match self.total > WRITTEN_MAX {
            true => Err(too_complex(self.total)),
            false => Ok(()),
        }
    }
}

/// The expansion of the columns that a node reads.
struct InputColumns<'a> {
    columns: HashMap<(Option<&'a TableReference>, &'a str), Expansion>,
    largest: Expansion,
    outer: Expansion,
}

impl<'a> InputColumns<'a> {
    fn of(node: &'a LogicalPlan, inputs: &[Vec<Expansion>], outer: Expansion) -> InputColumns<'a> {
        let mut columns = HashMap::new();
        for (input, written) in node.inputs().into_iter().zip(inputs) {
            let named = input
                .schema()
                .iter()
                .map(|(table, field)| (table, field.name().as_str()));
            columns.extend(named.zip(written.iter().copied()));
        }
        let all = inputs.iter().flatten().copied();
        InputColumns {
            columns,
            largest: all.reduce(Expansion::largest).unwrap_or(ITSELF),
            outer,
        }
    }

    /// The expansion of a column of an input or of the outer query. `None` for other expressions.
    fn column(&self, expr: &Expr) -> Option<Expansion> {
        match expr {
            Expr::Column(column) => {
                let named = (column.relation.as_ref(), column.name.as_str());
                Some(self.columns.get(&named).copied().unwrap_or(self.largest))
            }
            Expr::OuterReferenceColumn(..) => Some(self.outer),
            _ => None,
        }
    }

    fn expansion(&self, expr: &Expr) -> Result<Expansion> {
        let mut columns: u64 = 0;
        expr.apply(|part| {
            columns = columns.saturating_add(self.column(part).map_or(0, |column| column.columns));
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(Expansion {
            columns: columns.max(1),
            copies: self.copies(expr, |column| column.copies, copies_of_operand)?,
            merged: self.copies(expr, |column| column.merged, merged_copies_of_operand)?,
        })
    }

    /// The most copies of an operand anywhere in an expression. Its depth is limited.
    fn copies(&self, expr: &Expr, of_column: fn(Expansion) -> u64, of_operand: fn(&Expr, usize) -> u64) -> Result<u64> {
        if let Some(column) = self.column(expr) {
            return Ok(of_column(column));
        }
        let (mut most, mut at) = (1, 0);
        expr.apply_children(|part| {
            let copies = self.copies(part, of_column, of_operand)?;
            most = most.max(copies.saturating_mul(of_operand(expr, at)));
            at += 1;
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(most)
    }
}

/// The copies that the planner makes of the operand of an operator at a position, or how often it visits it, as measured.
fn copies_of_operand(expr: &Expr, at: usize) -> u64 {
    match expr {
        // The last one is a result only.
        Expr::ScalarFunction(function) if CASES.contains(&function.name()) && at + 1 < function.args.len() => 2,
        Expr::ScalarFunction(function) if function.name() == MEMBERSHIP && at == 1 => 3,
        Expr::Between(_) if at == 0 => 2,
        Expr::InList(_) if at == 0 => 3,
        Expr::IsTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNotFalse(_)
        | Expr::IsNotUnknown(_) => 2,
        _ => merged_copies_of_operand(expr, at),
    }
}

/// The same for the operator that is merged with those of a derived table.
fn merged_copies_of_operand(expr: &Expr, _at: usize) -> u64 {
    match expr {
        Expr::BinaryExpr(binary) if matches!(binary.op, Operator::IsDistinctFrom | Operator::IsNotDistinctFrom) => 3,
        _ => 1,
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

fn too_many_copies() -> DataFusionError {
    DataFusionError::External(Box::new(QueryError::too_complex(format!(
        "BETWEEN, IN, IS DISTINCT FROM, COALESCE and their like are nested in each other so deep that an operand would be written out more \
         than {COPIES_MAX} times; split it into several queries"
    ))))
}
