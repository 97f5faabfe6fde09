//! A stream group in one partition: one committed offset, and the acks ahead of it.
//!
//! Inputs are deliveries, acks, commits and seeks. Outputs are the offset to read from and a journal with the committed
//! offset. A receipt of a stream names a position, so an ack counts even if another consumer reads there by now, and
//! also after a restart, but not after a seek. Nack and reject are only for the current reader. Invariant: everything
//! below the committed offset was acked, rejected, passed over or committed, or does not exist. Acks ahead of it are
//! not stored: after a restart those messages are read again.

use thalweg_kit::varint::put;
use thalweg_log::{Micros, Offset};

use super::codec::StateReader;
use super::window::{OffsetWindow, WindowSlot};
use super::{DamagedState, FinalState, WINDOW_MAX};

/// Disjoint from the versions of work groups, so that the bytes identify the kind of group.
const VERSION: u8 = 0x52;
/// Without the epoch.
const FORMAT_1: u8 = 1;

/// A settle call for a message that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    #[error("the message was not delivered: read up to it before settling it")]
    NotDelivered,
    #[error("the message is below the committed offset: seek back to read it again")]
    Committed,
}

/// Offsets that retention or damage removed before they were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetGap {
    pub from: Offset,
    /// The first offset that exists.
    pub to: Offset,
}

fn ahead_max(max_pending: u32) -> u64 {
    u64::from(max_pending).clamp(1, WINDOW_MAX)
}

pub struct StreamMachine {
    /// Its floor is the committed offset.
    pub(super) acked: OffsetWindow,
    position: Offset,
    /// The end of what was delivered. After reading went back, messages below it may be acked before they are read
    /// again.
    pub(super) delivered_to: Offset,
    /// This offset is not read before that time, because of a nack with a delay or because the message is delayed.
    pause: Option<(Offset, Micros)>,
    /// The pause exists because the message is delayed, not because of a nack.
    pause_is_delay: bool,
    ahead_max: u64,
    /// The group has no messages before this offset.
    first: Offset,
    /// The end of the last gap that was reported.
    lost_to: Offset,
    rejected: u64,
    changed: bool,
    /// The current reader.
    reader: u64,
    /// The last request that set the position.
    resumed_by: u64,
    /// The epoch of this process, or of the last seek in it.
    epoch: u32,
    /// Receipts of earlier epochs are from before a seek.
    since: u32,
}

impl StreamMachine {
    /// Reads from `start` on, at most `max_pending` offsets ahead of the commit.
    pub fn new(start: Offset, max_pending: u32) -> Self {
        let ahead_max = ahead_max(max_pending);
        StreamMachine {
            acked: OffsetWindow::new(start),
            position: start,
            delivered_to: start,
            pause: None,
            pause_is_delay: false,
            ahead_max,
            first: 0,
            lost_to: 0,
            rejected: 0,
            changed: false,
            reader: 0,
            resumed_by: 0,
            epoch: 0,
            since: 0,
        }
    }

    /// Starts an epoch that was never used before.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// The tag of new deliveries: the epoch and the reader.
    pub fn lease(&self) -> u64 {
        u64::from(self.epoch) << 32 | (self.reader & u64::from(u32::MAX))
    }

    /// Whether an ack with this tag is from before a seek.
    pub fn is_stale(&self, lease: u64) -> bool {
        lease >> 32 < u64::from(self.since)
    }

    /// Whether the tag is not the current one. Checked before a settle that moves the stream back or skips a message.
    pub fn is_of_another(&self, lease: u64) -> bool {
        lease != self.lease()
    }

    /// Where reading starts after a restart.
    pub fn committed(&self) -> Offset {
        self.acked.floor()
    }

    /// The next offset to deliver, now or later.
    pub fn position(&self) -> Offset {
        self.position
    }

    /// Nothing from this offset on was ever delivered since the last seek.
    pub fn shown_to(&self) -> Offset {
        self.committed().max(self.position).max(self.delivered_to)
    }

    /// How many offsets below `next` exist and are not committed.
    pub fn lag(&self, next: Offset) -> u64 {
        next.saturating_sub(self.needed())
    }

