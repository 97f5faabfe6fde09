//! The listener over real sockets, with a made-up source of status behind it.
#![allow(clippy::unwrap_used)]

mod access;
#[allow(dead_code, reason = "unit tests use what is not used here")]
#[path = "../../src/debug/decoded.rs"]
mod decoded;
mod health;
mod limits;
mod page;
mod profiles;
mod stopping;
mod streams;
mod support;
mod tls;
