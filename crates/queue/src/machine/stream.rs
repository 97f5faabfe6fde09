//! A stream group over one partition: one committed offset, and what was acked ahead of it.
//!
//! In come deliveries, acks, commits and seeks; out come the offset to read from and a journal that holds the committed
//! offset. A receipt of a stream names a place, so an ack of it counts whoever reads there by now, and also after a restart, but
//! not after a seek; nack and reject are for who reads. Invariant: everything below the committed offset was acked, rejected, passed over, committed or does not exist.
//! Acks ahead of it are not stored: after a restart those messages are read again.

use thalweg_log::{Micros, Offset};

use super::codec::{StateReader, put};
use super::window::{OffsetWindow, WindowSlot};
use super::{DamagedState, FinalState, WINDOW_MAX};

/// Apart from the versions of work groups, so that a state tells whose it is.
const VERSION: u8 = 0x52;
/// Without the epoch.
const FORMAT_1: u8 = 1;

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

fn ahead_max(max_pending: u32) -> u64 {
    u64::from(max_pending).clamp(1, WINDOW_MAX)
}

pub struct StreamMachine {
    /// Its floor is the committed offset.
    pub(super) acked: OffsetWindow,
    position: Offset,
    /// The end of what was delivered: once reading has gone back, what lies below it may be acked before it is read again.
    pub(super) delivered_to: Offset,
    /// This offset is not read before that time: after a nack with a delay, or since the message is delayed.
    pause: Option<(Offset, Micros)>,
    /// It is there because that message may not be handed out earlier, not because one was given back.
    pause_is_delay: bool,
    ahead_max: u64,
    /// For the group nothing is there before it.
    first: Offset,
    /// The end of the last gap that was told of.
    lost_to: Offset,
    rejected: u64,
    changed: bool,
    /// Who reads.
    reader: u64,
    /// The last request that said from where.
    resumed_by: u64,
    /// Of this process, or of what followed the last seek in it.
    epoch: u32,
    /// Receipts from before this epoch are from before a seek.
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

