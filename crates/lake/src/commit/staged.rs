//! Files that are written long before their commit, so that the rows of a stream need not wait in memory.
//!
//! Attribute names are bound first, in a separate commit, because the column names in a file cannot be changed later.
//! The files are stored beside the tables, where neither readers nor the vacuum see them. Right before the commit they
//! are moved into place with a new modification time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use object_store::path::Path as StorePath;
use object_store::{ObjectStore, ObjectStoreExt as _, RenameOptions, RenameTargetMode};

use super::{CommitError, CommitPayload, Committer, RETRY};
use thalweg_delta::actions::{Action, Add, CommitInfo};
use thalweg_delta::store::{DiskFault, FaultKind, SyncedStore};
use thalweg_delta::{CommitOutcome, DeltaError};
use thalweg_kit::{clock, threads};

/// A file that waits for its commit.
#[derive(Clone, Debug)]
pub(crate) struct StagedFile {
    pub path: PathBuf,
    pub rows: u64,
    pub add: Add,
}

impl Committer {
    /// Returns when the rows are durable in files of a folder that no reader sees.
    pub fn stage(&mut self, rows: &dyn CommitPayload, folder: &Path) -> Result<Vec<StagedFile>, CommitError> {
        self.add_columns(rows)?;
        // Staged files are local, wherever the lake is.
        let (here, mut staged) = (SyncedStore::new(), Vec::new());
        for storing in self.encode(rows)? {
            let name = storing.file.add.path.replace('/', "-");
            let file = StagedFile {
                path: folder.join(name),
                rows: storing.file.rows,
                add: storing.file.add,
            };
            let path = store_path(&file.path).map_err(|error| self.lost(error))?;
            let mut retry = RETRY;
            loop {
                let start = clock::now();
                let put = here.put(&path, storing.file.bytes.clone().into());
                let put = threads::block_on(&self.runtime, put);
                self.metrics.observe_store("put", put.is_ok(), start.elapsed());
                match put {
                    Ok(_) => break,
                    Err(error) => self.wait_after(&error.into(), &mut retry)?,
                }
            }
            self.answered();
            staged.push(file);
        }
        Ok(staged)
    }

    /// Binds all names, and adds the new columns to the table.
    fn add_columns(&mut self, rows: &dyn CommitPayload) -> Result<(), CommitError> {
        let mut retry = RETRY;
        loop {
            let names = rows.names(&self.bindings);
            self.schema.columns.extend(self.bindings.admit(names));
            let has_new = self.schema != *self.snapshot.schema;
            let Some(columns) = self.new_metadata(&self.schema).filter(|_| has_new) else {
                return Ok(());
            };
            let now = self.log.now_ms();
            let mut actions = vec![Action::CommitInfo(CommitInfo::of("ADD COLUMNS", now)), columns];
            actions.extend(self.renewed(now));
            let outcome = threads::block_on(&self.runtime, self.log.commit(self.snapshot.version + 1, &actions));
            let label = match &outcome {
                Ok(CommitOutcome::Committed) => "ok",
                Ok(CommitOutcome::Taken) => "conflict",
                Err(_) => "error",
            };
            let commits = &self.metrics.commits;
            commits.with_label_values(&[self.table(), "columns", label]).inc();
            match outcome {
                Ok(CommitOutcome::Committed) => {
                    self.snapshot.advance(actions).map_err(|e| self.lost(e))?;
                    self.after_commit();
                }
                Ok(CommitOutcome::Taken) => {
                    self.answered();
                    self.catch_up(&[], &[], &[], &mut retry)?;
                }
                Err(error) => self.wait_after(&error, &mut retry)?,
            }
        }
    }

    /// Moves files to their places in the table durably, or uploads them. Files that an earlier attempt moved stay.
    pub fn place(&mut self, staged: &[StagedFile]) -> Result<(), CommitError> {
        for file in staged {
            let from = store_path(&file.path).map_err(|error| self.lost(error))?;
            let to = self.log.path(&file.add.path).map_err(|error| self.lost(error))?;
            let (store, remote) = (self.log.store().clone(), self.log.remote().cloned());
            let mut retry = RETRY;
            loop {
                let placed = match &remote {
                    Some(remote) => threads::block_on(&self.runtime, remote.upload_file(&to, &file.path)),
                    None => threads::block_on(&self.runtime, place(&store, file, &from, &to)),
                };
                match placed {
                    Ok(()) => break,
                    Err(error) => self.wait_after(&error, &mut retry)?,
                }
            }
            self.answered();
        }
        Ok(())
    }

    /// Reads the commits of other writers, so that the snapshot is current.
    pub fn refresh(&mut self) -> Result<(), CommitError> {
        let before = self.snapshot.metadata.clone();
        let mut retry = RETRY;
        self.read_commits(&mut retry)?;
        if before != self.snapshot.metadata {
            self.adopt_columns();
        }
        Ok(())
    }

    /// Returns when no checkpoint is in progress, or after `within`: a missing checkpoint is replaced by the next one.
    pub fn finish_checkpoint(&self, within: Duration) {
        let end = clock::now() + within;
        while self.checkpointing.load(Ordering::Acquire) && clock::now() < end {
            threads::sleep(CHECKPOINT_LOOK);
        }
    }
}

const CHECKPOINT_LOOK: Duration = Duration::from_millis(5);

async fn place(
    store: &Arc<dyn ObjectStore>,
    file: &StagedFile,
    from: &StorePath,
    to: &StorePath,
) -> Result<(), DeltaError> {
    // The vacuum deletes unreferenced files by their age.
    let aged = std::fs::File::open(&file.path).and_then(|opened| opened.set_modified(clock::wall()));
    if let Err(source) = aged
        && source.kind() != std::io::ErrorKind::NotFound
    {
        let fault = DiskFault::io("set the time of", &file.path, source);
        return Err(DeltaError::Store(object_store::Error::Generic {
            store: "local disk",
            source: Box::new(fault),
        }));
    }
    let options = RenameOptions::new().with_target_mode(RenameTargetMode::Create);
    let renamed = store.rename_opts(from, to, options).await.map_err(DeltaError::Store);
    match renamed {
        // The name is random: if it exists, an earlier attempt has succeeded.
        Err(error) if error.kind() == FaultKind::Exists => Ok(()),
        Err(error) if error.kind() == FaultKind::Missing && store.head(to).await.is_ok() => Ok(()),
        other => other,
    }
}

fn store_path(path: &Path) -> Result<StorePath, DeltaError> {
    StorePath::from_absolute_path(path).map_err(|source| DeltaError::Store(object_store::Error::InvalidPath { source }))
}
