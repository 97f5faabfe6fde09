//! The format of a backup: the content of a store at one instant, in frames. Missing or changed bytes are detected
//! where they are, and a backup without its last frame is incomplete.
//!
//! `TWEVBACK` 8 · format 4 · crc32c of the format 4, then frames: kind 1 · length 4 · body · crc32c 4. Numbers are
//! little-endian. Each checksum covers all frames so far without their checksums, so that a frame which is missing,
//! duplicated or moved is detected too. Frames come in this order:
//!
//! begin · for each namespace: header · records, any number · end of the namespace · end of the backup
//!
//! A records body is: kind 1 · offset of the first record 8 · records in the format of the log, each with its offset
//! minus the first. The other bodies are JSON. The last frame has the totals and a second checksum (XXH3) of all bytes
//! before it.

mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thalweg_log::format::frame::{self, FrameKind};
use thalweg_log::{Micros, Offset};

use crate::embedded::CatalogEntry;
use crate::error::EventsError;

pub use reader::BackupReader;
pub(crate) use writer::BackupWriter;
pub use writer::sealed;

const MAGIC: &[u8; 8] = b"TWEVBACK";
/// Incremented with each change that older programs cannot read.
pub const FORMAT: u32 = 2;

const BEGIN: u8 = 1;
const NAMESPACE: u8 = 2;
const RECORDS: u8 = 3;
const NAMESPACE_END: u8 = 4;
const END: u8 = 5;
const FAILED: u8 = 6;

/// Maximum length of a frame body: the largest record of the log and its header.
const BODY_MAX: usize = frame::BODY_MAX + 64;
/// Maximum number of records in one frame.
pub(crate) const RECORDS_MAX: usize = 5000;

/// Errors in a backup or in reading it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("it is not a backup of events: its first bytes are not those of a backup")]
    NotABackup,
    #[error("the backup has format {0}, and this program knows formats up to {FORMAT}; restore it with a newer one")]
    Newer(u32),
    #[error("the backup is damaged at byte {at}: {what}")]
    Damaged {
        /// The start of the first damaged frame.
        at: u64,
        what: String,
    },
    #[error("the backup is cut off at byte {at}")]
    CutOff {
        /// The end of the bytes.
        at: u64,
    },
    /// The producer of the backup failed.
    #[error("the backup was not completed: {why}")]
    Failed { why: String, damaged: bool },
    #[error("the backup cannot be read: {0}")]
    Unread(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] EventsError),
}

impl BackupError {
    /// Whether the backup, or the store that it was made from, is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            BackupError::NotABackup | BackupError::Damaged { .. } | BackupError::CutOff { .. } => true,
            BackupError::Failed { damaged, .. } => *damaged,
            BackupError::Store(error) => matches!(error, EventsError::Damaged(_)),
            BackupError::Newer(_) | BackupError::Unread(_) => false,
        }
    }
}

pub type BackupResult<T> = std::result::Result<T, BackupError>;

/// The header of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// Version of the program that made the backup.
    pub made_by: String,
    /// The instant of the backup.
    pub time: Micros,
    pub namespaces: u64,
}

/// The header of a namespace, whose records follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceHeader {
    pub(crate) named: CatalogEntry,
    /// Offsets: records before `first` were no longer needed, and `next` was the next free offset.
    pub(crate) first: Offset,
    pub(crate) next: Offset,
}

impl NamespaceHeader {
    pub fn name(&self) -> &str {
        &self.named.name
    }
}

/// Counts of one namespace, or of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupCounts {
    pub namespaces: u64,
    /// Messages including hidden ones, versions of documents, and marks.
    pub records: u64,
    pub messages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BackupTrailer {
    all: BackupCounts,
    /// The number of bytes before the trailer.
    bytes: u64,
    /// The XXH3 checksum of these bytes.
    sum: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Failure {
    why: String,
    damaged: bool,
}

/// Some records of a namespace.
#[derive(Clone, Debug)]
pub struct BackupRecords {
    pub(crate) kind: FrameKind,
    pub(crate) base: Offset,
    /// One past the last offset.
    pub(crate) next: Offset,
    /// Records in the format of the log, each with its offset minus the base.
    pub(crate) body: Bytes,
}

/// The next part that was read.
#[derive(Clone, Debug)]
pub enum BackupPart {
    Begin(BackupHeader),
    Namespace(Box<NamespaceHeader>),
    Records(BackupRecords),
    /// The end of a namespace, with its counts.
    NamespaceEnd(BackupCounts),
    /// The backup is whole, and nothing follows it.
    End(BackupCounts),
}

impl BackupCounts {
    pub(crate) fn and(self, other: BackupCounts) -> BackupCounts {
        BackupCounts {
            namespaces: self.namespaces + other.namespaces,
            records: self.records + other.records,
            messages: self.messages + other.messages,
        }
    }
}
