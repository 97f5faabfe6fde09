//! The state of one group in one partition: which messages are leased, waiting and settled.
//!
//! Inputs are the messages that the cursor passes (`pass`), claims, settles and the time. Outputs are leases, messages
//! that must leave (`PendingRemoval`), and a journal from which a restart rebuilds the same state. This is pure code
//! without I/O, clock or locks; the caller has the partition's lock.
//!
//! Every operation is O(1), amortised, in the depth of the queue and the number n of unsettled messages, with these
//! exceptions:
//!
//! | Operation | Cost |
//! |---|---|
//! | a message returns to its lane | the distance to the nearer end of the lane |
//! | a message fails or is given back | the leases of its lane, at most `lane_window` |
//! | several messages are due within one tick | they are sorted |
//! | a long delay begins, ends or is settled | O(log n) |
//! | [`WorkMachine::drop_oldest`] and what it must know from then on | O(log n), the first time O(n) |
//! | [`WorkMachine::pass_gap`] with something unsettled | the offsets of the gap |
//! | [`WorkMachine::set_policy`] | the lanes |
//! | `purge`, `seek`, `release_all`, `leases_by_consumer`, `delayed`, `delay_anew`, a checkpoint | O(n) |
//! | `advance` after the clock went back by more than a second | O(n) |
//!
//! | Event | Delayed | Ready | Leased | Waiting | Terminal |
//! |---|---|---|---|---|---|
//! | not-before reached | Ready | – | – | – | – |
//! | claim | – | Leased, delivery +1; Dead if exhausted | – | – | – |
//! | ack, current receipt | not leased | Acked | Acked | Acked | ok if Acked, else gone |
//! | ack, older receipt | not leased | lost | lost | lost | gone |
//! | nack(delay) | not leased | lost | Waiting; Dead if exhausted | lost | gone |
//! | reject | not leased | lost | Dead | lost | gone |
//! | extend | not leased | lost | Leased, new deadline | lost | gone |
//! | lease deadline | – | – | Waiting; Dead if exhausted | – | – |
//! | consumer gone | – | – | Ready; delivery −1 if unsent | – | – |
//! | retry time reached | – | – | – | Ready | – |
//! | earlier lane message fails | – | – | Ready | – | – |
//! | TTL passed | cannot occur | Expired | stays; Expired on failure | Expired | – |
//! | move to the DLQ fails | – | Waiting 5 s | Waiting 5 s | – | – |
//! | overflow `drop-oldest` | Dropped | Dropped | – | Dropped | – |
//! | purge | Dropped | Dropped | Dropped | Dropped | – |
//! | seek back | – | – | Ready | Ready | Ready, delivery 0 |
//! | restart | Delayed | Ready | Leased if the holder can return, else Ready | Waiting | same |
//!
//! Dead and Expired are reached in two steps: the message is `Ending` until the caller has moved it to the dead-letter
//! queue or dropped it and calls `ended`. In between it cannot be claimed, it has left its lane, and settles answer as
//! for a terminal message. Messages that the cursor has not passed count as Ready.
//!
//! Where the table leaves a choice: a message that is both exhausted and expired when it fails is Dead, so that it
//! reaches the DLQ. When a consumer gives a message back, later leases of its lane end as on a failure, because they
//! would otherwise be processed before it. A delay of 0 makes a failed message ready at once.

mod chain;
mod checkpoint;
mod claim;
mod codec;
mod delayed;
mod delayed_set;
mod due;
mod entry;
mod epoch;
mod invariants;
mod journal;
mod lanes;
mod memory_usage;
mod overflow;
mod ready;
mod removal;
mod restore;
mod rewind;
mod settle;
mod settlement_cache;
mod stream;
mod timer_wheel;
mod types;
mod window;

#[cfg(test)]
mod tests;

use hashbrown::HashMap;
use thalweg_log::{Micros, Offset};

pub(crate) use delayed_set::DelayedMessageSet;
pub use restore::MachineRecovery;
pub use stream::{OffsetGap, StreamError, StreamMachine};
pub use types::*;

