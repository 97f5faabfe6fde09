//! Maintenance on request: runs the same work at once, for one table or all, for one day or all, or as a dry run.
//!
//! A requested merge does not wait for more files: small files of incomplete buckets are merged, too, but not sealed.
//! Otherwise the same rules apply, through the same table writer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::expire::expired;
use super::vacuum::Vacuum;
use super::{
    MaintainedTable, MaintenanceControl, MaintenanceJobError, MaintenanceOptions, MaintenanceWorker,
    ReplacementCommitter, SkippedFile, days_ago, now,
};
use crate::commit::{Committer, FileReplacement, TableHealth};
use crate::error::OpenError;
use crate::inspect::{InspectError, Lake, date_of};
use crate::metrics::LakeMetrics;
use crate::opening;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::{CompactionJob, CompactionOptions, SealPolicy, plan};
use thalweg_columns::tables::{TableSpec, spec_of};
use thalweg_delta::store::LakeStorage;
use thalweg_delta::{FileEntry, Snapshot};
use thalweg_kit::threads;

const CHECKPOINT_INTERVAL: i64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaintenanceTask {
    /// Merges files.
    Compact,
    /// Removes files beyond their retention.
    Retain,
    /// Deletes unneeded files.
    Vacuum,
}

/// A request for maintenance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceRequest {
    pub task: MaintenanceTask,
    /// `None`: all tables.
    #[serde(default)]
    pub table: Option<String>,
    /// Only files of this day.
    #[serde(default)]
    pub date: Option<String>,
    /// Reports what would be done.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was done, or would be: one merge, or all of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceReport {
    pub task: MaintenanceTask,
    pub table: String,
    pub dry_run: bool,
    /// Files that were merged, removed or deleted; 0: there was nothing to do.
    pub files: u64,
    pub rows: u64,
    pub bytes: u64,
    /// The outputs of a merge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<MaintenanceMerge>,
    /// Why it failed or is incomplete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaintenanceMerge {
    /// The folder of the files within the table.
    pub folder: String,
    pub level: u32,
    pub sealed: bool,
    /// The output files; 0 in a dry run.
    pub files: u64,
    pub bytes: u64,
}

impl MaintenanceReport {
    fn new(asked: &MaintenanceRequest, table: &str) -> MaintenanceReport {
        MaintenanceReport {
            task: asked.task,
            table: table.to_owned(),
            dry_run: asked.dry_run,
            files: 0,
            rows: 0,
            bytes: 0,
            merged: None,
            error: None,
        }
    }

    fn with_files<'f>(self, files: impl Iterator<Item = &'f Arc<FileEntry>>) -> MaintenanceReport {
        files.fold(self, |did, file| MaintenanceReport {
            files: did.files + 1,
            rows: did.rows + file.stats.rows.unwrap_or(0),
            bytes: did.bytes + file.size,
            ..did
        })
    }
}

/// Receives reports; returns false if nobody listens any more and the work should stop.
pub(super) type MaintenanceListener<'t> = dyn FnMut(MaintenanceReport) -> bool + 't;

