//! What the thread that waits for a call tells the engine that runs it: the call is overdue, or given up.
//!
//! Calls are numbered, so that a word about one call never reaches the next. What a call does to others (cache, console) happens
//! through [`CallWatch::effect`]: once a call is given up, nothing that it does later is seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Shared by an engine and whoever waits for its calls. Nobody waits for those of a fresh one.
#[derive(Clone, Debug, Default)]
pub struct CallWatch(Arc<CallWatchState>);

#[derive(Debug, Default)]
struct CallWatchState {
    /// The call under way; 0 before the first.
    call: AtomicU64,
    /// The call that is to end, or [`EVERY`].
    overdue: AtomicU64,
    is_abandoned: Mutex<bool>,
}

/// Each call is to end.
const EVERY: u64 = u64::MAX;

impl CallWatch {
    /// Whether somebody waits and looks at the time.
    pub(crate) fn is_watched(&self) -> bool {
        self.0.call.load(Ordering::Relaxed) != 0
    }

    /// The next call begins. Returns its number.
    pub(crate) fn begin(&self) -> u64 {
        self.0.call.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A call is to end as soon as it can.
    pub(crate) fn end_call(&self, call: u64) {
        self.0.overdue.store(call, Ordering::Relaxed);
    }

    /// Whether the call under way is to end. Asked for each block of memory.
    pub(crate) fn is_overdue(&self) -> bool {
        let overdue = self.0.overdue.load(Ordering::Relaxed);
        overdue != 0 && (overdue == EVERY || overdue == self.0.call.load(Ordering::Relaxed))
    }

    /// Nobody waits any more, so every call is to end. Returns once no effect is under way; there will be none.
    pub(crate) fn abandon(&self) {
        self.end_call(EVERY);
        *self.0.is_abandoned.lock() = true;
    }

    /// Does what others see; `None` if the call was given up.
    pub(crate) fn effect<R>(&self, effect: impl FnOnce() -> R) -> Option<R> {
        let is_abandoned = self.0.is_abandoned.lock();
        (!*is_abandoned).then(effect)
    }
}
