//! Rebuilds a machine from checkpoint and journal.
//!
//! `MachineRecovery` applies records in order to plain facts: which offsets are settled, and what is known about active
//! messages. Records of messages that are already settled have no effect, so a settle may precede the events that led
//! to it. `finish` builds lists, lanes and timers. The cursor starts at the floor and meets messages again that were
//! passed but never delivered. The rest is known; a message with a lane is not delivered before the cursor has passed
//! it. Invalid bytes are `DamagedState`, and no length in them causes an allocation.

use std::collections::BTreeMap;

use thalweg_log::{Micros, Offset};

use super::chain::NIL;
use super::codec::{MessageSnapshot, StateReader, terminal};
use super::delayed_set::{DelayedMessageSet, SPAN};
use super::entry::{MessageEntry, MessageState, NEVER};
use super::journal::{self, LEASE_RUN_MAX, LeaseContext};
use super::rewind::keeps_number;
use super::settlement_cache::{Settlement, SettlementCache};
use super::window::{OffsetWindow, WindowSlot};
use super::{DamagedState, DeliveryPolicy, FinalState, MessageMeta, WINDOW_MAX, WorkMachine, checkpoint};

pub(super) const RUN_TOO_HIGH: &str = "a run of offsets ends above the highest offset";

/// The state of a group while its records are read.
pub struct MachineRecovery {
    settled: OffsetWindow,
    pub(super) settlements: SettlementCache,
    /// The epoch of the last lease.
    pub(super) leased_in: u32,
    /// Those below the floor are held.
    active: BTreeMap<Offset, MessageSnapshot>,
    asleep: DelayedMessageSet,
    /// A record moved the group (seek).
    sought: bool,
}

impl MachineRecovery {
    /// `start` is where a group without a checkpoint begins.
    pub fn new(start: Offset, checkpoint: Option<&[u8]>) -> Result<Self, DamagedState> {
        match checkpoint {
            Some(bytes) => checkpoint::decode(bytes),
            None => Ok(MachineRecovery::at(start)),
        }
    }

    pub(super) fn at(floor: Offset) -> Self {
        MachineRecovery {
            settled: OffsetWindow::new(floor),
            settlements: SettlementCache::default(),
            leased_in: 0,
            active: BTreeMap::new(),
            asleep: DelayedMessageSet::default(),
            sought: false,
        }
    }

    pub fn floor(&self) -> Offset {
        self.settled.floor()
    }

    /// Applies whole records, in the order in which they were taken.
    pub fn apply(&mut self, records: &[u8]) -> Result<(), DamagedState> {
        let mut from = StateReader::new(records);
        while !from.is_empty() {
            let kind = from.byte()?;
            let mut body = from.part()?;
            match kind {
                journal::LEASES => self.apply_leases(&mut body, 0)?,
                journal::LEASES_IN_EPOCH => {
                    let epoch = body.u32()?;
                    self.apply_leases(&mut body, epoch)?;
                }
                journal::SETTLES => self.apply_settles(&mut body)?,
                journal::SLEEPS => self.apply_sleeps(&mut body)?,
                _ => self.apply_one(kind, &mut body)?,
            }
            if !body.is_empty() {
                return Err(body.damaged("a record is followed by further bytes"));
            }
            self.trim();
        }
        Ok(())
    }

    /// Delivered messages whose lane, expiry and hint are only in the log: `fill` them.
    pub fn unknown(&self) -> Vec<Offset> {
        let floor = self.floor();
        let wanted = |facts: &&MessageSnapshot| !facts.filled && (!facts.is_untouched() || facts.offset < floor);
        self.active.values().filter(wanted).map(|facts| facts.offset).collect()
    }

    pub fn fill(&mut self, message: &MessageMeta) {
        if let Some(facts) = self.active.get_mut(&message.offset) {
            facts.lane = message.lane;
            facts.expires_at = message.expires_at.unwrap_or(NEVER);
            facts.hint = message.hint;
            facts.filled = true;
        }
    }

    /// Whether a message that is among the dead letters has left without a record of it. `is_new`: it arrived there
    /// after the checkpoint. Returns false if a seek may have made it deliverable again, because twice among the dead
    /// letters is better than never delivered. Messages that must leave anyway, and expired ones, would be moved there
    /// again.
    pub fn has_left(&self, offset: Offset, kind: FinalState, is_new: bool) -> bool {
        let known = self.active.get(&offset);
        let settled = || offset < self.floor() || self.settled.get(offset) != WindowSlot::Empty;
        if known.is_none() && !self.asleep.contains(offset) && settled() {
            return false;
        }
        let leaving = known.is_some_and(|facts| facts.reason.is_some());
        leaving || kind == FinalState::Expired || (is_new && !self.sought)
    }

