//! The model: one map of messages with the states of the table, and a scan for everything.
//!
//! It has no windows of slots, wheels, lists through slabs or free lists. It contains only the promised rules: which
//! consumer may have which message, in which order ready messages are served, when the floor moves, and what is held.

mod settling;

use std::collections::{BTreeMap, BTreeSet};

use thalweg_log::{Micros, Offset};

use crate::machine::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Delayed,
    Ready,
    Leased,
    Waiting,
    Ending,
    Settled(FinalState),
}

#[derive(Clone, Debug)]
pub struct Message {
    pub at: At,
    pub lane: Option<u64>,
    pub consumer: u32,
    pub deliveries: u32,
    pub failures: u32,
    pub due: Micros,
    pub expires_at: Micros,
    pub first: Micros,
    pub claimed: Micros,
    pub hint: u32,
    pub reason: Option<RemovalReason>,
    /// The machine has no entry for it.
    pub asleep: bool,
    /// It slept, and was not delivered since.
    pub roused: bool,
    /// It slept once.
    pub slept: bool,
    passed_at: Micros,
    revoked: bool,
    /// Returned by `take_ending`.
    taken: bool,
    /// The millisecond at which its timer fires.
    timer: Option<i64>,
    firing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    Single(Offset),
    Lane(u64),
}

pub struct Model {
    pub policy: DeliveryPolicy,
    pub messages: BTreeMap<Offset, Message>,
    pub floor: Offset,
    pub cursor: Offset,
    pub held: BTreeSet<Offset>,
    anybody: Vec<Node>,
    holders: Vec<(u32, u64)>,
    holder_first: bool,
    endings: Vec<Offset>,
    now: Micros,
    wheel: i64,
    pub totals: MessageCounts,
}

fn tick_up(time: Micros) -> i64 {
    time.max(0).div_euclid(1000) + i64::from(time.max(0).rem_euclid(1000) != 0)
}

impl Model {
    pub fn new(policy: DeliveryPolicy, start: Offset) -> Self {
        Model {
            policy,
            messages: BTreeMap::new(),
            floor: start,
            cursor: start,
            held: BTreeSet::new(),
            anybody: Vec::new(),
            holders: Vec::new(),
            holder_first: true,
            endings: Vec::new(),
            now: 0,
            wheel: 0,
            totals: MessageCounts::default(),
        }
    }

    pub fn is_active(&self, offset: Offset) -> bool {
        self.messages
            .get(&offset)
            .is_some_and(|message| !matches!(message.at, At::Settled(_)))
    }

    pub fn counts(&self) -> MessageCounts {
        let of = |at: At| self.messages.values().filter(|message| message.at == at).count() as u64;
        let lanes: BTreeSet<u64> = self
            .messages
            .values()
            .filter(|m| !matches!(m.at, At::Settled(_)) && !m.asleep)
            .filter_map(|m| m.lane)
            .collect();
        MessageCounts {
            delayed: of(At::Delayed),
            ready: of(At::Ready),
            leased: of(At::Leased),
            waiting: of(At::Waiting),
            ending: of(At::Ending),
            held: self.held.len() as u64,
            lanes: lanes.len() as u64,
            ..self.totals
        }
    }

    pub fn next_timer(&self) -> Option<Micros> {
        let timers = self.messages.values().filter_map(|message| message.timer);
        let asleep = self
            .messages
            .values()
            .filter(|message| message.asleep && self.may_rouse());
        let ahead = self.horizon() / 2;
        let rouse = asleep.map(|message| message.due.saturating_sub(ahead)).min();
        timers.min().map(|tick| tick * 1000).into_iter().chain(rouse).min()
    }

    pub fn may_rouse(&self) -> bool {
        let busy = |message: &&Message| !matches!(message.at, At::Settled(_) | At::Delayed);
        self.messages.values().filter(busy).count() < self.policy.max_pending as usize
    }

    fn horizon(&self) -> Micros {
        let roused = |message: &&Message| message.at == At::Delayed && !message.asleep;
        let many = self.messages.values().filter(roused).count() >= self.policy.max_pending as usize;
        if many { 0 } else { self.policy.sleep_after }
    }

