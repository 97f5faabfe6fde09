//! The consumers of one group: who is a member, who reads which partitions, and how many leases each has.
//!
//! Inputs are joins, leaves, requests, leases and the time; outputs are member numbers and the assignment of
//! partitions. This is pure code without clock or locks; the caller has the group's lock and calls [`Members::tick`] at
//! [`Members::next_due`].
//!
//! | State | Meaning | Becomes |
//! |---|---|---|
//! | here | has a share of partitions | away or gone by `leave`, gone by `remove`; HTTP: gone after the idle grace |
//! | away | a persistent session without a connection: no share, its leases run on | here by `join`, gone by `remove` |
//! | gone | has left, but still has leases | here by `join`; forgotten with its last lease |
//!
//! An HTTP member is idle when it has no open request and no lease; the members of flows leave explicitly. A member keeps
//! its number until it is forgotten and only then may another get it, so a lease never changes its holder. The kinds for
//! MQTT have numbers in stored groups; nothing joins with them, because there is no MQTT interface.
//!
//! Joins and leaves take effect together, 100 ms after the first of them. Nobody waits in between: the members present
//! may take what a member left behind, and what the first member of a group finds. (Assigning at once for the first
//! member would cause two rebalances when two members start together.)

mod leases;
mod member;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use smol_str::SmolStr;
use thalweg_log::Micros;

use crate::assignment::range_of;
use crate::error::QueueError;
use crate::message_times::micros;
use member::{Member, MemberState};

pub use leases::MemberLeases;
pub use member::{MemberKind, MemberView};

/// As many as connections of a process.
pub const MEMBERS_MAX: usize = 100_000;
/// Joins and leaves within this time of the first are one change.
pub const REBALANCE_AFTER: Micros = 100_000;

/// Entry of the owner table without an owner.
const NOBODY: u32 = u32::MAX;

/// How members share partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Its own partitions first, then any (`ordering: none`).
    Preferred,
    /// Its own partitions only. Any member may read one without an owner, because lanes keep the order (`ordering:
    /// partition`).
    Owned,
    /// Its own partitions only. The first member by id reads those without an owner, so that two members never read the
    /// same partition (`ordering: strict`, stream groups).
    Exclusive,
}

/// The result of [`Members::tick`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TickOutcome {
    /// Numbers of HTTP members whose grace has ended. They have no leases.
    pub left: Vec<u32>,
    /// The generation was raised: waiting claims must check their partitions again.
    pub rebalanced: bool,
}

/// The partitions that a member may claim from, while [`MemberLeases::version`] is unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionShare {
    /// If false, the member may claim nothing.
    pub here: bool,
    /// Its own partitions.
    pub own: Range<u32>,
    /// Whether [`Members::may_claim`] may allow other partitions.
    pub others: bool,
}

#[derive(Debug)]
pub struct Members {
    sharing: Sharing,
    grace: Micros,
    members: Vec<Option<Member>>,
    /// Free numbers. The lowest is reused first, which keeps the table dense.
    free: BTreeSet<u32>,
    by_id: HashMap<SmolStr, u32>,
    /// Members in state `here`, ordered by the bytes of their ids.
    here: Vec<u32>,
    /// Owner per partition: the number of a present member, or [`NOBODY`].
    owners: Vec<u32>,
    unowned: u32,
    generation: u64,
    rebalance_at: Option<Micros>,
    /// Not after the end of the first grace. Set when a member becomes idle but not updated when one becomes busy, so
    /// that requests and leases cost O(1). A check that is too early only costs one scan of all members.
    idle_check_at: Option<Micros>,
    empty_since: Option<Micros>,
    /// The stored value of `empty_since`, which a restart would find.
    kept: Option<Micros>,
    shared: Arc<MemberLeases>,
    /// Counter for membership and request numbers, which are all distinct.
    numbers: u64,
}

