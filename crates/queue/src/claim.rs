//! Claims: a consumer gets ready messages at once, or waits until it is woken.
//!
//! A work group leases messages; a stream group returns the messages after its position. Messages come from memory. If
//! they must be read from disk, the claim releases all locks, has them read, and tries again.

mod defaults;
mod work_claim;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_kit::{blocking, clock};
use thalweg_log::{Micros, Offset};

use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupPartitionInner, GroupState};
use crate::ids::LeaseTag;
use crate::members::{MemberKind, PartitionShare};
use crate::message::Message;
use crate::message_times::micros;
use crate::queue::Queue;
use crate::queues::no_group;
use crate::settings::RetentionMode;
use crate::store::Cursor;
use crate::streams::StreamClaim;
use crate::waiters::Waiter;
pub(crate) use defaults::ClaimDefaults;
use work_claim::WorkClaim;

/// Maximum messages per claim.
const CLAIM_MAX: u32 = 10_000;
/// Messages that a claim may pass over before it yields: at most about a millisecond of work. The messages that it
/// returns are bounded by the request.
const PASSED_AT_ONCE: usize = 4_000;

/// The parameters of a claim.
#[derive(Clone, Copy, Debug)]
pub struct ClaimRequest {
    /// Maximum number of messages; at least one.
    pub max: u32,
    /// Maximum bytes of payloads, keys and properties. At least one message is returned, however large it is.
    pub max_bytes: u64,
    /// How long to wait if no message is ready.
    pub wait: Duration,
    /// Visibility timeout of the leases; `None` means the queue's setting.
    pub visibility: Option<Duration>,
    /// Maximum leases of this consumer, if it wants fewer than the queue allows.
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

/// A message delivered to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub partition: u32,
    /// Delivery number, from 1. With the message's position and the tag it forms the receipt. Always 1 in stream
    /// groups.
    pub delivery: u32,
    pub tag: LeaseTag,
    /// When the lease ends; 0 in stream groups.
    pub deadline: Micros,
    pub message: Message,
}

/// A consumer of a group, for the duration of one request.
pub struct ConsumerHandle {
    pub(crate) queue: Arc<Queue>,
    pub(crate) group: Arc<Group>,
    pub(crate) seat: ClaimantState,
    /// If this is false on drop, the client disconnected before its answer.
    is_answered: bool,
}

/// A consumer's membership in its group, with its partition share as of the last check.
pub(crate) struct ClaimantState {
    pub(crate) index: u32,
    kind: MemberKind,
    /// Identifies the membership; its index may be reused by another member later.
    pub(crate) reader: u64,
    pub(crate) request: u64,
    share: PartitionShare,
    /// Version of the shares that `share` comes from.
    version: u64,
    /// Partitions whose next message cannot be read.
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
        self.queue.wake_timers_for_members(&self.group);
    }
}

impl ConsumerHandle {
    /// The consumer gets an answer and may ask again, so its membership lasts. If the handle is dropped without this
    /// call, the membership ends.
    pub fn answered(&mut self) {
        self.is_answered = true;
    }

