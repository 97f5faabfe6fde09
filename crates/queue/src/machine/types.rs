//! What goes into and comes out of the machine: the policy, the facts of a message, leases, answers and errors.
//!
//! Times are microseconds since the epoch, offsets are those of the partition. Consumers are numbers that the caller
//! gives out; they must mean the same consumer after a restart, because leases are stored with them.

use thalweg_log::{Micros, Offset};

/// The longest time between a claim and the last deadline that `extend` can reach: 12 h.
pub const EXTEND_MAX: Micros = 12 * 3600 * 1_000_000;
/// How long a message waits after its move to the dead-letter queue failed: 5 s.
pub const MOVE_RETRY: Micros = 5_000_000;
/// A message that has been unsettled for this long at the floor leaves the window: 60 s.
pub const HOLD_AFTER: Micros = 60_000_000;
/// Where there is no hint.
pub const NO_HINT: u32 = u32::MAX;
/// The widest window there is, whatever the policy says: 16 MiB of slots.
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
    /// A part of the delay, 0 to 1.
    pub jitter: f64,
    /// Makes the jitter of this partition differ from that of others. Equal seeds give equal delays.
    pub seed: u64,
}

/// The settings of a queue that the machine enforces. May change at run time (`WorkMachine::set_policy`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeliveryPolicy {
    pub ordering: LaneOrdering,
    /// Leases of one lane at once, at least 1.
    pub lane_window: u16,
    /// Width of the dense window in offsets, at most [`WINDOW_MAX`].
    pub max_pending: u32,
    /// Unsettled messages that may leave the window; 0 lets the window stop at the first slow message.
    pub max_held: u32,
    pub max_retries: u32,
    pub backoff: Backoff,
    /// From the first delivery; 0 is off.
    pub total_timeout: Micros,
    /// A message that is delayed for longer has no entry until it is due in less than half of that; see `to_rouse`.
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

/// What the machine must know of a message as the cursor passes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMeta {
    /// At or above the cursor; offsets between the two are taken as not existing.
    pub offset: Offset,
    /// Hash of the key. Ignored without ordering; `LaneOrdering::Strict` has one lane for all.
    pub lane: Option<u64>,
    pub expires_at: Option<Micros>,
    pub not_before: Option<Micros>,
    /// Not for this group (its filter, or targeted at another): settled at once.
    pub skip: bool,
    /// Any number that the caller wants back with leases and endings, such as a position in a cache. [`NO_HINT`] comes back
    /// where the message was not read since the machine forgot it.
    pub hint: u32,
}

impl MessageMeta {
    /// A message of which only the place is known.
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

/// One hand-over. Its receipt is (offset, delivery).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub offset: Offset,
    /// From 1.
    pub delivery: u32,
    pub hint: u32,
    pub deadline: Micros,
}

/// What became of a message shown to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassOutcome {
    /// The consumer has it.
    Leased(Lease),
    /// The cursor is past it, nobody has it: skipped, expired, delayed, known already, or behind others of its lane.
    Taken,
    /// The cursor stands where it was.
    Full(CursorStop),
}

/// Why the cursor stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CursorStop {
    /// The window is `max_pending` wide and nothing may leave it (`max_held` is 0).
    Window,
    /// The window is full and so is the held set.
    Held,
    /// `LaneOrdering::Strict`, and the lane is busy: nothing behind could be handed out. Ends with the next settle.
    Lane,
}

/// A settle call without a current lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    #[error("the message was never handed out: claim it before settling it")]
    NotLeased,
    #[error("the lease is over or belongs to a later delivery: claim the message again")]
    LeaseLost,
    #[error("the message is settled already: drop the receipt")]
    Gone,
}

/// An ack that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    Acked,
    /// It was acked before; nothing changed.
    Repeated,
}

/// What a nack or a reject led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOutcome {
    /// Ready again at this time.
    Retry(Micros),
    /// It has to leave; `take_ending` names it.
    Ending(RemovalReason),
}

/// Why a message has to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RemovalReason {
    MaxRetries = 0,
    Timeout = 1,
    Rejected = 2,
    Expired = 3,
    Overflow = 4,
}

/// A message that has to leave. Nobody can claim it, and settle calls answer `gone`.
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

/// Final states.
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

/// How many there are now, and how many there have been since the machine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    pub delayed: u64,
    /// Passed by the cursor and ready, also those behind others of their lane.
    pub ready: u64,
    pub leased: u64,
    pub waiting: u64,
    /// To be moved or dropped by the caller.
    pub ending: u64,
    /// Of all these, how many are outside the window.
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

/// State that can not be read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group state is damaged at byte {at}: {what}; restore an older checkpoint or seek the group")]
pub struct DamagedState {
    pub at: usize,
    pub what: &'static str,
}
