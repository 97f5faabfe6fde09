//! The history of a table, commit by commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::summary::millis_text;
use super::{InspectError, Lake};
use thalweg_delta::actions::Action;
use thalweg_delta::{FileEntry, Snapshot, SnapshotDetail, info_of};

/// One version of a table and its changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CommitSummary {
    pub version: i64,
    pub time: Option<String>,
    pub operation: String,
    pub engine: Option<String>,
    pub added: FileTotals,
    pub removed: FileTotals,
    /// The number of added files by level.
    pub levels: BTreeMap<u32, u64>,
    /// The number of added files that are sealed.
    pub sealed: u64,
    /// The added columns.
    pub columns: Vec<String>,
    /// The committed offsets in the commit.
    pub positions: BTreeMap<String, i64>,
    /// The table after the commit.
    pub table: FileTotals,
}

/// The number, rows and bytes of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileTotals {
    pub files: u64,
    pub rows: u64,
    pub bytes: u64,
}

impl FileTotals {
    fn of<'f>(files: impl Iterator<Item = &'f Arc<FileEntry>>) -> FileTotals {
        files.fold(FileTotals::default(), |sum, file| FileTotals {
            files: sum.files + 1,
            rows: sum.rows + file.stats.rows.unwrap_or(0),
            bytes: sum.bytes + file.size,
        })
    }
}

/// The newest commits of a table, at most `limit` and as far as they still exist; the oldest first.
pub async fn history(lake: &Lake, table: &str, limit: u64) -> Result<Vec<CommitSummary>, InspectError> {
    let log = lake.log(table)?;
    let Some(versions) = log.versions().await? else {
        return Ok(Vec::new());
    };
    let (first, last) = (*versions.all.start(), *versions.all.end());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    // The changes of a version require the version before it.
    let mut snapshot = log
        .load_at(&versions, last.saturating_sub(limit).max(first), SnapshotDetail::Counts)
        .await?;
    let mut commits = Vec::new();
    if first == 0
        && last < limit
        && let Some(actions) = log.read_commit(0).await?
    {
        let columns = snapshot.schema.columns.iter().map(|column| column.name.clone());
        commits.push(commit(&snapshot, &actions, columns.collect(), FileTotals::default()));
    }
    while snapshot.version < last {
        let actions = log.next(&snapshot).await?;
        let gone = actions.iter().filter_map(|action| match action {
            Action::Remove(remove) => snapshot.file(&remove.path),
            _ => None,
        });
        let (gone, known) = (FileTotals::of(gone), snapshot.schema.clone());
        log.advance(&mut snapshot, actions.clone())?;
        let columns = snapshot.schema.columns.iter();
        let new = columns.filter(|column| known.column(&column.name).is_none());
        let new = new.map(|column| column.name.clone()).collect();
        commits.push(commit(&snapshot, &actions, new, gone));
    }
    Ok(commits)
}

/// `snapshot` is the table after the commit.
fn commit(snapshot: &Snapshot, actions: &[Action], columns: Vec<String>, removed: FileTotals) -> CommitSummary {
    let info = info_of(actions);
    let come = actions.iter().filter_map(|action| match action {
        Action::Add(add) => snapshot.file(&add.path),
        _ => None,
    });
    let mut made = CommitSummary {
        version: snapshot.version,
        time: info
            .filter(|info| info.timestamp > 0)
            .map(|info| millis_text(info.timestamp)),
        operation: info.map_or_else(|| "unknown".to_owned(), |info| info.operation.clone()),
        engine: info.and_then(|info| info.engine_info.clone()),
        added: FileTotals::of(come.clone()),
        removed,
        levels: BTreeMap::new(),
        sealed: come.clone().filter(|file| file.is_sealed).count() as u64,
        columns,
        positions: BTreeMap::new(),
        table: FileTotals {
            files: snapshot.files.len() as u64,
            rows: snapshot.rows,
            bytes: snapshot.bytes,
        },
    };
    for file in come {
        *made.levels.entry(file.level).or_default() += 1;
    }
    for action in actions {
        if let Action::Txn(txn) = action {
            made.positions.insert(txn.app_id.clone(), txn.version);
        }
    }
    made
}
