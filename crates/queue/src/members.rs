//! The consumers of one group: who is there, who reads which partitions, and how many leases each holds.
//!
//! Joins, leaves, requests, leases and the time go in; numbers of members and the assignment of partitions come out. Pure
//! code: no clock, no locks; the caller holds the group's lock and calls [`Members::tick`] at [`Members::next_due`].
//!
//! | State | Means | Becomes |
//! |---|---|---|
//! | here | has a share of the partitions | away or gone by `leave`, gone by `remove`; HTTP: gone when idle for the grace |
//! | away | a persistent session without connection: no share, its leases run on | here by `join`, gone by `remove` |
//! | gone | has left, and leases are not given back yet | here by `join`; forgotten with its last lease |
//!
//! An HTTP member is idle when it has no open request and no lease; MQTT and pipelines say themselves when they leave.
//! A member keeps its number until it is forgotten; only then another may get it, so a lease never changes its holder.
//!
//! Joins and leaves change the assignment together, 100 ms after the first of them. In between nobody waits: what a
//! member left behind, and what the first member of a group finds, may be taken by those who are here (an assignment at
//! once for the first one was the other way; it would make two rebalances of two members that start together).

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
use crate::times::micros;
use member::{Member, MemberState};

pub use leases::MemberLeases;
pub use member::{MemberKind, MemberView};

/// As many as connections of a process.
pub const MEMBERS_MAX: usize = 100_000;
/// Joins and leaves that are not further apart from the first of them are one change.
pub const REBALANCE_AFTER: Micros = 100_000;

/// Stands in the table of owners where there is none.
const NOBODY: u32 = u32::MAX;

/// What a share of the partitions means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Its own partitions first, then any (`ordering: none`).
    Preferred,
    /// Its own partitions only. One without owner goes to whoever asks: lanes keep the order (`ordering: partition`).
    Owned,
    /// Its own only, and for one without owner the first by id stands in, so that never two read the same partition
    /// (`ordering: strict`, stream groups).
    Exclusive,
}

/// What a call of [`Members::tick`] came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TickOutcome {
    /// Numbers of HTTP members whose grace has ended. They hold no lease.
    pub left: Vec<u32>,
    /// The generation was raised: parked claims have to look at their partitions again.
    pub rebalanced: bool,
}

/// From where one member may take, as long as [`MemberLeases::version`] stays the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionShare {
    /// Otherwise it takes nothing.
    pub here: bool,
    /// Its own partitions.
    pub own: Range<u32>,
    /// Whether [`Members::may_claim`] may allow others, too.
    pub others: bool,
}

#[derive(Debug)]
pub struct Members {
    sharing: Sharing,
    grace: Micros,
    members: Vec<Option<Member>>,
    /// Numbers without member; the lowest is given first, which keeps the table dense.
    free: BTreeSet<u32>,
    by_id: HashMap<SmolStr, u32>,
    /// Who is here, by the bytes of their ids.
    here: Vec<u32>,
    /// By partition: a number of somebody who is here, or [`NOBODY`].
    owners: Vec<u32>,
    unowned: u32,
    generation: u64,
    rebalance_at: Option<Micros>,
    /// Not after the end of the first grace. Set when somebody becomes idle and not when they become busy, so that
    /// requests and leases cost O(1); being too early costs one look at all members.
    idle_check_at: Option<Micros>,
    empty_since: Option<Micros>,
    /// What a restart would find of `empty_since`.
    kept: Option<Micros>,
    shared: Arc<MemberLeases>,
    /// Of memberships and requests, each with a number of its own.
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

    /// How many leases everybody has, and whether shares have changed: for those without the group's lock.
    pub fn shared(&self) -> &Arc<MemberLeases> {
        &self.shared
    }

    /// Finds the member of this id, or makes it one. Its number is the same until it is forgotten. One id is one member:
    /// whoever came last says of which kind it is.
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

    /// Brings back who held leases before a restart, with its old number. A kind that cannot return is refused: its leases
    /// are to be given back.
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

    /// A connection or an input has ended. True if the member may come back for its leases, so that these run on;
    /// otherwise they are to be given back.
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

    /// For good: unsubscribed, or the session has ended. Its leases are to be given back.
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

    /// Returns the number of the membership and that of the request, which nothing later has.
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

