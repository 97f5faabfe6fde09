//! The listener over real sockets, with a made-up source of status behind it.
#![allow(clippy::unwrap_used)]

mod access;
mod health;
mod limits;
mod page;
mod profiles;
mod stopping;
mod streams;
mod support;
mod tls;
