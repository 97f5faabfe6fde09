//! `thalweg log check` reads everything that is stored, changes nothing, and continues after every finding. A finding
//! is an error if data that is needed cannot be read or if the log does not open; otherwise it is a note.

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

/// Memory for the indexes of full files.
pub(crate) const INDEX_BYTES: usize = 32 << 20;

/// Called with the number of bytes that have been checked and the total.
pub type CheckProgress<'a> = dyn FnMut(u64, u64) + 'a;

/// Checks a log as it is. Nothing may write to the log meanwhile. Fails only if a file cannot be opened.
pub fn check(disk: &dyn Disk, progress: &mut CheckProgress<'_>) -> Result<CheckReport> {
    let scan = LogScan::of(disk, progress)?;
    Ok(report(disk, &scan))
}

pub(crate) fn report(disk: &dyn Disk, scan: &LogScan) -> CheckReport {
    let mut report = scan.report();
    // The check has its own reading code, so it also verifies that a start agrees with it.
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

/// Whether a start would succeed, apart from its writes.
pub(crate) fn opens(disk: &dyn Disk) -> Result<()> {
    let found = recovery::recover(disk, &IndexCache::new(INDEX_BYTES))?;
    open::partitions(&found, "the log").map(drop)
}
