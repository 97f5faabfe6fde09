//! Why the store refused: the cases that whoever writes a table must tell apart.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};

/// An operation on the disk that failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskFault {
    /// Whether earlier writes are on the disk is unknown from here on.
    #[error(
        "lake.sync_failed: {path} could not be synced to disk ({source}); the lake takes no more data until it is restarted, check the disk first"
    )]
    SyncFailed { path: PathBuf, source: io::Error },
    /// A sync failed before; nothing was tried.
    #[error("lake.sync_failed: the lake takes no more data since a sync failed ({0}); check the disk and restart")]
    Poisoned(String),
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl DiskFault {
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> DiskFault {
        DiskFault::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn sync(path: &Path, source: io::Error) -> DiskFault {
        DiskFault::SyncFailed {
            path: path.to_owned(),
            source,
        }
    }
}

/// What a failed operation means for the one who asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The name is taken: another writer was first.
    Exists,
    /// There is no such file.
    Missing,
    /// No space or quota left; goes on when there is space.
    DiskFull,
    /// No further operation will succeed before a restart.
    SyncFailed,
    /// Permissions or a read-only file system; goes on when that is repaired.
    Denied,
    /// Anything else; trying again may help.
    Other,
}

/// Classifies an error of the store, however deep the cause lies.
pub fn fault_kind(error: &object_store::Error) -> FaultKind {
    match error {
        object_store::Error::AlreadyExists { .. } => return FaultKind::Exists,
        object_store::Error::NotFound { .. } => return FaultKind::Missing,
        object_store::Error::PermissionDenied { .. } => return FaultKind::Denied,
        _ => {}
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref::<DiskFault>() {
            Some(DiskFault::SyncFailed { .. } | DiskFault::Poisoned(_)) => return FaultKind::SyncFailed,
            Some(DiskFault::Io { source, .. }) => return io_kind(source),
            None => {}
        }
        if let Some(source) = error.downcast_ref::<io::Error>() {
            return io_kind(source);
        }
        cause = error.source();
    }
    FaultKind::Other
}

fn io_kind(error: &io::Error) -> FaultKind {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => FaultKind::DiskFull,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => FaultKind::Denied,
        io::ErrorKind::NotFound => FaultKind::Missing,
        _ => FaultKind::Other,
    }
}

/// The innermost sentence about what went wrong: the store's own wrapping says nothing more.
pub(crate) fn fault_text(error: &object_store::Error) -> String {
    match error.source().and_then(|source| source.downcast_ref::<DiskFault>()) {
        Some(fault) => fault.to_string(),
        None => error.to_string(),
    }
}
