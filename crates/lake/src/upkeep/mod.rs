//! What happens to tables by itself: files are merged, those whose rows are too old leave, and those that nobody needs are deleted.
//!
//! One thread does it for all tables, one thing after the other. Whatever it changes is one commit of the table's writer, so it may
//! end at any moment: what it made without a commit is deleted as nobody's later.

mod by_hand;
mod expire;
mod rolling;
#[cfg(test)]
mod tests;
mod vacuum;

pub use by_hand::{ByHand, ByHandError, Did, MergedInto, Task, by_hand_alone};

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use object_store::{MultipartUpload, PutPayload};
use parking_lot::{Condvar, Mutex};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::commit::{Health, Replacement, unix_ms};
use crate::compaction::{CompactionOptions, Job, Merge, MergeError, Merged, Output, Sink, memory_of, pending, plan};
use crate::delta::actions::Add;
use crate::delta::stats::FileStats;
use crate::delta::{DeltaError, DeltaLog, Detail, FileEntry, Snapshot};
use crate::file::FileRules;
use crate::ingest::TableWriter;
use crate::metrics::LakeMetrics;
use crate::rollup::Resolution;
use crate::rollup::job::{RollupOptions, Rollups};
use crate::store::{Growing, LocalFile, PART_BYTES, Pace, Remote, fault_text};
use crate::tables::TableSpec;
use expire::expired;
use rolling::Rolling;
use vacuum::Vacuum;

/// So often files are looked for that are older than they are kept, and that nobody needs.
const CLEAN_EVERY: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 3_600_000 });
/// After a job that failed its table is left alone for so long.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 60_000 });
/// Files are written in pieces of this size, so that nobody waits long for the disk.
const PIECE_BYTES: usize = 1 << 20;

/// How tables are kept in order.
#[derive(Clone, Debug)]
pub struct UpkeepOptions {
    pub compaction: CompactionOptions,
    /// What may be written; 0 is no limit.
    pub bytes_per_second: u64,
    /// Days after which rows leave, by table; 0 keeps them.
    pub retention: Vec<(&'static str, u32)>,
    /// Of rollups, by table and resolution.
    pub rollup_retention: Vec<(&'static str, [u32; 5])>,
    pub rollup: RollupOptions,
    /// How long files stay that were removed.
    pub vacuum_retain: Duration,
    /// So often tables are looked at.
    pub look_every: Duration,
}

impl Default for UpkeepOptions {
    fn default() -> UpkeepOptions {
        UpkeepOptions {
            compaction: CompactionOptions::default(),
            bytes_per_second: 256 << 20,
            retention: Vec::new(),
            rollup_retention: Vec::new(),
            rollup: RollupOptions::default(),
            vacuum_retain: Duration::from_secs(24 * 3600),
            look_every: Duration::from_secs(10),
        }
    }
}

/// Keeps tables in order in the background. Stops when it is dropped; what is on its way is given up.
pub struct Upkeep {
    stop: Arc<Stop>,
    /// Those that are kept in order.
    kept: Mutex<Vec<&'static str>>,
    /// Tables that it does not know yet.
    new: Arc<Mutex<Vec<Arc<TableWriter>>>>,
    thread: Option<JoinHandle<()>>,
}

/// What others want of the thread.
#[derive(Default)]
struct Stop {
    wanted: Mutex<Wanted>,
    changed: Condvar,
    /// Of those who wait for a store.
    waiting: Mutex<Vec<Arc<Health>>>,
}

#[derive(Default)]
struct Wanted {
    stop: bool,
    /// With whoever is told.
    by_hand: VecDeque<(ByHand, UnboundedSender<Did>)>,
}

impl Stop {
    fn is_stopped(&self) -> bool {
        self.wanted.lock().stop
    }

    /// Somebody waits for something else than what is done by itself.
    fn is_wanted(&self) -> bool {
        let wanted = self.wanted.lock();
        wanted.stop || !wanted.by_hand.is_empty()
    }

    /// Returns whether it is stopped.
    fn wait(&self, at_most: Duration) -> bool {
        let mut wanted = self.wanted.lock();
        if !wanted.stop && wanted.by_hand.is_empty() {
            self.changed.wait_for(&mut wanted, at_most);
        }
        wanted.stop
    }

    fn next_by_hand(&self) -> Option<(ByHand, UnboundedSender<Did>)> {
        self.wanted.lock().by_hand.pop_front()
    }
}

impl Upkeep {
    /// Must be called on a tokio runtime.
    pub fn start(options: UpkeepOptions, metrics: LakeMetrics) -> std::io::Result<Upkeep> {
        let stop = Arc::new(Stop::default());
        let new: Arc<Mutex<Vec<Arc<TableWriter>>>> = Arc::default();
        let memory = Arc::new(AtomicU64::new(0));
        let watched = memory.clone();
        metrics.watch_share("lake.compaction.memory", options.compaction.memory, move || {
            watched.load(Ordering::Relaxed)
        });
        let worker = Worker {
            stop: stop.clone(),
            memory,
            options,
            metrics,
            runtime: Handle::current(),
        };
        let tables = new.clone();
        let run = move || worker.run(&tables);
        let thread = std::thread::Builder::new().name("lake-upkeep".to_owned()).spawn(run)?;
        Ok(Upkeep {
            stop,
            kept: Mutex::default(),
            new,
            thread: Some(thread),
        })
    }

    /// Keeps one more table in order.
    pub fn keep(&self, table: Arc<TableWriter>) {
        let spec = table.spec();
        let specs = std::iter::once(spec).chain(spec.rollup);
        self.kept.lock().extend(specs.map(|spec| spec.name));
        self.new.lock().push(table);
    }

    /// Whether it ended by itself, which it never should.
    pub fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Returns when nothing is written any more.
    pub fn stop(mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            // What it has to say about a panic was said.
            let _ = thread.join();
        }
    }

    /// The tables that are kept in order.
    pub fn tables(&self) -> Vec<String> {
        self.kept.lock().iter().map(|name| (*name).to_owned()).collect()
    }

    /// Does something next, because somebody asked. The receiver is told what was done, and ends when there is no more; then what is
    /// on its way is brought to its end, and no more is begun.
    pub fn ask(&self, asked: ByHand) -> UnboundedReceiver<Did> {
        let (told, did) = mpsc::unbounded_channel();
        // Where nobody is left to do it, the receiver ends at once.
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            self.stop.wanted.lock().by_hand.push_back((asked, told));
            self.stop.changed.notify_all();
        }
        did
    }

