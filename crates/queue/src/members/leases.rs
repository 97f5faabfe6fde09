//! The state of a group's members that claims and settles read without its lock.
//!
//! Leases are counted when the machine creates or ends them, under the lock of their partition, so a member's count is
//! the sum over all machines. The group only needs to know the end of a member's last lease, and only if the member is
//! not busy otherwise.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct MemberLeases {
    version: AtomicU64,
    /// By member number.
    members: boxcar::Vec<LeaseCount>,
}

#[derive(Debug, Default)]
struct LeaseCount {
    leases: AtomicI32,
    /// The end of its last lease removes the member or starts its grace.
    idle: AtomicBool,
}

impl MemberLeases {
    /// A new version means that shares may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn grow(&self) {
        self.members.push(LeaseCount::default());
    }

    /// Sets whether the group must know the end of the member's last lease. The caller checks the leases afterwards,
    /// and whoever ends a lease checks this flag afterwards, so one of the two sees the other's change.
    pub(super) fn set_idle(&self, index: u32, idle: bool) {
        if let Some(member) = self.members.get(index as usize) {
            member.idle.store(idle, Ordering::SeqCst);
        }
    }

    pub fn held(&self, index: u32) -> u32 {
        let member = self.members.get(index as usize);
        member.map_or(0, |member| member.leases.load(Ordering::SeqCst).max(0) as u32)
    }

    pub fn take(&self, index: u32, count: u32) {
        if let Some(member) = self.members.get(index as usize) {
            member.leases.fetch_add(count as i32, Ordering::Relaxed);
        }
    }

    /// Returns whether these were the last leases and the group must know.
    pub fn end(&self, index: u32, count: u32) -> bool {
        self.members.get(index as usize).is_some_and(|member| {
            let last = member.leases.fetch_sub(count as i32, Ordering::SeqCst) <= count as i32;
            last && member.idle.load(Ordering::SeqCst)
        })
    }
}
