//! A stream group over one partition: one committed offset, and what was acked ahead of it.
//!
//! In come deliveries, acks, commits and seeks; out come the offset to read from and a journal that holds the committed
//! offset. Invariant: everything below the committed offset was acked, rejected, committed or does not exist. Acks ahead
//! of it are not stored: after a restart those messages are read again.

use thalweg_log::{Micros, Offset};

use super::codec::{Reader, put};
use super::window::{Slot, Window};
use super::{Damaged, Terminal, WINDOW_MAX};

const VERSION: u8 = 1;

/// A settle call for a message that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the message was not delivered: read up to it before settling it")]
    NotDelivered,
    #[error("the message lies below the committed offset: seek back to read it again")]
    Committed,
}

/// Offsets that retention or damage took before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetGap {
    pub from: Offset,
    /// The first that exists.
    pub to: Offset,
}

pub struct StreamMachine {
    /// Its floor is the committed offset.
    acked: Window,
    position: Offset,
    /// Nothing is read before, after a nack with a delay.
    resume_at: Option<Micros>,
    ahead_max: u64,
    rejected: u64,
    changed: bool,
}

impl StreamMachine {
    /// Reads from `start` on, at most `max_pending` offsets ahead of the commit.
    pub fn new(start: Offset, max_pending: u32) -> Self {
        let ahead_max = u64::from(max_pending).clamp(1, WINDOW_MAX);
        StreamMachine {
            acked: Window::new(start),
            position: start,
            resume_at: None,
            ahead_max,
            rejected: 0,
            changed: false,
        }
    }

    /// Where reading starts after a restart.
    pub fn committed(&self) -> Offset {
        self.acked.floor()
    }

    /// The next offset to deliver, whether that may be now or not.
    pub fn position(&self) -> Offset {
        self.position
    }

    /// How many offsets below `next` are not committed.
    pub fn lag(&self, next: Offset) -> u64 {
        next.saturating_sub(self.committed())
    }

    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    pub fn next_due(&self) -> Option<Micros> {
        self.resume_at
    }

    /// The offset to read from now; `None` while a nack's delay runs or too much is not committed.
    pub fn readable(&mut self, now: Micros) -> Option<Offset> {
        if self.resume_at.is_some_and(|at| at > now) || self.position - self.committed() >= self.ahead_max {
            return None;
        }
        self.resume_at = None;
        Some(self.position)
    }

    /// The message at `offset` goes out; those between it and the position do not exist. False, and it must not go out,
    /// if it was delivered before or lies too far ahead.
    pub fn deliver(&mut self, offset: Offset) -> bool {
        if offset < self.position {
            return false;
        }
        self.skip_to(offset);
        if self.position < offset || offset - self.committed() >= self.ahead_max {
            return false;
        }
        self.position = offset + 1;
        true
    }

    /// Raises the commit to the highest contiguous acked offset + 1. Repeats succeed.
    pub fn ack(&mut self, offset: Offset) -> Result<(), StreamError> {
        if offset < self.committed() {
            return Ok(());
        }
        if offset >= self.position {
            return Err(StreamError::NotDelivered);
        }
        self.acked.settle(offset, Terminal::Acked);
        self.raise();
        Ok(())
    }

    /// Skips the message and counts it.
    pub fn reject(&mut self, offset: Offset) -> Result<(), StreamError> {
        self.delivered(offset)?;
        if self.acked.get(offset) == Slot::Empty {
            self.rejected += 1;
            self.changed = true;
        }
        self.ack(offset)
    }

    /// Reads again from this offset on, after `delay`. Acks from there on are forgotten.
    pub fn nack(&mut self, offset: Offset, delay: Micros, now: Micros) -> Result<(), StreamError> {
        self.delivered(offset)?;
        for later in offset..self.position.min(self.acked.end()) {
            self.acked.clear(later);
        }
        self.position = offset;
        self.resume_at = (delay > 0).then(|| now.saturating_add(delay));
        Ok(())
    }

    /// Sets the commit either way. Reading goes on where it was, or at the commit if that is ahead of it.
    pub fn commit(&mut self, to: Offset) {
        if to > self.committed() && to < self.acked.end() {
            while self.committed() < to {
                self.acked.pop();
            }
            self.raise();
        } else if to != self.committed() {
            self.acked.reset(to);
        }
        self.position = self.position.max(self.committed());
        self.changed = true;
    }

    /// Sets commit and position.
    pub fn seek(&mut self, to: Offset) {
        self.acked.reset(to);
        self.position = to;
        self.resume_at = None;
        self.changed = true;
    }

    /// Tells the oldest offset that exists. The gap, once, if reading would have started below it.
    pub fn retain(&mut self, first: Offset) -> Option<OffsetGap> {
        let gap = (self.position < first).then_some(OffsetGap {
            from: self.position,
            to: first,
        });
        if self.committed() < first {
            self.commit(first);
        }
        gap
    }

    /// Appends one record if anything changed since the last call. Only the last record counts.
    pub fn take_journal(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.changed) {
            self.checkpoint(out);
        }
    }

    /// Record and checkpoint are the same: version, committed offset, rejected messages.
    pub fn checkpoint(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put(out, self.committed());
        put(out, self.rejected);
    }

    /// From checkpoint or records; the last counts.
    pub fn restore(records: &[u8], max_pending: u32) -> Result<Self, Damaged> {
        let mut from = Reader::new(records);
        loop {
            if from.byte()? != VERSION {
                return Err(from.damaged("a record of another version"));
            }
            let mut machine = StreamMachine::new(from.u64()?, max_pending);
            machine.rejected = from.u64()?;
            if from.is_empty() {
                return Ok(machine);
            }
        }
    }

    fn delivered(&self, offset: Offset) -> Result<(), StreamError> {
        match offset {
            _ if offset < self.committed() => Err(StreamError::Committed),
            _ if offset >= self.position => Err(StreamError::NotDelivered),
            _ => Ok(()),
        }
    }

    /// Offsets up to `to` do not exist, as far as the window goes.
    fn skip_to(&mut self, to: Offset) {
        if self.position == self.committed() && to > self.position {
            self.acked.reset(to);
            self.position = to;
            self.changed = true;
        }
        while self.position < to && self.position - self.committed() < self.ahead_max {
            self.acked.settle(self.position, Terminal::Skipped);
            self.position += 1;
        }
    }

    fn raise(&mut self) {
        while matches!(self.acked.get(self.committed()), Slot::Settled(_)) {
            self.acked.pop();
            self.changed = true;
        }
    }
}
