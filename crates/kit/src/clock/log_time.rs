//! The interface of a clock that durations of minutes to years are counted with, beside the wall clock that people read.
//!
//! Leases, delays and lifetimes are measured in *log time*, which advances steadily whatever happens to the wall clock.
//! Times that a person sees or names are converted. `thalweg-log` has the clock that keeps log time over restarts.

use std::sync::Arc;

use super::{ClockJumps, wall_micros};
use crate::time::Micros;

/// The clock for queues, subscriptions and retention.
pub trait Clock: Send + Sync + 'static {
    /// Log time. It never decreases and differs from the wall clock.
    fn now(&self) -> Micros;

    /// Like `now`, but up to some milliseconds late. For decisions in units of seconds.
    fn roughly_now(&self) -> Micros {
        self.now()
    }

    /// The history of the difference between the wall clock and log time.
    fn jumps(&self) -> Arc<ClockJumps> {
        ClockJumps::none()
    }

    /// Reads the wall clock now instead of within a second. Call it before something is deleted because of its
    /// wall-clock timestamp.
    fn notice(&self) {}

    /// What the wall clock shows, even if it was just set. Timestamps that people read use it.
    fn wall(&self) -> Micros {
        self.wall_at(self.now())
    }

    /// What the wall clock showed at a log time.
    fn wall_at(&self, time: Micros) -> Micros {
        self.jumps().wall_at(time)
    }

    /// The log time at which the wall clock will show a time, or last did.
    fn at_wall(&self, wall: Micros) -> Micros {
        self.jumps().at_wall(wall)
    }

    /// Data with a wall-clock timestamp before the returned time is older than `age`. Data with a later timestamp may
    /// be too, if the clock was set.
    fn oldest_wall(&self, age: Micros) -> Micros {
        self.notice();
        let now = self.now();
        self.jumps().least_wall_since(now.saturating_sub(age), now)
    }
}

/// Any function that returns the time. It has no wall clock of its own.
impl<F: Fn() -> Micros + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Micros {
        self()
    }
}

/// The wall clock used as log time, for callers that read it only once.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        wall_micros()
    }
}
