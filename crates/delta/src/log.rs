//! Reads and writes the commits of one table.
//!
//! A commit is stored under the next number or not at all: the store never replaces a file, so the second of two
//! writers learns that the number is taken. Only the newest commit can be incomplete, left by a writer that does not
//! sync. `recover` moves it away, which restores the last complete version.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, PutOptions};
use parking_lot::Mutex;
use thalweg_kit::clock::{Clock, SystemClock};
use thalweg_kit::{blocking, random};

use super::actions::{Action, Add, Format, Metadata, Protocol, decode, encode};
use super::checkpoint::{self, CheckpointState, LastCheckpoint, TOMBSTONES_DEFAULT_MS};
use super::snapshot::{Snapshot, SnapshotDetail, UnsupportedTable, changes_of};
use crate::codes::DeltaCode;
use crate::store::{DiskFault, FaultKind, LocalFile, RemoteStorage, SyncedStore, fault_kind, fault_text, is_staged};

/// The number of digits in a commit's name.
const VERSION_DIGITS: usize = 20;
/// A commit that another program is just writing may be incomplete: it is read again this often, after this pause.
const TORN_READS_MAX: usize = 4;
const TORN_READ_PAUSE: Duration = Duration::from_millis(50);
/// The hint that names the newest checkpoint.
const LAST_CHECKPOINT: &str = "_delta_log/_last_checkpoint";
/// Concurrent requests for files.
const LOOKS_AT_ONCE: usize = 16;
/// Commits newer than the last refresh of a snapshot are kept at least this long, in microseconds.
const FORGOTTEN_AFTER: u64 = 60_000_000;
/// No version is known.
const UNKNOWN: i64 = -1;

/// An error of a table's log.
#[derive(Debug, thiserror::Error)]
pub enum DeltaError {
    /// The message is complete, so the error is no source.
    #[error("{}", fault_text(.0))]
    Store(object_store::Error),
    #[error(
        "{code}: commit {version} of {table} is incomplete ({why}); move that file and all after it out of _delta_log \
         to go back to version {}",
        version - 1,
        code = DeltaCode::CorruptLog
    )]
    Corrupt { table: PathBuf, version: i64, why: String },
    #[error(
        "{code}: the history of {table} cannot be read: {why}; restore the missing file from a copy of _delta_log, or \
         move the table away to begin a new one",
        code = DeltaCode::CorruptLog
    )]
    Incomplete { table: PathBuf, why: String },
    #[error("{code}: {table}: {source}", code = DeltaCode::UnsupportedTable)]
    Unsupported { table: PathBuf, source: UnsupportedTable },
    #[error("{code}: {table} {why}", code = DeltaCode::NoVersion)]
    NoVersion { table: PathBuf, why: String },
    /// This process does not hold the lease of the lake, at present or for good.
    #[error("{why}")]
    NotHeld { why: String, is_lost: bool },
}

impl From<object_store::Error> for DeltaError {
    fn from(error: object_store::Error) -> DeltaError {
        DeltaError::Store(error)
    }
}

impl DeltaError {
    /// Whether a file copy does not fit into the spool.
    pub fn is_no_room(&self) -> bool {
        let DeltaError::Store(error) = self else { return false };
        let fault = std::error::Error::source(error).and_then(|source| source.downcast_ref::<DiskFault>());
        matches!(fault, Some(DiskFault::NoRoom { .. }))
    }

    pub fn kind(&self) -> FaultKind {
        match self {
            DeltaError::Store(error) => fault_kind(error),
            DeltaError::NotHeld { is_lost: true, .. } => FaultKind::Held,
            _ => FaultKind::Other,
        }
    }
}

/// The outcome of an attempt to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// Durable under the requested version.
    Committed,
    /// Another writer has taken that version.
    Taken,
}

/// The log of one table.
#[derive(Clone)]
pub struct DeltaLog {
    table: PathBuf,
    store: Arc<dyn ObjectStore>,
    prefix: StorePath,
    /// `Some` for a table on an object store.
    remote: Option<Arc<RemoteStorage>>,
    /// Decides what is old enough to delete.
    clock: Arc<dyn Clock>,
    /// Writes beside the lease holder, as one of several writers of the table.
    is_guest: bool,
    /// The oldest commit that may still exist.
    oldest: Arc<AtomicI64>,
    /// Stored files that wait for their commit.
    uncommitted: Arc<Mutex<HashSet<String>>>,
}

