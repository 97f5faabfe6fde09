//! Rewrites functions to existing columns and expressions before planning.
//!
//! `attr('name')`, `resource('name')` and `scope('name')` read an attribute by its original name, from its column or
//! from the overflow map, whichever a row uses. `time_bucket(width, time [, origin])` is the start of the bucket that
//! contains a time.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, Select, SelectItem, Statement, Value,
    VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::sync::Arc;
use thalweg_delta::schema::TableSchema;

use crate::error::QueryError;

const ATTRIBUTE_FUNCTIONS: [&str; 3] = ["attr", "resource", "scope"];
const TIME_BUCKET: &str = "time_bucket";

/// Whether a statement may use one of the functions; most do not.
pub fn may_use(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    lower.contains(TIME_BUCKET) || ATTRIBUTE_FUNCTIONS.iter().any(|name| lower.contains(name))
}

/// Replaces the functions in a statement over tables with these schemas.
pub fn rewrite(statement: &mut Statement, schemas: &[Arc<TableSchema>]) -> Result<(), QueryError> {
    match statement.visit(&mut Rewriter { schemas }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rewriter<'a> {
    schemas: &'a [Arc<TableSchema>],
}

impl VisitorMut for Rewriter<'_> {
    type Break = QueryError;

    /// Result columns keep the name that was written.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<QueryError> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && called(expr).is_some()
            {
                let alias = Ident::with_quote('"', expr.to_string());
                *item = SelectItem::ExprWithAlias {
                    expr: expr.clone(),
                    alias,
                };
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<QueryError> {
        let Some((name, function)) = called(expr) else {
            return ControlFlow::Continue(());
        };
        let text = match name {
            TIME_BUCKET => time_bucket(function),
            source => attribute(source, function, self.schemas),
        };
        match text.and_then(|text| parse_expr(&text)) {
            Ok(replacement) => {
                *expr = replacement;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// The function that an expression calls, if it is one of this module.
fn called(expr: &Expr) -> Option<(&'static str, &Function)> {
    let Expr::Function(function) = expr else { return None };
    let name = function.name.to_string();
    let known = ATTRIBUTE_FUNCTIONS.into_iter().chain([TIME_BUCKET]);
    Some((
        known.into_iter().find(|known| name.eq_ignore_ascii_case(known))?,
        function,
    ))
}

fn arguments(function: &Function) -> Vec<&Expr> {
    let FunctionArguments::List(list) = &function.args else {
        return Vec::new();
    };
    let plain = list.args.iter().filter_map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    plain.collect()
}

fn text_literal(expr: &Expr) -> Option<&str> {
    let Expr::Value(value) = expr else { return None };
    match &value.value {
        Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => Some(text),
        _ => None,
    }
}

fn attribute(source: &str, function: &Function, schemas: &[Arc<TableSchema>]) -> Result<String, QueryError> {
    let [name] = arguments(function)[..] else {
        return Err(QueryError::plan(format!(
            "{source}() takes one argument, the name of an attribute in quotes"
        )));
    };
    let Some(name) = text_literal(name) else {
        return Err(QueryError::plan(format!(
            "{source}({name}): the name must be a text in single quotes"
        )));
    };
    let bound = |schema: &Arc<TableSchema>| {
        let column = schema
            .columns
            .iter()
            .find(|column| column.binding() == Some((source, name)));
        column.map(|column| column.name.clone())
    };
    let mut columns: Vec<String> = schemas.iter().filter_map(bound).collect();
    columns.sort();
    columns.dedup();
    let overflow = format!("\"overflow\"['{}']", format!("{source}.{name}").replace('\'', "''"));
    match &columns[..] {
        [] => Ok(overflow),
        [column] => Ok(format!("coalesce(\"{column}\", {overflow})")),
        several => Err(QueryError::plan(format!(
            "{source}('{name}') is {} in one of the tables and {} in another; use the columns",
            several.first().map_or("", String::as_str),
            several.last().map_or("", String::as_str)
        ))),
    }
}

fn time_bucket(function: &Function) -> Result<String, QueryError> {
    let arguments = arguments(function);
    let (width, rest) = match &arguments[..] {
        [width, time] => (width, time.to_string()),
        [width, time, origin] => (width, format!("{time}, {origin}")),
        _ => {
            return Err(QueryError::plan(
                "time_bucket(width, time [, origin]) takes two or three arguments",
            ));
        }
    };
    let width = match text_literal(width) {
        Some(text) => format!("INTERVAL '{}'", interval(text).replace('\'', "''")),
        None => width.to_string(),
    };
    Ok(format!("date_bin({width}, {rest})"))
}

/// Converts `5m` or `1h30m` to SQL; other texts are left to the planner.
fn interval(text: &str) -> String {
    const UNITS: [(&str, &str); 6] = [
        ("ms", "milliseconds"),
        ("s", "seconds"),
        ("m", "minutes"),
        ("h", "hours"),
        ("d", "days"),
        ("w", "weeks"),
    ];
    let mut parts = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at(digits);
        let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
        let (unit, after) = after.split_at(letters);
        match UNITS.iter().find(|(short, _)| *short == unit) {
            Some((_, name)) if !number.is_empty() => parts.push(format!("{number} {name}")),
            _ => return text.to_owned(),
        }
        rest = after;
    }
    parts.join(" ")
}

fn parse_expr(text: &str) -> Result<Expr, QueryError> {
    let parser = Parser::new(&GenericDialect {}).try_with_sql(text);
    parser
        .and_then(|mut parser| parser.parse_expr())
        .map_err(|e| QueryError::parse(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_delta::schema::{ColumnType, TableColumn};

    fn rewritten(sql: &str) -> Result<String, QueryError> {
        let schema = TableSchema {
            columns: vec![
                TableColumn::new("overflow", ColumnType::TextMap),
                TableColumn::attribute("attr_a_b".into(), "attr", "a.b"),
            ],
        };
        let mut statement = Parser::parse_sql(&GenericDialect {}, sql).unwrap().remove(0);
        rewrite(&mut statement, &[Arc::new(schema)])?;
        Ok(statement.to_string())
    }

    #[test]
    fn attributes_are_read_from_their_column_or_the_overflow() {
        assert_eq!(
            rewritten("SELECT attr('a.b') FROM tags WHERE attr('x''y') = '1'").unwrap(),
            "SELECT coalesce(\"attr_a_b\", \"overflow\"['attr.a.b']) AS \"attr('a.b')\" FROM tags \
             WHERE \"overflow\"['attr.x''y'] = '1'"
        );
        assert!(
            rewritten("SELECT attr(x) FROM tags")
                .unwrap_err()
                .message
                .contains("single quotes")
        );
        assert!(
            rewritten("SELECT attr() FROM tags")
                .unwrap_err()
                .message
                .contains("one argument")
        );
    }

    #[test]
    fn buckets_take_short_widths() {
        assert_eq!(
            rewritten("SELECT time_bucket('1h30m', time) AS t FROM tags").unwrap(),
            "SELECT date_bin(INTERVAL '1 hours 30 minutes', time) AS t FROM tags"
        );
        assert_eq!(
            rewritten("SELECT 1 FROM tags GROUP BY time_bucket('5 minutes', time)").unwrap(),
            "SELECT 1 FROM tags GROUP BY date_bin(INTERVAL '5 minutes', time)"
        );
    }
}
