//! Runs a compaction job from plan to commit: fetches as many inputs as there is room for, writes the outputs, and
//! replaces the inputs in one commit.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::sinks::{FolderFileSink, RemoteFileSink};
use super::{MaintenanceJobError, MaintenanceWorker, ReplacementCommitter, SkippedFile};
use crate::commit::FileReplacement;
use crate::rollup;
use thalweg_columns::compaction::{
    CompactionJob, CompactionKind, FileSink, InputRequirements, MergeError, MergeJob, MergeOutput, MergeResult,
    RewriteJob, needs_of,
};
use thalweg_columns::file::FileRules;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::actions::Add;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::FileStats;
use thalweg_delta::store::{FaultKind, LocalFile, RateLimiter};
use thalweg_delta::{DeltaLog, FLUSHED, FileEntry, LEVEL, Snapshot, arrival_of};
use thalweg_kit::{clock, clock::unix_ms, random, threads};

/// A job that is ready to run.
pub(super) struct PreparedCompaction {
    pub job: CompactionJob,
    /// The memory that it will need.
    pub memory: u64,
    pub here: Vec<LocalFile>,
}

impl MaintenanceWorker {
    /// Fits a job into the available space and fetches its files.
    pub(super) fn prepare(
        &self,
        spec: &TableSpec,
        log: &DeltaLog,
        snapshot: &Snapshot,
        mut job: CompactionJob,
    ) -> Result<PreparedCompaction, MaintenanceJobError> {
        if let Some(room) = log.local_room() {
            let sizes: Vec<u64> = job.inputs.iter().map(|file| file.size).collect();
            job.fit(&sizes, room);
        }
        let mut here = self.here(log, &job)?;
        let of_rows = self.options.compaction.memory / 4;
        if job.work == CompactionKind::Rewrite {
            return Ok(PreparedCompaction {
                job,
                memory: 2 * of_rows,
                here,
            });
        }
        let needs = self.needs(spec, snapshot, &job, &here)?;
        // The log may be wrong about a file; the footer decides.
        if let Some(place) = needs.iter().position(|needs| !needs.is_sorted)
            && let Some(file) = job.inputs.get(place)
        {
            return Ok(PreparedCompaction {
                job: CompactionJob::rewrite(file),
                memory: 2 * of_rows,
                here: vec![here.swap_remove(place)],
            });
        }
        let needed: Vec<u64> = needs.iter().map(|needs| needs.memory).collect();
        // Rows of several buckets that wait for their row group, and the encoded row group.
        let of_groups = 4 * self.rules(spec).row_group_bytes as u64;
        let left = self.options.compaction.memory.saturating_sub(of_groups);
        let (kept, used) = job.fit(&needed, left);
        let is_kept = |(place, file)| kept.contains(&place).then_some(file);
        Ok(PreparedCompaction {
            job,
            memory: (of_groups + used).min(self.options.compaction.memory),
            here: here.into_iter().enumerate().filter_map(is_kept).collect(),
        })
    }

    /// What the inputs require, according to their footers.
    fn needs(
        &self,
        spec: &TableSpec,
        snapshot: &Snapshot,
        job: &CompactionJob,
        here: &[LocalFile],
    ) -> Result<Vec<InputRequirements>, MaintenanceJobError> {
        let of_file = |(file, local): (&Arc<FileEntry>, &LocalFile)| {
            needs_of(local.path(), spec, &snapshot.schema).map_err(|error| in_the_way(file, &error))
        };
        job.inputs.iter().zip(here).map(of_file).collect()
    }

    /// Runs a job and returns the new files.
    pub(super) fn run_job(
        &self,
        spec: &'static TableSpec,
        log: &DeltaLog,
        snapshot: &Snapshot,
        ready: &PreparedCompaction,
        owner: &mut dyn ReplacementCommitter,
    ) -> Result<Vec<Add>, MaintenanceJobError> {
        self.memory.store(ready.memory, Ordering::Relaxed);
        let replacement = self.merge(spec, log, snapshot, &ready.job, &ready.here);
        self.memory.store(0, Ordering::Relaxed);
        let replacement = replacement?;
        let added = replacement.added.clone();
        match owner.replace(replacement, &self.stop) {
            Some(true) => Ok(added),
            Some(false) => {
                // Nothing refers to the new files. A failed deletion is left to the vacuum.
                for add in added {
                    let _ = threads::block_on(&self.runtime, log.delete_file(&add.path));
                }
                Err(MaintenanceJobError::Changed)
            }
            None => Err(MaintenanceJobError::Changed),
        }
    }

