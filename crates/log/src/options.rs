//! What a log is opened with.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::LogClock;

#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Where the files are, for errors.
    pub folder: String,
    /// Bytes of a commit file, and of the very first one.
    pub file_bytes: u64,
    pub first_file_bytes: u64,
    /// Commit files that are ready at any time.
    pub spare: usize,
    /// With more full commit files than this, what is needed of the oldest is moved out of them.
    pub files_max: usize,
    /// Bytes of the disk that the log leaves free; `None`: the larger of 2 GiB and a twentieth of the disk.
    pub min_free_bytes: Option<u64>,
    /// A block takes submissions up to so many bytes; a larger one fills a block alone.
    pub commit_bytes_max: usize,
    /// The longest wait for a group to become as large as the last one; zero: never.
    pub linger: Duration,
    /// [`Durability::Interval`] syncs what is that old.
    pub interval: Duration,
    /// Bytes that may wait for the writer.
    pub waiting_bytes_max: usize,
    /// Bytes of newest frames that are read from memory.
    pub tail_bytes_max: usize,
    /// Bytes of indexes of full files in memory.
    pub index_bytes_max: usize,
    /// Moving, compacting and scrubbing read and write so much at most.
    pub io_bytes_per_second: u64,
    /// All that is stored is read and checked once in so long; zero: never.
    pub scrub: Duration,
    /// Tells the time of what is stored. A process has one for all disks of its log.
    pub clock: Arc<LogClock>,
    /// A damaged log is repaired at the start: what is lost is given up. Otherwise it does not open.
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
