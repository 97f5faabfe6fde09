//! Code shared by everything that speaks HTTP. For now this is TLS for HTTP clients: which servers Thalweg trusts.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod tls_client;
