//! Who may change what at the same time: changes of one queue go one after the other, those of others go on beside them. So a
//! queue of a thousand partitions that is being made, or a disk that takes its time, holds up nobody who joins a group of another.
//!
//! Order of locks: the lock of a queue, the lock of its dead letters, the catalogue.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::{OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The locks of queues, by name: of one that is not there yet, too, so that two do not make it.
#[derive(Default)]
pub(super) struct ChangeLocks {
    /// Of those that somebody holds or waits for.
    names: Mutex<BTreeMap<SmolStr, Arc<tokio::sync::Mutex<()>>>>,
    /// Held for writing by who looks at all that there is in the log and takes what no queue has for left behind.
    whole: RwLock<()>,
    /// Partitions that are being made, so not counted with a queue yet.
    making: Mutex<u64>,
}

/// Partitions that are counted until this is dropped: then they are those of a queue, or were not made.
pub(super) struct PartitionQuotaGuard<'a> {
    changes: &'a ChangeLocks,
    count: u64,
}

impl Drop for PartitionQuotaGuard<'_> {
    fn drop(&mut self) {
        *self.changes.making.lock() -= self.count;
    }
}

/// As long as it lives nobody else changes that queue.
pub(super) struct ChangeGuard<'a> {
    changes: &'a ChangeLocks,
    name: SmolStr,
    alone: Option<OwnedMutexGuard<()>>,
    _beside: RwLockReadGuard<'a, ()>,
}

impl ChangeLocks {
    /// Waits for the others who change this queue.
    pub async fn of(&self, name: &str) -> ChangeGuard<'_> {
        let beside = self.whole.read().await;
        let name = SmolStr::new(name);
        let lock = self.names.lock().entry(name.clone()).or_default().clone();
        // Before it waits, so that its name is let go of if it is given up.
        let mut changing = ChangeGuard {
            changes: self,
            name,
            alone: None,
            _beside: beside,
        };
        changing.alone = Some(lock.lock_owned().await);
        changing
    }

    /// Counts partitions that are about to be made, unless that are more than `room` with those that others make.
    pub fn make(&self, count: u64, room: u64) -> Option<PartitionQuotaGuard<'_>> {
        let mut making = self.making.lock();
        let sum = making.checked_add(count).filter(|sum| *sum <= room)?;
        *making = sum;
        Some(PartitionQuotaGuard { changes: self, count })
    }

    /// Nobody changes anything as long as it lives; `None` if somebody does.
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
