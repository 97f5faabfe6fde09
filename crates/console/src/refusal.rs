//! Refusals by the listener itself, before any component sees the request: one sentence with the cure. It is text for
//! people and for clients of the reference system, and `application/problem+json` with a code under the paths of
//! components that answer so ([`HttpRoutes::problem_paths`](thalweg_telemetry::HttpRoutes::problem_paths)).
//!
//! The refusing code writes the text; only the outermost middleware knows the path and so the form.

use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::Response;
use thalweg_http::answer;

thalweg_kit::error_kinds! {
    /// The kinds of refusals by the listener. The order is that of the statuses.
    pub enum ListenerErrorKind {
        BadRequest = "bad_request", 400, Never,
            "The header `Host` is missing, given twice or invalid; send one with a valid name.";
        NotAuthenticated = "not_authenticated", 401, Never,
            "The path needs a login; send a token of `auth.tokens` or a user of `auth.users_file`.";
        NotAuthorized = "not_authorized", 403, Never,
            "The login lacks a role, or the path is closed to this host or web page; the message names the setting.";
        NotFound = "not_found", 404, Never,
            "There is no such path; `/endpoints` lists the existing ones.";
        MethodNotAllowed = "method_not_allowed", 405, Never,
            "The path does not have this method; the header `Allow` lists those that it has.";
        RequestTimeout = "request_timeout", 408, Later,
            "The body arrived too slowly; send it over a faster line or in parts.";
        MessageTooLarge = "message_too_large", 413, Never,
            "The body is too large; send it in parts.";
        TooManyPending = "too_many_pending", 429, After(1),
            "Many passwords are being checked; try again, or use a token.";
        TooManyConnections = "too_many_connections", 503, After(5),
            "As many connections or event streams are open as are allowed; close some, or try again.";
    }
}

/// Prefix of the API for programs, whatever component serves it.
const API: &str = "/api/v1";

/// Stored with a refusal until its form is known.
#[derive(Clone)]
struct RefusalDetail {
    kind: ListenerErrorKind,
    text: String,
}

/// A refusal as text.
pub fn refusal(kind: ListenerErrorKind, text: String) -> Response {
    let mut response = answer::refusal(kind.facts(), answer::TEXT, format!("{text}\n"));
    response.extensions_mut().insert(RefusalDetail { kind, text });
    response
}

/// Paths at and below which refusals are problems.
#[derive(Clone)]
pub struct ProblemPaths(Arc<[&'static str]>);

impl ProblemPaths {
    pub fn new(paths: Vec<&'static str>) -> ProblemPaths {
        ProblemPaths(paths.into())
    }

    /// An unknown path below the API prefix is answered like the rest of its API.
    fn has_unknown(path: &str) -> bool {
        path == API || path.strip_prefix(API).is_some_and(|rest| rest.starts_with('/'))
    }

    fn has(&self, path: &str) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        self.0.iter().any(|known| path.strip_prefix(known).is_some_and(below))
    }
}

/// The properties of a request that determine the form of its refusal.
pub struct RefusalContext {
    method: Method,
    uri: Uri,
    is_problem: bool,
}

impl ProblemPaths {
    /// `None`: a refusal is sent as text.
    pub fn form(&self, request: &Parts) -> Option<RefusalContext> {
        let path = request.uri.path();
        let is_problem = self.has(path);
        (is_problem || ProblemPaths::has_unknown(path)).then(|| RefusalContext {
            method: request.method.clone(),
            uri: request.uri.clone(),
            is_problem,
        })
    }
}

/// The final answer, including refusals by others.
pub fn in_form(form: Option<RefusalContext>, mut response: Response) -> Response {
    let refused = response.extensions_mut().remove::<RefusalDetail>();
    let Some(form) = form else { return response };
    let is_unknown = matches!(&refused, Some(refused) if refused.kind == ListenerErrorKind::NotFound);
    if !form.is_problem && !is_unknown {
        return response;
    }
    let refused = match refused {
        Some(refused) => refused,
        // The router's own refusal, which only lists the allowed methods.
        None if response.status() == StatusCode::METHOD_NOT_ALLOWED => RefusalDetail {
            kind: ListenerErrorKind::MethodNotAllowed,
            text: format!(
                "there is no {}; see the header Allow, or /api/v1/openapi.json",
                format!("{} {}", form.method, form.uri.path())
                    .chars()
                    .take(200)
                    .collect::<String>()
            ),
        },
        None => return response,
    };
    let body = answer::problem(refused.kind.facts(), &refused.text).to_string();
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    let media_type = HeaderValue::from_static(answer::PROBLEM_JSON);
    parts.headers.insert(header::CONTENT_TYPE, media_type);
    Response::from_parts(parts, body.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_begin_at_a_path_and_not_at_its_letters() {
        let paths = ProblemPaths::new(vec!["/api/v1/queues"]);
        for (path, expected) in [
            ("/api/v1/queues", true),
            ("/api/v1/queues/q:purge", true),
            ("/api/v1/queuesx", false),
            ("/api/v1/status", false),
        ] {
            assert_eq!(paths.has(path), expected, "{path}");
        }
    }
}
