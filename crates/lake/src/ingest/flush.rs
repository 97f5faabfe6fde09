//! The thread that commits what has grown, and lets the log forget it.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::feed::Feed;
use super::files::Together;
use super::journal::Journal;
use super::table::{Asked, Committed, Sealed, Table, Work};
use crate::attributes::Promotion;
use crate::commit::{Committer, Part, Stop, unix_ms};
use crate::delta::{DeltaLog, Snapshot};
use crate::error::AppendError;
use crate::file::FileRules;
use crate::opening;

/// How a commit says how far the log was taken.
pub(super) enum Positions {
    /// By the partitions of the queue.
    Partitions,
    /// By a count, and what it stands for.
    Counted(Arc<Journal>),
}

pub(super) struct Flush {
    pub table: Arc<Table>,
    pub feed: Arc<Feed>,
    pub log: DeltaLog,
    pub positions: Positions,
    pub promotion: Promotion,
    pub files: FileRules,
    pub checkpoint_interval: i64,
    pub runtime: Handle,
}

impl Flush {
    /// Runs until the table ends and what was made before is committed. Without a `snapshot` the table is made with its first
    /// rows.
    pub fn run(self, snapshot: Option<Snapshot>) {
        let _end = End(&self.table);
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
                Work::Rows(sealed) => self.commit(committer, sealed),
                Work::Files(asked) => self.replace(committer, &asked),
            };
            match stop {
                Ok(()) => {}
                Err(Stop::Failed(error)) => return self.table.fail(error),
                Err(Stop::Rows(error)) => {
                    // They stay in the log, and the next start tries again.
                    let text = format!("{error}; the table {} takes no more rows", self.table.spec.name);
                    tracing::error!(table = self.table.spec.name, "{text}");
                    return self.table.fail(AppendError::ReadOnly(text));
                }
            }
        }
    }

    fn commit(&self, committer: &mut Committer, sealed: Sealed) -> Result<(), Stop> {
        let rows = Together {
            spec: self.table.spec,
            chunks: &sealed.chunks,
            rules: &self.files,
        };
        let taken = match &self.positions {
            Positions::Partitions => self.feed.taken_of(&sealed.taken),
            Positions::Counted(journal) => journal.taken_of(count_of(&sealed)),
        };
        committer.commit(&rows, &taken)?;
        self.table.set_bindings(&committer.bindings);
        self.settled(sealed, committed(committer, Some(unix_ms())));
        Ok(())
    }

    fn replace(&self, committer: &mut Committer, asked: &Asked) -> Result<(), Stop> {
        let is_done = committer.replace(&asked.files)?;
        let last_commit = self.table.committed().last_commit_unix_ms;
        self.table.set_bindings(&committer.bindings);
        self.table.set_committed(committed(committer, last_commit));
        // Whoever asked may have gone.
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
            let error = match self.runtime.block_on(made) {
                Ok(snapshot) => return Some(self.committer(snapshot)),
                Err(error) => error,
            };
            if self.table.health.set_trouble(Part::Store, &error.to_string()) {
                tracing::error!(table = self.table.spec.name, "{error}");
            }
            if error.is_permanent() {
                self.table.fail(AppendError::ReadOnly(error.to_string()));
                return None;
            }
            if self.table.health.is_abandoned() {
                return None;
            }
            std::thread::sleep(MAKING_PAUSE);
        }
    }

    fn settled(&self, sealed: Sealed, committed: Committed) {
        if let Positions::Counted(journal) = &self.positions {
            journal.committed(count_of(&sealed));
        }
        for (partition, offset) in (0..).zip(&sealed.taken) {
            (self.feed.taken)(partition, *offset);
        }
        self.table.settled(sealed, committed);
    }
}

/// Of all that was taken, where one thread takes it.
fn count_of(sealed: &Sealed) -> u64 {
    sealed.taken.first().copied().unwrap_or_default()
}

const MAKING_PAUSE: std::time::Duration = std::time::Duration::from_secs(1);

fn committed(committer: &Committer, last_commit_unix_ms: Option<i64>) -> Committed {
    let snapshot = &committer.snapshot;
    Committed {
        version: snapshot.version,
        rows: snapshot.rows,
        bytes: snapshot.bytes,
        files: snapshot.files_by_level().into_iter().collect(),
        promoted_columns: committer.bindings.columns().len() as u64,
        last_commit_unix_ms,
    }
}

/// However the thread ends, nobody waits for it.
struct End<'a>(&'a Table);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // After an orderly end this changes nothing.
        if !self.0.is_ending() {
            self.0.fail(AppendError::Stopped);
        }
    }
}
