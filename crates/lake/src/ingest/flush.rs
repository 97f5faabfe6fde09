//! The thread that commits memtables and reports committed offsets to the log.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::event_offsets::EventOffsets;
use super::files::ChunkBatch;
use super::queue_source::QueueSource;
use super::table_buffer::{CommitTask, CommittedTotals, ReplacementRequest, SealedRows, TableBuffer};
use crate::commit::{CommitError, Committer, HealthComponent};
use crate::error::AppendError;
use crate::opening;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::file::FileRules;
use thalweg_delta::{DeltaLog, Snapshot};
use thalweg_kit::{clock::unix_ms, threads};

/// How a commit records offsets of the log.
pub(super) enum OffsetTracking {
    /// By partition of the queue.
    Partitions,
    /// By a count that stands for offsets.
    Counted(Arc<EventOffsets>),
}

pub(super) struct FlushThread {
    pub table: Arc<TableBuffer>,
    pub feed: Arc<QueueSource>,
    pub log: DeltaLog,
    pub positions: OffsetTracking,
    pub promotion: AttributePromotion,
    pub files: FileRules,
    pub checkpoint_interval: i64,
    pub runtime: Handle,
}

impl FlushThread {
    /// Runs until the table ends and earlier rows are committed. Without a `snapshot` the table is created with its
    /// first rows.
    pub fn run(self, snapshot: Option<Snapshot>) {
        let _end = FlushEndGuard(&self.table);
        let mut committer = snapshot.map(|snapshot| self.committer(snapshot));
        if let Some(committer) = &committer {
            self.table.set_bindings(&committer.bindings);
            self.table.set_committed(committed(committer, None));
        }
        while let Some(work) = self.table.next_work() {
            if committer.is_none() {
                committer = self.make_table();
            }
            let Some(committer) = &mut committer else { return };
            let stop = match work {
                CommitTask::Rows(sealed) => self.commit(committer, sealed),
                CommitTask::Files(asked) => self.replace(committer, &asked),
            };
            match stop {
                Ok(()) => {}
                Err(CommitError::Failed(error)) => return self.table.fail(error),
                Err(CommitError::Rows(error)) => {
                    // They stay in the log, and the next start tries again.
                    let text = format!("{error}; the table {} takes no more rows", self.table.spec.name);
                    tracing::error!(table = self.table.spec.name, "{text}");
                    return self.table.fail(AppendError::ReadOnly(text));
                }
            }
        }
    }

    fn commit(&self, committer: &mut Committer, sealed: SealedRows) -> Result<(), CommitError> {
        let rows = ChunkBatch {
            spec: self.table.spec,
            chunks: &sealed.chunks,
            rules: &self.files,
        };
        let taken = match &self.positions {
            OffsetTracking::Partitions => self.feed.taken_of(&sealed.taken),
            OffsetTracking::Counted(journal) => journal.taken_of(count_of(&sealed)),
        };
        committer.commit(&rows, &taken)?;
        self.table.set_bindings(&committer.bindings);
        self.settled(sealed, committed(committer, Some(unix_ms())));
        Ok(())
    }

    fn replace(&self, committer: &mut Committer, asked: &ReplacementRequest) -> Result<(), CommitError> {
        let is_done = committer.replace(&asked.files)?;
        let last_commit = self.table.committed().last_commit_unix_ms;
        self.table.set_bindings(&committer.bindings);
        self.table.set_committed(committed(committer, last_commit));
        // The requester may be gone.
        let _ = asked.outcome.send(is_done);
        Ok(())
    }

    fn committer(&self, snapshot: Snapshot) -> Committer {
        Committer::new(
            self.log.clone(),
            snapshot,
            self.promotion.clone(),
            self.table.health.clone(),
            self.table.metrics.clone(),
            self.checkpoint_interval,
            self.runtime.clone(),
        )
    }

    fn make_table(&self) -> Option<Committer> {
        let columns = (self.table.spec.columns)();
        loop {
            let made = opening::create(&self.log, self.table.spec.partitions, &columns, &self.table.metrics);
            let error = match threads::block_on(&self.runtime, made) {
                Ok(snapshot) => return Some(self.committer(snapshot)),
                Err(error) => error,
            };
            if self
                .table
                .health
                .set_trouble(HealthComponent::Store, &error.to_string())
            {
                tracing::error!(table = self.table.spec.name, "{error}");
            }
            if error.is_permanent() {
                self.table.fail(AppendError::ReadOnly(error.to_string()));
                return None;
            }
            if self.table.health.is_abandoned() {
                return None;
            }
            threads::sleep(MAKING_PAUSE);
        }
    }

    fn settled(&self, sealed: SealedRows, committed: CommittedTotals) {
        if let OffsetTracking::Counted(journal) = &self.positions {
            journal.committed(count_of(&sealed));
        }
        for (partition, offset) in (0..).zip(&sealed.taken) {
            (self.feed.taken)(partition, *offset);
        }
        self.table.settled(sealed, committed);
    }
}

/// The total count, if one thread consumes all partitions.
fn count_of(sealed: &SealedRows) -> u64 {
    sealed.taken.first().copied().unwrap_or_default()
}

const MAKING_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

fn committed(committer: &Committer, last_commit_unix_ms: Option<i64>) -> CommittedTotals {
    let snapshot = &committer.snapshot;
    CommittedTotals {
        version: snapshot.version,
        rows: snapshot.rows,
        bytes: snapshot.bytes,
        files: snapshot.files_by_level().into_iter().collect(),
        promoted_columns: committer.bindings.columns().len() as u64,
        last_commit_unix_ms,
    }
}

/// Fails the table however the thread ends, so that nobody waits for it.
struct FlushEndGuard<'a>(&'a TableBuffer);

impl Drop for FlushEndGuard<'_> {
    fn drop(&mut self) {
        // After an orderly end this changes nothing.
        if !self.0.is_ending() {
            self.0.fail(AppendError::Stopped);
        }
    }
}
