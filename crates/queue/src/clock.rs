//! The time of the process. Tests have one of their own.

use std::time::{SystemTime, UNIX_EPOCH};

use thalweg_log::Micros;

pub trait Clock: Send + Sync + 'static {
    /// Microseconds since 1970, UTC.
    fn now(&self) -> Micros;
}

/// That of the machine.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        (since.as_secs() * 1_000_000 + u64::from(since.subsec_micros())) as Micros
    }
}
