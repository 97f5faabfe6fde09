//! One version of a table: its columns and its live files.
//!
//! A snapshot moves forward by whole commits and keeps the sums over its files up to date. A commit is first parsed
//! completely, then applied in steps that can neither fail nor wait. What a snapshot cannot represent (a newer
//! protocol, deletion vectors, files outside the table) is an error, never a wrong result.

use object_store::path::Path as StorePath;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use thalweg_kit::time::Micros;

use super::actions::{Action, Add, Metadata, Protocol, Txn};
use super::schema::TableSchema;
use super::stats::FileStats;

/// The newest supported reader and writer versions.
const READER_VERSION: i32 = 1;
const WRITER_VERSION: i32 = 2;

/// The tag on each file that this program adds to a table, in all of its versions. Other programs that rewrite files do
/// not copy it.
pub const LEVEL: &str = "thalweg.level";
/// The tag of a merged file: when the newest of its sources was flushed, in milliseconds since 1970.
pub const FLUSHED: &str = "thalweg.flush_max";

const NANOS_PER_MILLI: i64 = 1_000_000;

/// What a snapshot keeps of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotDetail {
    /// Sizes and row counts, for a writer.
    Counts,
    /// Also the bounds of each column, for queries.
    Stats,
}

/// A live file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// Relative to the table, decoded.
    pub path: Arc<str>,
    pub size: u64,
    pub modified_unix_ms: i64,
    /// When the newest of its rows was flushed; a merge does not change it.
    pub flushed_unix_ms: i64,
    /// In the order of the table's partition columns.
    pub partition: Box<[Option<Box<str>>]>,
    /// The compaction level: 0 is a flush.
    pub level: u32,
    /// It is never merged again.
    pub is_sealed: bool,
    /// It may have newer revisions of rows in other files.
    pub revises: bool,
    /// Added by another program, so its rows may be in any order.
    pub is_foreign: bool,
    /// The first and the last time of its rows, in nanoseconds.
    pub times: Option<(i64, i64)>,
    /// When the newest of its rows arrived, in nanoseconds.
    pub arrival_max: Option<i64>,
    pub stats: FileStats,
}

/// A table at one version.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub version: i64,
    pub protocol: Protocol,
    pub metadata: Metadata,
    pub schema: Arc<TableSchema>,
    pub files: BTreeMap<Arc<str>, Arc<FileEntry>>,
    /// How far each application has written.
    pub transactions: HashMap<String, i64>,
    /// The applications whose transactions expire.
    pub forgettable: HashSet<String>,
    /// Sums over `files`.
    pub rows: u64,
    pub bytes: u64,
    detail: SnapshotDetail,
    names: HashMap<String, Arc<str>>,
    /// When it was last refreshed, in microseconds of the log's clock.
    pub(super) looked_at: Micros,
}

/// Why a table cannot be represented.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnsupportedTable(pub String);

/// The effect of a parsed action. Applying it cannot fail.
pub(super) enum TableChange {
    /// With the decoded path.
    Add(Arc<str>, Box<Add>),
    /// The decoded path.
    Remove(String),
    Metadata(Arc<TableSchema>, Box<Metadata>),
    Protocol(Protocol),
    Txn(Txn),
}

/// Parses the actions of a commit. Fails if any of them is not supported.
pub(super) fn changes_of(actions: Vec<Action>) -> Result<Vec<TableChange>, UnsupportedTable> {
    let change = |action| {
        Ok(Some(match action {
            Action::Add(add) => TableChange::Add(path_of(&add)?, Box::new(add)),
            Action::Remove(remove) => TableChange::Remove(decode_path(&remove.path)?),
            Action::Metadata(metadata) => TableChange::Metadata(Arc::new(parse_schema(&metadata)?), Box::new(metadata)),
            Action::Protocol(protocol) => {
                check_protocol(&protocol)?;
                TableChange::Protocol(protocol)
            }
            Action::Txn(txn) => TableChange::Txn(txn),
            Action::CommitInfo(_) => return Ok(None),
        }))
    };
    actions
        .into_iter()
        .filter_map(|action| change(action).transpose())
        .collect()
}

