//! Flows into the event store and out of it, with an in-memory store.
#![allow(clippy::unwrap_used)]

mod input;
mod mistakes;
mod output;
mod support;
