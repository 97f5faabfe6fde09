//! Writes files' rows to tables, beside other writers: Parquet files while the input is read, and one commit per table
//! at its end.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::runtime::Handle;

use super::error::BulkError;
use super::memtable::BulkBatch;
use super::report::TableReport;
use crate::commit::{CommitError, CommittedOffset, Committer, StagedFile, TableHealth};
use crate::error::AppendError;
use crate::ingest::files::ChunkBatch;
use crate::metrics::LakeMetrics;
use crate::named_rows::{PromotedColumn, promoted};
use crate::opening;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::file::FileRules;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::store::LakeStorage;
use thalweg_delta::{DeltaLog, Snapshot};
use thalweg_kit::threads;

/// How long a full disk or a folder without permission is retried.
const PATIENCE: Duration = Duration::from_secs(30);
/// A checkpoint that takes longer is left to the next one.
const CHECKPOINT_WAIT: Duration = Duration::from_secs(60);
/// The transaction version of a file is its run, with the number of its tables in the lowest bits.
const TABLES_BITS: u32 = 3;

/// How tables are written.
pub(super) struct BulkWriterConfig {
    pub site: LakeStorage,
    pub files: FileRules,
    /// By table; other tables use the default.
    pub promotions: Vec<(&'static str, AttributePromotion)>,
    pub checkpoint_interval: i64,
    pub metrics: LakeMetrics,
    pub runtime: Handle,
}

/// Keeps the state of tables from one file to the next.
pub(super) struct BulkTables {
    writing: BulkWriterConfig,
    committers: BTreeMap<&'static str, Committer>,
    /// The files of the rows so far, by table.
    staged: BTreeMap<&'static str, Vec<StagedFile>>,
}

/// What a table has of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PriorImport {
    /// How often it was imported.
    pub round: i64,
    /// How many tables its rows belong to.
    pub tables: i64,
}

impl PriorImport {
    fn of(number: i64) -> PriorImport {
        PriorImport {
            round: number >> TABLES_BITS,
            tables: number & ((1 << TABLES_BITS) - 1),
        }
    }

    fn number(self) -> i64 {
        self.round << TABLES_BITS | self.tables
    }
}

impl BulkTables {
    pub fn new(writing: BulkWriterConfig) -> BulkTables {
        BulkTables {
            writing,
            committers: BTreeMap::new(),
            staged: BTreeMap::new(),
        }
    }

    /// Whether the newest version of a table has a file.
    pub fn known(&mut self, spec: &'static TableSpec, application: &str) -> Result<Option<PriorImport>, BulkError> {
        let Some(committer) = self.committer(spec)? else {
            return Ok(None);
        };
        committer.refresh().map_err(stopped)?;
        let number = committer.snapshot.transactions.get(application);
        Ok(number.map(|number| PriorImport::of(*number)))
    }

    /// The committer of a table, if the table exists.
    fn committer(&mut self, spec: &'static TableSpec) -> Result<Option<&mut Committer>, BulkError> {
        if !self.committers.contains_key(spec.name) {
            let joined = opening::join(&self.writing.site, spec);
            let (log, snapshot) = threads::block_on(&self.writing.runtime, joined)?;
            let Some(snapshot) = snapshot else { return Ok(None) };
            opening::check_types(&log, Some(&snapshot), &self.promotion(spec))?;
            self.insert(spec, log, snapshot);
        }
        Ok(self.committers.get_mut(spec.name))
    }

    /// The committer of a table, which is created if it does not exist.
    fn writer(&mut self, spec: &'static TableSpec) -> Result<&mut Committer, BulkError> {
        if self.committer(spec)?.is_none() {
            let BulkWriterConfig {
                site, metrics, runtime, ..
            } = &self.writing;
            let (log, _) = threads::block_on(runtime, opening::join(site, spec))?;
            let columns = (spec.columns)();
            let made = opening::create(&log, spec.partitions, &columns, metrics);
            let snapshot = threads::block_on(runtime, made)?;
            self.insert(spec, log, snapshot);
        }
        let committer = self.committers.get_mut(spec.name);
        committer.ok_or_else(|| BulkError::Table(AppendError::Stopped))
    }

    fn promotion(&self, spec: &TableSpec) -> AttributePromotion {
        let promotion = self.writing.promotions.iter().find(|(name, _)| *name == spec.name);
        promotion.map(|(_, promotion)| promotion.clone()).unwrap_or_default()
    }

