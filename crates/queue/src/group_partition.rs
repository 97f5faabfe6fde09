//! The state of a group in one partition: its state machine, its read position, and what of its state is on disk.
//!
//! Changes are journaled in lock order into the state partition that belongs to the partition of messages. A checkpoint
//! of all groups of the partition bounds what a start must read. A record of the state partition is the group's id as a
//! varint, the record type, and its bytes.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use smol_str::SmolStr;
use thalweg_kit::varint;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Log, Micros, Offset, PartitionId, Result as LogResult};

use crate::budget::{Allowance, Reservation};
use crate::latency::LatencySamples;
use crate::machine::{StreamMachine, WorkMachine};
use crate::members::MemberKind;
use crate::settings::GroupMode;
use crate::store::Cursor;

/// Types of records in a state partition.
pub(crate) const CHANGES: u8 = 1;
pub(crate) const CHECKPOINT: u8 = 2;
pub(crate) const CONSUMER: u8 = 3;
/// Dead letters that were resent or discarded. Recorded under group 0, which does not exist.
pub(crate) const DROPPED: u8 = 4;
/// Dead letters that arrived here from another queue. Also under group 0.
pub(crate) const SENT: u8 = 5;

/// No timer is set.
pub(crate) const NEVER: Micros = Micros::MAX;

pub(crate) enum GroupState {
    Work(Box<WorkMachine>),
    Stream(Box<StreamMachine>),
}

pub(crate) struct GroupPartition {
    pub inner: Mutex<GroupPartitionInner>,
    /// Held while messages are moved out. One caller at a time, so that a caller that finds none left knows that the
    /// last ones have arrived.
    pub moving: tokio::sync::Mutex<()>,
    /// When the machine or maintenance has something to do next.
    pub due: AtomicI64,
    /// When a claim may find something new: `due` without what waits for maintenance, which may take as long as a disk
    /// is full.
    ripe: AtomicI64,
    /// This group has settled all messages before this offset.
    pub needed: AtomicU64,
    /// Records since the last checkpoint, if another checkpoint is worth it.
    unsaved_records: AtomicU32,
    /// If the partition ends at or before this offset, nothing can be claimed before `ripe`.
    idle: AtomicU64,
    /// Deliveries and acks since the process started.
    pub delivered: LockedCounter,
    pub acked: LockedCounter,
    /// Reserves [`part_bytes`].
    _room: Reservation,
}

/// Memory that a group takes per partition before it tracks any message. It includes the timers, which are allocated
/// with the first message, so that a group that was created has room for them.
pub(crate) fn part_bytes(mode: GroupMode) -> u64 {
    let state = match mode {
        GroupMode::Work => WorkMachine::EMPTY_BYTES,
        GroupMode::Stream => StreamMachine::EMPTY_BYTES,
    };
    (size_of::<GroupPartition>() + state) as u64
}

/// Incremented under the group partition's lock and read without it, so an increment is a plain addition.
#[derive(Debug, Default)]
pub(crate) struct LockedCounter(AtomicU64);

