//! The Delta log of one table: its live files, its columns, and its commits.
//!
//! Each commit is one small JSON file, so the cost of a flush does not depend on the number of files in the table.
//! Checkpoints sum up the commits at intervals. All writes go through the store, which makes them durable and never
//! replaces a commit.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod actions;
mod checkpoint;
mod codes;
pub mod footer;
mod history;
mod log;
pub mod schema;
mod snapshot;
pub mod stats;
pub mod store;

pub use codes::DeltaCode;
pub use history::{LoadableVersions, info_of};
pub use log::{CommitOutcome, DeltaError, DeltaLog, UncommittedFiles, creation, new_metadata};
pub use snapshot::{FLUSHED, LEVEL, arrival_of, times_of};
pub use snapshot::{FileEntry, Snapshot, SnapshotDetail, UnsupportedTable};

#[cfg(test)]
mod tests;
