//! Purge and seek: bulk changes, O(unsettled).

use thalweg_log::Offset;

use super::chain::Chain;
use super::entry::MessageState;
use super::settlement_cache::Settlement;
use super::{FinalState, WINDOW_MAX, WorkMachine};

impl WorkMachine {
    /// Drops everything below `next`, the end of the partition. Returns the number of dropped messages.
    pub fn purge(&mut self, next: Offset) -> u64 {
        let next = next.max(self.cursor);
        let unpassed = (next - self.cursor).saturating_sub(self.ahead);
        let dropped = self.store.entries.len() as u64 + self.delayed_set.len() + unpassed;
        self.totals.dropped += dropped;
        for (_, at) in self.store.entries.iter() {
            let end = Settlement {
                kind: FinalState::Dropped,
                deliveries: at.deliveries,
                epoch: at.epoch,
            };
            self.settlements.note(at.offset, end);
        }
        self.store.entries.clear();
        self.store.lanes.clear();
        self.held.clear();
        self.delayed_set.clear();
        self.ready = Default::default();
        self.ending = Chain::EMPTY;
        self.wheel = super::TimerWheel::new(self.now);
        self.oldest.forget();
        self.window.reset(next);
        self.cursor = next;
        self.ahead = 0;
        self.journal.purge(next);
        self.check();
        dropped
    }

    /// Makes everything from `to` on ready again. A message that was delivered and is not settled keeps its delivery
    /// number, so that old receipts never settle a new delivery; the rest counts as never delivered. Only backwards
    /// (forwards is `purge`); returns the cursor. The caller keeps `to` at or above the oldest retained offset.
    pub fn seek(&mut self, to: Offset) -> Offset {
        if to > self.cursor {
            return self.cursor;
        }
        let active = self.store.entries.iter().filter(|(_, at)| at.offset >= to);
        let mut again: Vec<(Offset, u32)> = active.map(|(entry, at)| (at.offset, entry)).collect();
        again.sort_unstable();
        let floor = self.floor().min(to);
        // Lanes deliver nothing at or after the cursor.
        self.cursor = to;
        again.retain(|(offset, entry)| {
            if self.store.entries.get(*entry).held {
                self.held.remove(offset);
            }
            let keeps = keeps_number(self.store.entries.get(*entry).deliveries, *offset, floor);
            let keeps = keeps && self.store.entries.get(*entry).reason.is_none();
            match keeps {
                true => self.call_back(*entry),
                false => {
                    self.detach(*entry);
                    self.store.entries.remove(*entry);
                }
            }
            keeps
        });
        self.delayed_set.remove_range(to..Offset::MAX);
        if to <= self.floor() {
            self.window.reset(to);
        } else {
            for offset in to..self.window.end() {
                self.window.clear(offset);
            }
        }
        for (offset, entry) in &again {
            self.store.entries.get_mut(*entry).held = false;
            self.window.set_active(*offset, *entry);
        }
        self.ahead = again.len() as u64;
        self.settlements.forget_from(to);
        self.journal.seek(to);
        self.skip_ahead();
        self.check();
        self.cursor
    }

    /// Makes a message ready, even if it is leased.
    fn call_back(&mut self, entry: u32) {
        match self.store.entries.get(entry).state {
            MessageState::Leased => self.give_back(entry),
            MessageState::Waiting => {
                self.wheel.cancel(&mut self.store.entries, entry);
                self.make_ready(entry);
            }
            // Its lane may be closed now.
            _ => self.refresh_lane_of(entry),
        }
    }
}

/// Whether a seek keeps the delivery number of this message. The state cannot represent it beyond the window's width
/// from the floor; its deliveries then start over.
pub(super) fn keeps_number(deliveries: u32, offset: Offset, floor: Offset) -> bool {
    deliveries > 0 && offset - floor < WINDOW_MAX
}