/// Why a request was not started.
#[derive(Debug, thiserror::Error)]
pub enum MaintenanceRequestError {
    #[error(transparent)]
    Lake(#[from] InspectError),
    #[error("the table {0} is not maintained by this version: its files are neither merged nor expired")]
    NotKept(String),
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// Runs a request for tables that no process writes. The caller must put all others in `left_out`. Blocks; must not be
/// called on a runtime's thread.
pub fn by_hand_alone(
    site: &LakeStorage,
    asked: &MaintenanceRequest,
    left_out: &[String],
    options: MaintenanceOptions,
    metrics: LakeMetrics,
    runtime: &Handle,
    told: &mut dyn FnMut(MaintenanceReport) -> bool,
) -> Result<(), MaintenanceRequestError> {
    let worker = MaintenanceWorker {
        stop: Arc::new(MaintenanceControl::default()),
        options,
        metrics,
        runtime: runtime.clone(),
        memory: Arc::default(),
    };
    let lake = threads::block_on(runtime, Lake::open(site))?;
    let chosen = lake.chosen(asked.table.as_deref())?;
    for name in chosen.into_iter().filter(|name| !left_out.contains(name)) {
        match spec_of(&name) {
            Some(spec) => {
                let (mut table, mut owner) = worker.open_alone(site, spec)?;
                worker.by_hand(asked, &mut table, &mut owner, told);
            }
            None if asked.table.is_some() => return Err(MaintenanceRequestError::NotKept(name)),
            None => {}
        }
    }
    Ok(())
}

/// Commits to a table without another writer.
struct ExclusiveCommitter(Committer);

impl ReplacementCommitter for ExclusiveCommitter {
    fn replace(&mut self, files: FileReplacement, _stop: &MaintenanceControl) -> Option<bool> {
        self.0.replace(&files).ok()
    }
}

impl MaintenanceWorker {
    fn open_alone(
        &self,
        site: &LakeStorage,
        spec: &'static TableSpec,
    ) -> Result<(MaintainedTable, ExclusiveCommitter), MaintenanceRequestError> {
        let columns = (spec.columns)();
        let opened = opening::open(site, spec.name, spec.partitions, &columns);
        let (log, snapshot) = threads::block_on(&self.runtime, opened)?;
        let snapshot = snapshot.ok_or_else(|| InspectError::NoTable {
            name: spec.name.to_owned(),
            known: Vec::new(),
        })?;
        let committer = Committer::new(
            log.clone(),
            snapshot,
            AttributePromotion::default(),
            Arc::<TableHealth>::default(),
            self.metrics.clone(),
            CHECKPOINT_INTERVAL,
            self.runtime.clone(),
        );
        Ok((MaintainedTable::new(spec, &log), ExclusiveCommitter(committer)))
    }

    /// Runs a request for one table.
    pub(super) fn by_hand(
        &self,
        asked: &MaintenanceRequest,
        table: &mut MaintainedTable,
        owner: &mut dyn ReplacementCommitter,
        told: &mut MaintenanceListener<'_>,
    ) {
        let name = table.spec.name;
        let done = match asked.task {
            MaintenanceTask::Compact => self.compact_by_hand(asked, table, owner, told),
            MaintenanceTask::Retain => self.retain_by_hand(asked, table, owner, told),
            MaintenanceTask::Vacuum => self.vacuum_by_hand(asked, table, told),
        };
        if let Err(error) = done {
            told(MaintenanceReport {
                error: Some(error.to_string()),
                ..MaintenanceReport::new(asked, name)
            });
        }
    }

    fn compact_by_hand(
        &self,
        asked: &MaintenanceRequest,
        table: &mut MaintainedTable,
        owner: &mut dyn ReplacementCommitter,
        told: &mut MaintenanceListener<'_>,
    ) -> Result<(), MaintenanceJobError> {
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(());
        };
        let mut left = of_day(snapshot, asked.date.as_deref());
        let mut jobs = 0;
        left.files.retain(|path, _| !table.left_out.contains_key(path));
        while let Some(job) = next_job(&left, now(), &self.options.compaction) {
            let ready = match self.prepare(spec, &log, &left, job) {
                Err(MaintenanceJobError::File(file)) => {
                    left.files.remove(&file.path);
                    told(left_out(asked, spec, &file));
                    continue;
                }
                ready => ready?,
            };
            let job = &ready.job;
            for input in &job.inputs {
                left.files.remove(&input.path);
            }
            let mut into = MaintenanceMerge {
                folder: folder_of(job),
                level: job.level,
                sealed: job.seals == SealPolicy::All,
                files: 0,
                bytes: 0,
            };
            if !asked.dry_run {
                let Some(snapshot) = self.newest(table)? else { break };
                let made = match self.run_job(spec, &log, snapshot, &ready, owner) {
                    Err(MaintenanceJobError::File(file)) => {
                        // The other inputs are planned again.
                        let others = job.inputs.iter().filter(|input| input.path != file.path);
                        left.files
                            .extend(others.map(|input| (input.path.clone(), input.clone())));
                        told(left_out(asked, spec, &file));
                        continue;
                    }
                    made => made?,
                };
                (into.files, into.bytes) = (made.len() as u64, made.iter().map(|add| add.size).sum());
                let jobs = &self.metrics.compaction_jobs;
                jobs.with_label_values(&[spec.name, "ok"]).inc();
                if let Some(snapshot) = self.newest(table)? {
                    let made = made.iter().filter_map(|add| snapshot.file(&add.path));
                    left.files.extend(made.map(|file| (file.path.clone(), file.clone())));
                }
            }
            jobs += 1;
            let did = MaintenanceReport {
                merged: Some(into),
                ..MaintenanceReport::new(asked, spec.name).with_files(job.inputs.iter())
            };
            if !told(did) || self.stop.is_stopped() {
                return Ok(());
            }
        }
        if jobs == 0 {
            told(MaintenanceReport::new(asked, spec.name));
        }
        Ok(())
    }

    fn retain_by_hand(
        &self,
        asked: &MaintenanceRequest,
        table: &mut MaintainedTable,
        owner: &mut dyn ReplacementCommitter,
        told: &mut MaintenanceListener<'_>,
    ) -> Result<(), MaintenanceJobError> {
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(());
        };
        let days = |file: &FileEntry| self.days_kept(spec, file);
        let left = of_day(snapshot, asked.date.as_deref());
        let expired = expired(&left, &days, &days_ago(&log));
        let removed = expired.iter().flat_map(|files| &files.removed);
        let did = MaintenanceReport::new(asked, spec.name).with_files(removed.filter_map(|path| left.files.get(path)));
        if let Some(expired) = expired.filter(|_| !asked.dry_run) {
            if owner.replace(expired, &self.stop) != Some(true) {
                return Err(MaintenanceJobError::Changed);
            }
            let files = self.metrics.expired_files.with_label_values(&[spec.name]);
            files.inc_by(did.files);
        }
        told(did);
        Ok(())
    }