use chain::{Chain, NIL};
use entry::{EntryList, MessageState};
use epoch::PreviousEpoch;
use journal::Journal;
use lanes::{ActiveMessages, SpreadBuildHasher};
use overflow::DropCandidates;
use ready::ReadyList;
use settlement_cache::{Settlement, SettlementCache};
use timer_wheel::TimerWheel;
use window::{OffsetWindow, WindowSlot};

/// The lane of all messages with `LaneOrdering::Strict`.
const STRICT: u64 = 0;

/// One work group in one partition.
pub struct WorkMachine {
    policy: DeliveryPolicy,
    /// Its start is the floor: everything below is settled or held.
    window: OffsetWindow,
    cursor: Offset,
    /// Non-empty slots at or after the cursor. Occurs after a restart, until the cursor has passed them.
    ahead: u64,
    store: ActiveMessages,
    held: HashMap<Offset, u32, SpreadBuildHasher>,
    /// The lowest offset added to the held set since the last `take_lowest_held`.
    lowest_held: Offset,
    /// Long-delayed messages without an entry.
    delayed_set: DelayedMessageSet,
    ready: ReadyList,
    /// Messages that `take_ending` has not returned yet.
    ending: Chain,
    wheel: TimerWheel,
    /// The latest time seen.
    now: Micros,
    /// Messages that did not end with an ack of their first delivery.
    settlements: SettlementCache,
    /// The epoch of new leases; see `epoch.rs`.
    epoch: u32,
    /// The epoch of the last lease.
    leased_in: u32,
    previous: PreviousEpoch,
    oldest: DropCandidates,
    journal: Journal,
    totals: MessageCounts,
    /// Scratch buffer of `advance`.
    due_entries: Vec<u32>,
}

/// The status of a message.
enum MessageStatus {
    Active(u32),
    Asleep,
    /// With the number of its last delivery, if that is remembered.
    Settled(FinalState, Option<u32>),
    Unpassed,
}

impl WorkMachine {
    /// A group that has settled everything below `start`.
    pub fn new(policy: DeliveryPolicy, start: Offset) -> Self {
        WorkMachine {
            policy: bounded(policy),
            window: OffsetWindow::new(start),
            cursor: start,
            ahead: 0,
            store: ActiveMessages::default(),
            held: HashMap::default(),
            lowest_held: Offset::MAX,
            delayed_set: DelayedMessageSet::default(),
            ready: ReadyList::default(),
            ending: Chain::EMPTY,
            wheel: TimerWheel::new(0),
            now: 0,
            settlements: SettlementCache::default(),
            epoch: 0,
            leased_in: 0,
            previous: PreviousEpoch::default(),
            oldest: DropCandidates::default(),
            journal: Journal::default(),
            totals: MessageCounts::default(),
            due_entries: Vec::new(),
        }
    }

    /// Disables the journal (durability `memory`).
    pub fn without_journal(mut self) -> Self {
        self.journal.turn_off();
        self
    }

    pub fn policy(&self) -> &DeliveryPolicy {
        &self.policy
    }

    /// Applies a policy to later decisions; earlier ones stay. O(lanes).
    pub fn set_policy(&mut self, policy: DeliveryPolicy) {
        self.policy = bounded(policy);
        for lane in self.store.lanes.indices() {
            self.refresh(lane);
        }
    }

    /// Everything below is settled or held.
    pub fn floor(&self) -> Offset {
        self.window.floor()
    }

    /// The next offset for `pass`. Settled offsets are skipped.
    pub fn cursor(&self) -> Offset {
        self.cursor
    }

    /// The group has seen no message from this offset on. After a seek back this is beyond the cursor, because leased
    /// messages keep their slots.
    pub fn shown_to(&self) -> Offset {
        match self.ahead {
            0 => self.cursor,
            _ => self.window.end().max(self.cursor),
        }
    }

