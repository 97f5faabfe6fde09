//! Background maintenance of tables: merges files, removes expired ones and deletes unneeded ones.
//!
//! One thread does this for all tables, one step after the other. Each change is one commit of the table's writer, so
//! the process may end at any moment: files without a commit are orphans, which the vacuum deletes later.

mod expire;
mod job;
mod on_request;
mod rollups;
mod sinks;
#[cfg(test)]
mod tests;
mod vacuum;

pub use on_request::{
    MaintenanceMerge, MaintenanceReport, MaintenanceRequest, MaintenanceRequestError, MaintenanceTask, by_hand_alone,
};

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::codes::LakeCode;
use crate::commit::{FileReplacement, TableHealth};
use crate::ingest::TableWriter;
use crate::metrics::LakeMetrics;
use crate::rollup::Resolution;
use crate::rollup::job::{RollupBuilder, RollupOptions};
use expire::expired;
use rollups::MaintainedRollup;
use thalweg_columns::compaction::{CompactionOptions, MergeError, pending, plan};
use thalweg_columns::tables::TableSpec;
use thalweg_delta::{DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_kit::threads::{Condvar, JoinHandle};
use thalweg_kit::{clock, threads};
use vacuum::Vacuum;

const CLEAN_EVERY: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 3_600_000 });
/// How long jobs skip a file that cannot be read or rewritten.
const LEFT_OUT_FOR: Duration = Duration::from_secs(3600);
/// The pause of a table after a failed job.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 60_000 });

/// How often a thread that waits for a commit checks whether it is stopped.
const LOOK: Duration = Duration::from_millis(50);