impl LockedCounter {
    /// The borrow proves that the caller has the lock.
    pub fn add(&self, _locked: &mut GroupPartitionInner, count: u64) {
        self.0.store(self.get() + count, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub(crate) struct GroupPartitionInner {
    pub state: GroupState,
    pub cursor: Cursor,
    /// The frame of the last message that was read again from disk, while more such messages follow.
    pub older: Cursor,
    /// The machine's count of unsettled messages, up to a constant; see [`GroupPartitionInner::unsettled`].
    counted: i64,
    /// Consumers recorded in the state partition since its last checkpoint, by number.
    declared: Vec<Option<SmolStr>>,
    /// Records and bytes journaled since the last checkpoint, and the size of that checkpoint.
    pub unsaved: UnsavedState,
    scratch: Vec<u8>,
    /// Why consumers rejected the messages that must leave.
    pub details: HashMap<Offset, Box<str>>,
    /// The message at the cursor as of the last check, and when it expires.
    pub head: Option<(Offset, Micros)>,
    /// The oldest message outside of the window, and when it was determined.
    oldest_held: Option<(Offset, Micros)>,
    pub waits: LatencySamples,
    room: Allowance,
    /// When the cached frames were last used.
    pub frames_used: Micros,
}

/// State memory that each group always has per partition, whatever others use, so that no group waits for another for
/// ever.
const STATE_FLOOR: u64 = 64 << 10;
/// Approximate state memory per message.
const STATE_MESSAGE: u64 = 256;
/// State memory is reserved in pieces of this size.
pub(crate) const STATE_PIECE: u64 = 64 << 10;

/// State that a start must read record by record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnsavedState {
    pub records: u32,
    bytes: usize,
    /// Size of the last checkpoint, including one that could not be stored.
    whole: usize,
}

impl UnsavedState {
    /// For dead letter records, beside the state of the groups of the same partition.
    pub fn of_letters(records: u32, others: impl Iterator<Item = UnsavedState>) -> UnsavedState {
        UnsavedState {
            records,
            bytes: records as usize * LETTERS_BYTES,
            whole: others.map(|unsaved| unsaved.whole).max().unwrap_or(0),
        }
    }

    fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }

    /// Whether a checkpoint is worth it. A large one is not written for a few records, or checkpoints would fill the
    /// log.
    pub fn is_worth_it(&self) -> bool {
        self.records > 0 && (self.whole < WHOLE_SMALL || self.bytes > self.whole / WHOLE_SHARE)
    }
}

/// Approximate size of a dead letter record.
const LETTERS_BYTES: usize = 64;
const WHOLE_SMALL: usize = 1 << 20;
const WHOLE_SHARE: usize = 4;

/// How often the oldest held message is searched for.
const LOOK_AGAIN: Micros = 100_000;

/// An offset above all real ones.
const FAR: Offset = 1 << 62;

impl GroupPartition {
    /// The state of messages is charged to the same budget as `room`.
    pub fn new(state: GroupState, room: Reservation) -> GroupPartition {
        let mut inner = GroupPartitionInner {
            state,
            cursor: Cursor::default(),
            older: Cursor::default(),
            counted: 0,
            declared: Vec::new(),
            unsaved: UnsavedState::default(),
            scratch: Vec::new(),
            details: HashMap::new(),
            head: None,
            oldest_held: None,
            waits: LatencySamples::default(),
            room: Allowance::in_pieces(room.budget().clone(), STATE_PIECE),
            frames_used: 0,
        };
        inner.counted = inner.unsettled();
        let (due, ripe, needed) = (inner.due(), inner.ripe(), inner.update_needed(0));
        GroupPartition {
            inner: Mutex::new(inner),
            moving: tokio::sync::Mutex::default(),
            due: AtomicI64::new(due),
            ripe: AtomicI64::new(ripe),
            needed: AtomicU64::new(needed),
            unsaved_records: AtomicU32::new(0),
            idle: AtomicU64::new(0),
            delivered: LockedCounter::default(),
            acked: LockedCounter::default(),
            _room: room,
        }
    }

    /// Returns when the machine next has timed work, and whether work waits for maintenance. It takes no lock if
    /// nothing is due, because there are thousands of group partitions and most are idle. `due` and the timers' plan
    /// use sequentially consistent ordering. So a thread that changes `due` and finds the timers planned less far than
    /// that can rely on another check.
    pub fn timers(&self, now: Micros) -> (Micros, bool) {
        let due = self.due.load(Ordering::SeqCst);
        if due > now {
            return (due, false);
        }
        match &self.inner.lock().state {
            GroupState::Work(machine) => {
                let rouse = machine.next_rouse_at().unwrap_or(NEVER);
                let timer = machine.next_timer().unwrap_or(NEVER);
                match rouse <= now {
                    true => (timer, true),
                    false => (timer.min(rouse), machine.has_ending()),
                }
            }
            GroupState::Stream(machine) => (machine.next_due().unwrap_or(NEVER), false),
        }
    }

