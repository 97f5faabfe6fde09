//! A real client of the OPC UA library against a running simulator: what a collector sees on the wire.
#![allow(clippy::unwrap_used)]

mod client;
mod data;
mod faults;
mod security;
mod standard;
mod tree;
mod types;
