//! Error responses.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use thalweg_events::{EventsError, ExpectedVersion};
use thalweg_http::answer;
use thalweg_http::compression::UnknownCoding;

use crate::error_kind::EventsApiErrorKind;
use crate::json_text::text;

/// `{"error":{"code":…,"message":…,"details":…}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub kind: EventsApiErrorKind,
    pub message: String,
    /// The members of a JSON object.
    pub details: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub fn new(kind: EventsApiErrorKind, message: impl Into<String>) -> Problem {
        Problem {
            kind,
            message: message.into(),
            details: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(EventsApiErrorKind::InvalidRequest, message)
    }

    /// A temporary failure; `why` is for people.
    pub fn unavailable(why: impl Into<String>) -> Problem {
        Problem::new(EventsApiErrorKind::Unavailable, why)
    }

    /// The log says where, as for every panic.
    pub fn bug() -> Problem {
        let message = "A bug in the program ended this request; the log of the process has the reason";
        Problem::new(EventsApiErrorKind::InternalError, message)
    }

    /// Other requests have had all memory for as long as a request waits.
    pub fn no_room() -> Problem {
        Problem::unavailable("The server has no memory left for this request; try again later")
    }

    pub fn stopping() -> Problem {
        Problem::unavailable("The server is shutting down")
    }

    /// The token ended while the request was waiting.
    pub fn unauthorized(namespace: &str) -> Problem {
        let message = "Token not authorized for namespace";
        Problem::new(EventsApiErrorKind::AuthUnauthorized, message).with("namespace", namespace)
    }

    pub fn method(allowed: &Method) -> Problem {
        Problem::new(EventsApiErrorKind::HttpMethod, format!("Only {allowed} method allowed"))
    }

    /// Adds one detail.
    pub fn with(mut self, name: &str, value: &str) -> Problem {
        let details = self.details.get_or_insert_with(String::new);
        if !details.is_empty() {
            details.push(',');
        }
        text(details, name);
        details.push(':');
        text(details, value);
        self
    }

    pub fn malformed(reason: &str) -> Problem {
        Problem::invalid("Malformed JSON request").with("error", reason)
    }

    pub fn no_namespace(name: &str) -> Problem {
        EventsError::NamespaceNotFound(name.to_owned()).into()
    }

    /// Maps an error of the store. `action` is named in internal errors only.
    pub fn of(action: &'static str) -> impl Fn(EventsError) -> Problem {
        move |error| {
            let mut problem = Problem::from(error);
            if problem.kind == EventsApiErrorKind::BackendError {
                problem.message = format!("Failed to {action}: {}", problem.message);
            }
            problem
        }
    }

    pub fn code(&self) -> &'static str {
        self.kind.facts().code
    }

    pub fn status(&self) -> StatusCode {
        answer::status(self.kind.facts())
    }

    pub fn text(&self) -> String {
        let mut out = String::from("{\"error\":{\"code\":");
        text(&mut out, self.code());
        out.push_str(",\"message\":");
        text(&mut out, &self.message);
        if let Some(details) = &self.details {
            let _ = write!(out, ",\"details\":{{{details}}}");
        }
        out.push_str("}}\n");
        out
    }

    pub fn answer(&self) -> Response<Body> {
        let mut response = answer::refusal(self.kind.facts(), answer::JSON, self.text());
        if self.kind == EventsApiErrorKind::UnsupportedEncoding {
            let accepted = HeaderValue::from_static("gzip, zstd");
            response.headers_mut().insert(ACCEPT_ENCODING, accepted);
        }
        response
    }
}

impl From<UnknownCoding> for Problem {
    fn from(error: UnknownCoding) -> Problem {
        Problem::new(EventsApiErrorKind::UnsupportedEncoding, error.to_string())
    }
}

/// The kind of an error of the store.
fn kind_of(error: &EventsError) -> EventsApiErrorKind {
    match error {
        EventsError::NamespaceNotFound(_) => EventsApiErrorKind::NamespaceNotFound,
        EventsError::NamespaceExists(_) => EventsApiErrorKind::NamespaceExists,
        EventsError::NamespaceKept | EventsError::TooLarge(_) | EventsError::NoPositions { .. } => {
            EventsApiErrorKind::InvalidRequest
        }
        EventsError::VersionConflict { .. } => EventsApiErrorKind::StreamVersionConflict,
        EventsError::IdConflict { .. } => EventsApiErrorKind::MessageIdConflict,
        EventsError::RulesFull { .. } => EventsApiErrorKind::RulesFull,
        EventsError::NamespacesFull { .. } => EventsApiErrorKind::NamespacesFull,
        EventsError::StreamDeleted(_) => EventsApiErrorKind::StreamDeleted,
        EventsError::Taken { .. } => EventsApiErrorKind::PositionExists,
        EventsError::SubscriptionNotFound(_) => EventsApiErrorKind::SubscriptionNotFound,
        EventsError::SubscriptionExists(_) => EventsApiErrorKind::SubscriptionExists,
        EventsError::SubscriptionFull { .. } => EventsApiErrorKind::SubscriptionFull,
        EventsError::Unavailable(_) => EventsApiErrorKind::Unavailable,
        EventsError::Unsupported(_) => EventsApiErrorKind::Unsupported,
        EventsError::Storage(_) | EventsError::Damaged(_) => EventsApiErrorKind::BackendError,
    }
}

/// What a client needs in order to resolve a conflict.
fn details_of(error: &EventsError) -> Option<String> {
    match error {
        EventsError::VersionConflict { expected, actual, .. } => {
            let mut details = format!("\"actual\":{actual},\"expected\":");
            match expected {
                ExpectedVersion::Version(version) => {
                    let _ = write!(details, "{version}");
                }
                named => text(&mut details, &named.to_string()),
            }
            Some(details)
        }
        EventsError::IdConflict { stream, position, .. } => {
            let mut details = String::from("\"stream\":");
            text(&mut details, stream);
            let _ = write!(details, ",\"position\":{position}");
            Some(details)
        }
        _ => None,
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Problem {
        Problem {
            details: details_of(&error),
            ..Problem::new(kind_of(&error), error.to_string())
        }
    }
}