impl Members {
    pub fn new(now: Micros, partitions: u32, sharing: Sharing, consumer_timeout: Duration) -> Members {
        Members {
            sharing,
            grace: micros(consumer_timeout),
            members: Vec::new(),
            free: BTreeSet::new(),
            by_id: HashMap::new(),
            here: Vec::new(),
            owners: vec![NOBODY; partitions as usize],
            unowned: partitions,
            generation: 0,
            rebalance_at: None,
            idle_check_at: None,
            empty_since: Some(now),
            kept: None,
            shared: Arc::default(),
            numbers: 0,
        }
    }

    /// Lease counts and the share version, readable without the group's lock.
    pub fn shared(&self) -> &Arc<MemberLeases> {
        &self.shared
    }

    /// Finds or creates the member with this id. Its number stays the same until it is forgotten. One id is one member;
    /// the last join determines its kind.
    pub fn join(&mut self, now: Micros, id: &str, kind: MemberKind) -> Result<u32, QueueError> {
        let index = match self.by_id.get(id) {
            Some(index) => *index,
            None => self.add(now, id, kind)?,
        };
        let Some(member) = self.member_mut(index) else {
            return Ok(index);
        };
        member.kind = kind;
        member.last_seen = member.last_seen.max(now);
        if member.state != MemberState::Here {
            member.state = MemberState::Here;
            self.arrived(now, index);
        }
        self.tell_idle(index);
        self.note_idle(now, index);
        Ok(index)
    }

    /// Restores a member that had leases before a restart, with its old number. Refuses a kind that cannot return; the
    /// caller must then release its leases.
    pub fn restore(&mut self, now: Micros, index: u32, id: &str, kind: MemberKind, leases: u32) -> bool {
        let at = index as usize;
        if !kind.can_return() || at >= MEMBERS_MAX || self.by_id.contains_key(id) || self.member(index).is_some() {
            return false;
        }
        while self.members.len() <= at {
            self.free.insert(self.members.len() as u32);
            self.grow();
        }
        self.free.remove(&index);
        self.put(index, id, kind, now);
        self.shared.take(index, leases);
        if let Some(member) = self.member_mut(index) {
            member.state = match kind {
                MemberKind::Http => MemberState::Here,
                _ => MemberState::Away,
            };
        }
        if kind == MemberKind::Http {
            self.arrived(now, index);
        }
        self.tell_idle(index);
        self.note_idle(now, index);
        true
    }

    /// A connection or an input has ended. Returns true if the member may come back for its leases, so that they run
    /// on; otherwise the caller must release them.
    #[must_use = "says whether the leases are to be given back"]
    pub fn leave(&mut self, now: Micros, index: u32) -> bool {
        let Some(member) = self.member_mut(index) else {
            return false;
        };
        if member.kind != (MemberKind::Mqtt { persistent: true }) {
            self.remove(now, index);
            return false;
        }
        if member.state == MemberState::Here {
            member.state = MemberState::Away;
            self.tell_idle(index);
            self.departed(now, index);
        }
        true
    }

    /// Removes a member for good: it unsubscribed, or its session ended. The caller must release its leases.
    pub fn remove(&mut self, now: Micros, index: u32) {
        let Some(member) = self.member_mut(index) else {
            return;
        };
        if std::mem::replace(&mut member.state, MemberState::Gone) == MemberState::Here {
            self.departed(now, index);
        }
        self.tell_idle(index);
        self.forget_if_done(now, index);
    }

    /// Returns the number of the membership and of the request, both never reused.
    pub fn request_begins(&mut self, now: Micros, index: u32) -> (u64, u64) {
        self.numbers += 1;
        let number = self.numbers;
        if let Some(member) = self.member_mut(index) {
            member.open_requests += 1;
            member.last_seen = member.last_seen.max(now);
            let membership = member.number;
            self.tell_idle(index);
            return (membership, number);
        }
        (0, number)
    }

