//! What everything that speaks HTTP shares. As a server: how the body of a request is read, how a request is refused,
//! who may send one, and TLS. As a client: which servers are trusted.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod answer;
pub mod auth;
pub mod body;
mod file_watch;
pub mod pem;
mod protection_error;
pub mod tls_client;
pub mod tls_server;

pub use protection_error::ProtectionError;
