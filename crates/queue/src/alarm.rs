//! When a task of a queue wakes up. It sleeps until something is due, and can be woken earlier.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use thalweg_log::Micros;
use thalweg_log::clock::Clock;
use tokio::sync::Notify;

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
    /// Wakes the task at `due` at the latest, if it would sleep longer.
    pub fn wake_by(&self, due: Micros) {
        if due < self.planned.load(Ordering::SeqCst) {
            // So that another caller does not notify again before the task has run.
            self.planned.fetch_min(due, Ordering::AcqRel);
            self.call.notify_one();
        }
    }

    /// Called by the task before it checks, and before it reads when partitions are due; later calls of `wake_by` take
    /// effect when it sleeps. Sequentially consistent with threads that change a due time and then read the plan, so one
    /// side sees the other.
    pub fn begin_round(&self) {
        self.planned.store(Micros::MAX, Ordering::SeqCst);
    }

    pub async fn sleep_until(&self, due: Micros, clock: &dyn Clock) {
        self.planned.store(due, Ordering::Release);
        let pause = due.saturating_sub(clock.now()).max(0) as u64;
        let _ = tokio::time::timeout(Duration::from_micros(pause), self.call.notified()).await;
    }

    /// Wakes the task, which then finds that the queue has ended.
    pub fn end(&self) {
        self.call.notify_one();
    }
}
