//! Flows through a buffer that is a durable queue, and the names of queues in a configuration.
#![allow(clippy::unwrap_used)]

mod buffer;
mod names;
mod support;
