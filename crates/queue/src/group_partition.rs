//! A group over one partition: its state machine, where it reads, and what of its state is on disk.
//!
//! Changes are journaled as they happen, in the order of the lock, into the state partition beside the messages; a
//! checkpoint of all groups of the partition ends what has to be read at a start. A record of the state partition is the
//! group's id as varint, then what it is, then its bytes.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::Mutex;
use smol_str::SmolStr;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::format::varint;
use thalweg_log::{Log, Micros, Offset, PartitionId, Result as LogResult};

use crate::budget::{Allowance, Reservation};
use crate::latency::LatencySamples;
use crate::machine::{StreamMachine, WorkMachine};
use crate::members::MemberKind;
use crate::settings::GroupMode;
use crate::store::Cursor;

/// What a record of a state partition is.
pub(crate) const CHANGES: u8 = 1;
pub(crate) const CHECKPOINT: u8 = 2;
pub(crate) const CONSUMER: u8 = 3;
/// Dead letters that were sent again or thrown away, of group 0, which is none.
pub(crate) const DROPPED: u8 = 4;
/// Dead letters that came here from a queue, likewise.
pub(crate) const SENT: u8 = 5;

/// Nothing to do.
pub(crate) const NEVER: Micros = Micros::MAX;

pub(crate) enum GroupState {
    Work(Box<WorkMachine>),
    Stream(Box<StreamMachine>),
}

pub(crate) struct GroupPartition {
    pub inner: Mutex<GroupPartitionInner>,
    /// Whoever moves messages out. One at a time, so that who finds none left knows that the last ones have arrived.
    pub moving: tokio::sync::Mutex<()>,
    /// When the machine has something to do next.
    pub due: AtomicI64,
    /// Messages before it are settled by this group.
    pub needed: AtomicU64,
    /// Records since the last checkpoint, if another is worth it.
    unsaved_records: AtomicU32,
    /// If no message is there from this offset on, there is nothing to claim before `due`.
    idle: AtomicU64,
    /// Handed out, and acked, since the start of the process.
    pub delivered: LockedCounter,
    pub acked: LockedCounter,
    /// Of [`part_bytes`].
    _room: Reservation,
}

/// Memory that a group takes for a partition before it knows of any message. With its timers, which come with the first
/// message: a group that was made has room for them.
pub(crate) fn part_bytes(mode: GroupMode) -> u64 {
    let state = match mode {
        GroupMode::Work => WorkMachine::EMPTY_BYTES,
        GroupMode::Stream => StreamMachine::EMPTY_BYTES,
    };
    (size_of::<GroupPartition>() + state) as u64
}

/// Counted under the lock of the part, read without: so counting costs no more than an addition.
#[derive(Debug, Default)]
pub(crate) struct LockedCounter(AtomicU64);

impl LockedCounter {
    /// The borrow is that of the lock.
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
    /// Around the last message that was read again from the disk, while there are such to be handed out.
    pub older: Cursor,
    /// What the machine counts as not settled, up to a constant; see [`GroupPartitionInner::unsettled`].
    counted: i64,
    /// Consumers that the state partition knows since its last checkpoint, by number.
    declared: Vec<Option<SmolStr>>,
    /// What the log was told since the last checkpoint, and how large that was.
    pub unsaved: UnsavedState,
    scratch: Vec<u8>,
    /// Why consumers rejected what has to leave.
    pub details: HashMap<Offset, Box<str>>,
    /// The message at the cursor as it was last looked at, and until when it may live.
    pub head: Option<(Offset, Micros)>,
    /// The oldest message outside of the window, and when it was looked for.
    oldest_held: Option<(Offset, Micros)>,
    pub waits: LatencySamples,
    room: Allowance,
    /// When somebody last looked at what was read of the log.
    pub frames_used: Micros,
}