    /// The first offset that this group needs.
    pub fn wants(&self) -> Offset {
        self.needed.load(Ordering::Acquire)
    }

    /// Whether nothing can be claimed here now, given that the partition ends at `next`.
    pub fn is_idle(&self, next: Offset, now: Micros) -> bool {
        next <= self.idle.load(Ordering::Relaxed) && !self.is_ripe(now)
    }

    /// Whether time has made something claimable, or may have.
    pub fn is_ripe(&self, now: Micros) -> bool {
        self.ripe.load(Ordering::Relaxed) <= now
    }

    /// Updates the published state. Must be called under the lock after every change. Returns by how much the backlog
    /// has shrunk.
    pub fn note(&self, inner: &mut GroupPartitionInner, now: Micros) -> i64 {
        inner.shrink();
        self.note_due(inner);
        self.note_unsaved(inner);
        self.needed.store(inner.update_needed(now), Ordering::Release);
        self.idle.store(inner.idle(), Ordering::Relaxed);
        let now = inner.unsettled();
        std::mem::replace(&mut inner.counted, now) - now
    }

    /// Updates `due` and `ripe`. Called under the lock.
    pub fn note_due(&self, inner: &GroupPartitionInner) {
        self.ripe.store(inner.ripe(), Ordering::Relaxed);
        let due = inner.due();
        // Most changes leave it as it is, and a sequentially consistent store costs a fence.
        if due != self.due.load(Ordering::Relaxed) {
            self.due.store(due, Ordering::SeqCst);
        }
    }

    /// Updates the count of unsaved records after a journal write or a checkpoint. Called under the lock.
    pub fn note_unsaved(&self, inner: &GroupPartitionInner) {
        let records = match inner.unsaved.is_worth_it() {
            true => inner.unsaved.records,
            false => 0,
        };
        self.unsaved_records.store(records, Ordering::Relaxed);
    }

    /// Records since the last checkpoint; 0 if another checkpoint is not worth it.
    pub fn unsaved_records(&self) -> u32 {
        self.unsaved_records.load(Ordering::Relaxed)
    }
}

impl GroupPartitionInner {
    /// Memory of the state and of the frames cached for the next claim.
    pub fn bytes(&self) -> u64 {
        self.state_bytes() + self.frames_bytes()
    }

    fn state_bytes(&self) -> u64 {
        (match &self.state {
            GroupState::Work(machine) => machine.bytes(),
            GroupState::Stream(machine) => machine.bytes(),
        }) as u64
    }

    /// How many messages the state may track when `more` are requested: leased messages and those waiting behind them
    /// are in memory. For a stream, the offset up to which it may read.
    pub fn room_for(&mut self, more: usize) -> u64 {
        let (now, wanted, then) = match &self.state {
            GroupState::Work(machine) => (machine.messages() as u64, machine.bytes_with(more), machine.bytes()),
            GroupState::Stream(machine) => {
                let end = machine.position() + more as u64;
                (machine.position(), machine.bytes_to(end), machine.bytes())
            }
        };
        if wanted as u64 <= STATE_FLOOR || self.room.reaches(wanted as u64 + self.frames_bytes()) {
            return u64::MAX;
        }
        let few = STATE_FLOOR.saturating_sub(then as u64) / STATE_MESSAGE;
        match &self.state {
            GroupState::Work(machine) => now + few.max(machine.spare() as u64),
            GroupState::Stream(machine) => machine.reaches_to().max(now + few),
        }
    }

    /// Releases memory that is not needed any more. Called after a change; free if the state is small.
    #[inline]
    fn shrink(&mut self) {
        if self.state_bytes() > STATE_FLOOR {
            match &mut self.state {
                GroupState::Work(machine) => machine.shrink(),
                GroupState::Stream(machine) => machine.shrink(),
            }
        }
        match self.bytes() {
            few if few <= STATE_FLOOR => self.room.is_not_needed(),
            bytes => self.room.shrinks(bytes),
        }
    }

