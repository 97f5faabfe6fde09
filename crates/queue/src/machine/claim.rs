//! Leases messages: first those that are ready, then those at the cursor. The cursor stops only at a full window, a
//! full held set, or a busy lane of a strict queue.
//!
//! The caller shows the message at the cursor, and these functions move the cursor over it:
//!
//! | Function | for | a skipped, delayed or expired message | any other message |
//! |---|---|---|---|
//! | `pass` | a claim | is settled, delayed or marked for removal | is leased; ready while its lane is busy |
//! | `pass_unclaimable` | removal of expired messages | the same | stays at the cursor |
//! | `pass_unleased` | the same, with an expired message after this one | the same | becomes ready |
//! | `discard` | overflow | is dropped or marked for removal | the same |
//! | `pass_gap` | offsets that do not exist | – | – |

use thalweg_log::{Micros, Offset};

use super::chain::NIL;
use super::entry::{MessageEntry, MessageState};
use super::journal::LeaseRun;
use super::window::WindowSlot;
use super::{CursorStop, FinalState, LaneOrdering, Lease, MessageMeta, PassOutcome, RemovalReason, WorkMachine};

impl WorkMachine {
    /// Leases the longest-waiting message that this consumer may have.
    pub fn next_ready(&mut self, consumer: u32, visibility: Micros, now: Micros) -> Option<Lease> {
        let mut all = usize::MAX;
        self.first_ready(consumer, now, &mut all)?;
        let entry = self.ready.pick(&self.store, consumer)?;
        self.ready.turn();
        if self.store.entries.get(entry).lane == NIL {
            self.ready.remove(&mut self.store, entry);
        }
        Some(self.lease(entry, consumer, visibility, now))
    }

    /// The message that `next_ready` would lease, with its hint. Expired and exhausted messages that it meets are
    /// marked for removal; `left` limits their number and is counted down.
    pub fn first_ready(&mut self, consumer: u32, now: Micros, left: &mut usize) -> Option<(Offset, u32)> {
        while *left > 0
            && let Some(entry) = self.ready.pick(&self.store, consumer)
        {
            let MessageEntry {
                offset,
                hint,
                expires_at,
                ..
            } = *self.store.entries.get(entry);
            let expired = (expires_at <= now).then_some(RemovalReason::Expired);
            let Some(reason) = self.exhausted(entry, now).or(expired) else {
                return Some((offset, hint));
            };
            self.ready.turn();
            self.end(entry, reason);
            *left -= 1;
        }
        None
    }

    /// Moves the cursor over the message for a consumer, who gets it unless nobody may claim it now or its lane is
    /// busy. Call `next_ready` first, because messages that were passed earlier go first.
    pub fn pass(&mut self, message: &MessageMeta, consumer: u32, visibility: Micros, now: Micros) -> PassOutcome {
        if let Err(passed) = self.reach(message, now) {
            return passed;
        }
        if self.step_over_unclaimable(message, now) {
            return PassOutcome::Taken;
        }
        // One look-up for both questions. A lane created here is empty, so it is free, and it is joined below.
        let lane = self
            .lane_of(message.lane)
            .map(|hash| self.store.lanes.find_or_make(hash));
        let free = lane.is_none_or(|lane| self.lane_is_free(lane, message.offset, consumer));
        if !free && self.policy.ordering == LaneOrdering::Strict {
            return PassOutcome::Full(CursorStop::Lane);
        }
        let entry = self.admit_to(lane, message, MessageState::Ready, now);
        if free {
            let (delivery, deadline) = self.hand_out(entry, consumer, visibility, now);
            self.step(now);
            return PassOutcome::Leased(Lease {
                offset: message.offset,
                delivery,
                hint: message.hint,
                deadline,
            });
        }
        self.arm_expiry(entry);
        self.refresh_lane_of(entry);
        self.step(now);
        PassOutcome::Taken
    }

    /// Moves the cursor over the message only if nobody may claim it now: it is skipped, delayed or expired. Returns
    /// whether it did. So expired messages leave a queue that nobody reads.
    pub fn pass_unclaimable(&mut self, message: &MessageMeta, now: Micros) -> bool {
        match self.reach(message, now) {
            Ok(()) => self.step_over_unclaimable(message, now),
            Err(passed) => passed == PassOutcome::Taken,
        }
    }

