//! Queue errors: one variant per situation. Each message names the place and the cure in one sentence.
//!
//! The HTTP interface and the components of flows report the same [`QueueError::kind`]. The code, the status and the time
//! of a retry follow from the kind alone, by the table in `kind.rs`.

mod kind;

use std::time::Duration;

use smol_str::SmolStr;
use thalweg_config::Diagnostics;
use thalweg_log::{Durability, LogError, Offset};

use crate::ids::{IdError, MessageId, Receipt};

pub use kind::QueueErrorKind;

/// The error type of all queue operations. It is cheap to clone, because a failed commit has many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum QueueError {
    #[error("there is no queue {queue}; create it, or set queues.auto_create")]
    QueueNotFound { queue: SmolStr },
    #[error("queue {queue} has no group {group}; create it, or join it as a consumer")]
    GroupNotFound { queue: SmolStr, group: SmolStr },
    #[error("message {id} does not exist or is no longer retained; look for it in dlq.{}", id.queue)]
    MessageNotFound { id: MessageId },
    #[error("queue {queue} exists; change it with PUT or PATCH")]
    QueueExists { queue: SmolStr },
    #[error("group {group} of queue {queue} exists; delete it first to make another of this name")]
    GroupExists { queue: SmolStr, group: SmolStr },
    /// The message names the key, the rule and the cure.
    #[error("{message}")]
    InvalidConfig { message: Box<str> },
    #[error("a message of {size} bytes is too large for queue {queue}; it takes up to {limit} (max_message_size)")]
    MessageTooLarge { queue: SmolStr, size: u64, limit: u64 },
    /// `key` is the setting whose limit was reached.
    #[error("queue {queue} is full: {key} is {limit}; let consumers catch up or raise it")]
    QueueFull {
        queue: SmolStr,
        key: &'static str,
        limit: u64,
    },
    /// The messages to be stored together exceed the setting `key` even in an empty queue.
    #[error(
        "{count} messages of {bytes} bytes together never fit into queue {queue}: {key} is {limit}; send them in smaller parts or raise it"
    )]
    NeverFits {
        queue: SmolStr,
        count: u64,
        bytes: u64,
        key: &'static str,
        limit: u64,
    },
    #[error("consumer {consumer} of group {group} holds {limit} leases of queue {queue} (max_in_flight); settle some")]
    TooManyPending {
        queue: SmolStr,
        group: SmolStr,
        consumer: SmolStr,
        limit: u32,
    },
    #[error(
        "the messages from {from} to {to} of queue {queue}, partition {partition}, are gone; reading continues at {to}"
    )]
    OffsetGap {
        queue: SmolStr,
        partition: u32,
        from: Offset,
        /// The first offset that still exists.
        to: Offset,
    },
    #[error("the lease {receipt} has ended; settle within visibility_timeout or extend it")]
    LeaseLost { receipt: Receipt },
    #[error("message {} is delayed or was never delivered; wait until it can be claimed", receipt.id)]
    NotLeased { receipt: Receipt },
    #[error("message {} is settled already, by another delivery or as dead or expired", receipt.id)]
    Gone { receipt: Receipt },
    #[error(
        "receipt {receipt} is no longer valid: its queue or group was deleted, or its lease was lost in a crash or \
         undone by a seek; claim again"
    )]
    ReceiptOver { receipt: Receipt },
    /// `what` is the queue or the group.
    #[error("{what} is paused; resume it with POST :resume")]
    Paused { what: SmolStr },
    #[error("the outcome of the write to queue {queue} is unknown: repeat the request with the same dedup-id")]
    UnknownOutcome { queue: SmolStr },
    #[error("queue {queue} cannot have durability {}: {cause}", durability.name())]
    DurabilityUnavailable {
        queue: SmolStr,
        durability: Durability,
        cause: Box<str>,
    },
    #[error("the request has no valid credentials: {cause}")]
    NotAuthenticated { cause: Box<str> },
    /// `action` continues "may not".
    #[error("you may not {action}: {reason}")]
    NotAuthorized { action: Box<str>, reason: Box<str> },
    #[error("too many {what} in a short time; try again in {} ms", retry_after.as_millis())]
    RateLimited { what: &'static str, retry_after: Duration },
    #[error("no more than {limit} {what} are allowed; end some")]
    QuotaExceeded { what: &'static str, limit: u64 },
    /// The memory that groups need per partition has used up its budget.
    #[error(
        "queue {queue} cannot get more groups or partitions: each group takes memory from queues.state_memory for each \
         partition, and too little of its {limit} bytes is left; delete groups or raise it"
    )]
    NoRoomForGroups { queue: SmolStr, limit: u64 },
    #[error("{0}")]
    Log(#[from] LogError),
}

pub type Result<T> = std::result::Result<T, QueueError>;

