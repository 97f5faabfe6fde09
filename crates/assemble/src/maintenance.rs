//! What a person asks of the tables: how far they are, and upkeep by hand. The process that holds the data folder answers for itself,
//! over HTTP; where none does, the folder is held and it is done here.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures::stream;
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg_config::{Config, Diagnostics};
use thalweg_lake::LakeMetrics;
use thalweg_lake::delta::SnapshotDetail;
use thalweg_lake::inspect::{self, InspectError, Lake};
use thalweg_lake::maintenance::{
    MaintenanceOptions, MaintenanceReport, MaintenanceRequest, MaintenanceRequestError, by_hand_alone,
};
use thalweg_lake::store::LakeStorage;
use thalweg_telemetry::{Access, HttpRoutes, Mount};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::checked_config::CheckedConfig;
use crate::data_dir::DataDir;
use crate::lake::LakeTables;
use crate::lake_site::LakeLocation;
use crate::settings::{FlowRequirements, Settings};

pub const STATUS_PATH: &str = "/api/lake/status";
/// Takes a [`MaintenanceRequest`], answers a [`MaintenanceLine`] for each thing that was done.
pub const UPKEEP_PATH: &str = "/api/lake/upkeep";
const BODY_BYTES_MAX: usize = 64 << 10;
const NDJSON: &str = "application/x-ndjson";

/// How far tables are, and who holds them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LakeStatus {
    /// The process that holds the data folder.
    pub holder: Option<HolderStatus>,
    pub tables: Vec<TableState>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HolderStatus {
    pub process: u64,
    pub http: Option<String>,
    /// Of a lake on an object store: the machine that the process runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// What only a process that writes the table knows is `None` elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableState {
    pub table: String,
    /// `None`: nothing is committed yet.
    pub version: Option<i64>,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub last_commit: Option<String>,
    pub buffered_rows: Option<u64>,
    /// For how long the oldest row waits for its commit.
    pub commit_lag_seconds: Option<f64>,
    /// What keeps the table from taking rows.
    pub trouble: Option<String>,
    pub partitions: Vec<PartitionState>,
}

/// How far a table has taken a partition of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    pub queue: String,
    pub partition: u64,
    /// What the table lacks first.
    pub position: i64,
    /// Of the entry that comes next.
    pub end: Option<i64>,
    pub backlog: Option<i64>,
    pub backlog_bytes: Option<u64>,
}

/// One line of the answer to upkeep by hand. Without the last one the answer was cut off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MaintenanceLine {
    Did(MaintenanceReport),
    Failed { failed: String },
    End { done: bool },
}

/// Does it with a lake that no process holds; it is held for as long as this takes. `checked` says how tables are kept.
pub fn alone(
    runtime: &Runtime,
    place: &LakeLocation,
    checked: Option<&CheckedConfig>,
    asked: &MaintenanceRequest,
    told: &mut dyn FnMut(MaintenanceReport),
) -> Result<()> {
    // A folder of another name is not to be made into a data folder.
    runtime.block_on(Lake::open(place.site()))?;
    let _held = match place.data_dir() {
        Some(data_dir) => Some(DataDir::take(data_dir)?),
        None if place.site().is_remote() => None,
        None => Some(DataDir::take_lake(place.site().path())?),
    };
    let options = match checked {
        Some(checked) => checked.settings.lake.upkeep.clone(),
        None => defaults().lake.upkeep,
    };
    let metrics = LakeMetrics::register(&prometheus::Registry::new())?;
    let done = by_hand_alone(
        place.site(),
        asked,
        &[],
        options,
        metrics,
        runtime.handle(),
        &mut |did| {
            told(did);
            true
        },
    );
    runtime.block_on(place.site().release());
    Ok(done?)
}

fn defaults() -> Settings {
    Settings::read(&Config::default(), FlowRequirements::default(), &Diagnostics::new(""))
}

/// What can be said of tables without the process that writes them.
pub fn status_alone(runtime: &Runtime, place: &LakeLocation) -> Result<LakeStatus> {
    let tables = runtime.block_on(async { tables_on_disk(&Lake::open(place.site()).await?).await })?;
    let holder = place.data_dir().and_then(DataDir::holder);
    let mut holder = holder.map(|holder| HolderStatus {
        process: holder.process,
        http: holder.http.map(|(address, _)| address),
        host: None,
    });
    if holder.is_none() {
        let held = runtime.block_on(place.site().holder())?;
        holder = held.map(|(held, _)| HolderStatus {
            process: held.process.into(),
            http: None,
            host: Some(held.host),
        });
    }
    Ok(LakeStatus { holder, tables })
}

