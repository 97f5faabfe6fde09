//! Delays between attempts: they double up to a minute or less, with jitter so that many clients do not reconnect at
//! once.

use std::time::{Duration, Instant};

const DELAY_MAX: Duration = Duration::from_secs(60);

/// A connection that lasted this long counts as working.
pub(crate) const LASTED_MIN: Duration = Duration::from_secs(5);

/// Waits until a time; forever if there is none.
pub(crate) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
    max: Duration,
}

impl Backoff {
    pub fn new(first: Duration) -> Backoff {
        Backoff::up_to(first, DELAY_MAX.max(first))
    }

    pub fn up_to(first: Duration, max: Duration) -> Backoff {
        Backoff {
            first,
            next: first,
            max,
        }
    }

    /// Returns the delay before the next attempt: between three quarters and the whole of the nominal one.
    pub fn next(&mut self) -> Duration {
        let nominal = self.next;
        self.next = (nominal * 2).min(self.max);
        nominal.mul_f64(0.75 + 0.25 * random_fraction())
    }

    /// Returns the delay after the loss of a connection that lasted this long: none if it worked.
    pub fn after_loss(&mut self, lasted: Duration) -> Duration {
        if lasted < LASTED_MIN {
            return self.next();
        }
        self.reset();
        Duration::ZERO
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

fn random_fraction() -> f64 {
    let mut bytes = [0; 4];
    opcua::crypto::random::bytes(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_minute_and_begin_anew_after_success() {
        let mut backoff = Backoff::new(Duration::from_secs(5));
        for nominal in [5.0, 10.0, 20.0, 40.0, 60.0, 60.0] {
            let delay = backoff.next().as_secs_f64();
            assert!((nominal * 0.75..=nominal).contains(&delay), "{delay}");
        }
        assert!(backoff.after_loss(Duration::from_secs(1)) > Duration::from_secs(30));
        assert_eq!(backoff.after_loss(LASTED_MIN), Duration::ZERO);
        assert!(backoff.next() <= Duration::from_secs(5));
    }
}
