//! Queues on the durable log: keyed partitions, groups that each see every message, leases, retries and dead letters.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod admin;
mod admission;
mod alarm;
pub mod assignment;
mod batch_entry;
mod budget;
mod catalog;
mod checkpoints;
mod claim;
mod compaction;
mod dead_letter_listener;
mod dead_letter_move;
mod dead_letters;
pub mod dedup;
mod delayed_messages;
mod depth;
mod epoch;
mod error;
mod expiry;
mod group;
mod group_list;
mod group_partition;
pub mod hash;
mod identity;
mod ids;
mod latency;
#[doc(hidden)]
pub mod machine;
mod maintenance;
pub mod members;
pub mod message;
pub mod message_times;
pub mod metrics;
pub mod names;
mod offset_ranges;
mod overflow;
mod pause;
mod placement;
mod produce;
mod queue;
mod queues;
mod reconcile;
mod recover;
mod retention;
pub mod settings;
mod settle;
mod stats;
mod store;
mod streams;
mod timers;
mod waiters;

pub use admin::{BrowsePage, SeekTo};
pub use claim::{ClaimRequest, ConsumerHandle, Delivery};
pub use dead_letter_listener::DeadLetterListener;
pub use dead_letters::{DeadLetterFilter, DeadLetterPage, DeadLetterSelection, ResendResult, ResendTo};
pub use error::{QueueError, QueueErrorKind, Result};
pub use group::{Group, GroupCounters};
pub use ids::{IdError, LeaseTag, MessageId, Receipt};
pub use machine::RemovalReason;
pub use message::{Message, NewMessage, PROPERTIES_BYTES_MAX};
pub use metrics::QueueCounters;
pub use placement::together;
pub use produce::{ProduceFuture, ProduceResult};
pub use queue::Queue;
pub use queues::{Pause, Queues, QueuesOptions};
pub use settle::{REASON_BYTES_MAX, SettleAction, SettleResult};
pub use stats::{GroupStats, QueueStats};
pub use thalweg_log::clock::{Clock, SystemClock};
