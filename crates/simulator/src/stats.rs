//! The response of `GET /sim/stats`. A checker compares these figures with a client's own, so each comment says exactly
//! what is counted.

use serde::Serialize;

/// A snapshot of a running simulator.
#[derive(Clone, Debug, Serialize)]
pub struct SimulatorStats {
    pub uptime_seconds: f64,
    pub seed: u64,
    /// Sessions that are activated and not closed.
    pub sessions: u64,
    /// Subscriptions of all sessions, including dead ones until their lifetime ends.
    pub subscriptions: u64,
    /// Monitored items in them, including those of namespace 0.
    pub monitored_items: u64,
    pub groups: StatsByGroup,
    /// Sums over the groups.
    pub total: ValueCounts,
    /// Statistics of the TCP proxy; absent when clients reach the server directly.
    pub front: Option<ProxyStats>,
}

/// The figures of each group of nodes.
#[derive(Clone, Debug, Serialize)]
pub struct StatsByGroup {
    pub slow: GroupStats,
    pub fast: GroupStats,
    /// The changing nodes of the folder `Types`.
    pub types: GroupStats,
    /// Nodes that never change: only their initial values are counted.
    pub fixed: GroupStats,
}

/// The figures of one group.
#[derive(Clone, Debug, Serialize)]
pub struct GroupStats {
    pub nodes: u64,
    /// Seconds between changes; 0 if the nodes never change.
    pub period_seconds: f64,
    /// Changes of each node so far: its value is its first value plus this.
    pub counter: u64,
    /// How far the changes lag behind their schedule; above one period the machine is too slow for the load.
    pub behind_seconds: f64,
    /// Changes that were served only when the next one was already due.
    pub late_changes: u64,
    pub monitored_items: u64,
    /// Items that the counts leave out: not reporting, sampled at the publishing interval, or writable.
    pub uncounted_items: u64,
    #[serde(flatten)]
    pub counts: ValueCounts,
}

/// The outcome of values. At any moment `queued = published + pending + lost_overflow + discarded`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ValueCounts {
    /// Changes of nodes, monitored or not: nodes times counter.
    pub generated: u64,
    /// Values put into the queues of monitored items: initial values, and changes that passed sampling interval and
    /// filter.
    pub queued: u64,
    /// Values taken from the queues into notification messages. A message stays counted when its connection is cut or
    /// the client never collects it; values resent at the client's request are not counted again.
    pub published: u64,
    /// Values in the queues now.
    pub pending: u64,
    /// Values displaced from a full queue by newer ones.
    pub lost_overflow: u64,
    /// Values in queues that were deleted, shortened, or stopped reporting.
    pub discarded: u64,
}

/// The TCP proxy that cuts and delays connections.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ProxyStats {
    pub connections_open: u64,
    pub connections_accepted: u64,
    /// How often all connections were cut.
    pub cuts: u64,
}

impl ValueCounts {
    pub(crate) fn add(&mut self, other: ValueCounts) {
        self.generated += other.generated;
        self.queued += other.queued;
        self.published += other.published;
        self.pending += other.pending;
        self.lost_overflow += other.lost_overflow;
        self.discarded += other.discarded;
    }
}

impl StatsByGroup {
    /// All groups, with their names in the JSON.
    pub fn all(&self) -> [(&'static str, &GroupStats); 4] {
        [
            ("slow", &self.slow),
            ("fast", &self.fast),
            ("types", &self.types),
            ("fixed", &self.fixed),
        ]
    }
}
