//! What callers of the lake are told when something does not work.

use std::path::PathBuf;

use thalweg_delta::DeltaError;
use thalweg_delta::store::{DiskFault, FaultKind, LeaseError};

/// Why a table could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Claim(#[from] LeaseError),
    #[error("the lake folder {path} cannot be used: {source}; make it writable or set another data_dir")]
    Folder { path: PathBuf, source: DiskFault },
    #[error("the table {path} cannot be opened: {source}")]
    Table { path: PathBuf, source: DeltaError },
    #[error("lake.schema_conflict: {path} is a table of another kind: {what}; move it away or set another data_dir")]
    Schema { path: PathBuf, what: String },
    /// A table takes only what the log has synced, so no power cut leaves this behind.
    #[error(
        "lake.lost: the log ends before offset {log_end} of {queue}, partition {partition}, and the table {table} has entries up to \
         {}: what was acknowledged behind them may be lost; bring back the files of the log, or start once with `log: {{recover: \
         skip}}` to go on behind offset {}",
        .table_has.saturating_sub(1), .table_has.saturating_sub(1)
    )]
    Lost {
        table: &'static str,
        queue: String,
        /// Of the queue, or the name of a namespace.
        partition: String,
        log_end: thalweg_log::Offset,
        table_has: thalweg_log::Offset,
    },
    #[error("where the log ended before the table {path} was opened cannot be kept, nor found: {source}")]
    Ends { path: PathBuf, source: std::io::Error },
    #[error("the table {path} cannot be fed: {source}")]
    Log {
        path: PathBuf,
        source: thalweg_log::LogError,
    },
    #[error("the table {path} cannot be written: {source}")]
    Thread { path: PathBuf, source: std::io::Error },
}

impl OpenError {
    /// Whether trying again helps only after a restart or with another configuration.
    pub fn is_permanent(&self) -> bool {
        match self {
            OpenError::Folder { source, .. } => matches!(source, DiskFault::SyncFailed { .. } | DiskFault::Poisoned(_)),
            OpenError::Table { source, .. } => {
                matches!(source, DeltaError::Unsupported { .. }) || source.kind() == FaultKind::SyncFailed
            }
            OpenError::Claim(error) => error.kind() == FaultKind::Held,
            OpenError::Schema { .. } | OpenError::Lost { .. } => true,
            OpenError::Log { .. } | OpenError::Thread { .. } | OpenError::Ends { .. } => false,
        }
    }
}

/// Why rows were not committed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The table takes no more rows until a restart.
    #[error("{0}")]
    ReadOnly(String),
    /// Trying again may help.
    #[error("{0}")]
    Failed(String),
    #[error("the lake was stopped before the rows were committed")]
    Stopped,
}
