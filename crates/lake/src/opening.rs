//! Prepares a table for writing: checks it, restores its last complete version, and creates it if it does not exist.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_log::Offset;

use crate::commit::{CommittedOffset, log_positions};
use crate::error::OpenError;
use crate::metrics::LakeMetrics;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_delta::actions::{Action, CommitInfo};
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::{INDEXED_COLUMNS_KEY, bounded_columns};
use thalweg_delta::store::LakeStorage;
use thalweg_delta::{self, CommitOutcome, DeltaError, DeltaLog, Snapshot, SnapshotDetail};

/// The Delta properties of new tables, but [`INDEXED_COLUMNS_KEY`].
const CONFIGURATION: [(&str, &str); 4] = [
    ("delta.checkpointInterval", "100"),
    ("delta.logRetentionDuration", "interval 7 days"),
    ("delta.setTransactionRetentionDuration", "interval 7 days"),
    ("delta.dataSkippingNumIndexedCols", "32"),
];

/// Temporary files older than this are leftovers.
const STAGED_AGE: Duration = Duration::from_secs(3600);
/// The pause while a version number is taken by a commit that cannot be read yet.
const FENCE_PAUSE: Duration = Duration::from_millis(200);
const FENCE_LOOKS: usize = 5;

/// The quarantine folder of a lake, for unreadable entries and files.
pub(crate) fn quarantine(lake: &Path) -> PathBuf {
    lake.join("_thalweg/quarantine")
}

/// Opens a table for writing: creates its folders, and returns its log and its newest version, if it exists. `columns`
/// are those that this program writes; they must have the same types in the table.
pub(crate) async fn open(
    site: &LakeStorage,
    name: &str,
    partitions: &[&str],
    columns: &TableSchema,
) -> Result<(DeltaLog, Option<Snapshot>), OpenError> {
    site.claim().await?;
    let folders = site.make_folders(name).await;
    folders.map_err(|source| OpenError::Folder {
        path: site.path().to_owned(),
        source,
    })?;
    let error = |source| OpenError::Table {
        path: site.path().join(name),
        source,
    };
    let log = site.log(name).map_err(error)?;
    let recovered = log.recover(&quarantine(site.path()), STAGED_AGE).await;
    recovered.map_err(error)?;
    let mut snapshot = log.load(SnapshotDetail::Counts).await.map_err(error)?;
    if let Some(snapshot) = &mut snapshot {
        log.nothing_beyond(snapshot).await.map_err(error)?;
        check(&log, snapshot, partitions, columns)?;
        if site.is_remote() {
            fence(&log, snapshot).await.map_err(error)?;
        }
    }
    Ok((log, snapshot))
}

/// Opens a table beside its writer: creates and repairs nothing.
pub(crate) async fn join(
    site: &LakeStorage,
    spec: &thalweg_columns::tables::TableSpec,
) -> Result<(DeltaLog, Option<Snapshot>), OpenError> {
    let path = site.path().join(spec.name);
    let error = |source| OpenError::Table {
        path: path.clone(),
        source,
    };
    let log = site.log(spec.name).map_err(error)?.for_guest();
    let snapshot = log.load(SnapshotDetail::Counts).await.map_err(error)?;
    if let Some(snapshot) = &snapshot {
        check(&log, snapshot, spec.partitions, &(spec.columns)())?;
    }
    Ok((log, snapshot))
}

/// Takes the next version with an empty commit. A previous process may have ended with a commit in progress: either it
/// is stored by now and is read here, or it can never be stored, because its version is taken.
async fn fence(log: &DeltaLog, snapshot: &mut Snapshot) -> Result<(), DeltaError> {
    loop {
        let now = log.now_ms();
        let mut actions = vec![Action::CommitInfo(CommitInfo::of("START", now))];
        actions.extend(log_positions(snapshot, now));
        let outcome = log.commit(snapshot.version + 1, &actions).await?;
        // Whoever made the next commit, it blocks any earlier attempt.
        let moved = log.refresh(snapshot).await?;
        if matches!(outcome, CommitOutcome::Committed) || moved {
            return Ok(());
        }
        tokio::time::sleep(FENCE_PAUSE).await;
    }
}

