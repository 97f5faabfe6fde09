//! The books of one subscription: which items get which change, and what became of each value that the server library
//! was given for them. The library tells neither when it drains its queues nor when one overflows, but it drains all
//! queues of a subscription at once and only under the session's lock; so under that lock one item known to hold values
//! (the witness) shows whether a drain happened, and the depth of every queue follows.
//!
//! While a client is late, the library would pile up messages behind its back and drop them uncounted. Changes are then
//! held back here, within the same queue sizes, and released in growing portions as the client collects. The invariant,
//! per group: queued = published + pending + lost by overflow + discarded, where pending includes what is held back.

use std::collections::HashSet;
use std::ops::Range;

use opcua::types::{DataValue, DateTime, MonitoringMode};

use super::filter::Filter;
use super::item::{GroupAccounts, Item};
use crate::space::{GROUPS, Group, PlcAddressSpace};

/// Values per item that are released at once to a client that keeps up again.
const PORTION_MAX: usize = 1_024;
const ALL: [Group; GROUPS] = [Group::Slow, Group::Fast, Group::Types, Group::Fixed];

/// What the books need of a subscription: the library's own one, or a model of it in tests.
pub(crate) trait SubscriptionQueues {
    /// Whether the item's queue holds values; `None` if the item does not exist.
    fn holds(&self, item: u32) -> Option<bool>;
    /// Whether a full queue of the item loses its oldest value rather than its newest.
    fn discards_oldest(&self, item: u32) -> bool;
    /// Whether the client had no publish request waiting when the last one was due.
    fn is_late(&self) -> bool;
    fn push(&mut self, item: u32, value: DataValue, now: &DateTime);
}

/// A monitored item as it was created.
#[derive(Clone, Debug)]
pub(crate) struct NewItem {
    pub(crate) subscription: u32,
    pub(crate) id: u32,
    pub(crate) group: Group,
    pub(crate) index: u32,
    /// Count of changes from which the initial value was computed.
    pub(crate) changes: u64,
    pub(crate) queue: u32,
    pub(crate) sampling_interval_ms: f64,
    pub(crate) mode: MonitoringMode,
    pub(crate) filter: Option<Filter>,
    /// Clients may write the node, which puts values into the queue that these books do not see.
    pub(crate) writable: bool,
}

/// What changes about an existing item.
pub(crate) struct Revision {
    pub(crate) queue: u32,
    pub(crate) sampling_interval_ms: f64,
    pub(crate) filter: Option<Filter>,
    pub(crate) discards_oldest: bool,
}

/// Running totals of one group over all subscriptions, dead ones included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) queued: u64,
    pub(crate) published: u64,
    pub(crate) lost_overflow: u64,
    pub(crate) discarded: u64,
}

/// The books of one subscription.
#[derive(Default)]
pub(crate) struct Ledger {
    items: [Vec<Item>; GROUPS],
    /// Created, but not yet seen in the library's subscription.
    waiting: Vec<NewItem>,
    epoch: u32,
    witness: Option<u32>,
    /// Values in the library's queues, and values held back here.
    pending: [u64; GROUPS],
    held: [u64; GROUPS],
    /// Values per item that the next release may give.
    portion: usize,
}

/// One change on its way to the items of a group.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) space: &'a PlcAddressSpace,
    pub(crate) group: Group,
    pub(crate) number: u64,
    pub(crate) now: DateTime,
    /// Source timestamp of this change, computed once for all items.
    time: DateTime,
}