    fn tell(&self) {
        let mut wanted = self.stop.wanted.lock();
        wanted.stop = true;
        // Whoever waits hears that there is no more.
        wanted.by_hand.clear();
        drop(wanted);
        self.stop.waiting.lock().iter().for_each(|health| health.abandon());
        self.stop.changed.notify_all();
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.tell();
    }
}

struct Worker {
    stop: Arc<Stop>,
    /// What the merge that runs is going to take.
    memory: Arc<AtomicU64>,
    options: UpkeepOptions,
    metrics: LakeMetrics,
    runtime: Handle,
}

/// The one that commits to a table.
trait Owner {
    /// Puts files in the place of others. `false`: these were not there any more; `None`: nobody knows, or nothing is written any more.
    fn replace(&mut self, files: Replacement) -> Option<bool>;
}

impl Owner for Arc<TableWriter> {
    fn replace(&mut self, files: Replacement) -> Option<bool> {
        TableWriter::replace(self, files).recv().ok()
    }
}

impl Owner for Rollups {
    fn replace(&mut self, files: Replacement) -> Option<bool> {
        Rollups::replace(self, &files)
    }
}

/// What is known of a table.
struct Known {
    spec: &'static TableSpec,
    log: DeltaLog,
    snapshot: Option<Snapshot>,
    left_alone: Option<Instant>,
    told: Told,
    vacuum: Vacuum,
    cleaned: Option<Instant>,
}

/// What was said last of what does not work: the same again is no news.
#[derive(Default)]
struct Told(Option<String>);

impl Told {
    fn is_news(&mut self, text: &str) -> bool {
        let is_news = self.0.as_deref() != Some(text);
        self.0 = Some(text.to_owned());
        is_news
    }
}

impl Known {
    fn new(spec: &'static TableSpec, log: &DeltaLog) -> Known {
        Known {
            spec,
            log: log.clone(),
            snapshot: None,
            left_alone: None,
            told: Told::default(),
            vacuum: Vacuum::default(),
            cleaned: None,
        }
    }
}