    /// The message has left. False if its offset cannot be a message of this group.
    pub fn leave(&mut self, offset: Offset, kind: FinalState) -> bool {
        let left = self.settle(offset, 1, kind).is_ok();
        self.trim();
        left
    }

    /// Builds the machine. Leases of consumers that can return stay; the others are ready again. From the floor on, a
    /// message that was not filled counts as never delivered, and the cursor meets it again. Below the floor the cursor
    /// does not come: the message keeps its state, without lane and expiry, and a claim finds that it is gone.
    pub fn finish(self, policy: DeliveryPolicy, now: Micros, can_return: impl Fn(u32) -> bool) -> WorkMachine {
        let mut machine = WorkMachine::new(policy, self.floor());
        machine.wheel = super::TimerWheel::new(now);
        machine.now = now;
        machine.settlements = self.settlements;
        machine.leased_in = self.leased_in;
        machine.window = self.settled;
        machine.delayed_set = self.asleep;
        let (floor, end) = (machine.floor(), machine.window.end());
        machine.ahead = (floor..end)
            .filter(|offset| machine.window.get(*offset) != WindowSlot::Empty)
            .count() as u64;
        for facts in self.active.values() {
            if facts.offset >= floor && (!facts.filled || facts.is_untouched()) {
                continue;
            }
            machine.revive(facts, now, &can_return);
        }
        machine.skip_ahead();
        machine.check();
        machine
    }

