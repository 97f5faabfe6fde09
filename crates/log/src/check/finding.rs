//! What a check says: one sentence for each thing it has found, and what is in the log.

use std::fmt;

use crate::durability::Durability;
use crate::format::newer::NewerVersion;
use crate::ids::{Offset, PartitionId, Sequence};

/// Something that is not as it was written, or that stands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Empty for what is in no file.
    pub file: String,
    pub position: u64,
    pub bytes: u64,
    pub kind: FindingKind,
    /// Whose records it is about, if one partition's alone.
    pub records: Option<(PartitionId, Offset, Offset)>,
    /// Something that is needed cannot be read, or the log does not open. Otherwise it is only worth knowing.
    pub is_error: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Of blocks that were being written when a process or a machine ended.
    TornTail,
    /// Blocks that were synced and are not there. `copied`: the index of the file has all that is needed of their headers.
    Corrupt {
        expected: Sequence,
        last: Sequence,
        copied: bool,
    },
    /// The header of a frame in a segment. The same holds for `copied`.
    BadFrame {
        copied: bool,
    },
    BadBody,
    /// The index of a full file is damaged or missing; the next start makes it anew.
    BadFooter,
    /// Offsets that are in no file; the place is where their partition goes on, or where it ends, and none if nothing is left
    /// of it. Names the file that held them.
    Missing {
        stood_in: String,
    },
    /// Offsets that cannot be read from where they should be.
    Unread,
    /// Lost before and given up since.
    Gap,
    NewerFormat(NewerVersion),
    /// A sound block of this version that names another one.
    BadVersion,
    /// What the table of partitions says is damaged or contradicts itself.
    BadTable,
    /// Blocks that were synced in a file that is not there.
    NewestMissing {
        first: Sequence,
        last: Sequence,
    },
    /// The file is shorter than it was made.
    CutShort {
        had: Option<u64>,
    },
    /// The file says that it is of another log, or that it has another name.
    Misplaced(String),
    /// A slot of the superblock, or all of it.
    BadSuperblock,
    /// The log does not open, for a reason that is not among the other findings.
    Refused(String),
}

impl FindingKind {
    /// The word for it in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            FindingKind::TornTail => "torn_tail",
            FindingKind::Corrupt { .. } => "corrupt",
            FindingKind::BadFrame { .. } => "bad_frame",
            FindingKind::BadBody => "bad_body",
            FindingKind::BadFooter => "bad_footer",
            FindingKind::Missing { .. } => "missing",
            FindingKind::Unread => "unread",
            FindingKind::Gap => "gap",
            FindingKind::NewerFormat(_) => "newer_format",
            FindingKind::BadVersion => "bad_version",
            FindingKind::BadTable => "bad_table",
            FindingKind::NewestMissing { .. } => "newest_missing",
            FindingKind::CutShort { .. } => "cut_short",
            FindingKind::Misplaced(_) => "misplaced",
            FindingKind::BadSuperblock => "bad_superblock",
            FindingKind::Refused(_) => "refused",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding {
            file, position, bytes, ..
        } = self;
        f.write_str(if self.is_error { "error: " } else { "note: " })?;
        match file.as_str() {
            "" => {}
            file => write!(f, "{file} at byte {position}: ")?,
        }
        match &self.kind {
            FindingKind::TornTail => {
                write!(
                    f,
                    "the log ends before {bytes} bytes that were being written; nothing that was synced is lost"
                )?;
            }
            FindingKind::Corrupt { expected, last, copied } => {
                let blocks = if expected < last {
                    format!("blocks {expected} to {last}")
                } else {
                    format!("block {expected}")
                };
                write!(f, "{blocks} should stand in these {bytes} bytes, which are damaged")?;
                if *copied {
                    f.write_str("; the index of the file has a copy of what is needed")?;
                }
            }
            FindingKind::BadFrame { copied } => {
                f.write_str("the header of a frame is damaged")?;
                if *copied {
                    f.write_str("; the index of the file has a copy of it")?;
                }
            }
            FindingKind::BadBody => write!(f, "the body of a frame of {bytes} bytes is damaged")?,
            FindingKind::BadFooter => {
                f.write_str("the index of the file is damaged or missing; every start makes it anew")?;
            }
            FindingKind::Missing { stood_in } => write!(
                f,
                "records that should come here are in no file: {stood_in}, or a segment that was made of it, is not there"
            )?,
            FindingKind::Unread => f.write_str("records that should be here cannot be read")?,
            FindingKind::Gap => f.write_str("lost before and given up")?,
            FindingKind::NewerFormat(newer) => newer.fmt(f)?,
            FindingKind::BadVersion => f.write_str("the version of a block is damaged, all else of it is whole")?,
            FindingKind::BadTable => f.write_str("what is said of partitions is damaged or makes no sense")?,
            FindingKind::NewestMissing { first, last } => {
                write!(
                    f,
                    "blocks {first} to {last} were synced in this file, which is not there"
                )?;
            }
            FindingKind::CutShort { had: Some(had) } => write!(f, "the file ends here and had {had} bytes")?,
            FindingKind::CutShort { had: None } => f.write_str("the file ends here, and no commit file is so short")?,
            FindingKind::Misplaced(why) => f.write_str(why)?,
            FindingKind::BadSuperblock if self.is_error => {
                f.write_str("nothing of the superblock can be read, so nobody knows whether the newest file is whole")?;
            }
            FindingKind::BadSuperblock => f.write_str("a part of it is damaged; every start makes it anew")?,
            FindingKind::Refused(why) => write!(f, "the log does not open: {why}")?,
        }
        if let Some((partition, from, to)) = self.records {
            write!(
                f,
                "; records {from} to {} of partition {partition}",
                to.saturating_sub(1)
            )?;
            if self.kind == FindingKind::BadBody && !self.is_error {
                f.write_str(", which are not needed any more")?;
            }
        }
        Ok(())
    }
}

