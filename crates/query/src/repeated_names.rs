//! Gives columns names of their own, which the planner would refuse, and an answer in JSON could not keep.
//!
//! The repeated columns of a SELECT get a number: the second `count(*)` becomes `count(*)_1`, `t.time` beside `l.time` becomes
//! `time_1`, and so does `time` beside `*`. Columns of JSON operators are named as they are written. A cast has the name of its
//! value for the planner, so `GROUP BY day, cast(day AS varchar)`, and `cast(i AS double) … ORDER BY i`, would be two columns of
//! one name: there casts are written as functions, or are named as they are written.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::sql::sqlparser::ast::{
    CastKind, Distinct, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    GroupByExpr, Ident, ObjectName, OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr,
    Statement, TableFactor, TableWithJoins, Value, Visit, VisitMut, Visitor, VisitorMut,
};
use thalweg_delta::schema::TableSchema;

use crate::exact::unused_name;
use crate::precedence::is_json_operator;

/// Names the columns of JSON operators, before other names take the place of what is written.
pub fn name_operators(statement: &mut Statement) {
    let _: ControlFlow<()> = VisitMut::visit(statement, &mut OperatorNamer);
}

struct OperatorNamer;

impl VisitorMut for OperatorNamer {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && is_json_operator(value_of(expr))
            {
                let alias = Ident::with_quote('"', name_of(expr));
                let expr = expr.clone();
                *item = SelectItem::ExprWithAlias { expr, alias };
            }
        }
        ControlFlow::Continue(())
    }
}

/// What stands in casts and parentheses.
fn value_of(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast { expr, .. } | Expr::Nested(expr) => value_of(expr),
        value => value,
    }
}

/// Whether a statement has a `*` with other columns beside it. Then [`rename`] needs the columns of its tables.
pub fn has_columns_beside_all(statement: &Statement) -> bool {
    Visit::visit(statement, &mut WildcardFinder).is_break()
}

struct WildcardFinder;

impl Visitor for WildcardFinder {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        match select.projection.len() > 1 && select.projection.iter().any(|item| name(item).is_none()) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Names repeated columns in all SELECTs of a statement over tables with these schemas.
pub fn rename(statement: &mut Statement, schemas: &HashMap<String, Arc<TableSchema>>) {
    let _: ControlFlow<()> = VisitMut::visit(statement, &mut Renamer { schemas });
}

struct Renamer<'a> {
    schemas: &'a HashMap<String, Arc<TableSchema>>,
}

impl VisitorMut for Renamer<'_> {
    type Break = ();

    /// ORDER BY stands outside the SELECT whose columns it reads.
    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        distinguish_casts(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        // The columns of `*`, wherever it stands.
        let mut taken: HashSet<String> = HashSet::new();
        for item in &select.projection {
            taken.extend(self.columns_of_all(item, &select.from));
        }
        // Names that are written win over those that are made here.
        let mut written: HashSet<String> = select.projection.iter().filter_map(name).collect();
        written.extend(taken.iter().cloned());
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

impl Renamer<'_> {
    /// The columns of `*` or `t.*`, as far as they are known before planning.
    fn columns_of_all(&self, item: &SelectItem, from: &[TableWithJoins]) -> Vec<String> {
        let (table, options) = match item {
            SelectItem::Wildcard(options) => (None, options),
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                let Some(table) = name.0.last().and_then(|part| part.as_ident()) else {
                    return Vec::new();
                };
                (Some(normalized(table)), options)
            }
            _ => return Vec::new(),
        };
        // What EXCEPT leaves out is free, and RENAME makes other names.
        let is_whole = options.opt_except.is_none() && options.opt_exclude.is_none() && options.opt_rename.is_none();
        if !is_whole {
            return Vec::new();
        }
        let mut columns = Vec::new();
        from.iter()
            .for_each(|from| self.add_columns(from, table.as_deref(), &mut columns));
        columns
    }

    fn add_columns(&self, from: &TableWithJoins, wanted: Option<&str>, columns: &mut Vec<String>) {
        let joined = from.joins.iter().map(|join| &join.relation);
        for relation in std::iter::once(&from.relation).chain(joined) {
            let is_wanted = |name: &Ident| wanted.is_none_or(|wanted| normalized(name) == wanted);
            match relation {
                TableFactor::NestedJoin { table_with_joins, .. } => self.add_columns(table_with_joins, wanted, columns),
                TableFactor::Table { name, alias, .. } => {
                    let own = name.0.last().and_then(|part| part.as_ident());
                    let schema = own.and_then(|own| self.schemas.get(&normalized(own)));
                    let named = alias.as_ref().map(|alias| &alias.name).or(own);
                    if let Some(schema) = schema.filter(|_| named.is_some_and(is_wanted)) {
                        columns.extend(schema.columns.iter().map(|column| column.name.clone()));
                    }
                }
                TableFactor::Derived { subquery, alias, .. }
                    if alias.as_ref().map_or(wanted.is_none(), |alias| is_wanted(&alias.name)) =>
                {
                    if let SetExpr::Select(select) = subquery.body.as_ref() {
                        for item in &select.projection {
                            columns.extend(name(item));
                            columns.extend(self.columns_of_all(item, &select.from));
                        }
                    }
                }
                _ => {}
            }
        }
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
        other => without_casts(other).to_string(),
    }
}