async fn tables_on_disk(lake: &Lake) -> Result<Vec<TableState>, InspectError> {
    let mut tables = Vec::new();
    for name in lake.names() {
        let (summary, (_, snapshot)) = (
            inspect::table(lake, name).await?,
            lake.newest(name, SnapshotDetail::Counts).await?,
        );
        let partitions = snapshot.transactions.iter().filter_map(|(id, at)| partition(id, *at));
        // Of several logs that fed a table one after the other, the one that has come farthest.
        let mut newest: BTreeMap<(String, u64), PartitionState> = BTreeMap::new();
        for state in partitions {
            let of = newest.entry((state.queue.clone(), state.partition));
            let known = of.or_insert_with(|| state.clone());
            if state.position > known.position {
                *known = state;
            }
        }
        tables.push(TableState {
            table: name.clone(),
            version: Some(summary.version),
            rows: summary.rows,
            files: summary.files,
            bytes: summary.bytes,
            last_commit: summary.committed,
            buffered_rows: None,
            commit_lag_seconds: None,
            trouble: None,
            partitions: newest.into_values().collect(),
        });
    }
    Ok(tables)
}

/// `thalweg/<log>/<queue>/<partition>`, as commits name a partition of a log.
fn partition(application: &str, position: i64) -> Option<PartitionState> {
    let mut parts = application.strip_prefix("thalweg/")?.split('/');
    let (log, queue, partition) = (parts.next()?, parts.next()?, parts.next()?);
    let is_log = log.len() == 16 && log.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_log && parts.next().is_none()).then_some(())?;
    Some(PartitionState {
        queue: queue.to_owned(),
        partition: partition.parse().ok()?,
        position,
        end: None,
        backlog: None,
        backlog_bytes: None,
    })
}

/// What the process does for those who ask.
pub(crate) struct LakeAdmin {
    /// Those that this process writes.
    pub tables: Arc<LakeTables>,
    pub lake: LakeStorage,
    pub options: MaintenanceOptions,
    pub metrics: LakeMetrics,
    /// Tables that nothing here writes are kept by one request at a time.
    pub alone: parking_lot::Mutex<()>,
}

impl LakeAdmin {
    async fn status(&self) -> Result<LakeStatus, InspectError> {
        let on_disk = match Lake::open(&self.lake).await {
            Ok(lake) => tables_on_disk(&lake).await?,
            Err(InspectError::NoLake(_)) => Vec::new(),
            Err(error) => return Err(error),
        };
        let mut tables: BTreeMap<String, TableState> =
            on_disk.into_iter().map(|table| (table.table.clone(), table)).collect();
        for (status, lag, progress) in self.tables.states() {
            let table = tables.entry(status.name.clone()).or_insert_with(|| TableState {
                table: status.name.clone(),
                version: None,
                rows: 0,
                files: 0,
                bytes: 0,
                last_commit: None,
                buffered_rows: None,
                commit_lag_seconds: None,
                trouble: None,
                partitions: Vec::new(),
            });
            table.buffered_rows = Some(status.buffered_rows);
            table.commit_lag_seconds = Some(lag.as_secs_f64());
            table.trouble = status.failed;
            let of = |progress: thalweg_lake::ingest::PartitionProgress| {
                let offset = |offset| i64::try_from(offset).unwrap_or(i64::MAX);
                PartitionState {
                    queue: progress.queue,
                    partition: progress.partition as u64,
                    position: offset(progress.position),
                    end: Some(offset(progress.end)),
                    backlog: Some(offset(progress.end.saturating_sub(progress.position))),
                    backlog_bytes: Some(progress.backlog_bytes),
                }
            };
            table.partitions = progress.into_iter().map(of).collect();
        }
        Ok(LakeStatus {
            holder: Some(HolderStatus {
                process: std::process::id().into(),
                http: None,
                host: None,
            }),
            tables: tables.into_values().collect(),
        })
    }

    /// Begins it, and returns what is told of it.
    fn begin(self: &Arc<LakeAdmin>, asked: MaintenanceRequest) -> UnboundedReceiver<MaintenanceLine> {
        let (sender, lines) = unbounded_channel();
        let (tools, runtime) = (self.clone(), Handle::current());
        tokio::spawn(async move {
            let kept = tools.tables.kept();
            let is_kept = |name: &str| kept.iter().any(|kept| kept == name);
            if asked.table.as_deref().is_none_or(is_kept)
                && let Some(mut done) = tools.tables.ask(asked.clone())
            {
                while let Some(did) = done.recv().await {
                    if sender.send(MaintenanceLine::Did(did)).is_err() {
                        return;
                    }
                }
            }
            if !asked.table.as_deref().is_some_and(is_kept) {
                let by_hand = move || tools.by_hand_alone(&asked, &kept, &runtime, &sender);
                // What it has to say of a panic is in the log; the answer then lacks its end.
                let _ = tokio::task::spawn_blocking(by_hand).await;
            } else {
                let _ = sender.send(MaintenanceLine::End { done: true });
            }
        });
        lines
    }

