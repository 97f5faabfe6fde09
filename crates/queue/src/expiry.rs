//! Expired messages are removed when they expire, before a read, and before a producer is refused.
//!
//! Consumers pass expired messages as they claim. Where no consumer claims, this module moves a group's cursor over
//! them. The message at the cursor and the first message after it that expires early (`expiry/early_expiry.rs`)
//! determine the time of the next check, so there is no periodic tick. To reach a message that expires early, the
//! cursor passes live messages; the group then tracks each of them as ready, with its own expiry time. Disks are read
//! outside of all locks.

mod early_expiry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use thalweg_kit::blocking;
use thalweg_log::clock::Clock;
use thalweg_log::{LogError, Micros, Offset};
use tokio::sync::MutexGuard;

use crate::dedup::MessagePosition;
use crate::error::Result;
use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupPartitionInner, GroupState, NEVER};
use crate::machine::WorkMachine;
use crate::maintenance::MaintenanceSchedule;
use crate::message::{MessageLifetime, NewMessage, not_before};
use crate::message_times::{effective_ttl, micros};
use crate::queue::Queue;
use crate::settings::{QueueSettings, RetentionMode};
use crate::store::{Cursor, MessageStore, NextMessage};
use early_expiry::EarlyExpiryIndex;

/// Messages that are passed under one lock.
const AT_ONCE: usize = 1000;
/// Delay before a failed read or pass is retried.
const TRY_AGAIN: Micros = 60_000_000;
/// Messages that expire within this time of each other are handled together.
const GATHER: Micros = 100_000;

/// The result of a walk over some messages.
enum WalkOutcome {
    /// The message at the cursor expires at this time.
    Until(Micros),
    More,
    /// The disk must be read at this offset first.
    Load(Offset),
}

/// The expiry of the messages of one queue: which of them may expire early, and when they are checked.
pub(crate) struct MessageExpiry {
    /// By partition.
    indexes: boxcar::Vec<EarlyExpiryIndex>,
    /// Messages may expire before others that were stored earlier.
    is_early: AtomicBool,
    /// The catalogue has stored that.
    is_early_stored: AtomicBool,
    /// Checks of retained messages, and of messages that no consumer has seen.
    kept: ExpiryCheck,
    unclaimed: ExpiryCheck,
}

impl MessageExpiry {
    /// `is_early_stored` says whether the catalogue has stored that messages may expire early.
    pub fn new(is_early_stored: bool) -> MessageExpiry {
        MessageExpiry {
            indexes: boxcar::Vec::new(),
            is_early: AtomicBool::new(false),
            is_early_stored: AtomicBool::new(is_early_stored),
            kept: ExpiryCheck::default(),
            unclaimed: ExpiryCheck::default(),
        }
    }

    pub fn add_partition(&self) {
        self.indexes.push(EarlyExpiryIndex::default());
    }

    pub fn index(&self, partition: u32) -> Option<&EarlyExpiryIndex> {
        self.indexes.get(partition as usize)
    }

    /// When the next check is due.
    pub fn next_check(&self) -> Micros {
        self.kept.at().min(self.unclaimed.at())
    }

    /// Whether messages may expire early, as far as this process or the catalogue knows.
    pub fn may_be_early(&self) -> bool {
        self.is_early.load(Ordering::Relaxed) || self.is_early_stored()
    }

    /// Whether messages expire early and the catalogue has not stored that yet.
    pub fn is_news(&self) -> bool {
        self.is_early.load(Ordering::Relaxed) && !self.is_early_stored()
    }

    pub fn is_early_stored(&self) -> bool {
        self.is_early_stored.load(Ordering::Relaxed)
    }

    /// The catalogue has stored that messages may expire early.
    pub fn early_is_stored(&self) {
        self.is_early_stored.store(true, Ordering::Relaxed);
    }

    /// All stored messages were noted: if none expires early, the next entry of the catalogue says so.
    fn learned(&self) {
        if !self.is_early.load(Ordering::Relaxed) {
            self.is_early_stored.store(false, Ordering::Relaxed);
        }
    }

