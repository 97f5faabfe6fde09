//! What a stream group reads: every message behind its position that is for it, in the order of the log.
//!
//! What is sent to another group, does not match the filter or has expired is passed over as done. At a message that is
//! delayed the group waits until its time, since its order is that of the log and its progress is one offset: passing it and
//! coming back would hold the commit there, and with it everything behind for the next reader. A consumer that takes a
//! partition over begins at the commit.

use std::ops::Range;
use std::sync::atomic::Ordering;

use thalweg_log::Offset;

use crate::claim::{ClaimBudget, ConsumerHandle, Delivery, ScanOutcome};
use crate::error::Result;
use crate::group::Group;
use crate::group_partition::{GroupPartitionInner, GroupState};
use crate::ids::LeaseTag;
use crate::machine::StreamMachine;
use crate::message::Message;
use crate::offset_ranges::OffsetRanges;
use crate::store::{Cursor, MessageStore, NextMessage};

/// One look of a consumer at a partition of a stream group.
pub(crate) struct StreamClaim<'a> {
    /// Of what is handed out; its lease is known when it is known who reads.
    pub tag: LeaseTag,
    /// Dead letters that were sent again or thrown away.
    pub dropped: Option<&'a OffsetRanges>,
    pub group: &'a Group,
    pub store: &'a MessageStore,
    pub partition: u32,
    /// It may read up to there.
    pub room: Offset,
    pub wanted: &'a mut ClaimBudget,
    pub out: &'a mut Vec<Delivery>,
}

impl StreamClaim<'_> {
    pub fn read_on(&mut self, machine: &mut StreamMachine, cursor: &mut Cursor) -> Result<ScanOutcome> {
        machine.read_by(self.wanted.reader);
        self.tag.lease = machine.lease();
        while self.out.len() < self.wanted.max && self.wanted.bytes > 0 {
            if self.wanted.left == 0 {
                return Ok(ScanOutcome::More);
            }
            let readable = machine.readable(self.wanted.now).filter(|from| *from < self.room);
            let Some(from) = readable else {
                break;
            };
            let message = match self.next(machine, cursor, from)? {
                Ok(message) => message,
                Err(look) => return Ok(look),
            };
            if !self.is_due(&message) {
                let until = message.not_before.unwrap_or_default();
                machine.wait_at(message.offset, until);
                break;
            }
            let went_on = match self.is_wanted(&message) {
                false => {
                    self.wanted.passed_one();
                    machine.pass_over(message.offset)
                }
                true if self.out.len() > self.wanted.given && message.bytes() as u64 > self.wanted.bytes => {
                    self.wanted.bytes = 0;
                    break;
                }
                true => machine.deliver(message.offset) && self.give(message),
            };
            if !went_on {
                break;
            }
        }
        Ok(ScanOutcome::Done)
    }

    /// The first message from an offset on, or what is to be done before there is one.
    fn next(
        &self,
        machine: &mut StreamMachine,
        cursor: &mut Cursor,
        mut from: Offset,
    ) -> Result<std::result::Result<Message, ScanOutcome>> {
        loop {
            // What was dropped for the group may be there still.
            let next = match machine.gap_at(from) {
                Some(to) => NextMessage::Gap { to, lost: true },
                None => self.store.at(cursor, from)?,
            };
            match next {
                NextMessage::Message(message, _) => return Ok(Ok(message)),
                NextMessage::Gap { to, lost } => {
                    let is_within = from >= self.store.first()?;
                    // Compaction has left nothing there, or the consumer has been told.
                    if is_within && (!lost || machine.knows_lost(to)) {
                        from = to;
                        continue;
                    }
                    // Told before the messages behind it, so after those before it.
                    if !self.out.is_empty() {
                        return Ok(Err(ScanOutcome::Done));
                    }
                    match is_within {
                        true => machine.lose(to),
                        false => drop(machine.retain(to)),
                    }
                    return Ok(Err(ScanOutcome::Gap(from, to)));
                }
                NextMessage::End => return Ok(Err(ScanOutcome::Done)),
                NextMessage::Load => return Ok(Err(ScanOutcome::Load(from))),
            }
        }
    }

    /// What nobody gets here needs no patience either.
    fn is_due(&self, message: &Message) -> bool {
        message.not_before.is_none_or(|at| at <= self.wanted.now) || !self.is_mine(message)
    }

    fn is_mine(&self, message: &Message) -> bool {
        let dropped = self.dropped.is_some_and(|dropped| dropped.contains(message.offset));
        !dropped && message.is_for(self.group.name(), self.group.settings.filter.as_deref())
    }

    fn is_wanted(&self, message: &Message) -> bool {
        if !self.is_mine(message) {
            return false;
        }
        let expired = message.expires_at().is_some_and(|at| at <= self.wanted.now);
        if expired {
            self.group.counters.expired.fetch_add(1, Ordering::Relaxed);
        }
        !expired
    }

    fn give(&mut self, message: Message) -> bool {
        self.wanted.take(&message);
        self.out.push(Delivery {
            partition: self.partition,
            tag: self.tag,
            delivery: 1,
            deadline: 0,
            message,
        });
        true
    }
}

impl Group {
    /// Of a stream: from what is committed in a partition to what is read next. Nothing of a work group.
    pub fn in_flight(&self, partition: u32) -> Range<Offset> {
        match self.part(partition).map(|part| part.inner.lock()).as_deref() {
            Some(GroupPartitionInner {
                state: GroupState::Stream(machine),
                ..
            }) => machine.committed()..machine.position(),
            _ => 0..0,
        }
    }
}

impl ConsumerHandle {
    /// The consumer has all messages of a partition below an offset, whatever it has acked of them: the stream group reads on
    /// there, if the partition is the consumer's. What it has committed stays as it is.
    pub fn read_from(&self, partition: u32, offset: Offset) -> Result<()> {
        self.queue.partition(partition)?;
        let (queue, group) = (&self.queue, &self.group);
        let (Some(store), Some(part)) = (queue.store(partition), group.part(partition)) else {
            return Ok(());
        };
        if !group.members.lock().may_claim(self.seat.index, partition) {
            return Ok(());
        }
        let next = store.next()?;
        let mut inner = part.inner.lock();
        if let GroupState::Stream(machine) = &mut inner.state {
            machine.read_by(self.seat.reader);
            machine.read_from(offset.min(next), self.seat.request);
        }
        inner.cursor = Cursor::default();
        Ok(())
    }

    /// The consumer stops listening: what it was given of these partitions and did not ack is read again, from the commit
    /// on; unless it listens anew already, and has said from where.
    pub fn read_again(&self, partitions: impl Iterator<Item = u32>) {
        for part in partitions.filter_map(|partition| self.group.part(partition)) {
            let mut inner = part.inner.lock();
            if let GroupState::Stream(machine) = &mut inner.state {
                machine.read_again(self.seat.request);
            }
            inner.cursor = Cursor::default();
        }
        self.group.wake();
    }
}
