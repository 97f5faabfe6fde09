//! Flows of the components that need nothing but this crate: a configuration goes in, and what arrives, what is counted
//! and what is shown comes out.
#![allow(clippy::unwrap_used)]

mod accounts;
mod faults;
mod harness;
mod inputs;
mod mistakes;
mod outputs;
mod processors;
mod stopping;