    /// Sleeping messages of the span that were found get an entry if they are due soon.
    pub fn rouse(&mut self, span: std::ops::Range<Offset>, messages: &[MessageMeta], now: Micros) {
        let asleep = self.messages.range(span).filter(|(_, message)| message.asleep);
        for offset in asleep.map(|(offset, _)| *offset).collect::<Vec<_>>() {
            let Some(passing) = messages.iter().find(|message| message.offset == offset) else {
                self.gone(offset, true, now);
                continue;
            };
            let due = self.messages[&offset].due;
            if due > now && due - now > self.horizon() {
                continue;
            }
            self.wake(offset, passing, now);
            if due > now {
                self.arm(offset, due);
            } else {
                self.make_ready(offset);
            }
        }
    }

    fn wake(&mut self, offset: Offset, passing: &MessageMeta, now: Micros) {
        let lane = self.lane_of(passing);
        let message = self.get(offset);
        message.asleep = false;
        message.roused = true;
        message.lane = lane;
        message.hint = passing.hint;
        message.expires_at = passing.expires_at.unwrap_or(Micros::MAX);
        message.passed_at = now;
        if offset < self.floor {
            self.held.insert(offset);
        }
    }

    pub fn has_ready(&self, consumer: u32) -> bool {
        !self.anybody.is_empty() || self.holders.iter().any(|(holder, _)| *holder == consumer)
    }

    pub fn endings_are_empty(&self) -> bool {
        self.endings.is_empty()
    }

    fn get(&mut self, offset: Offset) -> &mut Message {
        self.messages.get_mut(&offset).unwrap()
    }

    // Lanes.

    fn leased_of(&self, lane: u64) -> Vec<Offset> {
        let in_lane = self.messages.iter().filter(|(_, m)| m.lane == Some(lane));
        in_lane
            .filter(|(_, m)| m.at == At::Leased)
            .map(|(offset, _)| *offset)
            .collect()
    }

    /// The unleased messages that are queued in the lane.
    fn row_of(&self, lane: u64) -> Vec<Offset> {
        let in_lane = self.messages.iter().filter(|(_, m)| m.lane == Some(lane));
        in_lane
            .filter(|(_, m)| matches!(m.at, At::Ready | At::Waiting))
            .map(|(offset, _)| *offset)
            .collect()
    }

    fn relist(&mut self, lane: Option<u64>) {
        let Some(lane) = lane else { return };
        let (leased, row) = (self.leased_of(lane), self.row_of(lane));
        let may_go = |first: &Offset| *first <= self.cursor && self.messages[first].at == At::Ready;
        let open = row.first().is_some_and(may_go) && leased.len() < usize::from(self.policy.lane_window);
        let was_any = self.anybody.contains(&Node::Lane(lane));
        let was_holder = self.holders.iter().any(|(_, other)| *other == lane);
        let (any, holder) = (open && leased.is_empty(), open && !leased.is_empty());
        if was_any && !any {
            self.anybody.retain(|node| *node != Node::Lane(lane));
        }
        if was_holder && !holder {
            self.holders.retain(|(_, other)| *other != lane);
        }
        if any && !was_any {
            self.anybody.push(Node::Lane(lane));
        }
        if holder && !was_holder {
            let consumer = self.messages[&leased[0]].consumer;
            self.holders.push((consumer, lane));
        }
    }

    // Timers.

    fn arm(&mut self, offset: Offset, due: Micros) {
        let tick = tick_up(due).max(self.wheel);
        let message = self.get(offset);
        message.timer = Some(tick);
        message.firing = false;
    }

    fn cancel(&mut self, offset: Offset) {
        let message = self.get(offset);
        message.timer = None;
        message.firing = false;
    }

