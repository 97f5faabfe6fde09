//! `uns`: the topic of the unified namespace. Its keys are topics of the namespace, its single partition keeps their
//! order, and compaction keeps the newest record of each key.

pub mod input;
pub mod output;

mod bypass;
mod contract;
mod registry;
mod schema;
mod shared_metadata;
mod topic_setup;

pub use bypass::OUTPUT_UNS_METRICS;

/// The default topic.
const TOPIC: &str = "umh.messages";