/// Sets committed offsets of the table in a commit without rows.
pub(crate) async fn set_positions(
    log: &DeltaLog,
    snapshot: &mut Snapshot,
    positions: &[(String, Offset)],
) -> Result<(), OpenError> {
    let error = |source| OpenError::Table {
        path: log.table().to_owned(),
        source,
    };
    let is_set = |snapshot: &Snapshot| {
        let position = |name: &String| {
            snapshot
                .transactions
                .get(name)
                .and_then(|at| Offset::try_from(*at).ok())
        };
        positions.iter().all(|(name, at)| position(name) == Some(*at))
    };
    while !is_set(snapshot) {
        let now = log.now_ms();
        let mut actions = vec![Action::CommitInfo(CommitInfo::of("SET POSITIONS", now))];
        actions.extend(log_positions(snapshot, now));
        actions.retain(
            |action| !matches!(action, Action::Txn(txn) if positions.iter().any(|(name, _)| *name == txn.app_id)),
        );
        actions.extend(positions.iter().map(|(name, at)| {
            let taken = CommittedOffset {
                application: name.clone(),
                offset: i64::try_from(*at).unwrap_or(i64::MAX),
                is_last: false,
            };
            taken.action(now)
        }));
        log.commit(snapshot.version + 1, &actions).await.map_err(error)?;
        // Our commit, or one that another writer made first.
        if !log.refresh(snapshot).await.map_err(error)? {
            tokio::time::sleep(FENCE_PAUSE).await;
        }
    }
    Ok(())
}

/// Creates the table, unless another writer just did.
pub(crate) async fn create(
    log: &DeltaLog,
    partitions: &[&str],
    columns: &TableSchema,
    metrics: &LakeMetrics,
) -> Result<Snapshot, OpenError> {
    let error = |source| OpenError::Table {
        path: log.table().to_owned(),
        source,
    };
    let now = log.now_ms();
    let mut metadata = thalweg_delta::new_metadata(columns, partitions, &CONFIGURATION, now);
    let bounded = bounded_columns(columns, partitions);
    metadata.configuration.insert(INDEXED_COLUMNS_KEY.to_owned(), bounded);
    let mut actions = vec![Action::CommitInfo(CommitInfo::of("CREATE TABLE", now))];
    actions.extend(thalweg_delta::creation(metadata));
    let outcome = log.commit(0, &actions).await;
    let label = match &outcome {
        Ok(CommitOutcome::Committed) => "ok",
        Ok(CommitOutcome::Taken) => "conflict",
        Err(_) => "error",
    };
    let commits = metrics.commits.with_label_values(&[log.table_name(), "create", label]);
    commits.inc();
    outcome.map_err(error)?;
    // Created by us or by another writer, it can be loaded at once or soon.
    let mut snapshot = log.load(SnapshotDetail::Counts).await.map_err(error)?;
    for _ in 0..FENCE_LOOKS {
        if snapshot.is_some() {
            break;
        }
        tokio::time::sleep(FENCE_PAUSE).await;
        snapshot = log.load(SnapshotDetail::Counts).await.map_err(error)?;
    }
    let gone = || OpenError::Schema {
        path: log.table().to_owned(),
        what: "it was removed while it was created".to_owned(),
    };
    let snapshot = snapshot.ok_or_else(gone)?;
    check(log, &snapshot, partitions, columns)?;
    Ok(snapshot)
}

/// The attribute columns that a table has must have the types that are declared.
pub(crate) fn check_types(
    log: &DeltaLog,
    snapshot: Option<&Snapshot>,
    promotion: &AttributePromotion,
) -> Result<(), OpenError> {
    match snapshot.and_then(|snapshot| promotion.conflict(&snapshot.schema)) {
        None => Ok(()),
        Some(conflict) => Err(OpenError::ColumnType {
            path: log.table().to_owned(),
            table: log.table_name().to_owned(),
            conflict: Box::new(conflict),
        }),
    }
}

/// The columns that this program writes must have the same types in the table.
fn check(log: &DeltaLog, snapshot: &Snapshot, partitions: &[&str], columns: &TableSchema) -> Result<(), OpenError> {
    let conflict = |what: String| OpenError::Schema {
        path: log.table().to_owned(),
        what,
    };
    let found = &snapshot.metadata.partition_columns;
    if found != partitions {
        return Err(conflict(format!(
            "it is partitioned by {found:?}, not by {partitions:?}"
        )));
    }
    for column in &columns.columns {
        match snapshot.schema.column(&column.name) {
            Some(found) if found.kind == column.kind => {}
            Some(_) => return Err(conflict(format!("its column {} has another type", column.name))),
            None => return Err(conflict(format!("it has no column {}", column.name))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
