//! Reads and writes the commits of one table.
//!
//! A commit goes in under the next number or not at all: the store never replaces a file, so of two writers one is told
//! that the number is taken. A commit whose file is not whole can only be the newest one, left by a writer that does not
//! sync; `recover` moves it away, which takes the table back to its last whole version.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use deltalake_core::logstore::{LogStoreRef, StorageConfig, logstore_with};
use deltalake_core::{DeltaTable, DeltaTableError, checkpoints};
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};

use super::actions::{Action, Add, Format, Metadata, Protocol, decode, encode};
use super::snapshot::{Detail, Snapshot, Unsupported};
use crate::store::{FaultKind, SyncedStore, fault_kind, fault_text, is_staged};

type StorePath = object_store::path::Path;

/// Digits in the name of a commit.
const VERSION_DIGITS: usize = 20;
/// A commit that another program is just writing may be seen half: how often and how long to wait for the rest.
const TORN_READS_MAX: usize = 4;
const TORN_READ_PAUSE: Duration = Duration::from_millis(50);

/// What can go wrong with a table's log.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    #[error("{}", fault_text(.0))]
    Store(#[from] object_store::Error),
    #[error("the Delta log of {table} cannot be read: {source}")]
    Library {
        table: PathBuf,
        source: Box<DeltaTableError>,
    },
    #[error(
        "lake.corrupt_log: commit {version} of {table} is not a whole commit ({why}); move that file and all after it out \
         of _delta_log to go back to version {}",
        version - 1
    )]
    Corrupt { table: PathBuf, version: i64, why: String },
    #[error("lake.unsupported_table: {table}: {source}")]
    Unsupported { table: PathBuf, source: Unsupported },
}

impl DeltaError {
    pub fn kind(&self) -> FaultKind {
        match self {
            DeltaError::Store(error) => fault_kind(error),
            _ => FaultKind::Other,
        }
    }
}

/// What became of an attempt to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Durable under the number that was asked for.
    Committed,
    /// Another writer has that number.
    Taken,
}

/// The log of one table.
#[derive(Clone)]
pub struct DeltaLog {
    table: PathBuf,
    store: Arc<dyn ObjectStore>,
    prefix: StorePath,
    library: LogStoreRef,
}

impl DeltaLog {
    /// `table` is an absolute path; nothing is created.
    pub fn new(table: &Path, store: SyncedStore) -> Result<DeltaLog, DeltaError> {
        let prefix =
            StorePath::from_absolute_path(table).map_err(|source| object_store::Error::InvalidPath { source })?;
        let library_error = |source| DeltaError::Library {
            table: table.to_owned(),
            source: Box::new(source),
        };
        let url = url::Url::from_directory_path(table)
            .map_err(|()| library_error(DeltaTableError::InvalidTableLocation(table.display().to_string())))?;
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let library = logstore_with(store.clone(), &url, StorageConfig::default()).map_err(library_error)?;
        Ok(DeltaLog {
            table: table.to_owned(),
            store,
            prefix,
            library,
        })
    }

    pub fn table(&self) -> &Path {
        &self.table
    }

    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Where in the store a path relative to the table lies.
    pub fn path(&self, relative: &str) -> Result<StorePath, DeltaError> {
        let path = StorePath::parse(format!("{}/{relative}", self.prefix));
        Ok(path.map_err(|source| object_store::Error::InvalidPath { source })?)
    }

    fn commit_path(&self, version: i64) -> Result<StorePath, DeltaError> {
        self.path(&format!("_delta_log/{version:0VERSION_DIGITS$}.json"))
    }

    /// Writes a file of the table, durably. The name must be new.
    pub async fn put_file(&self, relative: &str, bytes: Bytes) -> Result<(), DeltaError> {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        self.store
            .put_opts(&self.path(relative)?, bytes.into(), options)
            .await?;
        Ok(())
    }

    /// Deletes a file that no version of the table names.
    pub async fn delete_file(&self, relative: &str) -> Result<(), DeltaError> {
        Ok(self.store.delete(&self.path(relative)?).await?)
    }

