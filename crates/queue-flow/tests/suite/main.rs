//! Flows through a durable buffer, and the names of queues in a configuration.
#![allow(clippy::unwrap_used)]

mod buffer;
mod names;
mod support;
