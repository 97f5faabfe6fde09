//! Errors as clients see them: `application/problem+json` with a code that never changes.
//!
//! Every error becomes a [`Problem`]. Its kind is that of a [`QueueError`](thalweg_queue::QueueError), or one of those
//! that only requests have, [`RequestErrorKind`]; code, status and `Retry-After` follow from the kind.

use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use thalweg_http::answer;
use thalweg_http::compression::UnknownCoding;
use thalweg_kit::error_facts::ErrorFacts;
use thalweg_queue::{QueueError, QueueErrorKind};

thalweg_kit::error_kinds! {
    /// The kinds of errors of requests that no queue reports.
    pub enum RequestErrorKind {
        NotFound = "not_found", 404, Never,
            "There is no such path; `/api/v1/openapi.json` lists the existing ones.";
        MethodNotAllowed = "method_not_allowed", 405, Never,
            "The path does not have this method; the header `Allow` lists those that it has.";
        // The answer of the listener.
        RequestTimeout = "request_timeout", 408, Later,
            "The body arrived too slowly; send it over a faster line or in parts.";
        UnsupportedEncoding = "unsupported_encoding", 415, Never,
            "The body is compressed in a way that is not read; send it as gzip, as zstd or uncompressed.";
        Internal = "internal", 500, Later,
            "A bug in the program ended the request; the log of the process has the reason; report it.";
    }
}

/// The kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProblemKind {
    Queue(QueueErrorKind),
    Request(RequestErrorKind),
}

impl ProblemKind {
    pub const fn facts(self) -> ErrorFacts {
        match self {
            ProblemKind::Queue(kind) => kind.facts(),
            ProblemKind::Request(kind) => kind.facts(),
        }
    }
}

/// A refusal: what happened, and the cure.
#[derive(Debug)]
pub struct Problem {
    pub kind: ProblemKind,
    pub detail: String,
    pub retry_after: Option<Duration>,
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    fn new(kind: ProblemKind, detail: impl Into<String>) -> Problem {
        Problem {
            kind,
            detail: detail.into(),
            retry_after: kind.facts().retry.after(),
        }
    }

    /// The request breaks a rule, which the text names.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(ProblemKind::Queue(QueueErrorKind::InvalidConfig), detail)
    }

    pub fn too_large(detail: impl Into<String>) -> Problem {
        Problem::new(ProblemKind::Queue(QueueErrorKind::MessageTooLarge), detail)
    }

    /// The request bodies being read have used up their memory limit.
    pub fn too_many_bodies(bytes_max: usize) -> Problem {
        let detail = format!(
            "the requests being read take {bytes_max} bytes, their limit together; try again, in smaller parts"
        );
        Problem::new(ProblemKind::Queue(QueueErrorKind::TooManyPending), detail)
    }

    /// Continues "you may not".
    pub fn not_authorized(action: String, reason: &str) -> Problem {
        let (action, reason) = (action.into(), reason.into());
        QueueError::NotAuthorized { action, reason }.into()
    }

    pub fn no_such_path(detail: impl Into<String>) -> Problem {
        Problem::new(ProblemKind::Request(RequestErrorKind::NotFound), detail)
    }

    pub fn no_such_method(detail: impl Into<String>) -> Problem {
        Problem::new(ProblemKind::Request(RequestErrorKind::MethodNotAllowed), detail)
    }

    /// A bug in this program.
    pub fn internal() -> Problem {
        Problem::new(
            ProblemKind::Request(RequestErrorKind::Internal),
            "the request failed; the log of the process has the reason; report it",
        )
    }

    /// Prefixes the error with its position.
    pub fn within(mut self, place: impl std::fmt::Display) -> Problem {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    pub fn to_json(&self) -> Value {
        answer::problem(self.kind.facts(), &self.detail)
    }
}

impl From<UnknownCoding> for Problem {
    fn from(error: UnknownCoding) -> Problem {
        Problem::new(
            ProblemKind::Request(RequestErrorKind::UnsupportedEncoding),
            error.to_string(),
        )
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        Problem {
            kind: ProblemKind::Queue(error.kind()),
            detail: error.to_string(),
            retry_after: error.retry_after(),
        }
    }
}

impl From<thalweg_queue::IdError> for Problem {
    fn from(error: thalweg_queue::IdError) -> Problem {
        QueueError::from(error).into()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = self.to_json().to_string();
        let mut response = answer::refusal_after(self.kind.facts(), self.retry_after, answer::PROBLEM_JSON, body);
        if self.kind == ProblemKind::Request(RequestErrorKind::UnsupportedEncoding) {
            let accepted = HeaderValue::from_static("gzip, zstd");
            response.headers_mut().insert(header::ACCEPT_ENCODING, accepted);
        }
        response
    }
}
