//! The state of tables, and the process that holds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thalweg_delta::SnapshotDetail;
use thalweg_lake::ingest::PartitionProgress;
use thalweg_lake::inspect::{self, InspectError, Lake};

use crate::LakeAdmin;

/// The state of tables, and the process that holds them.
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
    /// For a lake on an object store: the machine that the process runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// The state of a table. Values that only its writer knows are `None` elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TableState {
    pub table: String,
    /// `None` if nothing is committed yet.
    pub version: Option<i64>,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub last_commit: Option<String>,
    pub buffered_rows: Option<u64>,
    /// How long the oldest row has been waiting for its commit.
    pub commit_lag_seconds: Option<f64>,
    /// Why the table accepts no rows.
    pub trouble: Option<String>,
    pub partitions: Vec<PartitionState>,
}

/// How far a table has consumed a partition of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionState {
    pub queue: String,
    pub partition: u64,
    /// The first offset that is not in the table.
    pub position: i64,
    /// The offset of the next entry.
    pub end: Option<i64>,
    pub backlog: Option<i64>,
    pub backlog_bytes: Option<u64>,
}

/// The state of tables without the process that writes them.
pub async fn tables_on_disk(lake: &Lake) -> Result<Vec<TableState>, InspectError> {
    let mut tables = Vec::new();
    for name in lake.names() {
        let (summary, (_, snapshot)) = (
            inspect::table(lake, name).await?,
            lake.newest(name, SnapshotDetail::Counts).await?,
        );
        let partitions = snapshot.transactions.iter().filter_map(|(id, at)| partition(id, *at));
        // If several logs fed a table one after another, the largest position counts.
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

/// Parses `thalweg/<log>/<queue>/<partition>`, the name of a log partition in commits.
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

impl LakeAdmin {
    /// Reports the live state of tables that this process writes, and the committed state of all others.
    pub(crate) async fn status(&self) -> Result<LakeStatus, InspectError> {
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
            let of = |progress: PartitionProgress| {
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
}