impl QueueError {
    /// The message must name the key and the rule.
    pub fn invalid(message: impl Into<Box<str>>) -> QueueError {
        QueueError::InvalidConfig {
            message: message.into(),
        }
    }

    /// Returns all mistakes found in a request as one error, if there are any.
    pub fn check(diags: &Diagnostics) -> Result<()> {
        if !diags.has_errors() {
            return Ok(());
        }
        Err(QueueError::invalid(diags.to_string().trim_end().replace('\n', "; ")))
    }

    /// What kind of error it is. Everything that interfaces report about it follows from the kind.
    pub fn kind(&self) -> QueueErrorKind {
        match self {
            QueueError::QueueNotFound { .. } => QueueErrorKind::QueueNotFound,
            QueueError::GroupNotFound { .. } => QueueErrorKind::GroupNotFound,
            QueueError::MessageNotFound { .. } => QueueErrorKind::MessageNotFound,
            QueueError::QueueExists { .. } => QueueErrorKind::QueueExists,
            QueueError::GroupExists { .. } => QueueErrorKind::GroupExists,
            QueueError::InvalidConfig { .. } => QueueErrorKind::InvalidConfig,
            QueueError::MessageTooLarge { .. } | QueueError::NeverFits { .. } => QueueErrorKind::MessageTooLarge,
            QueueError::QueueFull { .. } => QueueErrorKind::QueueFull,
            QueueError::TooManyPending { .. } => QueueErrorKind::TooManyPending,
            QueueError::OffsetGap { .. } => QueueErrorKind::OffsetGap,
            QueueError::LeaseLost { .. } => QueueErrorKind::LeaseLost,
            QueueError::NotLeased { .. } => QueueErrorKind::NotLeased,
            QueueError::Gone { .. } | QueueError::ReceiptOver { .. } => QueueErrorKind::Gone,
            QueueError::Paused { .. } => QueueErrorKind::Paused,
            QueueError::UnknownOutcome { .. } => QueueErrorKind::UnknownOutcome,
            QueueError::DurabilityUnavailable { .. } => QueueErrorKind::DurabilityUnavailable,
            QueueError::NotAuthenticated { .. } => QueueErrorKind::NotAuthenticated,
            QueueError::NotAuthorized { .. } => QueueErrorKind::NotAuthorized,
            QueueError::RateLimited { .. } => QueueErrorKind::RateLimited,
            QueueError::QuotaExceeded { .. } | QueueError::NoRoomForGroups { .. } => QueueErrorKind::QuotaExceeded,
            QueueError::Log(error) => kind_of_log(error),
        }
    }

    /// The documented error code. It is the same on every interface and never changes.
    pub fn code(&self) -> &'static str {
        self.kind().facts().code
    }

    pub fn http_status(&self) -> u16 {
        self.kind().facts().status
    }

    /// When a retry makes sense. Set exactly for the statuses 429, 503 and 507.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            QueueError::RateLimited { retry_after, .. } => Some(*retry_after),
            error => error.kind().facts().retry.after(),
        }
    }
}

/// The kind of an error of the log, as a queue error.
fn kind_of_log(error: &LogError) -> QueueErrorKind {
    match error {
        LogError::DiskFull { .. } => QueueErrorKind::DiskFull,
        LogError::Poisoned { .. } => QueueErrorKind::LogPoisoned,
        LogError::Gap { .. } => QueueErrorKind::OffsetGap,
        LogError::OffsetTaken { .. } => QueueErrorKind::Fenced,
        LogError::TooLarge { .. } => QueueErrorKind::MessageTooLarge,
        // The queue was deleted or created while the request was in progress.
        LogError::NoPartition(_) => QueueErrorKind::QueueNotFound,
        LogError::PartitionExists(_) => QueueErrorKind::QueueExists,
        // If the log closes during a write, the data may or may not be stored. A write to several disks is stored in
        // part.
        LogError::Closed | LogError::Partly { .. } => QueueErrorKind::UnknownOutcome,
        LogError::TooManyPartitions { .. } => QueueErrorKind::QuotaExceeded,
        LogError::DurabilityUnavailable { .. } => QueueErrorKind::DurabilityUnavailable,
        // Not damage: a repair would lose data that a newer version has written.
        LogError::NewerFormat { .. } => QueueErrorKind::NewerFormat,
        // A failed write or sync poisons the log. What remains is stored data that is damaged or unreadable.
        LogError::Corrupt { .. }
        | LogError::Io { .. }
        | LogError::Missing { .. }
        | LogError::Foreign { .. }
        | LogError::Misnamed { .. }
        | LogError::NotOurs { .. }
        | LogError::DiskMissing { .. }
        | LogError::NotErased { .. } => QueueErrorKind::Corrupt,
    }
}

impl From<IdError> for QueueError {
    fn from(error: IdError) -> QueueError {
        QueueError::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests;
