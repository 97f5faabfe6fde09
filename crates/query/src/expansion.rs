//! Limits what a short statement expands to during planning: tables, where a `WITH` name counts once for each use, and
//! the grouping sets of `CUBE`.
//!
//! The planner copies a `WITH` table into each place that names it, so thirty names that each read the previous one
//! twice give a thousand million copies. A `CUBE` of thirty columns has as many grouping sets. Both are counted before
//! planning. So is the nesting of `WITH` in `WITH`, because the search for table names visits each level twice, and that of
//! `ANY` and `ALL`, which are planned as a `CASE` with up to five copies of each operand, and that of functions called by
//! another of their names, such as `ifnull`: each result is named after the whole call, which has the names within it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion::execution::SessionStateDefaults;
use datafusion::sql::sqlparser::ast::{Expr, Ident, ObjectName, ObjectNamePart, Query, Statement, Visit as _, Visitor};

use crate::error::QueryError;

/// Each table adds planning time.
const TABLES_MAX: usize = 1_024;

/// Limit for one `CUBE` or `ROLLUP`. The planner builds all sets before it counts them.
const GROUPING_SETS_MAX: usize = 1_024;

/// Limit for `WITH` nested in the queries of `WITH` or anywhere below.
const WITH_DEPTH_MAX: usize = 8;

/// Limit for `ANY` and `ALL` of arrays nested in each other.
const QUANTIFIER_DEPTH_MAX: usize = 4;

/// Limit for calls by another name nested in each other.
const OTHER_NAME_DEPTH_MAX: usize = 8;

/// The other names of all functions.
static OTHER_NAMES: LazyLock<HashSet<String>> = LazyLock::new(|| {
    let functions = SessionStateDefaults::default_scalar_functions();
    functions
        .iter()
        .flat_map(|function| function.aliases().to_vec())
        .collect()
});

