//! One consumer of a group, as it is known inside and as it is shown.

use std::ops::Range;

use smol_str::SmolStr;
use thalweg_log::Micros;

/// By which way a consumer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Requests that come and go: leaves when it is idle for the grace.
    Http,
    /// An input of this process.
    Pipeline,
    /// A connection with keep alive; its session outlives it or not.
    Mqtt { persistent: bool },
}

impl MemberKind {
    /// Whether it can come for its leases after a restart of the process, which does not end what lies outside.
    pub fn can_return(self) -> bool {
        match self {
            MemberKind::Http => true,
            MemberKind::Pipeline => false,
            MemberKind::Mqtt { persistent } => persistent,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberState {
    Here,
    Away,
    Gone,
}

#[derive(Debug)]
pub(super) struct Member {
    pub id: SmolStr,
    /// Of this membership; its place in the table is given to others later.
    pub number: u64,
    pub kind: MemberKind,
    pub state: MemberState,
    pub open_requests: u32,
    /// Of the last request or the end of the last lease.
    pub last_seen: Micros,
    /// Empty unless it is here.
    pub assigned: Range<u32>,
}

impl Member {
    /// One that has not arrived yet.
    pub fn new(id: SmolStr, kind: MemberKind, now: Micros, number: u64) -> Member {
        Member {
            id,
            number,
            kind,
            state: MemberState::Gone,
            open_requests: 0,
            last_seen: now,
            assigned: 0..0,
        }
    }

    /// Whether its grace runs, unless it has leases.
    pub fn is_idle(&self) -> bool {
        self.kind == MemberKind::Http && self.state == MemberState::Here && self.open_requests == 0
    }

    pub fn view(&self, index: u32, leases: u32) -> MemberView<'_> {
        MemberView {
            index,
            id: &self.id,
            kind: self.kind,
            here: self.state == MemberState::Here,
            open_requests: self.open_requests,
            leases,
            last_seen: self.last_seen,
            assigned: self.assigned.clone(),
        }
    }
}

/// A consumer as statistics show it and as a checkpoint keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView<'m> {
    pub index: u32,
    pub id: &'m str,
    pub kind: MemberKind,
    /// Otherwise it is away, or has left and its leases run on.
    pub here: bool,
    pub open_requests: u32,
    pub leases: u32,
    pub last_seen: Micros,
    pub assigned: Range<u32>,
}
