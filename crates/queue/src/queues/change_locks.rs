//! Concurrency of changes: changes of one queue are serialised, those of different queues run in parallel. So creating
//! a queue of a thousand partitions, or a slow disk, does not delay joining a group of another queue.
//!
//! Lock order: the lock of a queue, the lock of its dead-letter queue, the catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::{OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks by queue name, including names of queues that do not exist yet, so that two calls do not create the same
/// queue.
#[derive(Default)]
pub(super) struct ChangeLocks {
    /// Only locks that are held or waited for.
    names: Mutex<BTreeMap<SmolStr, Arc<tokio::sync::Mutex<()>>>>,
    /// Write-locked while the whole log is scanned for partitions that no queue has.
    whole: RwLock<()>,
    /// Partitions being created, which are not counted with a queue yet.
    making: Mutex<u64>,
}

/// Counts partitions until this is dropped. By then they belong to a queue or were not created.
pub(super) struct PartitionQuotaGuard<'a> {
    changes: &'a ChangeLocks,
    count: u64,
}

impl Drop for PartitionQuotaGuard<'_> {
    fn drop(&mut self) {
        *self.changes.making.lock() -= self.count;
    }
}

/// Exclusive right to change one queue.
pub(super) struct ChangeGuard<'a> {
    changes: &'a ChangeLocks,
    name: SmolStr,
    alone: Option<OwnedMutexGuard<()>>,
    _beside: RwLockReadGuard<'a, ()>,
}

impl ChangeLocks {
    /// Waits for other changes of this queue.
    pub async fn of(&self, name: &str) -> ChangeGuard<'_> {
        let beside = self.whole.read().await;
        let name = SmolStr::new(name);
        let lock = self.names.lock().entry(name.clone()).or_default().clone();
        // Built before it waits, so that a cancelled wait releases its name.
        let mut changing = ChangeGuard {
            changes: self,
            name,
            alone: None,
            _beside: beside,
        };
        changing.alone = Some(lock.lock_owned().await);
        changing
    }

    /// Counts partitions about to be created, unless they exceed `room` together with those that others create.
    pub fn make(&self, count: u64, room: u64) -> Option<PartitionQuotaGuard<'_>> {
        let mut making = self.making.lock();
        let sum = making.checked_add(count).filter(|sum| *sum <= room)?;
        *making = sum;
        Some(PartitionQuotaGuard { changes: self, count })
    }

    /// Blocks all changes while it lives; `None` if a change is in progress.
    pub fn none(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        self.whole.try_write().ok()
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        drop(self.alone.take());
        let mut names = self.changes.names.lock();
        if names.get(&self.name).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            names.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_name_is_changed_by_one_at_a_time_and_others_beside_it() {
        let changes = ChangeLocks::default();
        let one = changes.of("one").now_or_never().unwrap();
        let other = changes.of("other").now_or_never().unwrap();
        let mut second = Box::pin(changes.of("one"));
        assert!(second.as_mut().now_or_never().is_none() && changes.none().is_none());
        drop(one);
        let second = second.now_or_never().unwrap();
        let mut given_up = Box::pin(changes.of("one"));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop((second, given_up, other));
        assert!(changes.names.lock().is_empty(), "nothing is kept of names");
        let none = changes.none().unwrap();
        assert!(changes.of("one").now_or_never().is_none());
        drop(none);
        assert!(changes.of("one").now_or_never().is_some());
        let counted = changes.make(7, 10).unwrap();
        assert!(changes.make(4, 10).is_none() && changes.make(3, 10).is_some());
        drop(counted);
        assert!(changes.make(10, 10).is_some());
    }
}
