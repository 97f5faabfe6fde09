//! The accounting of one subscription: which items get which change, and the outcome of each value that was pushed to
//! the server library for them. The library does not report when it drains its queues or when one overflows, but it
//! drains all queues of a subscription at once and only under the session's lock. So under that lock one item known to
//! have queued values (the witness) shows whether a drain happened, and the depth of every queue follows.
//!
//! While a client is late, the library would accumulate messages and drop them uncounted. Changes are then deferred
//! here, within the same queue sizes, and released in growing portions as the client catches up. The invariant, per
//! group: queued = published + pending + lost by overflow + discarded, where pending includes deferred values.

use std::collections::HashSet;
use std::ops::Range;

use opcua::types::{DataValue, DateTime, MonitoringMode};

use super::filter::Filter;
use super::item::{GroupAccounts, Item};
use crate::space::{GROUPS, Group, PlcAddressSpace};

/// Maximum values per item that are released at once to a client that has caught up.
const PORTION_MAX: usize = 1_024;
const ALL: [Group; GROUPS] = [Group::Slow, Group::Fast, Group::Types, Group::Fixed];

/// The interface to a subscription: the library's own type, or a model of it in tests.
pub(crate) trait SubscriptionQueues {
    /// Whether the item's queue contains values; `None` if the item does not exist.
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
    /// Clients may write the node, which adds values to the queue that this accounting does not see.
    pub(crate) writable: bool,
}

/// The new parameters of an existing item.
pub(crate) struct Revision {
    pub(crate) queue: u32,
    pub(crate) sampling_interval_ms: f64,
    pub(crate) filter: Option<Filter>,
    pub(crate) discards_oldest: bool,
}

/// Running totals of one group over all subscriptions, including dead ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) queued: u64,
    pub(crate) published: u64,
    pub(crate) lost_overflow: u64,
    pub(crate) discarded: u64,
}

/// The accounting of one subscription.
#[derive(Default)]
pub(crate) struct Ledger {
    items: [Vec<Item>; GROUPS],
    /// Created, but not yet seen in the library's subscription.
    waiting: Vec<NewItem>,
    epoch: u32,
    witness: Option<u32>,
    /// Values in the library's queues, and deferred values.
    pending: [u64; GROUPS],
    held: [u64; GROUPS],
    /// Maximum values per item in the next release.
    portion: usize,
}

/// One change to be pushed to the items of a group.
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

    /// The current change of a group.
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

    /// Drops items that the library did not create.
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

    /// Whether changes are deferred.
    pub(crate) fn is_holding(&self) -> bool {
        self.held.iter().any(|held| *held > 0)
    }

    pub(crate) fn uncounted(&self, group: Group) -> usize {
        self.items[group as usize]
            .iter()
            .filter(|item| !item.is_booked())
            .count()
    }

    /// Returns the items of a group, and the counters they change.
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

    /// Counts values that the library has drained since the last call as published.
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

    /// If the witness was deleted, any other item that should have queued values can replace it.
    fn find_witness(&mut self, queues: &impl SubscriptionQueues) -> Option<bool> {
        let epoch = self.epoch;
        let mut candidates = self.items.iter().flatten().filter(|item| item.is_filled(epoch));
        let (id, holds) = candidates.find_map(|item| Some((item.id, queues.holds(item.id)?)))?;
        self.witness = Some(id);
        Some(holds)
    }

    /// Admits the waiting items that the library has created by now, and brings them up to date.
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

    /// Pushes a change (and any earlier one that was missed) to the group's items at these positions. The caller holds
    /// the session's lock.
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

    /// Releases deferred changes if the client has collected all that was released before.
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

    /// Removes items that the library has deleted, with the values in their queues.
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

    /// Discards all values of a deleted subscription.
    pub(crate) fn close(self, totals: &mut [Totals; GROUPS]) {
        for (totals, lost) in totals.iter_mut().zip(self.pending.iter().zip(self.held)) {
            totals.discarded += lost.0 + lost.1;
        }
    }

    /// Sets the monitoring mode. An item that stops reporting keeps its queue, but nothing drains it any more, so it is
    /// no longer counted.
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

    /// Applies the parameters that ModifyMonitoredItems set.
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
