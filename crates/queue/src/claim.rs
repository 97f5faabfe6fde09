//! Consumers take messages: what is ready is handed out, else the claim waits until it is woken.
//!
//! A work group hands out leases; a stream group hands out what follows its position. Messages come from memory; when they
//! have to be read from a disk, the claim lets go of all locks, has them read, and looks again.

mod work_claim;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_log::{Micros, Offset};
use tokio::time::Instant;

use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupPartitionInner, GroupState};
use crate::ids::LeaseTag;
use crate::members::{MemberKind, PartitionShare};
use crate::message::Message;
use crate::queue::Queue;
use crate::queues::no_group;
use crate::settings::RetentionMode;
use crate::store::Cursor;
use crate::streams::StreamClaim;
use crate::times::micros;
use crate::waiters::Waiter;
use work_claim::WorkClaim;

/// Messages of one claim.
const CLAIM_MAX: u32 = 10_000;
/// Messages that a claim passes over before others have their turn: a millisecond of work, or less. What it hands out is
/// bounded by what it asks for.
const PASSED_AT_ONCE: usize = 4_000;

/// What a consumer wants.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Messages; at least one.
    pub max: u32,
    /// Of payloads, keys and properties; one message at least is given, however large.
    pub max_bytes: u64,
    /// How long to wait if nothing is ready.
    pub wait: Duration,
    /// How long the messages are the consumer's; `None`: as the queue is set to.
    pub visibility: Option<Duration>,
    /// Leases that the consumer may hold, if it wants fewer than the queue allows.
    pub max_in_flight: Option<u32>,
}

impl Default for ClaimRequest {
    fn default() -> ClaimRequest {
        ClaimRequest {
            max: 1,
            max_bytes: u64::MAX,
            wait: Duration::ZERO,
            visibility: None,
            max_in_flight: None,
        }
    }
}

/// A message that was handed out.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub partition: u32,
    /// From 1; with the message's place and the tag it is the receipt. Stream groups always have 1.
    pub delivery: u32,
    pub tag: LeaseTag,
    /// When the lease ends; 0 in stream groups.
    pub deadline: Micros,
    pub message: Message,
}

/// A consumer of a group, for as long as it asks.
pub struct ConsumerHandle {
    pub(crate) queue: Arc<Queue>,
    pub(crate) group: Arc<Group>,
    pub(crate) seat: ClaimantState,
    /// Otherwise whoever asks has left before.
    is_answered: bool,
}

/// A consumer's place in its group, and what it may take as far as it knows.
pub(crate) struct ClaimantState {
    pub(crate) index: u32,
    kind: MemberKind,
    /// Of the membership, whose index others may get later.
    pub(crate) reader: u64,
    pub(crate) request: u64,
    share: PartitionShare,
    /// Of the shares of which this is one.
    version: u64,
    /// Partitions of which what comes next cannot be read.
    unreadable: Vec<u32>,
}

impl Drop for ConsumerHandle {
    fn drop(&mut self) {
        let now = self.queue.clock.now();
        let mut members = self.group.members.lock();
        match self.is_answered {
            true => members.request_ends(now, self.seat.index),
            false => members.request_abandoned(now, self.seat.index),
        }
        drop(members);
        self.queue.look_by(&self.group);
    }
}

impl ConsumerHandle {
    /// An answer goes to the consumer, so it may ask again: its membership lasts. Dropped without that, it ends.
    pub fn answered(&mut self) {
        self.is_answered = true;
    }

    /// What is ready now and in memory, added to `out`, without waiting. Returns how many leases more the consumer may
    /// take.
    pub fn claim_now(&mut self, want: ClaimRequest, out: &mut Vec<Delivery>) -> Result<u32> {
        self.queue.may_consume(&self.group)?;
        if !self.queue.epoch.is_stored() {
            return Ok(0);
        }
        // Whoever asks is known to the state partition by its name only if it can come back: this one cannot.
        self.seat.kind = MemberKind::Pipeline;
        loop {
            let seat = ("", &mut self.seat);
            let (room, first) = self.queue.try_claim(&self.group, seat, want, ScanMode::Quickly, out)?;
            if first != ClaimStep::Turn {
                return Ok(room);
            }
        }
    }
}

