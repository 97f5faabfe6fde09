//! Commits rows to a table: they become files and one Delta commit, or they stay and are tried again.
//!
//! States of rows: *encoded* (files exist in memory), *stored* (all files durable), *committed*. A store fault leaves
//! rows in their state and is retried. Only a failed sync, or a table that this program no longer supports, ends the
//! writer. If another writer took the next version, its commit is read first: its new columns are adopted, and files
//! with conflicting column names are encoded again.
//!
//! A commit records the committed offsets of the log. An attempt whose outcome is unknown is therefore resolved by
//! reading the table: rows that are there are not written again.

mod health;
mod staged;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::error::AppendError;
use crate::memtable_view::OverflowCounts;
use crate::metrics::LakeMetrics;
pub(crate) use health::{HealthComponent, TableHealth};
pub(crate) use staged::StagedFile;
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::spec_of;
use thalweg_delta::actions::{Action, Add, CommitInfo, Remove, Txn};
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::{INDEXED_COLUMNS_KEY, bounded_columns};
use thalweg_delta::store::FaultKind;
use thalweg_delta::{CommitOutcome, DeltaError, DeltaLog, Snapshot};
use thalweg_kit::backoff::Backoff;
use thalweg_kit::{clock, threads};

const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// The prefix of log partitions in transaction application names.
const OF_LOGS: &str = "thalweg/";
/// How often a thread that waits for the store checks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

/// A file that is ready to be stored.
#[derive(Clone, Debug)]
pub struct EncodedFile {
    pub bytes: Bytes,
    pub rows: u64,
    pub add: Add,
}

/// The rows of a commit.
pub(crate) trait CommitPayload {
    /// The attribute names, at least those without a binding.
    fn names(&self, bindings: &AttributeBindings) -> Vec<(AttributeSource, &str)>;

    /// Returns the files, and how many values went to overflow maps. Every name has a binding, and the schema has all
    /// columns.
    fn encode(
        &self,
        schema: &TableSchema,
        bindings: &AttributeBindings,
    ) -> Result<(Vec<EncodedFile>, OverflowCounts), String>;
}

/// How far a log partition was consumed, as a table records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommittedOffset {
    /// Identifies the partition among all logs.
    pub application: String,
    /// The next offset to consume.
    pub offset: i64,
    /// The partition is gone: the table may forget it.
    pub is_last: bool,
}

impl CommittedOffset {
    /// Only the offsets of live log partitions are kept for ever; those of imported files expire, too.
    pub fn action(&self, now_unix_ms: i64) -> Action {
        let is_kept = self.application.starts_with(OF_LOGS) && !self.is_last;
        Action::Txn(Txn {
            app_id: self.application.clone(),
            version: self.offset,
            last_updated: Some(if is_kept { Txn::NEVER_FORGOTTEN_MS } else { now_unix_ms }),
        })
    }
}

/// Replaces files by others.
#[derive(Clone, Debug)]
pub(crate) struct FileReplacement {
    /// The operation in the table's history.
    pub operation: &'static str,
    /// The label in metrics.
    pub kind: &'static str,
    pub removed: Vec<Arc<str>>,
    pub added: Vec<Add>,
    /// Whether the rows of the table change.
    pub changes_data: bool,
}

/// Why rows were not committed.
pub(crate) enum CommitError {
    /// The writer ends.
    Failed(AppendError),
    /// Only these rows cannot be written.
    Rows(AppendError),
}

/// Commits to one table. Its calls block.
pub(crate) struct Committer {
    pub log: DeltaLog,
    pub snapshot: Snapshot,
    pub bindings: AttributeBindings,
    /// The table's columns with those that the next commit adds.
    schema: TableSchema,
    promotion: AttributePromotion,
    health: Arc<TableHealth>,
    metrics: LakeMetrics,
    checkpoint_interval: i64,
    checkpointing: Arc<AtomicBool>,
    runtime: Handle,
}

