//! The timers of a queue: ends of leases and delays, graces and share changes of its consumers. One task sleeps until
//! the next timer is due and is woken for an earlier one; there is no periodic tick.
//!
//! The task waits only for time. Work that needs the disk, another queue or the registry is left to the maintenance
//! task (`maintenance.rs`), so a message that is due is delivered whatever a disk is doing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_log::Micros;

use crate::group::Group;
use crate::group_partition::{GroupPartition, GroupState, NEVER};
use crate::queue::Queue;

/// Upper bound of a sleep, in case a wake-up was missed.
pub(crate) const SLEEP_MAX: Micros = 300_000_000;

impl Queue {
    /// Wakes the timer task when something is due for the members of a group.
    pub(crate) fn wake_timers_for_members(&self, group: &Group) {
        let due = group.members.lock().next_due();
        self.timers.wake_by(due.unwrap_or(NEVER));
    }

    /// The timer task; ends when the queue is removed.
    pub(crate) async fn run_timer_task(self: Arc<Queue>) {
        loop {
            self.timers.begin_round();
            if self.has_ended() {
                return;
            }
            let due = self.run_timers(self.clock.now());
            self.timers.sleep_until(due, self.clock.as_ref()).await;
        }
    }

    /// Does what is due and returns when the next work is due.
    pub(crate) fn run_timers(&self, now: Micros) -> Micros {
        let mut due = now + SLEEP_MAX;
        if !self.wall_clock.is_followed(self.clock.as_ref()) {
            // Delays until a wall-clock time are still based on the old time and are corrected first.
            self.maintenance.wake_by(0);
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
                    self.maintenance.leave(group, partition);
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
            self.maintenance.wake_by(0);
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
            group.waiting.call_claims_at_limit();
            self.call_if_more(group, partition);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

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