/// A job that is about to be done.
struct Ready {
    job: Job,
    /// What it is going to take.
    memory: u64,
    here: Vec<LocalFile>,
}

/// Why a job came to nothing.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    Table(#[from] DeltaError),
    /// Others changed the table, or it ends.
    #[error("the table has changed")]
    Changed,
}

impl Worker {
    fn run(self, new: &Mutex<Vec<Arc<TableWriter>>>) {
        let mut rollups: Vec<Rolling> = Vec::new();
        let mut tables: Vec<(Arc<TableWriter>, Known)> = Vec::new();
        while !self.stop.wait(self.options.look_every) {
            let new = std::mem::take(&mut *new.lock());
            for writer in new {
                rollups.push(Rolling::of(writer.clone()));
                let known = Known::new(writer.spec(), writer.log());
                tables.push((writer, known));
            }
            if let Some((asked, told)) = self.stop.next_by_hand() {
                let told = &mut |did| told.send(did).is_ok();
                let is_asked = |table: &Known| asked.table.as_deref().is_none_or(|name| name == table.spec.name);
                for (writer, table) in tables.iter_mut().filter(|(_, table)| is_asked(table)) {
                    self.by_hand(&asked, table, writer, told);
                }
                for rolling in &mut rollups {
                    if rolling.rolled.is_none() {
                        let _opened = self.roll(rolling);
                    }
                    if let Some(rolled) = rolling.rolled.as_mut().filter(|rolled| is_asked(&rolled.table)) {
                        self.by_hand(&asked, &mut rolled.table, &mut rolled.rollups, told);
                    }
                }
                continue;
            }
            for (writer, table) in &mut tables {
                self.keep(table, writer);
            }
            for rolling in &mut rollups {
                let is_made = self.roll(rolling);
                // Fine windows are not let go before coarser ones are made of them.
                if let Some(rolled) = rolling.rolled.as_mut().filter(|_| is_made) {
                    self.keep(&mut rolled.table, &mut rolled.rollups);
                }
            }
        }
    }

    fn keep(&self, table: &mut Known, owner: &mut dyn Owner) {
        self.look_at(table, owner);
        if table.cleaned.is_none_or(|cleaned| cleaned.elapsed() >= CLEAN_EVERY) {
            table.cleaned = Some(Instant::now());
            if let Err(error) = self.clean(table, owner) {
                tracing::warn!(
                    table = table.spec.name,
                    "old files could not be looked for, which is tried again: {error}"
                );
            }
        }
    }

    /// Does what there is to do.
    fn look_at(&self, table: &mut Known, owner: &mut dyn Owner) {
        if table.left_alone.is_some_and(|until| until > Instant::now()) {
            return;
        }
        while !self.stop.is_wanted() {
            let name = table.spec.name;
            let outcome = match self.step(table, owner) {
                Ok(false) => {
                    table.told = Told::default();
                    return;
                }
                Ok(true) => "ok",
                Err(Failed::Changed | Failed::Merge(MergeError::Stopped)) => "dropped",
                Err(error) => {
                    let code = match error {
                        Failed::Merge(MergeError::Mismatch { .. }) => "lake.compaction_mismatch: ",
                        _ => "",
                    };
                    let text = format!("{code}files were not merged, and stay as they are: {error}");
                    if table.told.is_news(&text) {
                        tracing::error!(table = name, "{text}");
                    }
                    table.left_alone = Some(Instant::now() + PAUSE);
                    "failed"
                }
            };
            let jobs = &self.metrics.compaction_jobs;
            jobs.with_label_values(&[name, outcome]).inc();
            if outcome != "ok" {
                return;
            }
        }
    }

