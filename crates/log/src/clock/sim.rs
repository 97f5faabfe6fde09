//! A machine's clocks that go on only when they are told to, for tests: time passes, or somebody sets the wall clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::TimeSource;
use crate::ids::Micros;

/// A wall clock that can be set, and a monotonic clock that cannot. A reboot makes another one.
#[derive(Debug, Default)]
pub struct ManualClock {
    wall: AtomicI64,
    elapsed: AtomicI64,
}

impl ManualClock {
    /// Of a machine that has just booted, and whose wall clock shows this.
    pub fn at(wall: Micros) -> Arc<ManualClock> {
        Arc::new(ManualClock {
            wall: AtomicI64::new(wall),
            elapsed: AtomicI64::new(0),
        })
    }

    /// Both clocks go on by so much.
    pub fn pass(&self, time: Micros) {
        self.wall.fetch_add(time, Ordering::SeqCst);
        self.elapsed.fetch_add(time, Ordering::SeqCst);
    }

    /// The wall clock is set by so much, forward or back, in no time.
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
