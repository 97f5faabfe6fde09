//! The event store on PostgreSQL, which several servers share.
//!
//! Each server gathers what its clients append to a namespace and commits it in one transaction, which locks the row of the
//! namespace until it ends. So global positions have no gap and become visible in their order, whichever server wrote them.
//! Every commit notifies all servers; what a lost notification would have told, a poll finds within a second.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod append;
mod clock;
mod columns;
mod connection_pool;
mod database;
mod failure;
mod import;
mod listen;
mod namespace;
mod plan;
mod read;
mod retention;
mod schema;
mod store;
mod sweep;
mod tls;
mod tokens;

pub use store::{PostgresOptions, PostgresStore};
