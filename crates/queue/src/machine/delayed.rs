//! Falling asleep and being roused: messages that are delayed for long wait without an entry ([`DelayedMessageSet`]).
//!
//! The machine reads nothing, so the caller asks for the span that is to be read (`to_rouse`), reads its messages and
//! shows them (`rouse`). Nothing of it is journaled but the falling asleep: a restart finds who was roused and not
//! delivered since asleep, and rouses them again. A sleeper holds neither floor nor window, and counts towards no limit
//! but the bits it takes. While as many are ready or with consumers as the window is wide, nobody is roused: those have to
//! be settled first, and memory stays bounded if millions are due at once. While as many are roused and not due, only
//! those are roused that are due.

use std::ops::Range;

use thalweg_log::{Micros, Offset};

use super::entry::{MessageEntry, MessageState, NEVER};
use super::{DelayedMessageSet, FinalState, MessageMeta, MessageStatus, WorkMachine};

impl WorkMachine {
    /// Offsets whose messages the caller should read and show to `rouse`, because one of them is due soon. The same again
    /// until it does.
    pub fn to_rouse(&self, now: Micros) -> Option<Range<Offset>> {
        self.next_rouse().filter(|(at, _)| *at <= now).map(|(_, span)| span)
    }

    /// These are the messages of the span below `reached`, in offset order, as they were read at `now`; a sleeper there
    /// that is not among them is lost. One from `reached` on came after that, and fell asleep then.
    pub fn rouse(&mut self, span: Range<Offset>, messages: &[MessageMeta], reached: Offset, now: Micros) {
        let mut wake = Micros::MAX;
        for offset in self.sleepers.within(&span) {
            if offset >= reached {
                wake = wake.min(now.saturating_add(self.policy.sleep_after));
                continue;
            }
            let Ok(at) = messages.binary_search_by_key(&offset, |message| message.offset) else {
                self.gone(offset, true, now);
                continue;
            };
            let message = &messages[at];
            match message.not_before {
                Some(due) if due > now && due - now > self.horizon() => wake = wake.min(due),
                due => self.wake(message, due.unwrap_or(now), now),
            }
        }
        self.sleepers.again_at(&span, wake);
        self.check();
    }

    /// Messages with an entry that may not be handed out yet, in the order of their offsets.
    pub fn delayed(&self) -> Vec<Offset> {
        let delayed = self
            .store
            .entries
            .iter()
            .filter(|(_, at)| at.state == MessageState::Delayed);
        let mut offsets: Vec<Offset> = delayed.map(|(_, at)| at.offset).collect();
        offsets.sort_unstable();
        offsets
    }

    /// The wall clock was set: what waits for a time that it shows waits for another one now. These are the messages of
    /// [`delayed`](WorkMachine::delayed), as they were read at `now`; those that sleep are to be read.
    pub fn delay_anew(&mut self, messages: &[MessageMeta], now: Micros) {
        for message in messages {
            let MessageStatus::Active(entry) = self.find(message.offset) else {
                continue;
            };
            let at = self.store.entries.get_mut(entry);
            if at.state != MessageState::Delayed {
                continue;
            }
            at.expires_at = message.expires_at.unwrap_or(NEVER);
            at.due = message.not_before.unwrap_or(now);
            let due = at.due;
            self.wheel.cancel(&mut self.store.entries, entry);
            if due > now {
                self.wheel.arm(&mut self.store.entries, entry, due);
            } else {
                self.delay_is_over(entry);
            }
        }
        self.sleepers.all_at(now);
        self.check();
    }

    /// The span could not be read: it is tried again at this time.
    pub fn rouse_at(&mut self, span: &Range<Offset>, at: Micros) {
        self.sleepers.again_at(span, at.saturating_add(self.horizon() / 2));
    }

    /// Messages without an entry, for which the log is asked.
    pub fn asleep(&self) -> u64 {
        self.sleepers.len()
    }

    /// Which they are.
    pub(crate) fn sleepers(&self) -> &DelayedMessageSet {
        &self.sleepers
    }

    /// The first of them.
    pub fn first_asleep(&self) -> Option<Offset> {
        self.sleepers.first()
    }

    pub(super) fn next_rouse(&self) -> Option<(Micros, Range<Offset>)> {
        let busy = self.store.entries.len() as u64 - self.store.entries.count(MessageState::Delayed);
        if busy >= u64::from(self.policy.max_pending) {
            return None;
        }
        let (wake, span) = self.sleepers.next()?;
        Some((wake.saturating_sub(self.horizon() / 2), span))
    }

    /// How long before it is due a message may be roused.
    fn horizon(&self) -> Micros {
        let many = self.store.entries.count(MessageState::Delayed) >= u64::from(self.policy.max_pending);
        if many { 0 } else { self.policy.sleep_after }
    }

    /// The message at the cursor sleeps.
    pub(super) fn fall_asleep(&mut self, due: Micros) {
        self.window.set_asleep(self.cursor);
        self.sleepers.insert(self.cursor, due);
        self.journal.sleep(self.cursor, due, self.window.floor());
    }

    /// The end of one that sleeps.
    pub(super) fn settle_asleep(&mut self, offset: Offset, kind: FinalState) {
        self.sleepers.remove(offset);
        self.journal.settle(offset, 1, kind);
        *self.total(kind) += 1;
        // The floor never stands at one that sleeps.
        if offset > self.floor() {
            self.window.settle(offset, kind);
        }
    }

    /// An entry for one of whom nothing is known but the offset, because it has to leave.
    pub(super) fn wake_to_leave(&mut self, offset: Offset, now: Micros) -> u32 {
        self.entry_of_sleeper(&MessageMeta::unread(offset), now)
    }

    fn wake(&mut self, message: &MessageMeta, due: Micros, now: Micros) {
        let entry = self.entry_of_sleeper(message, now);
        if let Some(hash) = self.lane_of(message.lane) {
            let lane = self.store.lanes.find_or_make(hash);
            self.store.join(entry, lane);
        }
        self.store.entries.get_mut(entry).due = due;
        if due > now {
            self.wheel.arm(&mut self.store.entries, entry, due);
            self.oldest.note(&self.store.entries, entry);
        } else {
            self.delay_is_over(entry);
        }
    }

    fn entry_of_sleeper(&mut self, message: &MessageMeta, now: Micros) -> u32 {
        self.sleepers.remove(message.offset);
        let mut at = MessageEntry::new(message, now);
        at.roused = true;
        at.held = message.offset < self.floor();
        let entry = self.store.entries.insert(at, MessageState::Delayed);
        match at.held {
            true => self.insert_held(message.offset, entry),
            false => self.window.set_active(message.offset, entry),
        }
        entry
    }
}
