//! The accounting of one monitored item: the changes it samples, the depth of the library's queue for it, and the
//! changes that are deferred while its client is late.

use std::collections::VecDeque;

use opcua::types::{DataValue, MonitoringMode, StatusCode, StatusCodeInfoType};

use super::filter::FilterState;
use super::ledger::{Change, NewItem, Revision, SubscriptionQueues, Totals};
use crate::space::{Group, PlcAddressSpace};

#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: u32,
    index: u32,
    /// The last change that this item sampled or skipped.
    last: u64,
    /// The last change that it sampled.
    sampled: u64,
    /// The last change that was pushed to the library.
    pushed: u64,
    stride: u64,
    queue: u32,
    /// Values in the library's queue, valid while `epoch` equals the subscription's.
    depth: u32,
    epoch: u32,
    mode: MonitoringMode,
    discards_oldest: bool,
    writable: bool,
    /// False if the library samples at the publishing interval, because its queueing is then unpredictable.
    counted: bool,
    gate: Option<Box<FilterState>>,
    held: Option<Box<DeferredChanges>>,
}

/// Changes that wait here instead of in the library's queue, oldest first.
#[derive(Debug, Default)]
struct DeferredChanges {
    changes: VecDeque<u64>,
    overflowed: bool,
}

/// The counters that one value changes.
pub(super) struct GroupAccounts<'a> {
    pub(super) epoch: u32,
    pub(super) totals: &'a mut Totals,
    /// Values in the library's queues.
    pub(super) pending: &'a mut u64,
    /// Deferred values.
    pub(super) held: &'a mut u64,
    pub(super) witness: &'a mut Option<u32>,
}

impl Item {
    pub(super) fn new(space: &PlcAddressSpace, new: &NewItem, discards_oldest: bool, epoch: u32) -> Item {
        let mut item = Item {
            id: new.id,
            index: new.index,
            last: new.changes,
            sampled: new.changes,
            pushed: new.changes,
            stride: 1,
            queue: 1,
            depth: 0,
            epoch,
            mode: new.mode,
            discards_oldest,
            writable: new.writable,
            counted: true,
            gate: None,
            held: None,
        };
        let parameters = Revision {
            queue: new.queue,
            sampling_interval_ms: new.sampling_interval_ms,
            filter: new.filter,
            discards_oldest,
        };
        item.set_parameters(space, new.group, &parameters);
        item
    }

    fn set_parameters(&mut self, space: &PlcAddressSpace, group: Group, new: &Revision) {
        self.queue = new.queue.max(1);
        self.discards_oldest = new.discards_oldest;
        self.counted = new.sampling_interval_ms >= 0.0 && !self.writable;
        self.stride = space
            .clock(group)
            .map_or(1, |clock| clock.stride(new.sampling_interval_ms));
        let last = space.changed_number(group, self.index, self.sampled);
        self.gate = FilterState::new(new.filter, space.value_type(group), self.stride, last).map(Box::new);
    }

    /// Whether this item's values are counted.
    pub(super) fn is_booked(&self) -> bool {
        self.counted && self.mode == MonitoringMode::Reporting
    }

    /// Whether the library's queue contains values that were pushed in this epoch.
    pub(super) fn is_filled(&self, epoch: u32) -> bool {
        self.depth(epoch) > 0
    }

    fn depth(&self, epoch: u32) -> u32 {
        if self.epoch == epoch { self.depth } else { 0 }
    }