/// The configuration of maintenance.
#[derive(Clone, Debug)]
pub struct MaintenanceOptions {
    pub compaction: CompactionOptions,
    /// The write rate limit; 0 is no limit.
    pub bytes_per_second: u64,
    /// The retention in days, by table; 0 is unlimited.
    pub retention: Vec<(&'static str, u32)>,
    /// The retention of rollups, by table and resolution.
    pub rollup_retention: Vec<(&'static str, [u32; 5])>,
    pub rollup: RollupOptions,
    /// How long removed files are kept.
    pub vacuum_retain: Duration,
    /// How often tables are checked.
    pub look_every: Duration,
    /// How often expired and unneeded files are looked for; `None`: only on request.
    pub clean_every: Option<Duration>,
}

impl Default for MaintenanceOptions {
    fn default() -> MaintenanceOptions {
        MaintenanceOptions {
            compaction: CompactionOptions::default(),
            bytes_per_second: 256 << 20,
            retention: Vec::new(),
            rollup_retention: Vec::new(),
            rollup: RollupOptions::default(),
            vacuum_retain: Duration::from_secs(24 * 3600),
            look_every: Duration::from_secs(10),
            clean_every: Some(CLEAN_EVERY),
        }
    }
}

impl MaintenanceOptions {
    /// The retention of a table in days; 0 is unlimited.
    fn days(&self, table: &str) -> u32 {
        let days = self.retention.iter().find(|(name, _)| *name == table);
        days.map_or(0, |(_, days)| *days)
    }

    /// The same for a rollup, by resolution.
    fn rollup_days(&self, table: &str) -> [u32; 5] {
        let days = self.rollup_retention.iter().find(|(name, _)| *name == table);
        days.map_or([0; 5], |(_, days)| *days)
    }
}

/// Maintains tables in the background. Dropping it stops it and abandons the current job.
pub struct MaintenanceThread {
    stop: Arc<MaintenanceControl>,
    /// The maintained tables.
    kept: Mutex<Vec<&'static str>>,
    /// Tables that the thread has not picked up yet.
    new: Arc<Mutex<Vec<Arc<TableWriter>>>>,
    thread: Option<JoinHandle<()>>,
}

/// Requests of other threads.
#[derive(Default)]
struct MaintenanceControl {
    wanted: Mutex<MaintenanceQueue>,
    changed: Condvar,
    /// The health of rollup tables that may be waiting for a store.
    waiting: Mutex<Vec<Arc<TableHealth>>>,
}

#[derive(Default)]
struct MaintenanceQueue {
    stop: bool,
    /// With the channel for reports.
    by_hand: VecDeque<(MaintenanceRequest, UnboundedSender<MaintenanceReport>)>,
}

impl MaintenanceControl {
    fn is_stopped(&self) -> bool {
        self.wanted.lock().stop
    }

    /// Whether a stop or a request is pending.
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

    fn next_by_hand(&self) -> Option<(MaintenanceRequest, UnboundedSender<MaintenanceReport>)> {
        self.wanted.lock().by_hand.pop_front()
    }
}

impl MaintenanceThread {
    /// Must be called on a tokio runtime.
    pub fn start(options: MaintenanceOptions, metrics: LakeMetrics) -> std::io::Result<MaintenanceThread> {
        let stop = Arc::new(MaintenanceControl::default());
        let new: Arc<Mutex<Vec<Arc<TableWriter>>>> = Arc::default();
        let memory = Arc::new(AtomicU64::new(0));
        let watched = memory.clone();
        metrics.watch_share("lake.compaction.memory", options.compaction.memory, move || {
            watched.load(Ordering::Relaxed)
        });
        let worker = MaintenanceWorker {
            stop: stop.clone(),
            memory,
            options,
            metrics,
            runtime: Handle::current(),
        };
        let tables = new.clone();
        let run = move || worker.run(&tables);
        let thread = threads::spawn("lake-maint", run)?;
        Ok(MaintenanceThread {
            stop,
            kept: Mutex::default(),
            new,
            thread: Some(thread),
        })
    }

    /// Adds a table and its rollup.
    pub fn keep(&self, table: Arc<TableWriter>) {
        let spec = table.spec();
        let specs = std::iter::once(spec).chain(spec.rollup);
        self.kept.lock().extend(specs.map(|spec| spec.name));
        self.new.lock().push(table);
    }

    /// Whether the thread ended by itself, which it never should.
    pub fn has_stopped(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Returns when all writing has ended.
    pub fn stop(mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            // The panic was already reported.
            let _ = thread.join();
        }
    }

    /// The maintained tables.
    pub fn tables(&self) -> Vec<String> {
        self.kept.lock().iter().map(|name| (*name).to_owned()).collect()
    }

    /// Requests work at once. The receiver gets reports and ends when there are no more; if it is closed early, the
    /// current job is completed, but no other is begun.
    pub fn ask(&self, asked: MaintenanceRequest) -> UnboundedReceiver<MaintenanceReport> {
        let (told, did) = mpsc::unbounded_channel();
        // Without a running thread, the receiver ends at once.
        if self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            self.stop.wanted.lock().by_hand.push_back((asked, told));
            self.stop.changed.notify_all();
        }
        did
    }

    fn tell(&self) {
        let mut wanted = self.stop.wanted.lock();
        wanted.stop = true;
        // Dropping the requests ends their receivers.
        wanted.by_hand.clear();
        drop(wanted);
        self.stop.waiting.lock().iter().for_each(|health| health.abandon());
        self.stop.changed.notify_all();
    }
}

impl Drop for MaintenanceThread {
    fn drop(&mut self) {
        self.tell();
    }
}

struct MaintenanceWorker {
    stop: Arc<MaintenanceControl>,
    /// The memory of the running merge.
    memory: Arc<AtomicU64>,
    options: MaintenanceOptions,
    metrics: LakeMetrics,
    runtime: Handle,
}

/// Commits to a table.
trait ReplacementCommitter {
    /// Replaces files. Returns `Some(false)` if some of them do not exist any more; `None` if the outcome is unknown or
    /// writing has ended.
    fn replace(&mut self, files: FileReplacement, stop: &MaintenanceControl) -> Option<bool>;
}

impl ReplacementCommitter for Arc<TableWriter> {
    /// Does not wait for an unreachable store once it is stopped.
    fn replace(&mut self, files: FileReplacement, stop: &MaintenanceControl) -> Option<bool> {
        let outcome = TableWriter::replace(self, files);
        loop {
            match outcome.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) if !stop.is_stopped() => {}
                outcome => return outcome.ok(),
            }
        }
    }
}

impl ReplacementCommitter for RollupBuilder {
    fn replace(&mut self, files: FileReplacement, _stop: &MaintenanceControl) -> Option<bool> {
        RollupBuilder::replace(self, &files)
    }
}

/// The state of a table.
struct MaintainedTable {
    spec: &'static TableSpec,
    log: DeltaLog,
    snapshot: Option<Snapshot>,
    left_alone: Option<Instant>,
    /// Files that no job can process, and since when.
    left_out: HashMap<Arc<str>, Instant>,
    told: RepeatedErrorFilter,
    /// Whether the warning about another writer was logged.
    told_of_others: bool,
    vacuum: Vacuum,
    cleaned: Option<Instant>,
}

/// The last logged error; a repeated one is not logged again.
#[derive(Default)]
struct RepeatedErrorFilter(Option<String>);

impl RepeatedErrorFilter {
    fn is_news(&mut self, text: &str) -> bool {
        let is_news = self.0.as_deref() != Some(text);
        self.0 = Some(text.to_owned());
        is_news
    }
}