impl Committer {
    /// `checkpoint_interval` is in commits.
    pub fn new(
        log: DeltaLog,
        snapshot: Snapshot,
        promotion: AttributePromotion,
        health: Arc<TableHealth>,
        metrics: LakeMetrics,
        checkpoint_interval: i64,
        runtime: Handle,
    ) -> Committer {
        let schema = (*snapshot.schema).clone();
        Committer {
            log,
            snapshot,
            bindings: AttributeBindings::of(&schema, promotion.clone()),
            schema,
            promotion,
            health,
            metrics,
            checkpoint_interval,
            checkpointing: Arc::new(AtomicBool::new(false)),
            runtime,
        }
    }

    fn table(&self) -> &str {
        self.log.table_name()
    }

    /// Sets the type of the column that an attribute gets, if it has none yet.
    pub fn declare(&mut self, source: AttributeSource, name: &str, kind: AttributeType) {
        self.promotion.declare(source, name, kind);
        self.bindings.declare(source, name, kind);
    }

    /// Returns when the rows are durable and visible to every reader. `taken` is stored in the same commit and must
    /// have the offsets of all partitions that feed the table, so that the newest commit has all of them.
    pub fn commit(&mut self, rows: &dyn CommitPayload, taken: &[CommittedOffset]) -> Result<(), CommitError> {
        self.commit_with(rows, &[], taken).map(drop)
    }

    /// The same, with files that are already in place. Returns the number of added files; `None` if another writer has
    /// committed the same.
    pub fn commit_with(
        &mut self,
        rows: &dyn CommitPayload,
        placed: &[Add],
        taken: &[CommittedOffset],
    ) -> Result<Option<usize>, CommitError> {
        loop {
            let mut files = self.encode(rows)?;
            // Protects the files from the vacuum, even if the store accepts no commit for days.
            let adds = files.iter().map(|storing| &storing.file.add).chain(placed);
            let _held = self.log.hold(adds);
            self.store(&mut files)?;
            let settled = self.commit_files(&files, placed, taken)?;
            if settled == CommitResolution::Ours {
                self.after_commit();
                return Ok(Some(files.len() + placed.len()));
            }
            if settled == CommitResolution::Theirs {
                // Files of a successful attempt may be among these, so unreferenced ones are left to the vacuum.
                self.after_commit();
                return Ok(None);
            }
            // The columns have changed, so these files are orphans. A failed deletion is left to the vacuum.
            for file in &files {
                let _ = threads::block_on(&self.runtime, self.log.delete_file(&file.file.add.path));
            }
        }
    }

    /// Stores a file that a later commit adds with others. The vacuum leaves it alone while the second value exists.
    pub fn store_ahead(&mut self, file: EncodedFile) -> Result<(Add, thalweg_delta::UncommittedFiles), CommitError> {
        let add = file.add.clone();
        let held = self.log.hold(std::iter::once(&add));
        self.store(&mut [PendingFile { file, stored: false }])?;
        Ok((add, held))
    }

    /// Replaces files by others. Returns false if some of the removed files do not exist any more.
    pub fn replace(&mut self, files: &FileReplacement) -> Result<bool, CommitError> {
        self.replace_with(files, &[])
    }

