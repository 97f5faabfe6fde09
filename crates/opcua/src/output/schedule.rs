//! The schedule of operations that were begun: when each needs which service next.
//!
//! | stage | goes on to |
//! |---|---|
//! | to be written | in a Write |
//! | in a Write | to be read; pausing; ended |
//! | to be read | in a Read |
//! | in a Read | waiting to read again; pausing; ended |
//! | waiting to read again | to be read, when due |
//! | pausing | to be written, when due |

use std::collections::{BTreeSet, HashMap};

use thalweg_kit::backoff::Backoff;
use tokio::time::Instant;

use super::node_queues::OperationId;
use super::write_session::AttributeService;

struct Task {
    stage: OperationStage,
    /// Failed attempts of the handshake, since the last growing pause.
    attempts: u32,
    /// Growing pauses so far.
    pauses: u32,
    backoff: Backoff,
    /// The deadline for reading back the last written value.
    read_until: Instant,
}

#[derive(Clone, Copy)]
enum OperationStage {
    Ready(AttributeService),
    InCall,
    Until(Instant, AttributeService),
}

pub(super) struct Schedule {
    tasks: HashMap<OperationId, Task>,
    /// Sorted by the number of failures, otherwise failing operations would starve the others where calls of slow nodes
    /// are few.
    to_write: BTreeSet<(u32, OperationId)>,
    to_read: BTreeSet<(u32, OperationId)>,
    due: BTreeSet<(Instant, OperationId)>,
    backoff: Backoff,
}

impl Schedule {
    /// `backoff` is for operations that fail temporarily.
    pub fn new(backoff: Backoff) -> Schedule {
        Schedule {
            tasks: HashMap::new(),
            to_write: BTreeSet::new(),
            to_read: BTreeSet::new(),
            due: BTreeSet::new(),
            backoff,
        }
    }

    pub fn clear(&mut self) {
        *self = Schedule::new(self.backoff.clone());
    }

    pub fn begin(&mut self, id: OperationId, now: Instant) {
        let task = Task {
            stage: OperationStage::InCall,
            attempts: 0,
            pauses: 0,
            backoff: self.backoff.clone(),
            read_until: now,
        };
        self.tasks.insert(id, task);
        self.set(id, OperationStage::Ready(AttributeService::Write));
    }

    /// Returns the operations that are ready for a service, in order.
    pub fn ready(&self, service: AttributeService) -> impl Iterator<Item = OperationId> {
        let ready = match service {
            AttributeService::Write => &self.to_write,
            AttributeService::Read => &self.to_read,
        };
        ready.iter().map(|(_, id)| *id)
    }

    pub fn in_call(&mut self, id: OperationId) {
        self.set(id, OperationStage::InCall);
    }

    pub fn at_once(&mut self, id: OperationId, service: AttributeService) {
        self.set(id, OperationStage::Ready(service));
    }

