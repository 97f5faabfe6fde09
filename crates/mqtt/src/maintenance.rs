//! Keeps the broker's partitions small: messages that nobody waits for are trimmed, sessions are written anew now and then, and
//! retained messages that were replaced are removed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_kit::blocking;
use thalweg_log::{LogError, Offset};
use tokio::sync::Notify;

use crate::action::{Action, CheckpointAction};
use crate::broker::Broker;
use crate::partitions::{MESSAGES, RETAINED, SESSIONS};
use crate::session::Session;

/// How often messages are trimmed, if no file of the log becomes full before.
const TRIM: Duration = Duration::from_secs(60);
/// Changes of sessions are written anew when they take twice what the last time took, and this much.
const CHECKPOINT_BYTES: u64 = 16 << 20;
/// Sessions of one submission.
const CHECKPOINT_SESSIONS: usize = 200;

/// What maintenance knows from one time to the next.
#[derive(Default)]
pub(crate) struct MaintenanceState {
    /// Bytes that the last checkpoint took.
    checkpoint_bytes: AtomicU64,
    /// Where the running checkpoint begins, plus one.
    checkpoint_from: AtomicU64,
    /// Where the last compaction of retained messages ended.
    compacted: AtomicU64,
    /// A checkpoint has ended, well or not.
    checkpointed: Notify,
    /// A file of the log is full.
    pub rolled: Arc<Notify>,
}

