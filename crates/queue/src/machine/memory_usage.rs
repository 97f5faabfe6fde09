//! How much memory the state of a group over a partition takes. Entries, lanes and the window keep what they had at their widest, so
//! that what comes and goes all the time allocates nothing; once all of it is settled, a large one gives that back.

use thalweg_log::Offset;

use super::timer_wheel::TimerWheel;
use super::{StreamMachine, WorkMachine};

/// What is kept for the next burst; of the states of tests, which are small, no more than a new one has.
const KEPT_BYTES: usize = if cfg!(test) { 256 } else { 256 << 10 };

impl WorkMachine {
    /// Of itself with its timers, before it knows of any message.
    pub const EMPTY_BYTES: usize = size_of::<WorkMachine>() + TimerWheel::SLOTS_BYTES;

    /// Of what grows with the messages that consumers have, that wait or are delayed.
    pub fn bytes(&self) -> usize {
        self.bytes_with(0)
    }

    /// The same once it knows of so many more.
    pub fn bytes_with(&self, more: usize) -> usize {
        let held = self.held.capacity() * size_of::<(Offset, u32)>();
        self.store.entries.bytes_with(more)
            + self.store.lanes.bytes_with(more)
            + self.window.bytes_to(self.cursor + more as u64)
            + self.sleepers.bytes()
            + held
    }

    /// Messages of which it knows more than that they are settled or sleep.
    pub fn messages(&self) -> usize {
        self.store.entries.len()
    }

    /// So many more take no more memory.
    pub fn spare(&self) -> usize {
        self.store.entries.spare()
    }

    /// Gives back what a burst has left behind, if nothing is unsettled.
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
    /// Of itself, before anything is acked.
    pub const EMPTY_BYTES: usize = size_of::<StreamMachine>();

    /// Of what was acked before what was read earlier.
    pub fn bytes(&self) -> usize {
        self.acked.bytes_to(self.committed())
    }

    /// The same once all up to an offset is read.
    pub fn bytes_to(&self, end: Offset) -> usize {
        self.acked.bytes_to(end)
    }

    /// Up to there it takes no more memory.
    pub fn reaches_to(&self) -> Offset {
        self.acked.reaches_to()
    }

    /// The same as for a work group, if all that was read is committed.
    pub fn shrink(&mut self) {
        if self.committed() == self.position().max(self.delivered_to) && self.bytes() > KEPT_BYTES {
            self.acked.shrink();
        }
    }
}
