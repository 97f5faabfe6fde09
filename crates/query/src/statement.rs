//! Parses SQL text to one read-only statement: nothing that changes data, settings or files.

use std::ops::ControlFlow;

use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Expr, Query, SetExpr, Statement as Sql, Visit as _, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;

use crate::error::QueryError;
use crate::{expansion, nesting};

/// Longer texts are refused.
pub const SQL_BYTES_MAX: usize = 128 << 10;

/// Nesting of expressions. Planning time grows with its square: a fifth of a second here.
const DEPTH_MAX: usize = 512;

/// Parses and checks a query.
pub fn parse(sql: &str) -> Result<Statement, QueryError> {
    if sql.len() > SQL_BYTES_MAX {
        return Err(QueryError::parse(format!(
            "the query has {} bytes, {SQL_BYTES_MAX} are allowed",
            sql.len()
        )));
    }
    nesting::check(sql)?;
    let parser = DFParserBuilder::new(sql).with_dialect(&GenericDialect {}).build();
    let statements = parser.and_then(|mut parser| parser.parse_statements());
    let mut statements = statements.map_err(QueryError::of_planning)?;
    let statement = statements
        .pop_front()
        .ok_or_else(|| QueryError::parse("the query is empty"))?;
    if !statements.is_empty() {
        return Err(QueryError::parse("only one statement can be run at a time"));
    }
    check(&statement)?;
    check_depth(&statement)?;
    Ok(statement)
}

/// Limits nesting and repetition. A chain such as `a OR b OR c` is nested too: each operator contains all before it.
fn check_depth(statement: &Statement) -> Result<(), QueryError> {
    let sql = match statement {
        Statement::Statement(sql) => sql,
        Statement::Explain(explain) => return check_depth(&explain.statement),
        _ => return Ok(()),
    };
    expansion::check(sql)?;
    match sql.visit(&mut Depth(0)) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(QueryError::parse(format!(
            "more than {DEPTH_MAX} operators are nested or chained; write a list as IN (...), or split it into \
             several queries"
        ))),
    }
}

struct Depth(usize);

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_expr(&mut self, _expr: &Expr) -> ControlFlow<()> {
        self.0 += 1;
        if self.0 > DEPTH_MAX {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn post_visit_expr(&mut self, _expr: &Expr) -> ControlFlow<()> {
        self.0 -= 1;
        ControlFlow::Continue(())
    }
}

fn check(statement: &Statement) -> Result<(), QueryError> {
    match statement {
        Statement::Statement(sql) => check_sql(sql),
        Statement::Explain(explain) => check(&explain.statement),
        Statement::CreateExternalTable(_) => Err(QueryError::not_allowed("CREATE EXTERNAL TABLE")),
        Statement::CopyTo(_) => Err(QueryError::not_allowed("COPY")),
        Statement::Reset(_) => Err(QueryError::not_allowed("RESET")),
    }
}

fn check_sql(statement: &Sql) -> Result<(), QueryError> {
    match statement {
        Sql::Query(query) => check_query(query),
        Sql::Explain { statement, .. } => check_sql(statement),
        Sql::ExplainTable { .. }
        | Sql::ShowColumns { .. }
        | Sql::ShowTables { .. }
        | Sql::ShowSchemas { .. }
        | Sql::ShowDatabases { .. }
        | Sql::ShowCatalogs { .. }
        | Sql::ShowFunctions { .. }
        | Sql::ShowVariable { .. }
        | Sql::ShowVariables { .. }
        | Sql::ShowCreate { .. } => Ok(()),
        other => Err(QueryError::not_allowed(&first_word(&other.to_string()))),
    }
}

fn check_query(query: &Query) -> Result<(), QueryError> {
    let with = query.with.iter().flat_map(|with| &with.cte_tables);
    for table in with {
        check_query(&table.query)?;
    }
    check_body(&query.body)
}

fn check_body(body: &SetExpr) -> Result<(), QueryError> {
    match body {
        SetExpr::Select(select) if select.into.is_some() => Err(QueryError::not_allowed("SELECT INTO")),
        SetExpr::Select(_) | SetExpr::Values(_) | SetExpr::Table(_) => Ok(()),
        SetExpr::Query(query) => check_query(query),
        SetExpr::SetOperation { left, right, .. } => {
            check_body(left)?;
            check_body(right)
        }
        SetExpr::Insert(statement)
        | SetExpr::Update(statement)
        | SetExpr::Delete(statement)
        | SetExpr::Merge(statement) => Err(QueryError::not_allowed(&first_word(&statement.to_string()))),
    }
}

fn first_word(text: &str) -> String {
    text.split_whitespace()
        .next()
        .unwrap_or("this statement")
        .to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_read_are_allowed() {
        for sql in [
            "select 1",
            "WITH a AS (SELECT 1) SELECT * FROM a UNION ALL VALUES (2)",
            "explain analyze select 1",
            "SHOW TABLES",
            "DESCRIBE tags",
            "show columns from tags;",
        ] {
            assert!(parse(sql).is_ok(), "{sql}: {:?}", parse(sql));
        }
    }

    #[test]
    fn everything_else_is_refused_by_name() {
        for (sql, name) in [
            ("insert into tags values (1)", "INSERT"),
            ("DROP TABLE tags", "DROP"),
            ("delete from tags", "DELETE"),
            ("create table t as select 1", "CREATE"),
            (
                "create external table t stored as parquet location '/etc'",
                "CREATE EXTERNAL TABLE",
            ),
            ("copy (select 1) to '/tmp/x'", "COPY"),
            ("set datafusion.execution.batch_size = 1", "SET"),
            ("explain insert into tags values (1)", "INSERT"),
            ("with a as (select 1) select * into t from a", "SELECT INTO"),
            ("truncate table tags", "TRUNCATE"),
        ] {
            let error = parse(sql).unwrap_err();
            assert_eq!(
                (error.code(), error.status()),
                ("sql.not_allowed", 403),
                "{sql}: {error}"
            );
            assert!(error.message.ends_with(&format!("not {name}")), "{error}");
        }
    }

    #[test]
    fn chains_are_bounded_and_lists_are_not() {
        let chain = |n: usize| format!("select 1 where {}", vec!["a = 1"; n].join(" or "));
        assert!(parse(&chain(500)).is_ok());
        assert_eq!(parse(&chain(2_000)).unwrap_err().code(), "sql.parse");
        assert!(parse(&format!("select 1 where a in ({})", vec!["1"; 20_000].join(","))).is_ok());
    }

    #[test]
    fn text_that_is_no_single_statement_is_a_parse_error() {
        for sql in [
            "",
            "selec 1",
            "select 1; select 2",
            "select (",
            &" ".repeat(SQL_BYTES_MAX + 1),
        ] {
            assert_eq!(parse(sql).unwrap_err().code(), "sql.parse", "{}", sql.len());
        }
    }
}
