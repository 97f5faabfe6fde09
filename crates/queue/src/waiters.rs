//! Claims that wait for messages, and which of them is woken when messages arrive.
//!
//! Only the claim that may take a message first is woken, because with a thousand consumers one message would otherwise
//! wake a thousand. Invariant: a woken claim scans once more, or, if it is cancelled, wakes the next one, so a message
//! that a waiting claim may take is never left behind. A claim is listed before its last scan, and messages are stored
//! before a claim is woken, both with the partition's lock in between, so one side sees the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::members::PartitionShare;

/// Woken for no particular partition.
const ALL: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct WaiterList {
    /// Mirrors the number of listed claims, for callers that may have to wake one.
    count: AtomicUsize,
    listed: Mutex<WaiterIndex>,
}

#[derive(Default)]
struct WaiterIndex {
    next: u64,
    /// Claims of members with partitions, by the first of these; members share no partition.
    owners: BTreeMap<(u32, u64), Arc<Waiter>>,
    /// Claims of members without partitions.
    others: BTreeMap<u64, Arc<Waiter>>,
    /// Claims from both lists that may take from others' partitions: those of members without partitions first, each
    /// group by age.
    helpers: BTreeMap<(bool, u64), Arc<Waiter>>,
    /// Claims of members at their lease limit: only the end of a lease helps them.
    full: BTreeMap<u64, Arc<Waiter>>,
}

/// A waiting claim.
pub(crate) struct Waiter {
    share: PartitionShare,
    full: bool,
    number: u64,
    called_for: AtomicU32,
    call: Notify,
}

impl Waiter {
    pub async fn called(&self) {
        self.call.notified().await;
    }

    fn call(&self, partition: u32) {
        self.called_for.store(partition, Ordering::Release);
        self.call.notify_one();
    }
}

