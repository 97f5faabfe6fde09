//! The thread that turns messages into rows and decides when a generation is ready to be committed.

use std::time::Instant;

use super::shared::{Buffered, Pending, Sealed, Shared, State, Waiter};
use crate::error::{AppendError, Refused};
use crate::tags::schema::TABLE;
use crate::tags::{Changed, Generation, ROWS_MAX, RowRules, SeriesTable};

/// Series may take this part of a generation's memory between flushes.
const SERIES_SHARE: usize = 2;

/// What to do next.
enum Step {
    Cook(Pending),
    HandOver,
    End,
}

struct Cook<'a> {
    shared: &'a Shared,
    rules: RowRules,
    series: SeriesTable,
    rows: Generation,
    waiters: Vec<Waiter>,
    since: Option<Instant>,
}

/// Runs until the writer closes or fails.
pub(super) fn run(shared: &Shared, rules: RowRules) {
    let _end = End(shared);
    let mut cook = Cook {
        shared,
        rules,
        series: SeriesTable::new(rules.limits),
        rows: Generation::new(1),
        waiters: Vec::new(),
        since: None,
    };
    loop {
        match cook.next_step() {
            Step::Cook(pending) => cook.cook(pending),
            Step::HandOver => cook.hand_over(),
            Step::End => return,
        }
    }
}

/// However the thread ends, nobody waits for it.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.rows_ended = true;
        let stopped = !state.closing || std::thread::panicking();
        drop(state);
        if stopped {
            self.0.fail(AppendError::Stopped);
        }
        self.0.notify();
    }
}

impl Cook<'_> {
    fn next_step(&mut self) -> Step {
        let mut state = self.shared.lock();
        loop {
            if state.failure.is_some() || self.shared.health.is_abandoned() {
                return Step::End;
            }
            let full = self.rows.memory() >= self.shared.generation_bytes || self.rows.rows() >= ROWS_MAX;
            let (due, wake_at) = self.due(&mut state, full);
            if due && !state.committing {
                return Step::HandOver;
            }
            if !full && let Some(pending) = state.take_pending() {
                return Step::Cook(pending);
            }
            if state.closing && state.pending.is_empty() && self.rows.is_empty() {
                return Step::End;
            }
            // What is due now only waits for the other thread.
            self.shared.wait(&mut state, if due { None } else { wake_at });
        }
    }

    /// Whether the generation is to be committed, and else when to look again.
    fn due(&self, state: &mut State, full: bool) -> (bool, Option<Instant>) {
        let Some(since) = self.since else {
            // Nothing is there that could be hurried.
            state.hurry &= !state.pending.is_empty();
            return (false, None);
        };
        let now = Instant::now();
        if full {
            return (true, None);
        }
        let mut at = since + self.shared.flush_interval();
        // Batches that were appended before somebody hurried belong to the same commit.
        if state.pending.is_empty() {
            if state.closing {
                return (true, None);
            }
            if state.hurry {
                at = at.min(state.last_commit_end.map_or(now, |end| end + self.shared.hurry_pause));
            }
        }
        (at <= now, Some(at))
    }

    fn cook(&mut self, pending: Pending) {
        let mut refused = Vec::new();
        let mut changed = Changed::default();
        let before = self.rows.rows();
        for (index, message) in pending.messages.iter().enumerate() {
            let pushed = self.rows.push(
                &mut self.series,
                message.source.get().unwrap_or(&pending.source),
                message,
                pending.arrival,
                &self.rules,
                &mut changed,
            );
            if let Err(refusal) = pushed {
                refused.push(Refused { index, refusal });
            }
        }
        self.count(&changed, &refused);
        let waiter = Waiter {
            done: pending.done,
            refused,
            since: pending.since,
            held: pending.held,
        };
        if self.rows.rows() == before {
            waiter.stored();
        } else {
            self.waiters.push(waiter);
            self.since.get_or_insert(pending.since);
        }
        self.publish();
    }

    fn count(&self, changed: &Changed, refused: &[Refused]) {
        let metrics = &self.shared.metrics;
        for (reason, count) in [
            ("time_replaced", changed.time_replaced),
            ("stamp_out_of_range", changed.stamp_out_of_range),
        ] {
            if count > 0 {
                metrics.changed_values.with_label_values(&[TABLE, reason]).inc_by(count);
            }
        }
        for refused in refused {
            metrics
                .refused_rows
                .with_label_values(&[TABLE, refused.refusal.reason.as_str()])
                .inc();
        }
    }

    /// Lets others see how much is buffered.
    fn publish(&self) {
        self.shared.lock().growing = Buffered {
            rows: self.rows.rows() as u64,
            bytes: self.rows.memory() as u64,
            since: self.since,
        };
    }

    fn hand_over(&mut self) {
        let next = Generation::new(self.rows.id + 1);
        let rows = std::mem::replace(&mut self.rows, next);
        let since = self.since.take().unwrap_or_else(Instant::now);
        if self.series.bytes() > self.shared.generation_bytes / SERIES_SHARE {
            self.series.clear();
        }
        let mut state = self.shared.lock();
        state.sealed = Buffered {
            rows: rows.rows() as u64,
            bytes: rows.memory() as u64,
            since: Some(since),
        };
        state.growing = Buffered::default();
        state.hurry = false;
        state.committing = true;
        state.handed = Some(Sealed {
            rows,
            waiters: std::mem::take(&mut self.waiters),
        });
        drop(state);
        self.shared.notify();
    }
}
