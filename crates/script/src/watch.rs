//! Signals from the thread that waits for a call to the engine that runs it: the call is overdue, or given up.
//!
//! Calls are numbered, so that a signal for one call never affects the next. Visible effects of a call (cache, console)
//! go through [`CallWatch::effect`]: once a call is given up, its later effects are discarded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Shared by an engine and the thread that waits for its calls. A fresh one has no waiting thread.
#[derive(Clone, Debug, Default)]
pub struct CallWatch(Arc<CallWatchState>);

#[derive(Debug, Default)]
struct CallWatchState {
    /// The current call; 0 before the first.
    call: AtomicU64,
    /// The call that must end, or [`EVERY`].
    overdue: AtomicU64,
    is_abandoned: Mutex<bool>,
}

/// Every call must end.
const EVERY: u64 = u64::MAX;

impl CallWatch {
    /// Whether a thread waits and checks the time.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.call.load(Ordering::Relaxed) != 0
    }

    /// Begins the next call. Returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.0.call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Asks a call to end as soon as it can.
    pub(crate) fn end_call(&self, call: u64) {
        self.0.overdue.store(call, Ordering::Relaxed);
    }

    /// Whether the current call must end. Checked for each memory block.
    pub(crate) fn is_overdue(&self) -> bool {
        let overdue = self.0.overdue.load(Ordering::Relaxed);
        overdue != 0 && (overdue == EVERY || overdue == self.0.call.load(Ordering::Relaxed))
    }

    /// Nobody waits any more, so every call must end. Returns once no effect is in progress; there will be none.
    pub(crate) fn abandon(&self) {
        self.end_call(EVERY);
        *self.0.is_abandoned.lock() = true;
    }

    /// Applies an effect; `None` if the call was given up.
    pub(crate) fn effect<R>(&self, effect: impl FnOnce() -> R) -> Option<R> {
        let is_abandoned = self.0.is_abandoned.lock();
        (!*is_abandoned).then(effect)
    }
}
