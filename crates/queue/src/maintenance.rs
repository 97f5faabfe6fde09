//! What a queue does by itself that takes time: dead letters, delayed messages that are read again, letting go of what nobody
//! needs, checkpoints, what the catalogue has to know. One task does one of these after the other, beside the timers
//! (`timers.rs`), which it holds up by nothing but the locks of single calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_log::Micros;

use crate::group::Group;
use crate::group_partition::NEVER;
use crate::queue::Queue;
use crate::settings::RetentionMode;
use crate::timers::SLEEP_MAX;
use crate::times::micros;

/// What was settled is let go so long after.
const TRIM_AFTER: Micros = 100_000;
/// A checkpoint is written after so many records of state, or, if there are any, after so long.
const CHECKPOINT_RECORDS: u32 = 10_000;
pub(crate) const CHECKPOINT_AFTER: Micros = 30_000_000;
/// What was read of the log and nobody has looked at for so long is given back.
const FRAMES_IDLE: Micros = 10_000_000;
/// Dedup-ids whose window has passed are let go that often, when something else is due.
const TRIM_IDS_EVERY: Micros = 60_000_000;

/// When the task did what.
struct MaintenanceTimes {
    checkpoint: Micros,
    compaction: Micros,
    ids: Micros,
    /// Dedup-ids that were told to be forgotten early.
    ids_forgotten: u64,
}

impl Queue {
    /// Something was settled that may be let go.
    pub(crate) fn trim_soon(&self) {
        let trim = &self.keeper.trim;
        if trim.load(Ordering::Relaxed) != NEVER {
            return;
        }
        let due = self.clock.now() + TRIM_AFTER;
        if trim
            .compare_exchange(NEVER, due, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.maintain_by(due);
        }
    }

    /// The same at once, so that what is settled from here on has its time.
    pub(crate) fn trim_now(&self) {
        self.keeper.trim.store(0, Ordering::Release);
        self.maintain_by(0);
    }

    /// The task of a queue; ends when the queue is removed.
    pub(crate) async fn maintain(self: Arc<Queue>) {
        let now = self.clock.now();
        let mut times = MaintenanceTimes {
            checkpoint: now,
            compaction: now,
            ids: now,
            ids_forgotten: 0,
        };
        loop {
            self.keeper.maintenance.looks();
            if self.removed.load(Ordering::Acquire) {
                return;
            }
            self.follow_the_wall_clock().await;
            let due = self.maintain_now(&mut times).await;
            let due = due.min(self.compact_by_and_by(&mut times));
            self.keeper.maintenance.sleep_until(due, self.clock.as_ref()).await;
        }
    }