/// Protects files from deletion while it exists, whatever their age.
pub struct UncommittedFiles {
    of: Arc<Mutex<HashSet<String>>>,
    paths: Vec<String>,
}

impl Drop for UncommittedFiles {
    fn drop(&mut self) {
        let mut uncommitted = self.of.lock();
        for path in &self.paths {
            uncommitted.remove(path);
        }
    }
}

impl DeltaLog {
    /// `table` is an absolute path. Nothing is created.
    pub fn new(table: &Path, store: SyncedStore) -> Result<DeltaLog, DeltaError> {
        let prefix =
            StorePath::from_absolute_path(table).map_err(|source| object_store::Error::InvalidPath { source })?;
        Ok(DeltaLog {
            table: table.to_owned(),
            store: Arc::new(store),
            prefix,
            remote: None,
            clock: Arc::new(SystemClock),
            is_guest: false,
            oldest: Arc::new(AtomicI64::new(UNKNOWN)),
            uncommitted: Arc::default(),
        })
    }

    /// The log of a table below `prefix` in an object store. `table` is its name in messages.
    pub(crate) fn on(remote: Arc<RemoteStorage>, table: PathBuf, prefix: StorePath) -> DeltaLog {
        DeltaLog {
            table,
            store: remote.store.clone(),
            prefix,
            remote: Some(remote),
            clock: Arc::new(SystemClock),
            is_guest: false,
            oldest: Arc::new(AtomicI64::new(UNKNOWN)),
            uncommitted: Arc::default(),
        }
    }

    /// The log for a writer without the lease. Such a writer only adds files and leaves the rest to the lease holder.
    /// The atomicity of version numbers is enough for that, and its uncommitted files are abandoned when it ends,
    /// because it resumes nothing.
    pub fn for_guest(self) -> DeltaLog {
        DeltaLog { is_guest: true, ..self }
    }

    pub(crate) fn with_clock(self, clock: Arc<dyn Clock>) -> DeltaLog {
        DeltaLog { clock, ..self }
    }

    /// The time, in milliseconds since 1970, before which time stamps are older than `age`, even if the wall clock was
    /// set in between.
    pub fn oldest_ms(&self, age: Duration) -> i64 {
        let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
        self.clock.oldest_wall(age).div_euclid(1000)
    }

    /// The wall clock in milliseconds since 1970. Commits are stamped by the same clock that measures their age.
    pub fn now_ms(&self) -> i64 {
        self.clock.notice();
        self.clock.wall_at(self.clock.now()).div_euclid(1000)
    }

    /// The folder, or the URL on an object store. The URL is for messages only and cannot be opened.
    pub fn table(&self) -> &Path {
        &self.table
    }

    /// `Some` for a table on an object store.
    pub fn remote(&self) -> Option<&Arc<RemoteStorage>> {
        self.remote.as_ref()
    }

    /// The folder below which files can be opened: that of the table, or that of the copies.
    pub fn local_folder(&self) -> PathBuf {
        match &self.remote {
            None => self.table.clone(),
            Some(remote) => remote.spool.folder().join(self.table_name()),
        }
    }

    /// The total size of files that can be open at a time; `None` if there is no limit.
    pub fn local_room(&self) -> Option<u64> {
        self.remote.as_ref().map(|remote| remote.spool.room())
    }

    /// How many of these files do not exist any more.
    pub async fn missing(&self, files: impl Iterator<Item = Arc<str>>) -> Result<usize, DeltaError> {
        if self.remote.is_none() {
            return Ok(files.filter(|path| !self.table.join(&**path).exists()).count());
        }
        let is_missing = |path: Arc<str>| async move {
            match self.store.head(&self.path(&path)?).await {
                Ok(_) => Ok(false),
                Err(error) if fault_kind(&error) == FaultKind::Missing => Ok(true),
                Err(error) => Err(DeltaError::from(error)),
            }
        };
        let mut looked = futures::stream::iter(files.map(is_missing)).buffer_unordered(LOOKS_AT_ONCE);
        let mut missing = 0;
        while let Some(is_missing) = looked.next().await {
            missing += usize::from(is_missing?);
        }
        Ok(missing)
    }

