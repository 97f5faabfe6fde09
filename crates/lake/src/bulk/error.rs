//! Why a file could not be imported.

use std::io;
use std::path::PathBuf;

use crate::codes::ImportCode;
use crate::error::{AppendError, OpenError};

/// No table has rows of the file, or, if it has several signals, some tables do not have theirs yet. A second run does
/// the rest.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    #[error("{code}: it cannot be decompressed: {0}", code = ImportCode::OtlpMalformed)]
    Damaged(String),
    #[error("{code}: it becomes more than {0} times as large", code = ImportCode::DecodedTooLarge)]
    Bomb(usize),
    #[error(
        "{code}: its zstd window is larger than {0} bytes; compress it again with a smaller one, as `zstd -19` does",
        code = ImportCode::ZstdWindow
    )]
    Window(usize),
    #[error("{code}: byte {offset}: {what}", code = ImportCode::OtlpMalformed)]
    Malformed { offset: u64, what: String },
    #[error("{code}: {0}", code = ImportCode::Malformed)]
    Text(String),
    #[error("{code}: {0}", code = ImportCode::Parquet)]
    Parquet(String),
    #[error("{code}: {0}", code = ImportCode::KindUnknown)]
    KindUnknown(String),
    #[error("{code}: {0}; set --signal logs, metrics or traces", code = ImportCode::SignalUnknown)]
    SignalUnknown(String),
    #[error("{code}: {0}", code = ImportCode::NoHeader)]
    NoHeader(String),
    #[error(
        "{code}: more than {max} lines are bad, the first is line {line}: {why}{}; fix them, or allow more with \
         --max-bad",
        of_quarantine(.quarantine),
        code = ImportCode::TooManyBad
    )]
    TooManyBad {
        max: u64,
        line: u64,
        why: String,
        quarantine: Option<PathBuf>,
    },
    #[error(
        "{code}: {advice}; or add the rows as they are with --accept-missing",
        code = ImportCode::MissingFields
    )]
    MissingFields { advice: String },
    #[error("{code}: it changed while it was read; run it again when it is complete", code = ImportCode::Changed)]
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

    /// Whether the file is fine, but the meaning of its columns is not known.
    pub fn is_of_columns(&self) -> bool {
        matches!(self, BulkError::MissingFields { .. })
    }
}

/// Readers wrap our errors in an I/O error.
impl From<io::Error> for BulkError {
    fn from(error: io::Error) -> BulkError {
        error.downcast::<BulkError>().unwrap_or_else(BulkError::Read)
    }
}
