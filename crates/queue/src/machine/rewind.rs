//! Purge and seek: many messages at once, O(unsettled).

use thalweg_log::Offset;

use super::chain::Chain;
use super::{Machine, Terminal};

impl Machine {
    /// Drops everything below `next`, the end of the partition.
    pub fn purge(&mut self, next: Offset) {
        let next = next.max(self.cursor);
        let unpassed = (next - self.cursor).saturating_sub(self.ahead);
        self.totals.dropped += self.store.entries.len() as u64 + self.sleepers.len() + unpassed;
        for (_, at) in self.store.entries.iter() {
            self.memory.note(at.offset, Terminal::Dropped, at.deliveries);
        }
        self.store.entries.clear();
        self.store.lanes.clear();
        self.held.clear();
        self.sleepers.clear();
        self.ready = Default::default();
        self.ending = Chain::EMPTY;
        self.wheel = super::Wheel::new(self.now);
        self.oldest.forget();
        self.window.reset(next);
        self.cursor = next;
        self.ahead = 0;
        self.journal.purge(next);
        self.check();
    }

    /// Everything from `to` on is ready and was never delivered. Only backwards (forwards is `purge`);
    /// returns the cursor. The caller keeps
    /// `to` at or above the oldest retained offset.
    pub fn seek(&mut self, to: Offset) -> Offset {
        if to > self.cursor {
            return self.cursor;
        }
        let again: Vec<u32> = self
            .store
            .entries
            .iter()
            .filter(|(_, at)| at.offset >= to)
            .map(|(entry, _)| entry)
            .collect();
        for entry in again {
            let at = *self.store.entries.get(entry);
            self.detach(entry);
            self.store.entries.remove(entry);
            if at.held {
                self.held.remove(&at.offset);
            }
        }
        self.sleepers.remove_range(to..Offset::MAX);
        if to <= self.floor() {
            self.window.reset(to);
        } else {
            for offset in to..self.window.end() {
                self.window.clear(offset);
            }
        }
        self.memory.forget_from(to);
        self.cursor = to;
        self.ahead = 0;
        self.journal.seek(to);
        self.check();
        self.cursor
    }
}
