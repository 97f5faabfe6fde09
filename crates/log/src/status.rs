//! What a log tells of itself.

use crate::measure::HistogramSnapshot;

/// What a log has done since it was opened, and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCounters {
    /// Of blocks that were being written when the process before this one ended.
    pub torn_bytes: u64,
    pub is_poisoned: bool,
    /// Something that is stored cannot be read.
    pub is_degraded: bool,
    /// Of the disk, as of a look that is not long ago.
    pub free_bytes: u64,
    /// From the moment a group of submissions was taken to the answers, in microseconds, as the other times.
    pub commit_us: HistogramSnapshot,
    pub sync_us: HistogramSnapshot,
    /// Before a submission was taken.
    pub admission_us: HistogramSnapshot,
    /// One value for each start.
    pub recovery_us: HistogramSnapshot,
    /// Of blocks.
    pub commit_bytes: HistogramSnapshot,
    pub commit_records: HistogramSnapshot,
    /// Written to segments.
    pub moved_bytes: u64,
    /// Frames that could not be read as they were written.
    pub corrupt_frames: u64,
    /// Commit files that are ready, and those that are full.
    pub spare_files: usize,
    pub full_files: usize,
    pub segments: usize,
}

/// How a log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogStatus {
    Healthy,
    /// Some of what is stored cannot be read; the rest works. What was found, the first time.
    Degraded(String),
    /// New messages are refused; reads and settles go on.
    DiskFull(String),
    /// Nothing is taken any more; what was committed can be read.
    Poisoned(String),
}
