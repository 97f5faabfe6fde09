//! Memory of the state of a group in a partition. Entries, lanes and the window keep their peak capacity, so that
//! steady traffic allocates nothing. Once everything is settled, a large state releases its memory.

use thalweg_log::Offset;

use super::timer_wheel::TimerWheel;
use super::{StreamMachine, WorkMachine};

/// Memory kept for the next burst. Tests use small states, so there it is no more than a new state has.
const KEPT_BYTES: usize = if cfg!(test) { 256 } else { 256 << 10 };

impl WorkMachine {
    /// Memory of an empty machine with its timers.
    pub const EMPTY_BYTES: usize = size_of::<WorkMachine>() + TimerWheel::SLOTS_BYTES;

    /// Memory that grows with the leased, waiting and delayed messages.
    pub fn bytes(&self) -> usize {
        self.bytes_with(0)
    }

    /// Like `bytes`, with `more` additional messages.
    pub fn bytes_with(&self, more: usize) -> usize {
        let held = self.held.capacity() * size_of::<(Offset, u32)>();
        self.store.entries.bytes_with(more)
            + self.store.lanes.bytes_with(more)
            + self.window.bytes_to(self.cursor + more as u64)
            + self.delayed_set.bytes()
            + held
    }

    /// Messages that have an entry: neither settled nor sleeping.
    pub fn messages(&self) -> usize {
        self.store.entries.len()
    }

    /// How many messages can be added without more memory.
    pub fn spare(&self) -> usize {
        self.store.entries.spare()
    }

    /// Releases memory after a burst, if nothing is unsettled.
    pub fn shrink(&mut self) {
        let is_empty = self.messages() == 0 && self.cursor == self.floor() && self.ahead == 0;
        if !is_empty || self.bytes() <= KEPT_BYTES {
            return;
        }
        self.store.entries.shrink();
        self.store.lanes.shrink();
        self.window.shrink();
        self.held.shrink_to_fit();
        self.oldest.forget();
    }
}

impl StreamMachine {
    /// Memory of an empty machine, before any ack.
    pub const EMPTY_BYTES: usize = size_of::<StreamMachine>();

    /// Memory of the acks ahead of the commit.
    pub fn bytes(&self) -> usize {
        self.acked.bytes_to(self.committed())
    }

    /// Like `bytes`, once everything up to `end` is read.
    pub fn bytes_to(&self, end: Offset) -> usize {
        self.acked.bytes_to(end)
    }

    /// Up to this offset it needs no more memory.
    pub fn reaches_to(&self) -> Offset {
        self.acked.reaches_to()
    }

    /// As for a work group, if everything that was read is committed.
    pub fn shrink(&mut self) {
        if self.committed() == self.position().max(self.delivered_to) && self.bytes() > KEPT_BYTES {
            self.acked.shrink();
        }
    }
}
