//! Error responses.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use thalweg_events::{EventsError, ExpectedVersion};

use crate::json_text::text;

/// `{"error":{"code":…,"message":…,"details":…}}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// The members of a JSON object.
    pub details: Option<String>,
}

pub(crate) type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Problem {
        Problem {
            status,
            code,
            message: message.into(),
            details: None,
        }
    }

    pub fn invalid(message: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "INVALID_REQUEST", message)
    }

    /// A temporary failure; `why` is for people.
    pub fn unavailable(why: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", why)
    }

    /// The log says where, as for every panic.
    pub fn bug() -> Problem {
        let message = "A bug in the server ended this request; the server's log says where";
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL_ERROR", message)
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
        Problem::new(StatusCode::FORBIDDEN, "AUTH_UNAUTHORIZED", message).with("namespace", namespace)
    }

    pub fn method(allowed: &Method) -> Problem {
        Problem {
            status: StatusCode::METHOD_NOT_ALLOWED,
            ..Problem::invalid(format!("Only {allowed} method allowed"))
        }
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
            if problem.code == "BACKEND_ERROR" {
                problem.message = format!("Failed to {action}: {}", problem.message);
            }
            problem
        }
    }

    pub fn text(&self) -> String {
        let mut out = String::from("{\"error\":{\"code\":");
        text(&mut out, self.code);
        out.push_str(",\"message\":");
        text(&mut out, &self.message);
        if let Some(details) = &self.details {
            let _ = write!(out, ",\"details\":{{{details}}}");
        }
        out.push_str("}}\n");
        out
    }

    pub fn answer(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.text()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<EventsError> for Problem {
    fn from(error: EventsError) -> Problem {
        let message = error.to_string();
        let of = |status, code| Problem::new(status, code, message.clone());
        match error {
            EventsError::NamespaceNotFound(_) => of(StatusCode::NOT_FOUND, "NAMESPACE_NOT_FOUND"),
            EventsError::NamespaceExists(_) => of(StatusCode::CONFLICT, "NAMESPACE_EXISTS"),
            EventsError::NamespaceKept | EventsError::TooLarge(_) | EventsError::NoPositions { .. } => {
                Problem::invalid(message)
            }
            EventsError::VersionConflict { expected, actual, .. } => {
                let mut details = format!("\"actual\":{actual},\"expected\":");
                match expected {
                    ExpectedVersion::Version(version) => {
                        let _ = write!(details, "{version}");
                    }
                    named => text(&mut details, &named.to_string()),
                }
                Problem {
                    details: Some(details),
                    ..of(StatusCode::CONFLICT, "STREAM_VERSION_CONFLICT")
                }
            }
            EventsError::IdConflict { stream, position, .. } => {
                let mut details = String::from("\"stream\":");
                text(&mut details, &stream);
                let _ = write!(details, ",\"position\":{position}");
                Problem {
                    details: Some(details),
                    ..of(StatusCode::CONFLICT, "MESSAGE_ID_CONFLICT")
                }
            }
            EventsError::RulesFull { .. } => of(StatusCode::INSUFFICIENT_STORAGE, "RULES_FULL"),
            EventsError::NamespacesFull { .. } => of(StatusCode::INSUFFICIENT_STORAGE, "NAMESPACES_FULL"),
            EventsError::StreamDeleted(_) => of(StatusCode::CONFLICT, "STREAM_DELETED"),
            EventsError::Taken { .. } => of(StatusCode::CONFLICT, "POSITION_EXISTS"),
            EventsError::SubscriptionNotFound(_) => of(StatusCode::NOT_FOUND, "SUBSCRIPTION_NOT_FOUND"),
            EventsError::SubscriptionExists(_) => of(StatusCode::CONFLICT, "SUBSCRIPTION_EXISTS"),
            EventsError::SubscriptionFull { .. } => of(StatusCode::CONFLICT, "SUBSCRIPTION_FULL"),
            EventsError::Unavailable(_) => of(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE"),
            EventsError::Unsupported(_) => of(StatusCode::NOT_IMPLEMENTED, "UNSUPPORTED"),
            EventsError::Storage(_) | EventsError::Damaged(_) => of(StatusCode::INTERNAL_SERVER_ERROR, "BACKEND_ERROR"),
        }
    }
}