    /// Adds the messages that are ready and in memory to `out`, without waiting. Returns how many more leases the
    /// consumer may take.
    pub fn claim_now(&mut self, want: ClaimRequest, out: &mut Vec<Delivery>) -> Result<u32> {
        self.queue.may_consume(&self.group)?;
        if !self.queue.epoch.is_stored() {
            return Ok(0);
        }
        // The state partition records a consumer's name only if the consumer can come back. This one cannot.
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

/// The result of scanning one partition.
pub(crate) enum ScanOutcome {
    /// All available messages were returned.
    Done,
    /// The disk must be read at this offset first.
    Load(Offset),
    /// Messages that a stream has not read are lost; the stream continues at the second offset.
    Gap(Offset, Offset),
    /// The scan passed over very many messages. It yields and then continues where it stopped.
    More,
}

/// What a claim without messages must do before it scans again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimStep {
    /// No message is available to this consumer.
    Nothing,
    /// Read the disk in this partition, at this offset.
    Load(u32, Offset),
    /// Yield to other tasks.
    Turn,
}

impl Queue {
    /// Leases messages to a consumer, which becomes a member of the group. If no message is ready, waits for the
    /// requested time and then returns an empty list. A consumer at its lease limit gets `too_many_pending` after the
    /// wait.
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
            self.remove_expired_retained().await;
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
        let until = (!want.wait.is_zero()).then(|| clock::tokio_now() + want.wait);
        let mut out = Vec::new();
        // Ready messages are returned without joining the waiters.
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
                        // Messages of other partitions take precedence over the error.
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
            // If this waiter was woken for a message that it may not take, dropping it wakes the next one.
            if let Some(waited) = listed.take()
                && room > 0
            {
                waited.has_looked();
            }
            let Some(until) = until.filter(|until| clock::tokio_now() < *until) else {
                return if room > 0 {
                    Ok(out)
                } else {
                    Err(self.too_many(group, consumer, want))
                };
            };
            // Messages that arrive from here on wake this claim; the scan finds those that arrived before.
            let full = room == 0;
            let waiting = listed.insert(WaiterRegistration::new(self, group, &seat.share, full));
            let version = seat.version;
            self.may_consume(group)?;
            (room, first) = self.try_claim(group, (consumer, seat), want, ScanMode::Closely, &mut out)?;
            let found_nothing = out.is_empty() && first == ClaimStep::Nothing;
            // With another share, the waiter would be woken for other consumers' messages. An event that wakes waiters
            // at their lease limit wakes nobody else.
            if found_nothing && seat.version == version && (room == 0) == full {
                tokio::select! {
                    () = waiting.waiter.called() => {}
                    () = tokio::time::sleep_until(until) => {}
                }
            }
            // Leave before the scan, so that messages that arrive after it wake other waiters.
            waiting.leave();
            if found_nothing {
                self.may_consume(group)?;
                (room, first) = self.try_claim(group, (consumer, seat), want, ScanMode::Closely, &mut out)?;
            }
        }
    }

    /// An answer could not be delivered to a consumer, so its partitions are not reserved for its next request.
    pub fn client_gone(&self, group: &Group, consumer: &str) {
        let mut members = group.members.lock();
        if let Some(index) = members.find(consumer) {
            members.client_gone(self.clock.now(), index);
        }
        drop(members);
        self.wake_timers_for_members(group);
    }

    /// Makes the consumer a member. Its request lasts until the handle is dropped.
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
        self.wake_timers_for_members(group);
        Ok(ConsumerHandle {
            queue: self.clone(),
            group: group.clone(),
            is_answered: false,
            seat,
        })
    }

    /// Returns an error if consumers may not take messages.
    fn may_consume(&self, group: &Group) -> Result<()> {
        let what = if self.is_removed() {
            return Err(self.identity.not_found());
        } else if group.removed.load(Ordering::Relaxed) {
            return Err(no_group(self, group.name()));
        } else if self.paused.consume() {
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

    /// Takes the messages that are ready now, without waiting. Returns how many leases the consumer may still take, and
    /// what must be done first if that is why it got no messages.
    fn try_claim(
        &self,
        group: &Group,
        (consumer, seat): (&str, &mut ClaimantState),
        want: ClaimRequest,
        looking: ScanMode,
        out: &mut Vec<Delivery>,
    ) -> Result<(u32, ClaimStep)> {
        seat.look(group);
        let most = self.claims.max_in_flight();
        let max_in_flight = want.max_in_flight.map_or(most, |asked| asked.min(most));
        let room = match seat.share.here {
            true => max_in_flight.saturating_sub(group.shared.held(seat.index)),
            false => 0,
        };
        let given = out.len();
        let visibility = want.visibility.map_or_else(|| self.claims.visibility(), micros);
        // For a queue in memory, reading the clock is half the cost of a claim.
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
            // A message may have come due since the kernel's last tick.
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
                self.identity.state_id(partition),
                group.id,
                consumer,
                wanted.now,
            )?;
        }
        let before = out.len();
        let look = self.hand_out(group, partition, consumer.0, &mut inner, wanted, out);
        if inner.keep_frames(wanted.now) {
            self.maintenance.forget_frames_later();
        }
        let taken = out.get(before..).unwrap_or_default();
        inner.waits.observe(self.statistics.latency(), wanted.now, taken);
        part.delivered.add(&mut inner, taken.len() as u64);
        let was = (part.wants(), inner.counted());
        let stored = self.after(group, partition, part, &mut inner, wanted.now);
        if let Err(error) = stored {
            take_back(&mut inner, out.drain(before..), wanted.now);
            // If a lease cannot be stored, its end cannot be stored either.
            let _ = self.after(group, partition, part, &mut inner, wanted.now);
            return Err(error);
        }
        self.passed_over(part, &inner, was);
        look
    }

    /// Delivers what the state of the group has for a consumer.
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
            queue: self.identity.id,
            group: group.id,
            lease: 0,
        };
        let dropped = self.letters.lock();
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

    /// Messages that the scan settled itself (not for the group, expired, or missing) free room like messages that
    /// consumers settle. `was` is the lowest offset the group needed and the partition's count before the scan.
    pub(crate) fn passed_over(&self, part: &GroupPartition, inner: &GroupPartitionInner, was: (Offset, i64)) {
        if (part.wants(), inner.counted()) != was {
            self.admission.has_room();
            self.maintenance.trim_soon();
        }
    }

    /// Publishes a change of a group partition to others, under its lock. This happens whether or not the change can be
    /// stored.
    pub(crate) fn after(
        &self,
        group: &Group,
        partition: u32,
        part: &GroupPartition,
        inner: &mut GroupPartitionInner,
        now: Micros,
    ) -> Result<()> {
        let changed = self.changed(group, partition, part, inner, now);
        self.timers.wake_by(part.due.load(Ordering::Relaxed));
        changed
    }

    /// Like `after`, for a caller that handles the timers itself.
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
            false => inner.store(self.log.as_ref(), self.identity.state_id(partition), group.id, now),
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
            self.admission.count_anew();
        }
        Ok(stored?)
    }

    /// Reads from disk what a claim asked for.
    pub(crate) async fn load(&self, group: &Group, partition: u32, from: Offset) -> Result<()> {
        let Some(store) = self.store(partition).cloned() else {
            return Ok(());
        };
        let loaded = blocking::spawn(move || store.load(from)).await;
        let cursor = loaded.unwrap_or(Err(thalweg_log::LogError::Closed))?;
        if let Some(part) = group.part(partition) {
            part.inner.lock().loaded(from, cursor, self.clock.now());
            self.maintenance.forget_frames_later();
        }
        Ok(())
    }

    /// Like `load`, on a thread that may block.
    pub(crate) fn load_here(&self, group: &Group, partition: u32, from: Offset) -> Result<()> {
        if let (Some(store), Some(part)) = (self.store(partition), group.part(partition)) {
            let cursor = store.load(from)?;
            part.inner.lock().loaded(from, cursor, self.clock.now());
            self.maintenance.forget_frames_later();
        }
        Ok(())
    }
}