/// What one look at a partition came to.
pub(crate) enum ScanOutcome {
    /// What there is was given.
    Done,
    /// The disk has to be read at this offset first.
    Load(Offset),
    /// Messages that a stream has not read are gone; it goes on at the second offset.
    Gap(Offset, Offset),
    /// Very many were passed over: others have their turn, and then it goes on where it was.
    More,
}

/// What a claim that got nothing has to do before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// There is nothing for it.
    Nothing,
    /// The disk has to be read in this partition, at this offset.
    Load(u32, Offset),
    /// Others have their turn.
    Turn,
}

impl Queue {
    /// Hands messages to a consumer, who is a member of the group from then on; waits for some if there are none. Empty
    /// after that time. A consumer that holds as many leases as it may gets `too_many_pending`, after waiting.
    pub async fn claim(
        self: &Arc<Queue>,
        group: &Arc<Group>,
        consumer: &str,
        kind: MemberKind,
        want: ClaimRequest,
    ) -> Result<Vec<Delivery>> {
        self.may_consume(group)?;
        self.store_epoch().await?;
        if !group.is_work() && self.settings_now().retention.mode == RetentionMode::Policy {
            self.shed_kept().await;
        }
        let mut asking = self.ask(group, consumer, kind)?;
        let claimed = self.claim_at(group, consumer, &mut asking.seat, want).await;
        asking.answered();
        claimed
    }

