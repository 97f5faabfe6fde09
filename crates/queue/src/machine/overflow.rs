//! Overflow `drop-oldest`: the oldest message that nobody has.
//!
//! A heap of candidates with lazy removal, made at the first such call: a queue that never drops pays nothing, one that
//! does pays O(log n). (A scan of window and held set would cost their size for every append at the limit.)

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use thalweg_log::{Micros, Offset};

use super::entry::{Entries, Entry, State};
use super::{Machine, Reason, Terminal};

#[derive(Default)]
pub struct Oldest {
    on: bool,
    heap: BinaryHeap<Reverse<(Offset, u32)>>,
}

fn is_candidate(at: &Entry) -> bool {
    matches!(at.state, State::Delayed | State::Ready | State::Waiting)
}

impl Oldest {
    /// The entry is unleased now.
    #[inline]
    pub fn note(&mut self, entries: &Entries, entry: u32) {
        if self.on {
            self.push(entries, entry);
        }
    }

    pub fn forget(&mut self) {
        self.heap.clear();
        self.on = false;
    }

    fn push(&mut self, entries: &Entries, entry: u32) {
        if self.heap.len() > 2 * entries.len() + 64 {
            self.rebuild(entries);
        }
        self.heap.push(Reverse((entries.get(entry).offset, entry)));
    }

    fn rebuild(&mut self, entries: &Entries) {
        self.heap.clear();
        self.heap.extend(
            entries
                .iter()
                .filter(|(_, at)| is_candidate(at))
                .map(|(entry, at)| Reverse((at.offset, entry))),
        );
    }

    fn pop(&mut self, entries: &Entries) -> Option<u32> {
        if !self.on {
            self.on = true;
            self.rebuild(entries);
        }
        while let Some(Reverse((offset, entry))) = self.heap.pop() {
            if entries
                .find(entry)
                .is_some_and(|at| at.offset == offset && is_candidate(at))
            {
                return Some(entry);
            }
        }
        None
    }
}

impl Machine {
    /// Drops the oldest unleased message that the cursor has passed, or makes it leave for the dead-letter queue.
    /// Without one, the oldest is the message at the cursor: `discard` it.
    pub fn drop_oldest(&mut self, to_dlq: bool, now: Micros) -> Option<Offset> {
        let mut entry = self.oldest.pop(&self.store.entries);
        let offset_of = |entry| self.store.entries.get(entry).offset;
        let older = |offset: &Offset| entry.is_none_or(|entry| *offset < offset_of(entry));
        if let Some(offset) = self.sleepers.first().filter(older) {
            if let Some(entry) = entry {
                self.oldest.push(&self.store.entries, entry);
            }
            if !to_dlq {
                self.settle_asleep(offset, Terminal::Dropped);
                return Some(offset);
            }
            entry = Some(self.wake_to_leave(offset, now));
        }
        let entry = entry?;
        let offset = self.store.entries.get(entry).offset;
        if to_dlq {
            self.end(entry, Reason::Overflow);
        } else {
            self.settle(entry, Terminal::Dropped, now);
        }
        Some(offset)
    }
}