    /// Has keys compacted, apart from all else, as that may take long. Returns when it is due next.
    fn compact_by_and_by(self: &Arc<Queue>, times: &mut MaintenanceTimes) -> Micros {
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

    /// Has the tasks of the queue do what is due, as they do by themselves when the time comes; returns when that is done.
    #[doc(hidden)]
    pub async fn look_after_now(self: &Arc<Queue>) {
        self.follow_the_wall_clock().await;
        self.run_timers(self.clock.now());
        for group in self.groups() {
            for (partition, part) in group.parts() {
                self.move_out(&group, partition).await;
                self.rouse(&group, partition, part).await;
            }
            self.look_after_use(&group).await;
        }
        self.forget_frames();
        self.on_a_thread(|queue| queue.trim_ids()).await;
        self.shed().await;
    }

    /// Does what is due and returns when the next is.
    async fn maintain_now(self: &Arc<Queue>, times: &mut MaintenanceTimes) -> Micros {
        let now = self.clock.now();
        let mut due = now + SLEEP_MAX;
        let parts = std::mem::take(&mut *self.keeper.for_maintenance.lock());
        for ((_, partition), group) in &parts {
            self.move_out(group, *partition).await;
            if let Some(part) = group.part(*partition) {
                self.rouse(group, *partition, part).await;
            }
        }
        let groups = self.groups();
        for group in &groups {
            due = due.min(self.look_after_use(group).await);
        }
        let trim = self.keeper.trim.load(Ordering::Acquire);
        if trim > now {
            due = due.min(trim);
        } else {
            // Before it looks: what is settled from here on is let go the next time.
            self.keeper.trim.store(NEVER, Ordering::Release);
            self.trim_beside().await;
            if self.settings_now().retention.mode == RetentionMode::Policy {
                self.look_for_old_now();
            }
        }
        if now >= times.ids + TRIM_IDS_EVERY {
            times.ids = now;
            self.tell_forgotten_ids(&mut times.ids_forgotten);
            if self.keeps_ids() || !self.dedup.lock().is_empty() {
                // Where a window begins may have to be looked up on a disk.
                self.on_a_thread(|queue| queue.trim_ids()).await;
            }
        }
        if let Some(next) = self.dedup.lock().next_due() {
            due = due.min(next.max(times.ids + TRIM_IDS_EVERY));
        }
        due = due.min(self.forget_frames());
        self.keep_expires_early().await;
        self.shed().await;
        due = due.min(self.keeper.kept.at()).min(self.keeper.unclaimed.at());
        due.min(self.checkpoint_if_due(&groups, times, now).await)
    }

    /// Something that was read is kept for the next claim. Free if it is known that something is.
    pub(crate) fn forget_frames_later(&self) {
        if self.keeper.frames.load(Ordering::Relaxed) == NEVER {
            let due = self.clock.now() + FRAMES_IDLE;
            self.keeper.frames.fetch_min(due, Ordering::AcqRel);
            self.maintain_by(due);
        }
    }

    /// Gives back what was read and nobody has looked at for a while: a group may have something of each partition. Returns
    /// when the next is due.
    fn forget_frames(&self) -> Micros {
        let now = self.clock.now();
        let due = self.keeper.frames.load(Ordering::Acquire);
        if due > now {
            return due;
        }
        // Before it looks: what is read from here on is looked for the next time.
        self.keeper.frames.store(NEVER, Ordering::Release);
        let groups = self.groups();
        let parts = groups.iter().flat_map(|group| group.parts());
        let used = parts.filter_map(|(_, part)| part.inner.lock().forget_frames(now - FRAMES_IDLE));
        let next = used.min().map_or(NEVER, |used| used + FRAMES_IDLE + 1);
        self.keeper.frames.fetch_min(next, Ordering::AcqRel).min(next)
    }

    fn tell_forgotten_ids(&self, told: &mut u64) {
        let Some(dedup) = self.dedup().filter(|dedup| dedup.forgotten_early > *told) else {
            return;
        };
        tracing::warn!(
            queue = %self.name(), ids = dedup.forgotten_early - *told, kept = dedup.ids,
            "dedup-ids were forgotten inside of dedup_window for want of room, so a repetition may be stored again: shorten the \
             window, or raise queues.dedup_memory"
        );
        *told = dedup.forgotten_early;
    }

    /// Keeps since when a group is not used, and has it go when that is long enough. Returns when to look again.
    async fn look_after_use(self: &Arc<Queue>, group: &Arc<Group>) -> Micros {
        self.keep_use(group).await;
        let expires = self.expires_at(group).unwrap_or(NEVER);
        if expires > self.clock.now() {
            return expires;
        }
        match self.expire(group).await {
            Ok(()) => tracing::info!(queue = %self.name(), group = %group.name(), "a group without members expired"),
            Err(error) => {
                tracing::warn!(queue = %self.name(), group = %group.name(), %error, "a group cannot expire");
            }
        }
        NEVER
    }

    async fn checkpoint_if_due(
        self: &Arc<Queue>,
        groups: &[Arc<Group>],
        times: &mut MaintenanceTimes,
        now: Micros,
    ) -> Micros {
        let letters = self.unsaved_drops.load(Ordering::Relaxed);
        let letters = letters.max(self.sent_here.lock().most_unsaved());
        let unsaved = self.most_records(groups).max(letters);
        let in_time = now >= times.checkpoint + CHECKPOINT_AFTER;
        if unsaved >= CHECKPOINT_RECORDS || (unsaved > 0 && in_time) {
            let least = if in_time { 1 } else { CHECKPOINT_RECORDS };
            // The state of millions of messages is megabytes of text.
            self.on_a_thread(move |queue| {
                queue.checkpoint(|unsaved| unsaved.records >= least && unsaved.is_worth_it())
            })
            .await;
            times.checkpoint = now;
            return NEVER;
        }
        match unsaved {
            0 => NEVER,
            _ => times.checkpoint + CHECKPOINT_AFTER,
        }
    }
}