    /// Adds a commit. When this returns `Committed`, it is durable and visible to every reader.
    pub async fn commit(&self, version: i64, actions: &[Action]) -> Result<CommitOutcome, DeltaError> {
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        let put = self
            .store
            .put_opts(&self.commit_path(version)?, encode(actions).into(), options)
            .await;
        match put {
            Ok(_) => Ok(CommitOutcome::Committed),
            Err(e) if fault_kind(&e) == FaultKind::Exists => Ok(CommitOutcome::Taken),
            Err(e) => Err(e.into()),
        }
    }

    /// The actions of a commit, or `None` if there is no such version yet.
    pub async fn read_commit(&self, version: i64) -> Result<Option<Vec<Action>>, DeltaError> {
        let path = self.commit_path(version)?;
        let mut attempt = 0;
        loop {
            let bytes = match self.store.get(&path).await {
                Ok(found) => found.bytes().await?,
                Err(e) if fault_kind(&e) == FaultKind::Missing => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            attempt += 1;
            match decode(&bytes) {
                Ok(actions) => return Ok(Some(actions)),
                Err(_) if attempt < TORN_READS_MAX => tokio::time::sleep(TORN_READ_PAUSE).await,
                Err(why) => {
                    return Err(DeltaError::Corrupt {
                        table: self.table.clone(),
                        version,
                        why,
                    });
                }
            }
        }
    }

    /// The newest version, or `None` where there is no table.
    pub async fn load(&self, detail: Detail) -> Result<Option<Snapshot>, DeltaError> {
        if !self.table.join("_delta_log").is_dir()
            || !self
                .library
                .is_delta_table_location()
                .await
                .map_err(self.library_error())?
        {
            return Ok(None);
        }
        let mut table = DeltaTable::new(self.library.clone());
        table.load().await.map_err(self.library_error())?;
        let state = table.snapshot().map_err(self.library_error())?;
        let version = i64::try_from(state.version()).unwrap_or(i64::MAX);
        let foreign = |what: &str| self.unsupported(Unsupported(format!("the table's {what} cannot be read")));
        let protocol: Protocol = translate(state.protocol()).ok_or_else(|| foreign("protocol"))?;
        let metadata: Metadata = translate(state.metadata()).ok_or_else(|| foreign("metadata"))?;
        let mut snapshot = Snapshot::new(version, protocol, metadata, detail).map_err(|e| self.unsupported(e))?;
        for file in state.log_data().iter() {
            // The only public way to a file's tags.
            #[allow(deprecated)]
            let add = file.add_action();
            snapshot.add(foreign_add(add)).map_err(|e| self.unsupported(e))?;
        }
        Ok(Some(snapshot))
    }

    /// Applies the commits after a snapshot; returns whether there were any.
    pub async fn refresh(&self, snapshot: &mut Snapshot) -> Result<bool, DeltaError> {
        let before = snapshot.version;
        while let Some(actions) = self.read_commit(snapshot.version + 1).await? {
            snapshot.apply(actions).map_err(|e| self.unsupported(e))?;
        }
        Ok(snapshot.version > before)
    }

    /// Writes a checkpoint of a version and deletes commits that are older than the table keeps.
    pub async fn checkpoint(&self, version: i64) -> Result<(), DeltaError> {
        let mut table = DeltaTable::new(self.library.clone());
        let version = u64::try_from(version).unwrap_or(0);
        table.load_version(version).await.map_err(self.library_error())?;
        checkpoints::create_checkpoint(&table, None)
            .await
            .map_err(self.library_error())?;
        checkpoints::cleanup_metadata(&table, None)
            .await
            .map_err(self.library_error())?;
        Ok(())
    }

    /// Repairs what a crash left: a newest commit that is not whole goes to `quarantine`, and temporary files older than
    /// `staged_age` are deleted. Only the one process that writes the table may call this.
    pub async fn recover(&self, quarantine: &Path, staged_age: Duration) -> Result<(), DeltaError> {
        let table = self.table.clone();
        let newest = tokio::task::spawn_blocking(move || sweep(&table, staged_age))
            .await
            .map_err(|source| object_store::Error::JoinError { source })?;
        let Some(version) = newest else { return Ok(()) };
        match self.read_commit(version).await {
            Err(DeltaError::Corrupt { why, .. }) => {
                let name = format!("{}-{version:0VERSION_DIGITS$}.json", self.table_name());
                let to = StorePath::from_absolute_path(quarantine.join(name))
                    .map_err(|source| object_store::Error::InvalidPath { source })?;
                tracing::error!(table = %self.table.display(), version, why, to = %to,
                    "the newest commit was not written whole and is moved away; the table goes back to the version before it");
                let bytes = self.store.get(&self.commit_path(version)?).await?.bytes().await?;
                self.store.put(&to, bytes.into()).await?;
                self.store.delete(&self.commit_path(version)?).await?;
                Ok(())
            }
            other => other.map(|_| ()),
        }
    }

    pub fn table_name(&self) -> &str {
        self.table.file_name().and_then(|name| name.to_str()).unwrap_or("table")
    }

    fn library_error(&self) -> impl Fn(DeltaTableError) -> DeltaError {
        let table = self.table.clone();
        move |source| match source {
            DeltaTableError::ObjectStore { source } => DeltaError::Store(source),
            source => DeltaError::Library {
                table: table.clone(),
                source: Box::new(source),
            },
        }
    }

    fn unsupported(&self, source: Unsupported) -> DeltaError {
        DeltaError::Unsupported {
            table: self.table.clone(),
            source,
        }
    }
}

/// The library's action as ours, by way of the JSON that both define.
fn translate<A: serde::Serialize, B: serde::de::DeserializeOwned>(action: &A) -> Option<B> {
    serde_json::from_value(serde_json::to_value(action).ok()?).ok()
}

fn foreign_add(add: deltalake_core::kernel::Add) -> Add {
    Add {
        // The library has decoded the path already.
        path: add.path.replace('%', "%25"),
        partition_values: add.partition_values.into_iter().collect(),
        size: add.size.unsigned_abs(),
        modification_time: add.modification_time,
        data_change: add.data_change,
        stats: add.stats,
        tags: add.tags.map(|tags| tags.into_iter().collect()),
        deletion_vector: add.deletion_vector.map(|_| serde_json::Value::Null),
    }
}

/// Deletes old temporary files in the log and one level below the table; returns the newest commit's number.
fn sweep(table: &Path, staged_age: Duration) -> Option<i64> {
    let mut newest = None;
    for entry in entries(table).filter(|entry| entry.path().is_dir()) {
        for file in entries(&entry.path()) {
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            if is_staged(name) && older_than(&file, staged_age) {
                let _ = std::fs::remove_file(file.path());
            }
            if entry.file_name() == "_delta_log"
                && let Some(version) = version_of(name)
            {
                newest = newest.max(Some(version));
            }
        }
    }
    newest
}

fn entries(directory: &Path) -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir(directory).into_iter().flatten().flatten()
}

fn older_than(file: &std::fs::DirEntry, age: Duration) -> bool {
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    modified.is_ok_and(|at| SystemTime::now().duration_since(at).unwrap_or_default() >= age)
}

fn version_of(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == VERSION_DIGITS && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The first commit of a new table.
pub fn creation(metadata: Metadata) -> Vec<Action> {
    vec![Action::Protocol(Protocol::plain()), Action::Metadata(metadata)]
}

/// Metadata of a new table.
pub fn new_metadata(
    schema: &super::schema::TableSchema,
    partition: &str,
    configuration: &[(&str, &str)],
    created_unix_ms: i64,
) -> Metadata {
    Metadata {
        id: uuid::Uuid::new_v4().to_string(),
        name: None,
        description: None,
        format: Format::default(),
        schema_string: schema.to_delta(),
        partition_columns: vec![partition.to_owned()],
        configuration: configuration
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        created_time: Some(created_unix_ms),
    }
}