    /// The same, with offsets in the same commit.
    pub fn replace_with(&mut self, files: &FileReplacement, taken: &[CommittedOffset]) -> Result<bool, CommitError> {
        let mut retry = RETRY;
        loop {
            if !self.has_all(&files.removed) {
                // Another writer may have added them since the last commit.
                self.refresh()?;
                if !self.has_all(&files.removed) {
                    return Ok(false);
                }
            }
            self.goes_on()?;
            let (version, actions) = (self.snapshot.version + 1, self.replacing(files, taken));
            let start = clock::now();
            let outcome = threads::block_on(&self.runtime, self.log.commit(version, &actions));
            self.metrics.observe_store("commit", outcome.is_ok(), start.elapsed());
            let label = match &outcome {
                Ok(CommitOutcome::Committed) => "ok",
                Ok(CommitOutcome::Taken) => "conflict",
                Err(_) => "error",
            };
            let commits = &self.metrics.commits;
            commits.with_label_values(&[self.table(), files.kind, label]).inc();
            match outcome {
                Ok(CommitOutcome::Committed) => {
                    self.snapshot.advance(actions).map_err(|e| self.lost(e))?;
                    self.after_commit();
                    return Ok(true);
                }
                Ok(CommitOutcome::Taken) => {
                    self.answered();
                    self.catch_up(&[], &[], &[], &mut retry)?;
                    // An earlier attempt with unknown outcome may have taken the version.
                    let added = files.added.first().and_then(|add| self.snapshot.files.get(&*add.path));
                    let is_new = |path: &str| !files.removed.iter().any(|removed| **removed == *path);
                    if added.is_some_and(|added| is_new(&added.path)) {
                        return Ok(true);
                    }
                    // Without replacements, it is enough that the files are gone.
                    let is_gone = |path: &Arc<str>| !self.snapshot.files.contains_key(path);
                    if files.added.is_empty() && files.removed.iter().all(is_gone) {
                        return Ok(true);
                    }
                }
                Err(e) => self.wait_after(&e, &mut retry)?,
            }
        }
    }

    fn has_all(&self, files: &[Arc<str>]) -> bool {
        files.iter().all(|path| self.snapshot.files.contains_key(path))
    }

    fn replacing(&self, files: &FileReplacement, taken: &[CommittedOffset]) -> Vec<Action> {
        let now = self.log.now_ms();
        let mut actions = vec![Action::CommitInfo(CommitInfo::of(files.operation, now))];
        actions.extend(self.new_metadata(&self.snapshot.schema));
        let is_taken = |application: &str| taken.iter().any(|taken| taken.application == application);
        let renewed = self.renewed(now);
        actions.extend(renewed.filter(|action| !matches!(action, Action::Txn(txn) if is_taken(&txn.app_id))));
        actions.extend(taken.iter().map(|taken| taken.action(now)));
        let added = |path: &str| files.added.iter().any(|add| add.path == path);
        let removed = files.removed.iter().filter(|path| !added(path));
        actions.extend(removed.map(|path| {
            Action::Remove(Remove {
                path: path.to_string(),
                data_change: files.changes_data,
                deletion_timestamp: Some(now),
            })
        }));
        actions.extend(files.added.iter().cloned().map(Action::Add));
        actions
    }

    /// Every commit has the log offsets, so the newest one has all of them.
    fn renewed(&self, now_unix_ms: i64) -> impl Iterator<Item = Action> {
        log_positions(&self.snapshot, now_unix_ms)
    }

    fn encode(&mut self, rows: &dyn CommitPayload) -> Result<Vec<PendingFile>, CommitError> {
        let start = clock::now();
        let names = rows.names(&self.bindings);
        self.schema.columns.extend(self.bindings.admit(names));
        let encoded = rows.encode(&self.schema, &self.bindings);
        let (files, overflow) = encoded.map_err(|error| CommitError::Rows(AppendError::Failed(error)))?;
        if overflow.without_column > 0 {
            let counter = self.metrics.overflow_values.with_label_values(&[self.table()]);
            counter.inc_by(overflow.without_column);
        }
        for (column, values) in &overflow.misfits {
            let counter = self.metrics.misfit_values.with_label_values(&[self.table(), column]);
            counter.inc_by(*values);
        }
        self.observe("encode", start);
        let storing = files.into_iter().map(|file| PendingFile { file, stored: false });
        Ok(storing.collect())
    }

