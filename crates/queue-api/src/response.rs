//! Answers that are JSON.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

pub fn json(value: &Value) -> Response {
    json_with(StatusCode::OK, value)
}

pub fn json_with(status: StatusCode, value: &Value) -> Response {
    raw(status, value.to_string().into())
}

/// A body that is JSON already.
pub fn raw(status: StatusCode, body: Body) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub fn nothing() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