impl MaintainedTable {
    fn new(spec: &'static TableSpec, log: &DeltaLog) -> MaintainedTable {
        MaintainedTable {
            spec,
            log: log.clone(),
            snapshot: None,
            left_alone: None,
            left_out: HashMap::new(),
            told: RepeatedErrorFilter::default(),
            told_of_others: false,
            vacuum: Vacuum::default(),
            cleaned: None,
        }
    }
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
enum MaintenanceJobError {
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    Table(#[from] DeltaError),
    /// One file cannot be processed. Other jobs can continue without it.
    #[error("{0}")]
    File(SkippedFile),
    /// Other writers changed the table, or it ends.
    #[error("the table has changed")]
    Changed,
}

/// A file that no job can process.
#[derive(Debug)]
struct SkippedFile {
    path: Arc<str>,
    why: String,
}

impl std::fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is skipped: {}", self.path, self.why)
    }
}

impl MaintenanceWorker {
    fn run(self, new: &Mutex<Vec<Arc<TableWriter>>>) {
        let mut rollups: Vec<MaintainedRollup> = Vec::new();
        let mut tables: Vec<(Arc<TableWriter>, MaintainedTable)> = Vec::new();
        while !self.stop.wait(self.options.look_every) {
            let new = std::mem::take(&mut *new.lock());
            for writer in new {
                rollups.push(MaintainedRollup::of(writer.clone()));
                let known = MaintainedTable::new(writer.spec(), writer.log());
                tables.push((writer, known));
            }
            if let Some((asked, told)) = self.stop.next_by_hand() {
                let told = &mut |did| told.send(did).is_ok();
                let is_asked =
                    |table: &MaintainedTable| asked.table.as_deref().is_none_or(|name| name == table.spec.name);
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
            for ((writer, table), rolling) in tables.iter_mut().zip(&rollups) {
                self.look_at(table, writer);
                if rolling.may_points_expire() {
                    self.clean_if_due(table, writer);
                }
            }
            for rolling in &mut rollups {
                // Windows are made of sorted files only.
                if let Some(rolled) = rolling.rolled.as_mut() {
                    self.look_at(&mut rolled.table, &mut rolled.rollups);
                }
                let is_made = self.roll(rolling);
                // Fine windows must not expire before coarser ones are made of them.
                if let Some(rolled) = rolling.rolled.as_mut().filter(|_| is_made) {
                    self.look_at(&mut rolled.table, &mut rolled.rollups);
                    self.clean_if_due(&mut rolled.table, &mut rolled.rollups);
                }
            }
        }
    }

    fn clean_if_due(&self, table: &mut MaintainedTable, owner: &mut dyn ReplacementCommitter) {
        let is_over = |every| table.cleaned.is_none_or(|cleaned| cleaned.elapsed() >= every);
        if self.options.clean_every.is_some_and(is_over) {
            table.cleaned = Some(clock::now());
            if let Err(error) = self.clean(table, owner) {
                tracing::warn!(
                    table = table.spec.name,
                    "looking for old files failed and will be retried: {error}"
                );
            }
        }
    }

    /// Runs all jobs that are due.
    fn look_at(&self, table: &mut MaintainedTable, owner: &mut dyn ReplacementCommitter) {
        if table.left_alone.is_some_and(|until| until > clock::now()) {
            return;
        }
        while !self.stop.is_wanted() {
            let name = table.spec.name;
            let outcome = match self.step(table, owner) {
                Ok(false) => {
                    table.told = RepeatedErrorFilter::default();
                    return;
                }
                Ok(true) => "ok",
                Err(MaintenanceJobError::Changed | MaintenanceJobError::Merge(MergeError::Stopped)) => "dropped",
                Err(MaintenanceJobError::File(left_out)) => {
                    tracing::error!(table = name, "a file was not merged, and stays as it is: {left_out}");
                    table.left_out.insert(left_out.path, clock::now());
                    "skipped"
                }
                Err(error) => {
                    let what = format!("files were not merged, and stay as they are: {error}");
                    let text = match error {
                        MaintenanceJobError::Merge(MergeError::Mismatch { .. }) => {
                            format!("{}: {what}", LakeCode::CompactionMismatch)
                        }
                        _ => what,
                    };
                    if table.told.is_news(&text) {
                        tracing::error!(table = name, "{text}");
                    }
                    table.left_alone = Some(clock::now() + PAUSE);
                    "failed"
                }
            };
            let jobs = &self.metrics.compaction_jobs;
            jobs.with_label_values(&[name, outcome]).inc();
            if !["ok", "skipped"].contains(&outcome) {
                return;
            }
        }
    }

    /// The newest version; `None` if the table does not exist yet.
    fn newest<'a>(&self, table: &'a mut MaintainedTable) -> Result<Option<&'a Snapshot>, MaintenanceJobError> {
        match &mut table.snapshot {
            Some(snapshot) => {
                threads::block_on(&self.runtime, table.log.refresh(snapshot))?;
            }
            none => *none = threads::block_on(&self.runtime, table.log.load(SnapshotDetail::Counts))?,
        }
        table.left_out.retain(|_, since| since.elapsed() < LEFT_OUT_FOR);
        let others = || table.snapshot.iter().flat_map(|snapshot| snapshot.files.values());
        if !table.told_of_others
            && let Some(file) = others().find(|file| file.is_foreign)
        {
            table.told_of_others = true;
            tracing::warn!(
                table = table.spec.name,
                file = &*file.path,
                "another program also writes files of this table: the order of their rows is not trusted, and they are \
                 rewritten in the order of the table"
            );
        }
        Ok(table.snapshot.as_ref())
    }

    /// Removes expired files from the table, and vacuums.
    fn clean(
        &self,
        table: &mut MaintainedTable,
        owner: &mut dyn ReplacementCommitter,
    ) -> Result<(), MaintenanceJobError> {
        let (name, mut vacuum) = (table.spec.name, std::mem::take(&mut table.vacuum));
        let (spec, log) = (table.spec, table.log.clone());
        let Some(snapshot) = self.newest(table)? else {
            return Ok(());
        };
        let days = |file: &FileEntry| self.days_kept(spec, file);
        if let Some(expired) = expired(snapshot, &days, &days_ago(&log)) {
            let files = expired.removed.len() as u64;
            if owner.replace(expired, &self.stop) != Some(true) {
                return Err(MaintenanceJobError::Changed);
            }
            self.metrics.expired_files.with_label_values(&[name]).inc_by(files);
            tracing::info!(table = name, files, "files beyond the retention were removed");
        }
        let deleted = threads::block_on(&self.runtime, vacuum.run(&log, snapshot, self.options.vacuum_retain));
        table.vacuum = vacuum;
        let deleted = deleted?;
        self.metrics.vacuumed_files.with_label_values(&[name]).inc_by(deleted);
        if deleted > 0 {
            tracing::info!(table = name, files = deleted, "unneeded files were deleted");
        }
        Ok(())
    }

    /// The retention in days; 0 is unlimited.
    fn days_kept(&self, spec: &TableSpec, file: &FileEntry) -> u32 {
        if spec.has_revisions() {
            let days = self.options.rollup_days(spec.name);
            return Resolution::of_file(file)
                .and_then(|resolution| days.get(resolution as usize).copied())
                .unwrap_or(0);
        }
        self.options.days(spec.name)
    }

    /// Returns whether there was a job.
    fn step(
        &self,
        table: &mut MaintainedTable,
        owner: &mut dyn ReplacementCommitter,
    ) -> Result<bool, MaintenanceJobError> {
        let (spec, log) = (table.spec, table.log.clone());
        self.newest(table)?;
        let Some(snapshot) = &table.snapshot else {
            return Ok(false);
        };
        let considered = without(snapshot, &table.left_out);
        let (now, options) = (now(), &self.options.compaction);
        let pending = i64::try_from(pending(&considered, now, options)).unwrap_or(i64::MAX);
        let gauge = &self.metrics.compaction_pending_bytes;
        gauge.with_label_values(&[spec.name]).set(pending);
        let Some(job) = plan(&considered, now, options) else {
            return Ok(false);
        };
        let ready = self.prepare(spec, &log, snapshot, job)?;
        self.run_job(spec, &log, snapshot, &ready, owner)?;
        Ok(true)
    }
}

/// A table without some of its files.
fn without<'a>(snapshot: &'a Snapshot, left_out: &HashMap<Arc<str>, Instant>) -> Cow<'a, Snapshot> {
    let mut rest = Cow::Borrowed(snapshot);
    if !left_out.is_empty() {
        rest.to_mut().files.retain(|path, _| !left_out.contains_key(path));
    }
    rest
}

/// Returns the time, in nanoseconds since 1970, before which time stamps are older than the given days.
fn days_ago(log: &DeltaLog) -> impl Fn(u32) -> i64 {
    |days| {
        log.oldest_ms(Duration::from_secs(u64::from(days) * 86_400))
            .saturating_mul(1_000_000)
    }
}

/// In nanoseconds since 1970.
fn now() -> i64 {
    let now = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
