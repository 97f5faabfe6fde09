//! Removal: `take_ending` returns messages that are dead, expired or evicted, and the caller reports the outcome. Such
//! a message has left its lane, so later messages proceed even while the dead-letter queue accepts nothing.

use thalweg_log::{Micros, Offset};

use super::chain::NIL;
use super::entry::{EntryList, MessageState};
use super::journal::{self, FailureVerdict};
use super::{FinalState, MOVE_RETRY, MessageStatus, PendingRemoval, RemovalReason, WorkMachine};

impl WorkMachine {
    /// Up to `max` messages that must leave, each returned once. The caller must then call `ended` or `move_failed` for
    /// it.
    pub fn take_ending(&mut self, max: usize) -> Vec<PendingRemoval> {
        let mut taken = Vec::new();
        while taken.len() < max && self.ending.head != NIL {
            let entry = self.ending.head;
            self.ending.remove(&mut self.store, entry);
            let at = self.store.entries.get_mut(entry);
            at.place = EntryList::None;
            taken.push(at.ending());
        }
        taken
    }

    pub fn has_ending(&self) -> bool {
        self.ending.head != NIL
    }

    /// Whether the message must leave, or is being moved.
    pub fn is_leaving(&self, offset: Offset) -> bool {
        let MessageStatus::Active(entry) = self.find(offset) else {
            return false;
        };
        self.store.entries.get(entry).reason.is_some()
    }

    /// The message has left. False if there is nothing to end, for instance after a purge.
    pub fn ended(&mut self, offset: Offset, kind: FinalState, now: Micros) -> bool {
        let Some(entry) = self.taken(offset) else {
            return false;
        };
        self.settle(entry, kind, now);
        true
    }

    /// The journal record of `ended`, for the submission that appends to the dead-letter queue, so that both are stored
    /// or neither. `ended` writes it once more, which has no effect.
    pub fn ended_record(offset: Offset, kind: FinalState, out: &mut Vec<u8>) {
        journal::settled(offset, kind, out);
    }

    /// The message is not in the log any more because of retention or damage: settles it as skipped, whatever its state
    /// was.
    pub fn gone(&mut self, offset: Offset, lost: bool, now: Micros) -> bool {
        match self.find(offset) {
            MessageStatus::Active(entry) => self.settle(entry, FinalState::Skipped, now),
            MessageStatus::Asleep => self.settle_asleep(offset, FinalState::Skipped),
            MessageStatus::Settled(..) | MessageStatus::Unpassed => return false,
        }
        self.totals.skipped -= u64::from(lost);
        self.totals.lost += u64::from(lost);
        true
    }

    /// The message could not be moved: it waits 5 s and must leave again. An ack with its last receipt still counts.
    pub fn move_failed(&mut self, offset: Offset, now: Micros) -> bool {
        let Some(entry) = self.taken(offset) else {
            return false;
        };
        self.store.entries.set_state(entry, MessageState::Waiting);
        let due = now.saturating_add(MOVE_RETRY);
        self.store.entries.get_mut(entry).due = due;
        self.wheel.arm(&mut self.store.entries, entry, due);
        self.oldest.note(&self.store.entries, entry);
        true
    }

    /// From any active state: removes it from its lane and marks it for removal.
    pub(super) fn end(&mut self, entry: u32, reason: RemovalReason) {
        self.detach(entry);
        let at = self.store.entries.get_mut(entry);
        at.reason = Some(reason);
        at.revoked = false;
        let (offset, deliveries, failures) = (at.offset, at.deliveries, at.failures);
        self.end_again(entry);
        if self.store.entries.get(entry).is_known_only_here() {
            self.journal
                .failed(offset, deliveries, failures, FailureVerdict::Ending(reason));
        }
    }

    /// Marks a message that is in no list and no lane for removal, possibly again.
    pub(super) fn end_again(&mut self, entry: u32) {
        self.store.entries.set_state(entry, MessageState::Ending);
        self.store.entries.get_mut(entry).place = EntryList::Ending;
        self.ending.push_back(&mut self.store, entry);
    }

    /// An entry that `take_ending` returned.
    fn taken(&self, offset: Offset) -> Option<u32> {
        let MessageStatus::Active(entry) = self.find(offset) else {
            return None;
        };
        let at = self.store.entries.get(entry);
        (at.state == MessageState::Ending && at.place == EntryList::None).then_some(entry)
    }
}