impl Snapshot {
    pub(super) fn new(
        version: i64,
        protocol: Protocol,
        metadata: Metadata,
        detail: SnapshotDetail,
    ) -> Result<Snapshot, UnsupportedTable> {
        check_protocol(&protocol)?;
        Ok(Snapshot {
            version,
            protocol,
            schema: Arc::new(parse_schema(&metadata)?),
            metadata,
            files: BTreeMap::new(),
            transactions: HashMap::new(),
            forgettable: HashSet::new(),
            rows: 0,
            bytes: 0,
            detail,
            names: HashMap::new(),
            looked_at: 0,
        })
    }

    pub(super) fn detail(&self) -> SnapshotDetail {
        self.detail
    }

    /// Moves to the next version, whose commit this process wrote.
    pub fn advance(&mut self, actions: Vec<Action>) -> Result<(), UnsupportedTable> {
        self.apply(actions)
    }

    /// Moves to the next version; after an error the snapshot is unchanged.
    pub(super) fn apply(&mut self, actions: Vec<Action>) -> Result<(), UnsupportedTable> {
        let changes = changes_of(actions)?;
        self.change(changes);
        Ok(())
    }

    /// Moves to the next version by applying its parsed changes.
    pub(super) fn change(&mut self, changes: Vec<TableChange>) {
        for change in changes {
            match change {
                TableChange::Add(path, add) => self.insert(path, *add),
                TableChange::Remove(path) => self.remove(&path),
                TableChange::Metadata(schema, metadata) => {
                    self.schema = schema;
                    self.metadata = *metadata;
                }
                TableChange::Protocol(protocol) => self.protocol = protocol,
                TableChange::Txn(txn) => self.wrote(txn),
            }
        }
        self.version += 1;
    }

    /// Records the transaction of an application.
    pub(super) fn wrote(&mut self, txn: Txn) {
        match txn.is_forgettable() {
            true => self.forgettable.insert(txn.app_id.clone()),
            false => self.forgettable.remove(&txn.app_id),
        };
        self.transactions.insert(txn.app_id, txn.version);
    }

    pub(super) fn add(&mut self, add: Add) -> Result<(), UnsupportedTable> {
        let path = path_of(&add)?;
        self.insert(path, add);
        Ok(())
    }

    fn insert(&mut self, path: Arc<str>, add: Add) {
        self.remove(&path);
        let partitions = self.metadata.partition_columns.iter();
        let partition = partitions.map(|column| add.partition_values.get(column).cloned().flatten().map(Into::into));
        let tag = |name: &str| add.tags.as_ref()?.get(name)?.as_deref();
        let known = add.stats.as_deref().map(TimeStats::of).unwrap_or_default();
        let mut stats = match &add.stats {
            Some(text) if self.detail == SnapshotDetail::Stats => FileStats::parse(text, &self.schema, &mut self.names),
            _ => FileStats {
                rows: known.num_records,
                columns: Box::default(),
            },
        };
        if self.detail == SnapshotDetail::Counts {
            stats.columns = Box::default();
        }
        let is_foreign = tag(LEVEL).is_none();
        if is_foreign {
            stats.forget_floats();
        }
        self.rows += stats.rows.unwrap_or(0);
        self.bytes += add.size;
        let entry = FileEntry {
            path: path.clone(),
            size: add.size,
            modified_unix_ms: add.modification_time,
            flushed_unix_ms: tag(FLUSHED)
                .and_then(|at| at.parse().ok())
                .unwrap_or(add.modification_time),
            partition: partition.collect(),
            level: tag(LEVEL).and_then(|level| level.parse().ok()).unwrap_or(0),
            is_sealed: tag("thalweg.sealed") == Some("true"),
            // For rows of another program it is unknown which are the newest.
            revises: is_foreign || tag("thalweg.revises") == Some("true"),
            is_foreign,
            times: known.times(),
            arrival_max: tag("thalweg.arrival_max")
                .and_then(|arrival| arrival.parse().ok())
                .or(known.arrival_max()),
            stats,
        };
        self.files.insert(path, Arc::new(entry));
    }