    /// Moves the cursor over the message in any case, without a consumer: a live one becomes ready, and the cursor
    /// reaches expired messages after it. False if there is no room.
    pub fn pass_unleased(&mut self, message: &MessageMeta, now: Micros) -> bool {
        if let Err(passed) = self.reach(message, now) {
            return passed == PassOutcome::Taken;
        }
        if !self.step_over_unclaimable(message, now) {
            let entry = self.admit(message, MessageState::Ready, now);
            self.make_ready(entry);
            self.step(now);
        }
        true
    }

    /// Drops the message at the cursor because of overflow, or marks it for the dead-letter queue.
    pub fn discard(&mut self, message: &MessageMeta, to_dlq: bool, now: Micros) -> PassOutcome {
        if let Err(passed) = self.reach(message, now) {
            return passed;
        }
        if to_dlq {
            let entry = self.admit(message, MessageState::Delayed, now);
            self.end(entry, RemovalReason::Overflow);
        } else {
            self.settle_cursor(FinalState::Dropped);
        }
        self.step(now);
        PassOutcome::Taken
    }

    /// Passes offsets below `to` that do not exist, or are `lost` to damage. Returns the cursor, which is below `to` if
    /// the window is full.
    pub fn pass_gap(&mut self, to: Offset, lost: bool, now: Micros) -> Offset {
        while self.cursor < to {
            let from = self.cursor;
            if self.floor() == self.cursor && self.ahead == 0 {
                self.window.reset(to);
                self.cursor = to;
                self.journal.settle(from, to - from, FinalState::Skipped);
                self.count_gap(to - from, lost);
            } else if self.full(now).is_some() {
                break;
            } else {
                self.settle_cursor(FinalState::Skipped);
                self.totals.skipped -= u64::from(lost);
                self.totals.lost += u64::from(lost);
                self.step(now);
            }
        }
        self.cursor
    }

    fn count_gap(&mut self, len: u64, lost: bool) {
        match lost {
            true => self.totals.lost += len,
            false => self.totals.skipped += len,
        }
    }

    /// Moves the cursor to the message. Returns an error if the message was passed before or there is no room.
    #[inline]
    fn reach(&mut self, message: &MessageMeta, now: Micros) -> Result<(), PassOutcome> {
        if message.offset > self.cursor {
            self.pass_gap(message.offset, false, now);
        }
        if message.offset < self.cursor {
            return Err(PassOutcome::Taken);
        }
        match self.full(now) {
            Some(full) => Err(PassOutcome::Full(full)),
            None => Ok(()),
        }
    }

    #[inline]
    fn full(&mut self, now: Micros) -> Option<CursorStop> {
        if self.cursor - self.floor() < u64::from(self.policy.max_pending) {
            return None;
        }
        // The held set may have room again since the last step.
        self.trim(now);
        if self.cursor - self.floor() < u64::from(self.policy.max_pending) {
            return None;
        }
        self.totals.stopped += 1;
        Some(if self.policy.max_held == 0 {
            CursorStop::Window
        } else {
            CursorStop::Held
        })
    }

    /// Moves the cursor, which `reach` has moved to the message, over it if nobody may claim it now: settles a skipped
    /// message, delays one that is not due, marks an expired one for removal. False if the message is live.
    #[inline]
    fn step_over_unclaimable(&mut self, message: &MessageMeta, now: Micros) -> bool {
        let due = message.not_before.filter(|due| *due > now);
        if message.skip {
            self.settle_cursor(FinalState::Skipped);
        } else if let Some(due) = due.filter(|due| due - now > self.policy.sleep_after) {
            self.fall_asleep(due);
        } else if let Some(due) = due {
            let entry = self.admit(message, MessageState::Delayed, now);
            self.store.entries.get_mut(entry).due = due;
            self.wheel.arm(&mut self.store.entries, entry, due);
            self.oldest.note(&self.store.entries, entry);
        } else if message.expires_at.is_some_and(|at| at <= now) {
            let entry = self.admit(message, MessageState::Delayed, now);
            self.end(entry, RemovalReason::Expired);
        } else {
            return false;
        }
        self.step(now);
        true
    }

