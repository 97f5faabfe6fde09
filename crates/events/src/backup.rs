//! A backup as bytes: everything of a store as of one instant, in frames. Whatever is missing of it or is not as it was written
//! is noticed where it is, and a backup without its last frame is none.
//!
//! `TWEVBACK` 8 · format 4 · crc32c of the format 4, then frames: kind 1 · length 4 · body · crc32c 4. Numbers are
//! little-endian. Each checksum is of all frames up to there without their checksums, so a frame that was left out, doubled or
//! moved is noticed as well. Frames come in this order:
//!
//! begin · for each namespace: head · records, any number · end of the namespace · end of the backup
//!
//! Records are: kind 1 · offset of the first 8 · records as the log has them, each with its offset less the first. The other
//! bodies are JSON. The last frame says how much there is and has a second checksum (XXH3) of all bytes before it.

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
/// Raised with each change that an older program would not understand.
pub const FORMAT: u32 = 2;

const BEGIN: u8 = 1;
const NAMESPACE: u8 = 2;
const RECORDS: u8 = 3;
const NAMESPACE_END: u8 = 4;
const END: u8 = 5;
const FAILED: u8 = 6;

/// Of a frame's body: the largest record of the log, and what stands before it.
const BODY_MAX: usize = frame::BODY_MAX + 64;
/// Records of one frame.
pub(crate) const RECORDS_MAX: usize = 5000;

/// What is wrong with a backup, or with reading it.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("it is no backup of events: it does not begin as one does")]
    NotABackup,
    #[error("the backup has format {0}, and this program knows formats up to {FORMAT}; restore it with a newer one")]
    Newer(u32),
    #[error("the backup is damaged at byte {at}: {what}")]
    Damaged {
        /// Where the first frame begins that is not as it was written.
        at: u64,
        what: String,
    },
    #[error("the backup is cut off at byte {at}")]
    CutOff {
        /// Behind the last byte.
        at: u64,
    },
    /// Whoever made it could not go on.
    #[error("the backup was not made to its end: {why}")]
    Failed { why: String, damaged: bool },
    #[error("the backup cannot be read: {0}")]
    Unread(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] EventsError),
}

impl BackupError {
    /// Whether bytes are not what they were, of the backup or of the store that it is of.
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

/// How it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupHeader {
    /// Version of the program that made it.
    pub made_by: String,
    /// The instant.
    pub time: Micros,
    pub namespaces: u64,
}

/// A namespace, of which what follows is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceHeader {
    pub(crate) named: CatalogEntry,
    /// Offsets: what stood before the first was not needed any more, and the next was free.
    pub(crate) first: Offset,
    pub(crate) next: Offset,
}

impl NamespaceHeader {
    pub fn name(&self) -> &str {
        &self.named.name
    }
}

/// What a namespace, or all of them, come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupCounts {
    pub namespaces: u64,
    /// Messages, also hidden ones, versions of documents, and marks.
    pub records: u64,
    pub messages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BackupTrailer {
    all: BackupCounts,
    /// Before it.
    bytes: u64,
    /// Of these.
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
    /// Behind the last of them.
    pub(crate) next: Offset,
    /// As the log has them, each with its offset less the base.
    pub(crate) body: Bytes,
}

/// What is read next.
#[derive(Clone, Debug)]
pub enum BackupPart {
    Begin(BackupHeader),
    Namespace(Box<NamespaceHeader>),
    Records(BackupRecords),
    /// With what the namespace came to.
    NamespaceEnd(BackupCounts),
    /// The backup is whole, and nothing stands behind it.
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
