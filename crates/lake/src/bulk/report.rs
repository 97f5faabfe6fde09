//! The results of an import.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use thalweg_columns::rows::change_counts::RowChangeCounts;

use super::requests::DecodedRequest;

/// The progress of a file, shared with other threads.
#[derive(Clone, Debug, Default)]
pub struct BulkProgress {
    /// Raw bytes read.
    pub bytes: Arc<AtomicU64>,
    /// The size of the file; 0 if it is unknown.
    pub size: Arc<AtomicU64>,
    pub rows: Arc<AtomicU64>,
    pub rejected: Arc<AtomicU64>,
}

/// The result of a file.
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// The transaction application of the content.
    pub application: String,
    /// By table.
    pub tables: BTreeMap<&'static str, TableReport>,
    /// Rejected records and lines, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// Values that differ from the file, by reason.
    pub changed: BTreeMap<&'static str, u64>,
    pub bytes: u64,
    pub took: Duration,
    /// The path of the bad lines.
    pub quarantine: Option<PathBuf>,
}

/// The result of a file in one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    pub rows: u64,
    /// Parquet files.
    pub files: u64,
    /// The version with the rows; `None` after a dry run.
    pub version: Option<i64>,
    /// The table already had the file, and was not changed.
    pub is_known: bool,
}

impl BulkReport {
    /// Rows that were added, or would be.
    pub fn rows(&self) -> u64 {
        let added = self.tables.values().filter(|table| !table.is_known);
        added.map(|table| table.rows).sum()
    }

    pub fn rejected(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Whether all its tables already had it.
    pub fn is_known(&self) -> bool {
        !self.tables.is_empty() && self.tables.values().all(|table| table.is_known)
    }
}

/// Counts during the import.
#[derive(Debug, Default)]
pub(super) struct BulkCounts {
    pub rejected: BTreeMap<&'static str, u64>,
    pub changed: BTreeMap<&'static str, u64>,
}

impl BulkCounts {
    pub fn rejected(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.rejected.entry(reason).or_default() += count;
        }
    }

    pub fn change(&mut self, reason: &'static str, count: u64) {
        if count > 0 {
            *self.changed.entry(reason).or_default() += count;
        }
    }

    pub fn request(&mut self, decoded: &DecodedRequest) {
        self.changed(&decoded.changed);
        for (reason, count) in &decoded.rejected {
            self.rejected(reason, *count);
        }
    }

    pub fn changed(&mut self, changed: &RowChangeCounts) {
        for (reason, count) in changed.reasons() {
            self.change(reason, count);
        }
    }
}
