//! What can go wrong with a request to the store. Whoever answers clients gives each its code and status.

use std::sync::Arc;

use thalweg_log::LogError;

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
    #[error("append exceeds {0}")]
    TooLarge(&'static str),
    #[error("{of} is full: its last message has the last position that there is")]
    NoPositions {
        /// `stream 's'`, or `the namespace`.
        of: String,
    },
    /// A place or an id that a message to be imported has is another's. Nothing of its batch is stored.
    #[error("{what}")]
    Taken {
        what: String,
        /// Which of the batch.
        record: usize,
    },
    #[error(
        "rules of retention and deletions of streams take the {} MiB that there are for them: raise the memory of the event store, or delete a \
         namespace that is not needed; streams that were deleted before can be deleted again",
        .bytes_max >> 20
    )]
    RulesFull { bytes_max: usize },
    #[error(
        "namespaces and their tokens take the {} MiB that there are for them: delete a namespace or revoke tokens that are not needed, make \
         descriptions and metadata shorter, or raise the memory of the event store",
        .bytes_max >> 20
    )]
    NamespacesFull { bytes_max: usize },
    #[error("Subscription '{0}' not found")]
    SubscriptionNotFound(String),
    #[error("Subscription '{0}' already exists")]
    SubscriptionExists(String),
    /// Nothing is handed out until parked messages are replayed or discarded.
    #[error("Subscription '{name}' has {parked} parked messages: replay or discard some before it goes on")]
    SubscriptionFull { name: String, parked: usize },
    /// Nothing was stored, or nobody knows; the same again may be done.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Storage(Arc<LogError>),
    #[error("{0}")]
    Damaged(String),
    /// This kind of store has no such thing; says what to use in its place.
    #[error("{0}")]
    Unsupported(String),
}

impl EventsError {
    /// Whether something that is stored is not what it was.
    pub fn is_damage(&self) -> bool {
        match self {
            EventsError::Damaged(_) => true,
            EventsError::Storage(error) => matches!(**error, LogError::Corrupt { .. } | LogError::Missing { .. }),
            _ => false,
        }
    }
}

pub type Result<T> = std::result::Result<T, EventsError>;

impl From<LogError> for EventsError {
    fn from(error: LogError) -> EventsError {
        match error {
            LogError::DiskFull { .. }
            | LogError::Poisoned { .. }
            | LogError::Closed
            | LogError::OffsetTaken { .. }
            | LogError::Fenced { .. }
            | LogError::TooManyPartitions { .. } => EventsError::Unavailable(error.to_string()),
            _ => EventsError::Storage(Arc::new(error)),
        }
    }
}