    pub fn advance(&mut self, now: Micros) {
        if now < self.now - 1_000_000 {
            self.now = now;
            self.wheel = now.max(0) / 1000;
            let armed: Vec<Offset> = self
                .messages
                .iter()
                .filter(|(_, m)| m.timer.is_some())
                .map(|(o, _)| *o)
                .collect();
            for offset in armed {
                let m = &self.messages[&offset];
                let due = match m.at {
                    At::Waiting if m.reason.is_none() => m.due.min(m.expires_at),
                    At::Ready => m.expires_at,
                    _ => m.due,
                };
                self.arm(offset, due);
            }
        }
        self.now = self.now.max(now);
        let now = self.now;
        loop {
            let first = self.messages.values().filter_map(|m| m.timer).min();
            let Some(tick) = first.filter(|tick| *tick <= now.max(0) / 1000) else {
                break;
            };
            self.wheel = tick;
            let due: Vec<Offset> = self
                .messages
                .iter()
                .filter(|(_, m)| m.timer == Some(tick))
                .map(|(o, _)| *o)
                .collect();
            for offset in &due {
                self.get(*offset).timer = None;
                self.get(*offset).firing = true;
            }
            for offset in due {
                if std::mem::take(&mut self.get(offset).firing) {
                    self.fire(offset, now);
                }
            }
        }
        self.wheel = self.wheel.max(now.max(0) / 1000);
        self.trim(now);
    }

    fn fire(&mut self, offset: Offset, now: Micros) {
        let message = self.messages[&offset].clone();
        match message.at {
            At::Leased => {
                self.totals.lease_timeouts += 1;
                self.fail(offset, None, now);
            }
            At::Waiting if message.reason.is_some() => {
                self.get(offset).at = At::Ending;
                self.endings.push(offset);
            }
            At::Waiting if message.expires_at <= now => self.end(offset, RemovalReason::Expired),
            At::Waiting | At::Delayed => self.make_ready(offset),
            At::Ready => self.end(offset, RemovalReason::Expired),
            At::Ending | At::Settled(_) => panic!("a timer of {message:?}"),
        }
    }

    // Changes of state.

    fn make_ready(&mut self, offset: Offset) {
        self.cancel(offset);
        let message = self.get(offset);
        message.at = At::Ready;
        let (lane, expires_at) = (message.lane, message.expires_at);
        if expires_at != Micros::MAX {
            self.arm(offset, expires_at);
        }
        match lane {
            Some(_) => self.relist(lane),
            None => self.anybody.push(Node::Single(offset)),
        }
    }

    fn leave_lists(&mut self, offset: Offset) -> Option<u64> {
        self.cancel(offset);
        self.anybody.retain(|node| *node != Node::Single(offset));
        self.endings.retain(|other| *other != offset);
        self.get(offset).lane.take()
    }

    fn end(&mut self, offset: Offset, reason: RemovalReason) {
        let lane = self.leave_lists(offset);
        let message = self.get(offset);
        message.at = At::Ending;
        message.reason = Some(reason);
        message.revoked = false;
        message.taken = false;
        self.endings.push(offset);
        self.relist(lane);
    }

    fn settle(&mut self, offset: Offset, kind: FinalState, now: Micros) {
        let lane = self.leave_lists(offset);
        self.get(offset).at = At::Settled(kind);
        self.get(offset).asleep = false;
        self.count(kind, 1);
        self.relist(lane);
        if !self.held.remove(&offset) && offset == self.floor {
            self.trim(now);
        }
    }

    fn count(&mut self, kind: FinalState, by: u64) {
        match kind {
            FinalState::Acked => self.totals.acked += by,
            FinalState::Dead => self.totals.dead += by,
            FinalState::Expired => self.totals.expired += by,
            FinalState::Dropped => self.totals.dropped += by,
            FinalState::Skipped => self.totals.skipped += by,
        }
    }

    fn trim(&mut self, now: Micros) {
        while self.floor < self.cursor {
            let at = &self.messages[&self.floor];
            if at.roused && self.is_active(self.floor) {
                self.held.insert(self.floor);
            } else if self.is_active(self.floor) && !at.asleep {
                let far = self.cursor - self.floor > u64::from(self.policy.max_pending / 2);
                let old = now - self.messages[&self.floor].passed_at >= HOLD_AFTER;
                if !(far || old) || self.held.len() >= self.policy.max_held as usize {
                    return;
                }
                self.held.insert(self.floor);
            }
            self.floor += 1;
        }
    }

