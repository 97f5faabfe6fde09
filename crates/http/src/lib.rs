//! Code shared by everything that speaks HTTP. For now this is TLS for HTTP clients: which servers Thalweg trusts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod tls_client;
