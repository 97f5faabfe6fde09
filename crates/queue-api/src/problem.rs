//! Errors as clients see them: `application/problem+json` with a code that never changes.
//!
//! Every error becomes a [`Problem`]. Its status, code and `Retry-After` are those of
//! [`QueueError`](thalweg_queue::QueueError); this module adds only errors specific to HTTP.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use thalweg_queue::QueueError;

/// A refusal: what happened, and the cure.
#[derive(Debug)]
pub struct Problem {
    pub status: u16,
    pub code: &'static str,
    pub detail: String,
    pub retry_after: Option<Duration>,
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    fn new(status: u16, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            detail: detail.into(),
            retry_after: None,
        }
    }

    /// The request breaks a rule, which the text names.
    pub fn invalid(detail: impl Into<String>) -> Problem {
        Problem::new(400, "invalid_config", detail)
    }

    pub fn too_large(detail: impl Into<String>) -> Problem {
        Problem::new(413, "message_too_large", detail)
    }

    /// The request bodies being read have used up their memory limit.
    pub fn too_many_bodies(bytes_max: usize) -> Problem {
        let detail = format!(
            "the requests being read take {bytes_max} bytes, their limit together; try again, in smaller parts"
        );
        Problem {
            retry_after: Some(Duration::from_secs(1)),
            ..Problem::new(429, "too_many_pending", detail)
        }
    }

    /// Continues "you may not".
    pub fn not_authorized(action: String, reason: &str) -> Problem {
        let (action, reason) = (action.into(), reason.into());
        QueueError::NotAuthorized { action, reason }.into()
    }

    pub fn no_such_path(detail: impl Into<String>) -> Problem {
        Problem::new(404, "not_found", detail)
    }

    pub fn no_such_method(detail: impl Into<String>) -> Problem {
        Problem::new(405, "method_not_allowed", detail)
    }

    /// A defect of this program.
    pub fn internal() -> Problem {
        Problem::new(
            500,
            "internal",
            "the request failed; the log of the process has the reason; report it",
        )
    }

    /// Prefixes the error with its position.
    pub fn within(mut self, place: impl std::fmt::Display) -> Problem {
        self.detail = format!("{place}: {}", self.detail);
        self
    }

    pub fn to_json(&self) -> Value {
        json!({
            "type": format!("urn:thalweg:error:{}", self.code),
            "title": self.code.replace('_', " "),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        })
    }
}

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        Problem {
            status: error.http_status(),
            code: error.code(),
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
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (status, content_type, self.to_json().to_string()).into_response();
        if let Some(after) = self.retry_after {
            // Whole seconds, and never zero, which would mean at once.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            let value = HeaderValue::from(seconds.max(1));
            response.headers_mut().insert(header::RETRY_AFTER, value);
        }
        response
    }
}