    /// Bytes of log frames cached for the next claim.
    fn frames_bytes(&self) -> u64 {
        (self.cursor.bytes() + self.older.bytes()) as u64
    }

    /// Called when a claim has finished reading. Keeps the rest of the frames for the next claim if there is room.
    /// Returns whether any are kept.
    pub fn keep_frames(&mut self, now: Micros) -> bool {
        if self.frames_bytes() == 0 {
            return false;
        }
        self.frames_used = now;
        let wanted = self.bytes();
        let keeps = wanted <= STATE_FLOOR || self.room.reaches(wanted);
        if !keeps {
            (self.cursor, self.older) = (Cursor::default(), Cursor::default());
        }
        keeps
    }

    /// Releases cached frames that were not used since `before`. Otherwise returns when they were last used.
    pub fn forget_frames(&mut self, before: Micros) -> Option<Micros> {
        if self.frames_bytes() == 0 {
            return None;
        }
        if self.frames_used >= before {
            return Some(self.frames_used);
        }
        (self.cursor, self.older) = (Cursor::default(), Cursor::default());
        self.shrink();
        None
    }

    /// Unsettled messages if the partition ended at [`FAR`].
    fn unsettled(&self) -> i64 {
        match &self.state {
            GroupState::Work(machine) => machine.backlog(FAR) as i64,
            GroupState::Stream(machine) => machine.lag(FAR) as i64,
        }
    }

    /// Changes with the settled messages as of the last [`GroupPartition::note`].
    pub fn counted(&self) -> i64 {
        self.counted
    }

    pub fn backlog(&self, next: Offset) -> u64 {
        match &self.state {
            GroupState::Work(machine) => machine.backlog(next),
            GroupState::Stream(machine) => machine.lag(next),
        }
    }

    /// The group has seen no message from this offset on.
    pub fn reads_at(&self) -> Offset {
        match &self.state {
            GroupState::Work(machine) => machine.shown_to(),
            GroupState::Stream(machine) => machine.shown_to(),
        }
    }

    fn idle(&self) -> Offset {
        match &self.state {
            GroupState::Work(machine) if !machine.has_any_ready() => machine.cursor(),
            _ => 0,
        }
    }

    fn due(&self) -> Micros {
        match &self.state {
            GroupState::Work(machine) if machine.has_ending() => 0,
            GroupState::Work(machine) => machine.next_due().unwrap_or(NEVER),
            GroupState::Stream(machine) => machine.next_due().unwrap_or(NEVER),
        }
    }

    fn ripe(&self) -> Micros {
        match &self.state {
            GroupState::Work(machine) => machine.next_timer().unwrap_or(NEVER),
            GroupState::Stream(machine) => machine.next_due().unwrap_or(NEVER),
        }
    }

    /// Updates the first offset that this group needs, or an offset before it.
    #[inline]
    fn update_needed(&mut self, now: Micros) -> Offset {
        let machine = match &mut self.state {
            GroupState::Work(machine) => machine,
            GroupState::Stream(machine) => return machine.needed(),
        };
        let lowest = machine.take_lowest_held();
        let floor = machine.first_asleep().unwrap_or(Offset::MAX).min(machine.floor());
        if machine.held().next().is_none() {
            self.oldest_held = None;
            return floor;
        }
        // Held messages are unordered. They are scanned only when the oldest is settled, and not too often.
        let known = self.oldest_held.map(|(offset, at)| (offset.min(lowest), at));
        let known = known.filter(|(offset, at)| !machine.is_settled(*offset) || now - at < LOOK_AGAIN);
        let (oldest, at) = known.unwrap_or_else(|| (machine.held().min().unwrap_or(machine.floor()), now));
        self.oldest_held = Some((oldest, at));
        oldest.min(floor)
    }

    /// Drops the reasons of messages that no longer must leave: they may be delivered again and die for another reason.
    pub fn forget_details(&mut self) {
        if let GroupState::Work(machine) = &self.state {
            self.details.retain(|offset, _| machine.is_leaving(*offset));
        }
    }