impl WaiterList {
    /// Lists a claim; `full` if it may take nothing before a lease ends.
    pub fn list(&self, share: &PartitionShare, full: bool) -> Arc<Waiter> {
        let mut listed = self.listed.lock();
        listed.next += 1;
        let waiter = Arc::new(Waiter {
            share: share.clone(),
            full,
            number: listed.next,
            called_for: AtomicU32::new(ALL),
            call: Notify::new(),
        });
        listed.insert(waiter.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
        waiter
    }

    /// Removes a claim. Returns the partition that it was woken for, if any.
    pub fn leave(&self, waiter: &Waiter) -> Option<u32> {
        if self.listed.lock().remove(waiter) {
            self.count.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        Some(waiter.called_for.load(Ordering::Acquire)).filter(|partition| *partition != ALL)
    }

    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Wakes the claim that has waited longest of those that may take from this partition: a claim of its owner, or of
    /// a member that may take from others.
    pub fn call_for(&self, partition: u32) {
        if self.is_empty() {
            return;
        }
        let mut listed = self.listed.lock();
        if let Some(waiter) = listed.first_for(partition) {
            listed.remove(&waiter);
            self.count.fetch_sub(1, Ordering::SeqCst);
            waiter.call(partition);
        }
    }

    /// Wakes the claims whose members have as many leases as they may.
    pub fn call_claims_at_limit(&self) {
        if self.is_empty() {
            return;
        }
        let full = std::mem::take(&mut self.listed.lock().full);
        self.count.fetch_sub(full.len(), Ordering::SeqCst);
        full.values().for_each(|waiter| waiter.call(ALL));
    }

    /// Wakes all claims.
    pub fn call_all(&self) {
        if self.is_empty() {
            return;
        }
        let mut listed = self.listed.lock();
        let owners = std::mem::take(&mut listed.owners);
        let others = std::mem::take(&mut listed.others);
        let full = std::mem::take(&mut listed.full);
        listed.helpers.clear();
        self.count
            .fetch_sub(owners.len() + others.len() + full.len(), Ordering::SeqCst);
        drop(listed);
        let all = owners.values().chain(others.values()).chain(full.values());
        all.for_each(|waiter| waiter.call(ALL));
    }
}

impl WaiterIndex {
    fn insert(&mut self, waiter: Arc<Waiter>) {
        let number = waiter.number;
        if waiter.full {
            self.full.insert(number, waiter);
            return;
        }
        if waiter.share.others {
            let has_own = !waiter.share.own.is_empty();
            self.helpers.insert((has_own, number), waiter.clone());
        }
        if waiter.share.own.is_empty() {
            self.others.insert(number, waiter);
        } else {
            self.owners.insert((waiter.share.own.start, number), waiter);
        }
    }

    /// False if it was already woken.
    fn remove(&mut self, waiter: &Waiter) -> bool {
        if waiter.full {
            return self.full.remove(&waiter.number).is_some();
        }
        self.helpers.remove(&(!waiter.share.own.is_empty(), waiter.number));
        let removed = if waiter.share.own.is_empty() {
            self.others.remove(&waiter.number)
        } else {
            self.owners.remove(&(waiter.share.own.start, waiter.number))
        };
        removed.is_some()
    }

    fn first_for(&self, partition: u32) -> Option<Arc<Waiter>> {
        let last = self.owners.range(..=(partition, u64::MAX)).next_back();
        let owner = last
            .filter(|(_, waiter)| waiter.share.own.contains(&partition))
            .and_then(|((start, _), _)| self.owners.range((*start, 0)..).next());
        if let Some((_, waiter)) = owner {
            return Some(waiter.clone());
        }
        self.helpers.values().next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn share(own: std::ops::Range<u32>, others: bool) -> PartitionShare {
        PartitionShare {
            here: true,
            own,
            others,
        }
    }

    fn is_called(waiter: &Waiter) -> bool {
        waiter.called().now_or_never().is_some()
    }

    #[test]
    fn the_owner_of_a_partition_is_called_and_nobody_else() {
        let waiting = WaiterList::default();
        let all: Vec<_> = (0..5)
            .map(|n| waiting.list(&share(n * 2..n * 2 + 2, false), false))
            .collect();
        waiting.call_for(5);
        let called: Vec<_> = all.iter().map(|waiter| is_called(waiter)).collect();
        assert_eq!(called, [false, false, true, false, false]);
        // It was already woken and is scanning.
        waiting.call_for(4);
        assert!(!all.iter().any(|waiter| is_called(waiter)));
        assert_eq!((waiting.leave(&all[2]), waiting.leave(&all[0])), (Some(5), None));
        waiting.call_for(0);
        waiting.call_for(11);
        assert!(!all.iter().any(|waiter| is_called(waiter)));
        waiting.call_all();
        assert_eq!(all.iter().filter(|waiter| is_called(waiter)).count(), 3);
        assert!(waiting.is_empty());
    }

    #[test]
    fn who_has_waited_longest_goes_first_and_each_message_calls_another() {
        let waiting = WaiterList::default();
        let all: Vec<_> = (0..3).map(|_| waiting.list(&share(0..4, true), false)).collect();
        let idle = waiting.list(&share(0..0, true), false);
        waiting.call_for(3);
        assert!(is_called(&all[0]) && !is_called(&all[1]));
        waiting.call_for(2);
        assert!(is_called(&all[1]) && !is_called(&all[2]));
        // No waiting claim owns it, so one that may take from others is woken.
        waiting.call_for(9);
        assert!(is_called(&idle) && !is_called(&all[2]));
        waiting.call_for(9);
        assert!(is_called(&all[2]) && waiting.is_empty());
    }

    /// Not always the one with the lowest partitions.
    #[test]
    fn what_nobody_owns_goes_round_among_those_who_may_take_it() {
        let waiting = WaiterList::default();
        let shares = [0..2, 2..4, 4..6].map(|own| share(own, true));
        let mut called = Vec::new();
        let mut waiters: Vec<_> = shares.iter().map(|share| waiting.list(share, false)).collect();
        for _ in 0..6 {
            waiting.call_for(9);
            let at = waiters.iter().position(|waiter| is_called(waiter)).unwrap();
            called.push(at);
            waiters[at] = waiting.list(&shares[at], false);
        }
        assert_eq!(called, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn the_end_of_a_lease_calls_those_that_have_as_many_as_they_may() {
        let waiting = WaiterList::default();
        let full = waiting.list(&share(0..4, false), true);
        let empty = waiting.list(&share(4..8, false), false);
        let outside = waiting.list(&share(0..0, false), false);
        waiting.call_for(1);
        assert!(!is_called(&full));
        waiting.call_claims_at_limit();
        assert!(is_called(&full) && !is_called(&empty) && !is_called(&outside));
        assert_eq!(waiting.leave(&full), None);
    }
}
