//! Errors of store requests. Codes, statuses and retries are those of the interface, which has them in one table.

use std::sync::Arc;

use thalweg_log::LogError;

use crate::limits::BrokenLimit;
use crate::store::ExpectedVersion;

#[derive(Clone, Debug, thiserror::Error)]
pub enum EventsError {
    #[error("Namespace '{0}' not found")]
    NamespaceNotFound(String),
    #[error("Namespace '{0}' already exists")]
    NamespaceExists(String),
    #[error("Namespace 'default' cannot be deleted")]
    NamespaceKept,
    #[error("Expected version {expected}, stream is at version {actual}")]
    VersionConflict {
        stream: String,
        expected: ExpectedVersion,
        /// -1 for a stream without messages.
        actual: i64,
    },
    #[error("Message id '{id}' already exists")]
    IdConflict { id: String, stream: String, position: u64 },
    #[error("Stream '{0}' is deleted")]
    StreamDeleted(String),
    /// The request is beyond one of the [limits](crate::limits), those of the characters of a name included.
    #[error("{0}")]
    TooLarge(BrokenLimit),
    #[error("{of} is full: its last message has the largest position")]
    NoPositions {
        /// `stream 's'`, or `the namespace`.
        of: String,
    },
    /// A position or an id of a message to import is already taken. Nothing of its batch is stored.
    #[error("{what}")]
    Taken {
        what: String,
        /// Index of the record in the batch.
        record: usize,
    },
    #[error(
        "retention rules and stream deletions have reached their limit of {} MiB: raise the memory of the event store, \
         or delete a namespace that is not needed; streams that were deleted before can be deleted again",
        .bytes_max >> 20
    )]
    RulesFull { bytes_max: usize },
    #[error(
        "namespaces and their tokens have reached their limit of {} MiB: delete a namespace or revoke tokens that are \
         not needed, shorten descriptions and metadata, or raise the memory of the event store",
        .bytes_max >> 20
    )]
    NamespacesFull { bytes_max: usize },
    #[error("Subscription '{0}' not found")]
    SubscriptionNotFound(String),
    #[error("Subscription '{0}' already exists")]
    SubscriptionExists(String),
    /// Nothing is delivered until parked messages are replayed or discarded.
    #[error("Subscription '{name}' has {parked} parked messages: replay or discard some before it goes on")]
    SubscriptionFull { name: String, parked: usize },
    /// Nothing was stored, or the outcome is unknown; the request can be retried.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Storage(Arc<LogError>),
    #[error("{0}")]
    Damaged(String),
    /// This kind of store does not support the operation; the text names an alternative.
    #[error("{0}")]
    Unsupported(String),
}

impl EventsError {
    /// Whether stored data is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            EventsError::Damaged(_) => true,
            EventsError::Storage(error) => meaning_of(error) == LogErrorMeaning::Damage,
            _ => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, EventsError>;

impl From<BrokenLimit> for EventsError {
    fn from(limit: BrokenLimit) -> EventsError {
        EventsError::TooLarge(limit)
    }
}

impl From<LogError> for EventsError {
    fn from(error: LogError) -> EventsError {
        match meaning_of(&error) {
            LogErrorMeaning::Unavailable => EventsError::Unavailable(error.to_string()),
            LogErrorMeaning::Damage | LogErrorMeaning::Failure => EventsError::Storage(Arc::new(error)),
        }
    }
}

/// What an error of the log means for the request that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogErrorMeaning {
    /// It may succeed later.
    Unavailable,
    /// Stored data is damaged.
    Damage,
    Failure,
}

/// One match over all errors, so that a new one has to be classified.
fn meaning_of(error: &LogError) -> LogErrorMeaning {
    match error {
        LogError::DiskFull { .. }
        | LogError::Poisoned { .. }
        | LogError::Closed
        | LogError::OffsetTaken { .. }
        | LogError::TooManyPartitions { .. } => LogErrorMeaning::Unavailable,
        LogError::Corrupt { .. } | LogError::Missing { .. } => LogErrorMeaning::Damage,
        LogError::Io { .. }
        | LogError::Foreign { .. }
        | LogError::Misnamed { .. }
        | LogError::NewerFormat { .. }
        | LogError::NoPartition(_)
        | LogError::PartitionExists(_)
        | LogError::TooLarge { .. }
        | LogError::Gap { .. }
        | LogError::DurabilityUnavailable { .. }
        | LogError::Partly { .. }
        | LogError::NotOurs { .. }
        | LogError::DiskMissing { .. }
        | LogError::NotErased { .. } => LogErrorMeaning::Failure,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::PartitionId;

    use super::*;

    #[test]
    fn an_error_of_the_log_is_damage_or_a_failure_or_passes() {
        let damaged = EventsError::from(LogError::Corrupt {
            file: "x".to_owned(),
            position: 0,
            expected: None,
            found: "x".to_owned(),
        });
        assert!(damaged.is_damage());
        let gone = EventsError::from(LogError::NoPartition(PartitionId::new(0, 2)));
        assert!(matches!(gone, EventsError::Storage(_)) && !gone.is_damage());
        assert!(matches!(LogError::Closed.into(), EventsError::Unavailable(_)));
    }
}
