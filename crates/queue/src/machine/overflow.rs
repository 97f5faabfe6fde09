//! Overflow `drop-oldest`: finds the oldest message that is not leased.
//!
//! Candidates are in a heap with lazy removal, built at the first such call: a queue that never drops pays nothing, one
//! that does pays O(log n). (A scan of window and held set would cost their size for every append at the limit.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use thalweg_log::{Micros, Offset};

use super::entry::{EntrySlab, MessageEntry, MessageState};
use super::{FinalState, MessageStatus, RemovalReason, WorkMachine};

#[derive(Default)]
pub struct DropCandidates {
    on: bool,
    heap: BinaryHeap<Reverse<(Offset, u32)>>,
}

fn is_candidate(at: &MessageEntry) -> bool {
    matches!(
        at.state,
        MessageState::Delayed | MessageState::Ready | MessageState::Waiting
    )
}

impl DropCandidates {
    /// The entry is not leased any more.
    #[inline]
    pub fn note(&mut self, entries: &EntrySlab, entry: u32) {
        if self.on {
            self.push(entries, entry);
        }
    }

    pub fn forget(&mut self) {
        self.heap.clear();
        self.on = false;
    }

    fn push(&mut self, entries: &EntrySlab, entry: u32) {
        if self.heap.len() > 2 * entries.len() + 64 {
            self.rebuild(entries);
        }
        self.heap.push(Reverse((entries.get(entry).offset, entry)));
    }

    fn rebuild(&mut self, entries: &EntrySlab) {
        self.heap.clear();
        self.heap.extend(
            entries
                .iter()
                .filter(|(_, at)| is_candidate(at))
                .map(|(entry, at)| Reverse((at.offset, entry))),
        );
    }

    /// The oldest candidate, without removing it.
    fn peek(&mut self, entries: &EntrySlab) -> Option<(Offset, u32)> {
        if !self.on {
            self.on = true;
            self.rebuild(entries);
        }
        while let Some(Reverse((offset, entry))) = self.heap.peek().copied() {
            if entries
                .find(entry)
                .is_some_and(|at| at.offset == offset && is_candidate(at))
            {
                return Some((offset, entry));
            }
            self.heap.pop();
        }
        None
    }
}

impl WorkMachine {
    /// Drops the oldest unleased message that the cursor has passed, or marks it for the dead-letter queue. If there is
    /// none, the oldest is the message at the cursor: `discard` it.
    pub fn drop_oldest(&mut self, to_dlq: bool, now: Micros) -> Option<Offset> {
        let offset = self.oldest_unleased()?;
        self.drop_at(offset, to_dlq, now).then_some(offset)
    }

    /// The message that `drop_oldest` would drop.
    pub fn oldest_unleased(&mut self) -> Option<Offset> {
        let entry = self.oldest.peek(&self.store.entries).map(|(offset, _)| offset);
        entry.into_iter().chain(self.delayed_set.first()).min()
    }

    /// Whether a message is settled, or neither leased nor being removed.
    pub fn can_drop(&self, offset: Offset) -> bool {
        match self.find(offset) {
            MessageStatus::Active(entry) => is_candidate(self.store.entries.get(entry)),
            MessageStatus::Asleep | MessageStatus::Unpassed | MessageStatus::Settled(..) => true,
        }
    }

    /// Drops an unleased message that the cursor has passed, or marks it for the dead-letter queue.
    pub fn drop_at(&mut self, offset: Offset, to_dlq: bool, now: Micros) -> bool {
        let entry = match self.find(offset) {
            MessageStatus::Active(entry) if is_candidate(self.store.entries.get(entry)) => entry,
            MessageStatus::Asleep if to_dlq => self.wake_to_leave(offset, now),
            MessageStatus::Asleep => {
                self.settle_asleep(offset, FinalState::Dropped);
                return true;
            }
            MessageStatus::Active(_) | MessageStatus::Settled(..) | MessageStatus::Unpassed => return false,
        };
        match to_dlq {
            true => self.end(entry, RemovalReason::Overflow),
            false => self.settle(entry, FinalState::Dropped, now),
        }
        true
    }
}
