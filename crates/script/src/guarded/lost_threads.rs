//! Threads that were given up with their calls, and still run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct LostThreads(Arc<AtomicUsize>);

impl LostThreads {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// One more. It counts until the token is dropped, by the thread itself as the last thing it does.
    pub(super) fn add(&self, changed: Arc<dyn Fn(i64) + Send + Sync>) -> LostThread {
        self.0.fetch_add(1, Ordering::Relaxed);
        changed(1);
        LostThread {
            lost: self.clone(),
            changed,
        }
    }
}

/// One such thread.
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
