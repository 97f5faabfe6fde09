//! Query errors: a kind, from which the code for programs and the status for HTTP follow, and a sentence for people.

use std::fmt;

use datafusion::common::DataFusionError;

thalweg_kit::error_kinds! {
    /// The kinds of query errors. The order is that of the statuses.
    pub enum QueryErrorKind {
        BadRequest = "query.bad_request", 400, Never,
            "The request breaks a rule other than SQL syntax; correct what the message names.";
        Parse = "sql.parse", 400, Never,
            "The text is no SQL statement, or several of them; correct it.";
        Plan = "sql.plan", 400, Never,
            "The statement names something that does not exist, or types do not fit; correct it.";
        NotAllowed = "sql.not_allowed", 403, Never,
            "Only statements that read can be run.";
        BodyTooLarge = "query.bad_request", 413, Never,
            "The request is too large; shorten the statement or its parameters.";
        Execute = "sql.execute", 422, Never,
            "The query failed on the data, such as in a cast; change the query.";
        TooLarge = "query.too_large", 422, Never,
            "A function would make a value that is too large; ask for less, or raise `query.memory`.";
        TooComplex = "query.too_complex", 422, Never,
            "The plan, a type or a regular expression is too large; simplify the query.";
        Busy = "query.busy", 429, After(1),
            "As many queries run and wait as are allowed; try again, or raise `query.concurrency`.";
        // Counted, and never sent: servers log this status for a client that has disconnected.
        Cancelled = "query.cancelled", 499, Never,
            "The reader of the answer has gone; this is only counted.";
        Memory = "query.memory", 503, Later,
            "The query needs more memory than is free; ask for less, or raise `query.memory`.";
        Unavailable = "query.unavailable", 503, Later,
            "A table cannot be read now, or the process stops; the message says why.";
        Timeout = "query.timeout", 504, Never,
            "The query took too long; ask for less, such as a shorter time range, or raise `query.timeout`.";
        WaitTimeout = "lake.wait_timeout", 504, Later,
            "The rows that the query waits for did not become visible in time.";
    }
}

impl fmt::Display for QueryErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().code)
    }
}

/// An error of a query. `Display` shows the code and the sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct QueryError {
    pub kind: QueryErrorKind,
    pub message: String,
}

impl QueryError {
    fn new(kind: QueryErrorKind, message: impl Into<String>) -> QueryError {
        QueryError {
            kind,
            message: message.into(),
        }
    }

