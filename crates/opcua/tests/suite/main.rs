//! Tests the `opcua` components in real flows against a running simulator.
#![allow(clippy::unwrap_used)]

mod chaos;
mod deadbands;
mod faults;
mod harness;
mod interrupted;
mod overload;
mod proxy;
mod reconnect;
mod recovery;
mod roots;
mod security;
mod short_answers;
mod tags;
mod values;
mod writes;
