//! The lake: tables of Parquet files with a Delta log. An acknowledged row is durable, and every engine that supports
//! Delta can read it.
//!
//! [`TableWriter`](ingest::TableWriter) consumes the log entries of a table and commits them; [`inspect`] reads tables
//! for their operators, and [`maintenance`] merges and deletes files.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod bulk;
mod codes;
mod commit;
pub mod entry;
mod error;
pub mod ingest;
pub mod inspect;
pub mod maintenance;
pub mod memtable_view;
pub mod metrics;
pub mod named_rows;
mod opening;
#[cfg(test)]
mod remote_tests;
pub mod rollup;
mod signal;
pub mod tags;

pub use codes::{ImportCode, LakeCode};
pub use error::{AppendError, OpenError};
pub use metrics::LakeMetrics;
pub use signal::Signal;

/// The lake folder in a data folder.
pub fn folder(data_dir: &std::path::Path) -> std::path::PathBuf {
    data_dir.join("lake")
}