    fn exhausted(&self, offset: Offset, now: Micros) -> Option<RemovalReason> {
        let message = &self.messages[&offset];
        if message.deliveries > self.policy.max_retries {
            return Some(RemovalReason::MaxRetries);
        }
        let timeout = self.policy.total_timeout;
        (timeout > 0 && message.deliveries > 0 && now - message.first >= timeout).then_some(RemovalReason::Timeout)
    }

    fn revoke_later(&mut self, offset: Offset) {
        let Some(lane) = self.messages[&offset].lane else {
            return;
        };
        for later in self.leased_of(lane).into_iter().rev().filter(|later| *later > offset) {
            self.get(later).revoked = true;
            self.make_ready(later);
        }
    }

    fn fail(&mut self, offset: Offset, delay: Option<Micros>, now: Micros) -> FailOutcome {
        self.get(offset).failures += 1;
        self.revoke_later(offset);
        let expired = self.messages[&offset].expires_at <= now;
        if let Some(reason) = self
            .exhausted(offset, now)
            .or(expired.then_some(RemovalReason::Expired))
        {
            self.end(offset, reason);
            return FailOutcome::Ending(reason);
        }
        let backoff = self.policy.backoff;
        let mut delay_by_policy = backoff.initial as f64;
        for _ in 1..self.messages[&offset].failures {
            delay_by_policy *= backoff.multiplier;
        }
        let delay = delay.unwrap_or(delay_by_policy.min(backoff.max as f64) as Micros);
        let retry_at = now + delay;
        if retry_at <= now {
            self.make_ready(offset);
        } else {
            self.cancel(offset);
            let message = self.get(offset);
            message.at = At::Waiting;
            message.due = retry_at;
            let (lane, due) = (message.lane, retry_at.min(message.expires_at));
            self.arm(offset, due);
            self.relist(lane);
        }
        FailOutcome::Retry(retry_at)
    }

    fn lease(&mut self, offset: Offset, consumer: u32, visibility: Micros, now: Micros) -> Lease {
        self.leave_row(offset);
        self.cancel(offset);
        let message = self.get(offset);
        message.at = At::Leased;
        message.deliveries += 1;
        let again = message.deliveries > 1;
        if !again {
            message.first = now;
        }
        message.claimed = now;
        message.consumer = consumer;
        message.due = now + visibility;
        message.revoked = false;
        message.roused = false;
        let (lane, delivery, hint) = (message.lane, message.deliveries, message.hint);
        self.totals.redelivered += u64::from(again);
        self.arm(offset, now + visibility);
        self.relist(lane);
        Lease {
            offset,
            delivery,
            hint,
            deadline: now + visibility,
        }
    }

    fn leave_row(&mut self, offset: Offset) {
        self.anybody.retain(|node| *node != Node::Single(offset));
    }

    // The machine's interface.

    pub fn next_ready(&mut self, consumer: u32, visibility: Micros, now: Micros) -> Option<Lease> {
        loop {
            let own = self
                .holders
                .iter()
                .find(|(holder, _)| *holder == consumer)
                .map(|(_, lane)| Node::Lane(*lane));
            let any = self.anybody.first().copied();
            let node = if self.holder_first { own.or(any) } else { any.or(own) }?;
            self.holder_first = !self.holder_first;
            let offset = match node {
                Node::Single(offset) => offset,
                Node::Lane(lane) => self.row_of(lane)[0],
            };
            let expired = self.messages[&offset].expires_at <= now;
            match self
                .exhausted(offset, now)
                .or(expired.then_some(RemovalReason::Expired))
            {
                Some(reason) => self.end(offset, reason),
                None => return Some(self.lease(offset, consumer, visibility, now)),
            }
        }
    }