fn without_casts(expr: &Expr) -> Expr {
    let mut plain = expr.clone();
    let _: ControlFlow<()> = VisitMut::visit(&mut plain, &mut CastRemover);
    plain
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

/// Tells casts from their values where the planner would have two columns of one name: among the keys of groups, and between
/// what is selected and what rows are sorted by.
fn distinguish_casts(query: &mut Query) {
    let SetExpr::Select(select) = query.body.as_mut() else {
        return;
    };
    let mut sorted_by: Vec<&mut Expr> = match query.order_by.as_mut().map(|order| &mut order.kind) {
        Some(OrderByKind::Expressions(keys)) => keys.iter_mut().map(|key| &mut key.expr).collect(),
        _ => Vec::new(),
    };
    // The expressions of DISTINCT ON are compared with those of ORDER BY.
    if !matches!(select.distinct, Some(Distinct::On(_))) {
        number_selected(&mut sorted_by, &select.projection);
    }
    let keys = keys_of_groups(select);
    let casts = namesakes(&keys);
    if !casts.is_empty() {
        let mut rewriter = CastRewriter { casts: &casts };
        for item in &mut select.projection {
            rewriter.rewrite_item(item);
        }
        if let GroupByExpr::Expressions(keys, _) = &mut select.group_by {
            keys.iter_mut().for_each(|key| rewriter.rewrite(key));
        }
        select.having.iter_mut().for_each(|having| rewriter.rewrite(having));
        sorted_by.iter_mut().for_each(|key| rewriter.rewrite(key));
    }
    name_casts(&mut select.projection, &sorted_by);
}

/// Writes the position of a selected expression in its place in ORDER BY.
fn number_selected(sorted_by: &mut [&mut Expr], projection: &[SelectItem]) {
    // Nobody knows how many columns `*` is.
    if sorted_by.is_empty() || projection.iter().any(|item| name(item).is_none()) {
        return;
    }
    for key in sorted_by {
        // A name may also be that of a column of the answer.
        if matches!(key, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_)) {
            continue;
        }
        if let Some(at) = projection.iter().position(|item| selected(item) == Some(&**key)) {
            **key = Expr::Value(Value::Number((at + 1).to_string(), false).into());
        }
    }
}

fn selected(item: &SelectItem) -> Option<&Expr> {
    match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    }
}

/// Names the cast of a column by which rows are sorted.
fn name_casts(projection: &mut [SelectItem], sorted_by: &[&mut Expr]) {
    let mut columns = ColumnNames(HashSet::new());
    for key in sorted_by {
        let _: ControlFlow<()> = Visit::visit(&**key, &mut columns);
    }
    // The planner adds no column that is selected anyway.
    for item in &*projection {
        if let Some(expr @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_))) = selected(item) {
            columns.0.remove(&name_of(expr));
        }
    }
    for item in projection {
        let SelectItem::UnnamedExpr(expr @ Expr::Cast { .. }) = item else {
            continue;
        };
        let is_column = matches!(value_of(expr), Expr::Identifier(_) | Expr::CompoundIdentifier(_));
        if is_column && columns.0.contains(&name_of(expr)) {
            let (expr, alias) = (expr.clone(), Ident::with_quote('"', expr.to_string()));
            *item = SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// The names of the columns that expressions read.
struct ColumnNames(HashSet<String>);

impl Visitor for ColumnNames {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_)) {
            self.0.insert(name_of(expr));
        }
        ControlFlow::Continue(())
    }
}