    /// Schedules the read back of a written value, with its deadline.
    pub fn read_back(&mut self, id: OperationId, until: Instant) {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.read_until = until;
        }
        self.at_once(id, AttributeService::Read);
    }

    pub fn read_until(&self, id: OperationId) -> Option<Instant> {
        Some(self.tasks.get(&id)?.read_until)
    }

    pub fn look_again(&mut self, id: OperationId, at: Instant) {
        self.set(id, OperationStage::Until(at, AttributeService::Read));
    }

    /// Schedules another attempt of the handshake, unless `attempts_max` is reached.
    pub fn try_again(&mut self, id: OperationId, attempts_max: u32, at: Instant) -> bool {
        let Some(task) = self.tasks.get_mut(&id) else {
            return false;
        };
        task.attempts += 1;
        if task.attempts >= attempts_max {
            task.attempts = 0;
            return false;
        }
        self.set(id, OperationStage::Until(at, AttributeService::Write));
        true
    }

    /// Starts the attempts over, after a growing pause.
    pub fn try_later(&mut self, id: OperationId, now: Instant) {
        // This removes it from the ready sets, whose keys include the number of pauses.
        self.set(id, OperationStage::InCall);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.pauses = task.pauses.saturating_add(1);
        let at = now + task.backoff.next_pause();
        self.set(id, OperationStage::Until(at, AttributeService::Write));
    }

    /// Removes an operation; returns false if it is in a call, whose response is awaited.
    pub fn cancel(&mut self, id: OperationId) -> bool {
        let is_in_call = matches!(self.tasks.get(&id), Some(task) if matches!(task.stage, OperationStage::InCall));
        if !is_in_call {
            self.end(id);
        }
        !is_in_call
    }

    pub fn end(&mut self, id: OperationId) {
        self.set(id, OperationStage::InCall);
        self.tasks.remove(&id);
    }

    /// When the next operation is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Makes due operations ready.
    pub fn wake(&mut self, now: Instant) {
        while let Some((_, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            match self.tasks.get(&id).map(|task| task.stage) {
                Some(OperationStage::Until(_, service)) => self.set(id, OperationStage::Ready(service)),
                // The operation was removed.
                _ => {
                    self.due.pop_first();
                }
            }
        }
    }

    fn set(&mut self, id: OperationId, stage: OperationStage) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let place = (task.pauses, id);
        match std::mem::replace(&mut task.stage, stage) {
            OperationStage::Ready(AttributeService::Write) => self.to_write.remove(&place),
            OperationStage::Ready(AttributeService::Read) => self.to_read.remove(&place),
            OperationStage::Until(at, _) => self.due.remove(&(at, id)),
            OperationStage::InCall => false,
        };
        match stage {
            OperationStage::Ready(AttributeService::Write) => self.to_write.insert(place),
            OperationStage::Ready(AttributeService::Read) => self.to_read.insert(place),
            OperationStage::Until(at, _) => self.due.insert((at, id)),
            OperationStage::InCall => false,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use thalweg_kit::clock;

    use super::*;
    use crate::backoff::backoff_from;

    fn schedule(operations: OperationId) -> (Schedule, Instant) {
        let mut schedule = Schedule::new(backoff_from(Duration::from_millis(100)));
        let now = clock::tokio_now();
        (0..operations).for_each(|id| schedule.begin(id, now));
        (schedule, now)
    }

    fn ready(schedule: &Schedule, service: AttributeService) -> Vec<OperationId> {
        schedule.ready(service).collect()
    }

    #[test]
    fn what_waits_is_ready_when_it_is_time_and_what_has_failed_comes_last() {
        let (mut schedule, now) = schedule(3);
        schedule.in_call(0);
        schedule.try_later(0, now);
        schedule.in_call(1);
        schedule.read_back(1, now);
        assert_eq!(ready(&schedule, AttributeService::Write), [2]);
        assert_eq!(ready(&schedule, AttributeService::Read), [1]);
        schedule.in_call(1);
        schedule.look_again(1, now + Duration::from_secs(1));
        schedule.wake(now);
        assert!(ready(&schedule, AttributeService::Read).is_empty());
        schedule.wake(now + Duration::from_secs(1));
        assert_eq!(ready(&schedule, AttributeService::Write), [2, 0]);
        assert_eq!(ready(&schedule, AttributeService::Read), [1]);
        assert_eq!(schedule.next_due(), None);
    }

    #[test]
    fn attempts_are_counted_and_begin_anew_after_a_pause() {
        let (mut schedule, now) = schedule(1);
        for _ in 0..2 {
            assert!(schedule.try_again(0, 3, now));
            assert!(schedule.try_again(0, 3, now));
            assert!(!schedule.try_again(0, 3, now));
        }
    }

    #[test]
    fn what_is_in_a_call_is_waited_for_and_all_else_can_be_forgotten() {
        let (mut schedule, now) = schedule(4);
        schedule.in_call(0);
        schedule.read_back(1, now);
        schedule.try_later(2, now);
        assert!(!schedule.cancel(0));
        // Also one that was never begun.
        assert!((1..5).all(|id| schedule.cancel(id)));
        assert!(
            ready(&schedule, AttributeService::Write).is_empty() && ready(&schedule, AttributeService::Read).is_empty()
        );
        assert_eq!(schedule.next_due(), None);
    }
}
