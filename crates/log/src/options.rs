//! The options of a log.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::LogClock;

#[derive(Clone, Debug)]
pub struct LogOptions {
    /// The folder of the files, for error messages.
    pub folder: String,
    /// Size of a commit file, and of the very first one.
    pub file_bytes: u64,
    pub first_file_bytes: u64,
    /// Number of spare commit files to keep ready.
    pub spare: usize,
    /// Above this number of full commit files, needed data is moved out of the oldest.
    pub files_max: usize,
    /// Bytes of the disk that the log leaves free. `None`: the larger of 2 GiB and 5 % of the disk.
    pub min_free_bytes: Option<u64>,
    /// Maximum size of the submissions in a block. A larger submission gets a block of its own.
    pub commit_bytes_max: usize,
    /// The longest wait for a group to become as large as the last one. Zero: never wait.
    pub linger: Duration,
    /// Maximum age of unsynced data under [`Durability::Interval`].
    pub interval: Duration,
    /// Maximum size of the submissions that wait for the writer.
    pub waiting_bytes_max: usize,
    /// Memory for the newest frames.
    pub tail_bytes_max: usize,
    /// Memory for the indexes of full files.
    pub index_bytes_max: usize,
    /// Rate limit for moving, compacting and scrubbing.
    pub io_bytes_per_second: u64,
    /// Period in which all stored data is read and checked. Zero: never.
    pub scrub: Duration,
    /// The clock. A process has one for all disks of its log.
    pub clock: Arc<LogClock>,
    /// Repair a damaged log at the start and give up what is lost. Otherwise a damaged log does not open.
    pub recover_skip: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            folder: "log".to_owned(),
            file_bytes: 128 << 20,
            first_file_bytes: 16 << 20,
            spare: 4,
            files_max: 64,
            min_free_bytes: None,
            commit_bytes_max: 1 << 20,
            linger: Duration::from_micros(50),
            interval: Duration::from_millis(50),
            waiting_bytes_max: 64 << 20,
            tail_bytes_max: 64 << 20,
            index_bytes_max: 32 << 20,
            io_bytes_per_second: 64 << 20,
            scrub: Duration::from_hours(7 * 24),
            clock: Arc::default(),
            recover_skip: false,
        }
    }
}
