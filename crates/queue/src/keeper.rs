//! What a queue does by itself: timers of its groups, shares of its consumers, dead letters, checkpoints of its state, and
//! letting go of what nobody needs. One task sleeps until the next of these is due and is called when something earlier
//! comes up; nothing ticks while nothing is due.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_log::Micros;
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::RecordRef;

use crate::group::Group;
use crate::letters::dropped_record;
use crate::part::{Consumer, NEVER, Part, State, Unsaved};
use crate::queue::Queue;
use crate::settings::RetentionMode;
use crate::times::micros;

/// What was settled is let go so long after.
const TRIM_AFTER: Micros = 100_000;
/// A checkpoint is written after so many records of state, or, if there are any, after so long.
const CHECKPOINT_RECORDS: u32 = 10_000;
const CHECKPOINT_AFTER: Micros = 30_000_000;
/// Dedup-ids whose window has passed are let go that often, when something else is due.
const TRIM_IDS_EVERY: Micros = 60_000_000;
/// Nothing that was forgotten waits longer.
const SLEEP_MAX: Micros = 300_000_000;

/// When the task did what.
struct Times {
    checkpoint: Micros,
    compaction: Micros,
    ids: Micros,
}

impl Queue {
    /// Has the task look at `due`, if it would sleep longer.
    pub(crate) fn look_at(&self, due: Micros) {
        if due < self.keeper.planned.load(Ordering::Acquire) {
            // So that whoever comes before the task has looked does not call again.
            self.keeper.planned.fetch_min(due, Ordering::AcqRel);
            self.keeper.call.notify_one();
        }
    }

    /// The same for the members of a group.
    pub(crate) fn look_by(&self, group: &Group) {
        let due = group.members.lock().next_due();
        self.look_at(due.unwrap_or(NEVER));
    }

    /// Something was settled that may be let go.
    pub(crate) fn trim_soon(&self) {
        let known = self.keeper.trim.load(Ordering::Relaxed);
        if !known && !self.keeper.trim.swap(true, Ordering::AcqRel) {
            self.look_at(self.clock.now() + TRIM_AFTER);
        }
    }

    /// Something changed that a checkpoint is written for when the time comes.
    pub(crate) fn checkpoint_by_and_by(&self) {
        self.look_at(self.clock.now() + CHECKPOINT_AFTER);
    }

    /// The task of a queue; ends when the queue is removed.
    pub(crate) async fn keep(self: Arc<Queue>) {
        let now = self.clock.now();
        let mut times = Times {
            checkpoint: now,
            compaction: now,
            ids: now,
        };
        loop {
            // Whoever calls while it looks is heard at the end.
            self.keeper.planned.store(Micros::MAX, Ordering::Release);
            if self.removed.load(Ordering::Acquire) {
                return;
            }
            self.follow_the_wall_clock().await;
            let due = self.look_after(&mut times).await;
            let due = due.min(self.compact_by_and_by(&mut times));
            self.keeper.planned.store(due, Ordering::Release);
            let pause = due.saturating_sub(self.clock.now()).max(0) as u64;
            let called = self.keeper.call.notified();
            let _ = tokio::time::timeout(Duration::from_micros(pause), called).await;
        }
    }

    /// Has keys compacted, apart from all else, as that may take long. Returns when it is due next.
    fn compact_by_and_by(self: &Arc<Queue>, times: &mut Times) -> Micros {
        if !self.is_compacted() {
            return NEVER;
        }
        let (now, interval) = (self.clock.now(), micros(self.settings_now().compaction.interval));
        if now >= times.compaction + interval {
            times.compaction = now;
            // One that is still at it goes on alone.
            if let Ok(progress) = self.compacted.clone().try_lock_owned() {
                let queue = self.clone();
                tokio::spawn(async move { queue.compact(progress).await });
            }
        }
        times.compaction + interval
    }

    /// Has the task of the queue look for what is due, as it does by itself when the time comes; returns when it has.
    #[doc(hidden)]
    pub async fn look_after_now(self: &Arc<Queue>) {
        self.follow_the_wall_clock().await;
        for group in self.groups() {
            self.look_after_group(&group, self.clock.now()).await;
        }
        if self.keeps_ids() {
            self.trim_ids();
        }
        self.shed().await;
    }

