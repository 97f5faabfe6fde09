//! Flows into and out of a real broker, with a second Kafka client at the other end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod apache;
mod broker;
mod client;
mod groups;
mod ledger;
mod log;
mod membership;
mod mistakes;
mod proxy;
mod raw;
mod records;
mod recreated;
mod registry;
mod selection;
mod troubles;
mod uns;
mod world;