    fn rules(&self, spec: &TableSpec) -> FileRules {
        let rules = FileRules::default();
        let part = usize::try_from(self.options.compaction.memory / 8).unwrap_or(usize::MAX);
        FileRules {
            zstd_level: match spec.has_revisions() {
                true => self.options.compaction.zstd_level.max(rollup::ZSTD_LEVEL),
                false => self.options.compaction.zstd_level,
            },
            row_group_bytes: part.clamp(1 << 20, rules.row_group_bytes),
        }
    }

    /// Fetches the files of a job.
    fn here(&self, log: &DeltaLog, job: &CompactionJob) -> Result<Vec<LocalFile>, MaintenanceJobError> {
        let here = |file: &Arc<FileEntry>| {
            let local = threads::block_on(&self.runtime, log.local_file(&file.path, file.size));
            local.map_err(|error| match error.kind() == FaultKind::Missing || error.is_no_room() {
                true => in_the_way(file, &error),
                false => error.into(),
            })
        };
        job.inputs.iter().map(here).collect()
    }

    fn merge(
        &self,
        spec: &'static TableSpec,
        log: &DeltaLog,
        snapshot: &Snapshot,
        job: &CompactionJob,
        here: &[LocalFile],
    ) -> Result<FileReplacement, MaintenanceJobError> {
        let start = clock::now();
        let partition = partition(snapshot, job).ok_or(MaintenanceJobError::Changed)?;
        let folder: Vec<String> = partition
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let folder = folder.join("/");
        let pace = Arc::new(RateLimiter::new(self.options.bytes_per_second));
        let begun: RefCell<Vec<String>> = RefCell::default();
        let made = self.make(spec, &snapshot.schema, job, here, &mut || {
            let relative = format!("{folder}/{}.parquet", random::uuid());
            begun.borrow_mut().push(relative.clone());
            let (runtime, pace) = (self.runtime.clone(), pace.clone());
            Ok(match log.remote() {
                None => Box::new(FolderFileSink::begin(log, relative, &runtime, pace)?) as Box<dyn FileSink>,
                Some(remote) => Box::new(RemoteFileSink::begin(log, remote, &relative, &runtime)?),
            })
        });
        let merged = made.inspect_err(|_| {
            // Nothing refers to the new files. A failed deletion is left to the vacuum.
            for path in begun.borrow().iter() {
                let _ = threads::block_on(&self.runtime, log.delete_file(path));
            }
        })?;
        let bytes = &self.metrics.compaction_bytes;
        bytes
            .with_label_values(&["in"])
            .inc_by(job.inputs.iter().map(|file| file.size).sum());
        bytes
            .with_label_values(&["out"])
            .inc_by(merged.outputs.iter().map(|output| output.bytes).sum());
        tracing::info!(
            table = spec.name,
            folder,
            files = here.len(),
            into = merged.outputs.len(),
            rows = merged.tally.rows,
            level = job.level,
            sealed = ?job.seals,
            seconds = start.elapsed().as_secs_f64(),
            "{}",
            match job.work {
                CompactionKind::Merge => "files were merged",
                CompactionKind::Rewrite => "a file of another writer was rewritten",
            }
        );
        let target = self.options.compaction.target;
        Ok(replacement(log, spec, snapshot, job, merged, &partition, target))
    }

    /// Writes the output files of a job.
    fn make(
        &self,
        spec: &'static TableSpec,
        table: &TableSchema,
        job: &CompactionJob,
        here: &[LocalFile],
        new_file: &mut dyn FnMut() -> Result<Box<dyn FileSink>, MergeError>,
    ) -> Result<MergeResult, MaintenanceJobError> {
        let is_stopped = || self.stop.is_stopped();
        let inputs: Vec<PathBuf> = here.iter().map(|file| file.path().to_owned()).collect();
        let made = match (job.work, inputs.first()) {
            (CompactionKind::Rewrite, Some(input)) => RewriteJob {
                spec,
                table,
                input,
                rules: self.rules(spec),
                memory: self.options.compaction.memory / 4,
                is_stopped: &is_stopped,
            }
            .run(new_file),
            _ => MergeJob {
                spec,
                table,
                inputs: &inputs,
                bucket: job.bucket,
                rules: self.rules(spec),
                target_bytes: self.options.compaction.target,
                is_stopped: &is_stopped,
            }
            .run(new_file),
        };
        made.map_err(|error| {
            let bad = match &error {
                MergeError::Foreign { path, .. } | MergeError::Input { path, .. } => Some(path),
                // With a single file it is known which one lacks a column.
                MergeError::NoKey if inputs.len() == 1 => inputs.first(),
                _ => None,
            };
            let place = bad.and_then(|bad| inputs.iter().position(|input| input == bad));
            match place.and_then(|place| job.inputs.get(place)) {
                Some(file) => in_the_way(file, &error),
                None => error.into(),
            }
        })
    }
}

