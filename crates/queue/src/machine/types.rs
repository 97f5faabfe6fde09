//! Inputs and outputs of the machine: the policy, the facts of a message, leases, answers and errors.
//!
//! Times are microseconds since the epoch; offsets are those of the partition. Consumers are numbers assigned by the
//! caller. A number must mean the same consumer after a restart, because leases are stored with it.

use thalweg_log::{Micros, Offset};

/// The longest time between a claim and the last deadline that `extend` can set: 12 h.
pub const EXTEND_MAX: Micros = 12 * 3600 * 1_000_000;
/// How long a message waits after its move to the dead-letter queue failed: 5 s.
pub const MOVE_RETRY: Micros = 5_000_000;
/// A message that has been unsettled at the floor for this long leaves the window: 60 s.
pub const HOLD_AFTER: Micros = 60_000_000;
/// No hint.
pub const NO_HINT: u32 = u32::MAX;
/// The maximum width of the window, whatever the policy says: 16 MiB of slots.
pub const WINDOW_MAX: u64 = 1 << 22;

/// Which messages wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneOrdering {
    /// None: lanes are ignored.
    None,
    /// Those of one key.
    Partition,
    /// All of the partition.
    Strict,
}

/// How long a failed message waits: `min(initial × multiplier^(n−1), max)` after failure n, ± `jitter` of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial: Micros,
    pub max: Micros,
    pub multiplier: f64,
    /// A fraction of the delay, 0 to 1.
    pub jitter: f64,
    /// Makes the jitter differ between partitions. Equal seeds give equal delays.
    pub seed: u64,
}

/// The settings of a queue that the machine enforces. May change at run time (`WorkMachine::set_policy`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeliveryPolicy {
    pub ordering: LaneOrdering,
    /// Concurrent leases per lane, at least 1.
    pub lane_window: u16,
    /// Width of the dense window in offsets, at most [`WINDOW_MAX`].
    pub max_pending: u32,
    /// Unsettled messages that may leave the window. With 0 the window stops at the first slow message.
    pub max_held: u32,
    pub max_retries: u32,
    pub backoff: Backoff,
    /// From the first delivery; 0 is off.
    pub total_timeout: Micros,
    /// A message with a longer delay has no entry until it is due in less than half of this; see `to_rouse`.
    pub sleep_after: Micros,
}

impl Default for DeliveryPolicy {
    fn default() -> Self {
        DeliveryPolicy {
            ordering: LaneOrdering::Partition,
            lane_window: 1,
            max_pending: 100_000,
            max_held: 1_000_000,
            max_retries: 10,
            backoff: Backoff {
                initial: 5_000_000,
                max: 300_000_000,
                multiplier: 2.0,
                jitter: 0.1,
                seed: 0,
            },
            total_timeout: 3 * 3600 * 1_000_000,
            sleep_after: 60_000_000,
        }
    }
}

/// What the machine must know about a message as the cursor passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMeta {
    /// At or above the cursor; offsets in between do not exist.
    pub offset: Offset,
    /// Hash of the key. Ignored without ordering; `LaneOrdering::Strict` has one lane for all.
    pub lane: Option<u64>,
    pub expires_at: Option<Micros>,
    pub not_before: Option<Micros>,
    /// Not for this group (filter, or targeted at another): settled at once.
    pub skip: bool,
    /// Any number that the caller wants returned with leases and removals, such as a position in a cache. [`NO_HINT`]
    /// is returned if the message was not read since the machine forgot it.
    pub hint: u32,
}

impl MessageMeta {
    /// A message of which only the offset is known.
    pub fn unread(offset: Offset) -> MessageMeta {
        MessageMeta {
            offset,
            lane: None,
            expires_at: None,
            not_before: None,
            skip: false,
            hint: NO_HINT,
        }
    }
}

/// One delivery. Its receipt is (offset, delivery).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub offset: Offset,
    /// From 1.
    pub delivery: u32,
    pub hint: u32,
    pub deadline: Micros,
}

/// The outcome of showing a message to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOutcome {
    /// Leased to the consumer.
    Leased(Lease),
    /// The cursor passed it without leasing it: skipped, expired, delayed, already known, or behind others in its lane.
    Taken,
    /// The cursor did not move.
    Full(CursorStop),
}

/// Why the cursor stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorStop {
    /// The window is `max_pending` wide and nothing may leave it (`max_held` is 0).
    Window,
    /// The window is full and so is the held set.
    Held,
    /// `LaneOrdering::Strict`, and the lane is busy: no later message could be delivered. Ends with the next settle.
    Lane,
}

/// A settle call without a current lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    #[error("the message was never delivered: claim it before settling it")]
    NotLeased,
    #[error("the lease has ended or belongs to a later delivery: claim the message again")]
    LeaseLost,
    #[error("the message is settled already: drop the receipt")]
    Gone,
}

/// An accepted ack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    Acked,
    /// It was acked before; nothing changed.
    Repeated,
}

/// The consequence of a nack or a reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOutcome {
    /// Ready again at this time.
    Retry(Micros),
    /// It must leave; `take_ending` returns it.
    Ending(RemovalReason),
}

/// Why a message must leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RemovalReason {
    MaxRetries = 0,
    Timeout = 1,
    Rejected = 2,
    Expired = 3,
    Overflow = 4,
}

/// A message that must leave. It cannot be claimed, and settle calls answer `gone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRemoval {
    pub offset: Offset,
    pub hint: u32,
    pub reason: RemovalReason,
    pub deliveries: u32,
    /// 0 if it was never delivered.
    pub first_attempt: Micros,
    pub last_attempt: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum FinalState {
    Acked = 1,
    Dead = 2,
    Expired = 3,
    Dropped = 4,
    /// Not for this group, or no such offset.
    Skipped = 5,
}

/// Current counts per state, and totals since the machine was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    pub delayed: u64,
    /// Passed by the cursor and ready, including those behind others in their lane.
    pub ready: u64,
    pub leased: u64,
    pub waiting: u64,
    /// To be moved or dropped by the caller.
    pub ending: u64,
    /// How many of these are outside the window.
    pub held: u64,
    pub lanes: u64,
    pub acked: u64,
    pub dead: u64,
    pub expired: u64,
    pub dropped: u64,
    pub skipped: u64,
    /// Offsets lost to damage.
    pub lost: u64,
    pub redelivered: u64,
    pub lease_timeouts: u64,
    /// How often a `pass` found the window or the held set full.
    pub stopped: u64,
}

/// Stored state that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group state is damaged at byte {at}: {what}; restore an older checkpoint or seek the group")]
pub struct DamagedState {
    pub at: usize,
    pub what: &'static str,
}
