//! The wall clock of the machine, and a clock that nobody can set and that includes the time in which the machine is
//! suspended.

use std::sync::atomic::{AtomicI64, Ordering};

use rustix::time::{ClockId, Timespec, clock_gettime};

use super::wall_micros;
use crate::time::Micros;

/// The clocks of a machine.
pub trait TimeSource: Send + Sync + 'static {
    /// Microseconds since 1970, UTC, as set by a person or by NTP.
    fn wall(&self) -> Micros;

    /// Microseconds since some moment. It cannot be set and includes time in which the machine is suspended.
    fn elapsed(&self) -> Micros;

    /// Like `elapsed`, but up to some milliseconds late.
    fn roughly_elapsed(&self) -> Micros {
        self.elapsed()
    }
}

/// The clocks of this machine.
#[derive(Debug, Default)]
pub struct MachineTime {
    /// How long the machine has been suspended, updated when the wall clock is read.
    suspended: AtomicI64,
}

impl TimeSource for MachineTime {
    fn wall(&self) -> Micros {
        let suspended = elapsed_of(BOOT) - elapsed_of(ClockId::Monotonic);
        self.suspended.store(suspended, Ordering::Relaxed);
        wall_micros()
    }

    fn elapsed(&self) -> Micros {
        elapsed_of(BOOT)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn roughly_elapsed(&self) -> Micros {
        // The time of the kernel's last tick. It costs a fifth, because the processor's counter is not read.
        elapsed_of(ClockId::MonotonicCoarse) + self.suspended.load(Ordering::Relaxed)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::Monotonic;

fn elapsed_of(clock: ClockId) -> Micros {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec * 1_000_000 + tv_nsec / 1000
}
