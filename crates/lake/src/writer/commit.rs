//! The thread that commits: one generation becomes files and one Delta commit, or it stays and is tried again.
//!
//! States of a generation: *encoded* (files exist in memory), *stored* (all files durable), *committed*. A fault of the
//! store leaves it where it is and waits; only a failed sync, or a table that this program no longer understands, ends
//! the writer. Where another writer took the next version, its commit is read first: new columns of its making are
//! adopted, and files that name columns otherwise are encoded again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::shared::{Buffered, Committed, Sealed, Shared};
use super::{WriterOptions, commit_info, unix_ms};
use crate::attributes::Bindings;
use crate::delta::actions::{Action, Metadata};
use crate::delta::schema::TableSchema;
use crate::delta::{CommitOutcome, DeltaError, DeltaLog, Snapshot};
use crate::error::AppendError;
use crate::metrics::LakeMetrics;
use crate::store::FaultKind;
use crate::tags::schema::{ATTRIBUTE_SOURCE, TABLE};
use crate::tags::{EncodedFile, Encoder, Generation};

const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How often a thread that waits for the disk looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

pub(super) struct Committer {
    log: DeltaLog,
    snapshot: Snapshot,
    bindings: Bindings,
    /// The table's columns with those that the next commit adds.
    schema: TableSchema,
    shared: Arc<Shared>,
    options: WriterOptions,
    metrics: LakeMetrics,
    checkpointing: Arc<AtomicBool>,
}

/// Why a generation was not committed.
enum Stop {
    /// The writer ends.
    Failed(AppendError),
    /// Only these rows cannot be written.
    Rows(AppendError),
}

impl Committer {
    pub fn new(
        log: DeltaLog,
        snapshot: Snapshot,
        bindings: Bindings,
        shared: Arc<Shared>,
        options: WriterOptions,
        metrics: LakeMetrics,
    ) -> Committer {
        let schema = (*snapshot.schema).clone();
        let committer = Committer {
            log,
            snapshot,
            bindings,
            schema,
            shared,
            options,
            metrics,
            checkpointing: Arc::new(AtomicBool::new(false)),
        };
        committer.publish(None);
        committer
    }