/// What `GROUP BY` names, also by its position in the SELECT.
fn keys_of_groups(select: &Select) -> Vec<Expr> {
    let GroupByExpr::Expressions(keys, _) = &select.group_by else {
        return Vec::new();
    };
    let at = |position: usize| selected(select.projection.get(position.checked_sub(1)?)?).cloned();
    let key = |key: &Expr| {
        let Expr::Value(value) = key else {
            return Some(key.clone());
        };
        match &value.value {
            Value::Number(position, _) => at(position.to_string().parse().ok()?),
            _ => Some(key.clone()),
        }
    };
    keys.iter().filter_map(key).collect()
}

/// Those of some expressions that have casts and the name of another one.
fn namesakes(exprs: &[Expr]) -> HashSet<Expr> {
    let mut named: HashMap<String, HashSet<&Expr>> = HashMap::new();
    for expr in exprs {
        named.entry(name_of(expr)).or_default().insert(expr);
    }
    let of_one_name = named.into_values().filter(|of_name| of_name.len() > 1);
    let has_cast = |expr: &&Expr| without_casts(expr) != **expr;
    of_one_name.flatten().filter(has_cast).cloned().collect()
}

/// Writes the casts of these expressions as functions, wherever the expressions stand.
struct CastRewriter<'a> {
    casts: &'a HashSet<Expr>,
}

impl CastRewriter<'_> {
    fn rewrite(&mut self, expr: &mut Expr) {
        let _: ControlFlow<()> = VisitMut::visit(expr, self);
    }

    /// The column is named as it is written.
    fn rewrite_item(&mut self, item: &mut SelectItem) {
        match item {
            SelectItem::UnnamedExpr(expr) => {
                let before = expr.clone();
                self.rewrite(expr);
                if *expr != before {
                    let (expr, alias) = (expr.clone(), Ident::with_quote('"', before.to_string()));
                    *item = SelectItem::ExprWithAlias { expr, alias };
                }
            }
            SelectItem::ExprWithAlias { expr, .. } => self.rewrite(expr),
            _ => {}
        }
    }
}

impl VisitorMut for CastRewriter<'_> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.casts.contains(expr) {
            let _: ControlFlow<()> = VisitMut::visit(expr, &mut CastCaller);
        }
        ControlFlow::Continue(())
    }
}

/// `CAST(a AS varchar)` as `cast_to_type(a, CAST(NULL AS varchar))`, which planning turns into the cast again.
struct CastCaller;

impl VisitorMut for CastCaller {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Cast { kind, expr: value, .. } = expr else {
            return ControlFlow::Continue(());
        };
        let function = match kind {
            CastKind::Cast | CastKind::DoubleColon => "cast_to_type",
            CastKind::TryCast | CastKind::SafeCast => "try_cast_to_type",
        };
        if is_null(value) {
            return ControlFlow::Continue(());
        }
        let value = std::mem::replace(&mut **value, Expr::Value(Value::Null.into()));
        let of_type = std::mem::replace(expr, Expr::Identifier(Ident::new("")));
        *expr = call(function, [value, of_type]);
        ControlFlow::Continue(())
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if value.value == Value::Null)
}

