//! Reads of a stream group: all messages after its position that are for it, in log order.
//!
//! Messages that are sent to another group, do not match the filter or have expired are passed over as done. At a
//! delayed message the group waits until it is due, because its order is that of the log and its progress is one
//! offset: skipping it would hold the commit there, and the next reader would read everything after it again. A
//! consumer that takes over a partition begins at the commit.

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

/// One scan of a partition of a stream group for a consumer.
pub(crate) struct StreamClaim<'a> {
    /// Tag of the deliveries; its lease is set once the reader is known.
    pub tag: LeaseTag,
    /// Dead letters that were resent or discarded.
    pub dropped: Option<&'a OffsetRanges>,
    pub group: &'a Group,
    pub store: &'a MessageStore,
    pub partition: u32,
    /// Reading may go up to here.
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

    /// The first message from an offset on, or what must be done first.
    fn next(
        &self,
        machine: &mut StreamMachine,
        cursor: &mut Cursor,
        mut from: Offset,
    ) -> Result<std::result::Result<Message, ScanOutcome>> {
        loop {
            // Messages that were dropped for the group may still exist.
            let next = match machine.gap_at(from) {
                Some(to) => NextMessage::Gap { to, lost: true },
                None => self.store.at(cursor, from)?,
            };
            match next {
                NextMessage::Message(message, _) => return Ok(Ok(message)),
                NextMessage::Gap { to, lost } => {
                    let is_within = from >= self.store.first()?;
                    // Compaction removed everything there, or the consumer was already told.
                    if is_within && (!lost || machine.knows_lost(to)) {
                        from = to;
                        continue;
                    }
                    // Reported before the messages after the gap, and so after those before it.
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

    /// A delay matters only for messages that are for this group.
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
    /// For a stream group: from the committed offset to the next one to read. Empty for a work group.
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
    /// The consumer has all messages of a partition below an offset, acked or not: the stream group continues there if
    /// the partition is assigned to this consumer. The committed offset stays.
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

    /// The consumer stops listening. Messages of these partitions that it did not ack are read again from the commit
    /// on, unless a newer request has already set the position.
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
