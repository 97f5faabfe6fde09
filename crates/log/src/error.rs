//! Errors of the log, with the place and the cure.

use std::io;
use std::sync::Arc;

use crate::file_pool::is_full;
use crate::format::newer::NewerVersion;
use crate::ids::{Offset, PartitionId, Sequence};

/// The error type of the log. Cheap to clone, because a failed commit has many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    #[error("{what} {file}: {error}")]
    Io {
        what: &'static str,
        file: String,
        #[source]
        error: Arc<io::Error>,
    },
    /// Synced data has changed. Damaged data is never served, and never skipped without consent.
    #[error(
        "{file} is damaged at byte {position}: {}{found}; inspect it with `thalweg log check`, or give up the damaged records with `thalweg log repair --accept-loss`",
        expectation(*.expected)
    )]
    Corrupt {
        file: String,
        position: u64,
        /// The block that should be there, if known.
        expected: Option<Sequence>,
        found: String,
    },
    /// A file with records that are still needed is missing.
    #[error(
        "the records {from} to {} of partition {partition} are in no file of {folder}: {stood_in}, or a segment made from it, is missing; restore the file, or give up the records with `thalweg log repair --accept-loss`",
        .to.saturating_sub(1)
    )]
    Missing {
        folder: String,
        partition: PartitionId,
        from: Offset,
        /// One past the last missing record.
        to: Offset,
        /// The name of the missing file.
        stood_in: String,
    },
    /// One folder has files of two logs, and it is not known which belong there.
    #[error(
        "{file} belongs to log {found:016x}, and {beside} to log {own:016x}: a folder has the files of one log; move the files that do not belong there out of it"
    )]
    Foreign {
        file: String,
        found: u64,
        beside: String,
        own: u64,
    },
    /// File names determine the order of files and which of two segments takes precedence.
    #[error("{file} was written as {written_as}: files were renamed; restore the name of each")]
    Misnamed { file: String, written_as: String },
    /// Not damage: the data is neither cut off nor repaired.
    #[error("{file} at byte {position}: {found}")]
    NewerFormat {
        file: String,
        position: u64,
        found: NewerVersion,
    },
    /// A write or a sync failed. Only a restart can determine what is on the disk.
    #[error("the log is poisoned and accepts nothing until a restart has checked it: {cause}")]
    Poisoned { cause: Arc<str> },
    #[error(
        "the disk of {folder} is full: {free_bytes} bytes are free, new messages need {needed_bytes}; free some space"
    )]
    DiskFull {
        folder: String,
        free_bytes: u64,
        needed_bytes: u64,
    },
    #[error("partition {0} does not exist")]
    NoPartition(PartitionId),
    #[error("partition {0} exists")]
    PartitionExists(PartitionId),
    #[error("{what} of {size} exceeds {limit}")]
    TooLarge {
        what: &'static str,
        size: usize,
        limit: usize,
    },
    #[error("partition {partition} has no records from {from} to {to}: they were removed or are lost")]
    Gap {
        partition: PartitionId,
        from: Offset,
        to: Offset,
    },
    /// Nothing of the unit was stored.
    #[error("nothing was stored at offset {expected} of partition {partition}: its next offset is {next}")]
    OffsetTaken {
        partition: PartitionId,
        expected: Offset,
        next: Offset,
    },
    #[error("this log does not offer durability `{wanted}`; it offers {offered}")]
    DurabilityUnavailable {
        wanted: &'static str,
        offered: &'static str,
    },
    #[error("the log has {limit} partitions, which is the maximum")]
    TooManyPartitions { limit: usize },
    /// Disks do not commit atomically together.
    #[error("a write to several disks was stored on some of them only: {cause}")]
    Partly { cause: Arc<LogError> },
    #[error(
        "{folder} cannot be a folder of this log: {why}; log.dirs must name the folders of one log and nothing else"
    )]
    NotOurs { folder: String, why: String },
    #[error(
        "disk {disk} of the {of} disks of this log is not in any of {folders}; mount it, or name its folder in log.dirs"
    )]
    DiskMissing { disk: usize, of: usize, folders: String },
    #[error("{file} still contains data to erase: {why}")]
    NotErased { file: String, why: &'static str },
    #[error("the log is closed")]
    Closed,
}

fn expectation(expected: Option<Sequence>) -> String {
    expected.map_or_else(String::new, |expected| format!("block {expected} was expected, "))
}

pub type Result<T> = std::result::Result<T, LogError>;

impl LogError {
    pub(crate) fn io(what: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> LogError {
        move |error| LogError::Io {
            what,
            file: file.into(),
            error: Arc::new(error),
        }
    }

    /// Like `io`, but the outcome of the operation is unknown, so the log must be poisoned. A full disk is an
    /// exception, because nothing was written.
    pub(crate) fn fatal(what: &'static str, file: impl Into<String>) -> impl FnOnce(io::Error) -> LogError {
        let file = file.into();
        move |error| match is_full(&error) {
            true => LogError::io(what, file)(error),
            false => LogError::Poisoned {
                cause: LogError::io(what, file)(error).to_string().into(),
            },
        }
    }
}
