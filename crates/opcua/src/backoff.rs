//! Delays between attempts: they double up to a minute or less, with jitter so that many clients do not reconnect at
//! once.

use std::time::{Duration, Instant};

use thalweg_kit::backoff::Backoff;

const DELAY_MAX: Duration = Duration::from_secs(60);

/// The largest part of a delay that is left out.
const JITTER: f64 = 0.25;

/// A connection that lasted this long counts as working.
pub(crate) const LASTED_MIN: Duration = Duration::from_secs(5);

/// Waits until a time; forever if there is none.
pub(crate) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Delays up to a minute; a first one that is longer stays the same.
pub(crate) fn backoff_from(first: Duration) -> Backoff {
    backoff_up_to(first, DELAY_MAX.max(first))
}

pub(crate) const fn backoff_up_to(first: Duration, max: Duration) -> Backoff {
    Backoff::new(first, max).with_jitter(JITTER)
}

/// Returns the delay after the loss of a connection that lasted this long: none if it worked.
pub(crate) fn delay_after_loss(backoff: &mut Backoff, lasted: Duration) -> Duration {
    if lasted < LASTED_MIN {
        return backoff.next_pause();
    }
    backoff.reset();
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_a_minute_and_begin_anew_after_success() {
        let mut backoff = backoff_from(Duration::from_secs(5));
        for nominal in [5.0, 10.0, 20.0, 40.0, 60.0, 60.0] {
            let delay = backoff.next_pause().as_secs_f64();
            assert!((nominal * 0.75..=nominal).contains(&delay), "{delay}");
        }
        assert!(delay_after_loss(&mut backoff, Duration::from_secs(1)) > Duration::from_secs(30));
        assert_eq!(delay_after_loss(&mut backoff, LASTED_MIN), Duration::ZERO);
        assert!(backoff.next_pause() <= Duration::from_secs(5));
    }
}
