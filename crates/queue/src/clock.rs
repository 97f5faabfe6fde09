//! The time of the process. Tests have one of their own.

use rustix::time::{ClockId, Timespec, clock_gettime};
use thalweg_log::Micros;

pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970, UTC.
    fn now(&self) -> Micros;

    /// The same, some milliseconds behind at most, for what is decided in seconds.
    fn roughly_now(&self) -> Micros {
        self.now()
    }
}

/// That of the machine.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        // Half of what `SystemTime` costs, which every claim and settle would pay.
        micros(clock_gettime(ClockId::Realtime))
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn roughly_now(&self) -> Micros {
        // The time of the last tick of the kernel, at a fifth of the cost: the processor's counter is not read.
        micros(clock_gettime(ClockId::RealtimeCoarse))
    }
}

fn micros(time: Timespec) -> Micros {
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}
