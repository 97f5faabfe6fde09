//! What every face that speaks HTTP shares. For now that is TLS as a client of HTTP: whom this program trusts when it asks others.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod tls_client;
