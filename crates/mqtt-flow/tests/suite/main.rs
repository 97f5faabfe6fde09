//! Flows into and out of a real broker, with its own clients at the other end.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod broker;
mod input;
mod output;
mod proxy;
mod tls;
mod websocket;
mod world;
