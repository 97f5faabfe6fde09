//! Flows of the components that depend only on this crate: for each configuration, the tests check what arrives, what
//! is counted and what is shown.
#![allow(clippy::unwrap_used)]

mod accounts;
mod faults;
mod harness;
mod inputs;
mod mistakes;
mod outputs;
mod processors;
mod stopping;
