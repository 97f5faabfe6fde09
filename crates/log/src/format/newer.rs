//! Data that a newer version of the program wrote. Its version or kind is at the same position in every version, so
//! that it is reported and left alone, and never mistaken for damage.

use std::fmt;

use super::{block, footer, frame, superblock};

/// A part of a file with its own version, or with a kind that newer versions may extend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionedPart {
    Block,
    Frame,
    FrameKind,
    /// The index at the end of a file.
    Index,
    FileKind,
    Superblock,
}

/// A part whose version or kind this program does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewerVersion {
    pub what: VersionedPart,
    pub found: u16,
}

impl VersionedPart {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            VersionedPart::Block => "block",
            VersionedPart::Frame => "frame",
            VersionedPart::FrameKind => "frame_kind",
            VersionedPart::Index => "index",
            VersionedPart::FileKind => "file_kind",
            VersionedPart::Superblock => "superblock",
        }
    }
}

impl NewerVersion {
    /// The length of the part.
    pub fn bytes(self) -> u64 {
        let bytes = match self.what {
            VersionedPart::Block => block::LEN,
            VersionedPart::Frame | VersionedPart::FrameKind => frame::LEN,
            VersionedPart::Index | VersionedPart::FileKind => footer::TRAILER_LEN,
            VersionedPart::Superblock => superblock::LEN,
        };
        bytes as u64
    }

    /// The newest version or kind that this program reads.
    pub fn known(self) -> u16 {
        match self.what {
            VersionedPart::Block => block::VERSION,
            VersionedPart::Frame => frame::VERSION.into(),
            VersionedPart::FrameKind => frame::KIND_MAX.into(),
            VersionedPart::Index => footer::VERSION,
            VersionedPart::FileKind => footer::KIND_MAX,
            VersionedPart::Superblock => superblock::VERSION,
        }
    }
}

impl fmt::Display for NewerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            VersionedPart::Block => "a block of format version",
            VersionedPart::Frame => "a frame of format version",
            VersionedPart::FrameKind => "a frame of kind",
            VersionedPart::Index => "an index of format version",
            VersionedPart::FileKind => "the index of a file of kind",
            VersionedPart::Superblock => "a superblock of format version",
        };
        write!(
            f,
            "{what} {}, written by a newer version of Thalweg, while this one reads up to {}; install that version",
            self.found,
            self.known()
        )
    }
}
