//! Counters and status of a log.

use thalweg_kit::histogram::HistogramSnapshot;

/// Counters since the log was opened, and its current contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogCounters {
    /// The size of blocks that were being written when the previous process ended.
    pub torn_bytes: u64,
    pub is_poisoned: bool,
    /// Some stored data cannot be read.
    pub is_degraded: bool,
    /// Free bytes of the disk at the last check.
    pub free_bytes: u64,
    /// From taking a group of submissions until its answers are sent. All times are in microseconds.
    pub commit_us: HistogramSnapshot,
    pub sync_us: HistogramSnapshot,
    /// The waiting time before a submission is taken.
    pub admission_us: HistogramSnapshot,
    /// One value per start.
    pub recovery_us: HistogramSnapshot,
    /// The size of blocks.
    pub commit_bytes: HistogramSnapshot,
    pub commit_records: HistogramSnapshot,
    /// Bytes written to segments.
    pub moved_bytes: u64,
    /// Frames whose checksum failed.
    pub corrupt_frames: u64,
    /// Commit files that are ready, and those that are full.
    pub spare_files: usize,
    pub full_files: usize,
    pub segments: usize,
}

/// The health of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogStatus {
    Healthy,
    /// Some stored data cannot be read; the rest works. The text describes the first damage.
    Degraded(String),
    /// New messages are refused; reads and settles continue.
    DiskFull(String),
    /// All writes are refused; committed data can be read.
    Poisoned(String),
}