/// All that a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub log_id: Option<u64>,
    /// Commit files with blocks in them, those that are ready for use, and segments.
    pub files: usize,
    pub spares: usize,
    pub segments: usize,
    /// Of all files.
    pub bytes: u64,
    pub blocks: u64,
    pub frames: u64,
    /// The highest sequence that anything names as synced.
    pub synced: Sequence,
    /// Of the last block of the log.
    pub last: Sequence,
    pub partitions: Vec<CheckedPartition>,
    pub findings: Vec<Finding>,
    /// What a repair would give up.
    pub lost: Vec<LostRange>,
    /// What cannot be read either, but stands before a checkpoint: nobody reads it, but what moves files would.
    pub let_go: Vec<LostRange>,
    /// So many records more, of any partitions, are known to have stood in blocks of which nothing is left.
    pub unaccounted: u64,
    /// A repair has each partition go on so many offsets later, so that none that such a block may have had is given out again.
    pub skipped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedPartition {
    pub id: PartitionId,
    pub durability: Durability,
    pub first: Offset,
    pub next: Offset,
    pub epoch: u32,
    /// Of frame bodies, about.
    pub bytes: u64,
    /// Offsets that were given up before.
    pub gaps: u64,
    /// Offsets that cannot be read.
    pub lost: u64,
    /// Offsets that cannot be read either, but stand before a checkpoint.
    pub let_go: u64,
}

/// Offsets that cannot be read, from the first to the one behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    pub partition: PartitionId,
    pub from: Offset,
    pub to: Offset,
}

impl CheckReport {
    /// Whether the log opens and all that is needed can be read.
    pub fn is_whole(&self) -> bool {
        self.errors() == 0
    }

    /// Whether a newer program wrote some of it, so that this one cannot tell what is there and what is not.
    pub fn is_newer(&self) -> bool {
        let newer = |finding: &Finding| matches!(finding.kind, FindingKind::NewerFormat(_));
        self.findings.iter().any(newer)
    }

    /// Records that a repair gives up, as far as is known: those that are known by their offsets, and those of which nothing is left.
    pub fn lost_records(&self) -> u64 {
        let known: u64 = self.lost.iter().map(|lost| lost.to - lost.from).sum();
        known + self.unaccounted
    }

    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error).count()
    }
}