    /// The first offset that the group needs.
    pub fn needed(&self) -> Offset {
        self.committed().max(self.first)
    }

    /// Messages before `first` are gone for the group, read or not. Reading reports the gap when it gets there.
    pub fn begins_at(&mut self, first: Offset) {
        self.first = self.first.max(first);
    }

    /// Sets how far reading may be ahead of the commit.
    pub fn set_max_pending(&mut self, max_pending: u32) {
        self.ahead_max = ahead_max(max_pending);
    }

    /// Whether an ack of it would have no effect.
    pub fn is_acked(&self, offset: Offset) -> bool {
        offset < self.committed() || self.acked.get(offset) != WindowSlot::Empty
    }

    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    pub fn next_due(&self) -> Option<Micros> {
        self.pause.map(|(_, at)| at)
    }

    /// Ends a pause whose time has come.
    pub fn advance(&mut self, now: Micros) {
        self.pause = self.pause.filter(|(_, at)| *at > now);
    }

    /// The offset to read now; `None` during a pause, or while too much is uncommitted. Skips messages that were acked
    /// before reading went back.
    pub fn readable(&mut self, now: Micros) -> Option<Offset> {
        while self.position < self.delivered_to && matches!(self.acked.get(self.position), WindowSlot::Settled(_)) {
            self.position += 1;
        }
        self.advance(now);
        let paused = self.pause.is_some_and(|(at, _)| self.position == at);
        let full = self.position - self.committed() >= self.ahead_max;
        (!paused && !full).then_some(self.position)
    }

    /// The next message, at `offset`, is delayed until then. The group waits, to preserve its order.
    pub fn wait_at(&mut self, offset: Offset, until: Micros) {
        self.skip_to(offset);
        self.pause = Some((offset, until));
        self.pause_is_delay = true;
    }

    /// The wall clock was set: a message that is delayed until a wall-clock time is checked again.
    pub fn delay_anew(&mut self) {
        self.pause = self.pause.filter(|_| !self.pause_is_delay);
    }

    /// Passes the next message, at `offset`, because it is not for this group or has expired. False as in
    /// [`StreamMachine::deliver`].
    pub fn pass_over(&mut self, offset: Offset) -> bool {
        let passed = self.deliver(offset);
        if passed {
            self.acked.settle(offset, FinalState::Skipped);
            self.raise();
        }
        passed
    }

    /// Sets the current reader. A new reader begins at the commit. Reader numbers are never reused.
    pub fn read_by(&mut self, reader: u64) {
        if std::mem::replace(&mut self.reader, reader) != reader {
            self.position = self.committed();
        }
    }

    /// A request of the current reader has ended; messages that it did not ack are read again, unless a later request
    /// has set the position. Acks ahead of the commit stay, and delivered messages may still be acked.
    pub fn read_again(&mut self, request: u64) {
        if self.resumed_by <= request {
            self.position = self.committed();
        }
    }

    /// The reader already has everything below `to`. The commit stays: that a message arrived does not mean that it was
    /// processed.
    pub fn read_from(&mut self, to: Offset, request: u64) {
        self.resumed_by = request;
        let committed = self.committed();
        self.position = to.clamp(committed, committed.saturating_add(self.ahead_max));
        self.delivered_to = self.delivered_to.max(self.position);
    }

    /// Delivers the message at `offset`; offsets between the position and it do not exist. False if it must not be
    /// delivered, because it was delivered before or is too far ahead.
    pub fn deliver(&mut self, offset: Offset) -> bool {
        if offset < self.position {
            return false;
        }
        self.skip_to(offset);
        if self.position < offset || offset - self.committed() >= self.ahead_max {
            return false;
        }
        self.position = offset + 1;
        self.delivered_to = self.delivered_to.max(self.position);
        true
    }

    /// Raises the commit to the highest contiguous acked offset + 1. Repeats succeed.
    pub fn ack(&mut self, offset: Offset) -> Result<(), StreamError> {
        if offset < self.committed() {
            return Ok(());
        }
        if offset >= self.delivered_to {
            return Err(StreamError::NotDelivered);
        }
        self.acked.settle(offset, FinalState::Acked);
        self.raise();
        Ok(())
    }

