//! The event store: streams of messages with versions, categories of streams, and one global order for each namespace.
//! It is built on the durable log and has no other data that could be lost. The rules that every store applies, also
//! those on another base, are in [`limits`] and [`admission`].

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod admission;
pub mod backup;
pub mod contract_suite;
mod embedded;
mod error;
pub mod event;
#[doc(hidden)]
pub mod fuzz;
mod id;
pub mod json;
pub mod limits;
pub mod names;
pub mod snapshot;
mod store;
pub mod subscription;
mod subscriptions;
pub mod test_double;
pub mod time;
mod token;

pub use embedded::{DEFAULT, EmbeddedStore, EventsOptions, IndexSizes, LogPartition, RestoreReport, event_in, restore};
pub use error::{EventsError, Result};
pub use event::StoredEvent;
pub use id::{MessageId, Uuid};
pub use limits::{APPEND_BYTES_MAX, APPEND_MESSAGES_MAX, APPEND_STREAMS_MAX, BrokenLimit, POSITION_MAX};
pub use store::*;
pub use subscriptions::{
    DeliveredMessage, FetchRequest, FetchedMessages, ParkedMessage, StartPosition, SubscriptionStats, Subscriptions,
};
pub use token::{Token, TokenDigest, TokenError, is_token_expired, new_token, token_text};
