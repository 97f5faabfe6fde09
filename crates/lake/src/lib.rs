//! The lake: tables of Parquet files with a Delta log, written so that an acknowledged row is durable and every engine
//! that reads Delta can read them.
//!
//! [`TableWriter`](ingest::TableWriter) takes what the log has for a table and commits it; [`DeltaLog`](delta::DeltaLog) tells
//! readers which files are live; [`SyncedStore`](store::SyncedStore) is what makes a local disk as dependable as an object store.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod attributes;
pub mod bulk;
mod commit;
pub mod compaction;
pub mod delta;
pub mod entry;
mod error;
mod file;
pub mod ids;
pub mod inflate;
pub mod ingest;
pub mod inspect;
pub mod maintenance;
pub mod memtable_view;
pub mod metrics;
mod named_rows;
mod opening;
pub mod otlp;
pub mod rollup;
pub mod rows;
pub mod signal_batch;
pub mod sketch;
pub mod store;
pub mod tables;
pub mod tags;

pub use error::{AppendError, OpenError};
pub use file::{is_own, is_sorted};
pub use metrics::LakeMetrics;

/// Where the lake lies in a data folder.
pub fn folder(data_dir: &std::path::Path) -> std::path::PathBuf {
    data_dir.join("lake")
}
