//! Flows out of and into a real broker, with a second client of Kafka at the other end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod broker;
mod groups;
mod mistakes;
mod proxy;
mod records;
mod registry;
mod troubles;
mod uns;
mod world;
