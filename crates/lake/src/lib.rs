//! The lake: tables of Parquet files with a Delta log, written so that an acknowledged row is durable and every engine
//! that reads Delta can read them.
//!
//! [`TableWriter`](ingest::TableWriter) takes what the log has for a table and commits it; [`DeltaLog`](delta::DeltaLog) tells
//! readers which files are live; [`SyncedStore`](store::SyncedStore) is what makes a local disk as dependable as an object store.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod bulk;
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

pub use error::{AppendError, OpenError};
pub use metrics::LakeMetrics;
pub use signal::Signal;

/// Where the lake lies in a data folder.
pub fn folder(data_dir: &std::path::Path) -> std::path::PathBuf {
    data_dir.join("lake")
}