    /// Does what is due and returns when the next is.
    async fn look_after(self: &Arc<Queue>, times: &mut Times) -> Micros {
        let now = self.clock.now();
        let mut due = now + SLEEP_MAX;
        let groups = self.groups();
        for group in &groups {
            due = due.min(self.look_after_group(group, now).await);
        }
        if self.keeper.trim.swap(false, Ordering::AcqRel) {
            self.trim();
            if self.settings_now().retention.mode == RetentionMode::Policy {
                self.look_for_old_now();
            }
        }
        if self.keeps_ids() && now >= times.ids + TRIM_IDS_EVERY {
            times.ids = now;
            self.trim_ids();
        }
        self.keep_expires_early().await;
        self.shed().await;
        due = due.min(self.keeper.kept.at()).min(self.keeper.unclaimed.at());
        let letters = self.unsaved_drops.load(Ordering::Relaxed);
        let letters = letters.max(self.sent_here.lock().most_unsaved());
        let unsaved = self.most_records(&groups).max(letters);
        let in_time = now >= times.checkpoint + CHECKPOINT_AFTER;
        if unsaved >= CHECKPOINT_RECORDS || (unsaved > 0 && in_time) {
            let least = if in_time { 1 } else { CHECKPOINT_RECORDS };
            self.checkpoint(|unsaved| unsaved.records >= least && unsaved.is_worth_it());
            times.checkpoint = now;
        } else if unsaved > 0 {
            due = due.min(times.checkpoint + CHECKPOINT_AFTER);
        }
        due
    }

    async fn look_after_group(self: &Arc<Queue>, group: &Arc<Group>, now: Micros) -> Micros {
        let mut due = NEVER;
        for (partition, part) in group.parts() {
            if part.due.load(Ordering::Relaxed) <= now {
                self.advance(group, partition, part, now);
                self.move_out(group, partition).await;
                self.rouse(group, partition, part).await;
            }
            due = due.min(part.due_by_lock());
        }
        let (ticked, next) = {
            let mut members = group.members.lock();
            (members.tick(now), members.next_due())
        };
        if ticked.rebalanced {
            group.wake();
        }
        self.keep_use(group).await;
        let expires = self.expires_at(group).unwrap_or(NEVER);
        if expires <= now {
            match self.expire(group).await {
                Ok(()) => {
                    tracing::info!(queue = %self.name(), group = %group.name(), "a group without members expired")
                }
                Err(error) => {
                    tracing::warn!(queue = %self.name(), group = %group.name(), %error, "a group cannot expire");
                }
            }
            return due.min(next.unwrap_or(NEVER));
        }
        due.min(next.unwrap_or(NEVER)).min(expires)
    }

    fn advance(&self, group: &Group, partition: u32, part: &Part, now: Micros) {
        let mut inner = part.inner.lock();
        match &mut inner.state {
            State::Work(machine) => machine.advance(now),
            State::Stream(machine) => machine.advance(now),
        }
        if let Err(error) = self.after(group, partition, part, &mut inner, now) {
            tracing::warn!(queue = %self.name(), group = %group.name(), %error, "the state of a group cannot be stored");
        }
        drop(inner);
        group.waiting.call_full();
        self.call_if_more(group, partition);
    }

    /// The most records since a checkpoint of any part, of those that are worth another.
    fn most_records(&self, groups: &[Arc<Group>]) -> u32 {
        if self.is_in_memory() {
            return 0;
        }
        let unsaved = |part: &Arc<Part>| part.inner.lock().unsaved;
        let parts = groups.iter().flat_map(|group| group.parts());
        let worth = parts.map(|(_, part)| unsaved(part)).filter(Unsaved::is_worth_it);
        worth.map(|unsaved| unsaved.records).max().unwrap_or(0)
    }

