//! Scans one partition of a work group: first the ready messages that were passed before, then those at the cursor.

use thalweg_log::Offset;
use thalweg_log::clock::Clock;

use super::{ClaimBudget, Delivery, ScanOutcome};
use crate::error::Result;
use crate::group::Group;
use crate::ids::LeaseTag;
use crate::machine::{CursorStop, Lease, PassOutcome, WorkMachine};
use crate::message::Message;
use crate::offset_ranges::OffsetRanges;
use crate::store::{Cursor, MessageStore, NextMessage};

/// One scan of a partition of a work group for a consumer.
pub(super) struct WorkClaim<'a> {
    pub tag: LeaseTag,
    /// Dead letters that were resent or discarded.
    pub dropped: Option<&'a OffsetRanges>,
    pub group: &'a Group,
    pub store: &'a MessageStore,
    pub clock: &'a dyn Clock,
    pub partition: u32,
    pub consumer: u32,
    /// How many messages the state machine may track.
    pub room: u64,
    pub wanted: &'a mut ClaimBudget,
    pub out: &'a mut Vec<Delivery>,
}

impl WorkClaim<'_> {
    pub fn take(&mut self, machine: &mut WorkMachine, cursor: &mut Cursor, older: &mut Cursor) -> Result<ScanOutcome> {
        while self.out.len() < self.wanted.max && self.wanted.bytes > 0 {
            if self.wanted.left == 0 {
                return Ok(ScanOutcome::More);
            }
            // Messages that were passed before come first.
            if machine.has_ready(self.consumer) {
                match self.again(machine, cursor, older)? {
                    ReadyOutcome::Took => continue,
                    ReadyOutcome::Load(from) => return Ok(ScanOutcome::Load(from)),
                    ReadyOutcome::Full => break,
                    // The scan has met its limit of messages that must leave.
                    ReadyOutcome::Nothing if self.wanted.left == 0 => continue,
                    ReadyOutcome::Nothing => {}
                }
            }
            if machine.messages() as u64 >= self.room {
                break;
            }
            let put = |message| {
                self.out.push(Delivery {
                    partition: self.partition,
                    tag: self.tag,
                    delivery: 0,
                    deadline: 0,
                    message,
                });
            };
            let hint = match self.store.at_with(cursor, machine.cursor(), put)? {
                NextMessage::Message((), hint) => hint,
                NextMessage::End => break,
                NextMessage::Load => return Ok(ScanOutcome::Load(machine.cursor())),
                NextMessage::Gap { to, lost } => {
                    let before = machine.cursor();
                    if machine.pass_gap(to, lost, self.wanted.now) == before {
                        break;
                    }
                    self.wanted.passed_one();
                    continue;
                }
            };
            match self.show(machine, hint) {
                CursorOutcome::Given => {}
                CursorOutcome::Passed => {
                    self.out.pop();
                    self.wanted.passed_one();
                }
                CursorOutcome::Full => {
                    self.out.pop();
                    break;
                }
            }
        }
        Ok(ScanOutcome::Done)
    }

    /// Shows the last message of `out`, which is at the cursor, to the machine.
    #[inline]
    fn show(&mut self, machine: &mut WorkMachine, hint: u32) -> CursorOutcome {
        let first = self.out.len() == self.wanted.given + 1;
        let Some(given) = self.out.last_mut() else {
            return CursorOutcome::Full;
        };
        let bytes = given.message.bytes() as u64;
        if !first && bytes > self.wanted.bytes {
            self.wanted.bytes = 0;
            return CursorOutcome::Full;
        }
        let group = self.group;
        let mut passing = given
            .message
            .passing(group.name(), group.settings.filter.as_deref(), hint);
        if let Some(dropped) = self.dropped {
            passing.skip |= dropped.contains(passing.offset);
        }
        match machine.pass(&passing, self.consumer, self.wanted.visibility, self.wanted.now) {
            PassOutcome::Leased(lease) => {
                given.delivery = lease.delivery;
                given.deadline = lease.deadline;
                self.wanted.bytes = self.wanted.bytes.saturating_sub(bytes);
                CursorOutcome::Given
            }
            PassOutcome::Taken => CursorOutcome::Passed,
            PassOutcome::Full(CursorStop::Window | CursorStop::Held | CursorStop::Lane) => CursorOutcome::Full,
        }
    }

    /// Leases a message that was passed before; it must be found again first.
    fn again(&mut self, machine: &mut WorkMachine, cursor: &mut Cursor, older: &mut Cursor) -> Result<ReadyOutcome> {
        let (consumer, now) = (self.consumer, self.wanted.now);
        let Some((offset, hint)) = machine.first_ready(consumer, now, &mut self.wanted.left) else {
            return Ok(ReadyOutcome::Nothing);
        };
        if self.dropped.is_some_and(|dropped| dropped.contains(offset)) {
            machine.gone(offset, false, self.wanted.now);
            self.wanted.passed_one();
            return Ok(ReadyOutcome::Took);
        }
        let again = |frames: &Cursor| frames.again(offset, hint, self.clock);
        let found = match again(cursor).or_else(|| again(older)) {
            Some(message) => NextMessage::Message(message, hint),
            None => self.store.at(older, offset)?,
        };
        match found {
            NextMessage::Message(message, _) if message.offset == offset => {
                if !self.fits(&message) {
                    return Ok(ReadyOutcome::Full);
                }
                if let Some(lease) = machine.next_ready(self.consumer, self.wanted.visibility, self.wanted.now) {
                    self.give(lease, message);
                }
                Ok(ReadyOutcome::Took)
            }
            NextMessage::Load => Ok(ReadyOutcome::Load(offset)),
            NextMessage::Message(..) | NextMessage::Gap { .. } | NextMessage::End => {
                machine.gone(offset, true, self.wanted.now);
                self.wanted.passed_one();
                Ok(ReadyOutcome::Took)
            }
        }
    }

    /// Whether the message still fits into the claim. If not, the claim is full.
    fn fits(&mut self, message: &Message) -> bool {
        let fits = self.out.len() == self.wanted.given || message.bytes() as u64 <= self.wanted.bytes;
        if !fits {
            self.wanted.bytes = 0;
        }
        fits
    }

    fn give(&mut self, lease: Lease, message: Message) {
        self.wanted.take(&message);
        self.out.push(Delivery {
            partition: self.partition,
            tag: self.tag,
            delivery: lease.delivery,
            deadline: lease.deadline,
            message,
        });
    }
}

/// What happened to a message at the cursor.
enum CursorOutcome {
    Given,
    /// It is not for this claim.
    Passed,
    /// The claim can take no more here.
    Full,
}

enum ReadyOutcome {
    Took,
    /// The next message is too large for the rest of the claim.
    Full,
    Nothing,
    Load(Offset),
}
