//! A consumer group: its state in each partition, and its members.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smol_str::SmolStr;

use crate::group_partition::GroupPartition;
use crate::members::{MemberLeases, Members, Sharing};
use crate::settings::{self, GroupMode, GroupSettings, QueueSettings};
use crate::waiters::WaiterList;

/// One group of a queue. Every group sees every message.
pub struct Group {
    /// Never reused within its queue.
    pub(crate) id: u32,
    pub(crate) settings: GroupSettings,
    /// Created by the configuration or an API call, not by a joining consumer; it does not expire.
    pub(crate) declared: AtomicBool,
    pub(crate) members: Mutex<Members>,
    /// The members' leases, readable without the lock.
    pub(crate) shared: Arc<MemberLeases>,
    parts: boxcar::Vec<Arc<GroupPartition>>,
    /// All messages counted into the queue since the process started.
    total: Arc<AtomicU64>,
    /// The part of `total` that is not in this group's backlog: messages that came before the group, or that it
    /// settled.
    settled: AtomicI64,
    pub(crate) paused: AtomicBool,
    /// Deliveries stop, even for callers that still have a reference.
    pub(crate) removed: AtomicBool,
    pub(crate) waiting: WaiterList,
    /// The partition at which the next claim begins.
    pub(crate) turn: AtomicUsize,
    pub(crate) counters: GroupCounters,
}

/// Counts since the process started.
#[derive(Debug, Default)]
pub struct GroupCounters {
    pub nacked: AtomicU64,
    pub rejected: AtomicU64,
    pub dead: AtomicU64,
    pub expired: AtomicU64,
    pub dropped: AtomicU64,
}

impl Group {
    pub(crate) fn new(
        id: u32,
        settings: GroupSettings,
        declared: bool,
        members: Members,
        parts: Vec<Arc<GroupPartition>>,
        (total, backlog): (Arc<AtomicU64>, u64),
    ) -> Group {
        let settled = total.load(Ordering::SeqCst) as i64 - backlog as i64;
        Group {
            id,
            settings,
            declared: AtomicBool::new(declared),
            shared: members.shared().clone(),
            members: Mutex::new(members),
            parts: parts.into_iter().collect(),
            total,
            settled: AtomicI64::new(settled),
            paused: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            waiting: WaiterList::default(),
            turn: AtomicUsize::new(0),
            counters: GroupCounters::default(),
        }
    }

    pub fn name(&self) -> &SmolStr {
        &self.settings.name
    }

    pub fn settings(&self) -> &GroupSettings {
        &self.settings
    }

    pub fn is_work(&self) -> bool {
        self.settings.mode == GroupMode::Work
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub fn is_declared(&self) -> bool {
        self.declared.load(Ordering::Relaxed)
    }

    /// Messages that are not settled (in a stream group: not committed), including messages being appended.
    pub fn backlog(&self) -> u64 {
        // Sequentially consistent, for producers that wait for room; see `admission/backpressure.rs`.
        let settled = self.settled.load(Ordering::SeqCst);
        (self.total.load(Ordering::SeqCst) as i64 - settled).max(0) as u64
    }

    /// A counter that grows by each message that leaves the backlog.
    pub(crate) fn backlog_settled(&self) -> i64 {
        self.settled.load(Ordering::SeqCst)
    }

    pub(crate) fn backlog_less(&self, count: i64) {
        self.settled.fetch_add(count, Ordering::SeqCst);
    }

    pub fn counters(&self) -> &GroupCounters {
        &self.counters
    }

    /// Deliveries since the process started, including redeliveries.
    pub fn delivered(&self) -> u64 {
        self.parts().map(|(_, part)| part.delivered.get()).sum()
    }

    /// Messages acked since the process started.
    pub fn acked(&self) -> u64 {
        self.parts().map(|(_, part)| part.acked.get()).sum()
    }

    pub fn partition_count(&self) -> usize {
        self.parts.count()
    }

    pub(crate) fn part(&self, partition: u32) -> Option<&Arc<GroupPartition>> {
        self.parts.get(partition as usize)
    }

    /// Each with its partition number.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, &Arc<GroupPartition>)> {
        (0..).zip(self.parts.iter().map(|(_, part)| part))
    }

    /// Adds the next partition. One caller at a time.
    pub(crate) fn add_part(&self, part: GroupPartition) {
        self.parts.push(Arc::new(part));
    }

    /// Wakes all waiting claims.
    pub(crate) fn wake(&self) {
        self.waiting.call_all();
    }
}

/// How the members of a group share its partitions.
pub(crate) fn sharing(queue: &QueueSettings, mode: GroupMode) -> Sharing {
    match (mode, queue.ordering) {
        (GroupMode::Stream, _) | (_, settings::QueueOrdering::Strict) => Sharing::Exclusive,
        (_, settings::QueueOrdering::Partition) => Sharing::Owned,
        (_, settings::QueueOrdering::None) => Sharing::Preferred,
    }
}
