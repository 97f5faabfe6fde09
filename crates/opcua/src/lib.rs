//! OPC UA: the `opcua` input of flows.
//!
//! From a server's address and a few nodes to batches of typed values: [`register`] adds the component to a registry,
//! [`Directory`] shows over HTTP which nodes all inputs of the process have found and which of them failed.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod assign;
mod backoff;
mod browse;
mod channel;
mod chunk;
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
mod link;
mod metadata;
mod metrics;
mod node_id;
mod node_table;
mod poll;
mod profile;
mod security;
mod server_facts;
mod session;
mod subscribe;
mod tag_path;
#[cfg(test)]
mod test_log;
mod text_arena;
mod type_learner;
mod value;

pub use directory::Directory;
pub use input::{register, register_retrying_after};