    /// Returns when every file is durable.
    fn store(&mut self, files: &mut [PendingFile]) -> Result<(), CommitError> {
        let start = clock::now();
        for storing in files {
            let mut retry = RETRY;
            while !storing.stored {
                let put_start = clock::now();
                let put = self.log.put_file(&storing.file.add.path, storing.file.bytes.clone());
                let put = threads::block_on(&self.runtime, put);
                self.metrics.observe_store("put", put.is_ok(), put_start.elapsed());
                match put {
                    Ok(()) => storing.stored = true,
                    // The name is random: if it exists, an earlier attempt has succeeded. An object store accepts it
                    // again, and reports a conflict only while another attempt is in progress.
                    Err(e) if e.kind() == FaultKind::Exists && self.log.remote().is_none() => storing.stored = true,
                    Err(e) => {
                        self.wait_after(&e, &mut retry)?;
                        continue;
                    }
                }
                self.answered();
            }
        }
        self.observe("store", start);
        Ok(())
    }

    /// Adds the files to the table.
    fn commit_files(
        &mut self,
        files: &[PendingFile],
        placed: &[Add],
        taken: &[CommittedOffset],
    ) -> Result<CommitResolution, CommitError> {
        let start = clock::now();
        let mut retry = RETRY;
        loop {
            self.goes_on()?;
            let (version, actions) = (self.snapshot.version + 1, self.actions(files, placed, taken));
            let commit_start = clock::now();
            let outcome = threads::block_on(&self.runtime, self.log.commit(version, &actions));
            self.metrics
                .observe_store("commit", outcome.is_ok(), commit_start.elapsed());
            let label = match &outcome {
                Ok(CommitOutcome::Committed) => "ok",
                Ok(CommitOutcome::Taken) => "conflict",
                Err(_) => "error",
            };
            let commits = &self.metrics.commits;
            commits.with_label_values(&[self.table(), "flush", label]).inc();
            match outcome {
                Ok(CommitOutcome::Committed) => {
                    self.snapshot.advance(actions).map_err(|e| self.lost(e))?;
                    self.observe("commit", start);
                    return Ok(CommitResolution::Ours);
                }
                Ok(CommitOutcome::Taken) => {
                    self.answered();
                    match self.catch_up(files, placed, taken, &mut retry)? {
                        CommitConflict::Ours => return Ok(CommitResolution::Ours),
                        CommitConflict::Taken => return Ok(CommitResolution::Theirs),
                        CommitConflict::OtherColumns => return Ok(CommitResolution::OtherColumns),
                        CommitConflict::Compatible => {}
                    }
                }
                Err(e) => self.wait_after(&e, &mut retry)?,
            }
        }
    }

    fn actions(&self, files: &[PendingFile], placed: &[Add], taken: &[CommittedOffset]) -> Vec<Action> {
        let now = self.log.now_ms();
        let mut actions = vec![Action::CommitInfo(CommitInfo::of("WRITE", now))];
        actions.extend(self.new_metadata(&self.schema));
        // A commit with log offsets already has all of them.
        if !taken.iter().any(|taken| taken.application.starts_with(OF_LOGS)) {
            actions.extend(self.renewed(now));
        }
        actions.extend(taken.iter().map(|taken| taken.action(now)));
        actions.extend(files.iter().map(|storing| Action::Add(storing.file.add.clone())));
        actions.extend(placed.iter().cloned().map(Action::Add));
        actions
    }

    /// The metadata with the columns of `schema`, if the table has other ones.
    fn new_metadata(&self, schema: &TableSchema) -> Option<Action> {
        let property = self.new_property();
        (*schema != *self.snapshot.schema || property.is_some()).then(|| {
            let mut metadata = self.snapshot.metadata.clone();
            metadata.schema_string = schema.to_delta();
            metadata.configuration.extend(property);
            Action::Metadata(metadata)
        })
    }

    /// The columns that have statistics, for a table of an earlier version, which does not name them. If another
    /// program has named some, they stay.
    fn new_property(&self) -> Option<(String, String)> {
        let is_known = self.snapshot.metadata.configuration.contains_key(INDEXED_COLUMNS_KEY);
        let spec = spec_of(self.table()).filter(|_| !is_known)?;
        let bounded = bounded_columns(&(spec.columns)(), spec.partitions);
        Some((INDEXED_COLUMNS_KEY.to_owned(), bounded))
    }