    fn remove(&mut self, path: &str) {
        if let Some(file) = self.files.remove(path) {
            self.rows -= file.stats.rows.unwrap_or(0);
            self.bytes -= file.size;
        }
    }

    /// A live file by its encoded path, as in commits.
    pub fn file(&self, path: &str) -> Option<&Arc<FileEntry>> {
        self.files.get(decode_path(path).ok()?.as_str())
    }

    /// The number of files of each level.
    pub fn files_by_level(&self) -> BTreeMap<u32, u64> {
        let mut levels = BTreeMap::new();
        for file in self.files.values() {
            *levels.entry(file.level).or_default() += 1;
        }
        levels
    }
}

/// The first and the last time of a file's rows, in nanoseconds.
pub fn times_of(add: &Add) -> Option<(i64, i64)> {
    TimeStats::of(add.stats.as_deref()?).times()
}

/// When the newest of a file's rows arrived, in nanoseconds, according to its statistics.
pub fn arrival_of(stats: &str) -> Option<i64> {
    TimeStats::of(stats).arrival_max()
}

/// The statistics that writers of a table need.
#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TimeStats {
    num_records: Option<u64>,
    min_values: Option<TimeBounds>,
    max_values: Option<TimeBounds>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct TimeBounds {
    time_unix_nano: Option<i64>,
    arrival_unix_nano: Option<i64>,
}

impl TimeStats {
    fn of(text: &str) -> TimeStats {
        serde_json::from_str(text).unwrap_or_default()
    }

    fn times(&self) -> Option<(i64, i64)> {
        let (min, max) = (self.min_values.as_ref()?, self.max_values.as_ref()?);
        min.time_unix_nano.zip(max.time_unix_nano)
    }

    fn arrival_max(&self) -> Option<i64> {
        self.max_values.as_ref()?.arrival_unix_nano
    }
}

impl FileEntry {
    /// An upper bound for the arrival of its rows, in nanoseconds; without statistics, the time at which the file was
    /// written.
    pub fn last_arrival(&self) -> i64 {
        let written = || self.modified_unix_ms.saturating_mul(NANOS_PER_MILLI);
        self.arrival_max.unwrap_or_else(written)
    }
}

/// The decoded path of an added file.
fn path_of(add: &Add) -> Result<Arc<str>, UnsupportedTable> {
    if add.deletion_vector.is_some() {
        let what = "the table has deletion vectors, which this program does not read; rewrite the table without them";
        return Err(UnsupportedTable(what.to_owned()));
    }
    Ok(decode_path(&add.path)?.into())
}

fn parse_schema(metadata: &Metadata) -> Result<TableSchema, UnsupportedTable> {
    TableSchema::from_delta(&metadata.schema_string)
        .ok_or_else(|| UnsupportedTable("the schema in the table's metadata cannot be read".to_owned()))
}

fn check_protocol(protocol: &Protocol) -> Result<(), UnsupportedTable> {
    if protocol.min_reader_version > READER_VERSION || protocol.min_writer_version > WRITER_VERSION {
        return Err(UnsupportedTable(format!(
            "the table requires Delta reader version {} and writer version {}, this program has {READER_VERSION} and \
             {WRITER_VERSION}; another program has upgraded it, write to a new table instead",
            protocol.min_reader_version, protocol.min_writer_version
        )));
    }
    Ok(())
}

fn decode_path(path: &str) -> Result<String, UnsupportedTable> {
    if path.contains("://") {
        return Err(UnsupportedTable(format!(
            "the table refers to a file outside of its folder ({path})"
        )));
    }
    match StorePath::from_url_path(path) {
        Ok(path) => Ok(path.to_string()),
        Err(e) => Err(UnsupportedTable(format!(
            "the table refers to a file with an invalid path ({path}): {e}"
        ))),
    }
}
