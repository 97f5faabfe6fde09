//! Ingests OTLP requests into tables through the lake crate, which does not depend on OTLP.
#![allow(clippy::unwrap_used)]

mod bulk;
mod ingest;
#[allow(dead_code, reason = "other tests use what is not used here")]
#[path = "../../src/proto.rs"]
mod proto;
