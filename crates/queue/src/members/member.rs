//! One consumer of a group: its internal state and its public view.

use std::ops::Range;

use smol_str::SmolStr;
use thalweg_log::Micros;

/// How a consumer is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Independent requests; it leaves when it is idle for the grace.
    Http,
    /// An input of this process.
    Pipeline,
    /// A connection with keep alive; a persistent session outlives it.
    Mqtt { persistent: bool },
}

impl MemberKind {
    /// Whether it can come back for its leases after a restart of this process. Consumers outside the process can.
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
    /// Number of this membership; its index is reused by others later.
    pub number: u64,
    pub kind: MemberKind,
    pub state: MemberState,
    pub open_requests: u32,
    /// Time of the last request, or of the end of the last lease.
    pub last_seen: Micros,
    /// Empty unless it is here.
    pub assigned: Range<u32>,
}

impl Member {
    /// A member that has not arrived yet.
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

    /// Whether its grace is running, provided that it has no leases.
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

/// A consumer as shown in statistics and stored in checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberView<'m> {
    pub index: u32,
    pub id: &'m str,
    pub kind: MemberKind,
    /// Otherwise it is away, or has left while its leases run on.
    pub here: bool,
    pub open_requests: u32,
    pub leases: u32,
    pub last_seen: Micros,
    pub assigned: Range<u32>,
}
