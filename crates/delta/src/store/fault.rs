//! Classifies store errors into the cases that writers of a table must distinguish.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::codes::DeltaCode;

/// A failed disk operation.
#[derive(Debug, thiserror::Error)]
pub enum DiskFault {
    /// From here on it is unknown whether earlier writes are on the disk.
    #[error(
        "{code}: {path} could not be synced to disk ({source}); the lake takes no more data until it is restarted, \
         check the disk first",
        code = DeltaCode::SyncFailed
    )]
    SyncFailed { path: PathBuf, source: io::Error },
    /// A sync failed before; nothing was tried.
    #[error(
        "{code}: the lake takes no more data because a sync failed ({0}); check the disk and restart",
        code = DeltaCode::SyncFailed
    )]
    Poisoned(String),
    /// There is no space for file copies.
    #[error(
        "{code}: {needed} bytes do not fit into {path}, which may use {limit} now; free some space there, or raise \
         lake.spool",
        code = DeltaCode::Spool
    )]
    NoRoom { path: PathBuf, needed: u64, limit: u64 },
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

impl DiskFault {
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> DiskFault {
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

/// Converts a disk fault to an error of the store.
pub(super) fn generic(fault: DiskFault) -> object_store::Error {
    match &fault {
        DiskFault::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => {
            object_store::Error::NotFound {
                path: path.display().to_string(),
                source: Box::new(fault),
            }
        }
        _ => object_store::Error::Generic {
            store: super::NAME,
            source: Box::new(fault),
        },
    }
}

/// What a failed operation means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The name is taken: another writer was first.
    Exists,
    /// There is no such file.
    Missing,
    /// No space or quota left; continues when there is space.
    DiskFull,
    /// No further operation will succeed before a restart.
    SyncFailed,
    /// Permissions, credentials or a read-only file system; continues when that is fixed.
    Denied,
    /// The bucket does not exist; continues when it is created.
    NoBucket,
    /// Another process writes the lake, or the store does not prevent several writers.
    Held,
    /// Anything else; a retry may help.
    Other,
}

/// Classifies an error of the store, however deep the cause lies.
pub fn fault_kind(error: &object_store::Error) -> FaultKind {
    match error {
        object_store::Error::AlreadyExists { .. } => return FaultKind::Exists,
        // The whole store is missing, so nothing is known about this file.
        object_store::Error::NotFound { source, .. } if is_no_bucket(&source.to_string()) => {
            return FaultKind::NoBucket;
        }
        object_store::Error::NotFound { .. } => return FaultKind::Missing,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            return FaultKind::Denied;
        }
        // For a list request the library passes on the store's response unclassified.
        object_store::Error::Generic { source, .. } if is_no_bucket(&source.to_string()) => return FaultKind::NoBucket,
        object_store::Error::Generic { .. } if is_refused(error) => return FaultKind::Denied,
        _ => {}
    }
    let mut cause = error.source();
    while let Some(error) = cause {
        match error.downcast_ref::<DiskFault>() {
            Some(DiskFault::SyncFailed { .. } | DiskFault::Poisoned(_)) => return FaultKind::SyncFailed,
            Some(DiskFault::Io { source, .. }) => return io_kind(source),
            Some(DiskFault::NoRoom { .. }) | None => {}
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

fn is_refused(error: &object_store::Error) -> bool {
    let text = innermost(error).to_string();
    ["status code: 401", "status code: 403"]
        .iter()
        .any(|status| text.contains(status))
}

fn innermost(error: &object_store::Error) -> &dyn std::error::Error {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}

/// The names for a missing bucket in the supported object stores.
fn is_no_bucket(text: &str) -> bool {
    [
        "NoSuchBucket",
        "ContainerNotFound",
        "The specified bucket does not exist",
    ]
    .iter()
    .any(|name| text.contains(name))
}

/// One sentence about the cause, the same for the same fault. The library's wrapping contains durations and addresses.
pub fn fault_text(error: &object_store::Error) -> String {
    if let Some(fault) = error.source().and_then(|source| source.downcast_ref::<DiskFault>()) {
        return fault.to_string();
    }
    let text = innermost(error).to_string();
    let of_tag = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(inner, _)| inner)
    };
    let said = match (of_tag("Code"), of_tag("Message")) {
        (Some(code), Some(message)) => format!("{code}: {}", message.trim_end_matches('.')),
        (Some(code), None) => code.to_owned(),
        _ => text.clone(),
    };
    match fault_kind(error) {
        FaultKind::NoBucket => format!("the bucket does not exist ({said}); make it, or set another lake.url"),
        FaultKind::Denied if is_remote(error) => {
            format!("the object store refuses these credentials ({said}); check lake.storage and the environment")
        }
        FaultKind::Other if text.contains("169.254.169.254") => "there are no credentials: set access_key_id and \
             secret_access_key in lake.storage or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            .to_owned(),
        FaultKind::Other if is_remote(error) => match text.split_once("status code: ") {
            Some((_, status)) => {
                let status: String = status.chars().take_while(char::is_ascii_digit).collect();
                format!("the object store answers {status} ({})", first_line(&said))
            }
            None => format!("the object store does not answer ({})", no_answer(&said)),
        },
        FaultKind::Other => first_line(&said).to_owned(),
        _ => first_line(&error.to_string()).to_owned(),
    }
}

/// Errors of object store clients contain the request; those of disks and memory do not.
fn is_remote(error: &object_store::Error) -> bool {
    let text = error.to_string();
    text.contains("Error performing ") || text.contains("Error after ")
}

/// Maps the various errors of a connection to one text each.
fn no_answer(text: &str) -> &str {
    let known = [
        ("refused", "the connection is refused"),
        ("timed out", "the request timed out"),
        ("lookup address", "its host name is unknown"),
        ("reset", "the connection was closed"),
        ("closed", "the connection was closed"),
        ("Broken pipe", "the connection was closed"),
        ("eof", "the connection was closed"),
    ];
    let of = |(name, _): &&(&str, &str)| text.to_lowercase().contains(&name.to_lowercase());
    known
        .iter()
        .find(of)
        .map_or_else(|| first_line(text), |(_, words)| *words)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_refused_is_told_from_one_that_fails() {
        let answered = |status: &str| {
            object_store::Error::Generic {
            store: "S3",
            source: format!("Error performing list request: Server returned non-2xx status code: {status}: <Error><Code>AccessDenied</Code></Error>")
                .into(),
        }
        };
        for status in ["403 Forbidden", "401 Unauthorized"] {
            let error = answered(status);
            assert_eq!(fault_kind(&error), FaultKind::Denied, "{status}");
            assert_eq!(
                fault_text(&error),
                "the object store refuses these credentials (AccessDenied); check lake.storage and the environment"
            );
        }
        let error = answered("503 Slow Down");
        assert_eq!(fault_kind(&error), FaultKind::Other);
        assert_eq!(fault_text(&error), "the object store answers 503 (AccessDenied)");
    }
}