    /// Reads the commits of other writers.
    fn catch_up(
        &mut self,
        files: &[PendingFile],
        placed: &[Add],
        taken: &[CommittedOffset],
        retry: &mut Backoff,
    ) -> Result<CommitConflict, CommitError> {
        let before = (self.snapshot.version, self.snapshot.metadata.clone());
        let known = self.positions(taken);
        self.read_commits(retry)?;
        // Whatever became of this attempt, the next commit must have the current columns.
        let has_other_columns = before.1 != self.snapshot.metadata;
        if has_other_columns {
            self.adopt_columns();
        }
        // An earlier attempt with unknown outcome may have taken the version.
        let first = files.first().map(|storing| &storing.file.add).or(placed.first());
        let first = first.map(|add| add.path.as_str());
        if first.is_some_and(|path| self.snapshot.files.contains_key(path)) {
            return Ok(CommitConflict::Ours);
        }
        let is_there = |taken: &CommittedOffset| self.is_taken(taken);
        if !taken.is_empty() && taken.iter().all(is_there) {
            return Ok(CommitConflict::Taken);
        }
        if known != self.positions(taken) {
            // Its commit has some of our rows, but it is unknown which.
            let path = self.log.table().display();
            return Err(self.lost(format!("another process has written rows of the same log to {path}")));
        }
        if has_other_columns {
            return Ok(CommitConflict::OtherColumns);
        }
        if before.0 == self.snapshot.version {
            // The version is taken by a commit that cannot be read yet.
            self.pause(retry)?;
        }
        Ok(CommitConflict::Compatible)
    }

    fn read_commits(&mut self, retry: &mut Backoff) -> Result<(), CommitError> {
        loop {
            match threads::block_on(&self.runtime, self.log.refresh(&mut self.snapshot)) {
                Ok(_) => {
                    self.answered();
                    return Ok(());
                }
                Err(e @ DeltaError::Store(_)) => self.wait_after(&e, retry)?,
                Err(e) => return Err(self.lost(e)),
            }
        }
    }

    fn adopt_columns(&mut self) {
        // The columns of our own successful attempt are known.
        if self.schema != *self.snapshot.schema {
            tracing::info!(
                table = self.table(),
                version = self.snapshot.version,
                "another writer committed first; its columns are adopted"
            );
        }
        self.schema = (*self.snapshot.schema).clone();
        self.bindings = AttributeBindings::of(&self.schema, self.promotion.clone());
        if let Some(conflict) = self.promotion.conflict(&self.schema) {
            tracing::warn!(
                table = self.table(),
                column = conflict.column,
                "another writer made the column as {}, and it is declared as {}: a column of a table keeps its type",
                conflict.found,
                conflict.declared
            );
        }
    }

    /// The offsets that the table has for the applications in `taken`.
    fn positions(&self, taken: &[CommittedOffset]) -> Vec<Option<i64>> {
        let known = &self.snapshot.transactions;
        taken
            .iter()
            .map(|taken| known.get(&taken.application).copied())
            .collect()
    }

    /// Checked before each attempt, so that an abandoned writer does not commit after its successor has started.
    fn goes_on(&self) -> Result<(), CommitError> {
        match self.health.is_abandoned() {
            true => Err(CommitError::Failed(AppendError::Stopped)),
            false => Ok(()),
        }
    }

    fn is_taken(&self, taken: &CommittedOffset) -> bool {
        let known = self.snapshot.transactions.get(&taken.application);
        known.is_some_and(|offset| *offset >= taken.offset)
    }

    /// Called after a successful request: ends the trouble, so that the next fault is timed from its own beginning.
    fn answered(&self) {
        if self.health.clear_trouble(HealthComponent::Store) {
            tracing::info!(table = self.table(), "the lake takes data again");
        }
    }

