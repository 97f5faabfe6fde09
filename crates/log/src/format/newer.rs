//! What a newer version of the program has written. Its version, or its kind, is read from places that are the same in every
//! version, so that it is named and left as it is, and never taken for damage.

use std::fmt;

use super::{block, footer, frame, superblock};

/// A part of a file that has a version of its own, or a kind to which newer versions may add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versioned {
    Block,
    Frame,
    FrameKind,
    /// Of the index at the end of a file.
    Index,
    FileKind,
    Superblock,
}

/// One whose version or kind this program does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newer {
    pub what: Versioned,
    pub found: u16,
}

impl Versioned {
    /// The word for it in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Versioned::Block => "block",
            Versioned::Frame => "frame",
            Versioned::FrameKind => "frame_kind",
            Versioned::Index => "index",
            Versioned::FileKind => "file_kind",
            Versioned::Superblock => "superblock",
        }
    }
}

impl Newer {
    /// Bytes of what has the version.
    pub fn bytes(self) -> u64 {
        let bytes = match self.what {
            Versioned::Block => block::LEN,
            Versioned::Frame | Versioned::FrameKind => frame::LEN,
            Versioned::Index | Versioned::FileKind => footer::TRAILER_LEN,
            Versioned::Superblock => superblock::LEN,
        };
        bytes as u64
    }

    /// The newest version or kind that this program reads.
    pub fn known(self) -> u16 {
        match self.what {
            Versioned::Block => block::VERSION,
            Versioned::Frame => frame::VERSION.into(),
            Versioned::FrameKind => frame::KIND_MAX.into(),
            Versioned::Index => footer::VERSION,
            Versioned::FileKind => footer::KIND_MAX,
            Versioned::Superblock => superblock::VERSION,
        }
    }
}

impl fmt::Display for Newer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Versioned::Block => "a block of format version",
            Versioned::Frame => "a frame of format version",
            Versioned::FrameKind => "a frame of kind",
            Versioned::Index => "an index of format version",
            Versioned::FileKind => "the index of a file of kind",
            Versioned::Superblock => "a superblock of format version",
        };
        write!(
            f,
            "{what} {}, written by a newer version of Thalweg, while this one reads up to {}; install that version",
            self.found,
            self.known()
        )
    }
}