    /// Makes a file of this size available on this machine.
    pub async fn local_file(&self, relative: &str, bytes: u64) -> Result<LocalFile, DeltaError> {
        let Some(remote) = &self.remote else {
            return Ok(LocalFile::own(self.table.join(relative)));
        };
        let name = format!("{}/{relative}", self.table_name());
        let from = self.path(relative)?;
        let copied = remote.spool.fetch(&*self.store, &from, &name, bytes, &remote.pace);
        Ok(copied.await?)
    }

    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// The store path of a path relative to the table.
    pub fn path(&self, relative: &str) -> Result<StorePath, DeltaError> {
        let path = StorePath::parse(format!("{}/{relative}", self.prefix));
        Ok(path.map_err(|source| object_store::Error::InvalidPath { source })?)
    }

    pub(super) fn commit_path(&self, version: i64) -> Result<StorePath, DeltaError> {
        self.path(&format!("_delta_log/{version:0VERSION_DIGITS$}.json"))
    }

    /// Writes a file of the table durably. The name must be new.
    pub async fn put_file(&self, relative: &str, bytes: Bytes) -> Result<(), DeltaError> {
        if let Some(remote) = &self.remote {
            return Ok(remote.upload_bytes(&self.path(relative)?, &bytes).await?);
        }
        let options = PutOptions {
            mode: PutMode::Create,
            ..PutOptions::default()
        };
        self.store
            .put_opts(&self.path(relative)?, bytes.into(), options)
            .await?;
        Ok(())
    }

