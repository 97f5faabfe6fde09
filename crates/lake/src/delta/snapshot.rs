//! One version of a table: its columns and its live files.
//!
//! A snapshot moves forward commit by commit; the sums over its files are kept up to date on the way. What it cannot
//! represent (a newer protocol, deletion vectors, files outside the table) is an error, never a wrong answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::actions::{Action, Add, Metadata, Protocol};
use super::schema::TableSchema;
use super::stats::FileStats;

type StorePath = object_store::path::Path;

/// The newest reader and writer protocol that is understood.
const READER_VERSION: i32 = 1;
const WRITER_VERSION: i32 = 2;

/// What a snapshot keeps of each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Sizes and row counts: for a writer.
    Counts,
    /// Also the bounds of each column: for queries.
    Stats,
}

/// A live file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// Relative to the table, decoded.
    pub path: Arc<str>,
    pub size: u64,
    pub modified_unix_ms: i64,
    /// In the order of the table's partition columns.
    pub partition: Box<[Option<Box<str>>]>,
    /// How often the rows were merged: 0 is a flush.
    pub level: u32,
    /// It is not merged any more.
    pub is_sealed: bool,
    /// Rows of it are newer than such with the same window elsewhere.
    pub revises: bool,
    /// Of its rows, in nanoseconds: the first and the last.
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
    /// Sums over `files`.
    pub rows: u64,
    pub bytes: u64,
    detail: Detail,
    names: HashMap<String, Arc<str>>,
}

/// Why a table cannot be represented.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

impl Snapshot {
    pub(super) fn new(
        version: i64,
        protocol: Protocol,
        metadata: Metadata,
        detail: Detail,
    ) -> Result<Snapshot, Unsupported> {
        check_protocol(&protocol)?;
        Ok(Snapshot {
            version,
            protocol,
            schema: Arc::new(parse_schema(&metadata)?),
            metadata,
            files: BTreeMap::new(),
            transactions: HashMap::new(),
            rows: 0,
            bytes: 0,
            detail,
            names: HashMap::new(),
        })
    }

    /// Goes to the next version, whose commit this process wrote itself.
    pub fn advance(&mut self, actions: Vec<Action>) -> Result<(), Unsupported> {
        self.apply(actions)
    }

    /// Goes to the next version.
    pub(super) fn apply(&mut self, actions: Vec<Action>) -> Result<(), Unsupported> {
        for action in actions {
            match action {
                Action::Add(add) => self.add(add)?,
                Action::Remove(remove) => self.remove(&decode_path(&remove.path)?),
                Action::Metadata(metadata) => {
                    self.schema = Arc::new(parse_schema(&metadata)?);
                    self.metadata = metadata;
                }
                Action::Protocol(protocol) => {
                    check_protocol(&protocol)?;
                    self.protocol = protocol;
                }
                Action::Txn(txn) => {
                    self.transactions.insert(txn.app_id, txn.version);
                }
                Action::CommitInfo(_) => {}
            }
        }
        self.version += 1;
        Ok(())
    }

    pub(super) fn add(&mut self, add: Add) -> Result<(), Unsupported> {
        if add.deletion_vector.is_some() {
            let what =
                "the table has deletion vectors, which this program does not read; rewrite the table without them";
            return Err(Unsupported(what.to_owned()));
        }
        let path: Arc<str> = decode_path(&add.path)?.into();
        self.remove(&path);
        let partitions = self.metadata.partition_columns.iter();
        let partition = partitions.map(|column| add.partition_values.get(column).cloned().flatten().map(Into::into));
        let tag = |name: &str| add.tags.as_ref()?.get(name)?.as_deref();
        let known = add.stats.as_deref().map(Known::of).unwrap_or_default();
        let mut stats = match &add.stats {
            Some(text) if self.detail == Detail::Stats => FileStats::parse(text, &self.schema, &mut self.names),
            _ => FileStats {
                rows: known.num_records,
                columns: Box::default(),
            },
        };
        if self.detail == Detail::Counts {
            stats.columns = Box::default();
        }
        self.rows += stats.rows.unwrap_or(0);
        self.bytes += add.size;
        let entry = FileEntry {
            path: path.clone(),
            size: add.size,
            modified_unix_ms: add.modification_time,
            partition: partition.collect(),
            level: tag("thalweg.level").and_then(|level| level.parse().ok()).unwrap_or(0),
            is_sealed: tag("thalweg.sealed") == Some("true"),
            revises: tag("thalweg.revises") == Some("true"),
            times: known.min_values.time_unix_nano.zip(known.max_values.time_unix_nano),
            arrival_max: tag("thalweg.arrival_max").and_then(|arrival| arrival.parse().ok()),
            stats,
        };
        self.files.insert(path, Arc::new(entry));
        Ok(())
    }

    fn remove(&mut self, path: &str) {
        if let Some(file) = self.files.remove(path) {
            self.rows -= file.stats.rows.unwrap_or(0);
            self.bytes -= file.size;
        }
    }

    /// A live file, by its path as a commit writes it.
    pub fn file(&self, path: &str) -> Option<&Arc<FileEntry>> {
        self.files.get(decode_path(path).ok()?.as_str())
    }

    /// How many files there are of each level.
    pub fn files_by_level(&self) -> BTreeMap<u32, u64> {
        let mut levels = BTreeMap::new();
        for file in self.files.values() {
            *levels.entry(file.level).or_default() += 1;
        }
        levels
    }
}

/// Of the rows of a file, the first and the last, in nanoseconds.
pub(crate) fn times_of(add: &Add) -> Option<(i64, i64)> {
    let known = Known::of(add.stats.as_deref()?);
    known.min_values.time_unix_nano.zip(known.max_values.time_unix_nano)
}

/// What whoever writes a table has to know of a file's statistics.
#[derive(Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Known {
    num_records: Option<u64>,
    min_values: KnownBounds,
    max_values: KnownBounds,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct KnownBounds {
    time_unix_nano: Option<i64>,
}

impl Known {
    fn of(text: &str) -> Known {
        serde_json::from_str(text).unwrap_or_default()
    }
}

fn parse_schema(metadata: &Metadata) -> Result<TableSchema, Unsupported> {
    TableSchema::from_delta(&metadata.schema_string)
        .ok_or_else(|| Unsupported("the schema in the table's metadata cannot be read".to_owned()))
}

fn check_protocol(protocol: &Protocol) -> Result<(), Unsupported> {
    if protocol.min_reader_version > READER_VERSION || protocol.min_writer_version > WRITER_VERSION {
        return Err(Unsupported(format!(
            "the table asks for Delta reader version {} and writer version {}, this program has {READER_VERSION} and \
             {WRITER_VERSION}; another program has upgraded it, write to a new table instead",
            protocol.min_reader_version, protocol.min_writer_version
        )));
    }
    Ok(())
}

fn decode_path(path: &str) -> Result<String, Unsupported> {
    if path.contains("://") {
        return Err(Unsupported(format!("the table refers to a file elsewhere ({path})")));
    }
    match StorePath::from_url_path(path) {
        Ok(path) => Ok(path.to_string()),
        Err(e) => Err(Unsupported(format!(
            "the table names a file that no store can hold ({path}): {e}"
        ))),
    }
}
