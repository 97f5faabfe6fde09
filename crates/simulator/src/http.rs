//! `GET /sim/stats` returns the ticker's statistics as JSON. `POST /sim/start` starts changes that are held. Requests
//! from pages of other sites are refused.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use thalweg_telemetry::{HostNames, OriginPolicy, OriginRefusal};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::SimulatorStats;
use crate::simulator::ControlHandle;

pub(crate) async fn serve(listener: TcpListener, reporter: ControlHandle, cancel: CancellationToken) {
    // A server that other hosts reach accepts any host name.
    let is_own = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let origins = Arc::new(OriginPolicy {
        names: if is_own { HostNames::Own } else { HostNames::Any },
        ..OriginPolicy::default()
    });
    let router = Router::new()
        .route("/sim/stats", get(stats))
        .route("/sim/start", post(start))
        .layer(from_fn(move |request, next| judged(origins.clone(), request, next)))
        .with_state(reporter);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await;
    if let Err(error) = served {
        warn!(%error, "the statistics listener ended");
    }
}

async fn judged(origins: Arc<OriginPolicy>, request: Request, next: Next) -> Response {
    match origins.judge(&request, false) {
        Ok(()) => next.run(request).await,
        Err(foreign @ OriginRefusal::Host(_)) => (StatusCode::BAD_REQUEST, format!("{foreign}\n")).into_response(),
        Err(foreign) => (StatusCode::FORBIDDEN, format!("{foreign}\n")).into_response(),
    }
}

/// Returns a conflict if nothing is held.
async fn start(State(reporter): State<ControlHandle>) -> StatusCode {
    match reporter.let_go() {
        true => StatusCode::NO_CONTENT,
        false => StatusCode::CONFLICT,
    }
}

async fn stats(State(reporter): State<ControlHandle>) -> Result<Json<SimulatorStats>, StatusCode> {
    reporter.stats().await.map(Json).ok_or(StatusCode::SERVICE_UNAVAILABLE)
}