    pub fn pass(&mut self, message: &MessageMeta, consumer: u32, visibility: Micros, now: Micros) -> PassOutcome {
        if let Some(passed) = self.reach(message, now) {
            return passed;
        }
        if self.step_over_unclaimable(message, now) {
            return PassOutcome::Taken;
        }
        let lane = self.lane_of(message);
        if let Some(lane) = lane {
            let leased = self.leased_of(lane);
            let row = self.row_of(lane);
            let free = row.first().is_none_or(|first| *first > message.offset)
                && leased.len() < usize::from(self.policy.lane_window)
                && leased.iter().all(|offset| self.messages[offset].consumer == consumer);
            if !free {
                if self.policy.ordering == LaneOrdering::Strict {
                    return PassOutcome::Full(CursorStop::Lane);
                }
                self.admit(message, At::Ready, now);
                if let Some(at) = message.expires_at {
                    self.arm(message.offset, at);
                }
                self.relist(Some(lane));
                self.step(now);
                return PassOutcome::Taken;
            }
        }
        self.admit(message, At::Ready, now);
        let lease = self.lease(message.offset, consumer, visibility, now);
        self.step(now);
        PassOutcome::Leased(lease)
    }

    pub fn pass_unclaimable(&mut self, message: &MessageMeta, now: Micros) -> bool {
        match self.reach(message, now) {
            Some(passed) => passed == PassOutcome::Taken,
            None => self.step_over_unclaimable(message, now),
        }
    }

    pub fn discard(&mut self, message: &MessageMeta, to_dlq: bool, now: Micros) -> PassOutcome {
        if let Some(passed) = self.reach(message, now) {
            return passed;
        }
        self.admit(message, At::Delayed, now);
        if to_dlq {
            self.end(message.offset, RemovalReason::Overflow);
        } else {
            self.get(message.offset).at = At::Settled(FinalState::Dropped);
            self.totals.dropped += 1;
        }
        self.step(now);
        PassOutcome::Taken
    }

    pub fn pass_gap(&mut self, to: Offset, lost: bool, now: Micros) -> Offset {
        while self.cursor < to && self.full(now).is_none() {
            let offset = self.cursor;
            let nothing = MessageMeta {
                offset,
                lane: None,
                expires_at: None,
                not_before: None,
                skip: true,
                hint: 0,
            };
            self.admit(&nothing, At::Settled(FinalState::Skipped), now);
            match lost {
                true => self.totals.lost += 1,
                false => self.totals.skipped += 1,
            }
            self.step(now);
        }
        self.cursor
    }

    fn reach(&mut self, message: &MessageMeta, now: Micros) -> Option<PassOutcome> {
        self.pass_gap(message.offset, false, now);
        if message.offset < self.cursor {
            return Some(PassOutcome::Taken);
        }
        self.full(now).map(PassOutcome::Full)
    }

    fn full(&mut self, now: Micros) -> Option<CursorStop> {
        let width = |model: &Model| model.cursor - model.floor >= u64::from(model.policy.max_pending);
        if width(self) {
            self.trim(now);
        }
        if !width(self) {
            return None;
        }
        self.totals.stopped += 1;
        Some(if self.policy.max_held == 0 {
            CursorStop::Window
        } else {
            CursorStop::Held
        })
    }

    fn step_over_unclaimable(&mut self, message: &MessageMeta, now: Micros) -> bool {
        if message.skip {
            self.admit(message, At::Settled(FinalState::Skipped), now);
            self.totals.skipped += 1;
        } else if let Some(due) = message.not_before.filter(|due| *due > now) {
            self.admit(message, At::Delayed, now);
            self.get(message.offset).due = due;
            if due - now > self.policy.sleep_after {
                let delayed = self.get(message.offset);
                (delayed.asleep, delayed.slept, delayed.lane) = (true, true, None);
            } else {
                self.arm(message.offset, due);
            }
        } else if message.expires_at.is_some_and(|at| at <= now) {
            self.admit(message, At::Delayed, now);
            self.end(message.offset, RemovalReason::Expired);
        } else {
            return false;
        }
        self.step(now);
        true
    }

    fn lane_of(&self, message: &MessageMeta) -> Option<u64> {
        match self.policy.ordering {
            LaneOrdering::None => None,
            LaneOrdering::Partition => message.lane,
            LaneOrdering::Strict => Some(0),
        }
    }

