//! Errors of store requests, and what each means to a caller: its kind, code, HTTP status and retry hint.

use std::sync::Arc;
use std::time::Duration;

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

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong, whatever is stored.
    Invalid,
    NotFound,
    /// What is stored does not allow it.
    Conflict,
    /// The room that is set aside for it is used up.
    Full,
    /// It may succeed later.
    Unavailable,
    Unsupported,
    /// The storage failed.
    Failure,
    /// Stored data is damaged.
    Damage,
}

/// What an error means to a caller, the same on every interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorClass {
    pub kind: ErrorKind,
    /// The code in responses. It never changes.
    pub code: &'static str,
    pub http_status: u16,
    /// When a retry makes sense; `None` if the same request would fail again.
    pub retry_after: Option<Duration>,
}

const RETRY_AFTER: Duration = Duration::from_secs(1);

impl EventsError {
    /// One match over all errors, so that a new one has to be classified.
    pub fn class(&self) -> ErrorClass {
        let of = |kind, code, http_status| ErrorClass {
            kind,
            code,
            http_status,
            retry_after: None,
        };
        match self {
            EventsError::NamespaceKept | EventsError::TooLarge(_) | EventsError::NoPositions { .. } => {
                of(ErrorKind::Invalid, "INVALID_REQUEST", 400)
            }
            EventsError::NamespaceNotFound(_) => of(ErrorKind::NotFound, "NAMESPACE_NOT_FOUND", 404),
            EventsError::SubscriptionNotFound(_) => of(ErrorKind::NotFound, "SUBSCRIPTION_NOT_FOUND", 404),
            EventsError::NamespaceExists(_) => of(ErrorKind::Conflict, "NAMESPACE_EXISTS", 409),
            EventsError::VersionConflict { .. } => of(ErrorKind::Conflict, "STREAM_VERSION_CONFLICT", 409),
            EventsError::IdConflict { .. } => of(ErrorKind::Conflict, "MESSAGE_ID_CONFLICT", 409),
            EventsError::StreamDeleted(_) => of(ErrorKind::Conflict, "STREAM_DELETED", 409),
            EventsError::Taken { .. } => of(ErrorKind::Conflict, "POSITION_EXISTS", 409),
            EventsError::SubscriptionExists(_) => of(ErrorKind::Conflict, "SUBSCRIPTION_EXISTS", 409),
            EventsError::SubscriptionFull { .. } => of(ErrorKind::Full, "SUBSCRIPTION_FULL", 409),
            EventsError::RulesFull { .. } => of(ErrorKind::Full, "RULES_FULL", 507),
            EventsError::NamespacesFull { .. } => of(ErrorKind::Full, "NAMESPACES_FULL", 507),
            EventsError::Unavailable(_) => ErrorClass {
                retry_after: Some(RETRY_AFTER),
                ..of(ErrorKind::Unavailable, "UNAVAILABLE", 503)
            },
            EventsError::Unsupported(_) => of(ErrorKind::Unsupported, "UNSUPPORTED", 501),
            EventsError::Damaged(_) => of(ErrorKind::Damage, "BACKEND_ERROR", 500),
            EventsError::Storage(error) => match kind_of(error) {
                ErrorKind::Damage => of(ErrorKind::Damage, "BACKEND_ERROR", 500),
                _ => of(ErrorKind::Failure, "BACKEND_ERROR", 500),
            },
        }
    }

    /// Whether stored data is damaged.
    pub fn is_damage(&self) -> bool {
        self.class().kind == ErrorKind::Damage
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
        match kind_of(&error) {
            ErrorKind::Unavailable => EventsError::Unavailable(error.to_string()),
            _ => EventsError::Storage(Arc::new(error)),
        }
    }
}

/// What an error of the log means for the request that met it.
fn kind_of(error: &LogError) -> ErrorKind {
    match error {
        LogError::DiskFull { .. }
        | LogError::Poisoned { .. }
        | LogError::Closed
        | LogError::OffsetTaken { .. }
        | LogError::TooManyPartitions { .. } => ErrorKind::Unavailable,
        LogError::Corrupt { .. } | LogError::Missing { .. } => ErrorKind::Damage,
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
        | LogError::NotErased { .. } => ErrorKind::Failure,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::PartitionId;

    use super::*;

    fn told(error: &EventsError) -> String {
        let class = error.class();
        assert_eq!(class.retry_after.is_some(), class.http_status == 503, "{error}");
        assert_eq!(error.is_damage(), class.kind == ErrorKind::Damage, "{error}");
        format!("{:?} {} {}", class.kind, class.code, class.http_status)
    }

    #[test]
    fn every_error_has_one_kind_code_and_status() {
        let x = || "x".to_owned();
        let conflict = EventsError::VersionConflict {
            stream: x(),
            expected: ExpectedVersion::Exists,
            actual: -1,
        };
        let same_id = EventsError::IdConflict {
            id: x(),
            stream: x(),
            position: 1,
        };
        let taken = EventsError::Taken { what: x(), record: 0 };
        let parked = EventsError::SubscriptionFull { name: x(), parked: 1 };
        let damaged = LogError::Corrupt {
            file: x(),
            position: 0,
            expected: None,
            found: x(),
        };
        let gone = LogError::NoPartition(PartitionId::new(0, 2));
        for (error, expected) in [
            (EventsError::NamespaceKept, "Invalid INVALID_REQUEST 400"),
            (BrokenLimit::AppendBytes.into(), "Invalid INVALID_REQUEST 400"),
            (EventsError::NoPositions { of: x() }, "Invalid INVALID_REQUEST 400"),
            (EventsError::NamespaceNotFound(x()), "NotFound NAMESPACE_NOT_FOUND 404"),
            (
                EventsError::SubscriptionNotFound(x()),
                "NotFound SUBSCRIPTION_NOT_FOUND 404",
            ),
            (EventsError::NamespaceExists(x()), "Conflict NAMESPACE_EXISTS 409"),
            (conflict, "Conflict STREAM_VERSION_CONFLICT 409"),
            (same_id, "Conflict MESSAGE_ID_CONFLICT 409"),
            (EventsError::StreamDeleted(x()), "Conflict STREAM_DELETED 409"),
            (taken, "Conflict POSITION_EXISTS 409"),
            (EventsError::SubscriptionExists(x()), "Conflict SUBSCRIPTION_EXISTS 409"),
            (parked, "Full SUBSCRIPTION_FULL 409"),
            (EventsError::RulesFull { bytes_max: 1 }, "Full RULES_FULL 507"),
            (EventsError::NamespacesFull { bytes_max: 1 }, "Full NAMESPACES_FULL 507"),
            (LogError::Closed.into(), "Unavailable UNAVAILABLE 503"),
            (EventsError::Unsupported(x()), "Unsupported UNSUPPORTED 501"),
            (EventsError::Damaged(x()), "Damage BACKEND_ERROR 500"),
            (damaged.into(), "Damage BACKEND_ERROR 500"),
            (gone.into(), "Failure BACKEND_ERROR 500"),
        ] {
            assert_eq!(told(&error), expected, "{error}");
        }
    }
}