    /// Records a consumer before it leases messages, because a restart must know who it is.
    pub fn declare(
        &mut self,
        log: &dyn Log,
        state: PartitionId,
        group: u32,
        consumer: (u32, &str, MemberKind),
        now: Micros,
    ) -> LogResult<()> {
        let (index, id, kind) = consumer;
        let at = index as usize;
        if self.declared.get(at).is_some_and(|known| known.as_deref() == Some(id)) || !kind.can_return() {
            return Ok(());
        }
        if self.declared.len() <= at {
            self.declared.resize(at + 1, None);
        }
        self.declared[at] = Some(SmolStr::new(id));
        let value = consumer_record(group, index, id, kind);
        self.unsaved.add(value.len());
        log.journal(state, FrameKind::State, &mut |records| {
            records.push(&RecordRef::of(now, &value))
        })
    }

    /// Journals the changes since the last call.
    pub fn store(&mut self, log: &dyn Log, state: PartitionId, group: u32, now: Micros) -> LogResult<()> {
        self.scratch.clear();
        varint::put(&mut self.scratch, group.into());
        self.scratch.push(CHANGES);
        let head = self.scratch.len();
        match &mut self.state {
            GroupState::Work(machine) => machine.take_journal(&mut self.scratch),
            GroupState::Stream(machine) => machine.take_journal(&mut self.scratch),
        }
        if self.scratch.len() == head {
            return Ok(());
        }
        self.unsaved.add(self.scratch.len());
        let value = &self.scratch;
        log.journal(state, FrameKind::State, &mut |records| {
            records.push(&RecordRef::of(now, value))
        })
    }

    /// Encodes the whole state, including changes that were not journaled yet, and the consumers that have leases.
    pub fn checkpoint(&self, group: u32, consumers: &[LeasingMember], out: &mut Vec<Vec<u8>>) {
        let mut value = Vec::new();
        varint::put(&mut value, group.into());
        value.push(CHECKPOINT);
        match &self.state {
            GroupState::Work(machine) => machine.checkpoint(&mut value),
            GroupState::Stream(machine) => machine.checkpoint(&mut value),
        }
        out.push(value);
        for (index, id, kind) in consumers.iter().filter(|(_, _, kind)| kind.can_return()) {
            out.push(consumer_record(group, *index, id, *kind));
        }
    }

