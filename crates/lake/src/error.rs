//! The errors of the lake for its callers.

use std::path::PathBuf;

use thalweg_delta::DeltaError;
use thalweg_delta::store::{DiskFault, FaultKind, LeaseError};

use crate::codes::LakeCode;
use thalweg_columns::attributes::TypeConflict;

/// Why a table could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Claim(#[from] LeaseError),
    #[error("the lake folder {path} cannot be used: {source}; make it writable or set another data_dir")]
    Folder { path: PathBuf, source: DiskFault },
    #[error("the table {path} cannot be opened: {source}")]
    Table { path: PathBuf, source: DeltaError },
    #[error(
        "{code}: {path} is a table of another kind: {what}; move it away or set another data_dir",
        code = LakeCode::SchemaConflict
    )]
    Schema { path: PathBuf, what: String },
    #[error(
        "{code}: the column {} of the table {path} has the type {}, and lake.{table}.types declares {}; a column of a table \
         keeps its type: remove {} there, or begin with new tables at another lake.url",
        .conflict.column, .conflict.found, .conflict.declared, .conflict.column, code = LakeCode::ColumnType
    )]
    ColumnType {
        path: PathBuf,
        table: String,
        conflict: Box<TypeConflict>,
    },
    /// A table only has rows of synced entries, so a power cut cannot cause this.
    #[error(
        "{code}: the log ends before offset {log_end} of {queue}, partition {partition}, and the table {table} has entries \
         up to {}: data acknowledged after them may be lost; restore the files of the log, or start once with \
         `log: {{recover: skip}}` to continue after offset {}",
        .table_has.saturating_sub(1), .table_has.saturating_sub(1), code = LakeCode::Lost
    )]
    Lost {
        table: &'static str,
        queue: String,
        /// The partition of the queue, or the name of a namespace.
        partition: String,
        log_end: thalweg_log::Offset,
        table_has: thalweg_log::Offset,
    },
    #[error("the end of the log before the table {path} was opened cannot be stored or read: {source}")]
    Ends { path: PathBuf, source: std::io::Error },
    #[error("the log of the table {path} cannot be read: {source}")]
    Log {
        path: PathBuf,
        source: thalweg_log::LogError,
    },
    #[error("the table {path} cannot be written: {source}")]
    Thread { path: PathBuf, source: std::io::Error },
}

impl OpenError {
    /// Whether only a restart or another configuration can help.
    pub fn is_permanent(&self) -> bool {
        match self {
            OpenError::Folder { source, .. } => matches!(source, DiskFault::SyncFailed { .. } | DiskFault::Poisoned(_)),
            OpenError::Table { source, .. } => {
                matches!(source, DeltaError::Unsupported { .. }) || source.kind() == FaultKind::SyncFailed
            }
            OpenError::Claim(error) => error.kind() == FaultKind::Held,
            OpenError::Schema { .. } | OpenError::ColumnType { .. } | OpenError::Lost { .. } => true,
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
    /// A retry may help.
    #[error("{0}")]
    Failed(String),
    #[error("the lake was stopped before the rows were committed")]
    Stopped,
}
