//! Rewrites functions to existing columns and expressions before planning.
//!
//! `attr('name')`, `resource('name')` and `scope('name')` read an attribute by its original name, from its column or
//! from the overflow map, whichever a row uses; beside other tables, `l.attr('name')` reads that of `l`. Attributes are texts,
//! but for columns of a declared type, which these functions read as texts, too: arithmetic and the aggregate functions of numbers
//! get their numbers, and null for what is none; `min` and `max` order numbers by their value.
//! `time_bucket(width, time [, origin])` is the start of the bucket that contains a time.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, CastKind, DataType as SqlType, ExactNumberInfo, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, ObjectName, Query, Select, SelectItem, SetExpr, Statement, TableFactor, TableWithJoins,
    UnaryOperator, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;
use std::sync::Arc;
use thalweg_delta::schema::{ColumnType, TableSchema};

use crate::attribute_text;
use crate::error::QueryError;
use crate::exact::attribute_extremes;

const ATTRIBUTE_FUNCTIONS: [&str; 3] = ["attr", "resource", "scope"];
const TIME_BUCKET: &str = "time_bucket";

/// Aggregate functions of numbers. `min` and `max` are not among them: they have an order for texts, too.
const NUMERIC_AGGREGATES: [&str; 30] = [
    "sum",
    "avg",
    "mean",
    "median",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "var",
    "var_pop",
    "var_population",
    "var_samp",
    "var_sample",
    "covar",
    "covar_pop",
    "covar_samp",
    "corr",
    "regr_slope",
    "regr_intercept",
    "regr_count",
    "regr_r2",
    "regr_avgx",
    "regr_avgy",
    "regr_sxx",
    "regr_syy",
    "regr_sxy",
    "percentile_cont",
    "quantile_cont",
    "approx_percentile_cont",
    "approx_percentile_cont_with_weight",
    "approx_median",
];

/// Whether an aggregate function takes numbers only.
pub fn takes_numbers(function: &str) -> bool {
    NUMERIC_AGGREGATES.contains(&function)
}

/// Whether a statement may use one of the functions; most do not.
pub fn may_use(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    lower.contains(TIME_BUCKET) || ATTRIBUTE_FUNCTIONS.iter().any(|name| lower.contains(name))
}

/// Replaces the functions in a statement over tables with these schemas, and makes numbers of attributes where only a number
/// makes sense.
pub fn rewrite(statement: &mut Statement, schemas: &HashMap<String, Arc<TableSchema>>) -> Result<(), QueryError> {
    let mut rewriter = Rewriter {
        schemas,
        scopes: Vec::new(),
    };
    match statement.visit(&mut rewriter) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Rewriter<'a> {
    schemas: &'a HashMap<String, Arc<TableSchema>>,
    /// The tables of the SELECTs that enclose the current position, innermost last.
    scopes: Vec<Vec<TableInScope>>,
}

/// A table of a FROM clause.
struct TableInScope {
    /// Its alias, or else its name.
    name: Ident,
    /// `None`: a subquery, a WITH table or a function.
    schema: Option<Arc<TableSchema>>,
}