    /// Notes when a stored message expires, in the index of its partition. Returns whether it is the first that may
    /// expire early.
    fn note(&self, index: &EarlyExpiryIndex, offset: Offset, expires_at: Micros, has_own: bool) -> bool {
        index.note(offset, expires_at, has_own) && !self.is_early.swap(true, Ordering::Relaxed)
    }
}

/// The schedule of one kind of expiry check.
#[derive(Debug, Default)]
struct ExpiryCheck {
    /// Nothing expires before this time. It is unknown at first.
    at: AtomicI64,
    /// Held by the running check. A caller that comes meanwhile waits and finds it done.
    looking: tokio::sync::Mutex<()>,
}

/// A running check. If it is cancelled half-way, another one must run.
struct RunningExpiryCheck<'a> {
    aging: &'a ExpiryCheck,
    maintenance: &'a MaintenanceSchedule,
    /// When it began: what expired since then it may have missed.
    began: Micros,
    next: Option<Micros>,
    _alone: MutexGuard<'a, ()>,
}

impl RunningExpiryCheck<'_> {
    /// The check is done, and the next message expires at this time.
    fn next_at(&mut self, due: Micros) {
        self.next = Some(due.max(self.began + GATHER));
    }
}

impl Drop for RunningExpiryCheck<'_> {
    fn drop(&mut self) {
        let next = self.next.unwrap_or(0);
        self.aging.at.fetch_min(next, Ordering::AcqRel);
        self.maintenance.wake_by(next);
    }
}

impl ExpiryCheck {
    fn at(&self) -> Micros {
        self.at.load(Ordering::Acquire)
    }

    /// Schedules a check at this time. Free if an earlier check is scheduled.
    fn schedule(&self, at: Micros) {
        if at < self.at() {
            self.at.fetch_min(at, Ordering::AcqRel);
        }
    }

    /// Begins a check if it is due.
    async fn look<'a>(
        &'a self,
        clock: &dyn Clock,
        maintenance: &'a MaintenanceSchedule,
    ) -> Option<RunningExpiryCheck<'a>> {
        if clock.now() < self.at() && self.looking.try_lock().is_ok() {
            return None;
        }
        let alone = self.looking.lock().await;
        let began = clock.now();
        if began < self.at() {
            return None;
        }
        // Messages that are stored meanwhile lower it again.
        self.at.store(NEVER, Ordering::Release);
        Some(RunningExpiryCheck {
            aging: self,
            maintenance,
            began,
            next: None,
            _alone: alone,
        })
    }
}

impl Queue {
    /// Removes everything that has expired. Returns whether the queue may be smaller now.
    pub(crate) async fn remove_expired(self: &Arc<Queue>) -> bool {
        let kept = self.remove_expired_retained().await;
        let unclaimed = &self.expiry.unclaimed;
        let Some(mut looking) = unclaimed.look(self.clock.as_ref(), &self.maintenance).await else {
            return kept;
        };
        let mut due = NEVER;
        for group in self.groups().iter().filter(|group| group.is_work()) {
            for (partition, part) in group.parts() {
                due = due.min(self.move_over_expired(group, partition, part).await);
            }
        }
        looking.next_at(due);
        true
    }

    /// Like `remove_expired`, but only for retained messages, which must not be visible any more, and not for the
    /// backlog of groups.
    pub(crate) async fn remove_expired_retained(self: &Arc<Queue>) -> bool {
        let kept = &self.expiry.kept;
        let Some(mut looking) = kept.look(self.clock.as_ref(), &self.maintenance).await else {
            return false;
        };
        let due = self.retain().await;
        looking.next_at(due);
        true
    }