    async fn claim_at(
        self: &Arc<Queue>,
        group: &Arc<Group>,
        consumer: &str,
        seat: &mut ClaimantState,
        want: ClaimRequest,
    ) -> Result<Vec<Delivery>> {
        let until = (!want.wait.is_zero()).then(|| Instant::now() + want.wait);
        let mut out = Vec::new();
        // What is there goes out without the way through those who wait.
        let (mut room, mut first) = self.try_claim(group, (consumer, seat), want, ScanMode::Quickly, &mut out)?;
        let mut listed: Option<WaiterRegistration<'_>> = None;
        let mut unreadable = None;
        loop {
            if !out.is_empty() {
                return Ok(out);
            }
            match first {
                ClaimStep::Nothing => {}
                ClaimStep::Load(partition, from) => {
                    if let Err(error) = self.load(group, partition, from).await {
                        // What other partitions have comes first.
                        seat.unreadable.push(partition);
                        unreadable = Some(error);
                    }
                }
                ClaimStep::Turn => {
                    tokio::task::yield_now().await;
                    self.may_consume(group)?;
                }
            }
            if first != ClaimStep::Nothing {
                (room, first) = self.try_claim(group, (consumer, seat), want, ScanMode::Closely, &mut out)?;
                continue;
            }
            if let Some(error) = unreadable.take() {
                return Err(error);
            }
            // Called for what it may not take now, it calls the next by being dropped.
            if let Some(waited) = listed.take()
                && room > 0
            {
                waited.has_looked();
            }
            let Some(until) = until.filter(|until| Instant::now() < *until) else {
                return if room > 0 {
                    Ok(out)
                } else {
                    Err(self.too_many(group, consumer, want))
                };
            };
            // What comes from here on calls this claim, what was there before it finds.
            let full = room == 0;
            let waiting = listed.insert(WaiterRegistration::new(self, group, &seat.share, full));
            let version = seat.version;
            self.may_consume(group)?;
            (room, first) = self.try_claim(group, (consumer, seat), want, ScanMode::Closely, &mut out)?;
            let found_nothing = out.is_empty() && first == ClaimStep::Nothing;
            // With another share it is for others' messages that it would be called; and what calls those that may take no
            // more calls nobody else.
            if found_nothing && seat.version == version && (room == 0) == full {
                tokio::select! {
                    () = waiting.waiter.called() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
            // Before it looks: what comes after that look calls others.
            waiting.leave();
            if found_nothing {
                self.may_consume(group)?;
                (room, first) = self.try_claim(group, (consumer, seat), want, ScanMode::Closely, &mut out)?;
            }
        }
    }

    /// An answer could not be brought to a consumer: it does not keep its partitions for its next request.
    pub fn client_gone(&self, group: &Group, consumer: &str) {
        let mut members = group.members.lock();
        if let Some(index) = members.find(consumer) {
            members.client_gone(self.clock.now(), index);
        }
        drop(members);
        self.look_by(group);
    }

    /// Makes the consumer a member; it is asking until the answer is dropped.
    pub fn ask(self: &Arc<Queue>, group: &Arc<Group>, consumer: &str, kind: MemberKind) -> Result<ConsumerHandle> {
        let now = self.clock.now();
        let mut members = group.members.lock();
        let index = members.join(now, consumer, kind)?;
        let (reader, request) = members.request_begins(now, index);
        let seat = ClaimantState {
            index,
            kind,
            reader,
            request,
            version: group.shared.version(),
            share: members.share(index),
            unreadable: Vec::new(),
        };
        drop(members);
        self.look_by(group);
        Ok(ConsumerHandle {
            queue: self.clone(),
            group: group.clone(),
            is_answered: false,
            seat,
        })
    }

    /// Whether consumers may take messages.
    fn may_consume(&self, group: &Group) -> Result<()> {
        let what = if self.removed.load(Ordering::Relaxed) {
            return Err(QueueError::QueueNotFound {
                queue: self.name().clone(),
            });
        } else if group.removed.load(Ordering::Relaxed) {
            return Err(no_group(self, group.name()));
        } else if self.paused.consume.load(Ordering::Relaxed) {
            format!("consuming from queue {}", self.name())
        } else if group.is_paused() {
            format!("group {} of queue {}", group.name(), self.name())
        } else {
            return Ok(());
        };
        Err(QueueError::Paused { what: what.into() })
    }

    fn too_many(&self, group: &Group, consumer: &str, want: ClaimRequest) -> QueueError {
        QueueError::TooManyPending {
            queue: self.name().clone(),
            group: group.name().clone(),
            consumer: SmolStr::new(consumer),
            limit: self
                .settings_now()
                .max_in_flight
                .min(want.max_in_flight.unwrap_or(u32::MAX)),
        }
    }

    /// What is ready now, without waiting. Returns how many leases the consumer may still take, and what has to be done first
    /// if that is why there is nothing.
    pub(crate) fn try_claim(
        &self,
        group: &Group,
        (consumer, seat): (&str, &mut ClaimantState),
        want: ClaimRequest,
        looking: ScanMode,
        out: &mut Vec<Delivery>,
    ) -> Result<(u32, ClaimStep)> {
        seat.look(group);
        let defaults = &self.defaults;
        let most = defaults.max_in_flight.load(Ordering::Relaxed);
        let max_in_flight = want.max_in_flight.map_or(most, |asked| asked.min(most));
        let room = match seat.share.here {
            true => max_in_flight.saturating_sub(group.shared.held(seat.index)),
            false => 0,
        };
        let given = out.len();
        let visibility = want
            .visibility
            .map_or_else(|| defaults.visibility.load(Ordering::Relaxed), micros);
        // In memory reading the clock is half of what a claim costs.
        let roughly = looking == ScanMode::Quickly && self.is_in_memory() && visibility > 50 * ROUGHLY;
        let now = if roughly {
            self.clock.roughly_now()
        } else {
            self.clock.now()
        };
        let wanted = ClaimBudget {
            given,
            max: given + want.max.min(room).min(CLAIM_MAX) as usize,
            bytes: want.max_bytes,
            visibility,
            now,
            late: if roughly { ROUGHLY } else { 0 },
            has_looked: false,
            left: PASSED_AT_ONCE,
            reader: seat.reader,
        };
        let mut round = ClaimRound {
            queue: self,
            group,
            consumer: (seat.index, consumer, seat.kind),
            looking,
            unreadable: &seat.unreadable,
            wanted,
            first: ClaimStep::Nothing,
            out,
        };
        let mut looked = round.over(&seat.share);
        if roughly && looked.is_ok() && round.found_nothing() {
            // Something may have come due since the kernel's last tick.
            (round.wanted.now, round.wanted.late) = (self.clock.now(), 0);
            looked = round.over(&seat.share);
        }
        let (first, taken) = (round.first, out.len() - given);
        looked?;
        Ok((room, if taken == 0 { first } else { ClaimStep::Nothing }))
    }

    fn look(
        &self,
        group: &Group,
        partition: u32,
        consumer: (u32, &str, MemberKind),
        looking: ScanMode,
        wanted: &mut ClaimBudget,
        out: &mut Vec<Delivery>,
    ) -> Result<ScanOutcome> {
        let (Some(store), Some(part)) = (self.store(partition), group.part(partition)) else {
            return Ok(ScanOutcome::Done);
        };
        let latest = wanted.now + wanted.late;
        if looking == ScanMode::Quickly && store.next_hint().is_some_and(|next| part.is_idle(next, latest)) {
            return Ok(ScanOutcome::Done);
        }
        wanted.has_looked = true;
        let mut inner = part.inner.lock();
        if group.is_work() && !self.is_in_memory() {
            inner.declare(
                self.log.as_ref(),
                self.state_id(partition),
                group.id,
                consumer,
                wanted.now,
            )?;
        }
        let before = out.len();
        let look = self.hand_out(group, partition, consumer.0, &mut inner, wanted, out);
        if inner.keep_frames(wanted.now) {
            self.forget_frames_later();
        }
        let taken = out.get(before..).unwrap_or_default();
        inner.waits.observe(&self.latency, wanted.now, taken);
        part.delivered.add(&mut inner, taken.len() as u64);
        let was = (part.wants(), inner.counted());
        let stored = self.after(group, partition, part, &mut inner, wanted.now);
        if let Err(error) = stored {
            take_back(&mut inner, out.drain(before..), wanted.now);
            // What stands in the way of storing a lease stands in the way of storing its end.
            let _ = self.after(group, partition, part, &mut inner, wanted.now);
            return Err(error);
        }
        self.passed_over(part, &inner, was);
        look
    }

    /// Hands out what the state of a group has for a consumer.
    #[inline]
    fn hand_out(
        &self,
        group: &Group,
        partition: u32,
        consumer: u32,
        inner: &mut GroupPartitionInner,
        wanted: &mut ClaimBudget,
        out: &mut Vec<Delivery>,
    ) -> Result<ScanOutcome> {
        let Some(store) = self.store(partition) else {
            return Ok(ScanOutcome::Done);
        };
        let room = inner.room_for(wanted.max.saturating_sub(out.len()));
        let GroupPartitionInner {
            state, cursor, older, ..
        } = inner;
        let before = out.len();
        let mut tag = LeaseTag {
            queue: self.id,
            group: group.id,
            lease: 0,
        };
        let dropped = self.has_letters.then(|| self.dropped.lock());
        match state {
            GroupState::Work(machine) => {
                machine.advance(wanted.now);
                tag.lease = machine.epoch().into();
                let mut taker = WorkClaim {
                    tag,
                    dropped: dropped.as_deref(),
                    group,
                    store,
                    clock: self.clock.as_ref(),
                    partition,
                    consumer,
                    room,
                    wanted,
                    out,
                };
                let look = taker.take(machine, cursor, older);
                if !machine.has_any_ready() && !older.is_empty() {
                    *older = Cursor::default();
                }
                if out.len() > before {
                    group.shared.take(consumer, (out.len() - before) as u32);
                }
                look
            }
            GroupState::Stream(machine) => {
                let mut reading = StreamClaim {
                    tag,
                    dropped: dropped.as_deref(),
                    group,
                    store,
                    partition,
                    room,
                    wanted,
                    out,
                };
                reading.read_on(machine, cursor)
            }
        }
    }

    /// What a look has settled by itself makes room as what consumers settle does: it was not for the group, has expired or
    /// does not exist. `was` is what the group needed from, and what the part counted, before.
    pub(crate) fn passed_over(&self, part: &GroupPartition, inner: &GroupPartitionInner, was: (Offset, i64)) {
        if (part.wants(), inner.counted()) != was {
            self.has_room();
            self.trim_soon();
        }
    }

    /// After every change of a part, under its lock: what it means for others. That is so whether it can be stored or not.
    pub(crate) fn after(
        &self,
        group: &Group,
        partition: u32,
        part: &GroupPartition,
        inner: &mut GroupPartitionInner,
        now: Micros,
    ) -> Result<()> {
        let changed = self.changed(group, partition, part, inner, now);
        self.look_at(part.due.load(Ordering::Relaxed));
        changed
    }

    /// The same for who looks at the timers himself.
    pub(crate) fn changed(
        &self,
        group: &Group,
        partition: u32,
        part: &GroupPartition,
        inner: &mut GroupPartitionInner,
        now: Micros,
    ) -> Result<()> {
        let stored = match self.is_in_memory() {
            true => Ok(()),
            false => inner.store(self.log.as_ref(), self.state_id(partition), group.id, now),
        };
        if let GroupState::Work(machine) = &mut inner.state {
            let ends = machine.lease_ends();
            for consumer in ends.drain(..) {
                if group.shared.end(consumer, 1) {
                    group.members.lock().lease_over(now, consumer);
                }
            }
        }
        let settled = part.note(inner, now);
        if settled != 0 {
            group.backlog_less(settled);
        }
        if settled < 0 {
            self.admission.lock().count_anew();
        }
        Ok(stored?)
    }

    /// Reads from the disk what a claim has asked for.
    pub(crate) async fn load(&self, group: &Group, partition: u32, from: Offset) -> Result<()> {
        let Some(store) = self.store(partition).cloned() else {
            return Ok(());
        };
        let loaded = tokio::task::spawn_blocking(move || store.load(from)).await;
        let cursor = loaded.unwrap_or(Err(thalweg_log::LogError::Closed))?;
        if let Some(part) = group.part(partition) {
            part.inner.lock().loaded(from, cursor, self.clock.now());
            self.forget_frames_later();
        }
        Ok(())
    }

    /// The same on a thread that may block.
    pub(crate) fn load_here(&self, group: &Group, partition: u32, from: Offset) -> Result<()> {
        if let (Some(store), Some(part)) = (self.store(partition), group.part(partition)) {
            let cursor = store.load(from)?;
            part.inner.lock().loaded(from, cursor, self.clock.now());
            self.forget_frames_later();
        }
        Ok(())
    }
}

impl GroupPartitionInner {
    fn loaded(&mut self, from: Offset, cursor: Cursor, now: Micros) {
        self.frames_used = now;
        match &self.state {
            // The reading place is not lost for an old message.
            GroupState::Work(machine) if from < machine.cursor() => self.older = cursor,
            _ => self.cursor = cursor,
        }
    }
}

/// What was taken has not left the process and does not: it is as if nobody had asked.
fn take_back(inner: &mut GroupPartitionInner, given: impl DoubleEndedIterator<Item = Delivery>, now: Micros) {
    for given in given.rev() {
        let offset = given.message.offset;
        match &mut inner.state {
            GroupState::Work(machine) => drop(machine.release(offset, given.delivery, true)),
            GroupState::Stream(machine) => drop(machine.nack(offset, 0, now)),
        }
    }
}

/// A claim's place among those that wait. When it ends, the next is called if there is more.
struct WaiterRegistration<'a> {
    queue: &'a Queue,
    group: &'a Group,
    waiter: Arc<Waiter>,
    is_listed: bool,
    /// It has left, and this is for what it was called.
    called_for: Option<u32>,
}

impl<'a> WaiterRegistration<'a> {
    fn new(queue: &'a Queue, group: &'a Group, share: &PartitionShare, full: bool) -> WaiterRegistration<'a> {
        WaiterRegistration {
            queue,
            group,
            waiter: group.waiting.list(share, full),
            is_listed: true,
            called_for: None,
        }
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.is_listed) {
            self.called_for = self.group.waiting.leave(&self.waiter);
        }
    }

    /// Since it left it has looked and found nothing: whatever it was called for, others have taken it.
    fn has_looked(mut self) {
        self.leave();
        self.called_for = None;
    }
}

