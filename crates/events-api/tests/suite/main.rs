//! Tests of the API over a real listener with an in-memory store. One test binary for all.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod any_bytes;
mod backups;
mod calls;
mod client;
mod compressed;
mod connections;
mod double;
mod face;
mod imports;
mod stops;
mod subscriptions;
