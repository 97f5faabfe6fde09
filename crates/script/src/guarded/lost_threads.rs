//! Counts threads that were given up with their calls and still run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of lost threads. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LostThreads(Arc<AtomicUsize>);

impl LostThreads {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more until the token is dropped, which the thread does as the last thing.
    pub(super) fn add(&self, changed: Arc<dyn Fn(i64) + Send + Sync>) -> LostThread {
        self.0.fetch_add(1, Ordering::Relaxed);
        changed(1);
        LostThread {
            lost: self.clone(),
            changed,
        }
    }
}

/// One lost thread.
pub(super) struct LostThread {
    lost: LostThreads,
    changed: Arc<dyn Fn(i64) + Send + Sync>,
}

impl Drop for LostThread {
    fn drop(&mut self) {
        self.lost.0.fetch_sub(1, Ordering::Relaxed);
        (self.changed)(-1);
    }
}
