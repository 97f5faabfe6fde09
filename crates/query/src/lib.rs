//! SQL over the tables of the lake: from SQL text to Arrow batches, and from these to JSON, CSV, Arrow streams, tables on
//! a terminal, and HTTP.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod arenas;
mod bounded;
mod catalog;
mod engine;
mod error;
mod expansion;
mod foreign;
mod format;
mod functions;
mod guard;
pub mod http;
mod metrics;
mod nesting;
mod overflow;
pub mod parquet;
pub mod print;
mod pruning;
pub mod received;
mod revisions;
mod sketches;
mod statement;
mod table;
mod templates;
#[cfg(test)]
mod tests;
mod versions;
mod waiting;

pub use bounded::function_names;
pub use engine::{Answer, Engine, Query, QueryOptions};
pub use error::QueryError;
pub use format::{BytesAs, Format};
pub use metrics::QueryMetrics;
