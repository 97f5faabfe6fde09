//! The time of a process: log time, which is monotonic, and a check of the wall clock every second. Jumps of the wall
//! clock are logged, counted and reported to listeners.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use thalweg_log::clock::{ClockJump, LogClock};
use thalweg_log::{Log, Micros};
use thalweg_telemetry::{Distribution, MetricDoc, MetricFamilies, metric_group};

const EVERY: Duration = Duration::from_secs(1);

/// Bounds of `thalweg_clock_jump_seconds`.
const SECONDS: [f64; 7] = [2.0, 10.0, 60.0, 3600.0, 86_400.0, 604_800.0, 31_536_000.0];

metric_group! {
    pub(crate) CLOCK_METRICS("The wall clock", &[]) {
        CLOCK_JUMP_SECONDS = MetricDoc::histogram(
            "thalweg_clock_jump_seconds",
            "Seconds by which the wall clock was set. Nothing expires early or waits longer for it.",
        )
        .with_labels(&["direction"]);
    }
}

type JumpListener = Box<dyn Fn() + Send + Sync>;

pub(crate) struct WatchedClock {
    clock: Arc<LogClock>,
    forward: JumpHistogram,
    back: JumpHistogram,
    told: Mutex<Vec<JumpListener>>,
}

/// Jumps in one direction.
#[derive(Default)]
struct JumpHistogram {
    buckets: [AtomicU64; SECONDS.len()],
    beyond: AtomicU64,
    micros: AtomicU64,
}

impl WatchedClock {
    /// Continues at the log's last time.
    pub async fn resume(clock: Arc<LogClock>, log: &dyn Log) -> Result<WatchedClock> {
        let watched = WatchedClock {
            clock,
            forward: JumpHistogram::default(),
            back: JumpHistogram::default(),
            told: Mutex::default(),
        };
        if let Some(jump) = watched.clock.resume(log).await? {
            watched.note(jump);
        }
        Ok(watched)
    }

    /// Checks the clock until this is dropped.
    pub fn watch(self: &Arc<WatchedClock>, log: Arc<dyn Log>) {
        let (watched, log, offset) = (Arc::downgrade(self), Arc::downgrade(&log), self.clock.offset());
        tokio::spawn(look_on(watched, log, offset));
    }

    /// Adds a listener for jumps. It must return at once.
    pub fn tell(&self, told: impl Fn() + Send + Sync + 'static) {
        self.told.lock().push(Box::new(told));
    }

    pub fn tell_metrics(&self, to: &mut MetricFamilies) {
        for (direction, jumped) in [("forward", &self.forward), ("back", &self.back)] {
            let labels = [("direction", direction)];
            to.histogram(&CLOCK_JUMP_SECONDS, &labels, &jumped.distribution());
        }
    }

    fn note(&self, jump: ClockJump) {
        let by: Micros = jump.by();
        let jumped = if by > 0 { &self.forward } else { &self.back };
        jumped.observe(by.unsigned_abs());
        tracing::warn!(
            seconds = by as f64 / 1e6,
            "the wall clock was set: leases, delays and lifetimes are not affected; deliveries at a time follow it"
        );
        self.told.lock().iter().for_each(|told| told());
    }
}

async fn look_on(watched: Weak<WatchedClock>, log: Weak<dyn Log>, mut before: Micros) {
    let mut was_stored = true;
    loop {
        tokio::time::sleep(EVERY).await;
        let (Some(watched), Some(log)) = (watched.upgrade(), log.upgrade()) else {
            return;
        };
        let looked = watched.clock.look(log.as_ref()).await;
        let offset = watched.clock.offset();
        if before != offset {
            let at = thalweg_log::clock::Clock::now(watched.clock.as_ref());
            // Another caller may have checked before.
            watched.note(ClockJump { at, before, offset });
            before = offset;
        }
        if let Err(error) = &looked
            && was_stored
        {
            tracing::warn!(%error, "the clock change cannot be stored yet and will be tried again");
        }
        was_stored = looked.is_ok();
    }
}

impl JumpHistogram {
    fn observe(&self, micros: u64) {
        let seconds = micros as f64 / 1e6;
        let bucket = SECONDS.iter().position(|bound| seconds <= *bound);
        let bucket = bucket.and_then(|n| self.buckets.get(n)).unwrap_or(&self.beyond);
        bucket.fetch_add(1, Relaxed);
        self.micros.fetch_add(micros, Relaxed);
    }

    fn distribution(&self) -> Distribution {
        let counts = self.buckets.iter().map(|count| count.load(Relaxed));
        Distribution {
            buckets: SECONDS.into_iter().zip(counts).collect(),
            beyond: self.beyond.load(Relaxed),
            sum: self.micros.load(Relaxed) as f64 / 1e6,
        }
    }
}
