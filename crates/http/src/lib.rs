//! Shared parts of all HTTP interfaces. For servers: request bodies, compression, refusals, logins, and TLS. For clients:
//! which servers are trusted.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod answer;
pub mod auth;
pub mod body;
pub mod compression;
mod file_watch;
pub mod pem;
mod protection_error;
pub mod tls_client;
pub mod tls_server;

pub use protection_error::ProtectionError;
