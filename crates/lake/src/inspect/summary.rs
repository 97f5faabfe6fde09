//! Statistics of tables and files.

use std::collections::BTreeMap;

use serde::Serialize;
use thalweg_record::Ticks;

use super::{InspectError, Lake};
use thalweg_delta::{FileEntry, Snapshot, SnapshotDetail};

const DATE: &str = "date";
const NANOS_PER_TICK: i64 = 100;
const TICKS_PER_MILLI: i64 = 10_000;

/// A table at its newest version.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TableSummary {
    pub table: String,
    pub version: i64,
    pub committed: Option<String>,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub columns: usize,
    /// Attribute columns.
    pub promoted: usize,
    /// The oldest and the newest day.
    pub first_date: Option<String>,
    pub last_date: Option<String>,
    /// The number of files by level.
    pub levels: BTreeMap<u32, u64>,
    /// The number of sealed files.
    pub sealed: u64,
}

pub async fn table(lake: &Lake, name: &str) -> Result<TableSummary, InspectError> {
    let (log, snapshot) = lake.newest(name, SnapshotDetail::Counts).await?;
    let committed = log.committed_at(snapshot.version).await?;
    let dates = || snapshot.files.values().filter_map(|file| date_of(&snapshot, file));
    let columns = &snapshot.schema.columns;
    Ok(TableSummary {
        table: name.to_owned(),
        version: snapshot.version,
        committed: (committed > 0).then(|| millis_text(committed)),
        rows: snapshot.rows,
        files: snapshot.files.len() as u64,
        bytes: snapshot.bytes,
        columns: columns.len(),
        promoted: columns.iter().filter(|column| column.binding().is_some()).count(),
        first_date: dates().min().map(str::to_owned),
        last_date: dates().max().map(str::to_owned),
        levels: snapshot.files_by_level(),
        sealed: snapshot.files.values().filter(|file| file.is_sealed).count() as u64,
    })
}

/// A file of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileSummary {
    pub path: String,
    /// The partition values.
    pub partition: BTreeMap<String, Option<String>>,
    pub rows: Option<u64>,
    pub bytes: u64,
    pub level: u32,
    pub sealed: bool,
    /// The range of its row times.
    pub first_time: Option<String>,
    pub last_time: Option<String>,
    /// When its newest row arrived.
    pub last_arrival: Option<String>,
    pub written: String,
}

/// The files of a table, by day and time; with a `date`, only those of that day.
pub fn files(snapshot: &Snapshot, date: Option<&str>) -> Vec<FileSummary> {
    let is_wanted = |file: &&std::sync::Arc<FileEntry>| date.is_none() || date_of(snapshot, file) == date;
    let mut files: Vec<_> = snapshot.files.values().filter(is_wanted).collect();
    files.sort_by(|a, b| (&a.partition, a.times, &a.path).cmp(&(&b.partition, b.times, &b.path)));
    files.into_iter().map(|entry| file(snapshot, entry)).collect()
}

fn file(snapshot: &Snapshot, file: &FileEntry) -> FileSummary {
    let partition = snapshot.metadata.partition_columns.iter().zip(&file.partition);
    FileSummary {
        path: file.path.to_string(),
        partition: partition
            .map(|(name, value)| (name.clone(), value.as_deref().map(str::to_owned)))
            .collect(),
        rows: file.stats.rows,
        bytes: file.size,
        level: file.level,
        sealed: file.is_sealed,
        first_time: file.times.map(|(first, _)| nanos_text(first)),
        last_time: file.times.map(|(_, last)| nanos_text(last)),
        last_arrival: file.arrival_max.map(nanos_text),
        written: millis_text(file.modified_unix_ms),
    }
}

/// The day of a file's rows.
pub(crate) fn date_of<'f>(snapshot: &Snapshot, file: &'f FileEntry) -> Option<&'f str> {
    let at = snapshot
        .metadata
        .partition_columns
        .iter()
        .position(|name| name == DATE)?;
    file.partition.get(at)?.as_deref()
}

pub(super) fn millis_text(unix_ms: i64) -> String {
    Ticks(unix_ms.saturating_mul(TICKS_PER_MILLI)).to_string()
}

pub(super) fn nanos_text(unix_ns: i64) -> String {
    Ticks(unix_ns.div_euclid(NANOS_PER_TICK)).to_string()
}
