//! Why a file could not be imported.

use std::io;
use std::path::PathBuf;

use crate::error::{AppendError, OpenError};

/// No table has rows of the file, or, if it has several signals, some tables do not have theirs yet. A second run does
/// the rest.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    #[error("otlp.malformed: it cannot be decompressed: {0}")]
    Damaged(String),
    #[error("otlp.decoded_too_large: it becomes more than {0} times as large")]
    Bomb(usize),
    #[error(
        "otlp.zstd_window: its zstd window is larger than {0} bytes; compress it again with a smaller one, as `zstd -19` does"
    )]
    Window(usize),
    #[error("otlp.malformed: byte {offset}: {what}")]
    Malformed { offset: u64, what: String },
    #[error("ingest.malformed: {0}")]
    Text(String),
    #[error("ingest.parquet: {0}")]
    Parquet(String),
    #[error("ingest.kind_unknown: {0}")]
    KindUnknown(String),
    #[error("ingest.signal_unknown: {0}; set --signal logs, metrics or traces")]
    SignalUnknown(String),
    #[error("ingest.no_header: {0}")]
    NoHeader(String),
    #[error("ingest.mapping: {0}")]
    Mapping(String),
    #[error(
        "ingest.too_many_bad: more than {max} lines are bad, the first is line {line}: {why}{}; fix them, or allow more \
         with --max-bad", of_quarantine(.quarantine)
    )]
    TooManyBad {
        max: u64,
        line: u64,
        why: String,
        quarantine: Option<PathBuf>,
    },
    #[error("ingest.changed: it changed while it was read; run it again when it is complete")]
    Changed,
    #[error("{0}")]
    Open(#[from] OpenError),
    #[error("{0}")]
    Table(AppendError),
    #[error("the folder {path} cannot be used: {source}; make it writable or set another --data-dir")]
    Folder { path: PathBuf, source: io::Error },
}

fn of_quarantine(path: &Option<PathBuf>) -> String {
    path.as_ref()
        .map(|path| format!("; they are in {}", path.display()))
        .unwrap_or_default()
}

impl BulkError {
    /// Whether other files would fail, too.
    pub fn is_of_lake(&self) -> bool {
        matches!(
            self,
            BulkError::Open(_) | BulkError::Table(_) | BulkError::Folder { .. }
        )
    }
}

/// Readers wrap our errors in an I/O error.
impl From<io::Error> for BulkError {
    fn from(error: io::Error) -> BulkError {
        error.downcast::<BulkError>().unwrap_or_else(BulkError::Read)
    }
}
