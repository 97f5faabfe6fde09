//! Growing pauses between attempts at something that fails temporarily. Each is twice as long as the one before, up to a
//! maximum, and they start over when the caller reports progress. A pause is only computed here: callers wait in tasks,
//! in threads, or until a time that they keep.

use std::time::Duration;

use crate::random;

/// No pause is longer than the first one doubled this many times, which makes 24 days of a millisecond.
const DOUBLINGS_MAX: u32 = 31;

/// How long the pauses are, and how many were taken since the last progress.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    max: Duration,
    /// The largest part of a pause that is left out, 0 to 1.
    jitter: f64,
    taken: u32,
}

impl Backoff {
    pub const fn new(first: Duration, max: Duration) -> Backoff {
        Backoff {
            first,
            max,
            jitter: 0.0,
            taken: 0,
        }
    }

    /// Leaves out a random part of each pause, up to this one (0 to 1), so that many clients of a recovering server do
    /// not come back at once.
    #[must_use]
    pub const fn with_jitter(mut self, jitter: f64) -> Backoff {
        self.jitter = jitter;
        self
    }

    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.nominal(self.taken);
        self.taken = self.taken.saturating_add(1);
        match self.jitter > 0.0 {
            true => pause.saturating_sub(pause.mul_f64(self.jitter * random_fraction())),
            false => pause,
        }
    }

    /// The pause after `earlier` others, without jitter: for callers that count failures themselves.
    pub fn nominal(&self, earlier: u32) -> Duration {
        self.first.saturating_mul(1 << earlier.min(DOUBLINGS_MAX)).min(self.max)
    }

    /// There was progress: the next pause is the first one again.
    pub fn reset(&mut self) {
        self.taken = 0;
    }
}

/// From 0 to below 1. Without random numbers it is 0, and pauses are whole.
fn random_fraction() -> f64 {
    random::number().map_or(0.0, |number| (number >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_to_the_longest_and_begin_anew_with_progress() {
        let mut pauses = Backoff::new(100 * MILLISECOND, 300 * MILLISECOND);
        for (progress, whole) in [
            (false, 100),
            (false, 200),
            (false, 300),
            (false, 300),
            (true, 100),
            (false, 200),
        ] {
            if progress {
                pauses.reset();
            }
            assert_eq!(pauses.next_pause(), whole * MILLISECOND);
        }
    }

    #[test]
    fn jitter_leaves_out_at_most_its_part_and_each_time_another() {
        for (jitter, least) in [(0.5, 150), (0.25, 225), (1.0, 0)] {
            let whole = Backoff::new(300 * MILLISECOND, 300 * MILLISECOND).with_jitter(jitter);
            let mut pauses = whole.clone();
            let drawn: Vec<Duration> = (0..100).map(|_| pauses.next_pause()).collect();
            for pause in &drawn {
                assert!(
                    (least * MILLISECOND..=300 * MILLISECOND).contains(pause),
                    "{pause:?} with {jitter}"
                );
            }
            assert!(drawn.iter().any(|pause| *pause != drawn[0]), "{drawn:?}");
            assert_eq!(whole.nominal(0), 300 * MILLISECOND);
        }
    }

    #[test]
    fn pauses_of_any_number_of_failures_are_within_the_longest() {
        let pauses = Backoff::new(MILLISECOND, Duration::from_secs(3600));
        let counted: Vec<Duration> = [0, 1, 2, 10].map(|earlier| pauses.nominal(earlier)).into();
        assert_eq!(counted, [1, 2, 4, 1024].map(|whole| whole * MILLISECOND));
        for earlier in [22, 31, 32, u32::MAX] {
            assert_eq!(pauses.nominal(earlier), Duration::from_secs(3600));
        }
        // Neither a first pause beyond the longest nor a longest one without end is a mistake.
        assert_eq!(Backoff::new(2 * MILLISECOND, MILLISECOND).next_pause(), MILLISECOND);
        let endless = Backoff::new(Duration::from_secs(u64::MAX / 2), Duration::MAX);
        assert_eq!(endless.nominal(u32::MAX), Duration::MAX);
    }
}
