//! Connects flows to the lake: the output `lake`, the sink of receivers, and the tables of a process, which the queues
//! `lake.*` of its log feed.
//!
//! Messages of flows and requests of receivers become entries of those queues. An entry is acknowledged when the log
//! has stored it, and is handed over to [`LakeTables`] with its offset, so that it need not be read again to become
//! rows.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod committed_offsets;
mod context;
mod event_store;
mod options;
mod output;
mod pending;
mod signal_batch;
mod sink;
mod tables;

pub use context::{LakeContext, ends_of};
pub use options::LakeOptions;
pub use output::register;
pub use pending::TableOpenError;
pub use signal_batch::SignalBatchLimits;
pub use sink::QueueSink;
pub use tables::LakeTables;
