//! What callers of the lake are told when something does not work.

use std::path::PathBuf;

use crate::delta::DeltaError;
use crate::store::{DiskFault, FaultKind};
use crate::tags::Refusal;

/// Why a table could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the lake folder {path} cannot be used: {source}; make it writable or set another data_dir")]
    Folder { path: PathBuf, source: DiskFault },
    #[error("the table {path} cannot be opened: {source}")]
    Table { path: PathBuf, source: DeltaError },
    #[error("lake.schema_conflict: {path} is a table of another kind: {what}; move it away or set another data_dir")]
    Schema { path: PathBuf, what: String },
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
            OpenError::Schema { .. } => true,
            OpenError::Log { .. } | OpenError::Thread { .. } => false,
        }
    }
}

/// Why an append did not store all its messages.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// These can never be stored; all others are durable.
    #[error("{} of the messages cannot become rows, the first because: {}", .0.len(), .0.first().map_or("", |r| r.refusal.error.as_str()))]
    Refused(Vec<Refused>),
    /// None is known to be stored. The table takes no more rows until a restart.
    #[error("{0}")]
    ReadOnly(String),
    /// None is stored; trying again may help.
    #[error("{0}")]
    Failed(String),
    /// The writer ended first; none is known to be stored.
    #[error("the lake was stopped before the rows were committed")]
    Stopped,
}

/// A message that cannot become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its place in the messages of the append.
    pub index: usize,
    pub refusal: Refusal,
}
