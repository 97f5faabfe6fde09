//! The mass balance of one flow: every message that came in has gone out, was filtered, was dropped, or is in flight.
//!
//! All counts of a flow change under one lock, once per batch, so that a reader at any instant sees sums that add up.
//! `in_flight` is not computed from the others: the [`Ack`](crate::Ack)s carry it, so the sum is a real check.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

thalweg_kit::meaning_table! {
    /// Why a message was removed as intended.
    pub enum FilterReason {
        ReturnedNull = "returned_null", "A script returned nothing for it.";
        Deadband = "deadband", "It differs from the last point that was passed on by less than the threshold.";
        SwingingDoor = "swinging_door", "It lies near the line between points that are passed on.";
        Unchanged = "unchanged", "Its value, a text or a boolean, equals the last one.";
        DuplicateTimestamp = "duplicate_timestamp", "The last point of its tag has the same time.";
        KeyMismatch = "key_mismatch", "Its key or topic matches none of those configured.";
        MappingDeleted = "mapping_deleted", "The mapping deleted it.";
        NoValue = "no_value", "It has no value.";
        Bundled = "bundled", "It is contained in a message that was made of several.";
    }
}

thalweg_kit::meaning_table! {
    /// Why a message was lost to a fault or a limit.
    pub enum DropReason {
        ScriptError = "script_error", "A script or a mapping failed on it; the error names the place in the code.";
        ScriptTimeout = "script_timeout", "A script took too long; simplify it, or raise `scripting.timeout`.";
        ScriptBadReturn = "script_bad_return", "A script returned something that is no message; correct the script.";
        MissingField = "missing_field", "It lacks a field or metadata that the component needs; the error names it.";
        InvalidTopic = "invalid_topic", "Its topic breaks the rules of topics; the error says which.";
        InvalidValue = "invalid_value", "A value cannot be converted or written; the error says why.";
        InvalidPayload = "invalid_payload", "Its payload does not have the form that the component needs.";
        Late = "late", "It is older than points that were passed on, and `late_policy` is `drop`.";
        SchemaRejected = "schema_rejected", "Its payload does not fit the schema of its data contract.";
        OutputRejected = "output_rejected", "The target of the output refused it for good; the error says why.";
        TooLarge = "too_large", "It exceeds a size limit; the error names the limit.";
        Limit = "limit", "It exceeds a limit on nesting, memory or count, or it is missing from its buffer.";
        Shutdown = "shutdown", "It was not acknowledged before the process stopped; its source may send it again.";
    }
}

/// The counts of one flow at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceCounts {
    /// Messages that entered, plus those that stages added (`expanded`).
    pub entered: u64,
    /// Included in `entered`: one message that became n counts n - 1.
    pub expanded: u64,
    pub out: u64,
    filtered: [u64; FilterReason::ALL.len()],
    dropped: [u64; DropReason::ALL.len()],
    pub in_flight: u64,
    /// Included in `in_flight`: messages in a buffer, without an `Ack`. Negative for a moment if messages are read
    /// before their writer has reported them as stored.
    kept: i64,
}

impl BalanceCounts {
    pub fn filtered(&self, reason: FilterReason) -> u64 {
        self.filtered[reason as usize]
    }

    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub fn filtered_total(&self) -> u64 {
        self.filtered.iter().sum()
    }

    pub fn dropped_total(&self) -> u64 {
        self.dropped.iter().sum()
    }

    /// Included in `in_flight`: messages that wait in a buffer. They stay there when the process ends.
    pub fn buffered(&self) -> u64 {
        u64::try_from(self.kept).unwrap_or_default()
    }

    /// `in = out + filtered + dropped + in_flight`
    pub fn adds_up(&self) -> bool {
        self.entered == self.out + self.filtered_total() + self.dropped_total() + self.in_flight
    }
}

impl std::fmt::Display for BalanceCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (filtered, dropped) = (self.filtered_total(), self.dropped_total());
        write!(
            f,
            "in {} = out {} + filtered {filtered} + dropped {dropped} + in flight {}",
            self.entered, self.out, self.in_flight
        )
    }
}

/// The mass balance of one flow, shared by everything that handles its messages.
#[derive(Debug, Default)]
pub struct FlowBalance {
    counts: Mutex<BalanceCounts>,
    /// Whether the flow gives up what it has, because its time is over.
    is_stopping: AtomicBool,
}

impl FlowBalance {
    pub fn snapshot(&self) -> BalanceCounts {
        *self.counts.lock()
    }

    /// From now on, messages that are given up and that their source delivers again stay in flight.
    pub fn stops(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self, n: u64) {
        let mut counts = self.counts.lock();
        counts.entered += n;
        counts.in_flight += n;
    }

    /// A buffer has messages from before the start: they are in flight.
    pub fn found(&self, n: u64) {
        self.enter(n);
        self.keep(n);
    }

    /// Messages in a buffer were removed unread.
    pub fn lost(&self, reason: DropReason, n: u64) {
        let mut counts = self.counts.lock();
        let n = n.min(counts.in_flight);
        counts.kept = counts.kept.saturating_sub_unsigned(n);
        counts.dropped[reason as usize] += n;
        counts.in_flight -= n;
    }

    /// Messages stay in flight in a buffer.
    pub(crate) fn keep(&self, n: u64) {
        let mut counts = self.counts.lock();
        counts.kept = counts.kept.saturating_add_unsigned(n);
    }

    /// Messages leave a buffer and continue.
    pub(crate) fn resume(&self, n: u64) {
        let mut counts = self.counts.lock();
        counts.kept = counts.kept.saturating_sub_unsigned(n);
    }

    pub(crate) fn expand(&self, n: u64) {
        let mut counts = self.counts.lock();
        counts.entered += n;
        counts.expanded += n;
        counts.in_flight += n;
    }

    pub(crate) fn deliver(&self, n: u64) {
        let mut counts = self.counts.lock();
        counts.out += n;
        counts.in_flight -= n;
    }

    pub(crate) fn filter(&self, reason: FilterReason, n: u64) {
        let mut counts = self.counts.lock();
        counts.filtered[reason as usize] += n;
        counts.in_flight -= n;
    }

    pub(crate) fn lose(&self, reason: DropReason, n: u64) {
        let mut counts = self.counts.lock();
        counts.dropped[reason as usize] += n;
        counts.in_flight -= n;
    }
}
