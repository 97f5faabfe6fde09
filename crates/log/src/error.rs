//! What can go wrong, with the place and the cure.

use std::io;
use std::sync::Arc;

use crate::file_pool::is_full;
use crate::format::newer::NewerVersion;
use crate::ids::{Offset, PartitionId, Sequence};

/// One error for all of the log. Cheap to clone: a failed commit has many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    #[error("{what} {file}: {error}")]
    Io {
        what: &'static str,
        file: String,
        #[source]
        error: Arc<io::Error>,
    },
    /// Where data was synced is something else now. Never served, never skipped unasked.
    #[error(
        "{file} is damaged at byte {position}: {}{found}; look with `thalweg log check`, give the damaged records up with `thalweg log repair --accept-loss`",
        expectation(*.expected)
    )]
    Corrupt {
        file: String,
        position: u64,
        /// The block that should stand there, if that is known.
        expected: Option<Sequence>,
        found: String,
    },
    /// A file with records that are still wanted is not there.
    #[error(
        "the records {from} to {} of partition {partition} are in no file of {folder}: {stood_in}, or a segment that was made of it, is not there; bring it back, or give them up with `thalweg log repair --accept-loss`",
        .to.saturating_sub(1)
    )]
    Missing {
        folder: String,
        partition: PartitionId,
        from: Offset,
        /// Behind the last of them.
        to: Offset,
        /// Names the file.
        stood_in: String,
    },
    /// Files of two logs lie in one folder; which of them belong there is not known.
    #[error(
        "{file} is of the log {found:016x}, and {beside} of the log {own:016x}: one folder has the files of one log; move those that do not belong there out of it"
    )]
    Foreign {
        file: String,
        found: u64,
        beside: String,
        own: u64,
    },
    /// Names say in which order files follow each other, and which of two segments is believed.
    #[error("{file} was written as {written_as}: files were renamed; give each its own name back")]
    Misnamed { file: String, written_as: String },
    /// Not damaged: it is neither cut off nor repaired.
    #[error("{file} has at byte {position} {found}")]
    NewerFormat {
        file: String,
        position: u64,
        found: NewerVersion,
    },
    /// A write or a sync has failed: what is on the disk is known only after a restart has looked.
    #[error("the log is poisoned and takes nothing more until a restart has checked it: {cause}")]
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
    #[error("{what} of {size} is more than {limit}")]
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
    #[error("another owner holds partition {partition} since epoch {epoch}")]
    Fenced { partition: PartitionId, epoch: u32 },
    /// Nothing of the unit was stored.
    #[error("what was to be stored at offset {expected} of partition {partition} is not: {next} comes next there")]
    OffsetTaken {
        partition: PartitionId,
        expected: Offset,
        next: Offset,
    },
    #[error("this log cannot give durability `{wanted}`; it has {offered}")]
    DurabilityUnavailable {
        wanted: &'static str,
        offered: &'static str,
    },
    #[error("the log has {limit} partitions, which is as many as it may have")]
    TooManyPartitions { limit: usize },
    /// Disks do not commit together.
    #[error("a part of what was to be stored on several disks is stored, the rest is not: {cause}")]
    Partly { cause: Arc<LogError> },
    #[error("{folder} cannot be a folder of this log: {why}; name in log.dirs the folders of one log and nothing else")]
    NotOurs { folder: String, why: String },
    #[error(
        "disk {disk} of the {of} disks of this log is not in any of {folders}; mount it, or name its folder in log.dirs"
    )]
    DiskMissing { disk: usize, of: usize, folders: String },
    #[error("{file} still has what is to be erased: {why}")]
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

    /// The same of what nobody knows the end of: nothing more may be taken then. But for a full disk, which takes nothing.
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
