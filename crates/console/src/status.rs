//! `/api/v1/status`: a snapshot of everything that the page draws, as totals since start. The page derives rates from
//! two snapshots, so a snapshot costs no more than reading the counters.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use thalweg_kit::clock;
use thalweg_telemetry::{FlowStatus, HttpRoutes, Metrics, StatusBoard, TableStatus, aside};

use crate::chunked_body::in_pieces;
use crate::history::History;
use crate::{ConsoleOptions, StartError, routes};

/// State shared by the handlers.
pub struct ConsoleState {
    pub board: StatusBoard,
    pub metrics: Arc<Metrics>,
    pub history: History,
    pub version: String,
    pub built: String,
    pub endpoints: BTreeMap<String, String>,
    started: Instant,
    started_unix_ms: u64,
    cores: usize,
}

impl ConsoleState {
    pub fn new(
        options: &ConsoleOptions,
        board: StatusBoard,
        metrics: Arc<Metrics>,
        others: &[Arc<dyn HttpRoutes>],
    ) -> Result<Arc<ConsoleState>, StartError> {
        let since_epoch = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Arc::new(ConsoleState {
            board,
            metrics,
            history: History::default(),
            version: options.version.clone(),
            built: options.built.clone(),
            endpoints: routes::endpoints(options.http.debug_endpoints, others)?,
            started: clock::now(),
            started_unix_ms: since_epoch.as_millis() as u64,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }))
    }

    /// Since the console started. Monotonic, so differences are good for rates.
    pub fn uptime_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }
}

#[derive(Serialize)]
struct StatusSnapshot<'a> {
    version: &'a str,
    built: &'a str,
    /// Distinguishes one run of the process from the next.
    started_unix_ms: u64,
    uptime_ms: u64,
    process: ProcessSnapshot,
    not_ready: Vec<String>,
    /// Problems that do not stop the data.
    degraded: Vec<String>,
    flows: Vec<FlowStatus>,
    tables: Vec<TableStatus>,
    /// Whether `/api/sql` is available.
    sql: bool,
}

#[derive(Serialize)]
struct ProcessSnapshot {
    cores: usize,
    cpu_seconds: f64,
    resident_bytes: u64,
    allocations: u64,
    allocated_bytes: u64,
}

pub fn router(state: &Arc<ConsoleState>) -> Router {
    Router::new()
        .route("/api/v1/status", get(look))
        .route("/api/v1/status/history", get(history))
        .with_state(state.clone())
}

/// Runs on a blocking thread, because it covers every flow and every table.
async fn look(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    aside(move || look_of(&state)).await
}

fn look_of(state: &ConsoleState) -> Response {
    let (allocations, allocated_bytes) = thalweg_telemetry::alloc::allocated();
    let look = StatusSnapshot {
        version: &state.version,
        built: &state.built,
        started_unix_ms: state.started_unix_ms,
        // Taken together with the counters below, not at the end of the answer.
        uptime_ms: state.uptime_ms(),
        flows: state.board.flows(),
        tables: state.board.tables(),
        not_ready: state.board.not_ready(),
        degraded: state.board.degraded(),
        process: ProcessSnapshot {
            cores: state.cores,
            cpu_seconds: thalweg_telemetry::cpu_time().as_secs_f64(),
            resident_bytes: thalweg_telemetry::resident_bytes(),
            allocations,
            allocated_bytes,
        },
        sql: state.endpoints.contains_key("/api/sql"),
    };
    fresh(&look)
}

async fn history(Shared(state): Shared<Arc<ConsoleState>>) -> Response {
    aside(move || fresh(&state.history.samples())).await
}

fn fresh(answer: &impl Serialize) -> Response {
    let kind = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    match serde_json::to_vec(answer) {
        Ok(text) => (kind, in_pieces(text)).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
