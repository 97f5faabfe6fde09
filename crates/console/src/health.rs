//! Small paths for machines: liveness, readiness, version, metrics.

use std::sync::Arc;

use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;

use crate::chunked_body;
use crate::status::ConsoleState;

/// Paths open to everybody.
pub fn open(state: &Arc<ConsoleState>) -> Router {
    Router::new()
        .route("/ping", get(async || "pong"))
        .route("/ready", get(ready))
        .route("/version", get(version))
        .with_state(state.clone())
}

pub fn readable(state: &Arc<ConsoleState>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/stats", get(metrics))
        .route("/endpoints", get(endpoints))
        .with_state(state.clone())
}

async fn ready(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    let not_ready = state.board.not_ready();
    if !not_ready.is_empty() {
        return (StatusCode::SERVICE_UNAVAILABLE, not_ready.join("\n") + "\n").into_response();
    }
    let degraded = state.board.degraded();
    match degraded.is_empty() {
        true => "OK\n".into_response(),
        false => format!("OK, but degraded\n{}\n", degraded.join("\n")).into_response(),
    }
}

async fn version(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    #[derive(Serialize)]
    struct Version<'a> {
        version: &'a str,
        built: &'a str,
    }
    Json(Version {
        version: &state.version,
        built: &state.built,
    })
    .into_response()
}

async fn endpoints(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    Json(&state.endpoints).into_response()
}

/// Rendered on a blocking thread, because its size grows with flows, queues and namespaces; liveness probes must not
/// wait for it.
async fn metrics(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    let Some(text) = state.metrics.text_aside().await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, chunked_body::in_pieces(text)).into_response()
}
