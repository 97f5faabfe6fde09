//! Queues on the durable log: partitions with keys, groups that each see every message, leases, retries and dead letters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod assignment;
pub mod dedup;
mod error;
pub mod hash;
mod ids;
#[doc(hidden)]
pub mod machine;
pub mod members;
pub mod names;
pub mod settings;
pub mod times;

pub use error::{QueueError, Result};
pub use ids::{IdError, MessageId, Receipt};
