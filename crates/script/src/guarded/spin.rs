//! Waiting for what comes within microseconds, without asking the system for sleep: as long as that pays.
//!
//! A thread that sleeps is awake some 5 µs after it was called, which is more than a short script takes. One that spins takes a core that
//! others may need. So a few spins in vain end it, and now and then one more is tried.

use std::time::{Duration, Instant};

/// About what it takes to fall asleep and to wake up.
const SPIN_MAX: Duration = Duration::from_micros(10);

/// Spins that were in vain before there are none.
const TRUST_MAX: u8 = 4;

/// Waits without a spin before the next one.
const PAUSE: u8 = 64;

/// Whether one place in the code spins.
#[derive(Debug)]
pub(super) struct Spin {
    trust: u8,
    /// Waits since the trust was lost.
    waits: u8,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin {
            trust: TRUST_MAX,
            waits: 0,
        }
    }
}

impl Spin {
    /// Looks for something for a moment; `None` if it has not come, and the caller is to sleep.
    pub fn until<R>(&mut self, look: impl Fn() -> Option<R>) -> Option<R> {
        if self.trust == 0 {
            self.waits += 1;
            if self.waits < PAUSE {
                return look();
            }
            self.waits = 0;
        }
        let start = Instant::now();
        loop {
            if let Some(found) = look() {
                self.trust = (self.trust + 1).min(TRUST_MAX);
                return Some(found);
            }
            if start.elapsed() >= SPIN_MAX {
                self.trust = self.trust.saturating_sub(1);
                return None;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn spins_in_vain_end_and_are_tried_again_now_and_then() {
        let mut spin = Spin::default();
        let looks = Cell::new(0u32);
        let in_vain = || {
            looks.set(looks.get() + 1);
            None::<()>
        };
        for _ in 0..TRUST_MAX {
            assert!(spin.until(in_vain).is_none());
        }
        looks.set(0);
        for _ in 1..PAUSE {
            assert!(spin.until(in_vain).is_none());
        }
        assert_eq!(looks.get(), u32::from(PAUSE) - 1, "one look each");
        assert_eq!(spin.until(|| Some(1)), Some(1));
        assert_eq!(spin.trust, 1, "one that paid is one more");
    }
}