    /// Runs until the other thread has ended and its last generation is committed.
    pub fn run(mut self, runtime: &Handle) {
        let shared = self.shared.clone();
        let _end = End(&shared);
        while let Some(sealed) = self.next() {
            let outcome = self.commit(&sealed.rows, runtime);
            if let Err(Stop::Failed(error)) = outcome {
                self.shared.fail(error);
                return;
            }
            // Whoever hears that its rows are stored finds them counted as such.
            let mut state = self.shared.lock();
            state.committing = false;
            state.sealed = Buffered::default();
            state.last_commit_end = Some(Instant::now());
            drop(state);
            self.shared.notify();
            match outcome {
                Err(Stop::Rows(error)) => {
                    tracing::error!(table = TABLE, rows = sealed.rows.rows(), "{error}");
                    for waiter in sealed.waiters {
                        let _ = waiter.done.send(Err(error.clone()));
                    }
                }
                _ => {
                    let visibility = self.metrics.visibility_seconds.with_label_values(&[TABLE]);
                    for waiter in sealed.waiters {
                        visibility.observe(waiter.since.elapsed().as_secs_f64());
                        waiter.stored();
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Sealed> {
        let mut state = self.shared.lock();
        loop {
            if let Some(sealed) = state.handed.take() {
                return Some(sealed);
            }
            if state.rows_ended || state.failure.is_some() {
                return None;
            }
            self.shared.wait(&mut state, None);
        }
    }

    fn commit(&mut self, rows: &Generation, runtime: &Handle) -> Result<(), Stop> {
        loop {
            let mut files = self.encode(rows)?;
            self.store(&mut files, runtime)?;
            if self.commit_files(&files, runtime)? {
                self.after_commit(runtime);
                return Ok(());
            }
            // The columns have changed under these files. They are nobody's now; what cannot be deleted is an orphan.
            for file in &files {
                let _ = runtime.block_on(self.log.delete_file(&file.file.add.path));
            }
        }
    }

    fn encode(&mut self, rows: &Generation) -> Result<Vec<Storing>, Stop> {
        let start = Instant::now();
        let unresolved: Vec<_> = rows
            .series
            .iter()
            .filter(|series| !series.is_resolved(&self.bindings))
            .collect();
        let names = unresolved
            .iter()
            .flat_map(|series| series.attributes.iter().map(|(name, _)| name.as_str()));
        self.schema.columns.extend(self.bindings.admit(names));
        let encoder = Encoder::new(rows, &self.schema, &self.bindings, self.options.files);
        let overflow = encoder.overflow_values();
        let encoded = encoder
            .encode(unix_ms())
            .map_err(|e| Stop::Rows(AppendError::Failed(e.to_string())))?;
        if overflow > 0 {
            self.metrics
                .overflow_values
                .with_label_values(&[TABLE])
                .inc_by(overflow);
        }
        self.observe("encode", start);
        Ok(encoded
            .into_iter()
            .map(|file| Storing { file, stored: false })
            .collect())
    }

    /// Returns when every file is durable.
    fn store(&mut self, files: &mut [Storing], runtime: &Handle) -> Result<(), Stop> {
        let start = Instant::now();
        for storing in files {
            let mut retry = Retry::default();
            while !storing.stored {
                let put_start = Instant::now();
                let put = runtime.block_on(self.log.put_file(&storing.file.add.path, storing.file.bytes.clone()));
                self.metrics.observe_store("put", put.is_ok(), put_start.elapsed());
                match put {
                    Ok(()) => storing.stored = true,
                    // The name is random: if it exists, an earlier attempt has succeeded after all.
                    Err(e) if e.kind() == FaultKind::Exists => storing.stored = true,
                    Err(e) => self.wait_after(&e, &mut retry)?,
                }
            }
        }
        self.observe("store", start);
        Ok(())
    }

    /// Adds the files to the table. `false`: other columns were added first, and the files must be encoded again.
    fn commit_files(&mut self, files: &[Storing], runtime: &Handle) -> Result<bool, Stop> {
        let start = Instant::now();
        let mut retry = Retry::default();
        let actions = self.actions(files);
        loop {
            let version = self.snapshot.version + 1;
            let commit_start = Instant::now();
            let outcome = runtime.block_on(self.log.commit(version, &actions));
            self.metrics
                .observe_store("commit", outcome.is_ok(), commit_start.elapsed());
            let label = match &outcome {
                Ok(CommitOutcome::Committed) => "ok",
                Ok(CommitOutcome::Taken) => "conflict",
                Err(_) => "error",
            };
            self.metrics.commits.with_label_values(&[TABLE, "flush", label]).inc();
            match outcome {
                Ok(CommitOutcome::Committed) => {
                    self.snapshot.advance(actions).map_err(|e| self.lost(e))?;
                    self.observe("commit", start);
                    return Ok(true);
                }
                Ok(CommitOutcome::Taken) => match self.catch_up(files, runtime, &mut retry)? {
                    Theirs::Ours => return Ok(true),
                    Theirs::OtherColumns => return Ok(false),
                    Theirs::Compatible => {}
                },
                Err(e) => self.wait_after(&e, &mut retry)?,
            }
        }
    }

    fn actions(&self, files: &[Storing]) -> Vec<Action> {
        let mut actions = vec![Action::CommitInfo(commit_info("WRITE", unix_ms()))];
        if self.schema != *self.snapshot.schema {
            actions.push(Action::Metadata(Metadata {
                schema_string: self.schema.to_delta(),
                ..self.snapshot.metadata.clone()
            }));
        }
        actions.extend(files.iter().map(|storing| Action::Add(storing.file.add.clone())));
        actions
    }

    /// Reads the commits that others made.
    fn catch_up(&mut self, files: &[Storing], runtime: &Handle, retry: &mut Retry) -> Result<Theirs, Stop> {
        let before = self.snapshot.metadata.clone();
        loop {
            match runtime.block_on(self.log.refresh(&mut self.snapshot)) {
                Ok(_) => break,
                Err(e @ DeltaError::Store(_)) => self.wait_after(&e, retry)?,
                Err(e) => return Err(self.lost(e)),
            }
        }
        // An attempt whose outcome was unknown may have been the one that took the version.
        let first = files.first().map(|storing| storing.file.add.path.as_str());
        if first.is_some_and(|path| self.snapshot.files.contains_key(path)) {
            return Ok(Theirs::Ours);
        }
        if before == self.snapshot.metadata {
            return Ok(Theirs::Compatible);
        }
        tracing::info!(
            table = TABLE,
            version = self.snapshot.version,
            "another writer committed first; its columns are adopted"
        );
        self.schema = (*self.snapshot.schema).clone();
        self.bindings = Bindings::of(&self.schema, ATTRIBUTE_SOURCE, self.options.promotion.clone());
        Ok(Theirs::OtherColumns)
    }

    fn after_commit(&mut self, runtime: &Handle) {
        if self.clear_trouble() {
            tracing::info!(table = TABLE, "the lake takes data again");
        }
        self.publish(Some(unix_ms()));
        let version = self.snapshot.version;
        let due = version > 0 && version % self.options.checkpoint_interval == 0;
        if due && !self.checkpointing.swap(true, Ordering::AcqRel) {
            let (log, running, metrics) = (self.log.clone(), self.checkpointing.clone(), self.metrics.clone());
            runtime.spawn(async move {
                let start = Instant::now();
                let done = log.checkpoint(version).await;
                metrics.observe_store("checkpoint", done.is_ok(), start.elapsed());
                if let Err(e) = done {
                    tracing::warn!(
                        table = TABLE,
                        version,
                        "no checkpoint was written, the next one replaces it: {e}"
                    );
                }
                running.store(false, Ordering::Release);
            });
        }
    }

    /// After a fault: says so once, waits, and ends the writer where waiting has no use.
    fn wait_after(&self, error: &DeltaError, retry: &mut Retry) -> Result<(), Stop> {
        let text = match error.kind() {
            FaultKind::SyncFailed => return Err(Stop::Failed(AppendError::ReadOnly(error.to_string()))),
            FaultKind::DiskFull => format!(
                "the disk that holds {} is full ({error}); free some space and the lake goes on by itself",
                self.log.table().display()
            ),
            FaultKind::Denied => format!(
                "{} cannot be written ({error}); correct its permissions and the lake goes on by itself",
                self.log.table().display()
            ),
            _ => format!("the lake could not store rows and tries again: {error}"),
        };
        if self.set_trouble(&text) {
            tracing::error!(table = TABLE, "{text}");
        }
        retry.pause(&self.shared)
    }

    /// What keeps rows from being committed, for those who ask. Returns whether it is news.
    fn set_trouble(&self, text: &str) -> bool {
        let mut state = self.shared.lock();
        if state.trouble.as_ref().is_some_and(|(known, _)| known == text) {
            return false;
        }
        let since = state.trouble.as_ref().map_or_else(Instant::now, |(_, since)| *since);
        state.trouble = Some((text.to_owned(), since));
        true
    }

    fn clear_trouble(&self) -> bool {
        self.shared.lock().trouble.take().is_some()
    }

    /// The table is no longer what this writer knows.
    fn lost(&self, error: impl std::fmt::Display) -> Stop {
        let text = format!("{error}; the lake takes no more rows until it is restarted");
        tracing::error!(table = TABLE, "{text}");
        Stop::Failed(AppendError::ReadOnly(text))
    }

    fn publish(&self, committed_unix_ms: Option<i64>) {
        let committed = Committed {
            version: self.snapshot.version,
            rows: self.snapshot.rows,
            bytes: self.snapshot.bytes,
            files: self.snapshot.files_by_level().into_iter().collect(),
            promoted_columns: self.bindings.columns().len() as u64,
            last_commit_unix_ms: committed_unix_ms,
        };
        self.shared.lock().committed = committed;
    }

    fn observe(&self, phase: &str, start: Instant) {
        self.metrics
            .flush_seconds
            .with_label_values(&[TABLE, phase])
            .observe(start.elapsed().as_secs_f64());
    }
}

struct Storing {
    file: EncodedFile,
    stored: bool,
}

/// What the commits of others mean for ours.
enum Theirs {
    Compatible,
    OtherColumns,
    /// One of them is ours.
    Ours,
}

#[derive(Default)]
struct Retry {
    next: Option<Duration>,
}

impl Retry {
    fn pause(&mut self, shared: &Shared) -> Result<(), Stop> {
        let pause = self.next.unwrap_or(RETRY_FIRST);
        self.next = Some((pause * 2).min(RETRY_MAX));
        let end = Instant::now() + pause;
        while Instant::now() < end {
            if shared.abandoned.is_set() {
                return Err(Stop::Failed(AppendError::Stopped));
            }
            std::thread::sleep(LOOK.min(pause));
        }
        Ok(())
    }
}

/// However the thread ends, nobody waits for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // After a failure this changes nothing; after an orderly end nothing waits.
        self.0.fail(AppendError::Stopped);
    }
}