impl VisitorMut for Rewriter<'_> {
    type Break = QueryError;

    /// ORDER BY stands outside the SELECT whose tables it reads.
    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<QueryError> {
        let tables = match query.body.as_ref() {
            SetExpr::Select(select) => self.tables(select),
            _ => Vec::new(),
        };
        self.scopes.push(tables);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<QueryError> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    /// Result columns keep the name that was written.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<QueryError> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && let Some(call) = called(expr)
            {
                let alias = Ident::with_quote('"', call.unqualified());
                *item = SelectItem::ExprWithAlias {
                    expr: expr.clone(),
                    alias,
                };
            }
        }
        self.scopes.push(self.tables(select));
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, _select: &mut Select) -> ControlFlow<QueryError> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    /// Before the operands are rewritten, so that attributes are still known as such.
    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<QueryError> {
        match expr {
            Expr::Function(function) if is_numeric(function) => {
                if let FunctionArguments::List(list) = &mut function.args {
                    for arg in &mut list.args {
                        if let FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) = arg {
                            self.to_number(value);
                        }
                    }
                }
                for sort in &mut function.within_group {
                    self.to_number(&mut sort.expr);
                }
            }
            Expr::Function(function) => {
                if let Some(name) = extreme_of_attributes(function)
                    && arguments(function).iter().any(|value| self.is_attribute(value))
                {
                    function.name = ObjectName::from(vec![Ident::new(name)]);
                }
            }
            Expr::BinaryOp { left, op, right } if is_arithmetic(op) => {
                let is_with_interval = |side: &Expr| matches!(side, Expr::Interval(_));
                if !is_with_interval(left) && !is_with_interval(right) {
                    self.to_number(left);
                    self.to_number(right);
                }
            }
            Expr::UnaryOp {
                op: UnaryOperator::Minus,
                expr: value,
            } => self.to_number(value),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<QueryError> {
        let Some(call) = called(expr) else {
            return ControlFlow::Continue(());
        };
        let replacement = match call.name {
            TIME_BUCKET => time_bucket(call.function),
            _ => self.attribute(&call).and_then(|text| parse_expr(&text)),
        };
        match replacement {
            Ok(replacement) => {
                *expr = replacement;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl Rewriter<'_> {
    fn tables(&self, select: &Select) -> Vec<TableInScope> {
        let mut tables = Vec::new();
        for from in &select.from {
            self.add_tables(from, &mut tables);
        }
        tables
    }

    fn add_tables(&self, from: &TableWithJoins, tables: &mut Vec<TableInScope>) {
        let joined = from.joins.iter().map(|join| &join.relation);
        for relation in std::iter::once(&from.relation).chain(joined) {
            match relation {
                TableFactor::NestedJoin { table_with_joins, .. } => self.add_tables(table_with_joins, tables),
                TableFactor::Table { name, alias, .. } => {
                    let Some(own) = name.0.last().and_then(|part| part.as_ident()) else {
                        continue;
                    };
                    let named = alias.as_ref().map_or(own, |alias| &alias.name);
                    tables.push(TableInScope {
                        name: named.clone(),
                        schema: self.schemas.get(&normalized(own)).cloned(),
                    });
                }
                TableFactor::Derived { alias: Some(alias), .. } => tables.push(TableInScope {
                    name: alias.name.clone(),
                    schema: None,
                }),
                _ => {}
            }
        }
    }

    /// `attr('name')` as an expression of the column and the overflow map.
    fn attribute(&self, call: &AttributeCall<'_>) -> Result<String, QueryError> {
        let source = call.name;
        let [name] = arguments(call.function)[..] else {
            return Err(QueryError::plan(format!(
                "{source}() takes one argument, the name of an attribute in quotes"
            )));
        };
        let Some(name) = text_literal(name) else {
            return Err(QueryError::plan(format!(
                "{source}({name}): the name must be a text in single quotes"
            )));
        };
        let key = format!("{source}.{name}").replace('\'', "''");
        let read = |prefix: &str, column: Option<BoundColumn>| match column {
            None => format!("{prefix}\"overflow\"['{key}']"),
            Some(BoundColumn { name, is_text: true }) => {
                format!("coalesce({prefix}\"{name}\", {prefix}\"overflow\"['{key}'])")
            }
            Some(BoundColumn { name, is_text: false }) => {
                let text = attribute_text::NAME;
                format!("coalesce({text}({prefix}\"{name}\"), {prefix}\"overflow\"['{key}'])")
            }
        };
        if let Some(table) = self.table_of(call)? {
            let schema = table.schema.as_ref();
            let column = schema.and_then(|schema| bound_column(schema, source, name));
            return Ok(read(&format!("{}.", table.name), column));
        }
        let schemas: Vec<&Arc<TableSchema>> = match self.scopes.last().map(Vec::as_slice) {
            Some([TableInScope { schema: Some(one), .. }]) => vec![one],
            // It is one of a query below: its columns have the names of all tables of the statement.
            _ => self.schemas.values().collect(),
        };
        let columns = schemas
            .into_iter()
            .filter_map(|schema| bound_column(schema, source, name));
        let mut columns: Vec<BoundColumn> = columns.collect();
        // The function of typed columns takes texts, too.
        columns.sort_by(|a, b| (&a.name, a.is_text).cmp(&(&b.name, b.is_text)));
        columns.dedup_by(|a, b| a.name == b.name);
        match &columns[..] {
            [] => Ok(read("", None)),
            [column] => Ok(read("", Some(column.clone()))),
            [first, .., last] => Err(QueryError::plan(format!(
                "{source}('{name}') is {} in one of the tables and {} in another; use the columns",
                first.name, last.name
            ))),
        }
    }

    /// The table whose attribute is read, if it has to be named.
    fn table_of(&self, call: &AttributeCall<'_>) -> Result<Option<&TableInScope>, QueryError> {
        if let Some(qualifier) = call.qualifier {
            let all = self.scopes.iter().rev().flatten();
            let found = all
                .clone()
                .find(|table| normalized(&table.name) == normalized(qualifier));
            return match found {
                Some(table) => Ok(Some(table)),
                None => {
                    let names: BTreeSet<String> = all.map(|table| table.name.to_string()).collect();
                    Err(QueryError::plan(format!(
                        "{}: there is no table {qualifier} here; the tables are: {}",
                        call.function,
                        names.into_iter().collect::<Vec<_>>().join(", ")
                    )))
                }
            };
        }
        let Some(tables) = self.scopes.last().filter(|tables| tables.len() > 1) else {
            return Ok(None);
        };
        let with_attributes: Vec<_> = tables.iter().filter(|table| table.schema.is_some()).collect();
        match with_attributes[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            [first, ..] => Err(QueryError::plan(format!(
                "{}: several tables have attributes; name the one that is meant: {}.{}",
                call.function,
                first.name,
                call.unqualified()
            ))),
        }
    }

    /// Makes a number of an attribute, null if it is none.
    fn to_number(&self, value: &mut Expr) {
        if self.is_attribute(value) {
            let inner = std::mem::replace(value, Expr::Identifier(Ident::new("")));
            *value = Expr::Cast {
                kind: CastKind::TryCast,
                expr: Box::new(inner),
                data_type: SqlType::Double(ExactNumberInfo::None),
                array: false,
                format: None,
            };
        }
    }

    /// Whether an expression is an attribute that is stored as text.
    fn is_attribute(&self, expr: &Expr) -> bool {
        let (table, column) = match expr {
            Expr::Nested(inner) => return self.is_attribute(inner),
            Expr::Identifier(name) => (None, name),
            Expr::CompoundIdentifier(parts) => match &parts[..] {
                [.., table, name] => (Some(table), name),
                _ => return false,
            },
            _ => return called(expr).is_some_and(|call| call.name != TIME_BUCKET),
        };
        let name = normalized(column);
        let is_text = |schema: &TableSchema| {
            let columns = schema.columns.iter();
            columns
                .filter(|column| column.name == name && column.binding().is_some())
                .any(|column| column.kind == ColumnType::String)
        };
        match self.schema_of(table, &name) {
            Some(schema) => is_text(schema),
            None => self.schemas.values().any(|schema| is_text(schema)),
        }
    }

    /// The table of a column, if it is certain: its name is known, or it alone has such a column in the innermost scope that
    /// has any, and no subquery there has columns of unknown names.
    fn schema_of(&self, table: Option<&Ident>, column: &str) -> Option<&TableSchema> {
        let named = |known: &&TableInScope| table.is_none_or(|table| normalized(&known.name) == normalized(table));
        for scope in self.scopes.iter().rev() {
            let mut with_column = scope.iter().filter(&named).filter(|known| {
                let schema = known.schema.as_ref();
                schema.is_none_or(|schema| schema.columns.iter().any(|known| known.name == column))
            });
            match (with_column.next(), with_column.next()) {
                (None, _) => continue,
                (Some(known), None) => return known.schema.as_deref(),
                _ => return None,
            }
        }
        None
    }
}

/// The column of an attribute.
#[derive(Clone, Debug)]
struct BoundColumn {
    name: String,
    is_text: bool,
}

fn bound_column(schema: &TableSchema, source: &str, name: &str) -> Option<BoundColumn> {
    let column = schema
        .columns
        .iter()
        .find(|column| column.binding() == Some((source, name)));
    column.map(|column| BoundColumn {
        name: column.name.clone(),
        is_text: column.kind == ColumnType::String,
    })
}

fn normalized(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_ascii_lowercase(),
    }
}

fn is_numeric(function: &Function) -> bool {
    takes_numbers(&function.name.to_string().to_ascii_lowercase())
}

/// The function in place of `min` and `max` for attributes.
fn extreme_of_attributes(function: &Function) -> Option<&'static str> {
    match function.name.to_string().to_ascii_lowercase().as_str() {
        "min" => Some(attribute_extremes::MIN),
        "max" => Some(attribute_extremes::MAX),
        _ => None,
    }
}

pub fn is_arithmetic(operator: &BinaryOperator) -> bool {
    use BinaryOperator::{Divide, Minus, Modulo, Multiply, Plus};
    matches!(operator, Plus | Minus | Multiply | Divide | Modulo)
}

/// A call of a function of this module.
struct AttributeCall<'a> {
    name: &'static str,
    /// The table before the name: `l.attr('x')`.
    qualifier: Option<&'a Ident>,
    function: &'a Function,
}

