//! Manual clocks for tests. They advance only on request, and the wall clock can be set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::TimeSource;
use crate::ids::Micros;

/// A wall clock that can be set, and a monotonic clock that cannot. A reboot is modelled by a new `ManualClock`.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicI64,
    elapsed: AtomicI64,
}

impl ManualClock {
    /// The clocks of a machine that has just booted with this wall-clock time.
    pub fn at(wall: Micros) -> Arc<ManualClock> {
        Arc::new(ManualClock {
            wall: AtomicI64::new(wall),
            elapsed: AtomicI64::new(0),
        })
    }

    /// Advances both clocks.
    pub fn pass(&self, time: Micros) {
        self.wall.fetch_add(time, Ordering::SeqCst);
        self.elapsed.fetch_add(time, Ordering::SeqCst);
    }

    /// Sets the wall clock forward or back by `by`; the monotonic clock stays.
    pub fn set(&self, by: Micros) {
        self.wall.fetch_add(by, Ordering::SeqCst);
    }
}

impl TimeSource for ManualClock {
    fn wall(&self) -> Micros {
        self.wall.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Micros {
        self.elapsed.load(Ordering::SeqCst)
    }
}
