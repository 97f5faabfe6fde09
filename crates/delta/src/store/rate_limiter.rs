//! Limits the bytes written per second, to leave disk time for log commits, and network bandwidth for others.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use thalweg_kit::{clock, threads};

/// See the module. All users of one limiter share its rate.
#[derive(Debug)]
pub struct RateLimiter {
    bytes_per_second: u64,
    next: Mutex<Instant>,
}

impl RateLimiter {
    /// 0 is no limit.
    pub fn new(bytes_per_second: u64) -> RateLimiter {
        RateLimiter {
            bytes_per_second,
            next: Mutex::new(clock::now()),
        }
    }

    /// Counts the bytes, and returns how long to wait before they are written.
    pub fn pause(&self, bytes: usize) -> Duration {
        if self.bytes_per_second == 0 {
            return Duration::ZERO;
        }
        let mut next = self.next.lock();
        let now = clock::now();
        let pause = next.saturating_duration_since(now);
        *next = (*next).max(now) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        pause
    }

    /// Blocks until the bytes may be written.
    pub fn wait(&self, bytes: usize) {
        threads::sleep(self.pause(bytes));
    }
}
