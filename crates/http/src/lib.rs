//! Code shared by everything that speaks HTTP: how servers read the body of a request and how they refuse it, and which
//! servers clients trust.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod answer;
pub mod body;
pub mod pem;
pub mod tls_client;