impl Broker {
    /// Maintains the partitions, for ever.
    pub(crate) async fn maintain(self: Arc<Broker>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(TRIM) => {}
                () = self.maintenance.rolled.notified() => {}
            }
            let broker = self.clone();
            match blocking::spawn(move || broker.maintain_once()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!("the partitions of MQTT cannot be maintained, which is tried again: {error}")
                }
                Err(_) => return,
            }
        }
    }

    /// Maintains the partitions now, as far as that is due.
    pub async fn maintain_now(self: &Arc<Self>) {
        let broker = self.clone();
        let maintained = blocking::spawn(move || broker.maintain_once()).await;
        if let Ok(Err(error)) = maintained {
            tracing::warn!("the partitions of MQTT cannot be maintained: {error}");
        }
    }

    /// Writes all sessions anew and removes what came before; returns when that is done.
    pub async fn checkpoint_now(&self) {
        let done = self.maintenance.checkpointed.notified();
        self.begin_checkpoint();
        done.await;
    }

    /// The number of records that sessions have in the log.
    pub fn session_records(&self) -> Result<u64, LogError> {
        let bounds = self.log.bounds(SESSIONS)?;
        Ok(bounds.next - bounds.first)
    }

    /// Trims, compacts, and starts a checkpoint if it is time for one. Blocks.
    pub(crate) fn maintain_once(&self) -> Result<(), LogError> {
        self.limit_queues();
        let needed = self.limit_store(self.oldest_needed())?;
        self.log.trim(MESSAGES, needed)?;
        self.lists.trim(needed);
        self.retained.expire((self.wall)());
        self.compact_retained()?;
        let bounds = self.log.bounds(SESSIONS)?;
        let bytes = self.log.bytes(SESSIONS, bounds.first, bounds.next)?;
        let last = self.maintenance.checkpoint_bytes.load(Ordering::Relaxed);
        let is_running = self.maintenance.checkpoint_from.load(Ordering::Relaxed) > 0;
        if bytes > CHECKPOINT_BYTES + 2 * last && !is_running {
            self.begin_checkpoint();
        }
        Ok(())
    }

    /// The oldest message that a stored session may still need.
    fn oldest_needed(&self) -> Offset {
        // Before the sessions: what is stored from now on is not older.
        // Not what is in the lists: a message is there before it is given to who is there.
        let applied = self.delivered.load(Ordering::Acquire);
        let mut needed = applied;
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            let mut state = session.lock();
            if state.is_in_log() {
                if !state.is_behind && state.connection.is_some() {
                    state.stored.advance(applied);
                }
                needed = needed.min(state.stored.needs_from());
            }
        }
        let groups: Vec<_> = self.shared.lock().values().cloned().collect();
        let of_groups = groups.iter().filter_map(|group| group.lock().needs_from(applied)).min();
        of_groups.map_or(needed, |oldest| oldest.min(needed))
    }

    /// Writes all sessions anew, and then removes what came before.
    pub(crate) fn begin_checkpoint(&self) {
        // Nothing before it is needed once all of it is stored.
        self.maintenance.checkpoint_from.store(1, Ordering::Relaxed);
        self.journal.push(Action::Checkpoint(CheckpointAction {
            sessions: Vec::new(),
            is_first: true,
            is_last: false,
        }));
    }

    /// Puts all sessions into the journal, in parts. What is in the journal before them has taken effect, and sessions that begin
    /// later are behind the beginning of the checkpoint.
    pub(crate) fn push_checkpoint(&self) {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let mut chunks: Vec<_> = sessions.chunks(CHECKPOINT_SESSIONS).map(<[_]>::to_vec).collect();
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let count = chunks.len();
        for (index, sessions) in chunks.into_iter().enumerate() {
            self.journal.push(Action::Checkpoint(CheckpointAction {
                sessions,
                is_first: false,
                is_last: index + 1 == count,
            }));
        }
    }

    /// A part of a checkpoint is about to be stored.
    pub(crate) fn checkpoint_begins(&self, checkpoint: &CheckpointAction) {
        if checkpoint.is_first {
            let next = self.log.bounds(SESSIONS).map_or(0, |bounds| bounds.next);
            self.maintenance.checkpoint_from.store(next + 1, Ordering::Relaxed);
        }
    }

    /// A part of a checkpoint is stored, or is not. If one is not, what came before the checkpoint stays.
    pub(crate) fn checkpoint_ends(&self, checkpoint: &CheckpointAction, is_stored: bool) {
        if checkpoint.is_last || !is_stored {
            self.trim_sessions(is_stored);
            self.maintenance.checkpointed.notify_waiters();
        }
    }

    fn trim_sessions(&self, is_stored: bool) {
        let from = &self.maintenance.checkpoint_from;
        if !is_stored {
            return from.store(0, Ordering::Relaxed);
        }
        let Some(from) = from.swap(0, Ordering::Relaxed).checked_sub(1) else {
            return;
        };
        if let Err(error) = self.log.trim(SESSIONS, from) {
            return tracing::warn!("changes of MQTT sessions are not removed, which is tried again: {error}");
        }
        let bounds = self.log.bounds(SESSIONS);
        let bytes = bounds.and_then(|bounds| self.log.bytes(SESSIONS, bounds.first, bounds.next));
        self.maintenance
            .checkpoint_bytes
            .store(bytes.unwrap_or_default(), Ordering::Relaxed);
    }

    /// Removes retained messages that were replaced or removed, as far as they are in full files.
    fn compact_retained(&self) -> Result<(), LogError> {
        let bounds = self.log.bounds(RETAINED)?;
        let bytes = self.log.bytes(RETAINED, bounds.first, bounds.next)?;
        let (_, live) = self.retained.size();
        let compacted = self.maintenance.compacted.load(Ordering::Relaxed);
        if bytes < COMPACT_BYTES + 2 * live || compacted == bounds.next {
            return Ok(());
        }
        // What is stored but has not taken effect stays.
        let applied = self.retained.applied();
        // A file that was replaced takes over if the new one is lost, so what it has must stay removed.
        let leftover = self.log.oldest_leftover(RETAINED)?.unwrap_or(Offset::MAX);
        let young = self.log.clock().now() - TOMBSTONE_MICROS;
        let reached = self.log.rewrite(RETAINED, &|offset, record| {
            let topic = record.key.and_then(|key| std::str::from_utf8(key).ok());
            let (Some(topic), true) = (topic, offset < applied) else {
                return true;
            };
            match record.value.is_empty() {
                true => !self.retained.has(topic) && (record.time > young || offset >= leftover),
                false => self.retained.is_newest(topic, offset),
            }
        })?;
        self.log.release_leftovers(RETAINED, leftover)?;
        self.maintenance.compacted.store(reached, Ordering::Relaxed);
        Ok(())
    }
}

/// Retained messages are compacted when they take twice what is needed of them, and this much.
const COMPACT_BYTES: u64 = 16 << 20;
/// The removal of a retained message is kept this long.
const TOMBSTONE_MICROS: i64 = 3600 * 1_000_000;
