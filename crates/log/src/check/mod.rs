//! `thalweg log check`: reads everything that is stored, changes nothing, and goes on after whatever it finds. What it
//! finds is an error if something that is needed cannot be read or the log does not open; the rest is a note.

pub(crate) mod coverage;
mod finding;
pub(crate) mod layout;
pub(crate) mod outline;
pub(crate) mod salvage;
pub(crate) mod scan;
mod segment_frames;
mod table_replay;

pub use finding::{CheckReport, CheckedPartition, Finding, FindingKind, LostRange};

use crate::cache::IndexCache;
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::open;
use crate::recovery;
use scan::LogScan;

/// Indexes of full files that are kept in memory.
pub(crate) const INDEX_BYTES: usize = 32 << 20;

/// Called with the bytes that were looked at so far, and all.
pub type CheckProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// Reads a log as it is. Nothing may write to it meanwhile. Fails only if a file cannot be opened.
pub fn check(disk: &dyn Disk, progress: &mut CheckProgress<'_>) -> Result<CheckReport> {
    let survey = LogScan::of(disk, progress)?;
    Ok(report(disk, &survey))
}

pub(crate) fn report(disk: &dyn Disk, survey: &LogScan) -> CheckReport {
    let mut report = survey.report();
    // The check has eyes of its own; that it agrees with the start is checked, too.
    if report.is_whole()
        && let Err(error) = opens(disk)
    {
        let (file, position) = match &error {
            LogError::Corrupt { file, position, .. } | LogError::NewerFormat { file, position, .. } => {
                (file.clone(), *position)
            }
            LogError::Io { file, .. } => (file.clone(), 0),
            _ => (String::new(), 0),
        };
        report.findings.push(Finding {
            file,
            position,
            bytes: 0,
            kind: FindingKind::Refused(error.to_string()),
            records: None,
            is_error: true,
        });
    }
    report
}

/// Whether a start would go well, but for writing.
pub(crate) fn opens(disk: &dyn Disk) -> Result<()> {
    let found = recovery::recover(disk, &IndexCache::new(INDEX_BYTES))?;
    open::partitions(&found, "the log").map(drop)
}
