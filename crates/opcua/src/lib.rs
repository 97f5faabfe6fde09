//! OPC UA: the `opcua` input and output of flows.
//!
//! The input turns a server's address and a few nodes into batches of typed values; the output writes messages to the
//! nodes of a server. [`register`] adds both components to a registry, and [`InputDirectory`] shows over HTTP which
//! nodes all inputs of the process have found and which of them failed.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

use std::sync::Arc;
use std::time::Duration;

use thalweg_flow::ComponentRegistry;

mod assign;
mod backoff;
mod browse;
mod call_size;
mod channel;
mod concurrency_limit;
mod config;
mod connect;
mod deadband;
mod directory;
mod endpoint_url;
mod failures;
#[cfg(test)]
mod fake_server;
#[doc(hidden)]
pub mod fuzz;
mod gaps;
mod health;
mod heartbeat;
mod input;
mod metadata;
mod metric_docs;
mod metrics;
#[cfg(test)]
mod mutation;
mod namespace_array;
mod node_id;
mod node_table;
mod output;
mod poll;
mod profile;
mod security;
mod server_connection;
mod server_facts;
mod session;
mod subscribe;
mod tag_path;
#[cfg(test)]
mod test_log;
mod text_arena;
mod type_learner;
mod value;

pub use directory::InputDirectory;
pub use metric_docs::METRICS;

/// Adds the `opcua` input and output to the components that a configuration may name. `directory` shows what inputs
/// find.
pub fn register(registry: &mut ComponentRegistry, directory: Arc<InputDirectory>) {
    register_retrying_after(registry, directory, failures::FIRST_RETRY);
}

/// As [`register`], with another delay before the first retry of a failed node, which then doubles.
pub fn register_retrying_after(
    registry: &mut ComponentRegistry,
    directory: Arc<InputDirectory>,
    first_retry: Duration,
) {
    input::register(registry, directory, first_retry);
    output::register(registry);
}
