//! The metrics that the writer of a log keeps: how long commits and syncs take, and how large commits are.

use thalweg_kit::histogram::Histogram;

/// Metrics of a log. Times are in microseconds.
#[derive(Debug)]
pub struct LogMetrics {
    /// From taking a group until its answers are sent.
    pub commit_us: Histogram,
    /// A sync, or a write with its sync if they are a single call.
    pub sync_us: Histogram,
    /// How long submissions waited that had to wait for room.
    pub admission_us: Histogram,
    pub commit_bytes: Histogram,
    pub commit_records: Histogram,
}

impl Default for LogMetrics {
    fn default() -> LogMetrics {
        LogMetrics {
            commit_us: Histogram::new(4),
            sync_us: Histogram::new(4),
            admission_us: Histogram::new(4),
            commit_bytes: Histogram::new(12),
            commit_records: Histogram::new(0),
        }
    }
}
