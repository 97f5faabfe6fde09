//! `GET /sim/stats`: the ticker's books as JSON. `POST /sim/start`: lets go of changes that are held.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::Stats;
use crate::simulator::Reporter;

pub(crate) async fn serve(listener: TcpListener, reporter: Reporter, cancel: CancellationToken) {
    let router = Router::new()
        .route("/sim/stats", get(stats))
        .route("/sim/start", post(start))
        .with_state(reporter);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await;
    if let Err(error) = served {
        warn!(%error, "the statistics listener ended");
    }
}

/// A conflict if nothing is held.
async fn start(State(reporter): State<Reporter>) -> StatusCode {
    match reporter.let_go() {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::CONFLICT,
    }
}

async fn stats(State(reporter): State<Reporter>) -> Result<Json<Stats>, StatusCode> {
    reporter.stats().await.map(Json).ok_or(StatusCode::SERVICE_UNAVAILABLE)
}
