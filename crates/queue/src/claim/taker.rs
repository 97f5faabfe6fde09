//! What a claim takes from one partition of a work group: first what was passed before and is ready, then what the cursor meets.

use thalweg_log::Offset;
use thalweg_log::clock::Clock;

use super::{Delivery, Look, Wanted};
use crate::error::Result;
use crate::group::Group;
use crate::ids::LeaseTag;
use crate::machine::{Full, Lease, Machine, Passed};
use crate::message::Message;
use crate::ranges::Ranges;
use crate::store::{Cursor, Next, Store};

/// One look of a consumer at a partition of a work group.
pub(super) struct Taker<'a> {
    pub tag: LeaseTag,
    /// Dead letters that were sent again or thrown away.
    pub dropped: Option<&'a Ranges>,
    pub group: &'a Group,
    pub store: &'a Store,
    pub clock: &'a dyn Clock,
    pub partition: u32,
    pub consumer: u32,
    /// It may know of so many messages.
    pub room: u64,
    pub wanted: &'a mut Wanted,
    pub out: &'a mut Vec<Delivery>,
}

impl Taker<'_> {
    pub fn take(&mut self, machine: &mut Machine, cursor: &mut Cursor, older: &mut Cursor) -> Result<Look> {
        while self.out.len() < self.wanted.max && self.wanted.bytes > 0 {
            if self.wanted.left == 0 {
                return Ok(Look::More);
            }
            // What was passed before goes first.
            if machine.has_ready(self.consumer) {
                match self.again(machine, cursor, older)? {
                    Again::Took => continue,
                    Again::Load(from) => return Ok(Look::Load(from)),
                    Again::Full => break,
                    // It has met so many that have to leave.
                    Again::Nothing if self.wanted.left == 0 => continue,
                    Again::Nothing => {}
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
                Next::Message((), hint) => hint,
                Next::End => break,
                Next::Load => return Ok(Look::Load(machine.cursor())),
                Next::Gap { to, lost } => {
                    let before = machine.cursor();
                    if machine.pass_gap(to, lost, self.wanted.now) == before {
                        break;
                    }
                    self.wanted.passed_one();
                    continue;
                }
            };
            match self.show(machine, hint) {
                Shown::Given => {}
                Shown::Passed => {
                    self.out.pop();
                    self.wanted.passed_one();
                }
                Shown::Full => {
                    self.out.pop();
                    break;
                }
            }
        }
        Ok(Look::Done)
    }

    /// Shows the last message of those given, which is at the cursor, to the machine.
    #[inline]
    fn show(&mut self, machine: &mut Machine, hint: u32) -> Shown {
        let first = self.out.len() == self.wanted.given + 1;
        let Some(given) = self.out.last_mut() else {
            return Shown::Full;
        };
        let bytes = given.message.bytes() as u64;
        if !first && bytes > self.wanted.bytes {
            self.wanted.bytes = 0;
            return Shown::Full;
        }
        let group = self.group;
        let mut passing = given
            .message
            .passing(group.name(), group.settings.filter.as_deref(), hint);
        if let Some(dropped) = self.dropped {
            passing.skip |= dropped.contains(passing.offset);
        }
        match machine.pass(&passing, self.consumer, self.wanted.visibility, self.wanted.now) {
            Passed::Leased(lease) => {
                given.delivery = lease.delivery;
                given.deadline = lease.deadline;
                self.wanted.bytes = self.wanted.bytes.saturating_sub(bytes);
                Shown::Given
            }
            Passed::Taken => Shown::Passed,
            Passed::Full(Full::Window | Full::Held | Full::Lane) => Shown::Full,
        }
    }

    /// A message that was passed before: it has to be found again, and only then it is leased.
    fn again(&mut self, machine: &mut Machine, cursor: &mut Cursor, older: &mut Cursor) -> Result<Again> {
        let (consumer, now) = (self.consumer, self.wanted.now);
        let Some((offset, hint)) = machine.first_ready(consumer, now, &mut self.wanted.left) else {
            return Ok(Again::Nothing);
        };
        if self.dropped.is_some_and(|dropped| dropped.contains(offset)) {
            machine.gone(offset, false, self.wanted.now);
            self.wanted.passed_one();
            return Ok(Again::Took);
        }
        let again = |frames: &Cursor| frames.again(offset, hint, self.clock);
        let found = match again(cursor).or_else(|| again(older)) {
            Some(message) => Next::Message(message, hint),
            None => self.store.at(older, offset)?,
        };
        match found {
            Next::Message(message, _) if message.offset == offset => {
                if !self.fits(&message) {
                    return Ok(Again::Full);
                }
                if let Some(lease) = machine.next_ready(self.consumer, self.wanted.visibility, self.wanted.now) {
                    self.give(lease, message);
                }
                Ok(Again::Took)
            }
            Next::Load => Ok(Again::Load(offset)),
            Next::Message(..) | Next::Gap { .. } | Next::End => {
                machine.gone(offset, true, self.wanted.now);
                self.wanted.passed_one();
                Ok(Again::Took)
            }
        }
    }

    /// Whether the claim may have the message too; if not, it is full.
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

/// What became of a message at the cursor.
enum Shown {
    Given,
    /// It is not for this claim.
    Passed,
    /// The claim has all it gets here.
    Full,
}

enum Again {
    Took,
    /// The next one is too large for what is left of the claim.
    Full,
    Nothing,
    Load(Offset),
}