/// What the state of one group over one partition may take whatever others have, so that none waits for another for ever.
const STATE_FLOOR: u64 = 64 << 10;
/// What a message takes of that, about.
const STATE_MESSAGE: u64 = 256;
/// In which room for state is taken.
pub(crate) const STATE_PIECE: u64 = 64 << 10;

/// State that a start has to read one record after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnsavedState {
    pub records: u32,
    bytes: usize,
    /// Of the last checkpoint, also of one that could not be stored.
    whole: usize,
}

impl UnsavedState {
    /// Beside what groups have of the same partition.
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

    /// Whether a checkpoint is worth it: a large one is not written for a few records, or the log would be full of them.
    pub fn is_worth_it(&self) -> bool {
        self.records > 0 && (self.whole < WHOLE_SMALL || self.bytes > self.whole / WHOLE_SHARE)
    }
}

/// Of a record of letters, about.
const LETTERS_BYTES: usize = 64;
const WHOLE_SMALL: usize = 1 << 20;
const WHOLE_SHARE: usize = 4;

/// The oldest held message is looked for again after so long.
const LOOK_AGAIN: Micros = 100_000;

/// A number beyond all offsets.
const FAR: Offset = 1 << 62;

impl GroupPartition {
    /// What it comes to know of messages takes part in the budget that the room for itself is of.
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
        let (due, needed) = (inner.due(), inner.update_needed(0));
        GroupPartition {
            inner: Mutex::new(inner),
            moving: tokio::sync::Mutex::default(),
            due: AtomicI64::new(due),
            needed: AtomicU64::new(needed),
            unsaved_records: AtomicU32::new(0),
            idle: AtomicU64::new(0),
            delivered: LockedCounter::default(),
            acked: LockedCounter::default(),
            _room: room,
        }
    }

    /// When the machine has something to do next that needs nothing but time, and whether something waits for the maintenance.
    /// Without the lock where nothing is due: there are thousands of parts, and most have nothing. `due` and what the timers
    /// plan are read and written in one strict order, so that whoever changes `due` and finds that the timers are planned less
    /// far than that is sure that they will be looked at again.
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

    /// Messages before it are not needed by this group.
    pub fn wants(&self) -> Offset {
        self.needed.load(Ordering::Acquire)
    }

    /// Whether nobody finds anything here now, if the partition ends at `next`.
    pub fn is_idle(&self, next: Offset, now: Micros) -> bool {
        next <= self.idle.load(Ordering::Relaxed) && now < self.due.load(Ordering::Relaxed)
    }

    /// To be called under the lock after every change. Returns by how much the backlog has become smaller.
    pub fn note(&self, inner: &mut GroupPartitionInner, now: Micros) -> i64 {
        inner.shrink();
        self.note_due(inner);
        self.note_unsaved(inner);
        self.needed.store(inner.update_needed(now), Ordering::Release);
        self.idle.store(inner.idle(), Ordering::Relaxed);
        let now = inner.unsettled();
        std::mem::replace(&mut inner.counted, now) - now
    }

    /// The machine may have something to do at another time. Under the lock.
    pub fn note_due(&self, inner: &GroupPartitionInner) {
        let due = inner.due();
        // Most changes leave it as it is, and the strict order costs a fence.
        if due != self.due.load(Ordering::Relaxed) {
            self.due.store(due, Ordering::SeqCst);
        }
    }

    /// Something was journaled, or a checkpoint written. Under the lock.
    pub fn note_unsaved(&self, inner: &GroupPartitionInner) {
        let records = match inner.unsaved.is_worth_it() {
            true => inner.unsaved.records,
            false => 0,
        };
        self.unsaved_records.store(records, Ordering::Relaxed);
    }

    /// Records since the last checkpoint; 0 if they are not worth another.
    pub fn unsaved_records(&self) -> u32 {
        self.unsaved_records.load(Ordering::Relaxed)
    }
}

impl GroupPartitionInner {
    /// Memory that the state takes, and what was read for the next claim.
    pub fn bytes(&self) -> u64 {
        self.state_bytes() + self.frames_bytes()
    }