    /// Moves a group's cursor over expired messages. Returns when to check again.
    async fn move_over_expired(self: &Arc<Queue>, group: &Arc<Group>, partition: u32, part: &GroupPartition) -> Micros {
        loop {
            let walked = match self.move_over_some_expired(group, partition, part) {
                Ok(WalkOutcome::Load(from)) => self.look_ahead(group, partition, part, from).await,
                walked => walked,
            };
            self.move_out(group, partition).await;
            match walked {
                Ok(WalkOutcome::Until(due)) => return due,
                // Other tasks share this thread.
                Ok(WalkOutcome::More | WalkOutcome::Load(_)) => tokio::task::yield_now().await,
                Err(error) => {
                    tracing::warn!(
                        queue = %self.name(), group = %group.name(), partition, %error,
                        "expired messages cannot be removed; retrying in a minute"
                    );
                    return self.clock.now() + TRY_AGAIN;
                }
            }
        }
    }

    fn move_over_some_expired(&self, group: &Group, partition: u32, part: &GroupPartition) -> Result<WalkOutcome> {
        let Some(store) = self.store(partition) else {
            return Ok(WalkOutcome::Until(NEVER));
        };
        let now = self.clock.now();
        let mut inner = part.inner.lock();
        let GroupPartitionInner {
            state, cursor, head, ..
        } = &mut *inner;
        let GroupState::Work(machine) = state else {
            return Ok(WalkOutcome::Until(NEVER));
        };
        let walk = CursorWalk {
            group,
            store,
            ages: self.expiry.index(partition),
            now,
        };
        let walked = walk.go_on(machine, cursor, head);
        let was = (part.wants(), inner.counted());
        // What was passed stays passed, even if the next message cannot be read.
        self.after(group, partition, part, &mut inner, now)?;
        self.passed_over(part, &inner, was);
        Ok(walked?)
    }

    /// Reads the message at the cursor from disk, and later ones only if it has expired.
    async fn look_ahead(
        &self,
        group: &Group,
        partition: u32,
        part: &GroupPartition,
        from: Offset,
    ) -> Result<WalkOutcome> {
        let Some(store) = self.store(partition).cloned() else {
            return Ok(WalkOutcome::Until(NEVER));
        };
        let look = move || match store.at(&mut store.load_some(from, 1)?, from)? {
            NextMessage::Message(message, _) => Ok(message.expires_at().unwrap_or(NEVER)),
            _ => Ok(Micros::MIN),
        };
        let until = blocking::spawn(look).await.unwrap_or(Err(LogError::Closed))?;
        let now = self.clock.now();
        let ages = self.expiry.index(partition);
        let passes = ages.is_some_and(|ages| ages.is_due(from, now));
        if until > now && !passes {
            part.inner.lock().head = Some((from, until));
        } else {
            self.load(group, partition, from).await?;
        }
        Ok(WalkOutcome::More)
    }

    /// Schedules a check for the time at which a new message expires.
    pub(crate) fn lives(&self, message: &NewMessage, settings: &QueueSettings, ttl: Duration, now: Micros) {
        let retention = &settings.retention;
        let ttl = effective_ttl(ttl, message.ttl);
        let age = Some(retention.max_age).filter(|age| retention.mode == RetentionMode::Policy && !age.is_zero());
        if let Some(shorter) = ttl.into_iter().chain(age).min() {
            self.look_for_old(now.saturating_add(micros(shorter)).saturating_add(1));
        }
    }

    fn look_for_old(&self, at: Micros) {
        self.expiry.kept.schedule(at);
        self.expiry.unclaimed.schedule(at);
        self.maintenance.wake_by(at);
    }

    /// Schedules a check after rules changed or messages became visible again.
    pub(crate) fn look_for_old_now(&self) {
        self.look_for_old(0);
    }
}

/// Moves the cursor of one group over some messages.
struct CursorWalk<'a> {
    group: &'a Group,
    store: &'a MessageStore,
    ages: Option<&'a EarlyExpiryIndex>,
    now: Micros,
}

