//! The event store on PostgreSQL, which several servers share.
//!
//! Each server gathers the appends of a namespace and commits them in one transaction, which locks the row of the
//! namespace until it ends. So global positions have no gaps and become visible in order, whichever server wrote them.
//! Every commit notifies all servers; a poll finds within a second what a lost notification would have reported.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

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