    fn state_bytes(&self) -> u64 {
        (match &self.state {
            GroupState::Work(machine) => machine.bytes(),
            GroupState::Stream(machine) => machine.bytes(),
        }) as u64
    }

    /// Of how many messages it may know once so many more were asked for: what consumers have in hand, and what waits behind
    /// it, is in memory. Of a stream, up to which offset it may read.
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

    /// Gives back what is not needed any more. To be called after a change; free where little is kept.
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

    /// What was read of the log and is kept for the next claim.
    fn frames_bytes(&self) -> u64 {
        (self.cursor.bytes() + self.older.bytes()) as u64
    }

    /// A claim has read what it wanted. What is left is kept for the next one if there is room; whether something is.
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

    /// Gives back what was read if nobody has looked at it since `before`. Returns when that was, if it is still there.
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

    /// Unsettled messages if the partition ended at a number beyond all offsets.
    fn unsettled(&self) -> i64 {
        match &self.state {
            GroupState::Work(machine) => machine.backlog(FAR) as i64,
            GroupState::Stream(machine) => machine.lag(FAR) as i64,
        }
    }

    /// Changes with what is settled as of the last [`GroupPartition::note`].
    pub fn counted(&self) -> i64 {
        self.counted
    }

    pub fn backlog(&self, next: Offset) -> u64 {
        match &self.state {
            GroupState::Work(machine) => machine.backlog(next),
            GroupState::Stream(machine) => machine.lag(next),
        }
    }

    /// The group has been shown nothing from there on.
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

    /// Looks for the first offset that this group has use for, or one before it, as far as that has changed.
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
        // What is held has no order: it is looked through when the oldest is settled, and not more often than it pays.
        let known = self.oldest_held.map(|(offset, at)| (offset.min(lowest), at));
        let known = known.filter(|(offset, at)| !machine.is_settled(*offset) || now - at < LOOK_AGAIN);
        let (oldest, at) = known.unwrap_or_else(|| (machine.held().min().unwrap_or(machine.floor()), now));
        self.oldest_held = Some((oldest, at));
        oldest.min(floor)
    }

    /// Of what has not to leave any more: it may come again, and die of something else.
    pub fn forget_details(&mut self) {
        if let GroupState::Work(machine) = &self.state {
            self.details.retain(|offset, _| machine.is_leaving(*offset));
        }
    }

    /// A consumer is going to hold leases: a restart must know who it is.
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

    /// Hands the changes since the last time to the log.
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

    /// The whole state, which changes that were not stored yet are part of, and who holds leases.
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

    /// A checkpoint of so many bytes was stored, or not.
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

/// Number, name and kind of one that holds leases.
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

/// A record of a state partition as its parts.
pub(crate) enum StateRecord<'a> {
    Changes(&'a [u8]),
    Checkpoint(&'a [u8]),
    Consumer(u32, MemberKind, &'a str),
    Dropped(&'a [u8]),
    Sent(&'a [u8]),
}

/// The group and what is said of it; `None` for bytes that are no such record.
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
    fn what_is_roused_is_needed_though_something_behind_it_is_held_longer() {
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
        for sleeper in [first, second] {
            assert!(machine.walk(&sleeper, 0));
        }
        let mut inner = GroupPartition::new(GroupState::Work(Box::new(machine)), Budget::new(0).reserve_anyway(0))
            .inner
            .into_inner();
        assert_eq!(inner.update_needed(0), 0);
        for (due, sleeper) in [(HOUR, second), (2 * HOUR, first)] {
            let GroupState::Work(machine) = &mut inner.state else {
                unreachable!()
            };
            let span = machine.to_rouse(due).unwrap();
            assert!(span.contains(&sleeper.offset));
            machine.rouse(span, &[sleeper], Offset::MAX, due);
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

    /// As docs/limits.md says.
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
