//! Parses SQL text to one read-only statement: nothing that changes data, settings or files.

use std::ops::ControlFlow;

use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{Expr, Select, Statement as Sql, Visit as _, Visitor};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::ParserError;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

use crate::error::QueryError;
use crate::{expansion, nesting, precedence, repeated_names};

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
    let parser = DFParserBuilder::new(tokens(sql)?)
        .with_dialect(&GenericDialect {})
        .build();
    let statements = parser.and_then(|mut parser| parser.parse_statements());
    let mut statements = statements.map_err(QueryError::of_planning)?;
    let mut statement = statements
        .pop_front()
        .ok_or_else(|| QueryError::parse("the query is empty"))?;
    if !statements.is_empty() {
        return Err(QueryError::parse("only one statement can be run at a time"));
    }
    check(&statement)?;
    check_depth(&statement)?;
    if let Some(sql) = sql_of(&mut statement) {
        precedence::correct(sql);
        repeated_names::name_operators(sql);
    }
    Ok(statement)
}

/// The tokens of a text. A single `?` is the operator of JSON: parameters are `$1` or `$name`.
fn tokens(sql: &str) -> Result<Vec<TokenWithSpan>, QueryError> {
    let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location();
    let mut tokens = tokens.map_err(|error| QueryError::of_planning(ParserError::from(error).into()))?;
    for token in &mut tokens {
        if matches!(&token.token, Token::Placeholder(name) if name == "?") {
            token.token = Token::Question;
        }
    }
    precedence::enclose_lower_bounds(&mut tokens);
    Ok(tokens)
}

/// The statement of SQL, also below EXPLAIN.
pub fn sql_of(statement: &mut Statement) -> Option<&mut Sql> {
    match statement {
        Statement::Statement(sql) => Some(sql),
        Statement::Explain(explain) => sql_of(&mut explain.statement),
        _ => None,
    }
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

/// Checks the statement and every query in it: a derived table, a subquery of an expression, a `WITH` table.
fn check_sql(statement: &Sql) -> Result<(), QueryError> {
    match statement.visit(&mut WriteFinder) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Stops at the first part of a statement that does more than read.
struct WriteFinder;

impl Visitor for WriteFinder {
    type Break = QueryError;

    /// Also called for an `INSERT`, `UPDATE`, `DELETE` or `MERGE` that stands where a query may stand.
    fn pre_visit_statement(&mut self, statement: &Sql) -> ControlFlow<QueryError> {
        match statement {
            Sql::Query(_)
            | Sql::Explain { .. }
            | Sql::ExplainTable { .. }
            | Sql::ShowColumns { .. }
            | Sql::ShowTables { .. }
            | Sql::ShowSchemas { .. }
            | Sql::ShowDatabases { .. }
            | Sql::ShowCatalogs { .. }
            | Sql::ShowFunctions { .. }
            | Sql::ShowVariable { .. }
            | Sql::ShowVariables { .. }
            | Sql::ShowCreate { .. } => ControlFlow::Continue(()),
            other => ControlFlow::Break(QueryError::not_allowed(&first_word(&other.to_string()))),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<QueryError> {
        match select.into {
            Some(_) => ControlFlow::Break(QueryError::not_allowed("SELECT INTO")),
            None => ControlFlow::Continue(()),
        }
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

    /// Where a query may stand, as `{}`.
    const PLACES: [&str; 42] = [
        "{}",
        "EXPLAIN {}",
        "EXPLAIN ANALYZE {}",
        "DESCRIBE {}",
        "({})",
        "WITH c AS ({}) SELECT * FROM c",
        "WITH c AS (WITH d AS ({}) SELECT * FROM d) SELECT * FROM c",
        "SELECT * FROM ({}) AS d",
        "SELECT * FROM (SELECT * FROM ({}) AS e) AS d",
        "SELECT * FROM (WITH c AS ({}) SELECT * FROM c) AS d",
        "SELECT * FROM t, LATERAL ({}) AS d",
        "SELECT * FROM t JOIN ({}) AS d ON true",
        "SELECT * FROM (t JOIN ({}) AS d ON true)",
        "SELECT * FROM t JOIN u ON t.a = ({})",
        "SELECT * FROM generate_series(1, ({}))",
        "SELECT * FROM UNNEST(ARRAY({}))",
        "SELECT * FROM t PIVOT (sum(a) FOR b IN ({}))",
        "SELECT ({}) AS a",
        "SELECT 1 + ({})",
        "SELECT coalesce(({}), 1)",
        "SELECT CASE WHEN EXISTS ({}) THEN 1 END",
        "SELECT ARRAY({})",
        "SELECT sum(a) OVER (ORDER BY ({})) FROM t",
        "SELECT sum(a) FILTER (WHERE EXISTS ({})) FROM t",
        "SELECT DISTINCT ON (({})) a FROM t",
        "SELECT a FROM t WINDOW w AS (ORDER BY ({}))",
        "SELECT 1 WHERE EXISTS ({})",
        "SELECT 1 WHERE NOT EXISTS ({})",
        "SELECT 1 WHERE 1 IN ({})",
        "SELECT 1 WHERE 1 NOT IN ({})",
        "SELECT 1 WHERE 1 = ANY ({})",
        "SELECT 1 WHERE 1 > ALL ({})",
        "SELECT a FROM t GROUP BY a, ({})",
        "SELECT count(*) FROM t HAVING count(*) > ({})",
        "SELECT 1 ORDER BY ({})",
        "SELECT 1 LIMIT ({})",
        "SELECT 1 OFFSET ({})",
        "SELECT 1 UNION ALL ({})",
        "({}) UNION SELECT 1",
        "SELECT 1 INTERSECT ({})",
        "VALUES (({}))",
        "SHOW TABLES WHERE 1 = ({})",
    ];

    /// Queries that write, and what a refusal names. `WITH` is allowed at all places, other words only at some.
    const WRITING: [(&str, &str); 5] = [
        ("SELECT 1 AS a INTO t", "SELECT INTO"),
        ("WITH w AS (SELECT 1 AS a) INSERT INTO t SELECT a FROM w", "INSERT"),
        ("WITH w AS (SELECT 1 AS a) UPDATE t SET a = 1", "UPDATE"),
        ("WITH w AS (SELECT 1 AS a) DELETE FROM t", "DELETE"),
        (
            "WITH w AS (SELECT 1 AS a) MERGE INTO t USING w ON t.a = w.a WHEN MATCHED THEN DELETE",
            "MERGE",
        ),
    ];

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
    fn what_writes_is_refused_wherever_a_query_may_stand() {
        // A place in a place, too.
        let outer = PLACES.into_iter().filter(|place| place.starts_with("SELECT"));
        let inner = outer.clone();
        let nested = outer.flat_map(|outer| inner.clone().map(move |inner| outer.replace("{}", inner)));
        let places: Vec<String> = PLACES.map(str::to_owned).into_iter().chain(nested).collect();
        for place in places {
            let with = |query: &str| place.replace("{}", query);
            for query in ["SELECT 1 AS a", "WITH w AS (SELECT 1 AS a) SELECT a FROM w"] {
                let sql = with(query);
                assert!(parse(&sql).is_ok(), "{sql}: {:?}", parse(&sql));
            }
            for (query, name) in WRITING {
                let sql = with(query);
                let error = parse(&sql).unwrap_err();
                assert_eq!(
                    (error.code(), error.status()),
                    ("sql.not_allowed", 403),
                    "{sql}: {error}"
                );
                assert!(error.message.ends_with(&format!("not {name}")), "{sql}: {error}");
            }
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