impl AttributeCall<'_> {
    /// The call without its table.
    fn unqualified(&self) -> String {
        match self.qualifier {
            None => self.function.to_string(),
            Some(_) => {
                let mut function = self.function.clone();
                function.name = ObjectName::from(vec![Ident::new(self.name)]);
                function.to_string()
            }
        }
    }
}

/// The function that an expression calls, if it is one of this module.
fn called(expr: &Expr) -> Option<AttributeCall<'_>> {
    let Expr::Function(function) = expr else { return None };
    let (qualifier, name) = match &function.name.0[..] {
        [name] => (None, name.as_ident()?),
        [table, name] => (Some(table.as_ident()?), name.as_ident()?),
        _ => return None,
    };
    let known = |known: &&'static str| name.value.eq_ignore_ascii_case(known);
    let name = match qualifier {
        None => ATTRIBUTE_FUNCTIONS.into_iter().chain([TIME_BUCKET]).find(known)?,
        Some(_) => ATTRIBUTE_FUNCTIONS.into_iter().find(known)?,
    };
    Some(AttributeCall {
        name,
        qualifier,
        function,
    })
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

/// `date_bin` with the width as an interval. The other arguments stay as they are.
fn time_bucket(function: &Function) -> Result<Expr, QueryError> {
    if !matches!(arguments(function).len(), 2 | 3) {
        return Err(QueryError::plan(
            "time_bucket(width, time [, origin]) takes two or three arguments",
        ));
    }
    let mut made = function.clone();
    made.name = ObjectName::from(vec![Ident::new("date_bin")]);
    if let FunctionArguments::List(list) = &mut made.args
        && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(width))) = list.args.first_mut()
        && let Some(text) = text_literal(width)
    {
        let width_text = format!("INTERVAL '{}'", interval(text).replace('\'', "''"));
        *width = parse_expr(&width_text)?;
    }
    Ok(Expr::Function(made))
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

    /// The table `traces` has `attr_a_b` as a number.
    fn rewritten(sql: &str) -> Result<String, QueryError> {
        let schema = |kind: ColumnType| {
            let column = TableColumn {
                kind,
                ..TableColumn::attribute("attr_a_b".into(), "attr", "a.b")
            };
            Arc::new(TableSchema {
                columns: vec![TableColumn::new("overflow", ColumnType::TextMap), column],
            })
        };
        let texts = ["tags", "logs"].map(|table| (table, ColumnType::String));
        let schemas = texts.into_iter().chain([("traces", ColumnType::Long)]);
        let schemas = schemas.filter(|(table, _)| sql.contains(table));
        let schemas: Vec<_> = schemas.map(|(table, kind)| (table.to_owned(), schema(kind))).collect();
        let mut statement = Parser::parse_sql(&GenericDialect {}, sql).unwrap().remove(0);
        rewrite(&mut statement, &schemas.into_iter().collect())?;
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
    fn a_table_before_the_function_tells_whose_attribute_it_is() {
        let read = |table: &str| format!("coalesce({table}.\"attr_a_b\", {table}.\"overflow\"['attr.a.b'])");
        assert_eq!(
            rewritten("SELECT l.attr('a.b'), t.attr('a.b') FROM logs l JOIN tags AS t ON l.attr('a.b') = t.attr('a.b') ORDER BY t.attr('a.b')")
                .unwrap(),
            format!(
                "SELECT {l} AS \"attr('a.b')\", {t} AS \"attr('a.b')\" FROM logs l JOIN tags AS t ON {l} = {t} ORDER BY {t}",
                l = read("l"),
                t = read("t")
            )
        );
        // The only table that has attributes need not be named.
        assert_eq!(
            rewritten("SELECT 1 FROM logs l, (SELECT 1 AS x) AS s WHERE attr('a.b') = '1'").unwrap(),
            format!("SELECT 1 FROM logs l, (SELECT 1 AS x) AS s WHERE {} = '1'", read("l"))
        );
        // An outer table.
        assert_eq!(
            rewritten("SELECT 1 FROM logs l WHERE EXISTS (SELECT 1 FROM tags t WHERE l.attr('a.b') = '1')").unwrap(),
            format!(
                "SELECT 1 FROM logs l WHERE EXISTS (SELECT 1 FROM tags t WHERE {} = '1')",
                read("l")
            )
        );
        assert_eq!(
            rewritten("SELECT attr('a.b') FROM logs l, tags t").unwrap_err().message,
            "attr('a.b'): several tables have attributes; name the one that is meant: l.attr('a.b')"
        );
        assert_eq!(
            rewritten("SELECT x.attr('a.b') FROM logs l, tags").unwrap_err().message,
            "x.attr('a.b'): there is no table x here; the tables are: l, tags"
        );
    }

    #[test]
    fn numbers_are_made_of_attributes_where_only_numbers_make_sense() {
        assert_eq!(
            rewritten("SELECT avg(attr_a_b), max(attr_a_b), sum(attr('x')), tag * 2 FROM tags WHERE t.attr_a_b + 1 > -attr_a_b").unwrap(),
            "SELECT avg(TRY_CAST(attr_a_b AS DOUBLE)), attribute_max(attr_a_b), sum(TRY_CAST(\"overflow\"['attr.x'] AS DOUBLE)), \
             tag * 2 FROM tags WHERE TRY_CAST(t.attr_a_b AS DOUBLE) + 1 > -TRY_CAST(attr_a_b AS DOUBLE)"
        );
    }

    #[test]
    fn attributes_of_a_declared_type_are_read_as_texts_by_their_name_and_as_they_are_by_their_column() {
        let text = "coalesce(attribute_text(\"attr_a_b\"), \"overflow\"['attr.a.b'])";
        assert_eq!(
            rewritten("SELECT sum(attr_a_b), max(attr_a_b), attr_a_b + 1, sum(attr('a.b')) FROM traces WHERE attr('a.b') = '1'")
                .unwrap(),
            format!(
                "SELECT sum(attr_a_b), max(attr_a_b), attr_a_b + 1, sum(TRY_CAST({text} AS DOUBLE)) FROM traces WHERE {text} = '1'"
            )
        );
        // Each table has its own type, where it is certain whose column it is.
        let (number, texts) = ("sum(t.attr_a_b)", "sum(TRY_CAST(l.attr_a_b AS DOUBLE))");
        assert_eq!(
            rewritten(
                "SELECT sum(t.attr_a_b), sum(l.attr_a_b) FROM traces t JOIN logs l ON l.attr('a.b') = t.attr('a.b')"
            )
            .unwrap(),
            format!(
                "SELECT {number}, {texts} FROM traces t JOIN logs l ON coalesce(l.\"attr_a_b\", l.\"overflow\"['attr.a.b']) = \
                 coalesce(attribute_text(t.\"attr_a_b\"), t.\"overflow\"['attr.a.b'])"
            )
        );
        assert_eq!(
            rewritten("SELECT sum(attr_a_b) FROM traces WHERE EXISTS (SELECT sum(attr_a_b) FROM logs)").unwrap(),
            "SELECT sum(attr_a_b) FROM traces WHERE EXISTS (SELECT sum(TRY_CAST(attr_a_b AS DOUBLE)) FROM logs)"
        );
        assert_eq!(
            rewritten(
                "SELECT sum(attr_a_b) FROM (SELECT attr_a_b FROM traces UNION ALL SELECT attr_a_b FROM logs) AS u"
            )
            .unwrap(),
            "SELECT sum(TRY_CAST(attr_a_b AS DOUBLE)) FROM (SELECT attr_a_b FROM traces UNION ALL SELECT attr_a_b FROM logs) AS u"
        );
        // Of tables below, one may have texts, which the function takes, too.
        let plain = "coalesce(\"attr_a_b\", \"overflow\"['attr.a.b'])";
        assert_eq!(
            rewritten("SELECT attr('a.b') FROM traces UNION ALL SELECT attr('a.b') FROM logs").unwrap(),
            format!(
                "SELECT {text} AS \"attr('a.b')\" FROM traces UNION ALL SELECT {plain} AS \"attr('a.b')\" FROM logs"
            )
        );
        assert_eq!(
            rewritten("SELECT 1 FROM (SELECT * FROM traces UNION ALL SELECT * FROM logs) AS u WHERE attr('a.b') = '1'")
                .unwrap(),
            format!("SELECT 1 FROM (SELECT * FROM traces UNION ALL SELECT * FROM logs) AS u WHERE {text} = '1'")
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