/// Refuses a statement that expands to too many tables or sets.
pub fn check(statement: &Statement) -> Result<(), QueryError> {
    match statement.visit(&mut ExpansionCounter::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

fn too_many_tables() -> QueryError {
    QueryError::too_complex(format!(
        "the query reads more than {TABLES_MAX} tables, counting each use of a WITH table; split it into several \
         queries"
    ))
}

fn too_many_sets(sets: usize) -> QueryError {
    QueryError::too_complex(format!(
        "GROUP BY makes {sets} grouping sets, and {GROUPING_SETS_MAX} are allowed; name those you need with GROUPING SETS"
    ))
}

#[derive(Default)]
struct ExpansionCounter {
    /// The queries that enclose the current position, innermost last.
    queries: Vec<QueryScope>,
    /// How many of them have a `WITH`.
    with_depth: usize,
    /// The `ANY` and `ALL` that enclose the current position.
    quantifier_depth: usize,
    /// The calls by another name that do.
    other_name_depth: usize,
}

#[derive(Default)]
struct QueryScope {
    tables: usize,
    /// The names that its `WITH` defines, by the address of their query.
    definitions: HashMap<*const Query, String>,
    /// The tables that each name reads, as far as visited.
    named: HashMap<String, usize>,
}

impl Visitor for ExpansionCounter {
    type Break = QueryError;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<QueryError> {
        self.with_depth += usize::from(query.with.is_some());
        if self.with_depth > WITH_DEPTH_MAX {
            let told = format!("WITH is nested more than {WITH_DEPTH_MAX} deep; define the tables side by side");
            return ControlFlow::Break(QueryError::too_complex(told));
        }
        let with = query.with.iter().flat_map(|with| &with.cte_tables);
        let definitions = with.map(|table| (std::ptr::from_ref(&*table.query), name_of(&table.alias.name)));
        self.queries.push(QueryScope {
            definitions: definitions.collect(),
            ..QueryScope::default()
        });
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<QueryError> {
        self.with_depth -= usize::from(query.with.is_some());
        let tables = self.queries.pop().map_or(0, |query| query.tables);
        let Some(outer) = self.queries.last_mut() else {
            return ControlFlow::Continue(());
        };
        match outer.definitions.remove(&std::ptr::from_ref(query)) {
            Some(name) => drop(outer.named.insert(name, tables)),
            None => outer.tables = outer.tables.saturating_add(tables),
        }
        self.check()
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<QueryError> {
        let parts = relation.0.iter().map(|part| match part {
            ObjectNamePart::Identifier(name) => name_of(name),
            other => other.to_string(),
        });
        // Looked up like the planner does: a dotted name may also be a `WITH` table.
        let name = parts.collect::<Vec<String>>().join(".");
        let tables = self.queries.iter().rev().find_map(|query| query.named.get(&name));
        // A query reads at least itself.
        let tables = tables.map_or(1, |tables| (*tables).max(1));
        if let Some(query) = self.queries.last_mut() {
            query.tables = query.tables.saturating_add(tables);
        }
        self.check()
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<QueryError> {
        self.quantifier_depth += usize::from(is_quantifier(expr));
        if self.quantifier_depth > QUANTIFIER_DEPTH_MAX {
            let told = format!(
                "ANY and ALL are nested more than {QUANTIFIER_DEPTH_MAX} deep; write lists as IN (...), or split it into \
                 several queries"
            );
            return ControlFlow::Break(QueryError::too_complex(told));
        }
        self.other_name_depth += usize::from(is_by_other_name(expr));
        if self.other_name_depth > OTHER_NAME_DEPTH_MAX {
            let told = format!(
                "functions are nested more than {OTHER_NAME_DEPTH_MAX} deep by another of their names; write nvl for ifnull, \
                 array_has for list_has, or split it into several queries"
            );
            return ControlFlow::Break(QueryError::too_complex(told));
        }
        let sets = match expr {
            Expr::Cube(columns) => u32::try_from(columns.len())
                .ok()
                .and_then(|columns| 1_usize.checked_shl(columns))
                .unwrap_or(usize::MAX),
            Expr::Rollup(columns) => columns.len() + 1,
            _ => return ControlFlow::Continue(()),
        };
        match sets > GROUPING_SETS_MAX {
            true => ControlFlow::Break(too_many_sets(sets)),
            false => ControlFlow::Continue(()),
        }
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<QueryError> {
        self.quantifier_depth -= usize::from(is_quantifier(expr));
        self.other_name_depth -= usize::from(is_by_other_name(expr));
        ControlFlow::Continue(())
    }
}

fn is_quantifier(expr: &Expr) -> bool {
    matches!(expr, Expr::AnyOp { .. } | Expr::AllOp { .. })
}

fn is_by_other_name(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else {
        return false;
    };
    matches!(function.name.0.as_slice(), [ObjectNamePart::Identifier(name)] if OTHER_NAMES.contains(&name_of(name)))
}

impl ExpansionCounter {
    fn check(&self) -> ControlFlow<QueryError> {
        match self.queries.last() {
            Some(query) if query.tables > TABLES_MAX => ControlFlow::Break(too_many_tables()),
            _ => ControlFlow::Continue(()),
        }
    }
}

/// The name as the planner reads it: case is kept only in quotes of any kind.
fn name_of(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::sqlparser::dialect::GenericDialect;
    use datafusion::sql::sqlparser::parser::Parser;

    fn checked(sql: &str) -> Result<(), QueryError> {
        let statement = Parser::parse_sql(&GenericDialect {}, sql).unwrap().remove(0);
        check(&statement)
    }

    fn doubling(levels: usize, reference: &str) -> String {
        let step = |n: usize| {
            format!(
                "t{n} as (select * from {0} union all select * from {0})",
                reference.replace('N', &(n - 1).to_string())
            )
        };
        let steps: Vec<String> = (1..=levels).map(step).collect();
        format!("with t0 as (select 1), {} select * from t{levels}", steps.join(", "))
    }

    #[test]
    fn names_that_double_are_counted_without_making_a_copy() {
        assert!(checked(&doubling(9, "tN")).is_ok());
        for reference in ["tN", "\"tN\"", "`tN`", "TN", "(select * from tN)"] {
            assert_eq!(
                checked(&doubling(60, reference)).unwrap_err().code(),
                "query.too_complex"
            );
        }
        let inside = format!(
            "select * from ({}) where a in ({})",
            doubling(5, "tN"),
            doubling(40, "tN")
        );
        assert_eq!(checked(&inside).unwrap_err().code(), "query.too_complex");
    }

    #[test]
    fn names_are_told_apart_as_the_planner_does() {
        // Each step has another name in different case, with a dot, or with a quote.
        for (name, more) in [
            ("tN", ", \"TN\" as (select 1)"),
            ("\"t.N\"", ""),
            ("\"t\"\"N\"", ""),
            ("`tN`", ""),
        ] {
            let named = |n: usize| name.replace('N', &n.to_string());
            let step = |n: usize| {
                let before = named(n - 1);
                format!(
                    "{} as (select * from {before} union all select * from {before}){}",
                    named(n),
                    more.replace('N', &n.to_string())
                )
            };
            let steps: Vec<String> = (1..=40).map(step).collect();
            let sql = format!(
                "with {} as (select 1), {} select * from {}",
                named(0),
                steps.join(", "),
                named(40)
            );
            assert_eq!(checked(&sql).unwrap_err().code(), "query.too_complex", "{name}");
        }
        let dotted = (1..=40).fold("with \"a.t0\" as (select 1)".to_owned(), |sql, n| {
            format!(
                "{sql}, \"a.t{n}\" as (select * from a.t{0} union all select * from a.t{0})",
                n - 1
            )
        });
        assert!(checked(&format!("{dotted} select * from a.t40")).is_err());
    }

    #[test]
    fn with_in_with_has_a_depth() {
        let nested = |depth: usize| {
            (0..depth).fold("select 1 x".to_owned(), |inner, n| {
                format!("with a{n} as ({inner}) select * from a{n}")
            })
        };
        let in_from = |depth: usize| {
            (0..depth).fold("select 1 x".to_owned(), |inner, n| {
                format!("with a{n} as (select * from ({inner}) b) select * from a{n}")
            })
        };
        for sql in [nested(WITH_DEPTH_MAX), in_from(WITH_DEPTH_MAX)] {
            assert!(checked(&sql).is_ok(), "{sql}");
        }
        for sql in [nested(WITH_DEPTH_MAX + 1), in_from(WITH_DEPTH_MAX + 1)] {
            assert_eq!(checked(&sql).unwrap_err().code(), "query.too_complex", "{sql}");
        }
        let beside: Vec<String> = (0..100)
            .map(|n| format!("(with a as (select {n} x) select * from a)"))
            .collect();
        assert!(checked(&beside.join(" union all ")).is_ok());
    }

    #[test]
    fn grouping_sets_are_counted_without_making_one() {
        let grouped = |kind: &str, columns: usize| {
            let columns: Vec<String> = (0..columns).map(|n| format!("c{n}")).collect();
            format!("select count(*) from tags group by {kind}({})", columns.join(", "))
        };
        for allowed in [grouped("cube", 10), grouped("rollup", 1_000)] {
            assert!(checked(&allowed).is_ok());
        }
        for refused in [grouped("cube", 11), grouped("cube", 70), grouped("rollup", 1_024)] {
            let error = checked(&refused).unwrap_err();
            assert_eq!(error.code(), "query.too_complex");
            assert!(
                error.message.ends_with("name those you need with GROUPING SETS"),
                "{error}"
            );
        }
    }

    #[test]
    fn any_and_all_have_a_depth() {
        for quantified in ["({} = any(make_array(1, 2)))", "(1 <> all({}))"] {
            let nested =
                |depth: usize| (0..depth).fold("a".to_owned(), |operand, _| quantified.replace("{}", &operand));
            assert!(checked(&format!("select {} from tags", nested(QUANTIFIER_DEPTH_MAX))).is_ok());
            let error = checked(&format!("select {} from tags", nested(QUANTIFIER_DEPTH_MAX + 1))).unwrap_err();
            assert_eq!(error.code(), "query.too_complex");
            assert!(
                error.message.starts_with("ANY and ALL are nested more than 4 deep"),
                "{error}"
            );
        }
        let beside = vec!["a = any(make_array(1, 2))"; 100].join(" or ");
        assert!(checked(&format!("select 1 from tags where {beside}")).is_ok());
    }

    #[test]
    fn calls_by_another_name_have_a_depth() {
        for (call, is_other) in [("ifnull({}, 1)", true), ("IfNull({}, 1)", true), ("nvl({}, 1)", false)] {
            let nested = |depth: usize| (0..depth).fold("a".to_owned(), |operand, _| call.replace("{}", &operand));
            assert!(checked(&format!("select {} from tags", nested(OTHER_NAME_DEPTH_MAX))).is_ok());
            let more = checked(&format!("select {} from tags", nested(OTHER_NAME_DEPTH_MAX + 1)));
            assert_eq!(more.is_err(), is_other, "{call}: {more:?}");
        }
    }

    #[test]
    fn a_name_that_is_read_often_is_no_reason() {
        let often = vec!["select * from a"; 500].join(" union all ");
        assert!(checked(&format!("with a as (select * from tags) {often}")).is_ok());
        assert!(
            checked("with recursive t as (select 1 a union all select a + 1 from t where a < 9) select * from t")
                .is_ok()
        );
    }
}
