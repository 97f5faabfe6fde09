//! Pauses between attempts to open an output or to write.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

/// Pauses double from the first to the maximum, and start over when an attempt made progress.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub first: Duration,
    pub max: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_secs(5),
        }
    }
}

/// The state of the attempts of one operation.
pub(crate) struct BackoffState {
    backoff: Backoff,
    next: Duration,
}

impl BackoffState {
    pub fn new(backoff: Backoff) -> BackoffState {
        BackoffState {
            backoff,
            next: backoff.first,
        }
    }

    /// Returns the pause after a failed attempt; `progress` says whether the attempt made some.
    pub fn after(&mut self, progress: bool) -> Duration {
        let pause = if progress { self.backoff.first } else { self.next };
        self.next = (pause * 2).min(self.backoff.max);
        with_jitter(pause)
    }
}

/// Returns between half and the whole of a pause, so that many clients of a recovering server do not reconnect at once.
fn with_jitter(pause: Duration) -> Duration {
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    pause / 2 + (pause / 2).mul_f64((random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_longest_and_begin_anew_with_progress() {
        let milliseconds = Duration::from_millis;
        let mut pauses = BackoffState::new(Backoff {
            first: milliseconds(100),
            max: milliseconds(300),
        });
        for (progress, whole) in [
            (false, 100),
            (false, 200),
            (false, 300),
            (false, 300),
            (true, 100),
            (false, 200),
        ] {
            let pause = pauses.after(progress);
            assert!(
                pause >= milliseconds(whole) / 2 && pause <= milliseconds(whole),
                "{pause:?} of {whole} ms"
            );
        }
    }
}