    /// What the table has now; `None` if it was not made yet.
    fn newest<'a>(&self, table: &'a mut Known) -> Result<Option<&'a Snapshot>, Failed> {
        match &mut table.snapshot {
            Some(snapshot) => {
                self.runtime.block_on(table.log.refresh(snapshot))?;
            }
            none => *none = self.runtime.block_on(table.log.load(Detail::Counts))?,
        }
        Ok(table.snapshot.as_ref())
    }

    /// Lets old rows go, and deletes files.
    fn clean(&self, table: &mut Known, owner: &mut dyn Owner) -> Result<(), Failed> {
        let (name, mut vacuum) = (table.spec.name, std::mem::take(&mut table.vacuum));
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(());
        };
        let days = |file: &FileEntry| self.days_kept(spec, file);
        if let Some(expired) = expired(snapshot, &days, now()) {
            let files = expired.removed.len() as u64;
            if owner.replace(expired) != Some(true) {
                return Err(Failed::Changed);
            }
            self.metrics.expired_files.with_label_values(&[name]).inc_by(files);
            tracing::info!(table = name, files, "rows were older than they are kept");
        }
        let deleted = self
            .runtime
            .block_on(vacuum.run(&log, snapshot, self.options.vacuum_retain));
        table.vacuum = vacuum;
        let deleted = deleted?;
        self.metrics.vacuumed_files.with_label_values(&[name]).inc_by(deleted);
        if deleted > 0 {
            tracing::info!(table = name, files = deleted, "files that nobody needs were deleted");
        }
        Ok(())
    }

    /// 0 keeps them.
    fn days_kept(&self, spec: &TableSpec, file: &FileEntry) -> u32 {
        if spec.has_revisions() {
            let of = |resolution: &Resolution| {
                let seconds = file.partition.first().and_then(Option::as_deref);
                seconds == Some(resolution.seconds().to_string().as_str())
            };
            let days = self.options.rollup_retention.iter();
            let days = days.filter(|(table, _)| *table == spec.name);
            let of_table = days.flat_map(|(_, days)| Resolution::ALL.iter().zip(days));
            return of_table
                .filter(|(resolution, _)| of(resolution))
                .map(|(_, days)| *days)
                .next()
                .unwrap_or(0);
        }
        let days = self.options.retention.iter().find(|(table, _)| *table == spec.name);
        days.map_or(0, |(_, days)| *days)
    }

    /// Returns whether there was a job.
    fn step(&self, table: &mut Known, owner: &mut dyn Owner) -> Result<bool, Failed> {
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(false);
        };
        let (now, options) = (now(), &self.options.compaction);
        let pending = i64::try_from(pending(snapshot, now, options)).unwrap_or(i64::MAX);
        let gauge = &self.metrics.compaction_pending_bytes;
        gauge.with_label_values(&[spec.name]).set(pending);
        let Some(job) = plan(snapshot, now, options) else {
            return Ok(false);
        };
        let ready = self.prepare(spec, &log, snapshot, job)?;
        self.run_job(spec, &log, snapshot, &ready, owner)?;
        Ok(true)
    }

    /// A job for which there is room, and its files at hand.
    fn prepare(&self, spec: &TableSpec, log: &DeltaLog, snapshot: &Snapshot, job: Job) -> Result<Ready, Failed> {
        let job = within_room(job, log.local_room());
        let here = self.here(log, &job)?;
        let (job, memory) = self.within_memory(spec, &here, snapshot, job);
        Ok(Ready { job, memory, here })
    }

    /// Merges files, and returns those that were made.
    fn run_job(
        &self,
        spec: &'static TableSpec,
        log: &DeltaLog,
        snapshot: &Snapshot,
        ready: &Ready,
        owner: &mut dyn Owner,
    ) -> Result<Vec<Add>, Failed> {
        self.memory.store(ready.memory, Ordering::Relaxed);
        let replacement = self.merge(spec, log, snapshot, &ready.job, &ready.here);
        self.memory.store(0, Ordering::Relaxed);
        let replacement = replacement?;
        let added = replacement.added.clone();
        match owner.replace(replacement) {
            Some(true) => Ok(added),
            Some(false) => {
                // Nobody refers to what was made. What cannot be deleted is an orphan.
                for add in added {
                    let _ = self.runtime.block_on(log.delete_file(&add.path));
                }
                Err(Failed::Changed)
            }
            None => Err(Failed::Changed),
        }
    }

    fn rules(&self) -> FileRules {
        let rules = FileRules::default();
        let part = usize::try_from(self.options.compaction.memory / 8).unwrap_or(usize::MAX);
        FileRules {
            zstd_level: self.options.compaction.zstd_level,
            row_group_bytes: part.clamp(1 << 20, rules.row_group_bytes),
        }
    }

    /// The files of a job, to be opened.
    fn here(&self, log: &DeltaLog, job: &Job) -> Result<Vec<LocalFile>, Failed> {
        let here = |file: &Arc<FileEntry>| self.runtime.block_on(log.local_file(&file.path, file.size));
        Ok(job.inputs.iter().map(here).collect::<Result<_, _>>()?)
    }

    /// With fewer files, if all would take too much; two are always merged. Returns what it is going to take, too.
    fn within_memory(&self, spec: &TableSpec, here: &[LocalFile], snapshot: &Snapshot, mut job: Job) -> (Job, u64) {
        // Rows that wait for their group, of several buckets, and the group that is made of them.
        let of_groups = 4 * self.rules().row_group_bytes as u64;
        let mut left = self.options.compaction.memory.saturating_sub(of_groups);
        let mut count = 0;
        for file in here {
            // Whoever merges tells what is wrong with a file that cannot be read.
            let needed = memory_of(file.path(), spec, &snapshot.schema).unwrap_or_default();
            if count >= 2 && needed > left {
                break;
            }
            left = left.saturating_sub(needed);
            count += 1;
        }
        if count < job.inputs.len() {
            job.inputs.truncate(count);
            job.is_final = false;
        }
        (job, self.options.compaction.memory.saturating_sub(left))
    }

    fn merge(
        &self,
        spec: &'static TableSpec,
        log: &DeltaLog,
        snapshot: &Snapshot,
        job: &Job,
        here: &[LocalFile],
    ) -> Result<Replacement, Failed> {
        let start = Instant::now();
        let inputs = here.iter().take(job.inputs.len());
        let inputs: Vec<PathBuf> = inputs.map(|file| file.path().to_owned()).collect();
        let partition = partition(snapshot, job).ok_or(Failed::Changed)?;
        let folder: Vec<String> = partition
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let folder = folder.join("/");
        let is_stopped = || self.stop.is_stopped();
        let merge = Merge {
            spec,
            table: &snapshot.schema,
            inputs: &inputs,
            bucket: job.bucket,
            rules: self.rules(),
            target_bytes: self.options.compaction.target,
            is_stopped: &is_stopped,
        };
        let pace = Arc::new(Pace::new(self.options.bytes_per_second));
        let merged = merge.run(&mut || {
            let relative = format!("{folder}/{}.parquet", uuid::Uuid::new_v4());
            let (runtime, pace) = (self.runtime.clone(), pace.clone());
            Ok(match log.remote() {
                None => Box::new(ToStore::begin(log, relative, &runtime, pace)?) as Box<dyn Sink>,
                Some(remote) => Box::new(ToRemote::begin(log, remote, &relative, &runtime)?),
            })
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
            files = inputs.len(),
            into = merged.outputs.len(),
            rows = merged.tally.rows,
            level = job.level,
            sealed = job.is_final,
            seconds = start.elapsed().as_secs_f64(),
            "files were merged"
        );
        Ok(replacement(log, snapshot, job, merged, &partition))
    }
}

