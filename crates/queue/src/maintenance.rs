//! Background work of a queue that takes time: moving dead letters, rereading delayed messages, trimming, checkpoints,
//! and catalogue updates. One task per queue does these one after the other. It runs beside the timers (`timers.rs`)
//! and shares nothing with them but the locks of single calls.

mod schedule;

use std::sync::Arc;

use thalweg_log::Micros;

use crate::group::Group;
use crate::group_partition::NEVER;
use crate::message_times::micros;
use crate::queue::Queue;
use crate::settings::RetentionMode;
use crate::timers::SLEEP_MAX;
use schedule::FRAMES_IDLE;
pub(crate) use schedule::MaintenanceSchedule;

/// A checkpoint is written after this many state records, or after this time if there are any.
const CHECKPOINT_RECORDS: u32 = 10_000;
pub(crate) const CHECKPOINT_AFTER: Micros = 30_000_000;
/// Minimum interval between removals of dedup-ids whose window has passed. They run when something else is due.
const TRIM_IDS_EVERY: Micros = 60_000_000;

/// When the task last did each kind of work.
struct MaintenanceTimes {
    checkpoint: Micros,
    compaction: Micros,
    ids: Micros,
    /// Dedup-ids forgotten early that were already logged.
    ids_forgotten: u64,
}

impl Queue {
    /// The maintenance task; ends when the queue is removed.
    pub(crate) async fn maintain(self: Arc<Queue>) {
        let now = self.clock.now();
        let mut times = MaintenanceTimes {
            checkpoint: now,
            compaction: now,
            ids: now,
            ids_forgotten: 0,
        };
        loop {
            self.maintenance.begin_round();
            if self.has_ended() {
                return;
            }
            self.follow_the_wall_clock().await;
            let due = self.maintain_now(&mut times).await;
            let due = due.min(self.compact_by_and_by(&mut times));
            self.maintenance.sleep_until(due).await;
        }
    }

    /// Starts key compaction as a separate task, because it may take long. Returns when it is due next.
    fn compact_by_and_by(self: &Arc<Queue>, times: &mut MaintenanceTimes) -> Micros {
        if !self.is_compacted() {
            return NEVER;
        }
        let (now, interval) = (self.clock.now(), micros(self.settings_now().compaction.interval));
        if now >= times.compaction + interval {
            times.compaction = now;
            // A run in progress continues alone.
            if let Some(run) = self.compaction.try_begin() {
                let queue = self.clone();
                tokio::spawn(async move { queue.compact(run).await });
            }
        }
        times.compaction + interval
    }

    /// Runs all work of the queue's tasks that is due, and returns when it is done.
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
        self.remove_expired().await;
    }

    /// Does what is due and returns when the next work is due.
    async fn maintain_now(self: &Arc<Queue>, times: &mut MaintenanceTimes) -> Micros {
        let now = self.clock.now();
        let mut due = now + SLEEP_MAX;
        for ((_, partition), group) in &self.maintenance.take_left() {
            self.move_out(group, *partition).await;
            if let Some(part) = group.part(*partition) {
                self.rouse(group, *partition, part).await;
            }
        }
        let groups = self.groups();
        for group in &groups {
            due = due.min(self.look_after_use(group).await);
        }
        if let Some(trim) = self.maintenance.take_trim(now) {
            due = due.min(trim);
        } else {
            self.trim_beside().await;
            if self.settings_now().retention.mode == RetentionMode::Policy {
                self.look_for_old_now();
            }
        }
        if now >= times.ids + TRIM_IDS_EVERY {
            times.ids = now;
            self.tell_forgotten_ids(&mut times.ids_forgotten);
            if self.keeps_ids() || !self.dedup.is_empty() {
                // Finding where a window begins may need a disk read.
                self.on_a_thread(|queue| queue.trim_ids()).await;
            }
        }
        if let Some(next) = self.dedup.next_due() {
            due = due.min(next.max(times.ids + TRIM_IDS_EVERY));
        }
        due = due.min(self.forget_frames());
        self.keep_expires_early().await;
        self.remove_expired().await;
        due = due.min(self.expiry.next_check());
        due.min(self.checkpoint_if_due(&groups, times, now).await)
    }

    /// Releases cached frames that were unused for a while, because a group may cache some of each partition. Returns
    /// when the next release is due.
    fn forget_frames(&self) -> Micros {
        let now = self.clock.now();
        if let Some(due) = self.maintenance.take_frames(now) {
            return due;
        }
        let groups = self.groups();
        let parts = groups.iter().flat_map(|group| group.parts());
        let used = parts.filter_map(|(_, part)| part.inner.lock().forget_frames(now - FRAMES_IDLE));
        let next = used.min().map_or(NEVER, |used| used + FRAMES_IDLE + 1);
        self.maintenance.plan_frames(next)
    }

    fn tell_forgotten_ids(&self, told: &mut u64) {
        let Some(dedup) = self.dedup().filter(|dedup| dedup.forgotten_early > *told) else {
            return;
        };
        tracing::warn!(
            queue = %self.name(), ids = dedup.forgotten_early - *told, kept = dedup.ids,
            "dedup-ids were forgotten within dedup_window to free memory, so a duplicate may be stored: shorten the \
             window, or raise queues.dedup_memory"
        );
        *told = dedup.forgotten_early;
    }

    /// Stores since when a group is unused, and removes it when that is long enough. Returns when to check again.
    async fn look_after_use(self: &Arc<Queue>, group: &Arc<Group>) -> Micros {
        self.keep_use(group).await;
        let expires = self.expires_at(group).unwrap_or(NEVER);
        if expires > self.clock.now() {
            return expires;
        }
        match self.expire(group).await {
            Ok(()) => tracing::info!(queue = %self.name(), group = %group.name(), "a group without members expired"),
            Err(error) => {
                tracing::warn!(
                    queue = %self.name(), group = %group.name(), %error,
                    "an expired group cannot be removed"
                );
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
        let letters = self.letters.unsaved();
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
