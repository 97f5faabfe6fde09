//! When a group changes. A clock counts the changes of one group since a common start. Change k is due at start + k *
//! period and has exactly that time as its source timestamp, whenever it is served, so two changes are always a whole
//! number of periods apart.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use opcua::types::DateTime;
use thalweg_kit::clock;

/// OPC UA time counts in steps of 100 ns.
const STEPS_PER_SECOND: f64 = 1e7;
const NANOS_PER_STEP: u64 = 100;

/// The moment from which all clocks of a simulator count, on both time scales.
#[derive(Clone, Copy)]
pub(crate) struct StartTime {
    instant: Instant,
    steps: i64,
}

/// The start, set when the first client or the first tick needs it.
#[derive(Default)]
pub(crate) struct StartCell {
    start: OnceLock<StartTime>,
    /// `None` if changes are not held; set when they are started.
    let_go: Option<OnceLock<StartTime>>,
}

impl StartCell {
    /// Nothing changes before [`StartCell::let_go`].
    pub(crate) fn held() -> StartCell {
        StartCell {
            let_go: Some(OnceLock::new()),
            ..StartCell::default()
        }
    }

    pub(crate) fn start(&self) -> StartTime {
        let let_go = self.let_go.as_ref().and_then(OnceLock::get);
        *let_go.unwrap_or_else(|| self.start.get_or_init(StartTime::now))
    }

    pub(crate) fn is_held(&self) -> bool {
        self.let_go.as_ref().is_some_and(|start| start.get().is_none())
    }

    /// Starts the changes now. Returns false if they have already started.
    pub(crate) fn let_go(&self) -> bool {
        self.let_go
            .as_ref()
            .is_some_and(|start| start.set(StartTime::now()).is_ok())
    }
}

impl StartTime {
    fn now() -> StartTime {
        StartTime {
            instant: clock::now(),
            steps: DateTime::now().ticks(),
        }
    }

    pub(crate) fn instant(self) -> Instant {
        self.instant
    }

    pub(crate) fn time(self) -> DateTime {
        DateTime::from(self.steps)
    }
}

/// The count of changes of one group.
pub(crate) struct Clock {
    period_steps: u64,
    changes: AtomicU64,
}

impl Clock {
    pub(crate) fn new(period_seconds: f64) -> Clock {
        Clock {
            period_steps: ((period_seconds * STEPS_PER_SECOND).round() as u64).max(1),
            changes: AtomicU64::new(0),
        }
    }

    /// Changes so far; Read and initial values are computed from this count.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub(crate) fn set_changes(&self, changes: u64) {
        self.changes.store(changes, Ordering::Release);
    }

    /// Number of changes that should have happened by now.
    pub(crate) fn due(&self, start: StartTime, now: Instant) -> u64 {
        let elapsed = now.saturating_duration_since(start.instant).as_nanos();
        (elapsed / u128::from(self.period_nanos())) as u64
    }

    pub(crate) fn instant(&self, start: StartTime, change: u64) -> Instant {
        start.instant + Duration::from_nanos(self.period_nanos().saturating_mul(change))
    }

    /// Source timestamp of a change.
    pub(crate) fn time(&self, start: StartTime, change: u64) -> DateTime {
        DateTime::from(
            start
                .steps
                .saturating_add((self.period_steps.saturating_mul(change)) as i64),
        )
    }

    /// How many changes one sample covers at this sampling interval: 1 when sampling is as fast as the changes.
    pub(crate) fn stride(&self, sampling_interval_ms: f64) -> u64 {
        // The server library rounds an interval down to whole microseconds, and so does this.
        let micros = (sampling_interval_ms * 1_000.0) as u64;
        micros.saturating_mul(10).div_ceil(self.period_steps).max(1)
    }

    pub(crate) fn period_seconds(&self) -> f64 {
        self.period_steps as f64 / STEPS_PER_SECOND
    }

    fn period_nanos(&self) -> u64 {
        self.period_steps * NANOS_PER_STEP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_fall_due_at_whole_periods_and_stamps_are_exactly_a_period_apart() {
        let clock = Clock::new(1.0 / 3.0);
        let start = StartCell::default().start();
        assert_eq!(clock.due(start, start.instant()), 0);
        for change in [1, 2, 3, 1_000_000] {
            let at = clock.instant(start, change);
            assert_eq!(clock.due(start, at), change);
            assert_eq!(clock.due(start, at - Duration::from_nanos(1)), change - 1);
        }
        let step = clock.time(start, 1).ticks() - clock.time(start, 0).ticks();
        assert_eq!(
            clock.time(start, 900_000).ticks() - clock.time(start, 0).ticks(),
            900_000 * step
        );
    }

    #[test]
    fn what_is_held_starts_when_it_is_let_go() {
        let free = StartCell::default();
        assert!(!free.is_held() && !free.let_go());
        let epoch = StartCell::held();
        let before = epoch.start();
        assert!(epoch.is_held());
        assert_eq!(epoch.start().instant(), before.instant());
        assert!(epoch.let_go() && !epoch.let_go() && !epoch.is_held());
        assert!(epoch.start().instant() > before.instant());
        assert!(epoch.start().time() >= before.time());
    }

    #[test]
    fn sampling_slower_than_the_changes_skips_whole_changes() {
        let clock = Clock::new(1.0);
        for (interval, stride) in [(0.0, 1), (100.0, 1), (1000.0, 1), (1000.1, 2), (2500.0, 3), (-1.0, 1)] {
            assert_eq!(clock.stride(interval), stride, "{interval} ms");
        }
    }
}
