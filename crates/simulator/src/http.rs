//! `GET /sim/stats`: the ticker's books as JSON. `POST /sim/start`: lets go of changes that are held. Pages of other sites
//! get neither.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use thalweg_telemetry::{Foreign, Names, Origins};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::Stats;
use crate::simulator::Reporter;

pub(crate) async fn serve(listener: TcpListener, reporter: Reporter, cancel: CancellationToken) {
    // Whoever serves other hosts serves them under any name.
    let is_own = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let origins = Arc::new(Origins {
        names: if is_own { Names::Own } else { Names::Any },
        ..Origins::default()
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

async fn judged(origins: Arc<Origins>, request: Request, next: Next) -> Response {
    match origins.judge(&request, false) {
        Ok(()) => next.run(request).await,
        Err(foreign @ Foreign::Host(_)) => (StatusCode::BAD_REQUEST, format!("{foreign}\n")).into_response(),
        Err(foreign) => (StatusCode::FORBIDDEN, format!("{foreign}\n")).into_response(),
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