    pub fn request_ends(&mut self, now: Micros, index: u32) {
        if let Some(member) = self.member_mut(index) {
            member.open_requests = member.open_requests.saturating_sub(1);
            member.last_seen = member.last_seen.max(now);
            self.tell_idle(index);
            self.note_idle(now, index);
        }
    }

    /// The client disconnected before its answer, so its partitions are not reserved for the grace. It stays a member
    /// while it has another open request, or leases that it may still settle.
    pub fn request_abandoned(&mut self, now: Micros, index: u32) {
        self.request_ends(now, index);
        self.client_gone(now, index);
    }

    /// Like `request_abandoned` without a request: an answer could not be delivered to the client.
    pub fn client_gone(&mut self, now: Micros, index: u32) {
        if self.is_idle(index) {
            self.remove(now, index);
        }
    }

    /// Called after a change of a member, and before its leases are checked.
    fn tell_idle(&self, index: u32) {
        let busy = |member: &Member| member.state == MemberState::Here && !member.is_idle();
        self.shared.set_idle(index, !self.member(index).is_some_and(busy));
    }

    pub fn leases_taken(&mut self, index: u32, count: u32) {
        self.shared.take(index, count);
    }

    /// Leases were settled, expired or released.
    pub fn leases_ended(&mut self, now: Micros, index: u32, count: u32) {
        self.shared.end(index, count);
        self.lease_over(now, index);
    }

    /// The last lease of a member has ended, as [`MemberLeases::end`] returned.
    pub fn lease_over(&mut self, now: Micros, index: u32) {
        if let Some(member) = self.member_mut(index) {
            member.last_seen = member.last_seen.max(now);
            if !self.forget_if_done(now, index) {
                self.note_idle(now, index);
            }
        }
    }

    /// How many more leases the member may take.
    pub fn room(&self, index: u32, max_in_flight: u32) -> u32 {
        let held = self.member(index).filter(|member| member.state == MemberState::Here);
        held.map_or(0, |_| max_in_flight.saturating_sub(self.shared.held(index)))
    }

    /// The partitions that the member may claim from now.
    pub fn share(&self, index: u32) -> PartitionShare {
        let member = self.member(index).filter(|member| member.state == MemberState::Here);
        member.map_or_else(PartitionShare::default, |member| PartitionShare {
            here: true,
            own: member.assigned.clone(),
            others: self.sharing == Sharing::Preferred || self.unowned > 0,
        })
    }

    /// When [`Members::tick`] may have work.
    pub fn next_due(&self) -> Option<Micros> {
        self.rebalance_at.into_iter().chain(self.idle_check_at).min()
    }

    /// Ends graces, and rebalances if that is due.
    pub fn tick(&mut self, now: Micros) -> TickOutcome {
        let mut ticked = TickOutcome::default();
        if self.idle_check_at.is_some_and(|at| at <= now) {
            ticked.left = self.end_graces(now);
        }
        if self.rebalance_at.is_some_and(|at| at <= now) {
            self.rebalance();
            ticked.rebalanced = true;
        }
        ticked
    }

    /// Raised by every rebalance.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The present member that a partition is assigned to, if any.
    pub fn owner(&self, partition: u32) -> Option<u32> {
        self.owners
            .get(partition as usize)
            .copied()
            .filter(|owner| *owner != NOBODY)
    }

    /// The partitions assigned to the member by the last rebalance.
    pub fn assigned(&self, index: u32) -> Range<u32> {
        self.member(index).map_or(0..0, |member| member.assigned.clone())
    }

    /// Whether the member may claim from a partition now.
    pub fn may_claim(&self, index: u32, partition: u32) -> bool {
        let Some(owner) = self.owners.get(partition as usize) else {
            return false;
        };
        if !self
            .member(index)
            .is_some_and(|member| member.state == MemberState::Here)
        {
            return false;
        }
        match self.sharing {
            _ if *owner == index => true,
            Sharing::Preferred => true,
            Sharing::Owned => *owner == NOBODY,
            Sharing::Exclusive => *owner == NOBODY && self.here.first() == Some(&index),
        }
    }

