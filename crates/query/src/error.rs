//! Query errors: a code for programs, a status for HTTP, a sentence for people.

use datafusion::common::DataFusionError;

/// An error of a query. `Display` shows the code and the sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct QueryError {
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    pub message: String,
}

impl QueryError {
    fn new(code: &'static str, status: u16, message: impl Into<String>) -> QueryError {
        QueryError {
            code,
            status,
            message: message.into(),
        }
    }

    pub fn parse(message: impl Into<String>) -> QueryError {
        QueryError::new("sql.parse", 400, message)
    }

    pub fn plan(message: impl Into<String>) -> QueryError {
        QueryError::new("sql.plan", 400, message)
    }

    pub(crate) fn no_table(name: &str, known: &[String]) -> QueryError {
        QueryError::plan(match known {
            [] => format!("there is no table {name}: the lake has no tables yet"),
            known => format!("there is no table {name}; the tables are: {}", known.join(", ")),
        })
    }

    pub fn execute(message: impl Into<String>) -> QueryError {
        QueryError::new("sql.execute", 422, message)
    }

    pub fn not_allowed(statement: &str) -> QueryError {
        let message = format!("only SELECT, WITH, EXPLAIN, SHOW and DESCRIBE can be run here, not {statement}");
        QueryError::new("sql.not_allowed", 403, message)
    }

    pub fn timeout(seconds: f64) -> QueryError {
        let message = format!(
            "the query was stopped after {seconds} s; ask for less (a time range, fewer columns) or raise query.timeout"
        );
        QueryError::new("query.timeout", 504, message)
    }

    /// Only counted, never sent. Servers log this status for a client that disconnected.
    pub(crate) fn cancelled() -> QueryError {
        QueryError::new("query.cancelled", 499, "the reader of the answer has gone")
    }

    pub fn busy(waiting: usize) -> QueryError {
        let message = format!("{waiting} queries are waiting; try again in a moment or raise query.concurrency");
        QueryError::new("query.busy", 429, message)
    }

    pub fn memory(message: &str) -> QueryError {
        let message = format!("the query needs more memory than query.memory gives it ({message})");
        QueryError::new("query.memory", 503, message)
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
        QueryError::new("query.too_large", 422, message)
    }

    /// A plan or a type is too large.
    pub fn too_complex(message: impl Into<String>) -> QueryError {
        QueryError::new("query.too_complex", 422, message)
    }

    /// A regular expression is too expensive to compile.
    pub fn pattern(function: &str, why: &str) -> QueryError {
        QueryError::too_complex(format!("the regular expression of {function} is too large: {why}"))
    }

    /// The awaited rows did not become visible in time.
    pub fn wait_timeout(message: impl Into<String>) -> QueryError {
        QueryError::new("lake.wait_timeout", 504, message)
    }

    pub fn request(message: impl Into<String>) -> QueryError {
        QueryError::new("query.bad_request", 400, message)
    }

    pub fn unavailable(message: impl Into<String>) -> QueryError {
        QueryError::new("query.unavailable", 503, message)
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
        assert_eq!(QueryError::of_execution(error).status, 503);
        let own = QueryError::plan("mine");
        assert_eq!(
            QueryError::of_planning(DataFusionError::External(Box::new(own.clone()))),
            own
        );
    }
}
