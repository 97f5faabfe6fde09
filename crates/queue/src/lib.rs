//! Queues on the durable log: partitions with keys, groups that each see every message, leases, retries and dead letters.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod admission;
mod answer;
pub mod assignment;
mod budget;
mod catalog;
mod checkpoints;
mod claim;
mod compaction;
mod dead;
pub mod dedup;
mod depth;
mod died;
mod epoch;
mod error;
mod expiry;
mod group;
pub mod hash;
mod ids;
mod keeper;
mod latency;
mod leftovers;
mod letters;
#[doc(hidden)]
pub mod machine;
mod maintenance;
pub mod members;
pub mod message;
pub mod metrics;
pub mod names;
mod overflow;
mod part;
mod placement;
mod produce;
mod queue;
mod queues;
mod ranges;
mod recover;
mod retention;
mod room;
mod rouse;
pub mod settings;
mod settle;
mod stats;
mod store;
mod streams;
pub mod times;
mod waiting;

pub use admin::{Browsed, SeekTo};
pub use claim::{Asking, ClaimWant, Delivery};
pub use died::DeadLetterListener;
pub use error::{QueueError, Result};
pub use group::{Group, GroupCounters};
pub use ids::{IdError, LeaseTag, MessageId, Receipt};
pub use letters::{DeadFilter, DeadPage, DeadSelect, ResendTo, Resent};
pub use message::{Message, NewMessage, PROPERTIES_BYTES_MAX};
pub use placement::together;
pub use produce::{Produced, Producing};
pub use queue::{Counters, Queue};
pub use queues::{Pause, Queues, QueuesOptions};
pub use settle::{REASON_BYTES_MAX, Settled, Verdict};
pub use stats::{GroupStats, QueueStats};
pub use thalweg_log::clock::{Clock, SystemClock};