fn in_the_way(file: &FileEntry, error: &dyn std::fmt::Display) -> MaintenanceJobError {
    MaintenanceJobError::File(SkippedFile {
        path: file.path.clone(),
        why: error.to_string(),
    })
}

/// The partition columns with their values for a job.
fn partition(snapshot: &Snapshot, job: &CompactionJob) -> Option<Vec<(String, String)>> {
    let values = job.inputs.first()?.partition.iter();
    let columns = snapshot.metadata.partition_columns.iter().zip(values);
    columns
        .map(|(name, value)| Some((name.clone(), value.as_ref()?.to_string())))
        .collect()
}

/// Whether a job's rows may be newer revisions of rows in other files.
fn revises(snapshot: &Snapshot, job: &CompactionJob) -> bool {
    let times = job.inputs.iter().filter_map(|file| file.times);
    let span = times.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let is_other = |file: &&Arc<FileEntry>| {
        let overlaps = span.zip(file.times).is_some_and(|(a, b)| a.0 <= b.1 && b.0 <= a.1);
        let same = job
            .inputs
            .first()
            .is_some_and(|first| first.partition == file.partition);
        overlaps && same && !job.inputs.iter().any(|input| input.path == file.path)
    };
    job.inputs.iter().any(|file| file.revises) && snapshot.files.values().any(|file| is_other(&file))
}

fn replacement(
    log: &DeltaLog,
    spec: &TableSpec,
    snapshot: &Snapshot,
    job: &CompactionJob,
    merged: MergeResult,
    partition: &[(String, String)],
    target: u64,
) -> FileReplacement {
    let revises = match job.work {
        CompactionKind::Merge => revises(snapshot, job),
        // Each output may have another revision of a row.
        CompactionKind::Rewrite => spec.has_revisions(),
    };
    let arrival_max = match job.work {
        CompactionKind::Merge => job.inputs.iter().filter_map(|file| file.arrival_max).max(),
        CompactionKind::Rewrite => None,
    };
    let last_arrival = job.inputs.iter().map(|file| file.last_arrival()).max();
    let flushed = job.inputs.iter().map(|file| file.flushed_unix_ms).max();
    let partitions: Vec<&str> = partition.iter().map(|(name, _)| name.as_str()).collect();
    let folder = log.local_folder();
    let add = |output: MergeOutput| {
        let stats = FileStats::delta_json(&snapshot.schema, &partitions, &output.footer);
        let arrival_max = arrival_max.or_else(|| arrival_of(&stats)).or(last_arrival);
        let mut tags = vec![(LEVEL, job.level.to_string())];
        tags.extend(arrival_max.map(|arrival| ("thalweg.arrival_max", arrival.to_string())));
        tags.extend(flushed.map(|at| (FLUSHED, at.to_string())));
        if revises {
            tags.push(("thalweg.revises", "true".to_owned()));
        }
        if job.is_sealed(output.bytes, target) {
            tags.push(("thalweg.sealed", "true".to_owned()));
        }
        let tags = tags.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        let path = output.sink.path().strip_prefix(&folder).unwrap_or(output.sink.path());
        Add {
            path: path.to_string_lossy().into_owned(),
            partition_values: partition
                .iter()
                .map(|(name, value)| (name.clone(), Some(value.clone())))
                .collect(),
            size: output.bytes,
            modification_time: unix_ms(),
            data_change: false,
            stats: Some(stats),
            tags: Some(tags.collect()),
            deletion_vector: None,
        }
    };
    FileReplacement {
        operation: "OPTIMIZE",
        kind: "compact",
        removed: job.inputs.iter().map(|file| file.path.clone()).collect(),
        added: merged.outputs.into_iter().map(add).collect(),
        changes_data: false,
    }
}