fn call(function: &str, args: [Expr; 2]) -> Expr {
    let args = args.map(|arg| FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)));
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(function)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: args.into(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
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
    use thalweg_delta::schema::{ColumnType, TableColumn};

    use super::*;

    fn renamed(sql: &str) -> String {
        let columns = ["id", "day"].map(|name| TableColumn::new(name, ColumnType::Long));
        let schema = Arc::new(TableSchema {
            columns: columns.into(),
        });
        let mut statement = Parser::parse_sql(&GenericDialect {}, sql).unwrap().remove(0);
        name_operators(&mut statement);
        rename(&mut statement, &HashMap::from([("logs".to_owned(), schema)]));
        statement.to_string()
    }

    #[test]
    fn the_second_of_a_name_gets_a_number() {
        for (sql, expected) in [
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
            assert_eq!(renamed(sql), expected);
        }
    }

    #[test]
    fn columns_beside_all_columns_are_told_apart() {
        for (sql, expected) in [
            ("SELECT *, id FROM logs", "SELECT *, id AS \"id_1\" FROM logs"),
            ("SELECT id, * FROM logs", "SELECT id AS \"id_1\", * FROM logs"),
            (
                "SELECT l.*, l.day FROM logs AS l",
                "SELECT l.*, l.day AS \"day_1\" FROM logs AS l",
            ),
            (
                "SELECT *, id + 1 AS id FROM logs",
                "SELECT *, id + 1 AS \"id_1\" FROM logs",
            ),
            (
                "SELECT *, id AS n, n FROM logs",
                "SELECT *, id AS n, n AS \"n_1\" FROM logs",
            ),
            (
                "SELECT *, x FROM (SELECT *, 1 AS x FROM logs) AS s",
                "SELECT *, x AS \"x_1\" FROM (SELECT *, 1 AS x FROM logs) AS s",
            ),
            // What they are is not known, or they are not all.
            ("SELECT *, id FROM other", "SELECT *, id FROM other"),
            (
                "SELECT o.*, id FROM logs, other AS o",
                "SELECT o.*, id FROM logs, other AS o",
            ),
            (
                "SELECT * EXCEPT (id), id FROM logs",
                "SELECT * EXCEPT (id), id FROM logs",
            ),
        ] {
            assert_eq!(renamed(sql), expected);
        }
    }

    #[test]
    fn casts_with_the_name_of_another_column_are_told_apart() {
        for (sql, expected) in [
            (
                "SELECT day, CAST(day AS TEXT) FROM t GROUP BY 1, 2",
                "SELECT day, cast_to_type(day, CAST(NULL AS TEXT)) AS \"day_1\" FROM t GROUP BY 1, 2",
            ),
            (
                "SELECT day::TEXT || 'x' FROM t GROUP BY day, day::TEXT ORDER BY day::TEXT",
                "SELECT cast_to_type(day, NULL::TEXT) || 'x' AS \"day::TEXT || 'x'\" FROM t GROUP BY day, cast_to_type(day, NULL::TEXT) \
                 ORDER BY cast_to_type(day, NULL::TEXT)",
            ),
            (
                "SELECT CAST(i AS DOUBLE) FROM t ORDER BY CAST(i AS TEXT), i",
                "SELECT CAST(i AS DOUBLE) AS \"CAST(i AS DOUBLE)\" FROM t ORDER BY CAST(i AS TEXT), i",
            ),
            (
                "SELECT DISTINCT CAST(i AS DOUBLE), abs(j) AS j FROM t ORDER BY CAST(i AS DOUBLE), abs(j), j",
                "SELECT DISTINCT CAST(i AS DOUBLE), abs(j) AS j FROM t ORDER BY 1, 2, j",
            ),
            (
                "SELECT CAST(i AS DOUBLE), t.i FROM t ORDER BY abs(i)",
                "SELECT CAST(i AS DOUBLE), t.i AS \"i_1\" FROM t ORDER BY abs(i)",
            ),
            (
                "SELECT CAST(i AS DOUBLE) FROM t GROUP BY CAST(i AS DOUBLE) HAVING count(*) > 1",
                "SELECT CAST(i AS DOUBLE) FROM t GROUP BY CAST(i AS DOUBLE) HAVING count(*) > 1",
            ),
            (
                "SELECT *, CAST(i AS TEXT) FROM t ORDER BY CAST(i AS TEXT)",
                "SELECT *, CAST(i AS TEXT) AS \"CAST(i AS TEXT)\" FROM t ORDER BY CAST(i AS TEXT)",
            ),
        ] {
            assert_eq!(renamed(sql), expected);
        }
    }

    #[test]
    fn columns_of_json_are_named_as_they_are_written() {
        assert_eq!(
            renamed("SELECT a -> 'b', (a ->> 'b')::int, a ->> 'b' AS c FROM t"),
            "SELECT a -> 'b' AS \"a -> 'b'\", (a ->> 'b')::INT AS \"a ->> 'b'\", a ->> 'b' AS c FROM t"
        );
    }
}