    pub(super) fn settle(&mut self, first: Offset, len: u64, kind: FinalState) -> Result<(), &'static str> {
        let end = first.checked_add(len).ok_or(RUN_TOO_HIGH)?;
        let floor = self.floor();
        if first > floor && end - floor > WINDOW_MAX {
            return Err("a run of offsets reaches too far above the floor");
        }
        let ended: Vec<Offset> = self.active.range(first..end).map(|(offset, _)| *offset).collect();
        for offset in ended {
            if let Some(facts) = self.active.remove(&offset) {
                self.settlements.note(offset, facts.end(kind));
            }
        }
        self.asleep.remove_range(first..end);
        if first <= floor && end > floor {
            self.raise(end);
        } else {
            for offset in first.max(floor)..end {
                self.settled.settle(offset, kind);
            }
        }
        Ok(())
    }

    pub(super) fn insert(&mut self, facts: MessageSnapshot) -> Result<(), &'static str> {
        let offset = facts.offset;
        if offset >= self.floor() {
            if offset - self.floor() >= WINDOW_MAX || offset == Offset::MAX {
                return Err("a message is too far above the floor");
            }
            self.settled.clear(offset);
        }
        self.active.insert(offset, facts);
        Ok(())
    }

    /// Raises the floor to `to`; slots in between are settled.
    fn raise(&mut self, to: Offset) {
        if to >= self.settled.end() {
            self.settled.reset(to);
        }
        while self.floor() < to {
            self.settled.pop();
        }
    }

    /// Raises the floor over settled, sleeping and held messages.
    pub(super) fn trim(&mut self) {
        while matches!(
            self.settled.get(self.floor()),
            WindowSlot::Settled(_) | WindowSlot::Asleep
        ) {
            self.settled.pop();
        }
    }

    fn apply_leases(&mut self, body: &mut StateReader<'_>, epoch: u32) -> Result<(), DamagedState> {
        self.leased_in = self.leased_in.max(epoch);
        let mut context = LeaseContext::default();
        while !body.is_empty() {
            let first = context.end.wrapping_add(body.i64()? as u64);
            let head = body.u64()?;
            let len = head >> 2;
            if len == 0 || len > LEASE_RUN_MAX {
                return Err(body.damaged("a run of leases has an invalid length"));
            }
            if head & 1 != 0 {
                context.consumer = body.u32()?;
                context.now = context.now.wrapping_add(body.i64()?);
                context.deadline = context.now.wrapping_add(body.i64()?);
            }
            let delivery = if head & 2 != 0 { body.u32()? } else { 1 };
            context.end = first.checked_add(len).ok_or(body.damaged(RUN_TOO_HIGH))?;
            for offset in first..context.end {
                self.lease(offset, (delivery.max(1), epoch), &context)
                    .map_err(|what| body.damaged(what))?;
            }
        }
        Ok(())
    }

    fn lease(
        &mut self,
        offset: Offset,
        (delivery, epoch): (u32, u32),
        context: &LeaseContext,
    ) -> Result<(), &'static str> {
        let Some(facts) = self.unsettled(offset)? else {
            return Ok(());
        };
        facts.state = MessageState::Leased;
        facts.deliveries = delivery;
        facts.epoch = epoch;
        facts.consumer = context.consumer;
        facts.due = context.deadline;
        facts.claimed_at = context.now;
        if delivery == 1 {
            facts.first_delivery = context.now;
        }
        Ok(())
    }

    fn apply_settles(&mut self, body: &mut StateReader<'_>) -> Result<(), DamagedState> {
        let mut end = 0u64;
        while !body.is_empty() {
            let first = end.wrapping_add(body.i64()? as u64);
            let len = body.u64()?;
            let kind = terminal(u64::from(body.byte()?)).ok_or(body.damaged("the final state is unknown"))?;
            self.settle(first, len, kind).map_err(|what| body.damaged(what))?;
            self.trim();
            end = first + len;
        }
        Ok(())
    }

    fn apply_sleeps(&mut self, body: &mut StateReader<'_>) -> Result<(), DamagedState> {
        let mut end = 0u64;
        while !body.is_empty() {
            let first = end.wrapping_add(body.i64()? as u64);
            let (len, wake) = (body.u64()?, body.i64()?);
            end = first.checked_add(len).ok_or(body.damaged(RUN_TOO_HIGH))?;
            if len == 0 || len > SPAN {
                return Err(body.damaged("a run of delayed messages has an invalid length"));
            }
            for offset in first..end {
                self.fall_asleep(offset, wake).map_err(|what| body.damaged(what))?;
            }
            self.trim();
        }
        Ok(())
    }

    /// Ignores messages that are settled or active.
    fn fall_asleep(&mut self, offset: Offset, wake: Micros) -> Result<(), &'static str> {
        let floor = self.floor();
        if offset < floor || self.active.contains_key(&offset) {
            return Ok(());
        }
        if offset - floor >= WINDOW_MAX || offset == Offset::MAX {
            return Err("a message is too far above the floor");
        }
        if self.settled.get(offset) == WindowSlot::Empty {
            self.settled.set_asleep(offset);
            self.asleep.insert(offset, wake);
        }
        Ok(())
    }

    /// Applies the sleeping messages of a checkpoint.
    pub(super) fn checkpointed_asleep(&mut self, offset: Offset, wake: Micros) -> Result<(), &'static str> {
        if offset < self.floor() {
            self.asleep.insert(offset, wake);
            return Ok(());
        }
        self.fall_asleep(offset, wake)
    }

    fn apply_one(&mut self, kind: u8, body: &mut StateReader<'_>) -> Result<(), DamagedState> {
        match kind {
            journal::FAILED => self.apply_failed(body),
            journal::RELEASED => {
                let (offset, deliveries) = (body.u64()?, body.u32()?);
                if let Some(facts) = self.unsettled(offset).map_err(|what| body.damaged(what))? {
                    facts.state = MessageState::Ready;
                    facts.deliveries = deliveries;
                    if deliveries == 0 {
                        (facts.first_delivery, facts.claimed_at) = (0, 0);
                    }
                }
                Ok(())
            }
            journal::EXTENDED => {
                let (offset, deadline) = (body.u64()?, body.i64()?);
                if let Some(facts) = self.active.get_mut(&offset) {
                    facts.due = deadline;
                }
                Ok(())
            }
            journal::HELD | journal::HELD_IN_EPOCH => {
                let facts = MessageSnapshot::decode(body, kind == journal::HELD_IN_EPOCH)?;
                let offset = facts.offset;
                if self.unsettled(offset).map_err(|what| body.damaged(what))?.is_some() {
                    self.active.insert(offset, facts);
                    if offset == self.floor() {
                        self.settled.pop();
                    }
                }
                Ok(())
            }
            journal::SEEK => {
                let to = body.u64()?;
                self.sought = true;
                let floor = self.floor().min(to);
                let again = self.active.split_off(&to);
                self.asleep.remove_range(to..Offset::MAX);
                self.settlements.forget_from(to);
                if to <= self.floor() {
                    self.settled.reset(to);
                } else {
                    (to..self.settled.end()).for_each(|offset| self.settled.clear(offset));
                }
                for (offset, mut facts) in again {
                    if facts.reason.is_none() && keeps_number(facts.deliveries, offset, floor) {
                        facts.state = MessageState::Ready;
                        self.active.insert(offset, facts);
                    }
                }
                Ok(())
            }
            journal::PURGE => {
                let next = body.u64()?;
                for facts in std::mem::take(&mut self.active).into_values() {
                    self.settlements.note(facts.offset, facts.end(FinalState::Dropped));
                }
                self.asleep.clear();
                self.settled.reset(next);
                Ok(())
            }
            _ => Err(body.damaged("the kind of a record is unknown")),
        }
    }

    fn apply_failed(&mut self, body: &mut StateReader<'_>) -> Result<(), DamagedState> {
        let (offset, deliveries) = (body.u64()?, body.u32()?);
        let failures = body.u32()?.min(u32::from(u16::MAX)) as u16;
        let reason = match body.byte()? {
            0 => None,
            _ => Some(body.reason()?),
        };
        let due = if reason.is_none() { body.i64()? } else { 0 };
        if let Some(facts) = self.unsettled(offset).map_err(|what| body.damaged(what))? {
            facts.deliveries = deliveries;
            facts.failures = failures;
            facts.reason = reason;
            facts.due = due;
            facts.state = if reason.is_some() {
                MessageState::Ending
            } else {
                MessageState::Waiting
            };
        }
        Ok(())
    }

    /// The facts of a message; `None` if it is settled.
    fn unsettled(&mut self, offset: Offset) -> Result<Option<&mut MessageSnapshot>, &'static str> {
        let floor = self.floor();
        if offset < floor {
            if self.asleep.remove(offset) {
                self.active.insert(offset, MessageSnapshot::unfilled(offset));
            }
            return Ok(self.active.get_mut(&offset));
        }
        if offset - floor >= WINDOW_MAX || offset == Offset::MAX {
            return Err("a message is too far above the floor");
        }
        match self.settled.get(offset) {
            WindowSlot::Empty => {}
            WindowSlot::Asleep => {
                self.asleep.remove(offset);
                self.settled.clear(offset);
            }
            WindowSlot::Settled(_) | WindowSlot::Active(_) => return Ok(None),
        }
        Ok(Some(
            self.active
                .entry(offset)
                .or_insert_with(|| MessageSnapshot::unfilled(offset)),
        ))
    }
}

