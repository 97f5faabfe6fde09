//! When to retry something that the server refused: like failed nodes, after a while and then later and later.

use std::time::{Duration, Instant};

use thalweg_kit::backoff::Backoff;

use crate::backoff::backoff_up_to;
use crate::failures::RETRY_MAX;

pub(super) struct Retry {
    pauses: Backoff,
    at: Option<Instant>,
}

impl Retry {
    /// `first` is the first pause.
    pub fn after(first: Duration) -> Retry {
        Retry {
            pauses: backoff_up_to(first, RETRY_MAX.max(first)),
            at: None,
        }
    }

    /// Records a refusal; of several, the first counts.
    pub fn refused(&mut self, now: Instant) {
        if self.at.is_none() {
            self.at = Some(now + self.pauses.next_pause());
        }
    }

    pub fn succeeded(&mut self) {
        self.pauses.reset();
    }

    /// Whether the retry is due; true once.
    pub fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }

    /// Something has changed: a pending retry becomes due.
    pub fn soon(&mut self, now: Instant) {
        self.at = self.at.map(|at| at.min(now));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_kit::clock;

    use super::*;

    #[test]
    fn each_refusal_is_followed_by_one_retry_ever_later_until_it_succeeds() {
        let first = Duration::from_secs(60);
        let mut retry = Retry::after(first);
        let mut now = clock::now();
        assert!(!retry.take_due(now + RETRY_MAX));
        for nominal in [60, 120, 240] {
            (0..3).for_each(|_| retry.refused(now));
            let pause = Duration::from_secs(nominal);
            assert!(!retry.take_due(now + pause / 2));
            now += pause;
            assert!(retry.take_due(now) && !retry.take_due(now + RETRY_MAX));
        }
        retry.succeeded();
        retry.refused(now);
        assert!(retry.take_due(now + first));
        retry.soon(now);
        assert!(!retry.take_due(now), "nothing was refused");
        retry.refused(now);
        retry.soon(now);
        assert!(retry.take_due(now));
    }
}