    fn vacuum_by_hand(
        &self,
        asked: &MaintenanceRequest,
        table: &mut MaintainedTable,
        told: &mut MaintenanceListener<'_>,
    ) -> Result<(), MaintenanceJobError> {
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(());
        };
        let is_wanted = |path: &str| asked.date.as_deref().is_none_or(|date| is_of_day(path, date));
        // The background vacuum has cached state of its last run, so this uses a new one.
        let mut vacuum = Vacuum::default();
        let unneeded = vacuum.unneeded(&log, snapshot, self.options.vacuum_retain);
        let mut unneeded = threads::block_on(&self.runtime, unneeded)?;
        unneeded.retain(|file| is_wanted(&file.path));
        let mut did = MaintenanceReport::new(asked, spec.name);
        for file in unneeded {
            if !asked.dry_run {
                threads::block_on(&self.runtime, log.delete_file(&file.path))?;
            }
            did.files += 1;
            did.bytes += file.bytes;
        }
        if !asked.dry_run {
            let files = self.metrics.vacuumed_files.with_label_values(&[spec.name]);
            files.inc_by(did.files);
        }
        told(did);
        Ok(())
    }
}

fn left_out(asked: &MaintenanceRequest, spec: &TableSpec, file: &SkippedFile) -> MaintenanceReport {
    MaintenanceReport {
        error: Some(file.to_string()),
        ..MaintenanceReport::new(asked, spec.name)
    }
}

/// The table with the files of one day only.
fn of_day(snapshot: &Snapshot, date: Option<&str>) -> Snapshot {
    let mut left = snapshot.clone();
    if date.is_some() {
        left.files.retain(|_, file| date_of(snapshot, file) == date);
    }
    left
}

fn is_of_day(path: &str, date: &str) -> bool {
    path.split('/').any(|part| part.strip_prefix("date=") == Some(date))
}

fn folder_of(job: &CompactionJob) -> String {
    let first = job.inputs.first().and_then(|file| file.path.rsplit_once('/'));
    first.map_or_else(String::new, |(folder, _)| folder.to_owned())
}

/// The next due job, then any merge of small files, even in incomplete buckets.
fn next_job(left: &Snapshot, now: i64, options: &CompactionOptions) -> Option<CompactionJob> {
    if let Some(job) = plan(left, now, options) {
        return Some(job);
    }
    let mut rest = left.clone();
    loop {
        let mut job = plan(&rest, i64::MAX, options)?;
        for input in &job.inputs {
            rest.files.remove(&input.path);
        }
        job.inputs.retain(|file| file.size < options.target / 2);
        job.level = job.inputs.iter().map(|file| file.level + 1).max().unwrap_or(job.level);
        job.seals = SealPolicy::Nothing;
        if job.inputs.len() > 1 {
            return Some(job);
        }
    }
}
