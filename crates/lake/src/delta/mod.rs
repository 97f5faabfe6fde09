//! The Delta log of one table: which files are live, what the columns are, and how a commit is added.
//!
//! Commits are written and followed here, one small JSON file each, so that a flush costs the same however many files a
//! table has; every so many of them, a checkpoint sums them up. All writes go through the store, which makes them durable
//! and never replaces a commit.

pub mod actions;
mod checkpoint;
mod history;
mod log;
pub mod schema;
mod snapshot;
pub mod stats;

pub use history::{LoadableVersions, info_of};
pub use log::{CommitOutcome, DeltaError, DeltaLog, creation, new_metadata};
pub(crate) use snapshot::{FLUSHED, LEVEL, arrival_of, times_of};
pub use snapshot::{FileEntry, Snapshot, SnapshotDetail, UnsupportedTable};

#[cfg(test)]
mod tests;