    pub fn counts(&self) -> MessageCounts {
        let entries = &self.store.entries;
        MessageCounts {
            delayed: entries.count(MessageState::Delayed) + self.delayed_set.len(),
            ready: entries.count(MessageState::Ready),
            leased: entries.count(MessageState::Leased),
            waiting: entries.count(MessageState::Waiting),
            ending: entries.count(MessageState::Ending),
            held: self.held.len() as u64,
            lanes: self.store.lanes.len() as u64,
            ..self.totals
        }
    }

    /// Unsettled messages below `next`, the end of the partition. The part after the cursor is counted as if no offset
    /// were missing.
    pub fn backlog(&self, next: Offset) -> u64 {
        let unpassed = next.saturating_sub(self.cursor).saturating_sub(self.ahead);
        self.store.entries.len() as u64 + self.delayed_set.len() + unpassed
    }

    pub fn is_settled(&self, offset: Offset) -> bool {
        matches!(self.find(offset), MessageStatus::Settled(..))
    }

    /// Unsettled offsets below the floor that have an entry, unordered.
    pub fn held(&self) -> impl Iterator<Item = Offset> + '_ {
        self.held.keys().copied()
    }

    /// The lowest offset added to the held set since the last call. Woken messages are added in any order.
    pub fn take_lowest_held(&mut self) -> Offset {
        std::mem::replace(&mut self.lowest_held, Offset::MAX)
    }

    fn insert_held(&mut self, offset: Offset, entry: u32) {
        self.held.insert(offset, entry);
        self.lowest_held = self.lowest_held.min(offset);
    }

    /// Consumers whose leases have ended since the caller last emptied this, once per lease.
    pub fn lease_ends(&mut self) -> &mut Vec<u32> {
        self.store.entries.lease_ends()
    }

    /// The number of leases per consumer. Scans all unsettled messages.
    pub fn leases_by_consumer(&self) -> std::collections::BTreeMap<u32, u32> {
        let mut leases = std::collections::BTreeMap::new();
        for (_, entry) in self
            .store
            .entries
            .iter()
            .filter(|(_, entry)| entry.state == MessageState::Leased)
        {
            *leases.entry(entry.consumer).or_default() += 1;
        }
        leases
    }

    /// A time not after the next work of `advance` or `to_rouse`.
    #[inline]
    pub fn next_due(&self) -> Option<Micros> {
        let rouse = self.next_rouse().map(|(at, _)| at);
        self.wheel.next_due().into_iter().chain(rouse).min()
    }

    /// Like `next_due`, for `advance` only.
    pub fn next_timer(&self) -> Option<Micros> {
        self.wheel.next_due()
    }

    /// Like `next_due`, for `to_rouse` only.
    pub fn next_rouse_at(&self) -> Option<Micros> {
        self.next_rouse().map(|(at, _)| at)
    }

    /// Whether `next_ready` may have a message for any consumer.
    pub fn has_any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether `next_ready` may have a message for this consumer.
    pub fn has_ready(&self, consumer: u32) -> bool {
        self.ready.has_any(consumer)
    }

    /// Appends the journal since the last call to `out`.
    pub fn take_journal(&mut self, out: &mut Vec<u8>) {
        self.journal.take(out, self.window.floor());
    }

    pub fn has_journal(&self) -> bool {
        !self.journal.is_empty()
    }

    #[inline]
    fn find(&self, offset: Offset) -> MessageStatus {
        if offset < self.floor() {
            if !self.held.is_empty()
                && let Some(entry) = self.held.get(&offset)
            {
                return MessageStatus::Active(*entry);
            }
            if self.delayed_set.contains(offset) {
                return MessageStatus::Asleep;
            }
            return match self.settlements.get(offset) {
                Some(end) => MessageStatus::Settled(end.kind, Some(end.deliveries)),
                None => MessageStatus::Settled(FinalState::Acked, None),
            };
        }
        match self.window.get(offset) {
            WindowSlot::Empty => MessageStatus::Unpassed,
            WindowSlot::Asleep => MessageStatus::Asleep,
            WindowSlot::Active(entry) => MessageStatus::Active(entry),
            WindowSlot::Settled(kind) => {
                MessageStatus::Settled(kind, self.settlements.get(offset).map(|end| end.deliveries))
            }
        }
    }

    /// Settles an active message.
    fn settle(&mut self, entry: u32, kind: FinalState, now: Micros) {
        let at = *self.store.entries.get(entry);
        self.detach(entry);
        self.store.entries.remove(entry);
        let end = Settlement {
            kind,
            deliveries: at.deliveries,
            epoch: at.epoch,
        };
        self.remember(at.offset, end);
        self.journal.settle(at.offset, 1, kind);
        *self.total(kind) += 1;
        if at.held {
            self.held.remove(&at.offset);
        } else {
            self.window.settle(at.offset, kind);
            if at.offset == self.floor() {
                self.trim(now);
            }
        }
    }

    /// Removes the entry from its lane, its list and the wheel.
    fn detach(&mut self, entry: u32) {
        let at = self.store.entries.get(entry);
        let (place, lane, leased) = (at.place, at.lane, at.state == MessageState::Leased);
        self.wheel.cancel(&mut self.store.entries, entry);
        match place {
            EntryList::Ready => self.ready.remove(&mut self.store, entry),
            EntryList::Ending => {
                self.ending.remove(&mut self.store, entry);
                self.store.entries.get_mut(entry).place = EntryList::None;
            }
            EntryList::Lane | EntryList::None => {}
        }
        if lane != NIL {
            self.store.leave(entry, leased);
            self.refresh(lane);
        }
    }

    /// Raises the floor over settled messages and over messages that may leave the window.
    fn trim(&mut self, now: Micros) {
        loop {
            match self.window.get(self.floor()) {
                WindowSlot::Empty => return,
                WindowSlot::Settled(_) | WindowSlot::Asleep => self.window.pop(),
                // It has a lane or a timer, but nothing that a restart must know.
                WindowSlot::Active(entry) if self.store.entries.get(entry).roused => self.hold(entry),
                WindowSlot::Active(entry) => {
                    let far = self.cursor.saturating_sub(self.floor()) > u64::from(self.policy.max_pending / 2);
                    let old = now.saturating_sub(self.store.entries.get(entry).passed_at) >= HOLD_AFTER;
                    if !(far || old) || self.held.len() >= self.policy.max_held as usize {
                        return;
                    }
                    self.hold(entry);
                }
            }
        }
    }

    /// Moves the entry at the floor out of the window.
    fn hold(&mut self, entry: u32) {
        let at = self.store.entries.get_mut(entry);
        at.held = true;
        let (offset, lane) = (at.offset, at.lane);
        self.insert_held(offset, entry);
        if !self.store.entries.get(entry).may_sleep_again() {
            let lane = (lane != NIL).then(|| self.store.lanes.get(lane).hash);
            self.journal
                .held(&codec::MessageSnapshot::of(self.store.entries.get(entry), lane));
        }
        self.window.pop();
    }

    fn total(&mut self, kind: FinalState) -> &mut u64 {
        match kind {
            FinalState::Acked => &mut self.totals.acked,
            FinalState::Dead => &mut self.totals.dead,
            FinalState::Expired => &mut self.totals.expired,
            FinalState::Dropped => &mut self.totals.dropped,
            FinalState::Skipped => &mut self.totals.skipped,
        }
    }

    fn lane_of(&self, lane: Option<u64>) -> Option<u64> {
        match self.policy.ordering {
            LaneOrdering::None => None,
            LaneOrdering::Partition => lane,
            LaneOrdering::Strict => Some(STRICT),
        }
    }
}

/// Limits the policy to what the machine supports.
fn bounded(policy: DeliveryPolicy) -> DeliveryPolicy {
    DeliveryPolicy {
        lane_window: policy.lane_window.max(1),
        max_pending: policy.max_pending.clamp(1, WINDOW_MAX as u32),
        ..policy
    }
}
