//! The timers of a queue: ends of leases and delays, graces and share changes of its consumers. One task sleeps until
//! the next timer is due and is woken for an earlier one; there is no periodic tick.
//!
//! The task waits only for time. Work that needs the disk, another queue or the registry is left to the maintenance
//! task (`maintenance.rs`), so a message that is due is delivered whatever a disk is doing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use thalweg_log::Micros;
use thalweg_log::clock::{Clock, ClockJumps};
use tokio::sync::Notify;

use crate::expiry::ExpiryCheck;
use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupState, NEVER};
use crate::queue::Queue;

/// Upper bound of a sleep, in case a wake-up was missed.
pub(crate) const SLEEP_MAX: Micros = 300_000_000;

/// When a task wakes up; it can be woken earlier.
#[derive(Debug)]
pub(crate) struct Alarm {
    planned: AtomicI64,
    call: Notify,
}

impl Default for Alarm {
    fn default() -> Alarm {
        Alarm {
            planned: AtomicI64::new(Micros::MAX),
            call: Notify::new(),
        }
    }
}

impl Alarm {
    /// Wakes the task at `due`, if it would sleep longer.
    fn by(&self, due: Micros) {
        if due < self.planned.load(Ordering::SeqCst) {
            // So that another caller does not notify again before the task has run.
            self.planned.fetch_min(due, Ordering::AcqRel);
            self.call.notify_one();
        }
    }

    /// Called by the task before it checks, and before it reads when partitions are due; later calls take effect when
    /// it sleeps. Sequentially consistent with threads that change a due time and then read the plan, so one side sees
    /// the other.
    pub fn looks(&self) {
        self.planned.store(Micros::MAX, Ordering::SeqCst);
    }

    pub async fn sleep_until(&self, due: Micros, clock: &dyn Clock) {
        self.planned.store(due, Ordering::Release);
        let pause = due.saturating_sub(clock.now()).max(0) as u64;
        let _ = tokio::time::timeout(Duration::from_micros(pause), self.call.notified()).await;
    }
}

/// The two tasks of a queue, and what they share.
pub(crate) struct QueueTasks {
    timers: Alarm,
    pub maintenance: Alarm,
    /// Group partitions with messages that must leave or be reread, by group and partition.
    pub for_maintenance: Mutex<BTreeMap<(u32, u32), Arc<Group>>>,
    /// When recently settled messages are trimmed; [`NEVER`] if there are none.
    pub trim: AtomicI64,
    /// When unused cached frames are released; [`NEVER`] if there are none.
    pub frames: AtomicI64,
    /// Checks of retained messages, and of messages that no consumer has seen.
    pub kept: ExpiryCheck,
    pub unclaimed: ExpiryCheck,
    /// The clock jumps that the current wall-clock delays are computed with. The lock is held while they are
    /// recomputed.
    pub jumps: ArcSwap<ClockJumps>,
    pub following: tokio::sync::Mutex<()>,
}

impl QueueTasks {
    pub fn new() -> QueueTasks {
        QueueTasks {
            timers: Alarm::default(),
            maintenance: Alarm::default(),
            for_maintenance: Mutex::default(),
            trim: AtomicI64::new(NEVER),
            frames: AtomicI64::new(NEVER),
            kept: ExpiryCheck::default(),
            unclaimed: ExpiryCheck::default(),
            jumps: ArcSwap::new(ClockJumps::none()),
            following: tokio::sync::Mutex::default(),
        }
    }

    /// Wakes both tasks, which then find that the queue has ended.
    pub fn end(&self) {
        self.timers.call.notify_one();
        self.maintenance.call.notify_one();
    }
}

impl Queue {
    /// Runs the timers at this time.
    pub(crate) fn look_at(&self, due: Micros) {
        self.keeper.timers.by(due);
    }

    /// Runs the maintenance at this time.
    pub(crate) fn maintain_by(&self, due: Micros) {
        self.keeper.maintenance.by(due);
    }

    /// Runs the timers when something is due for the members of a group.
    pub(crate) fn look_by(&self, group: &Group) {
        let due = group.members.lock().next_due();
        self.look_at(due.unwrap_or(NEVER));
    }

