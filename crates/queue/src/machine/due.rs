//! What is due: `advance` handles ended leases, waits, delays and lifetimes, in the order of the ticks (1 ms), and
//! within one tick in offset order. `timer_wheel.rs` finds them.

use thalweg_log::Micros;

use super::chain::NIL;
use super::entry::{MessageState, NEVER};
use super::timer_wheel::TimerWheel;
use super::{RemovalReason, WorkMachine};

/// A clock that goes back by less counts as standing still; otherwise all timers are set again.
const FALL_BACK: Micros = 1_000_000;

impl WorkMachine {
    /// Handles everything that is due at `now`. Never early, at most 1 ms late.
    pub fn advance(&mut self, now: Micros) {
        if now < self.now.saturating_sub(FALL_BACK) {
            self.rewind_wheel(now);
        }
        self.now = now.max(self.now);
        let mut due_entries = std::mem::take(&mut self.due_entries);
        while self.wheel.fire(&mut self.store.entries, self.now, &mut due_entries) {
            due_entries.sort_unstable_by_key(|entry| self.store.entries.get(*entry).offset);
            for entry in due_entries.drain(..) {
                if TimerWheel::take_fired(&mut self.store.entries, entry) {
                    self.handle_due(entry, self.now);
                }
            }
        }
        self.due_entries = due_entries;
        self.trim(self.now);
        self.check();
    }

    /// The message's own timer has ended. An ended lease fails, as a nack without a delay does.
    fn handle_due(&mut self, entry: u32, now: Micros) {
        let at = *self.store.entries.get(entry);
        match at.state {
            MessageState::Leased => {
                self.totals.lease_timeouts += 1;
                self.fail(entry, None, now);
            }
            MessageState::Waiting => match at.reason {
                Some(_) => self.end_again(entry),
                None if at.expires_at <= now => self.end(entry, RemovalReason::Expired),
                None => self.make_ready(entry),
            },
            MessageState::Ready => self.end(entry, RemovalReason::Expired),
            MessageState::Delayed => self.delay_is_over(entry),
            MessageState::Ending | MessageState::Free => debug_assert!(false, "a timer without a reason"),
        }
    }

    pub(super) fn delay_is_over(&mut self, entry: u32) {
        if self.store.entries.get(entry).lane != NIL {
            self.store.enter(entry);
        }
        self.make_ready(entry);
    }

    /// The clock went back: sets every timer by the new time. O(unsettled).
    #[cold]
    fn rewind_wheel(&mut self, now: Micros) {
        self.now = now;
        let timers: Vec<(u32, Micros)> = self
            .store
            .entries
            .iter()
            .filter_map(|(entry, at)| {
                let due = match at.state {
                    MessageState::Leased | MessageState::Delayed => at.due,
                    MessageState::Waiting if at.reason.is_some() => at.due,
                    MessageState::Waiting => at.due.min(at.expires_at),
                    MessageState::Ready => at.expires_at,
                    MessageState::Ending | MessageState::Free => NEVER,
                };
                (due != NEVER).then_some((entry, due))
            })
            .collect();
        for (entry, _) in &timers {
            self.wheel.cancel(&mut self.store.entries, *entry);
        }
        self.wheel = TimerWheel::new(now);
        for (entry, due) in timers {
            self.wheel.arm(&mut self.store.entries, entry, due);
        }
    }
}
