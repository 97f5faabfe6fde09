//! Gives the repeated columns of a SELECT names of their own: the second `count(*)` becomes `count(*)_1`, and `t.time` beside
//! `l.time` becomes `time_1`. The planner refuses equal names, and an answer in JSON could not keep both.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Ident, Select, SelectItem, Statement, VisitMut as _, VisitorMut};

use crate::exact::unused_name;

/// Names repeated columns in all SELECTs of a statement.
pub fn rename(statement: &mut Statement) {
    let _: ControlFlow<()> = statement.visit(&mut Renamer);
}

struct Renamer;

impl VisitorMut for Renamer {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut taken: HashSet<String> = HashSet::new();
        // Names that are written win over those that are made here.
        let mut written: HashSet<String> = select.projection.iter().filter_map(name).collect();
        for item in &mut select.projection {
            let Some(name) = name(item) else { continue };
            if taken.insert(name.clone()) {
                continue;
            }
            let made = unused_name(&name, &mut written);
            taken.insert(made.clone());
            let expr = match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => expr.clone(),
                _ => continue,
            };
            *item = SelectItem::ExprWithAlias {
                expr,
                alias: Ident::with_quote('"', made),
            };
        }
        ControlFlow::Continue(())
    }
}

/// The name of a column, if it is known before planning.
fn name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::ExprWithAlias { alias, .. } => Some(normalized(alias)),
        SelectItem::UnnamedExpr(expr) => Some(name_of(expr)),
        _ => None,
    }
}

/// A cast has the name of its value.
fn name_of(expr: &Expr) -> String {
    match expr {
        Expr::Identifier(name) => normalized(name),
        Expr::CompoundIdentifier(parts) => parts.last().map(normalized).unwrap_or_default(),
        Expr::Cast { expr, .. } | Expr::Nested(expr) => name_of(expr),
        other => {
            let mut plain = other.clone();
            let _: ControlFlow<()> = plain.visit(&mut CastRemover);
            plain.to_string()
        }
    }
}

struct CastRemover;

impl VisitorMut for CastRemover {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr: value, .. } = expr {
            let value = std::mem::replace(&mut **value, Expr::Identifier(Ident::new("")));
            *expr = value;
        }
        ControlFlow::Continue(())
    }
}

fn normalized(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    use super::*;

    #[test]
    fn the_second_of_a_name_gets_a_number() {
        for (sql, renamed) in [
            ("SELECT a, b FROM t", "SELECT a, b FROM t"),
            (
                "SELECT l.time, t.time, u.Time FROM t",
                "SELECT l.time, t.time AS \"time_1\", u.Time AS \"time_2\" FROM t",
            ),
            (
                "SELECT count(*), count(*) FROM t",
                "SELECT count(*), count(*) AS \"count(*)_1\" FROM t",
            ),
            ("SELECT 1 AS a, 2 AS a", "SELECT 1 AS a, 2 AS \"a_1\""),
            ("SELECT a, a, a_1 FROM t", "SELECT a, a AS \"a_2\", a_1 FROM t"),
            (
                "SELECT x FROM (SELECT a AS x, b AS x) AS s",
                "SELECT x FROM (SELECT a AS x, b AS \"x_1\") AS s",
            ),
            (
                "SELECT f(a::int), f(CAST(a AS text))",
                "SELECT f(a::INT), f(CAST(a AS TEXT)) AS \"f(a)_1\"",
            ),
            ("SELECT \"A\", a FROM t", "SELECT \"A\", a FROM t"),
        ] {
            let mut statement = Parser::parse_sql(&GenericDialect {}, sql).unwrap().remove(0);
            rename(&mut statement);
            assert_eq!(statement.to_string(), renamed);
        }
    }
}