impl<'a> Change<'a> {
    /// `None` for the group that never changes.
    pub(crate) fn new(space: &'a PlcAddressSpace, group: Group, number: u64, now: DateTime) -> Option<Change<'a>> {
        let time = space.clock(group)?.time(space.start(), number);
        Some(Change {
            space,
            group,
            number,
            now,
            time,
        })
    }

    /// The present change of a group.
    fn present(space: &'a PlcAddressSpace, group: Group, now: DateTime) -> Option<Change<'a>> {
        let number = space.clock(group)?.changes();
        Change::new(space, group, number, now)
    }

    /// Source timestamp of this change or an earlier one.
    pub(super) fn time_of(&self, number: u64) -> DateTime {
        if number == self.number {
            return self.time;
        }
        let clock = self.space.clock(self.group);
        clock.map_or(self.time, |clock| clock.time(self.space.start(), number))
    }
}

impl Ledger {
    pub(crate) fn add(&mut self, item: NewItem) {
        self.waiting.push(item);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Give up on items that the library did not create.
    pub(crate) fn forget_waiting(&mut self) {
        self.waiting.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.items.iter().all(Vec::is_empty)
    }

    pub(crate) fn len(&self, group: Group) -> usize {
        self.items[group as usize].len()
    }

    pub(crate) fn pending(&self, group: Group) -> u64 {
        self.pending[group as usize] + self.held[group as usize]
    }

    /// Whether changes are held back.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.iter().any(|held| *held > 0)
    }

    pub(crate) fn uncounted(&self, group: Group) -> usize {
        self.items[group as usize]
            .iter()
            .filter(|item| !item.is_booked())
            .count()
    }

    /// The items of a group, and the figures they change.
    fn split<'a>(
        &'a mut self,
        group: Group,
        totals: &'a mut [Totals; GROUPS],
    ) -> (&'a mut Vec<Item>, GroupAccounts<'a>) {
        let place = group as usize;
        let books = GroupAccounts {
            epoch: self.epoch,
            totals: &mut totals[place],
            pending: &mut self.pending[place],
            held: &mut self.held[place],
            witness: &mut self.witness,
        };
        (&mut self.items[place], books)
    }

    /// Book as published what the library has drained since the last look.
    pub(crate) fn settle(&mut self, queues: &impl SubscriptionQueues, totals: &mut [Totals; GROUPS]) {
        if self.pending.iter().all(|pending| *pending == 0) {
            return;
        }
        let seen = match self.witness.and_then(|witness| queues.holds(witness)) {
            Some(holds) => Some(holds),
            None => self.find_witness(queues),
        };
        if seen == Some(false) {
            for (totals, pending) in totals.iter_mut().zip(&mut self.pending) {
                totals.published += std::mem::take(pending);
            }
            self.epoch = self.epoch.wrapping_add(1);
            self.witness = None;
        }
    }

    /// The witness was deleted: any other item that should hold values can tell as well.
    fn find_witness(&mut self, queues: &impl SubscriptionQueues) -> Option<bool> {
        let epoch = self.epoch;
        let mut candidates = self.items.iter().flatten().filter(|item| item.is_filled(epoch));
        let (id, holds) = candidates.find_map(|item| Some((item.id, queues.holds(item.id)?)))?;
        self.witness = Some(id);
        Some(holds)
    }

    /// Take in the waiting items that the library has created by now, and bring them up to date.
    pub(crate) fn admit(
        &mut self,
        space: &PlcAddressSpace,
        queues: &mut impl SubscriptionQueues,
        now: DateTime,
        totals: &mut [Totals; GROUPS],
    ) {
        self.settle(queues, totals);
        for new in std::mem::take(&mut self.waiting) {
            let Some(still_queued) = queues.holds(new.id) else {
                self.waiting.push(new);
                continue;
            };
            let mut item = Item::new(space, &new, queues.discards_oldest(new.id), self.epoch);
            let (items, mut books) = self.split(new.group, totals);
            if item.is_booked() {
                item.book_initial(still_queued, &mut books);
                *books.witness = if still_queued { Some(item.id) } else { *books.witness };
            }
            if let Some(change) = Change::present(space, new.group, now) {
                item.take(change, queues.is_late(), queues, &mut books);
            }
            items.push(item);
        }
    }

    /// Give a change (and any earlier one that was missed) to the group's items at these positions. The caller holds the
    /// session's lock.
    pub(crate) fn push(
        &mut self,
        change: Change<'_>,
        positions: Range<usize>,
        queues: &mut impl SubscriptionQueues,
        totals: &mut [Totals; GROUPS],
    ) {
        self.settle(queues, totals);
        let late = queues.is_late();
        let (items, mut books) = self.split(change.group, totals);
        for item in items.get_mut(positions).into_iter().flatten() {
            item.take(change, late, queues, &mut books);
        }
    }

    /// Release held changes if the client has collected all that was released before.
    pub(crate) fn release(
        &mut self,
        space: &PlcAddressSpace,
        queues: &mut impl SubscriptionQueues,
        now: DateTime,
        totals: &mut [Totals; GROUPS],
    ) {
        self.settle(queues, totals);
        if queues.is_late() {
            self.portion = 1;
            return;
        }
        if !self.is_holding() || self.pending.iter().any(|pending| *pending > 0) {
            return;
        }
        let portion = self.portion.max(1);
        for group in ALL {
            let Some(change) = Change::present(space, group, now) else {
                continue;
            };
            let (items, mut books) = self.split(group, totals);
            for item in items {
                item.release(change, portion, queues, &mut books);
            }
        }
        self.portion = (portion * 2).min(PORTION_MAX);
    }

    /// The library has deleted these items, with what their queues held.
    pub(crate) fn remove(
        &mut self,
        ids: &HashSet<u32>,
        queues: &impl SubscriptionQueues,
        totals: &mut [Totals; GROUPS],
    ) {
        self.settle(queues, totals);
        self.waiting.retain(|new| !ids.contains(&new.id));
        for group in ALL {
            let (items, mut books) = self.split(group, totals);
            items.retain_mut(|item| {
                let gone = ids.contains(&item.id);
                if gone {
                    item.abandon(&mut books);
                }
                !gone
            });
        }
        self.dismiss_witness(ids);
    }

    fn dismiss_witness(&mut self, ids: &HashSet<u32>) {
        if self.witness.is_some_and(|witness| ids.contains(&witness)) {
            self.witness = None;
        }
    }

    /// The whole subscription is gone.
    pub(crate) fn close(self, totals: &mut [Totals; GROUPS]) {
        for (totals, lost) in totals.iter_mut().zip(self.pending.iter().zip(self.held)) {
            totals.discarded += lost.0 + lost.1;
        }
    }

    /// An item that stops reporting keeps its queue, but nobody drains it any more: it leaves the books.
    pub(crate) fn set_mode(
        &mut self,
        ids: &HashSet<u32>,
        mode: MonitoringMode,
        queues: &impl SubscriptionQueues,
        totals: &mut [Totals; GROUPS],
    ) {
        self.settle(queues, totals);
        for new in self.waiting.iter_mut().filter(|new| ids.contains(&new.id)) {
            new.mode = mode;
        }
        for group in ALL {
            let (items, mut books) = self.split(group, totals);
            for item in items.iter_mut().filter(|item| ids.contains(&item.id)) {
                item.set_mode(mode, &mut books);
            }
        }
        self.dismiss_witness(ids);
    }

    /// Apply the parameters that ModifyMonitoredItems set.
    pub(crate) fn revise(
        &mut self,
        space: &PlcAddressSpace,
        queues: &impl SubscriptionQueues,
        totals: &mut [Totals; GROUPS],
        mut revision: impl FnMut(u32) -> Option<Revision>,
    ) {
        self.settle(queues, totals);
        for group in ALL {
            let (items, mut books) = self.split(group, totals);
            for item in items {
                if let Some(new) = revision(item.id) {
                    item.revise(space, group, &new, &mut books);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