    /// The timer task; ends when the queue is removed.
    pub(crate) async fn keep(self: Arc<Queue>) {
        loop {
            self.keeper.timers.looks();
            if self.has_ended() {
                return;
            }
            let due = self.run_timers(self.clock.now());
            self.keeper.timers.sleep_until(due, self.clock.as_ref()).await;
        }
    }

    /// Does what is due and returns when the next work is due.
    pub(crate) fn run_timers(&self, now: Micros) -> Micros {
        let mut due = now + SLEEP_MAX;
        if !self.follows_the_wall_clock() {
            // Delays until a wall-clock time are still based on the old time and are corrected first.
            self.maintain_by(0);
            return due;
        }
        let mut calls_maintenance = false;
        for group in &self.groups() {
            for (partition, part) in group.parts() {
                if part.due.load(Ordering::SeqCst) <= now {
                    self.advance(group, partition, part, now);
                }
                let (next, waits) = part.timers(now);
                if waits {
                    calls_maintenance = true;
                    self.keeper
                        .for_maintenance
                        .lock()
                        .insert((group.id, partition), group.clone());
                }
                due = due.min(next);
            }
            let (ticked, next, is_news) = {
                let mut members = group.members.lock();
                (members.tick(now), members.next_due(), members.to_keep().is_some())
            };
            calls_maintenance |= is_news && !self.expires_never(group);
            if ticked.rebalanced {
                group.wake();
            }
            due = due.min(next.unwrap_or(NEVER));
        }
        if calls_maintenance {
            self.maintain_by(0);
        }
        due
    }

    fn advance(&self, group: &Group, partition: u32, part: &GroupPartition, now: Micros) {
        let mut inner = part.inner.lock();
        // What waits for maintenance is due all the time. If it woke claims, they would look in vain and have the timers
        // run again, in a circle, for as long as a full disk keeps maintenance from it.
        let is_ripe = part.is_ripe(now);
        match &mut inner.state {
            GroupState::Work(machine) => machine.advance(now),
            GroupState::Stream(machine) => machine.advance(now),
        }
        if let Err(error) = self.changed(group, partition, part, &mut inner, now) {
            tracing::warn!(queue = %self.name(), group = %group.name(), %error, "the state of a group cannot be stored");
        }
        drop(inner);
        if is_ripe {
            group.waiting.call_full();
            self.call_if_more(group, partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use thalweg_log::disk::RamDisk;
    use thalweg_log::{Durability, EmbeddedLog, LogOptions};

    use super::*;
    use crate::settings::{GroupMode, GroupSettings, QueueSettings};
    use crate::{Queues, QueuesOptions, SystemClock};

    #[tokio::test]
    async fn timers_and_maintenance_look_into_no_part_in_which_nothing_is_due() {
        let options = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            min_free_bytes: Some(0),
            spare: 1,
            ..LogOptions::default()
        };
        let log = Arc::new(EmbeddedLog::open(Arc::new(RamDisk::new(64 << 20)), 7, &options).unwrap());
        let options = QueuesOptions {
            durability: Durability::Fsync,
            auto_create: false,
            memory_bytes: u64::MAX,
            dedup_bytes: u64::MAX,
            state_bytes: u64::MAX,
        };
        let queues = Queues::open(log.clone(), Arc::new(SystemClock), options).await.unwrap();
        let settings = QueueSettings {
            partitions: 3,
            groups: vec![
                GroupSettings::new("s", GroupMode::Stream),
                GroupSettings::new("w", GroupMode::Work),
            ],
            ..QueueSettings::default()
        };
        let queue = queues.create("q", settings).await.unwrap();
        let groups = queue.groups();
        {
            let parts = groups.iter().flat_map(|group| group.parts());
            let _used: Vec<_> = parts.map(|(_, part)| part.inner.lock()).collect();
            let (said, heard) = channel();
            let looking = queue.clone();
            std::thread::spawn(move || {
                looking.run_timers(looking.clock.now());
                looking.most_records(&looking.groups());
                said.send(())
            });
            assert!(
                heard.recv_timeout(Duration::from_secs(20)).is_ok(),
                "it waits for a part"
            );
        }
        queues.close().await;
        log.close();
    }
}