    /// Protects files that will be stored and committed later.
    pub fn hold<'f>(&self, files: impl Iterator<Item = &'f Add>) -> UncommittedFiles {
        let paths: Vec<String> = files.map(|add| add.path.clone()).collect();
        self.uncommitted.lock().extend(paths.iter().cloned());
        UncommittedFiles {
            of: self.uncommitted.clone(),
            paths,
        }
    }

    /// The files that currently wait for their commit.
    pub fn held(&self) -> HashSet<String> {
        self.uncommitted.lock().clone()
    }

    /// Deletes a file that no version of the table refers to.
    pub async fn delete_file(&self, relative: &str) -> Result<(), DeltaError> {
        Ok(self.store.delete(&self.path(relative)?).await?)
    }

    /// Adds a commit. It is durable and visible to every reader when this returns `CommitOutcome::Committed`.
    pub async fn commit(&self, version: i64, actions: &[Action]) -> Result<CommitOutcome, DeltaError> {
        if let Some(remote) = &self.remote
            && !self.is_guest
        {
            let held = remote.lease.check();
            held.map_err(|(why, is_lost)| DeltaError::NotHeld { why, is_lost })?;
        }
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

    /// The actions of a commit; `None` if the version does not exist yet.
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

    /// The newest version; `None` if there is no table.
    pub async fn load(&self, detail: SnapshotDetail) -> Result<Option<Snapshot>, DeltaError> {
        let mut hint = self.last_checkpoint().await?;
        loop {
            let loaded = self.load_from(hint.as_ref(), detail).await;
            let version = match &loaded {
                Ok(Some(snapshot)) => snapshot.version,
                Ok(None) | Err(DeltaError::Incomplete { .. }) => UNKNOWN,
                Err(_) => return loaded,
            };
            // Commits after the checkpoint may have been deleted since the hint was read. Then the hint names a newer
            // checkpoint by now.
            let now = self.last_checkpoint().await?;
            if now == hint || now.as_ref().is_none_or(|now| now.version <= version) {
                return loaded;
            }
            hint = now;
        }
    }

    async fn load_from(
        &self,
        hint: Option<&LastCheckpoint>,
        detail: SnapshotDetail,
    ) -> Result<Option<Snapshot>, DeltaError> {
        let Some((version, state)) = self.beginning(hint).await? else {
            return Ok(None);
        };
        let snapshot = self.snapshot_of(version, state, detail)?;
        Ok(Some(self.follow(snapshot).await?))
    }

    /// Fails if there are commits after this version that do not follow it. A commit between them is lost, and
    /// continuing without it would take the table back.
    pub async fn nothing_beyond(&self, snapshot: &mut Snapshot) -> Result<(), DeltaError> {
        let newest = self.commit_numbers().await?.last().copied();
        // Other writers may have committed meanwhile.
        while newest.is_some_and(|newest| newest > snapshot.version) {
            if !self.refresh(snapshot).await? {
                return Err(self.incomplete(format!("commit {} is missing", snapshot.version + 1)));
            }
        }
        Ok(())
    }

    /// Builds a snapshot from a checkpoint state.
    pub(super) fn snapshot_of(
        &self,
        version: i64,
        state: CheckpointState,
        detail: SnapshotDetail,
    ) -> Result<Snapshot, DeltaError> {
        let missing = |what: &str| self.incomplete(format!("version {version} has no {what}"));
        let protocol = state.protocol.ok_or_else(|| missing("protocol"))?;
        let metadata = state.metadata.ok_or_else(|| missing("metadata"))?;
        let mut snapshot = Snapshot::new(version, protocol, metadata, detail).map_err(|e| self.unsupported(e))?;
        for add in state.adds.into_values() {
            snapshot.add(add).map_err(|e| self.unsupported(e))?;
        }
        state.txns.into_values().for_each(|txn| snapshot.wrote(txn));
        snapshot.looked_at = self.clock.now();
        Ok(snapshot)
    }

    /// The state from which the history can be replayed: the newest checkpoint, else the first commit.
    async fn beginning(&self, hint: Option<&LastCheckpoint>) -> Result<Option<(i64, CheckpointState)>, DeltaError> {
        let mut failed = None;
        if let Some(hint) = hint {
            match self.read_checkpoint(hint).await {
                Ok(state) => return Ok(Some((hint.version, state))),
                Err(e) if e.kind() == FaultKind::Missing => {}
                Err(e) => failed = Some(e),
            }
        }
        // Without a valid hint, the folder is listed.
        let (mut checkpoints, commits) = self.list().await?;
        checkpoints.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.version));
        checkpoints.dedup();
        for checkpoint in checkpoints {
            match self.read_checkpoint(&checkpoint).await {
                Ok(state) => return Ok(Some((checkpoint.version, state))),
                Err(e) => failed = Some(e),
            }
        }
        if let Some(actions) = self.read_commit(0).await? {
            let mut state = CheckpointState::default();
            state.apply(actions);
            return Ok(Some((0, state)));
        }
        match (failed, commits) {
            (None, None) => Ok(None),
            (Some(error), _) => Err(error),
            (None, Some(oldest)) => Err(self.incomplete(format!(
                "the oldest commit is {oldest} and there is no checkpoint before it"
            ))),
        }
    }

    /// The hint; `None` if it is missing or invalid, which is no error because the folder can be listed.
    async fn last_checkpoint(&self) -> Result<Option<LastCheckpoint>, DeltaError> {
        match self.store.get(&self.path(LAST_CHECKPOINT)?).await {
            Ok(found) => Ok(serde_json::from_slice(&found.bytes().await?).ok()),
            Err(e) if fault_kind(&e) == FaultKind::Missing => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) async fn read_checkpoint(&self, checkpoint: &LastCheckpoint) -> Result<CheckpointState, DeltaError> {
        let mut state = CheckpointState::default();
        for file in checkpoint.files() {
            let bytes = self.store.get(&self.path(&format!("_delta_log/{file}"))?).await;
            let bytes = bytes?.bytes().await?;
            let actions = blocking::spawn(move || checkpoint::read(bytes))
                .await
                .map_err(|source| object_store::Error::JoinError { source })?;
            state.apply(actions.map_err(|why| self.incomplete(format!("{file} is damaged ({why})")))?);
        }
        Ok(state)
    }

    /// All checkpoints, and the oldest commit.
    pub(super) async fn list(&self) -> Result<(Vec<LastCheckpoint>, Option<i64>), DeltaError> {
        let mut files = self.store.list(Some(&self.path("_delta_log")?));
        let mut checkpoints = Vec::new();
        let mut oldest: Option<i64> = None;
        while let Some(file) = files.next().await {
            let location = match file {
                Ok(file) => file.location,
                // The folder does not exist yet.
                Err(e) if fault_kind(&e) == FaultKind::Missing => continue,
                Err(e) => return Err(e.into()),
            };
            let name = location.filename().unwrap_or_default();
            if let Some(version) = version_of(name) {
                oldest = Some(oldest.map_or(version, |oldest| oldest.min(version)));
            }
            checkpoints.extend(LastCheckpoint::of_file(name));
        }
        Ok((checkpoints, oldest))
    }

    /// Moves a snapshot to the newest version; returns whether there was one. All commits are read and parsed before
    /// the first is applied: after an error, or if the future is dropped, the snapshot is unchanged, and so is all that
    /// its owner derived from it. Rejected option: work on a copy. Its cost grows with the number of files.
    pub async fn refresh(&self, snapshot: &mut Snapshot) -> Result<bool, DeltaError> {
        let (mut version, mut commits, now) = (snapshot.version, Vec::new(), self.clock.now());
        while let Some(actions) = self.read_commit(version + 1).await? {
            commits.push(changes_of(actions).map_err(|error| self.unsupported(error))?);
            version += 1;
        }
        // After a long pause, such as a suspended machine, the next commit may be missing because it was deleted.
        let is_old = now.abs_diff(snapshot.looked_at) >= FORGOTTEN_AFTER;
        if is_old && self.is_forgotten(version).await? {
            let newest = self.load(snapshot.detail()).await?;
            let newest = newest.ok_or_else(|| self.incomplete("there is no table".to_owned()))?;
            let is_newer = newest.version > snapshot.version;
            *snapshot = newest;
            return Ok(is_newer);
        }
        let is_newer = !commits.is_empty();
        commits.into_iter().for_each(|changes| snapshot.change(changes));
        snapshot.looked_at = now;
        Ok(is_newer)
    }

    /// Whether an existing commit was deleted. The oldest are deleted first, so all commits after an existing one
    /// exist.
    async fn is_forgotten(&self, version: i64) -> Result<bool, DeltaError> {
        match self.store.head(&self.commit_path(version)?).await {
            Ok(_) => Ok(false),
            Err(error) if fault_kind(&error) == FaultKind::Missing => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Moves a new snapshot to the newest version, one commit in memory at a time.
    async fn follow(&self, mut snapshot: Snapshot) -> Result<Snapshot, DeltaError> {
        while let Some(actions) = self.read_commit(snapshot.version + 1).await? {
            snapshot.apply(actions).map_err(|error| self.unsupported(error))?;
        }
        Ok(snapshot)
    }

    /// Writes a checkpoint of a version and deletes commits beyond the table's retention.
    pub async fn checkpoint(&self, version: i64) -> Result<(), DeltaError> {
        let hint = self.last_checkpoint().await?;
        let (mut at, mut state) = self
            .beginning(hint.as_ref())
            .await?
            .ok_or_else(|| self.incomplete("there is no table".to_owned()))?;
        while at < version {
            let actions = self.read_commit(at + 1).await?;
            let actions = actions.ok_or_else(|| self.incomplete(format!("commit {} is missing", at + 1)))?;
            state.apply(actions);
            at += 1;
        }
        if at > version {
            // A newer checkpoint of another writer exists.
            return Ok(());
        }
        let retention = state.log_retention_ms();
        // Earlier than the real time if the clock was set within the retention, so nothing is deleted too early.
        let longest = u64::try_from(retention.unwrap_or(0).max(TOMBSTONES_DEFAULT_MS)).unwrap_or(0);
        let now = self
            .oldest_ms(Duration::from_millis(longest))
            .saturating_add_unsigned(longest);
        let (bytes, last) = blocking::spawn(move || state.encode(version, now))
            .await
            .map_err(|source| object_store::Error::JoinError { source })?
            .map_err(|why| self.incomplete(why))?;
        for file in last.files() {
            self.store
                .put(&self.path(&format!("_delta_log/{file}"))?, bytes.clone().into())
                .await?;
        }
        let hint = serde_json::to_vec(&last).map_err(|e| self.incomplete(e.to_string()))?;
        self.store.put(&self.path(LAST_CHECKPOINT)?, hint.into()).await?;
        match retention {
            Some(age) => self.forget_before(version, now - age).await,
            None => Ok(()),
        }
    }

    /// Deletes commits and checkpoints before `version` that are older than `from_unix_ms`, the oldest first, so that
    /// the rest is always a complete history.
    async fn forget_before(&self, version: i64, from_unix_ms: i64) -> Result<(), DeltaError> {
        let mut oldest = self.oldest.load(Ordering::Relaxed);
        if oldest == UNKNOWN {
            oldest = self.list().await?.1.unwrap_or(version);
        }
        while oldest < version {
            let path = self.commit_path(oldest)?;
            match self.store.head(&path).await {
                Ok(found) if found.last_modified.timestamp_millis() >= from_unix_ms => break,
                Ok(_) => {
                    let checkpoint = self.path(&format!("_delta_log/{oldest:0VERSION_DIGITS$}.checkpoint.parquet"))?;
                    for path in [checkpoint, path] {
                        match self.store.delete(&path).await {
                            Err(e) if fault_kind(&e) != FaultKind::Missing => return Err(e.into()),
                            _ => {}
                        }
                    }
                }
                Err(e) if fault_kind(&e) == FaultKind::Missing => {}
                Err(e) => return Err(e.into()),
            }
            oldest += 1;
        }
        self.oldest.store(oldest, Ordering::Relaxed);
        Ok(())
    }

    /// Repairs what a crash left: moves an incomplete newest commit to `quarantine` and deletes temporary files older
    /// than `staged_age`. Only the process that writes the table may call this. An object store has neither.
    pub async fn recover(&self, quarantine: &Path, staged_age: Duration) -> Result<(), DeltaError> {
        if self.remote.is_some() {
            return Ok(());
        }
        let table = self.table.clone();
        let before = UNIX_EPOCH + Duration::from_millis(u64::try_from(self.oldest_ms(staged_age) + 1).unwrap_or(0));
        let newest = blocking::spawn(move || sweep(&table, before))
            .await
            .map_err(|source| object_store::Error::JoinError { source })?;
        let Some(version) = newest else { return Ok(()) };
        match self.read_commit(version).await {
            Err(DeltaError::Corrupt { why, .. }) => {
                let name = format!("{}-{version:0VERSION_DIGITS$}.json", self.table_name());
                let to = StorePath::from_absolute_path(quarantine.join(name))
                    .map_err(|source| object_store::Error::InvalidPath { source })?;
                tracing::error!(table = %self.table.display(), version, why, to = %to,
                    "the newest commit is incomplete and was moved away; the table is back at the previous version");
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

    pub(super) fn incomplete(&self, why: String) -> DeltaError {
        DeltaError::Incomplete {
            table: self.table.clone(),
            why,
        }
    }

    pub(super) fn unsupported(&self, source: UnsupportedTable) -> DeltaError {
        DeltaError::Unsupported {
            table: self.table.clone(),
            source,
        }
    }
}

/// Deletes temporary files older than `before`, in the log and one level below the table; returns the newest commit's
/// number.
fn sweep(table: &Path, before: SystemTime) -> Option<i64> {
    let mut newest = None;
    for entry in entries(table).filter(|entry| entry.path().is_dir()) {
        for file in entries(&entry.path()) {
            let name = file.file_name();
            let Some(name) = name.to_str() else { continue };
            if is_staged(name) && is_older(&file, before) {
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

fn is_older(file: &std::fs::DirEntry, before: SystemTime) -> bool {
    let modified = file.metadata().and_then(|metadata| metadata.modified());
    modified.is_ok_and(|at| at < before)
}

pub(super) fn version_of(name: &str) -> Option<i64> {
    let digits = name.strip_suffix(".json")?;
    (digits.len() == VERSION_DIGITS && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The actions of the first commit of a new table.
pub fn creation(metadata: Metadata) -> Vec<Action> {
    vec![Action::Protocol(Protocol::plain()), Action::Metadata(metadata)]
}

/// The metadata of a new table.
pub fn new_metadata(
    schema: &super::schema::TableSchema,
    partitions: &[&str],
    configuration: &[(&str, &str)],
    created_unix_ms: i64,
) -> Metadata {
    Metadata {
        id: random::uuid().to_string(),
        name: None,
        description: None,
        format: Format::default(),
        schema_string: schema.to_delta(),
        partition_columns: partitions.iter().map(|name| (*name).to_owned()).collect(),
        configuration: configuration
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        created_time: Some(created_unix_ms),
    }
}