    fn insert(&mut self, spec: &'static TableSpec, log: DeltaLog, snapshot: Snapshot) {
        let (promotion, writing) = (self.promotion(spec), &self.writing);
        let committer = Committer::new(
            log,
            snapshot,
            promotion,
            Arc::new(TableHealth::with_patience(PATIENCE)),
            writing.metrics.clone(),
            writing.checkpoint_interval,
            writing.runtime.clone(),
        );
        self.committers.insert(spec.name, committer);
    }

    /// Stores batches as they come, in a folder that no reader sees.
    pub fn stage(&mut self, parts: &Receiver<BulkBatch>, folder: &Path) -> Result<(), BulkError> {
        let rules = self.writing.files.clone();
        for part in parts {
            let rows = together(&part, &rules);
            let staged = self.writer(part.spec)?.stage(&rows, folder).map_err(stopped)?;
            self.staged.entry(part.spec.name).or_default().extend(staged);
        }
        Ok(())
    }

    /// Drops the staged files. Their folder is removed by its owner.
    pub fn forget(&mut self) {
        self.staged.clear();
    }

    /// Makes one commit for each table, with the rest of the rows. A table that has the file stays as it is, unless
    /// `again` is set.
    pub fn commit(
        &mut self,
        application: &str,
        again: bool,
        rest: Vec<BulkBatch>,
        specs: &[&'static TableSpec],
    ) -> Result<BTreeMap<&'static str, TableReport>, BulkError> {
        let mut rest: BTreeMap<&str, BulkBatch> = rest.into_iter().map(|part| (part.spec.name, part)).collect();
        let mut staged = std::mem::take(&mut self.staged);
        let mut reports = BTreeMap::new();
        let tables = i64::try_from(specs.len()).unwrap_or(1);
        for spec in specs {
            let part = rest.remove(spec.name).unwrap_or(BulkBatch {
                spec,
                chunks: Vec::new(),
            });
            let staged = staged.remove(spec.name).unwrap_or_default();
            let known = self.known(spec, application)?;
            let mut report = TableReport {
                rows: part.rows() + staged.iter().map(|file| file.rows).sum::<u64>(),
                ..TableReport::default()
            };
            let round = match (known, again) {
                (Some(_), false) => {
                    report.is_known = true;
                    reports.insert(spec.name, report);
                    continue;
                }
                (known, _) => known.map_or(0, |known| known.round + 1),
            };
            let taken = CommittedOffset {
                application: application.to_owned(),
                offset: PriorImport { round, tables }.number(),
                is_last: true,
            };
            self.commit_one(&part, &staged, taken, &mut report)?;
            reports.insert(spec.name, report);
        }
        Ok(reports)
    }

    fn commit_one(
        &mut self,
        part: &BulkBatch,
        staged: &[StagedFile],
        taken: CommittedOffset,
        report: &mut TableReport,
    ) -> Result<(), BulkError> {
        let rules = self.writing.files.clone();
        let committer = self.writer(part.spec)?;
        let adds: Vec<_> = staged.iter().map(|file| file.add.clone()).collect();
        let rows = together(part, &rules);
        committer.place(staged).map_err(stopped)?;
        match committer.commit_with(&rows, &adds, &[taken]).map_err(stopped)? {
            Some(files) => {
                report.version = Some(committer.snapshot.version);
                report.files = files as u64;
            }
            // Another process committed the same file at the same time. The files here are deleted by the vacuum, like
            // those of an attempt with unknown outcome.
            None => report.is_known = true,
        }
        Ok(())
    }

    /// The current attribute columns of a table.
    pub fn promoted(&mut self, spec: &'static TableSpec) -> Result<Vec<PromotedColumn>, BulkError> {
        let columns = (spec.columns)();
        let committer = self.committer(spec)?;
        Ok(committer.map_or_else(|| promoted(&columns), |committer| promoted(&committer.snapshot.schema)))
    }

    /// Returns when all writing has ended.
    pub fn close(self) {
        for committer in self.committers.values() {
            committer.finish_checkpoint(CHECKPOINT_WAIT);
        }
    }
}

fn together<'a>(part: &'a BulkBatch, rules: &'a FileRules) -> ChunkBatch<'a> {
    ChunkBatch {
        spec: part.spec,
        chunks: &part.chunks,
        rules,
    }
}

fn stopped(stop: CommitError) -> BulkError {
    match stop {
        CommitError::Failed(error) | CommitError::Rows(error) => BulkError::Table(error),
    }
}