    /// Records that a checkpoint of this size was stored, or was not.
    pub fn checkpointed(&mut self, consumers: &[LeasingMember], bytes: usize, stored: bool) {
        self.unsaved.whole = bytes;
        if !stored {
            return;
        }
        self.unsaved = UnsavedState {
            whole: bytes,
            ..UnsavedState::default()
        };
        self.declared.clear();
        for (index, id, _) in consumers.iter().filter(|(_, _, kind)| kind.can_return()) {
            let at = *index as usize;
            if self.declared.len() <= at {
                self.declared.resize(at + 1, None);
            }
            self.declared[at] = Some(id.clone());
        }
    }
}

/// Number, name and kind of a member with leases.
pub(crate) type LeasingMember = (u32, SmolStr, MemberKind);

fn consumer_record(group: u32, index: u32, id: &str, kind: MemberKind) -> Vec<u8> {
    let mut value = Vec::with_capacity(id.len() + 12);
    varint::put(&mut value, group.into());
    value.push(CONSUMER);
    varint::put(&mut value, index.into());
    value.push(match kind {
        MemberKind::Http => 0,
        MemberKind::Pipeline => 1,
        MemberKind::Mqtt { persistent: false } => 2,
        MemberKind::Mqtt { persistent: true } => 3,
    });
    value.extend_from_slice(id.as_bytes());
    value
}

/// A parsed record of a state partition.
pub(crate) enum StateRecord<'a> {
    Changes(&'a [u8]),
    Checkpoint(&'a [u8]),
    Consumer(u32, MemberKind, &'a str),
    Dropped(&'a [u8]),
    Sent(&'a [u8]),
}

/// The group and its record; `None` for invalid bytes.
pub(crate) fn parse_record(value: &[u8]) -> Option<(u32, StateRecord<'_>)> {
    let (group, rest) = varint::take(value)?;
    let (what, rest) = rest.split_first()?;
    let record = match *what {
        CHANGES => StateRecord::Changes(rest),
        CHECKPOINT => StateRecord::Checkpoint(rest),
        DROPPED => StateRecord::Dropped(rest),
        SENT => StateRecord::Sent(rest),
        CONSUMER => {
            let (index, rest) = varint::take(rest)?;
            let (kind, id) = rest.split_first()?;
            let kind = match kind {
                0 => MemberKind::Http,
                1 => MemberKind::Pipeline,
                2 => MemberKind::Mqtt { persistent: false },
                3 => MemberKind::Mqtt { persistent: true },
                _ => return None,
            };
            StateRecord::Consumer(u32::try_from(index).ok()?, kind, std::str::from_utf8(id).ok()?)
        }
        _ => return None,
    };
    Some((u32::try_from(group).ok()?, record))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::Budget;

    #[test]
    fn what_is_roused_is_needed_though_something_after_it_is_held_longer() {
        const HOUR: Micros = 3_600_000_000;
        let message = |offset, due| crate::machine::MessageMeta {
            offset,
            lane: None,
            expires_at: None,
            not_before: Some(due),
            skip: false,
            hint: 0,
        };
        let mut machine = WorkMachine::new(crate::machine::DeliveryPolicy::default(), 0);
        // The second is due first.
        let (first, second) = (message(0, 2 * HOUR), message(1000, HOUR));
        for delayed in [first, second] {
            assert!(machine.pass_unclaimable(&delayed, 0));
        }
        let mut inner = GroupPartition::new(GroupState::Work(Box::new(machine)), Budget::new(0).reserve_anyway(0))
            .inner
            .into_inner();
        assert_eq!(inner.update_needed(0), 0);
        for (due, delayed) in [(HOUR, second), (2 * HOUR, first)] {
            let GroupState::Work(machine) = &mut inner.state else {
                unreachable!()
            };
            let span = machine.to_rouse(due).unwrap();
            assert!(span.contains(&delayed.offset));
            machine.rouse(span, &[delayed], Offset::MAX, due);
            assert_eq!(inner.update_needed(due), 0);
        }
        let GroupState::Work(machine) = &mut inner.state else {
            unreachable!()
        };
        let lease = machine.next_ready(1, HOUR, 2 * HOUR).unwrap();
        machine.ack(lease.offset, 1, 2 * HOUR).unwrap();
        let lease = machine.next_ready(1, HOUR, 2 * HOUR).unwrap();
        assert_eq!(lease.offset, 0, "the one that was roused last");
        assert_eq!(inner.update_needed(3 * HOUR), 0);
    }

    /// As docs/reference/limits.md says.
    #[test]
    fn a_group_takes_a_few_kib_for_a_partition_before_it_knows_of_any_message() {
        let bytes = [GroupMode::Work, GroupMode::Stream].map(part_bytes);
        let about = [3 << 10..=4 << 10, 512..=1 << 10];
        assert!(
            about[0].contains(&bytes[0]) && about[1].contains(&bytes[1]),
            "{bytes:?}"
        );
    }

    proptest! {
        #[test]
        fn a_consumer_is_found_again_by_its_record(group: u32, index: u32, id in "[a-z]{1,20}") {
            let value = consumer_record(group, index, &id, MemberKind::Http);
            let found = parse_record(&value);
            let same = matches!(
                found,
                Some((g, StateRecord::Consumer(i, MemberKind::Http, name))) if (g, i, name) == (group, index, &id[..])
            );
            prop_assert!(same);
        }

        #[test]
        fn any_bytes_are_a_record_or_none(value: Vec<u8>) {
            let _ = parse_record(&value);
        }
    }
}
