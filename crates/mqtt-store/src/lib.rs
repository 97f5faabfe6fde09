//! The state of an MQTT broker as pure machines, without clock and I/O: which filters match a topic, who gets a message, what waits
//! for whom, which packet identifiers are in use, and how all of it is written.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod bytes_codec;
pub mod deadlines;
pub mod filters;
pub mod groups;
pub mod incoming;
pub mod interest;
pub mod message;
pub mod outgoing;
pub mod retained;
pub mod routes;
pub mod session;

pub use filters::{FilterId, FilterIndex};
pub use interest::{InterestList, Offset};
pub use message::{Message, MessageParts};
pub use outgoing::{AckOutcome, InflightMessage, OutgoingMessages};
pub use routes::{RoutedDelivery, Router, SessionId, Subscription};
pub use session::{SessionChange, StoredSession, StoredSubscription, StoredWill};
