//! What claims and settles see of a group's members without its lock.
//!
//! Leases are counted in the moment in which the machine makes or ends them, under the lock of their partition, so the
//! number of a member is what all machines together say of it. Only the end of a member's last lease concerns the group.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Shared {
    version: AtomicU64,
    /// By the numbers of members.
    leases: boxcar::Vec<AtomicI32>,
}

impl Shared {
    /// Another one says that shares may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn grow(&self) {
        self.leases.push(AtomicI32::new(0));
    }

    pub fn held(&self, index: u32) -> u32 {
        let leases = self.leases.get(index as usize);
        leases.map_or(0, |leases| leases.load(Ordering::Relaxed).max(0) as u32)
    }

    pub fn take(&self, index: u32, count: u32) {
        if let Some(leases) = self.leases.get(index as usize) {
            leases.fetch_add(count as i32, Ordering::Relaxed);
        }
    }

    /// Returns whether these were the last.
    pub fn end(&self, index: u32, count: u32) -> bool {
        let leases = self.leases.get(index as usize);
        leases.is_some_and(|leases| leases.fetch_sub(count as i32, Ordering::Relaxed) <= count as i32)
    }
}