impl MessageSnapshot {
    fn end(&self, kind: FinalState) -> Settlement {
        Settlement {
            kind,
            deliveries: self.deliveries,
            epoch: self.epoch,
        }
    }
}

impl WorkMachine {
    /// Creates the entry of a message known to the restart. Called in offset order.
    fn revive(&mut self, facts: &MessageSnapshot, now: Micros, can_return: &impl Fn(u32) -> bool) {
        let message = MessageMeta {
            offset: facts.offset,
            lane: facts.lane,
            expires_at: (facts.expires_at != NEVER).then_some(facts.expires_at),
            not_before: None,
            skip: false,
            hint: facts.hint,
        };
        let entry = self.store.entries.insert(MessageEntry::new(&message, now), facts.state);
        let held = facts.offset < self.floor();
        let at = self.store.entries.get_mut(entry);
        at.deliveries = facts.deliveries;
        at.failures = facts.failures;
        at.consumer = facts.consumer;
        at.due = facts.due;
        at.first_delivery = facts.first_delivery;
        at.claimed_at = facts.claimed_at;
        at.epoch = facts.epoch;
        at.reason = facts.reason;
        at.held = held;
        if held {
            self.insert_held(facts.offset, entry);
        } else {
            self.window.set_active(facts.offset, entry);
            self.ahead += 1;
        }
        // A message that must leave has left its lane.
        let lane = match facts.reason {
            None => self.lane_of(facts.lane),
            Some(_) => None,
        };
        if let Some(hash) = lane {
            let lane = self.store.lanes.find_or_make(hash);
            self.store.join(entry, lane);
        }
        self.resume(entry, facts, can_return);
    }

    fn resume(&mut self, entry: u32, facts: &MessageSnapshot, can_return: &impl Fn(u32) -> bool) {
        let lane = self.store.entries.get(entry).lane;
        if lane != NIL && facts.state != MessageState::Delayed {
            self.store.enter(entry);
        }
        match facts.state {
            MessageState::Leased if can_return(facts.consumer) && self.keeps_lease(lane, entry, facts.consumer) => {
                if lane != NIL {
                    self.store.lease_next(lane, facts.consumer);
                }
                self.wheel.arm(&mut self.store.entries, entry, facts.due);
                self.refresh_lane_of(entry);
            }
            MessageState::Leased | MessageState::Ready => self.make_ready(entry),
            MessageState::Delayed => self.wheel.arm(&mut self.store.entries, entry, facts.due),
            MessageState::Waiting if facts.reason.is_none() && facts.due <= self.now => self.make_ready(entry),
            MessageState::Waiting if facts.reason.is_none() => {
                self.wheel
                    .arm(&mut self.store.entries, entry, facts.due.min(facts.expires_at));
                self.refresh_lane_of(entry);
            }
            MessageState::Waiting | MessageState::Ending | MessageState::Free => self.end_again(entry),
        }
    }

    /// Whether the lane allows this lease. It may not if the end of the journal was cut off or the settings changed.
    fn keeps_lease(&self, lane: u32, entry: u32, consumer: u32) -> bool {
        if lane == NIL {
            return true;
        }
        let lane = self.store.lanes.get(lane);
        let room = lane.leased == 0 || (lane.holder == consumer && lane.leased < u32::from(self.policy.lane_window));
        lane.next == entry && room
    }
}