    fn held(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.changes.len() as u64)
    }

    /// Counts the initial value, which the library queued when it created the item.
    pub(super) fn book_initial(&mut self, still_queued: bool, books: &mut GroupAccounts<'_>) {
        if still_queued {
            self.book(books);
        } else {
            books.totals.queued += 1;
            books.totals.published += 1;
        }
    }

    /// Processes all changes up to this one. Those that pass go to the library's queue, or are deferred if `hold` is
    /// set or earlier ones are deferred.
    pub(super) fn take(
        &mut self,
        change: Change<'_>,
        hold: bool,
        queues: &mut impl SubscriptionQueues,
        books: &mut GroupAccounts<'_>,
    ) {
        while self.last < change.number {
            self.last += 1;
            let skip = self.last - self.sampled < self.stride;
            if skip || self.mode == MonitoringMode::Disabled {
                continue;
            }
            self.sampled = self.last;
            let number = || change.space.changed_number(change.group, self.index, self.last);
            if let Some(gate) = self.gate.as_mut()
                && !gate.passes(number())
            {
                continue;
            }
            if self.is_booked() && (hold || self.held.is_some()) {
                self.hold(books);
            } else {
                self.push(change, self.last, None, queues, books);
                if self.is_booked() {
                    self.book(books);
                }
            }
        }
    }

    fn push(
        &mut self,
        change: Change<'_>,
        number: u64,
        status: Option<StatusCode>,
        queues: &mut impl SubscriptionQueues,
        books: &mut GroupAccounts<'_>,
    ) {
        let value = DataValue {
            value: Some(change.space.changed_value(change.group, self.index, number)),
            status,
            source_timestamp: Some(change.time_of(number)),
            source_picoseconds: None,
            server_timestamp: Some(change.now),
            server_picoseconds: None,
        };
        self.pushed = number;
        if self.is_booked() {
            *books.witness = Some(self.id);
        }
        queues.push(self.id, value, &change.now);
    }

    /// Counts one value that the library has queued.
    fn book(&mut self, books: &mut GroupAccounts<'_>) {
        books.totals.queued += 1;
        self.fill(books);
    }

    fn fill(&mut self, books: &mut GroupAccounts<'_>) {
        let depth = self.depth(books.epoch);
        self.epoch = books.epoch;
        if depth >= self.queue {
            // The queue stays full: the new value displaced another.
            books.totals.lost_overflow += 1;
            self.depth = depth;
        } else {
            self.depth = depth + 1;
            *books.pending += 1;
        }
    }

    /// Defers the current change. Together with the library's queue, at most the queue size is kept.
    fn hold(&mut self, books: &mut GroupAccounts<'_>) {
        let room = self.queue.saturating_sub(self.depth(books.epoch)).max(1) as usize;
        let held = self.held.get_or_insert_default();
        books.totals.queued += 1;
        if held.changes.len() >= room {
            books.totals.lost_overflow += 1;
            held.overflowed = true;
            if self.discards_oldest {
                held.changes.pop_front();
            } else {
                held.changes.pop_back();
            }
        } else {
            *books.held += 1;
        }
        held.changes.push_back(self.last);
    }

    /// Pushes up to `portion` of the deferred changes to the library.
    pub(super) fn release(
        &mut self,
        change: Change<'_>,
        portion: usize,
        queues: &mut impl SubscriptionQueues,
        books: &mut GroupAccounts<'_>,
    ) {
        let Some(mut held) = self.held.take() else { return };
        for number in held.changes.drain(..portion.min(held.changes.len())) {
            *books.held -= 1;
            let overflow = std::mem::take(&mut held.overflowed);
            if overflow && self.repeats(change, number) {
                // After the loss this value is no change any more, and the library would not queue it.
                books.totals.discarded += 1;
                continue;
            }
            let status = overflow.then(overflow_status);
            self.push(change, number, status, queues, books);
            self.fill(books);
        }
        if !held.changes.is_empty() {
            self.held = Some(held);
        }
    }

    /// Whether this change's value would not pass after the last value pushed to the library.
    fn repeats(&self, change: Change<'_>, number: u64) -> bool {
        let value = |number| change.space.changed_number(change.group, self.index, number);
        match &self.gate {
            Some(gate) => !gate.after(value(self.pushed)).passes(value(number)),
            None => value(number) == value(self.pushed),
        }
    }

    /// The item stops being reported or is deleted, so its queued and deferred values will not be published.
    pub(super) fn abandon(&mut self, books: &mut GroupAccounts<'_>) {
        let queued = u64::from(self.depth(books.epoch));
        let held = self.held();
        books.totals.discarded += queued + held;
        *books.pending -= queued;
        *books.held -= held;
        self.depth = 0;
        self.held = None;
    }

    pub(super) fn set_mode(&mut self, mode: MonitoringMode, books: &mut GroupAccounts<'_>) {
        if mode != MonitoringMode::Reporting {
            self.abandon(books);
        }
        self.mode = mode;
    }

    /// Applies new parameters. The library cuts a longer queue to the new size, and so does this with deferred changes.
    pub(super) fn revise(
        &mut self,
        space: &PlcAddressSpace,
        group: Group,
        new: &Revision,
        books: &mut GroupAccounts<'_>,
    ) {
        self.set_parameters(space, group, new);
        let depth = self.depth(books.epoch);
        let cut = depth.saturating_sub(self.queue);
        if cut > 0 {
            self.depth = self.queue;
            books.totals.discarded += u64::from(cut);
            *books.pending -= u64::from(cut);
        }
        if let Some(held) = &mut self.held {
            let excess = held.changes.len().saturating_sub(self.queue as usize);
            held.changes.drain(..excess);
            held.overflowed |= excess > 0;
            books.totals.discarded += excess as u64;
            *books.held -= excess as u64;
        }
        if !self.is_booked() {
            self.abandon(books);
        }
    }
}

/// Good, with the bits that mark a loss of values before this one.
fn overflow_status() -> StatusCode {
    StatusCode::Good
        .set_info_type(StatusCodeInfoType::DataValue)
        .set_overflow(true)
}