    /// With the tables that nothing in this process writes.
    fn by_hand_alone(
        &self,
        asked: &MaintenanceRequest,
        kept: &[String],
        runtime: &Handle,
        sender: &UnboundedSender<MaintenanceLine>,
    ) {
        let _one_at_a_time = self.alone.lock();
        let (options, metrics) = (self.options.clone(), self.metrics.clone());
        let told = &mut |did| sender.send(MaintenanceLine::Did(did)).is_ok();
        let done = by_hand_alone(&self.lake, asked, kept, options, metrics, runtime, told);
        let end = match done {
            // The lake comes with its first table.
            Ok(()) | Err(MaintenanceRequestError::Lake(InspectError::NoLake(_))) => MaintenanceLine::End { done: true },
            Err(error) => MaintenanceLine::Failed {
                failed: error.to_string(),
            },
        };
        // Whoever asked may be gone.
        let _ = sender.send(end);
    }
}

/// The paths of this module.
pub(crate) struct LakeAdminRoutes(pub Arc<LakeAdmin>);

impl HttpRoutes for LakeAdminRoutes {
    fn mounts(&self) -> Vec<Mount> {
        let mount = |router: Router<Arc<LakeAdmin>>, access| Mount {
            router: router.with_state(self.0.clone()),
            access,
            under_root_path: false,
        };
        let upkeep = Router::new().route(UPKEEP_PATH, post(upkeep));
        vec![
            mount(Router::new().route(STATUS_PATH, get(status)), Access::Read),
            mount(upkeep.layer(DefaultBodyLimit::max(BODY_BYTES_MAX)), Access::Admin),
        ]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        vec![
            (STATUS_PATH.to_owned(), "how far the tables of the lake are".to_owned()),
            (
                UPKEEP_PATH.to_owned(),
                "POST {\"task\": \"compact\"}, retain or vacuum: upkeep of tables by hand".to_owned(),
            ),
        ]
    }
}

async fn status(State(tools): State<Arc<LakeAdmin>>) -> Response {
    match tools.status().await {
        Ok(status) => axum::Json(status).into_response(),
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, "lake.unavailable", &error.to_string()),
    }
}

async fn upkeep(State(tools): State<Arc<LakeAdmin>>, body: Bytes) -> Response {
    let asked: MaintenanceRequest = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => {
            let message = format!("expected such as {{\"task\": \"compact\", \"table\": \"logs\"}}: {error}");
            return refuse(StatusCode::BAD_REQUEST, "lake.bad_request", &message);
        }
    };
    let lines = stream::unfold(tools.begin(asked), |mut lines| async move {
        let line = lines.recv().await?;
        let mut text = serde_json::to_vec(&line).unwrap_or_default();
        text.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), lines))
    });
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({"error": {"code": code, "message": message}});
    (status, axum::Json(body)).into_response()
}

/// What an answer of [`UPKEEP_PATH`] says, line by line.
pub fn line_of(text: &str) -> Result<MaintenanceLine> {
    serde_json::from_str(text).with_context(|| format!("the process answers what this version does not know: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_logs_are_told_from_other_applications() {
        let state = partition("thalweg/00000000000000ab/lake.logs/3", 17).unwrap();
        assert_eq!(
            (state.queue.as_str(), state.partition, state.position),
            ("lake.logs", 3, 17)
        );
        for other in [
            "thalweg/rollup/metrics/10/until",
            "thalweg/rollup/metrics/10",
            "file/abc",
            "thalweg/00000000000000ab/lake.logs",
            "thalweg/00000000000000ab/lake.logs/x",
        ] {
            assert_eq!(partition(other, 1), None, "{other}");
        }
    }

    #[test]
    fn lines_are_told_apart() {
        let did = r#"{"task":"vacuum","table":"logs","dry_run":false,"files":2,"rows":0,"bytes":7}"#;
        assert!(matches!(line_of(did).unwrap(), MaintenanceLine::Did(did) if did.files == 2));
        assert_eq!(
            line_of(r#"{"done":true}"#).unwrap(),
            MaintenanceLine::End { done: true }
        );
        assert!(matches!(
            line_of(r#"{"failed":"x"}"#).unwrap(),
            MaintenanceLine::Failed { .. }
        ));
        assert!(line_of("{}").is_err());
    }
}
