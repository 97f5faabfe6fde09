//! The lake: tables of Parquet files with a Delta log, written so that an acknowledged row is durable and every engine
//! that reads Delta can read them.
//!
//! [`TagsWriter`] takes messages and commits them to the table `tags`; [`DeltaLog`](delta::DeltaLog) tells readers which
//! files are live; [`SyncedStore`](store::SyncedStore) is what makes a local disk as dependable as an object store.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod attributes;
pub mod delta;
mod error;
pub mod metrics;
pub mod store;
pub mod tags;
mod writer;

pub use error::{AppendError, OpenError, Refused};
pub use metrics::LakeMetrics;
pub use writer::{TagsWriter, WriterOptions, WriterStatus};

/// Where the lake lies in a data folder.
pub fn folder(data_dir: &std::path::Path) -> std::path::PathBuf {
    data_dir.join("lake")
}