    fn admit(&mut self, passing: &MessageMeta, at: At, now: Micros) {
        let message = Message {
            at,
            lane: if matches!(at, At::Settled(_)) {
                None
            } else {
                self.lane_of(passing)
            },
            consumer: 0,
            deliveries: 0,
            failures: 0,
            due: 0,
            expires_at: passing.expires_at.unwrap_or(Micros::MAX),
            first: 0,
            claimed: 0,
            hint: passing.hint,
            reason: None,
            asleep: false,
            roused: false,
            slept: false,
            passed_at: now,
            revoked: false,
            taken: false,
            timer: None,
            firing: false,
        };
        self.messages.insert(passing.offset, message);
    }

    fn step(&mut self, now: Micros) {
        self.cursor += 1;
        self.skip_known();
        let far = self.cursor - self.floor > u64::from(self.policy.max_pending / 2);
        if far || !self.is_active(self.floor) || self.messages[&self.floor].asleep {
            self.trim(now);
        }
    }

    pub fn gone(&mut self, offset: Offset, lost: bool, now: Micros) -> bool {
        if !self.is_active(offset) {
            return false;
        }
        self.settle(offset, FinalState::Skipped, now);
        self.totals.skipped -= u64::from(lost);
        self.totals.lost += u64::from(lost);
        true
    }

    pub fn drop_oldest(&mut self, to_dlq: bool, now: Micros) -> Option<Offset> {
        let unleased = |message: &Message| matches!(message.at, At::Delayed | At::Ready | At::Waiting);
        let offset = *self.messages.iter().find(|(_, message)| unleased(message))?.0;
        if to_dlq && self.messages[&offset].asleep {
            let unread = MessageMeta {
                offset,
                lane: None,
                expires_at: None,
                not_before: None,
                skip: false,
                hint: NO_HINT,
            };
            self.wake(offset, &unread, now);
        }
        match to_dlq {
            true => self.end(offset, RemovalReason::Overflow),
            false => self.settle(offset, FinalState::Dropped, now),
        }
        Some(offset)
    }

    pub fn purge(&mut self, next: Offset) {
        let next = next.max(self.cursor);
        let unpassed = (next - self.cursor).saturating_sub(self.ahead());
        for message in self
            .messages
            .values_mut()
            .filter(|message| !matches!(message.at, At::Settled(_)))
        {
            message.at = At::Settled(FinalState::Dropped);
            (message.lane, message.timer, message.asleep) = (None, None, false);
            self.totals.dropped += 1;
        }
        self.totals.dropped += unpassed;
        self.anybody.clear();
        self.holders.clear();
        self.holder_first = true;
        self.endings.clear();
        self.held.clear();
        (self.floor, self.cursor) = (next, next);
        self.wheel = self.now.max(0) / 1000;
    }

    pub fn seek(&mut self, to: Offset) -> Offset {
        if to > self.cursor {
            return self.cursor;
        }
        self.cursor = to;
        let again: Vec<Offset> = self.messages.range(to..).map(|(offset, _)| *offset).collect();
        for offset in again {
            self.held.remove(&offset);
            let message = &self.messages[&offset];
            let active = !matches!(message.at, At::Settled(_));
            if active && message.deliveries > 0 && message.reason.is_none() {
                match message.at {
                    At::Leased | At::Waiting => self.make_ready(offset),
                    _ => self.relist(message.lane),
                }
                continue;
            }
            let lane = self.leave_lists(offset);
            self.messages.remove(&offset);
            self.relist(lane);
        }
        self.floor = self.floor.min(to);
        self.skip_known();
        self.cursor
    }

    /// A message that was delivered before a seek is already known when the cursor gets there.
    fn skip_known(&mut self) {
        while let Some(message) = self.messages.get(&self.cursor) {
            let lane = message.lane;
            self.cursor += 1;
            self.relist(lane);
        }
    }

    /// At or after the cursor.
    pub fn ahead(&self) -> u64 {
        self.messages.range(self.cursor..).count() as u64
    }

    pub fn set_policy(&mut self, policy: DeliveryPolicy) {
        self.policy = policy;
        let lanes: BTreeSet<u64> = self.messages.values().filter_map(|message| message.lane).collect();
        for lane in lanes {
            self.relist(Some(lane));
        }
    }
}
