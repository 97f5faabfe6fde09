//! When the maintenance task of a queue is due, and what others leave to it. The task takes what is due before it does
//! it, so what comes meanwhile is done the next time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use thalweg_log::Micros;
use thalweg_log::clock::Clock;

use crate::alarm::Alarm;
use crate::group::Group;
use crate::group_partition::NEVER;

/// Settled messages are trimmed after this delay.
const TRIM_AFTER: Micros = 100_000;
/// Cached log frames that were unused for this long are released.
pub(super) const FRAMES_IDLE: Micros = 10_000_000;

pub(crate) struct MaintenanceSchedule {
    clock: Arc<dyn Clock>,
    alarm: Alarm,
    /// Group partitions with messages that must leave or be reread, by group and partition.
    left: Mutex<BTreeMap<(u32, u32), Arc<Group>>>,
    /// When recently settled messages are trimmed; [`NEVER`] if there are none.
    trim: AtomicI64,
    /// When unused cached frames are released; [`NEVER`] if there are none.
    frames: AtomicI64,
}

impl MaintenanceSchedule {
    pub fn new(clock: Arc<dyn Clock>) -> MaintenanceSchedule {
        MaintenanceSchedule {
            clock,
            alarm: Alarm::default(),
            left: Mutex::default(),
            trim: AtomicI64::new(NEVER),
            frames: AtomicI64::new(NEVER),
        }
    }

    /// Runs the maintenance at this time at the latest.
    pub fn wake_by(&self, due: Micros) {
        self.alarm.wake_by(due);
    }

    /// Leaves the messages of a group partition that must leave or be reread to the maintenance.
    pub fn leave(&self, group: &Arc<Group>, partition: u32) {
        self.left.lock().insert((group.id, partition), group.clone());
    }

    /// Schedules a trim after messages were settled.
    pub fn trim_soon(&self) {
        if self.trim.load(Ordering::Relaxed) != NEVER {
            return;
        }
        let due = self.clock.now() + TRIM_AFTER;
        if self
            .trim
            .compare_exchange(NEVER, due, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            self.wake_by(due);
        }
    }

    /// Like `trim_soon`, but at once; later settlements are scheduled separately.
    pub fn trim_now(&self) {
        self.trim.store(0, Ordering::Release);
        self.wake_by(0);
    }

    /// Schedules the release of cached frames. Free if it is already scheduled.
    pub fn forget_frames_later(&self) {
        if self.frames.load(Ordering::Relaxed) == NEVER {
            let due = self.clock.now() + FRAMES_IDLE;
            self.frames.fetch_min(due, Ordering::AcqRel);
            self.wake_by(due);
        }
    }

    /// Wakes the task, which then finds that the queue has ended.
    pub fn end(&self) {
        self.alarm.end();
    }

    /// Called by the task before it checks.
    pub(super) fn begin_round(&self) {
        self.alarm.begin_round();
    }

    pub(super) async fn sleep_until(&self, due: Micros) {
        self.alarm.sleep_until(due, self.clock.as_ref()).await;
    }

    /// What was left to the task since the last call.
    pub(super) fn take_left(&self) -> BTreeMap<(u32, u32), Arc<Group>> {
        std::mem::take(&mut *self.left.lock())
    }

    /// `None` if a trim is due now, otherwise when it will be.
    pub(super) fn take_trim(&self, now: Micros) -> Option<Micros> {
        let due = self.trim.load(Ordering::Acquire);
        if due > now {
            return Some(due);
        }
        // Reset before the trim, so that later settlements are trimmed the next time.
        self.trim.store(NEVER, Ordering::Release);
        None
    }

    /// `None` if the release of cached frames is due now, otherwise when it will be.
    pub(super) fn take_frames(&self, now: Micros) -> Option<Micros> {
        let due = self.frames.load(Ordering::Acquire);
        if due > now {
            return Some(due);
        }
        // Reset before the scan, so that later reads are handled the next time.
        self.frames.store(NEVER, Ordering::Release);
        None
    }

    /// Plans the next release of cached frames. Returns when it is due, which may be earlier.
    pub(super) fn plan_frames(&self, next: Micros) -> Micros {
        self.frames.fetch_min(next, Ordering::AcqRel).min(next)
    }
}
