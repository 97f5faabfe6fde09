//! The clocks of the machine. Product code reads them here and nowhere else, which `clippy.toml` enforces: whoever asks which
//! clock decides something finds the answer with one search, and a simulated run replaces one place. Beside them is the
//! interface of log time, [`Clock`].

mod jumps;
mod log_time;
mod machine_time;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::time::Micros;

pub use jumps::{ClockJump, ClockJumps, JUMPS_MAX};
pub use log_time::{Clock, SystemClock};
pub use machine_time::{MachineTime, TimeSource};

/// The monotonic clock. Durations are differences of it.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn now() -> Instant {
    Instant::now()
}

/// The monotonic clock for timers of the runtime, which a test may have paused.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn tokio_now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// The wall clock, which people and programs set. It stamps; it never measures.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this is the replacement")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// What the wall clock shows, since 1970; zero before 1970.
pub fn since_1970() -> Duration {
    wall().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Milliseconds since 1970 by the wall clock; 0 before 1970.
pub fn unix_ms() -> i64 {
    i64::try_from(since_1970().as_millis()).unwrap_or(i64::MAX)
}

/// Nanoseconds since 1970 by the wall clock; 0 before 1970.
pub fn unix_nanos() -> i64 {
    i64::try_from(since_1970().as_nanos()).unwrap_or(i64::MAX)
}

/// Microseconds since 1970 by the wall clock, also before 1970.
pub fn wall_micros() -> Micros {
    match wall().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_micros() as Micros,
        Err(before) => -(before.duration().as_micros() as Micros),
    }
}
