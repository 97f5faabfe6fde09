//! What callers and the two threads of a writer share: the queue of batches, the generation that was handed over, and
//! what is known of the table. One lock, held for moments, and one condition for everybody who waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use thalweg_record::Message;
use tokio::sync::oneshot;

use super::{WriterOptions, WriterStatus};
use crate::commit::Health;
use crate::error::{AppendError, Refused};
use crate::metrics::{LakeMetrics, TableGauges};
use crate::tags::Generation;

/// A batch that waits to become rows.
pub(super) struct Pending {
    pub source: Arc<str>,
    pub messages: Arc<Vec<Message>>,
    pub arrival: i64,
    pub done: oneshot::Sender<Result<(), AppendError>>,
    pub since: Instant,
    pub held: Held,
}

/// The messages of one append, counted in bytes until it has its answer: whoever sent them keeps them that long, to send
/// them again.
pub(super) struct Held {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An append whose rows lie in a generation.
pub(super) struct Waiter {
    pub done: oneshot::Sender<Result<(), AppendError>>,
    pub refused: Vec<Refused>,
    /// When it was appended.
    pub since: Instant,
    pub held: Held,
}

impl Waiter {
    pub fn stored(self) {
        // Whoever hears of the answer finds the messages counted as gone.
        drop(self.held);
        let outcome = if self.refused.is_empty() {
            Ok(())
        } else {
            Err(AppendError::Refused(self.refused))
        };
        // The sender may have stopped waiting; the rows are stored all the same.
        let _ = self.done.send(outcome);
    }
}

/// Rows on their way to a commit, and the appends that wait for it.
pub(super) struct Sealed {
    pub rows: Generation,
    pub waiters: Vec<Waiter>,
}

/// What is committed.
#[derive(Clone, Debug, Default)]
pub(super) struct Committed {
    pub version: i64,
    pub rows: u64,
    pub bytes: u64,
    pub files: Vec<(u32, u64)>,
    pub promoted_columns: u64,
    pub last_commit_unix_ms: Option<i64>,
}

pub(super) struct State {
    pub pending: VecDeque<Pending>,
    pending_rows: u64,
    pub hurry: bool,
    pub closing: bool,
    /// The thread that makes rows has ended: nothing more will be handed over.
    pub rows_ended: bool,
    /// Set for good: the writer takes nothing any more.
    pub failure: Option<AppendError>,
    pub handed: Option<Sealed>,
    /// A generation is handed over or being committed.
    pub committing: bool,
    pub last_commit_end: Option<Instant>,
    /// Rows, bytes and age of the growing generation and of the one being committed.
    pub growing: Buffered,
    pub sealed: Buffered,
    pub committed: Committed,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buffered {
    pub rows: u64,
    pub bytes: u64,
    pub since: Option<Instant>,
}

pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    pub health: Arc<Health>,
    pub generation_bytes: usize,
    held: Arc<AtomicUsize>,
    /// Bytes of messages without an answer at which senders are asked to wait.
    held_max: usize,
    flush_interval: Duration,
    pub hurry_pause: Duration,
    pub metrics: LakeMetrics,
}

impl Shared {
    pub fn new(generation_bytes: usize, options: &WriterOptions, metrics: LakeMetrics) -> Shared {
        Shared {
            state: Mutex::new(State {
                pending: VecDeque::new(),
                pending_rows: 0,
                hurry: false,
                closing: false,
                rows_ended: false,
                failure: None,
                handed: None,
                committing: false,
                last_commit_end: None,
                growing: Buffered::default(),
                sealed: Buffered::default(),
                committed: Committed::default(),
            }),
            changed: Condvar::new(),
            health: Arc::default(),
            generation_bytes,
            held: Arc::default(),
            held_max: options.waiting_bytes(),
            flush_interval: options.flush_interval,
            hurry_pause: options.hurry_pause,
            metrics,
        }
    }

    pub fn flush_interval(&self) -> Duration {
        self.flush_interval
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn wait(&self, state: &mut MutexGuard<'_, State>, until: Option<Instant>) {
        match until {
            Some(until) => drop(self.changed.wait_until(state, until)),
            None => self.changed.wait(state),
        }
    }

    pub fn notify(&self) {
        self.changed.notify_all();
    }

    /// Counts messages until the result is dropped.
    pub fn hold(&self, messages: &[Message]) -> Held {
        let bytes = messages.iter().map(Message::memory_bytes).sum();
        self.held.fetch_add(bytes, Ordering::Relaxed);
        Held {
            all: self.held.clone(),
            bytes,
        }
    }

    pub fn has_room(&self) -> bool {
        self.held.load(Ordering::Relaxed) < self.held_max
    }

    /// Bytes of messages without an answer and of their rows.
    pub fn buffer_bytes(&self) -> u64 {
        let state = self.lock();
        state.growing.bytes + state.sealed.bytes + self.held.load(Ordering::Relaxed) as u64
    }

    pub fn push(&self, pending: Pending) {
        let mut state = self.lock();
        if state.failure.is_some() || state.closing {
            // Dropping the sender makes the append end with the failure.
            return;
        }
        state.pending_rows += pending.messages.len() as u64;
        state.pending.push_back(pending);
        drop(state);
        self.notify();
    }

    pub fn hurry(&self) {
        self.lock().hurry = true;
        self.notify();
    }

    pub fn close(&self) {
        self.lock().closing = true;
        self.notify();
    }

    pub fn abandon(&self) {
        self.health.abandon();
        self.close();
    }

    /// Ends every append that waits, and all that come.
    pub fn fail(&self, failure: AppendError) {
        let mut state = self.lock();
        if let AppendError::ReadOnly(text) = &failure {
            self.health.set_trouble(text);
        }
        state.failure.get_or_insert(failure);
        state.pending.clear();
        state.pending_rows = 0;
        state.handed = None;
        drop(state);
        self.notify();
    }

    pub fn failure(&self) -> Option<AppendError> {
        self.lock().failure.clone()
    }

    pub fn status(&self) -> WriterStatus {
        let state = self.lock();
        let files = state.committed.files.iter().map(|(_, count)| count).sum();
        WriterStatus {
            rows: state.committed.rows,
            files,
            bytes: state.committed.bytes,
            version: state.committed.version,
            buffered_rows: state.pending_rows + state.growing.rows + state.sealed.rows,
            last_commit_unix_ms: state.committed.last_commit_unix_ms,
            lag: state.lag(),
            trouble: self.health.trouble(),
        }
    }

    pub fn table_gauges(&self, table: &str) -> TableGauges {
        let buffer_bytes = self.buffer_bytes();
        let state = self.lock();
        TableGauges {
            table: table.to_owned(),
            files: state.committed.files.clone(),
            bytes: state.committed.bytes,
            rows: state.committed.rows,
            buffer_bytes,
            commit_lag: state.lag(),
            promoted_columns: state.committed.promoted_columns,
        }
    }
}

impl State {
    pub fn take_pending(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.pending_rows -= pending.messages.len() as u64;
        Some(pending)
    }

    fn lag(&self) -> Duration {
        let pending = self.pending.front().map(|pending| pending.since);
        let oldest = [pending, self.growing.since, self.sealed.since]
            .into_iter()
            .flatten()
            .min();
        oldest.map_or(Duration::ZERO, |since| since.elapsed())
    }
}