impl Drop for WaiterRegistration<'_> {
    fn drop(&mut self) {
        self.leave();
        if let Some(partition) = self.called_for {
            self.queue.call_if_more(self.group, partition);
        }
    }
}

impl ClaimantState {
    /// Learns its share anew if shares have changed.
    fn look(&mut self, group: &Group) {
        let version = group.shared.version();
        if version != self.version {
            self.share = group.members.lock().share(self.index);
            self.version = version;
        }
    }
}

/// How closely a claim looks at partitions in which there seems to be nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanMode {
    /// Leaves them out by what they say without a lock, which may be a moment old.
    Quickly,
    /// Into each. Whoever goes to sleep has to, under the lock under which messages are added.
    Closely,
}

/// More than between two ticks of the kernel, by which the rough time is behind.
const ROUGHLY: Micros = 20_000;

/// One claim's way through the partitions, until it has what it wants or others have their turn.
struct ClaimRound<'a> {
    queue: &'a Queue,
    group: &'a Group,
    consumer: (u32, &'a str, MemberKind),
    looking: ScanMode,
    unreadable: &'a [u32],
    wanted: ClaimBudget,
    first: ClaimStep,
    out: &'a mut Vec<Delivery>,
}

impl ClaimRound<'_> {
    /// The consumer's own partitions, from one after the one where the last claim began, so that none starves; then those
    /// of others, where that is allowed.
    fn over(&mut self, share: &PartitionShare) -> Result<()> {
        let own = share.own.len() as u32;
        let turn = match own {
            0 | 1 if !share.others => 0,
            _ => self.group.turn.fetch_add(1, Ordering::Relaxed) as u32,
        };
        for n in 0..own {
            if self.is_full() {
                return Ok(());
            }
            self.look_at(share.own.start + turn.wrapping_add(n) % own)?;
        }
        let partitions = if share.others { self.queue.partition_count() } else { 0 };
        for n in 0..partitions {
            let partition = turn.wrapping_add(n) % partitions;
            if self.is_full() {
                return Ok(());
            }
            let may =
                !share.own.contains(&partition) && self.group.members.lock().may_claim(self.consumer.0, partition);
            if may {
                self.look_at(partition)?;
            }
        }
        Ok(())
    }

    /// Although a look at a partition was worth it.
    fn found_nothing(&self) -> bool {
        self.wanted.has_looked && self.out.len() == self.wanted.given && self.first == ClaimStep::Nothing
    }

    fn is_full(&self) -> bool {
        self.out.len() >= self.wanted.max || self.wanted.bytes == 0 || self.first == ClaimStep::Turn
    }

    fn look_at(&mut self, partition: u32) -> Result<()> {
        let look = self.queue.look(
            self.group,
            partition,
            self.consumer,
            self.looking,
            &mut self.wanted,
            self.out,
        )?;
        match look {
            ScanOutcome::Done => Ok(()),
            ScanOutcome::Load(from) => {
                if !self.unreadable.contains(&partition) {
                    self.first = ClaimStep::Load(partition, from);
                }
                Ok(())
            }
            ScanOutcome::More => {
                self.first = ClaimStep::Turn;
                Ok(())
            }
            ScanOutcome::Gap(from, to) => Err(QueueError::OffsetGap {
                queue: self.queue.name().clone(),
                partition,
                from,
                to,
            }),
        }
    }
}

pub(crate) struct ClaimBudget {
    /// What the caller had before.
    pub given: usize,
    pub max: usize,
    /// Zero once they are used up.
    pub bytes: u64,
    pub visibility: Micros,
    pub now: Micros,
    /// By so much it may be later than `now`.
    late: Micros,
    has_looked: bool,
    /// So many messages may still be passed over before others have their turn.
    pub left: usize,
    /// The membership of whoever asks.
    pub reader: u64,
}

impl ClaimBudget {
    pub fn take(&mut self, message: &Message) {
        self.bytes = self.bytes.saturating_sub(message.bytes() as u64);
    }

    /// A message was not for this claim.
    pub fn passed_one(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}