impl CursorWalk<'_> {
    fn go_on(
        &self,
        machine: &mut WorkMachine,
        cursor: &mut Cursor,
        head: &mut Option<(Offset, Micros)>,
    ) -> thalweg_log::Result<WalkOutcome> {
        let now = self.now;
        for _ in 0..AT_ONCE {
            let at = machine.cursor();
            let passes = self.ages.is_some_and(|ages| ages.is_due(at, now));
            let known = head.filter(|(offset, until)| *offset == at && *until > now && !passes);
            if let Some((_, until)) = known {
                return Ok(WalkOutcome::Until(self.next_look(at, until)));
            }
            match self.store.at(cursor, at)? {
                NextMessage::Message(message, hint) => {
                    let group = self.group;
                    let passing = message.passing(group.name(), group.settings.filter.as_deref(), hint);
                    if machine.pass_unclaimable(&passing, now) || (passes && machine.pass_unleased(&passing, now)) {
                        continue;
                    }
                    let until = passing.expires_at.unwrap_or(NEVER);
                    *head = Some((machine.cursor(), until));
                    // An expired message, or one with an expired message after it, blocks the cursor because the
                    // window is full.
                    let is_stuck = until <= now || passes;
                    return Ok(WalkOutcome::Until(match is_stuck {
                        true => now + TRY_AGAIN,
                        false => self.next_look(at, until),
                    }));
                }
                NextMessage::Gap { to, lost } if machine.pass_gap(to, lost, now) > at => {}
                NextMessage::Gap { .. } => return Ok(WalkOutcome::Until(now + TRY_AGAIN)),
                NextMessage::Load => return Ok(WalkOutcome::Load(at)),
                NextMessage::End => return Ok(WalkOutcome::Until(NEVER)),
            }
        }
        Ok(WalkOutcome::More)
    }

    /// When the message at the cursor, or the first early one after it, expires.
    fn next_look(&self, at: Offset, until: Micros) -> Micros {
        let after = self.ages.and_then(|ages| ages.first(at));
        after.map_or(until, |(first, _)| first.min(until))
    }
}

impl Queue {
    /// Records the lifetime of a message that was stored at `place`.
    pub(crate) fn note_age(&self, place: MessagePosition, life: MessageLifetime, ttl: Duration, now: Micros) {
        let Some(ages) = self.expiry.index(place.partition) else {
            return;
        };
        let ttl = effective_ttl(ttl, life.ttl);
        let begins = life.not_before.map_or(now, |at| at.max(now));
        let expires_at = ttl.map_or(NEVER, |ttl| begins.saturating_add(micros(ttl)));
        let has_own = life.ttl.is_some() || life.not_before.is_some();
        if self.expiry.note(ages, place.offset, expires_at, has_own) {
            // A restart must know that messages may expire early.
            self.maintenance.wake_by(0);
        }
    }

    /// Reads the expiry times of stored messages, if some may expire early. Runs at the rate of background work.
    pub(crate) async fn learn_ages(self: Arc<Queue>) {
        let queue = self.clone();
        let learned = blocking::spawn(move || queue.learn_ages_blocking()).await;
        if let Ok(Ok(())) = learned {
            self.expiry.learned();
        }
        if let Ok(Err(error)) = learned {
            tracing::warn!(
                queue = %self.name(), %error,
                "expiry times cannot be read; without claims, messages after a live one expire only with it"
            );
        }
        self.look_for_old_now();
    }

    fn learn_ages_blocking(&self) -> thalweg_log::Result<()> {
        for (partition, store) in (0..).zip(self.stores()) {
            let Some(ages) = self.expiry.index(partition) else {
                continue;
            };
            let (first, next) = (store.first()?, store.next()?);
            self.log
                .scan(self.identity.data_id(partition), first, next, &mut |offset, record| {
                    let due = not_before(record.not_before, record.deliver_at, self.clock.as_ref());
                    let begins = due.map_or(record.time, |at| at.max(record.time));
                    let ttl = record.ttl_ms.and_then(|ttl| i64::try_from(ttl).ok()?.checked_mul(1000));
                    let expires_at = ttl.map_or(NEVER, |ttl| begins.saturating_add(ttl));
                    if self.expiry.note(ages, offset, expires_at, false) {
                        self.maintenance.wake_by(0);
                    }
                    !self.is_removed()
                })?;
        }
        Ok(())
    }
}
