//! The `opcua` input in a real flow against a running simulator: what users get, and what servers do to them.
#![allow(clippy::unwrap_used)]

mod deadbands;
mod faults;
mod harness;
mod reconnect;
mod security;
mod tags;
mod values;
