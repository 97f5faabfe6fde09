//! Flows into the event store and out of it, with the store in memory.
#![allow(clippy::unwrap_used)]

mod input;
mod mistakes;
mod output;
mod support;