    /// The client has gone without waiting for the answer: nobody comes for its partitions, so it does not keep them for its
    /// grace. While another of its requests is open, or it has leases that it may yet settle, it stays.
    pub fn request_abandoned(&mut self, now: Micros, index: u32) {
        self.request_ends(now, index);
        self.client_gone(now, index);
    }

    /// The same without a request: an answer could not be brought to the client.
    pub fn client_gone(&mut self, now: Micros, index: u32) {
        if self.is_idle(index) {
            self.remove(now, index);
        }
    }

    /// After a change of a member and before its leases are looked at.
    fn tell_idle(&self, index: u32) {
        let busy = |member: &Member| member.state == MemberState::Here && !member.is_idle();
        self.shared.set_idle(index, !self.member(index).is_some_and(busy));
    }

    pub fn leases_taken(&mut self, index: u32, count: u32) {
        self.shared.take(index, count);
    }

    /// Settled, expired or given back.
    pub fn leases_ended(&mut self, now: Micros, index: u32, count: u32) {
        self.shared.end(index, count);
        self.lease_over(now, index);
    }

    /// The last lease of a member has ended, which [`MemberLeases::end`] has said.
    pub fn lease_over(&mut self, now: Micros, index: u32) {
        if let Some(member) = self.member_mut(index) {
            member.last_seen = member.last_seen.max(now);
            if !self.forget_if_done(now, index) {
                self.note_idle(now, index);
            }
        }
    }

    /// Leases that the member may take yet.
    pub fn room(&self, index: u32, max_in_flight: u32) -> u32 {
        let held = self.member(index).filter(|member| member.state == MemberState::Here);
        held.map_or(0, |_| max_in_flight.saturating_sub(self.shared.held(index)))
    }

    /// From where the member may take now.
    pub fn share(&self, index: u32) -> PartitionShare {
        let member = self.member(index).filter(|member| member.state == MemberState::Here);
        member.map_or_else(PartitionShare::default, |member| PartitionShare {
            here: true,
            own: member.assigned.clone(),
            others: self.sharing == Sharing::Preferred || self.unowned > 0,
        })
    }

    /// When [`Members::tick`] may have something to do.
    pub fn next_due(&self) -> Option<Micros> {
        self.rebalance_at.into_iter().chain(self.idle_check_at).min()
    }

    /// Ends graces and makes the rebalance that is due.
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

    /// Rises with every rebalance.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Who reads a partition, if it is assigned to somebody who is here.
    pub fn owner(&self, partition: u32) -> Option<u32> {
        self.owners
            .get(partition as usize)
            .copied()
            .filter(|owner| *owner != NOBODY)
    }

    /// What the member is to read, since the last rebalance.
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

    /// The partitions from which the member may claim now, its own first. O(1) for each of its own; the others are looked
    /// through only where some may be taken.
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

    /// New partitions are assigned with the next rebalance. They never become fewer.
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

    /// Who is here, which is what a user calls active.
    pub fn active(&self) -> usize {
        self.here.len()
    }

    /// Since when there has been nobody, not even one who is away or has leases; the group expires by this.
    pub fn empty_since(&self) -> Option<Micros> {
        self.empty_since
    }

    /// What [`Members::empty_since`] says, if it is not what was kept of it last. It changes when the first member comes and
    /// when the last one is forgotten, not with requests and leases.
    pub fn to_keep(&self) -> Option<Option<Micros>> {
        (self.empty_since != self.kept).then_some(self.empty_since)
    }

    pub fn is_kept(&mut self, empty_since: Option<Micros>) {
        self.kept = empty_since;
    }

    /// After a restart: nobody had been there since then. Not for a group that somebody has come back to.
    pub fn restore_empty(&mut self, since: Micros) {
        if self.empty_since.is_some() {
            (self.empty_since, self.kept) = (Some(since), Some(since));
        }
    }

    /// Everybody with a number, in the order of numbers.
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

    /// Of those who are here, by id: where the member is or would be.
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

    /// Whether it was: who is gone and has no leases.
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

    /// Sees to it that the end of a grace is noticed that begins now.
    fn note_idle(&mut self, now: Micros, index: u32) {
        if self.is_idle(index) {
            self.idle_check_at.get_or_insert(now.saturating_add(self.grace));
        }
    }

    /// Whether its grace runs.
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