impl GroupPartitionInner {
    fn loaded(&mut self, from: Offset, cursor: Cursor, now: Micros) {
        self.frames_used = now;
        match &self.state {
            // Reading an old message must not lose the reading position.
            GroupState::Work(machine) if from < machine.cursor() => self.older = cursor,
            _ => self.cursor = cursor,
        }
    }
}

/// Reverts deliveries that never left the process, as if they had not been requested.
fn take_back(inner: &mut GroupPartitionInner, given: impl DoubleEndedIterator<Item = Delivery>, now: Micros) {
    for given in given.rev() {
        let offset = given.message.offset;
        match &mut inner.state {
            GroupState::Work(machine) => drop(machine.release(offset, given.delivery, true)),
            GroupState::Stream(machine) => drop(machine.nack(offset, 0, now)),
        }
    }
}

/// A claim's place among the waiters. On drop, the next waiter is woken if there are more messages.
struct WaiterRegistration<'a> {
    queue: &'a Queue,
    group: &'a Group,
    waiter: Arc<Waiter>,
    is_listed: bool,
    /// The partition that it was woken for, after it has left.
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

    /// It scanned after it left and found nothing: other consumers took what it was woken for.
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
    /// Reloads the share if the shares have changed.
    fn look(&mut self, group: &Group) {
        let version = group.shared.version();
        if version != self.version {
            self.share = group.members.lock().share(self.index);
            self.version = version;
        }
    }
}

/// How a claim scans partitions that seem to be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanMode {
    /// Skips them by their lock-free summary, which may be a moment old.
    Quickly,
    /// Scans each partition. A claim must do this before it sleeps, under the lock under which messages are added.
    Closely,
}

/// More than the interval between two kernel ticks, which is how far the rough time may lag.
const ROUGHLY: Micros = 20_000;

/// One pass of a claim over the partitions, until it has what it wants or yields.
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
    /// Scans the consumer's own partitions first, then those of others where that is allowed. It starts one partition
    /// after the start of the previous claim, so that no partition starves.
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

    /// Nothing was found although at least one partition was scanned.
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
    /// Messages that the caller already had.
    pub given: usize,
    pub max: usize,
    /// Zero once they are used up.
    pub bytes: u64,
    pub visibility: Micros,
    pub now: Micros,
    /// How much the actual time may be ahead of `now`.
    late: Micros,
    has_looked: bool,
    /// How many messages may still be passed over before the claim yields.
    pub left: usize,
    /// The membership of the caller.
    pub reader: u64,
}

impl ClaimBudget {
    pub fn take(&mut self, message: &Message) {
        self.bytes = self.bytes.saturating_sub(message.bytes() as u64);
    }

    /// Counts a message that was not for this claim.
    pub fn passed_one(&mut self) {
        self.left = self.left.saturating_sub(1);
    }
}