    /// Messages are handed out in this epoch from now on, which never was one before.
    pub fn set_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
    }

    /// Names what is handed out now: the epoch and who reads.
    pub fn lease(&self) -> u64 {
        u64::from(self.epoch) << 32 | (self.reader & u64::from(u32::MAX))
    }

    /// Whether an ack with this name of a delivery comes too late.
    pub fn is_stale(&self, lease: u64) -> bool {
        lease >> 32 < u64::from(self.since)
    }

    /// The same of what has the stream go back, or a message skipped.
    pub fn is_of_another(&self, lease: u64) -> bool {
        lease != self.lease()
    }

    /// Where reading starts after a restart.
    pub fn committed(&self) -> Offset {
        self.acked.floor()
    }

    /// The next offset to deliver, whether that may be now or not.
    pub fn position(&self) -> Offset {
        self.position
    }

    /// Nothing from there on was ever handed out, since a seek.
    pub fn shown_to(&self) -> Offset {
        self.committed().max(self.position).max(self.delivered_to)
    }

    /// How many offsets below `next` are there and not committed.
    pub fn lag(&self, next: Offset) -> u64 {
        next.saturating_sub(self.needed())
    }

    /// The first offset that the group has use for.
    pub fn needed(&self) -> Offset {
        self.committed().max(self.first)
    }

    /// What stood before `first` is gone for the group, read or not. Reading tells of it when it comes there.
    pub fn begins_at(&mut self, first: Offset) {
        self.first = self.first.max(first);
    }

    /// Reading goes at most so far ahead of the commit from now on.
    pub fn set_max_pending(&mut self, max_pending: u32) {
        self.ahead_max = ahead_max(max_pending);
    }

    /// Whether an ack of it would change nothing.
    pub fn is_acked(&self, offset: Offset) -> bool {
        offset < self.committed() || self.acked.get(offset) != WindowSlot::Empty
    }

    pub fn rejected(&self) -> u64 {
        self.rejected
    }

    pub fn next_due(&self) -> Option<Micros> {
        self.pause.map(|(_, at)| at)
    }

    /// Ends the pause whose time has come.
    pub fn advance(&mut self, now: Micros) {
        self.pause = self.pause.filter(|(_, at)| *at > now);
    }

    /// The offset to read from now; `None` during a pause, or while too much is not committed. What was acked before
    /// reading went back is left out.
    pub fn readable(&mut self, now: Micros) -> Option<Offset> {
        while self.position < self.delivered_to && matches!(self.acked.get(self.position), WindowSlot::Settled(_)) {
            self.position += 1;
        }
        self.advance(now);
        let paused = self.pause.is_some_and(|(at, _)| self.position == at);
        let full = self.position - self.committed() >= self.ahead_max;
        (!paused && !full).then_some(self.position)
    }

    /// The message at `offset`, which would be next, is delayed until then. The group waits, so that its order holds.
    pub fn wait_at(&mut self, offset: Offset, until: Micros) {
        self.skip_to(offset);
        self.pause = Some((offset, until));
        self.pause_is_delay = true;
    }

    /// The wall clock was set: a message that waits for a time that it shows is looked at again.
    pub fn delay_anew(&mut self) {
        self.pause = self.pause.filter(|_| !self.pause_is_delay);
    }

    /// The message at `offset`, which would be next, is not for this group or has expired: done. False as of
    /// [`StreamMachine::deliver`].
    pub fn pass_over(&mut self, offset: Offset) -> bool {
        let passed = self.deliver(offset);
        if passed {
            self.acked.settle(offset, FinalState::Skipped);
            self.raise();
        }
        passed
    }

    /// This consumer reads from now on. After another one it begins at the commit. Numbers of consumers are never used again.
    pub fn read_by(&mut self, reader: u64) {
        if std::mem::replace(&mut self.reader, reader) != reader {
            self.position = self.committed();
        }
    }

    /// A request of the consumer that reads has ended, and what it did not ack is read again; unless a later request has
    /// said from where it goes on. What was acked ahead of the commit stays so, and what was delivered may still be acked.
    pub fn read_again(&mut self, request: u64) {
        if self.resumed_by <= request {
            self.position = self.committed();
        }
    }

    /// Whoever reads has all below `to` already. The commit stays: that a message arrived does not say that it is done.
    pub fn read_from(&mut self, to: Offset, request: u64) {
        self.resumed_by = request;
        let committed = self.committed();
        self.position = to.clamp(committed, committed.saturating_add(self.ahead_max));
        self.delivered_to = self.delivered_to.max(self.position);
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

    /// Reads again from this offset on, after `delay`. Acks from there on are forgotten.
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
        self.delivered_to = self.delivered_to.max(self.position);
        self.changed = true;
    }

    /// Sets commit and position, in an epoch of its own.
    pub fn seek(&mut self, to: Offset) {
        self.acked.reset(to);
        self.position = to;
        self.delivered_to = to;
        // What was dropped for the group alone is read after all.
        self.first = self.first.min(to);
        self.since = self.epoch;
        self.pause = None;
        self.changed = true;
    }

    /// Where reading has to go on because what stood before is gone for the group.
    pub fn gap_at(&self, from: Offset) -> Option<Offset> {
        (from < self.first).then_some(self.first)
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

    /// Damage took what lies from the position up to `to`; what was read before it and is not acked stays so.
    pub fn lose(&mut self, to: Offset) {
        self.skip_to(to);
        self.lost_to = to;
    }

    /// Whether the gap that ends at `to` was told of, and is only met again.
    pub fn knows_lost(&self, to: Offset) -> bool {
        self.lost_to == to
    }

    /// Appends one record if anything changed since the last call. Only the last record counts.
    pub fn take_journal(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.changed) {
            self.checkpoint(out);
        }
    }

    /// Record and checkpoint are the same: version, committed offset, rejected messages, epoch of the last seek.
    pub fn checkpoint(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put(out, self.committed());
        put(out, self.rejected);
        put(out, self.since.into());
    }

    /// From checkpoint or records; the last counts.
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

    /// Offsets up to `to` do not exist, as far as the window goes.
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
        // What was acked since reading went back is not read again.
        self.position = self.position.max(self.committed());
    }
}
