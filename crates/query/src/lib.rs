//! SQL over the tables of the lake: from SQL text to Arrow batches, and from these to JSON, CSV, Arrow streams,
//! terminal tables, and HTTP.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod arenas;
pub mod arrow_stream;
mod attribute_text;
mod bounded;
mod catalog;
mod delegating_aggregate;
mod engine;
mod error;
mod exact;
mod expansion;
mod foreign;
mod format;
mod functions;
mod guard;
pub mod http;
mod json;
mod memory_watchdog;
mod metrics;
mod nesting;
pub mod parquet;
mod precedence;
pub mod print;
mod pruning;
mod repeated_names;
mod revisions;
mod sketches;
mod statement;
mod table;
mod templates;
#[cfg(test)]
mod tests;
mod versions;
mod wait_for;

pub use bounded::function_names;
pub use engine::{Engine, Query, QueryOptions, QueryStream};
pub use error::{QueryError, QueryErrorKind};
pub use format::{BytesAs, RowFormat};
pub use metrics::{METRICS, QueryMetrics};
