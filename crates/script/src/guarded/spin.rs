//! Adaptive spinning: waits for events that come within microseconds without sleeping, as long as that pays.
//!
//! Waking a sleeping thread takes some 5 µs, which is more than a short script runs. A spinning thread takes a core
//! that others may need. So a few spins without success end the spinning, and it is retried now and then.

use std::time::Duration;

use thalweg_kit::clock;

/// About the time of falling asleep and waking up.
const SPIN_MAX: Duration = Duration::from_micros(10);

/// Unsuccessful spins before spinning stops.
const TRUST_MAX: u8 = 4;

/// Waits without a spin before the next try.
const PAUSE: u8 = 64;

/// The spin state of one wait location.
#[derive(Debug)]
pub(super) struct Spin {
    trust: u8,
    /// Waits since spinning stopped.
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
    /// Polls for a moment; `None` if nothing came and the caller should sleep.
    pub fn until<R>(&mut self, look: impl Fn() -> Option<R>) -> Option<R> {
        if self.trust == 0 {
            self.waits += 1;
            if self.waits < PAUSE {
                return look();
            }
            self.waits = 0;
        }
        let start = clock::now();
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
