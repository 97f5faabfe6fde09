//! The time of the process. Tests have one of their own.

use rustix::time::{ClockId, clock_gettime};
use thalweg_log::Micros;

pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970, UTC.
    fn now(&self) -> Micros;
}

/// That of the machine.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        // Half of what `SystemTime` costs, which every claim and settle would pay.
        let now = clock_gettime(ClockId::Realtime);
        now.tv_sec * 1_000_000 + now.tv_nsec / 1000
    }
}