    pub fn code(&self) -> &'static str {
        self.kind.facts().code
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.kind.facts().status
    }

    pub fn parse(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::Parse, message)
    }

    pub fn plan(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::Plan, message)
    }

    pub(crate) fn no_table(name: &str, known: &[String]) -> QueryError {
        QueryError::plan(match known {
            [] => format!("there is no table {name}: the lake has no tables yet"),
            known => format!("there is no table {name}; the tables are: {}", known.join(", ")),
        })
    }

    pub fn execute(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::Execute, message)
    }

    pub fn not_allowed(statement: &str) -> QueryError {
        let message = format!("only SELECT, WITH, EXPLAIN, SHOW and DESCRIBE can be run here, not {statement}");
        QueryError::new(QueryErrorKind::NotAllowed, message)
    }

    pub fn timeout(seconds: f64) -> QueryError {
        let message = format!(
            "the query was stopped after {seconds} s; ask for less (a time range, fewer columns) or raise query.timeout"
        );
        QueryError::new(QueryErrorKind::Timeout, message)
    }

    /// Only counted, never sent.
    pub(crate) fn cancelled() -> QueryError {
        QueryError::new(QueryErrorKind::Cancelled, "the reader of the answer has gone")
    }

    pub fn busy(waiting: usize) -> QueryError {
        let message = format!("{waiting} queries are waiting; try again in a moment or raise query.concurrency");
        QueryError::new(QueryErrorKind::Busy, message)
    }

    pub fn memory(message: &str) -> QueryError {
        let message = format!("the query needs more memory than query.memory gives it ({message})");
        QueryError::new(QueryErrorKind::Memory, message)
    }

    /// Queries use more memory than they reserved, and this one has run the longest.
    pub(crate) fn outgrown(held: usize, allowed: usize) -> QueryError {
        QueryError::memory(&format!(
            "queries hold {held} bytes, and {allowed} bytes are allowed; this one has run the longest; ask for less or raise query.memory"
        ))
    }

    /// The result of a function would exceed the result limit.
    pub fn too_large(function: &str, asked: usize, allowed: usize) -> QueryError {
        let asked = match asked {
            usize::MAX => "more bytes than can be counted".to_owned(),
            asked => format!("{asked} bytes"),
        };
        let message = format!(
            "{function} would make {asked} at once, and {allowed} are allowed; ask for less or raise query.memory"
        );
        QueryError::new(QueryErrorKind::TooLarge, message)
    }

    /// A plan or a type is too large.
    pub fn too_complex(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::TooComplex, message)
    }

    /// A regular expression is too expensive to compile.
    pub fn pattern(function: &str, why: &str) -> QueryError {
        QueryError::too_complex(format!("the regular expression of {function} is too large: {why}"))
    }

    /// The awaited rows did not become visible in time.
    pub fn wait_timeout(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::WaitTimeout, message)
    }

    pub fn request(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::BadRequest, message)
    }

    pub(crate) fn body_too_large(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::BodyTooLarge, message)
    }

    pub fn unavailable(message: impl Into<String>) -> QueryError {
        QueryError::new(QueryErrorKind::Unavailable, message)
    }

    /// Converts an error from planning.
    pub(crate) fn of_planning(error: DataFusionError) -> QueryError {
        match root(&error) {
            DataFusionError::SQL(parser, _) => QueryError::parse(parser.to_string()),
            DataFusionError::ResourcesExhausted(text) => QueryError::memory(text),
            DataFusionError::External(source) => match source.downcast_ref::<QueryError>() {
                Some(error) => error.clone(),
                None => QueryError::plan(source.to_string()),
            },
            root => QueryError::plan(sentence(root)),
        }
    }

    /// Converts an error from execution.
    pub(crate) fn of_execution(error: DataFusionError) -> QueryError {
        match root(&error) {
            DataFusionError::ResourcesExhausted(text) => QueryError::memory(text),
            DataFusionError::External(source) => match source.downcast_ref::<QueryError>() {
                Some(error) => error.clone(),
                None => QueryError::execute(source.to_string()),
            },
            root => match sentence(root) {
                // The library reports this only as text.
                text if text.contains(SPILL_FULL) => {
                    QueryError::memory("its spill files on disk have used up query.spill")
                }
                text => QueryError::execute(text),
            },
        }
    }
}

const SPILL_FULL: &str = "used disk space during the spilling";

/// The error below contexts and diagnostics.
fn root(error: &DataFusionError) -> &DataFusionError {
    match error {
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => root(inner),
        DataFusionError::Shared(inner) => root(inner),
        DataFusionError::Collection(errors) => errors.first().map_or(error, root),
        DataFusionError::ArrowError(inner, _) => match inner.as_ref() {
            arrow::error::ArrowError::ExternalError(source) => match source.downcast_ref::<DataFusionError>() {
                Some(inner) => root(inner),
                None => error,
            },
            _ => error,
        },
        _ => error,
    }
}

/// The message without the library's prefix and backtrace.
fn sentence(error: &DataFusionError) -> String {
    let text = error.strip_backtrace();
    let known = [
        "Error during planning: ",
        "Schema error: ",
        "Execution error: ",
        "Arrow error: ",
        "Invalid argument error: ",
    ];
    let mut rest = text.as_str();
    while let Some(stripped) = known.iter().find_map(|prefix| rest.strip_prefix(prefix)) {
        rest = stripped;
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_and_prefixes_are_taken_off() {
        let error = DataFusionError::Plan("no such thing".into()).context("while planning");
        assert_eq!(QueryError::of_planning(error), QueryError::plan("no such thing"));
        let error = DataFusionError::ResourcesExhausted("pool".into()).context("sort");
        assert_eq!(QueryError::of_execution(error).kind, QueryErrorKind::Memory);
        let own = QueryError::plan("mine");
        assert_eq!(
            QueryError::of_planning(DataFusionError::External(Box::new(own.clone()))),
            own
        );
    }
}
