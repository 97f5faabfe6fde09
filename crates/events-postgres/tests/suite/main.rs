//! Tests of the store with a real PostgreSQL, which each test starts itself.

#![allow(clippy::unwrap_used)]

mod clock;
mod contract;
mod crashes;
mod server;
mod servers;
mod text;
mod tls;
