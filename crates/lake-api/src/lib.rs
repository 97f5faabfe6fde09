//! The lake over HTTP: the state of its tables, and maintenance on request. Only the process that holds the data folder
//! serves it.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod maintenance;
mod status;

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures::stream;
use parking_lot::Mutex;
use thalweg_delta::store::LakeStorage;
use thalweg_http::answer;
use thalweg_http::body::{BodyFault, BodyRules, collect};
use thalweg_lake::LakeMetrics;
use thalweg_lake::maintenance::{MaintenanceOptions, MaintenanceRequest};
use thalweg_lake_flow::LakeTables;
use thalweg_telemetry::{Access, HttpRoutes, Mount};

pub use maintenance::MaintenanceLine;
pub use status::{HolderStatus, LakeStatus, PartitionState, TableState, tables_on_disk};

pub const STATUS_PATH: &str = "/api/lake/status";
/// Accepts a [`MaintenanceRequest`] and answers with a [`MaintenanceLine`] for each thing done.
pub const MAINTENANCE_PATH: &str = "/api/lake/upkeep";
const BODY_BYTES_MAX: usize = 64 << 10;
const NDJSON: &str = "application/x-ndjson";

thalweg_kit::error_kinds! {
    /// The kinds of errors of these requests.
    pub enum LakeApiErrorKind {
        BadRequest = "lake.bad_request", 400, Never,
            "The request for upkeep cannot be read; correct what the message names.";
        BodyTooLarge = "lake.bad_request", 413, Never,
            "The request for upkeep has too many bytes; ask for one task at a time.";
        Unavailable = "lake.unavailable", 503, Later,
            "The tables cannot be read now; the message says why.";
    }
}

/// Serves the requests.
pub struct LakeAdmin {
    /// The tables that this process writes.
    tables: Arc<LakeTables>,
    lake: LakeStorage,
    options: MaintenanceOptions,
    metrics: LakeMetrics,
    /// Serializes maintenance of tables that this process does not write.
    alone: Mutex<()>,
}

impl LakeAdmin {
    /// Serves the tables of this process and all others in the lake.
    pub fn new(
        tables: Arc<LakeTables>,
        lake: LakeStorage,
        options: MaintenanceOptions,
        metrics: LakeMetrics,
    ) -> LakeAdmin {
        LakeAdmin {
            tables,
            lake,
            options,
            metrics,
            alone: Mutex::default(),
        }
    }

    /// The routes.
    pub fn routes(self) -> impl HttpRoutes {
        LakeRoutes(Arc::new(self))
    }
}

struct LakeRoutes(Arc<LakeAdmin>);

impl HttpRoutes for LakeRoutes {
    fn mounts(&self) -> Vec<Mount> {
        let mount = |router: Router<Arc<LakeAdmin>>, access| Mount {
            router: router.with_state(self.0.clone()),
            access,
            under_root_path: false,
        };
        let maintenance = Router::new().route(MAINTENANCE_PATH, post(answer_maintenance));
        vec![
            mount(Router::new().route(STATUS_PATH, get(answer_status)), Access::Read),
            mount(maintenance, Access::Admin),
        ]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![
            (STATUS_PATH.to_owned(), "the state of the lake's tables".to_owned()),
            (
                MAINTENANCE_PATH.to_owned(),
                "POST {\"task\": \"compact\"}, retain or vacuum: table maintenance on request".to_owned(),
            ),
        ]
    }
}

async fn answer_status(State(admin): State<Arc<LakeAdmin>>) -> Response {
    match admin.status().await {
        Ok(status) => axum::Json(status).into_response(),
        Err(error) => refuse(LakeApiErrorKind::Unavailable, &error.to_string()),
    }
}

async fn answer_maintenance(State(admin): State<Arc<LakeAdmin>>, body: Body) -> Response {
    // These bodies are small, so no budget counts them.
    let body = match collect(body, BodyRules::up_to(BODY_BYTES_MAX), ()).await {
        Ok((body, ())) => body,
        Err(BodyFault::TooLarge { limit }) => {
            let message = format!("the request has more than {limit} bytes");
            return refuse(LakeApiErrorKind::BodyTooLarge, &message);
        }
        Err(_) => return refuse(LakeApiErrorKind::BadRequest, "the request is incomplete"),
    };
    let asked: MaintenanceRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => {
            let message = format!("expected such as {{\"task\": \"compact\", \"table\": \"logs\"}}: {error}");
            return refuse(LakeApiErrorKind::BadRequest, &message);
        }
    };
    let lines = stream::unfold(admin.begin(asked), |mut lines| async move {
        let line = lines.recv().await?;
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), lines))
    });
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}

fn refuse(kind: LakeApiErrorKind, message: &str) -> Response {
    answer::error_object(kind.facts(), message)
}
