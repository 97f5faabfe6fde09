//! Long-delayed messages wait without an entry ([`DelayedMessageSet`]) and are woken shortly before they are due.
//!
//! The machine reads nothing: the caller asks for the span to read (`to_rouse`), reads its messages and passes them
//! back (`rouse`). Only the beginning of the delay is journaled. A restart puts messages that were woken but not
//! delivered back to sleep, and wakes them again. A sleeping message occupies neither floor nor window, and counts
//! towards no limit but that of its memory.
//!
//! While the ready and leased messages fill the window, none is woken. They must be settled first, so memory stays
//! bounded even if millions are due at once. While as many woken messages are not yet due, only messages that are due
//! are woken.

use std::ops::Range;

use thalweg_log::{Micros, Offset};

use super::entry::{MessageEntry, MessageState, NEVER};
use super::{DelayedMessageSet, FinalState, MessageMeta, MessageStatus, WorkMachine};

impl WorkMachine {
    /// Offsets whose messages the caller should read and pass to `rouse`, because one of them is due soon. Returns the
    /// same span until it does.
    pub fn to_rouse(&self, now: Micros) -> Option<Range<Offset>> {
        self.next_rouse().filter(|(at, _)| *at <= now).map(|(_, span)| span)
    }

    /// Wakes a span. `messages` are its messages below `reached`, in offset order, as read at `now`. A sleeping message
    /// below `reached` that is not among them is lost; one at or above `reached` was delayed after the read.
    pub fn rouse(&mut self, span: Range<Offset>, messages: &[MessageMeta], reached: Offset, now: Micros) {
        let mut wake = Micros::MAX;
        for offset in self.delayed_set.within(&span) {
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
        self.delayed_set.again_at(&span, wake);
        self.check();
    }

    /// Messages with an entry that may not be delivered yet, in offset order.
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

    /// Recomputes delays that refer to the wall clock, after the clock was set. `messages` are those of
    /// [`delayed`](WorkMachine::delayed), as read at `now`. Spans of sleeping messages are read again.
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
        self.delayed_set.all_at(now);
        self.check();
    }

    /// The span could not be read; it is retried at this time.
    pub fn rouse_at(&mut self, span: &Range<Offset>, at: Micros) {
        self.delayed_set.again_at(span, at.saturating_add(self.horizon() / 2));
    }

    /// Number of messages without an entry, which must be read from the log.
    pub fn asleep(&self) -> u64 {
        self.delayed_set.len()
    }

    /// The sleeping messages.
    pub(crate) fn delayed_set(&self) -> &DelayedMessageSet {
        &self.delayed_set
    }

    /// The first sleeping message.
    pub fn first_asleep(&self) -> Option<Offset> {
        self.delayed_set.first()
    }

    pub(super) fn next_rouse(&self) -> Option<(Micros, Range<Offset>)> {
        let busy = self.store.entries.len() as u64 - self.store.entries.count(MessageState::Delayed);
        if busy >= u64::from(self.policy.max_pending) {
            return None;
        }
        let (wake, span) = self.delayed_set.next()?;
        Some((wake.saturating_sub(self.horizon() / 2), span))
    }

    /// How long before it is due a message may be woken.
    fn horizon(&self) -> Micros {
        let many = self.store.entries.count(MessageState::Delayed) >= u64::from(self.policy.max_pending);
        if many { 0 } else { self.policy.sleep_after }
    }

    /// Puts the message at the cursor to sleep.
    pub(super) fn fall_asleep(&mut self, due: Micros) {
        self.window.set_asleep(self.cursor);
        self.delayed_set.insert(self.cursor, due);
        self.journal.sleep(self.cursor, due, self.window.floor());
    }

    /// Settles a sleeping message.
    pub(super) fn settle_asleep(&mut self, offset: Offset, kind: FinalState) {
        self.delayed_set.remove(offset);
        self.journal.settle(offset, 1, kind);
        *self.total(kind) += 1;
        // The floor is never at a sleeping message.
        if offset > self.floor() {
            self.window.settle(offset, kind);
        }
    }

    /// Creates an entry for a message that must leave, of which only the offset is known.
    pub(super) fn wake_to_leave(&mut self, offset: Offset, now: Micros) -> u32 {
        self.entry_of_delayed(&MessageMeta::unread(offset), now)
    }

    fn wake(&mut self, message: &MessageMeta, due: Micros, now: Micros) {
        let entry = self.entry_of_delayed(message, now);
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

    fn entry_of_delayed(&mut self, message: &MessageMeta, now: Micros) -> u32 {
        self.delayed_set.remove(message.offset);
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