    /// Skips the message and counts it.
    pub fn reject(&mut self, offset: Offset) -> Result<(), StreamError> {
        self.delivered(offset)?;
        if self.acked.get(offset) == WindowSlot::Empty {
            self.rejected += 1;
            self.changed = true;
        }
        self.ack(offset)
    }

    /// Reads again from this offset on, after `delay`. Forgets acks from there on.
    pub fn nack(&mut self, offset: Offset, delay: Micros, now: Micros) -> Result<(), StreamError> {
        self.delivered(offset)?;
        for later in offset..self.delivered_to.min(self.acked.end()) {
            self.acked.clear(later);
        }
        self.position = self.position.min(offset);
        self.delivered_to = offset;
        self.pause = (delay > 0).then(|| (offset, now.saturating_add(delay)));
        self.pause_is_delay = false;
        Ok(())
    }

    /// Sets the commit forwards or backwards. Reading continues where it was, or at the commit if that is ahead of it.
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
        self.delivered_to = self.delivered_to.max(self.position);
        self.changed = true;
    }

    /// Sets commit and position, in a new epoch.
    pub fn seek(&mut self, to: Offset) {
        self.acked.reset(to);
        self.position = to;
        self.delivered_to = to;
        // Messages that were dropped for this group alone are read after all.
        self.first = self.first.min(to);
        self.since = self.epoch;
        self.pause = None;
        self.changed = true;
    }

    /// Where reading must continue because earlier messages are gone for the group.
    pub fn gap_at(&self, from: Offset) -> Option<Offset> {
        (from < self.first).then_some(self.first)
    }

    /// Sets the oldest offset that exists. Returns the gap, once, if reading would have started below it.
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

    /// Damage removed everything from the position up to `to`. Earlier messages that were read and not acked stay
    /// unacked.
    pub fn lose(&mut self, to: Offset) {
        self.skip_to(to);
        self.lost_to = to;
    }

    /// Whether the gap that ends at `to` was already reported.
    pub fn knows_lost(&self, to: Offset) -> bool {
        self.lost_to == to
    }

    /// Appends one record if anything changed since the last call. Only the last record counts.
    pub fn take_journal(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.changed) {
            self.checkpoint(out);
        }
    }

    /// Record and checkpoint have the same format: version, committed offset, rejected messages, epoch of the last
    /// seek.
    pub fn checkpoint(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put(out, self.committed());
        put(out, self.rejected);
        put(out, self.since.into());
    }

    /// Restores from a checkpoint or records; the last one counts.
    pub fn restore(records: &[u8], max_pending: u32) -> Result<Self, DamagedState> {
        let mut from = StateReader::new(records);
        loop {
            let version = from.byte()?;
            if ![FORMAT_1, VERSION].contains(&version) {
                return Err(from.damaged("a record of another version"));
            }
            let mut machine = StreamMachine::new(from.u64()?, max_pending);
            machine.rejected = from.u64()?;
            if version == VERSION {
                machine.since = from.u32()?;
            }
            if from.is_empty() {
                return Ok(machine);
            }
        }
    }

    fn delivered(&self, offset: Offset) -> Result<(), StreamError> {
        match offset {
            _ if offset < self.committed() => Err(StreamError::Committed),
            _ if offset >= self.delivered_to => Err(StreamError::NotDelivered),
            _ => Ok(()),
        }
    }

    /// Offsets up to `to` do not exist; skips them as far as the window goes.
    fn skip_to(&mut self, to: Offset) {
        let has_none_ahead = self.delivered_to == self.committed();
        if has_none_ahead && to > self.position {
            self.acked.reset(to);
            self.position = to;
            self.changed = true;
        }
        while self.position < to && self.position - self.committed() < self.ahead_max {
            self.acked.settle(self.position, FinalState::Skipped);
            self.position += 1;
        }
        self.delivered_to = self.delivered_to.max(self.position);
        self.raise();
    }

    fn raise(&mut self) {
        while matches!(self.acked.get(self.committed()), WindowSlot::Settled(_)) {
            self.acked.pop();
            self.changed = true;
        }
        // Messages acked since reading went back are not read again.
        self.position = self.position.max(self.committed());
    }
}