    /// Writes the whole state of every partition of which that is wanted for one group. Of all groups that there are: a start
    /// reads nothing that stands before a checkpoint, so a group that is not in it would begin anew.
    pub(crate) fn checkpoint(&self, wanted: impl Fn(Unsaved) -> bool) {
        for partition in 0..self.partition_count() {
            let _listed = self.listing.lock();
            let groups = self.groups();
            let parts: Vec<(Arc<Group>, Arc<Part>)> = groups
                .iter()
                .filter_map(|group| Some((group.clone(), group.part(partition)?.clone())))
                .collect();
            let drops = match partition {
                0 => self.unsaved_drops.load(Ordering::Relaxed),
                _ => 0,
            };
            let whole = parts.iter().map(|(_, part)| part.inner.lock().unsaved);
            let letters = Unsaved::of_letters(drops + self.sent_here.lock().unsaved(partition), whole);
            if !wanted(letters) && !parts.iter().any(|(_, part)| wanted(part.inner.lock().unsaved)) {
                continue;
            }
            // Where a letter is stored already and its message has not left yet, a checkpoint would undo that it has: later.
            let moves: Option<Vec<_>> = parts.iter().map(|(_, part)| part.moving.try_lock().ok()).collect();
            let Some(_no_moves) = moves else { continue };
            if let Err(error) = self.checkpoint_of(partition, &parts) {
                tracing::warn!(queue = %self.name(), partition, %error, "the state of groups cannot be written as a whole");
            }
        }
    }

    /// A new group takes part from now on, and where it begins is kept, so that a restart does not begin somewhere else. No
    /// checkpoint comes between the two: it would have the group before its beginning, or its beginning before it.
    pub(crate) fn begin_group(&self, group: &Arc<Group>) -> thalweg_log::Result<()> {
        let _listed = self.listing.lock();
        self.add_group(group.clone());
        self.keep_beginning(group)
    }

    /// Where a new group begins, without all that is known of the others.
    fn keep_beginning(&self, group: &Group) -> thalweg_log::Result<()> {
        if self.is_in_memory() {
            return Ok(());
        }
        for (partition, part) in group.parts() {
            let (state, now) = (self.state_id(partition), self.clock.now());
            let (mut inner, mut values) = (part.inner.lock(), Vec::new());
            inner.store(self.log.as_ref(), state, group.id, now)?;
            inner.checkpoint(group.id, &[], &mut values);
            // Under the lock, so that what changes next comes behind it.
            self.log.journal(state, Kind::State, &mut |records| {
                values
                    .iter()
                    .try_for_each(|value| records.push(&RecordRef::of(now, value)))
            })?;
        }
        Ok(())
    }

    /// All groups of a partition at one moment: nothing may be journaled between them. What has changed is stored before:
    /// if the whole is too large for the log, or the disk is full, a start reads it from there.
    fn checkpoint_of(&self, partition: u32, parts: &[(Arc<Group>, Arc<Part>)]) -> thalweg_log::Result<()> {
        let mut locked: Vec<_> = parts.iter().map(|(group, part)| (group, part.inner.lock())).collect();
        let (state, now) = (self.state_id(partition), self.clock.now());
        let (mut values, mut consumers) = (Vec::new(), Vec::new());
        for (group, inner) in &mut locked {
            inner.store(self.log.as_ref(), state, group.id, now)?;
            let members = group.members.lock();
            let holding = members.iter().filter(|member| member.leases > 0);
            let holding: Vec<Consumer> = holding
                .map(|member| (member.index, SmolStr::new(member.id), member.kind))
                .collect();
            drop(members);
            inner.checkpoint(group.id, &holding, &mut values);
            consumers.push(holding);
        }
        // Until it is written: what is dropped meanwhile comes behind it.
        let dropped = (partition == 0 && self.has_letters).then(|| self.dropped.lock());
        if dropped.is_some() && self.drops_under_way.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let mut sent_here = self.sent_here.lock();
        if sent_here.is_under_way(partition) {
            return Ok(());
        }
        values.extend(sent_here.records(partition));
        let drops = match &dropped {
            Some(_) => self.unsaved_drops.swap(0, Ordering::Relaxed),
            None => 0,
        };
        values.extend(dropped.as_deref().map(dropped_record));
        let written = self.log.journal(state, Kind::Checkpoint, &mut |records| {
            values
                .iter()
                .try_for_each(|value| records.push(&RecordRef::of(now, value)))
        });
        if written.is_ok() {
            sent_here.saved(partition);
        }
        drop((dropped, sent_here));
        let bytes = values.iter().map(Vec::len).sum();
        for ((_, inner), holding) in locked.iter_mut().zip(&consumers) {
            inner.checkpointed(holding, bytes, written.is_ok());
        }
        if written.is_err() {
            self.unsaved_drops.fetch_add(drops, Ordering::Relaxed);
        }
        written
    }
}
