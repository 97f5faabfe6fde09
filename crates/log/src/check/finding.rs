//! The report of a check: one sentence per finding, and what the log contains.

use std::fmt;

use crate::durability::Durability;
use crate::format::newer::NewerVersion;
use crate::ids::{Offset, PartitionId, Sequence};

/// Something that differs from what was written, or is worth a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Empty if the finding belongs to no file.
    pub file: String,
    pub position: u64,
    pub bytes: u64,
    pub kind: FindingKind,
    /// The affected records, if they belong to a single partition.
    pub records: Option<(PartitionId, Offset, Offset)>,
    /// True if data that is needed cannot be read, or if the log does not open. Otherwise the finding is only
    /// informative.
    pub is_error: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// Blocks that were being written when the process or machine stopped.
    TornTail,
    /// Synced blocks are missing. `copied`: the index of the file has a copy of the headers that are needed.
    Corrupt {
        expected: Sequence,
        last: Sequence,
        copied: bool,
    },
    /// The header of a frame in a segment is damaged. `copied` has the same meaning as for `Corrupt`.
    BadFrame {
        copied: bool,
    },
    BadBody,
    /// The index of a full file is damaged or missing. The next start rebuilds it.
    BadFooter,
    /// Offsets that are in no file. The position is where the partition continues or ends; it is empty if nothing of
    /// the partition is left. `stood_in` names the file that held the offsets.
    Missing {
        stood_in: String,
    },
    /// Offsets that cannot be read from the file that should hold them.
    Unread,
    /// Offsets that were lost and given up earlier.
    Gap,
    NewerFormat(NewerVersion),
    /// A sound block of this version whose version field names another version.
    BadVersion,
    /// The stored table of partitions is damaged or contradicts itself.
    BadTable,
    /// Synced blocks are in a file that does not exist.
    NewestMissing {
        first: Sequence,
        last: Sequence,
    },
    /// The file is shorter than it was when it was created.
    CutShort {
        had: Option<u64>,
    },
    /// The file belongs to another log, or its header contradicts its name.
    Misplaced(String),
    /// One slot of the superblock is damaged, or all of it.
    BadSuperblock,
    /// The log does not open for a reason that no other finding covers.
    Refused(String),
}

impl FindingKind {
    /// The name of the kind in JSON.
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
                write!(f, "{blocks} should be in these {bytes} bytes, which are damaged")?;
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
                f.write_str("the index of the file is damaged or missing; every start rebuilds it")?;
            }
            FindingKind::Missing { stood_in } => write!(
                f,
                "the records that belong here are in no file: {stood_in}, or a segment made from it, is missing"
            )?,
            FindingKind::Unread => f.write_str("records that should be here cannot be read")?,
            FindingKind::Gap => f.write_str("lost earlier and given up")?,
            FindingKind::NewerFormat(newer) => newer.fmt(f)?,
            FindingKind::BadVersion => f.write_str("the version of a block is damaged; the rest is intact")?,
            FindingKind::BadTable => f.write_str("the partition table is damaged or invalid")?,
            FindingKind::NewestMissing { first, last } => {
                write!(f, "blocks {first} to {last} were synced in this file, which is missing")?;
            }
            FindingKind::CutShort { had: Some(had) } => write!(f, "the file ends here, but it had {had} bytes")?,
            FindingKind::CutShort { had: None } => f.write_str("the file ends here; no commit file is this short")?,
            FindingKind::Misplaced(why) => f.write_str(why)?,
            FindingKind::BadSuperblock if self.is_error => {
                f.write_str("the superblock cannot be read, so it is unknown whether the newest file is complete")?;
            }
            FindingKind::BadSuperblock => f.write_str("a part of it is damaged; every start rewrites it")?,
            FindingKind::Refused(why) => write!(f, "the log does not open: {why}")?,
        }
        if let Some((partition, from, to)) = self.records {
            write!(
                f,
                "; records {from} to {} of partition {partition}",
                to.saturating_sub(1)
            )?;
            if self.kind == FindingKind::BadBody && !self.is_error {
                f.write_str(", which are no longer needed")?;
            }
        }
        Ok(())
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub log_id: Option<u64>,
    /// Commit files that contain blocks. Spare files and segments are counted separately.
    pub files: usize,
    pub spares: usize,
    pub segments: usize,
    /// The size of all files.
    pub bytes: u64,
    pub blocks: u64,
    pub frames: u64,
    /// The highest sequence that any header, index or superblock names as synced.
    pub synced: Sequence,
    /// The sequence of the last block of the log.
    pub last: Sequence,
    pub partitions: Vec<CheckedPartition>,
    pub findings: Vec<Finding>,
    /// Offsets that a repair would give up.
    pub lost: Vec<LostRange>,
    /// Unreadable offsets before a checkpoint. Consumers do not read them, but moving the files would.
    pub let_go: Vec<LostRange>,
    /// The number of further lost records that were in blocks of which nothing is left. Their partitions are unknown.
    pub unaccounted: u64,
    /// The number of offsets that a repair skips in each partition, so that no offset of such a block is assigned
    /// twice.
    pub skipped: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedPartition {
    pub id: PartitionId,
    pub durability: Durability,
    pub first: Offset,
    pub next: Offset,
    /// The approximate size of the frame bodies.
    pub bytes: u64,
    /// Offsets that were given up earlier.
    pub gaps: u64,
    /// Offsets that cannot be read.
    pub lost: u64,
    /// Unreadable offsets before a checkpoint.
    pub let_go: u64,
}

/// Offsets that cannot be read: `from` inclusive, `to` exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    pub partition: PartitionId,
    pub from: Offset,
    pub to: Offset,
}

impl CheckReport {
    /// Whether the log opens and everything that is needed can be read.
    pub fn is_whole(&self) -> bool {
        self.errors() == 0
    }

    /// Whether a newer program wrote part of the log, so that this one cannot say what is missing.
    pub fn is_newer(&self) -> bool {
        let newer = |finding: &Finding| matches!(finding.kind, FindingKind::NewerFormat(_));
        self.findings.iter().any(newer)
    }

    /// The number of records that a repair gives up: those with known offsets plus the unaccounted ones.
    pub fn lost_records(&self) -> u64 {
        let known: u64 = self.lost.iter().map(|lost| lost.to - lost.from).sum();
        known + self.unaccounted
    }

    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error).count()
    }
}
