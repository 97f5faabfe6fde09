//! `uns`: the topic of the unified namespace. Its keys are topics of the namespace, its one partition keeps their order, and of
//! each key the newest record stays.

pub mod input;
pub mod output;

mod bypass;
mod contract;
mod registry;
mod schema;
mod shared_metadata;
mod topic_setup;

/// The topic when none is given.
const TOPIC: &str = "umh.messages";