    /// Whether the message may be leased to the consumer before all unleased messages of its lane.
    #[inline]
    fn lane_is_free(&self, lane: u32, offset: Offset, consumer: u32) -> bool {
        let lane = self.store.lanes.get(lane);
        let first = lane.next == NIL || offset < self.store.entries.get(lane.next).offset;
        let room = lane.leased == 0 || (lane.holder == consumer && lane.leased < u32::from(self.policy.lane_window));
        first && room
    }

    /// Creates the entry of the message at the cursor. A ready message is queued in its lane; a delayed one only
    /// belongs to it.
    fn admit(&mut self, message: &MessageMeta, state: MessageState, now: Micros) -> u32 {
        let lane = self
            .lane_of(message.lane)
            .map(|hash| self.store.lanes.find_or_make(hash));
        self.admit_to(lane, message, state, now)
    }

    #[inline]
    fn admit_to(&mut self, lane: Option<u32>, message: &MessageMeta, state: MessageState, now: Micros) -> u32 {
        let entry = self.store.entries.insert(MessageEntry::new(message, now), state);
        self.window.set_active(message.offset, entry);
        if let Some(lane) = lane {
            self.store.join(entry, lane);
            if state == MessageState::Ready {
                self.store.enter(entry);
            }
        }
        entry
    }

    fn settle_cursor(&mut self, kind: FinalState) {
        self.window.settle(self.cursor, kind);
        self.journal.settle(self.cursor, 1, kind);
        *self.total(kind) += 1;
    }

    /// Moves the cursor by one offset, and over offsets that a restart knows already.
    #[inline]
    fn step(&mut self, now: Micros) {
        self.cursor += 1;
        self.skip_ahead();
        let far = self.cursor - self.floor() > u64::from(self.policy.max_pending / 2);
        if far || !matches!(self.window.get(self.floor()), WindowSlot::Active(_)) {
            self.trim(now);
        }
    }

    pub(super) fn skip_ahead(&mut self) {
        while self.ahead > 0 && self.window.get(self.cursor) != WindowSlot::Empty {
            let passed = self.window.get(self.cursor);
            self.cursor += 1;
            self.ahead -= 1;
            if let WindowSlot::Active(entry) = passed {
                self.refresh_lane_of(entry);
            }
        }
    }

    fn lease(&mut self, entry: u32, consumer: u32, visibility: Micros, now: Micros) -> Lease {
        let (delivery, deadline) = self.hand_out(entry, consumer, visibility, now);
        let MessageEntry { offset, hint, .. } = *self.store.entries.get(entry);
        Lease {
            offset,
            delivery,
            hint,
            deadline,
        }
    }

    /// Leases an entry that is first in its lane, or in no list. Returns the delivery number and the deadline, and no
    /// `Lease`: two numbers are returned in registers. A `Lease` would be returned in memory, and a caller that copies
    /// it at once would wait until it is written, which takes as long as all of this.
    #[inline]
    fn hand_out(&mut self, entry: u32, consumer: u32, visibility: Micros, now: Micros) -> (u32, Micros) {
        let deadline = now.saturating_add(visibility);
        self.store.entries.set_state(entry, MessageState::Leased);
        let at = self.store.entries.get_mut(entry);
        at.deliveries = at.deliveries.saturating_add(1);
        if at.deliveries == 1 {
            at.first_delivery = now;
        } else {
            self.totals.redelivered += 1;
        }
        at.claimed_at = now;
        at.consumer = consumer;
        at.epoch = self.epoch;
        at.due = deadline;
        at.revoked = false;
        at.roused = false;
        let (offset, delivery, lane) = (at.offset, at.deliveries, at.lane);
        self.leased_in = self.epoch;
        if lane != NIL {
            self.store.lease_next(lane, consumer);
            self.refresh(lane);
        }
        self.wheel.cancel(&mut self.store.entries, entry);
        self.wheel.arm(&mut self.store.entries, entry, deadline);
        let run = LeaseRun {
            first: offset,
            len: 1,
            consumer,
            now,
            deadline,
            delivery,
        };
        self.journal.lease(run, self.window.floor());
        (delivery, deadline)
    }
}
