//! Verifies tables against their logs: files exist and are complete, footers agree with the log, rows are in sort order
//! and of their day. `deep` also reads every page, and compares all values with the statistics.
//!
//! Files are checked concurrently. A table may change meanwhile: findings about files that have left it since are
//! dropped.

mod file;
mod index;
mod pages;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use serde::Serialize;
use tokio::runtime::Handle;

use super::{InspectError, Lake};
use thalweg_columns::tables::{TableSpec, spec_of};
use thalweg_delta::{DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_kit::threads;

/// The name of the threads that check files. A reader's panic about a damaged file is reported as a finding, so panic
/// messages of these threads can be suppressed.
pub const VERIFY_THREAD: &str = "lake-verify";
/// The most files that are checked concurrently.
const FILES_AT_A_TIME: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
pub struct VerifyOptions {
    /// Reads all pages.
    pub deep: bool,
}

/// A problem of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    pub table: String,
    /// `None`: a problem of the table's log.
    pub file: Option<String>,
    /// `log`, `missing`, `size`, `unreadable`, `columns`, `rows`, `statistics`, `index`, `order`, `date`, `values`.
    pub kind: &'static str,
    pub problem: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.file {
            Some(file) => write!(f, "{}/{file}: {}", self.table, self.problem),
            None => write!(f, "{}: {}", self.table, self.problem),
        }
    }
}

/// The result for a table.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    pub table: String,
    pub version: Option<i64>,
    pub files: u64,
    /// According to the files.
    pub rows: u64,
    pub bytes: u64,
    pub findings: Vec<Finding>,
}

/// The context of the file checks of a table.
struct VerifyTarget<'t> {
    log: &'t DeltaLog,
    snapshot: &'t Snapshot,
    /// `None` for foreign tables, whose sort order is unknown.
    spec: Option<&'static TableSpec>,
    options: VerifyOptions,
    runtime: Handle,
}

/// The result for one file.
struct FileCheck {
    bytes: u64,
    rows: u64,
    findings: Vec<(&'static str, String)>,
}

/// Verifies one table. `progress` is called with the checked bytes and the total.
pub async fn verify(
    lake: &Lake,
    table: &str,
    options: VerifyOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Result<VerifyReport, InspectError> {
    let mut verified = VerifyReport {
        table: table.to_owned(),
        version: None,
        files: 0,
        rows: 0,
        bytes: 0,
        findings: Vec::new(),
    };
    let (log, snapshot) = match lake.newest(table, SnapshotDetail::Stats).await {
        Ok(newest) => newest,
        Err(InspectError::Table(error)) => {
            verified.findings.push(of_log(table, &error));
            return Ok(verified);
        }
        Err(error) => return Err(error),
    };
    verified.version = Some(snapshot.version);
    verified.findings.extend(commits(&log, &snapshot).await);
    let subject = VerifyTarget {
        log: &log,
        snapshot: &snapshot,
        spec: spec_of(table),
        options,
        runtime: Handle::current(),
    };
    let seen = tokio::task::block_in_place(|| look_at_all(&subject, progress));
    // Files that have left the table meanwhile may be deleted.
    let now = match log.load(SnapshotDetail::Counts).await {
        Ok(now) => now.map(|now| now.files.into_keys().collect::<HashSet<_>>()),
        Err(_) => None,
    };
    for (file, seen) in seen {
        verified.files += 1;
        verified.rows += seen.rows;
        verified.bytes += seen.bytes;
        if now.as_ref().is_none_or(|now| now.contains(&file.path)) {
            let finding = |(kind, problem)| Finding {
                table: table.to_owned(),
                file: Some(file.path.to_string()),
                kind,
                problem,
            };
            verified.findings.extend(seen.findings.into_iter().map(finding));
        }
    }
    verified.findings.sort();
    Ok(verified)
}

fn of_log(table: &str, error: &DeltaError) -> Finding {
    Finding {
        table: table.to_owned(),
        file: None,
        kind: "log",
        problem: error.to_string(),
    }
}

/// Every commit from the oldest on must exist and be complete.
async fn commits(log: &DeltaLog, snapshot: &Snapshot) -> Vec<Finding> {
    let found = async {
        let Some(versions) = log.versions().await? else {
            return Ok(Vec::new());
        };
        let numbers = log.commit_numbers().await?;
        let newest = numbers.last().copied().unwrap_or(snapshot.version);
        // The commit of a checkpoint may be missing.
        let expected = *versions.all.start() + 1..=newest;
        let missing = expected
            .clone()
            .filter(|version| numbers.binary_search(version).is_err());
        let missing = missing.map(|version| format!("commit {version} is missing in _delta_log"));
        let missing: Vec<String> = missing.collect();
        // Readers stop at a gap.
        for version in expected.take_while(|version| *version <= snapshot.version) {
            log.read_commit(version).await?;
        }
        Ok::<_, DeltaError>(missing)
    };
    let finding = |problem| Finding {
        table: log.table_name().to_owned(),
        file: None,
        kind: "log",
        problem,
    };
    match found.await {
        Ok(missing) => missing.into_iter().map(finding).collect(),
        Err(error) => vec![of_log(log.table_name(), &error)],
    }
}

fn look_at_all(
    subject: &VerifyTarget<'_>,
    progress: &mut (dyn FnMut(u64, u64) + Send),
) -> Vec<(Arc<FileEntry>, FileCheck)> {
    let files: Vec<&Arc<FileEntry>> = subject.snapshot.files.values().collect();
    let all = subject.snapshot.bytes;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    std::thread::scope(|scope| {
        for _ in 0..cores.min(FILES_AT_A_TIME).min(files.len()) {
            let (files, next, sender) = (&files, &next, sender.clone());
            let look = move || {
                while let Some(entry) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seen = file::look_at(subject, entry);
                    if sender.send((Arc::clone(entry), seen)).is_err() {
                        return;
                    }
                }
            };
            if let Err(error) = threads::spawn_scoped(scope, VERIFY_THREAD, look) {
                tracing::debug!("files are checked with fewer threads: {error}");
                break;
            }
        }
        drop(sender);
        let (mut done, mut seen) = (0, Vec::new());
        for (entry, of_file) in receiver {
            done += entry.size;
            progress(done, all);
            seen.push((entry, of_file));
        }
        // If no thread could be started, check the files here.
        while let Some(entry) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            seen.push((Arc::clone(entry), file::look_at(subject, entry)));
        }
        seen
    })
}