    fn after_commit(&mut self) {
        self.answered();
        let version = self.snapshot.version;
        let due = version > 0 && version % self.checkpoint_interval == 0;
        if due && !self.checkpointing.swap(true, Ordering::AcqRel) {
            let (log, running, metrics) = (self.log.clone(), self.checkpointing.clone(), self.metrics.clone());
            self.runtime.spawn(async move {
                let start = clock::now();
                let done = log.checkpoint(version).await;
                metrics.observe_store("checkpoint", done.is_ok(), start.elapsed());
                if let Err(e) = done {
                    tracing::warn!(
                        table = log.table_name(),
                        version,
                        "no checkpoint was written, the next one replaces it: {e}"
                    );
                }
                running.store(false, Ordering::Release);
            });
        }
    }

    /// Reports a new fault once and waits; fails if a retry is useless.
    fn wait_after(&self, error: &DeltaError, retry: &mut Backoff) -> Result<(), CommitError> {
        let text = match error.kind() {
            FaultKind::SyncFailed | FaultKind::Held => {
                return Err(CommitError::Failed(AppendError::ReadOnly(error.to_string())));
            }
            FaultKind::DiskFull => format!(
                "the disk of {} is full ({error}); free some space, then the lake continues by itself",
                self.log.table().display()
            ),
            FaultKind::Denied if self.log.remote().is_none() => format!(
                "{} cannot be written ({error}); fix its permissions, then the lake continues by itself",
                self.log.table().display()
            ),
            _ if self.log.remote().is_some() => format!(
                "rows cannot be stored in {} and stay in the log until they can: {error}",
                self.log.table().display()
            ),
            _ => format!("the lake could not store rows and will retry: {error}"),
        };
        if self.health.set_trouble(HealthComponent::Store, &text) {
            tracing::error!(table = self.table(), "{text}");
        }
        if self.health.has_lost_patience() {
            return Err(CommitError::Failed(AppendError::Failed(text)));
        }
        self.pause(retry)
    }

    /// Waits before the next attempt; fails as soon as the writer is abandoned.
    fn pause(&self, retry: &mut Backoff) -> Result<(), CommitError> {
        let pause = retry.next_pause();
        let end = clock::now() + pause;
        while clock::now() < end {
            self.goes_on()?;
            threads::sleep(LOOK.min(pause));
        }
        Ok(())
    }

    /// Fails because the table has diverged from this writer's state.
    fn lost(&self, error: impl std::fmt::Display) -> CommitError {
        let text = format!("{error}; the lake takes no more rows until it is restarted");
        tracing::error!(table = self.table(), "{text}");
        CommitError::Failed(AppendError::ReadOnly(text))
    }

    fn observe(&self, phase: &str, start: Instant) {
        let seconds = self.metrics.flush_seconds.with_label_values(&[self.table(), phase]);
        seconds.observe(start.elapsed().as_secs_f64());
    }
}

struct PendingFile {
    file: EncodedFile,
    stored: bool,
}

/// The effect of other writers' commits on ours.
enum CommitConflict {
    Compatible,
    OtherColumns,
    /// One of them is our own commit.
    Ours,
    /// Our offsets are already committed.
    Taken,
}

/// The outcome of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitResolution {
    Ours,
    /// The rows are in the table, from another writer, or from an attempt whose files were merged since.
    Theirs,
    /// Other columns were added first, and the files must be encoded again.
    OtherColumns,
}

/// The log offsets that every commit repeats, so that the newest one has all that are still needed.
pub(crate) fn log_positions(snapshot: &Snapshot, now_unix_ms: i64) -> impl Iterator<Item = Action> + '_ {
    let all = snapshot
        .transactions
        .iter()
        .map(|(application, offset)| CommittedOffset {
            application: application.clone(),
            offset: *offset,
            is_last: snapshot.forgettable.contains(application),
        });
    let needed = all.filter(|taken| taken.application.starts_with(OF_LOGS) && !taken.is_last);
    needed.map(move |taken| taken.action(now_unix_ms))
}

#[cfg(test)]
mod tests;
