//! The groups of a queue. The list is replaced as a whole, so reading it takes no lock. Groups of a queue are created
//! and removed by one caller at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::group::Group;
use crate::queue::Queue;
use crate::queues::no_group;

pub(crate) struct GroupList {
    /// Sorted by name.
    groups: ArcSwap<Vec<Arc<Group>>>,
    /// The number of the next group.
    next_number: AtomicU32,
    /// Held while a new group is added and its beginning stored, and while a checkpoint of all groups is written.
    listing: Mutex<()>,
    /// Held during a seek: of two seeks, the one that is stored last must win.
    seeking: tokio::sync::Mutex<()>,
}

impl GroupList {
    pub fn new(next_number: u32) -> GroupList {
        GroupList {
            groups: ArcSwap::default(),
            next_number: AtomicU32::new(next_number),
            listing: Mutex::default(),
            seeking: tokio::sync::Mutex::default(),
        }
    }

    /// The list at this moment, for short use.
    pub fn now(&self) -> Guard<Arc<Vec<Arc<Group>>>> {
        self.groups.load()
    }

    pub fn find(&self, name: &str) -> Option<Arc<Group>> {
        let groups = self.now();
        let at = groups.binary_search_by(|group| group.name().as_str().cmp(name)).ok()?;
        groups.get(at).cloned()
    }

    pub fn work(&self) -> Vec<Arc<Group>> {
        let mut groups = self.now().to_vec();
        groups.retain(|group| group.is_work());
        groups
    }

    /// The groups whose largest backlog is the depth, if any; see [`crate::admission::Admission::depth`].
    pub fn counted(&self) -> Vec<Arc<Group>> {
        let work = self.work();
        if !work.is_empty() {
            return work;
        }
        let mut streams = self.now().to_vec();
        streams.retain(|group| group.is_declared());
        streams
    }

    /// Wakes all waiting claims.
    pub fn wake(&self) {
        self.now().iter().for_each(|group| group.wake());
    }

    /// Messages were appended to a partition.
    pub fn call_for(&self, partition: u32) {
        self.now().iter().for_each(|group| group.waiting.call_for(partition));
    }

    /// The number that a new group will get.
    pub fn next_number(&self) -> u32 {
        self.next_number.load(Ordering::Relaxed)
    }

    /// The number of a new group.
    pub fn take_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes sure that new groups get numbers above this one.
    pub fn skip_number(&self, number: u32) {
        self.next_number.fetch_max(number.saturating_add(1), Ordering::Relaxed);
    }

    /// While the guard lives, no other caller adds a group or writes a checkpoint.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.listing.lock()
    }

    /// While the guard lives, no other caller changes the positions of groups.
    pub async fn seek_alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.seeking.lock().await
    }
}

impl Queue {
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.now().to_vec()
    }

    pub fn group_count(&self) -> usize {
        self.groups.now().len()
    }

    pub fn group(&self, name: &str) -> Result<Arc<Group>> {
        self.groups.find(name).ok_or_else(|| no_group(self, name))
    }

    pub(crate) fn add_group(&self, group: Arc<Group>) {
        let mut groups = self.groups();
        let at = groups.partition_point(|known| known.name() < group.name());
        groups.insert(at, group);
        self.set_groups(groups);
    }

    pub(crate) fn remove_group(&self, name: &str) -> Option<Arc<Group>> {
        let mut groups = self.groups();
        let at = groups.iter().position(|group| group.name() == name)?;
        let removed = groups.remove(at);
        removed.removed.store(true, Ordering::Relaxed);
        self.set_groups(groups);
        self.statistics.join_waits(&removed);
        Some(removed)
    }

    /// One caller at a time, so that the producers' lock need not be held while the list is copied.
    fn set_groups(&self, groups: Vec<Arc<Group>>) {
        let groups = Arc::new(groups);
        let mut admission = self.admission.lock();
        admission.set_groups(groups.clone());
        self.groups.groups.store(groups);
        drop(admission);
        self.look_for_old_now();
    }
}