/// With fewer files, if copies of all have no room on the disk; two are always merged.
fn within_room(mut job: Job, room: Option<u64>) -> Job {
    let Some(mut left) = room else { return job };
    let mut count = 0;
    for file in &job.inputs {
        if count >= 2 && file.size > left {
            break;
        }
        left = left.saturating_sub(file.size);
        count += 1;
    }
    if count < job.inputs.len() {
        job.inputs.truncate(count);
        job.is_final = false;
    }
    job
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// The columns that files are told apart by, with the values of those of a job.
fn partition(snapshot: &Snapshot, job: &Job) -> Option<Vec<(String, String)>> {
    let values = job.inputs.first()?.partition.iter();
    let columns = snapshot.metadata.partition_columns.iter().zip(values);
    columns
        .map(|(name, value)| Some((name.clone(), value.as_ref()?.to_string())))
        .collect()
}

/// Whether rows of a job are newer than such of other files.
fn revises(snapshot: &Snapshot, job: &Job) -> bool {
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
    snapshot: &Snapshot,
    job: &Job,
    merged: Merged,
    partition: &[(String, String)],
) -> Replacement {
    let revises = revises(snapshot, job);
    let arrival_max = job.inputs.iter().filter_map(|file| file.arrival_max).max();
    let partitions: Vec<&str> = partition.iter().map(|(name, _)| name.as_str()).collect();
    let folder = log.local_folder();
    let add = |output: Output| {
        let mut tags = vec![("thalweg.level", job.level.to_string())];
        tags.extend(arrival_max.map(|arrival| ("thalweg.arrival_max", arrival.to_string())));
        if revises {
            tags.push(("thalweg.revises", "true".to_owned()));
        }
        if job.is_final {
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
            stats: Some(FileStats::delta_json(&snapshot.schema, &partitions, &output.footer)),
            tags: Some(tags.collect()),
            deletion_vector: None,
        }
    };
    Replacement {
        operation: "OPTIMIZE",
        kind: "compact",
        removed: job.inputs.iter().map(|file| file.path.clone()).collect(),
        added: merged.outputs.into_iter().map(add).collect(),
        changes_data: false,
    }
}

/// A file in the folder of a table.
struct ToStore {
    upload: Box<dyn MultipartUpload>,
    runtime: Handle,
    pace: Arc<Pace>,
    path: PathBuf,
}

impl ToStore {
    fn begin(log: &DeltaLog, relative: String, runtime: &Handle, pace: Arc<Pace>) -> Result<ToStore, MergeError> {
        let failed = |error: &dyn std::fmt::Display| MergeError::Sink(error.to_string());
        let path = log.path(&relative).map_err(|error| failed(&error))?;
        let upload = runtime.block_on(log.store().put_multipart_opts(&path, Default::default()));
        Ok(ToStore {
            upload: upload.map_err(|error| failed(&error))?,
            runtime: runtime.clone(),
            pace,
            path: log.table().join(relative),
        })
    }
}

impl Sink for ToStore {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        let bytes = bytes::Bytes::from(bytes);
        for begin in (0..bytes.len()).step_by(PIECE_BYTES) {
            let piece = bytes.slice(begin..bytes.len().min(begin + PIECE_BYTES));
            self.pace.wait(piece.len());
            let part = self.upload.put_part(PutPayload::from(piece));
            let put = self.runtime.block_on(part);
            put.map_err(|error| MergeError::Sink(error.to_string()))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        let done = self.runtime.block_on(self.upload.complete());
        done.map(|_| ()).map_err(|error| MergeError::Sink(error.to_string()))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A file of a table on an object store: it is made on this machine, where it is compared with what went in, and copied to the store
/// when it is whole, since a part of an upload cannot be read again.
struct ToRemote {
    remote: Arc<Remote>,
    to: object_store::path::Path,
    growing: Growing,
    runtime: Handle,
}

impl ToRemote {
    fn begin(log: &DeltaLog, remote: &Arc<Remote>, relative: &str, runtime: &Handle) -> Result<ToRemote, MergeError> {
        let to = log
            .path(relative)
            .map_err(|error| MergeError::Sink(error.to_string()))?;
        let growing = remote.spool.begin(&format!("{}/{relative}", log.table_name()));
        Ok(ToRemote {
            remote: remote.clone(),
            to,
            growing: growing.map_err(|error| MergeError::Sink(fault_text(&error)))?,
            runtime: runtime.clone(),
        })
    }
}

impl Sink for ToRemote {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.remote.pace.wait(piece.len());
            let written = self.growing.write(piece);
            written.map_err(|error| MergeError::Sink(fault_text(&error)))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        let mut file = File::open(self.growing.path()).map_err(|error| MergeError::Sink(error.to_string()))?;
        let pace = &self.remote.pace;
        let next = || {
            let mut piece = Vec::with_capacity(PART_BYTES);
            (&mut file).take(PART_BYTES as u64).read_to_end(&mut piece)?;
            pace.wait(piece.len());
            Ok((!piece.is_empty()).then(|| piece.into()))
        };
        let sent = self.runtime.block_on(self.remote.upload(&self.to, next));
        sent.map_err(|error| MergeError::Sink(fault_text(&error)))?;
        self.growing.keep();
        Ok(())
    }

    fn path(&self) -> &Path {
        self.growing.path()
    }
}
