//! What claims and settles see of a group's members without its lock.
//!
//! Leases are counted in the moment in which the machine makes or ends them, under the lock of their partition, so the
//! number of a member is what all machines together say of it. Only the end of a member's last lease may concern the group,
//! and of one that is busy otherwise not even that.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct MemberLeases {
    version: AtomicU64,
    /// By the numbers of members.
    members: boxcar::Vec<LeaseCount>,
}

#[derive(Debug, Default)]
struct LeaseCount {
    leases: AtomicI32,
    /// With the last lease it may go, or its grace begins.
    idle: AtomicBool,
}

impl MemberLeases {
    /// Another one says that shares may have changed.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn changed(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn grow(&self) {
        self.members.push(LeaseCount::default());
    }

    /// Whether the end of the member's last lease concerns the group. Whoever says so looks at the leases afterwards, and
    /// whoever ends one looks at this afterwards: one of the two sees what the other did.
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

    /// Returns whether these were the last, and the group has to know.
    pub fn end(&self, index: u32, count: u32) -> bool {
        self.members.get(index as usize).is_some_and(|member| {
            let last = member.leases.fetch_sub(count as i32, Ordering::SeqCst) <= count as i32;
            last && member.idle.load(Ordering::SeqCst)
        })
    }
}
