//! What became of a file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use thalweg_columns::rows::change_counts::RowChangeCounts;

use super::requests::DecodedRequest;

/// How far a file is, for those who look at it meanwhile.
#[derive(Clone, Debug, Default)]
pub struct BulkProgress {
    /// Bytes of the file, as it lies there.
    pub bytes: Arc<AtomicU64>,
    /// How many it has; 0 where nobody knows.
    pub size: Arc<AtomicU64>,
    pub rows: Arc<AtomicU64>,
    pub rejected: Arc<AtomicU64>,
}

/// What became of a file.
#[derive(Clone, Debug, Default)]
pub struct BulkReport {
    /// Of the content, as the tables name it.
    pub application: String,
    /// By table.
    pub tables: BTreeMap<&'static str, TableReport>,
    /// Records and lines that are in no table, by reason.
    pub rejected: BTreeMap<&'static str, u64>,
    /// What is not in the rows as it was in the file, by reason.
    pub changed: BTreeMap<&'static str, u64>,
    pub bytes: u64,
    pub took: Duration,
    /// Where bad lines are, with their numbers and reasons.
    pub quarantine: Option<PathBuf>,
}

/// What one table has of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    pub rows: u64,
    /// Of Parquet.
    pub files: u64,
    /// That has the rows; none after a dry run.
    pub version: Option<i64>,
    /// The table had the file before, and nothing was changed.
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

    /// Whether all its tables had it before.
    pub fn is_known(&self) -> bool {
        !self.tables.is_empty() && self.tables.values().all(|table| table.is_known)
    }
}

/// What is counted on the way.
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