    /// The partitions that the member may claim from now, its own first. O(1) for each of its own; others are scanned
    /// only where the member may read some.
    pub fn claimable(&self, index: u32) -> impl Iterator<Item = u32> + '_ {
        let own = self.assigned(index);
        let others = match self.sharing {
            Sharing::Owned | Sharing::Exclusive if self.unowned == 0 => 0..0,
            _ => 0..self.partitions(),
        };
        let not_own = own.clone();
        let others = others.filter(move |partition| !not_own.contains(partition));
        own.chain(others)
            .filter(move |partition| self.may_claim(index, *partition))
    }

    pub fn partitions(&self) -> u32 {
        self.owners.len() as u32
    }

    /// New partitions are assigned with the next rebalance. Their number never shrinks.
    pub fn set_partitions(&mut self, now: Micros, partitions: u32) {
        let more = partitions.saturating_sub(self.partitions());
        if more > 0 {
            self.owners.resize(partitions as usize, NOBODY);
            self.unowned += more;
            self.shared.changed();
            self.rebalance_soon(now);
        }
    }

    pub fn set_sharing(&mut self, sharing: Sharing) {
        self.sharing = sharing;
        self.shared.changed();
    }

    pub fn set_consumer_timeout(&mut self, now: Micros, consumer_timeout: Duration) {
        self.grace = micros(consumer_timeout);
        self.idle_check_at = Some(now);
    }

    pub fn find(&self, id: &str) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    /// The number of present members, which users see as active.
    pub fn active(&self) -> usize {
        self.here.len()
    }

    /// Since when there have been no members at all, not even one that is away or has leases. The group expires by
    /// this.
    pub fn empty_since(&self) -> Option<Micros> {
        self.empty_since
    }

    /// The value of [`Members::empty_since`] if it differs from the stored one. It changes when the first member comes
    /// and when the last one is forgotten, not with requests and leases.
    pub fn to_keep(&self) -> Option<Option<Micros>> {
        (self.empty_since != self.kept).then_some(self.empty_since)
    }

    pub fn is_kept(&mut self, empty_since: Option<Micros>) {
        self.kept = empty_since;
    }

    /// Restores `empty_since` after a restart, unless a consumer has joined already.
    pub fn restore_empty(&mut self, since: Micros) {
        if self.empty_since.is_some() {
            (self.empty_since, self.kept) = (Some(since), Some(since));
        }
    }

    /// All members that have a number, in order.
    pub fn iter(&self) -> impl Iterator<Item = MemberView<'_>> {
        let numbered = (0..).zip(&self.members);
        numbered.filter_map(|(index, member)| Some(member.as_ref()?.view(index, self.shared.held(index))))
    }

    fn add(&mut self, now: Micros, id: &str, kind: MemberKind) -> Result<u32, QueueError> {
        if self.by_id.len() >= MEMBERS_MAX {
            return Err(QueueError::QuotaExceeded {
                what: "consumers of one group",
                limit: MEMBERS_MAX as u64,
            });
        }
        let index = self.free.pop_first().unwrap_or_else(|| {
            self.grow();
            (self.members.len() - 1) as u32
        });
        self.put(index, id, kind, now);
        Ok(index)
    }

    fn grow(&mut self) {
        self.members.push(None);
        self.shared.grow();
    }

    fn put(&mut self, index: u32, id: &str, kind: MemberKind, now: Micros) {
        let id = SmolStr::new(id);
        self.numbers += 1;
        let number = self.numbers;
        if let Some(slot) = self.members.get_mut(index as usize) {
            *slot = Some(Member::new(id.clone(), kind, now, number));
            self.by_id.insert(id, index);
            self.empty_since = None;
        }
    }

    /// Position of the id among the present members, or where it would be inserted.
    fn rank(&self, id: &str) -> Result<usize, usize> {
        self.here.binary_search_by(|other| {
            let other = self.member(*other).map_or("", |member| member.id.as_str());
            other.cmp(id)
        })
    }

    fn arrived(&mut self, now: Micros, index: u32) {
        let id = self.member(index).map(|member| member.id.clone()).unwrap_or_default();
        if let Err(at) = self.rank(&id) {
            self.here.insert(at, index);
        }
        self.shared.changed();
        self.rebalance_soon(now);
    }

    fn departed(&mut self, now: Micros, index: u32) {
        let Some(member) = self.member_mut(index) else {
            return;
        };
        let id = member.id.clone();
        let range = std::mem::take(&mut member.assigned);
        if let Ok(at) = self.rank(&id) {
            self.here.remove(at);
        }
        let range = range.start as usize..range.end as usize;
        self.unowned += range.len() as u32;
        self.owners.get_mut(range).unwrap_or_default().fill(NOBODY);
        self.shared.changed();
        self.rebalance_soon(now);
    }

    /// Forgets a member that is gone and has no leases. Returns whether it did.
    fn forget_if_done(&mut self, now: Micros, index: u32) -> bool {
        let gone = |member: &Member| member.state == MemberState::Gone;
        if !self.member(index).is_some_and(gone) || self.shared.held(index) > 0 {
            return false;
        }
        if let Some(member) = self.members.get_mut(index as usize).and_then(Option::take) {
            self.by_id.remove(&member.id);
            self.free.insert(index);
        }
        if self.by_id.is_empty() {
            self.empty_since = Some(now);
        }
        true
    }

    /// Schedules a check for the end of a grace that begins now.
    fn note_idle(&mut self, now: Micros, index: u32) {
        if self.is_idle(index) {
            self.idle_check_at.get_or_insert(now.saturating_add(self.grace));
        }
    }

    /// Whether its grace is running.
    fn is_idle(&self, index: u32) -> bool {
        self.member(index).is_some_and(Member::is_idle) && self.shared.held(index) == 0
    }

    fn end_graces(&mut self, now: Micros) -> Vec<u32> {
        let mut left = Vec::new();
        let mut next: Option<Micros> = None;
        for (index, member) in (0..).zip(&self.members) {
            let Some(member) = member.as_ref().filter(|_| self.is_idle(index)) else {
                continue;
            };
            let end = member.last_seen.saturating_add(self.grace);
            if end <= now {
                left.push(index);
            } else {
                next = Some(next.map_or(end, |next| next.min(end)));
            }
        }
        self.idle_check_at = next;
        for index in &left {
            self.remove(now, *index);
        }
        left
    }

    fn rebalance_soon(&mut self, now: Micros) {
        self.rebalance_at.get_or_insert(now.saturating_add(REBALANCE_AFTER));
    }

    fn rebalance(&mut self) {
        let (partitions, count) = (self.partitions(), self.here.len() as u32);
        self.rebalance_at = None;
        self.generation += 1;
        self.shared.changed();
        self.owners.fill(NOBODY);
        self.unowned = if count == 0 { partitions } else { 0 };
        for (rank, index) in (0..).zip(&self.here) {
            let range = range_of(rank, count, partitions);
            let owned = range.start as usize..range.end as usize;
            self.owners.get_mut(owned).unwrap_or_default().fill(*index);
            if let Some(Some(member)) = self.members.get_mut(*index as usize) {
                member.assigned = range;
            }
        }
    }

    fn member(&self, index: u32) -> Option<&Member> {
        self.members.get(index as usize)?.as_ref()
    }

    fn member_mut(&mut self, index: u32) -> Option<&mut Member> {
        self.members.get_mut(index as usize)?.as_mut()
    }
}

#[cfg(test)]
mod tests;
