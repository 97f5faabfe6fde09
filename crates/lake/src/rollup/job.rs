//! Maintains rollups: determines which windows are complete and which have late rows, and commits them.
//!
//! The watermarks of each resolution are in the table's own commits (`txn` actions), so they always match the windows:
//! `thalweg/rollup/<table>/<seconds>/until` is the second at which the last window ends, and `…/late` the version of
//! the source up to which late rows are included. Late rows that were found but are in no window yet are found again
//! after a restart. `…/left_out` is the last day without windows of the resolution (in days since 1970, or -1).

mod day_size;
mod late;
mod left_out;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_record::Ticks;
use tokio::runtime::Handle;

use late::join;
use left_out::{RollupSource, WindowDays, begin_of, day_of};

use super::Resolution;
use super::file_writer::{IdentityColumn, RollupFileSpec, RollupFileWriter};
use super::last_points::LastPointCache;
use super::pass::{LateRows, RollupPass, SeriesTimeRanges, WindowPoints, since};
use crate::commit::{
    CommitError, CommitPayload, CommittedOffset, Committer, EncodedFile, FileReplacement, TableHealth,
};
use crate::error::{AppendError, OpenError};
use crate::memtable_view::OverflowCounts;
use crate::metrics::LakeMetrics;
use crate::opening;
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion, AttributeTarget};
use thalweg_columns::compaction::MergeError;
use thalweg_columns::file::FileRules;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::store::{LakeStorage, LocalFile};
use thalweg_delta::{DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_kit::{clock, clock::unix_ms, threads};

const NANOS_PER_S: i64 = 1_000_000_000;
const NANOS_PER_DAY: i64 = 86_400 * NANOS_PER_S;
const TICKS_PER_DAY: i64 = 864_000_000_000;
const CHECKPOINT_INTERVAL: i64 = 100;
/// The approximate number of rows that a pass reads. Its output is in memory until it is committed.
const PASS_ROWS: u64 = 2_000_000;
/// The preferred limit for the files that a pass reads.
const PASS_FILES: usize = 64;
/// How long late rows are collected, so that a window with many of them is not made again for each.
const LATE_EVERY: Duration = Duration::from_secs(300);
/// With more series than this, late rows are processed at once.
const TOUCHED_MAX: usize = 1 << 20;
/// After this time without new rows no more are expected, and all windows are made.
const QUIET: Duration = Duration::from_secs(300);
/// How often windows of damaged points are tried.
const LOOK_BACK_EVERY: Duration = Duration::from_secs(600);
const MAX_PERCENT: u64 = 100;
/// Fewer windows take little space, and may not be like those that follow.
const MIN_WINDOWS: u64 = 10_000;
/// Each file names all series, so one with few windows of each has more bytes for a window.
const MIN_SPAN: Duration = Duration::from_secs(900);

/// The configuration of rollups (`lake.rollup.*`).
#[derive(Clone, Debug)]
pub struct RollupOptions {
    /// The wait for late rows after the end of a window, by resolution.
    pub lateness: [Duration; 5],
    /// Memory for the last points of series.
    pub memory: usize,
    pub late_every: Duration,
    pub quiet: Duration,
    /// The space of all windows of a day in percent of that of its points; 0 is unlimited. Resolutions that do not fit are left
    /// out, from the finest.
    pub max_percent: u64,
    /// But not those with fewer windows than this.
    pub min_windows: u64,
    /// Files of a shorter time do not tell how much space windows take once they are merged.
    pub min_span: Duration,
    /// The retention of the points in days; 0 is unlimited.
    pub source_days: u32,
    /// The retention of windows by resolution.
    pub days: [u32; 5],
}

impl Default for RollupOptions {
    fn default() -> RollupOptions {
        RollupOptions {
            lateness: [30, 60, 120, 300, 300].map(Duration::from_secs),
            memory: 64 << 20,
            late_every: LATE_EVERY,
            quiet: QUIET,
            max_percent: MAX_PERCENT,
            min_windows: MIN_WINDOWS,
            min_span: MIN_SPAN,
            source_days: 0,
            days: [0; 5],
        }
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RollupError {
    #[error(transparent)]
    Merge(#[from] MergeError),
    #[error(transparent)]
    Table(#[from] DeltaError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Commit(#[from] AppendError),
}

impl From<CommitError> for RollupError {
    fn from(stop: CommitError) -> RollupError {
        match stop {
            CommitError::Failed(error) | CommitError::Rows(error) => RollupError::Commit(error),
        }
    }
}

/// The watermark of a resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RollupWatermark {
    /// The end of the last window, in nanoseconds; `None` before the first.
    until: Option<i64>,
    /// Late rows up to this version of the source are included.
    late: i64,
    /// The last day that was left out.
    left_out: Option<i64>,
}

/// Makes the rollup of one table. Its calls block.
pub(crate) struct RollupBuilder {
    source: DeltaLog,
    source_spec: &'static TableSpec,
    spec: &'static TableSpec,
    log: DeltaLog,
    /// Set once the table exists.
    committer: Option<Committer>,
    snapshot: Option<Snapshot>,
    /// The version of the source up to which late rows were looked for.
    looked_until: Option<i64>,
    /// When windows are looked for that were left out and must be kept now; `None` if all of them are there.
    look_back_at: Option<Instant>,
    /// Days that have got their first windows, and whose size could not be told.
    undecided: VecDeque<i64>,
    /// The time of this run, in nanoseconds.
    now: i64,
    /// The windows before late rows were included.
    days_before: WindowDays,
    states: [RollupWatermark; 5],
    late: [SeriesTimeRanges; 5],
    late_since: Option<Instant>,
    last: LastPointCache,
    options: RollupOptions,
    rules: FileRules,
    health: Arc<TableHealth>,
    metrics: LakeMetrics,
    runtime: Handle,
}

impl RollupBuilder {
    /// Opens the rollup of a table, which is beside it in the lake.
    pub fn open(
        site: &LakeStorage,
        source: DeltaLog,
        source_spec: &'static TableSpec,
        spec: &'static TableSpec,
        options: RollupOptions,
        metrics: LakeMetrics,
        runtime: Handle,
    ) -> Result<RollupBuilder, RollupError> {
        let columns = (spec.columns)();
        let opened = threads::block_on(&runtime, opening::open(site, spec.name, spec.partitions, &columns));
        let (log, found) = opened?;
        let mut rollups = RollupBuilder {
            source,
            source_spec,
            spec,
            log,
            committer: None,
            snapshot: None,
            looked_until: None,
            look_back_at: Some(clock::now()),
            undecided: VecDeque::new(),
            now: i64::MIN,
            days_before: WindowDays::default(),
            states: Default::default(),
            late: Default::default(),
            late_since: None,
            last: LastPointCache::new(options.memory),
            options,
            rules: FileRules {
                zstd_level: super::ZSTD_LEVEL,
                ..FileRules::default()
            },
            health: Arc::default(),
            metrics,
            runtime,
        };
        if let Some(found) = found {
            rollups.adopt(found);
        }
        Ok(rollups)
    }

    pub fn log(&self) -> &DeltaLog {
        &self.log
    }

    /// The trouble of its writer, and whether retries are useful.
    pub fn health(&self) -> &Arc<TableHealth> {
        &self.health
    }

    fn adopt(&mut self, found: Snapshot) {
        for (state, resolution) in self.states.iter_mut().zip(Resolution::ALL) {
            let value = |what: &str| {
                found
                    .transactions
                    .get(&application(self.source_spec, resolution, what))
                    .copied()
            };
            *state = RollupWatermark {
                until: value("until").map(|seconds| seconds.saturating_mul(NANOS_PER_S)),
                late: value("late").unwrap_or(-1),
                left_out: value("left_out").filter(|day| *day >= 0),
            };
        }
        // Every attribute column of the source has one here.
        let mut promotion = AttributePromotion::default();
        promotion.max_promoted = usize::MAX;
        self.committer = Some(Committer::new(
            self.log.clone(),
            found,
            promotion,
            self.health.clone(),
            self.metrics.clone(),
            CHECKPOINT_INTERVAL,
            self.runtime.clone(),
        ));
    }

    /// Replaces files of the rollup. Returns `Some(false)` if some of them do not exist any more; `None` if the outcome
    /// is unknown.
    pub fn replace(&mut self, files: &FileReplacement) -> Option<bool> {
        let done = self.committer.as_mut()?.replace(files).map_err(RollupError::from);
        if let Err(error) = &done {
            tracing::error!(table = self.spec.name, "files were not replaced: {error}");
        }
        done.ok()
    }

    /// Whether all windows that must be kept are there, as far as their points are.
    pub fn has_all_kept(&self) -> bool {
        self.look_back_at.is_none()
    }

    /// Makes the windows that are due. `now` is in nanoseconds.
    pub fn run(&mut self, now: i64, is_stopped: &dyn Fn() -> bool) -> Result<(), RollupError> {
        let Some(snapshot) = self.newest_source()? else {
            return Ok(());
        };
        self.now = now;
        let done = self.run_on(&snapshot, now, is_stopped);
        self.snapshot = Some(snapshot);
        done
    }

    fn run_on(&mut self, source: &Snapshot, now: i64, is_stopped: &dyn Fn() -> bool) -> Result<(), RollupError> {
        if source.files.is_empty() {
            return Ok(());
        }
        if self.committer.is_none() {
            let columns = (self.spec.columns)();
            let made = opening::create(&self.log, self.spec.partitions, &columns, &self.metrics);
            let made = threads::block_on(&self.runtime, made)?;
            self.adopt(made);
        }
        self.look_for_late_rows(source)?;
        self.admit(source)?;
        for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
            self.complete(source, at, resolution, now, is_stopped)?;
        }
        self.thin_out_later(source)?;
        self.late_arrived();
        let has_late = self.late.iter().any(|touched| !touched.is_empty());
        let is_due = self
            .late_since
            .is_some_and(|since| since.elapsed() >= self.options.late_every)
            || self.late.iter().any(|touched| touched.len() > TOUCHED_MAX);
        if has_late && is_due {
            self.days_before = self.window_days();
            for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
                self.revise(source, at, resolution, is_stopped)?;
            }
            self.late_since = None;
        }
        // Afterwards: it takes long, and the days in question stay as they are until it is done.
        if self.look_back_at.is_some_and(|at| at <= clock::now()) {
            let is_done = self.make_left_out(source, now, is_stopped)?;
            self.look_back_at = (!is_done).then(|| clock::now() + LOOK_BACK_EVERY);
        }
        Ok(())
    }

    fn newest_source(&mut self) -> Result<Option<Snapshot>, RollupError> {
        match self.snapshot.take() {
            Some(mut snapshot) => {
                let refreshed = threads::block_on(&self.runtime, self.source.refresh(&mut snapshot));
                refreshed?;
                Ok(Some(snapshot))
            }
            None => Ok(threads::block_on(
                &self.runtime,
                self.source.load(SnapshotDetail::Counts),
            )?),
        }
    }

    fn own(&self) -> Option<&Snapshot> {
        self.committer.as_ref().map(|committer| &committer.snapshot)
    }

    fn state(&self, at: usize) -> RollupWatermark {
        self.states.get(at).copied().unwrap_or_default()
    }

    /// Adds columns for the attributes of the source, with its types.
    fn admit(&mut self, source: &Snapshot) -> Result<(), RollupError> {
        let Some(committer) = &mut self.committer else {
            return Ok(());
        };
        let new = attributes(&source.schema).filter(|(of, name, _)| committer.bindings.place(*of, name).is_none());
        let new: Vec<(AttributeSource, &str, Option<AttributeType>)> = new.collect();
        let mut names = Vec::with_capacity(new.len());
        for (of, name, kind) in new {
            if let Some(kind) = kind {
                committer.declare(of, name, kind);
            }
            names.push((of, name.to_owned()));
        }
        if !names.is_empty() {
            committer.commit(
                &RollupCommitPayload {
                    names,
                    files: Vec::new(),
                },
                &[],
            )?;
        }
        Ok(())
    }

    /// Makes the complete windows in several passes.
    fn complete(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        now: i64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), RollupError> {
        let Some(target) = self.target(source, at, resolution, now) else {
            return Ok(());
        };
        let label = resolution.seconds().to_string();
        loop {
            let days = self.window_days();
            let next = self.next_row(source, at, &days, self.state(at).until.unwrap_or(i64::MIN));
            let lag = next.map_or(0, |next| target.saturating_sub(next).max(0));
            let seconds = self
                .metrics
                .rollup_lag_seconds
                .with_label_values(&[self.spec.name, &label]);
            seconds.set(lag as f64 / NANOS_PER_S as f64);
            let Some(from) = next
                .map(|next| resolution.window_of(next))
                .filter(|from| *from < target)
            else {
                return Ok(());
            };
            let (day, before) = (day_of(from), self.states);
            if days.is_left_out(at, day) {
                if let Some(state) = self.states.get_mut(at) {
                    state.until = Some(target.min(begin_of(day.saturating_add(1))));
                }
                continue;
            }
            let of = days.source_of(at, day);
            let files = self.files_of(source, of);
            let to = self.end_of_pass(&files, from, target, resolution);
            let needed = match self.last.reach(from, first_time(&files).unwrap_or(from)) {
                true if at == 0 => from,
                _ => since(from, self.spec_of(of)),
            };
            let span = RollupTimeRange {
                of,
                from,
                to,
                since: needed,
            };
            let made = self.pass(source, at, resolution, span, None, is_stopped)?;
            if at == 0 {
                self.last.seen(needed, to);
            }
            if let Some(state) = self.states.get_mut(at) {
                state.until = Some(to);
            }
            if let Err(error) = self.keep(source, at, (day, to), made, None) {
                self.states = before;
                self.last.forget();
                return Err(error);
            }
            self.thin_out(source, day, to)?;
        }
    }

    /// The time up to which windows are complete.
    fn target(&self, source: &Snapshot, at: usize, resolution: Resolution, now: i64) -> Option<i64> {
        let last = source.files.values().filter_map(|file| Some(file.times?.1)).max()?;
        let arrival = source
            .files
            .values()
            .filter_map(|file| file.arrival_max)
            .max()
            .unwrap_or(now);
        let is_quiet = now.saturating_sub(arrival) > nanos(self.options.quiet);
        let all = resolution.window_of(last).saturating_add(resolution.nanos());
        if is_quiet {
            return Some(all);
        }
        let lateness = self.options.lateness.get(at).copied().unwrap_or_default();
        let passed = resolution.window_of(last.min(arrival).saturating_sub(nanos(lateness)));
        match at.checked_sub(1) {
            None => Some(passed),
            Some(before) => Some(passed.min(resolution.window_of(self.state(before).until?))),
        }
    }

    /// Limits a pass to a day, to the rows and files that memory allows, and to the bytes that fit into the spool.
    fn end_of_pass(&self, files: &[&Arc<FileEntry>], from: i64, target: i64, resolution: Resolution) -> i64 {
        let day = from
            .div_euclid(NANOS_PER_DAY)
            .saturating_add(1)
            .saturating_mul(NANOS_PER_DAY);
        let mut to = target.min(day);
        while to - from > resolution.nanos() {
            let (mut rows, mut count, mut bytes) = (0, 0, 0);
            for file in files.iter().filter(|file| overlaps(file, from, to)) {
                rows += rows_within(file, from, to);
                count += 1;
                bytes += file.size;
            }
            let is_room = self.source.local_room().is_none_or(|room| bytes <= room);
            if rows <= PASS_ROWS && count <= PASS_FILES && is_room {
                break;
            }
            let half = resolution.window_of(from + (to - from) / 2);
            to = half.max(from + resolution.nanos());
        }
        to
    }

    /// Makes windows with late rows again.
    fn revise(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), RollupError> {
        // The ranges stay in `self.late` until the last day: a commit must not record them as done before, because they
        // would not be found again after a restart.
        let touched = self.late.get(at).cloned().unwrap_or_default();
        let Some(until) = self.state(at).until else {
            return Ok(());
        };
        self.pass_on(at, resolution, &touched);
        let first = touched.values().map(|(first, _)| *first).min();
        let last = touched.values().map(|(_, last)| *last).max();
        if let (Some(first), Some(last)) = (first, last) {
            // The difference of the point after a late point has changed.
            let later = last
                .saturating_add(super::windows::LOOKBACK_NANOS)
                .saturating_add(resolution.nanos());
            let (first, end) = (resolution.window_of(first), later.min(until));
            let mut done = Ok(());
            // Rows that were passed on may be later than the windows of this resolution.
            let last_day = day_of(end.max(first));
            for day in day_of(first)..=last_day {
                if day == last_day {
                    self.late.get_mut(at).map(std::mem::take);
                }
                let (from, to) = (begin_of(day).max(first), begin_of(day.saturating_add(1)).min(until));
                done = self.revise_day(source, at, resolution, (from, to), &touched, is_stopped);
                if done.is_err() {
                    break;
                }
            }
            if let Err(error) = done {
                // All days are tried again, including completed ones.
                if let Some(late) = self.late.get_mut(at) {
                    join(late, touched);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    fn revise_day(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        (from, to): (i64, i64),
        touched: &SeriesTimeRanges,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), RollupError> {
        let (days, day) = (self.window_days(), day_of(from));
        let of = days.source_of(at, day);
        let files = self.files_of(source, of);
        if from >= to || days.is_left_out(at, day) || !files.iter().any(|file| overlaps(file, from, to)) {
            return Ok(());
        }
        let span = RollupTimeRange {
            of,
            from,
            to,
            since: since(from, self.spec_of(of)),
        };
        let made = self.make_again(source, at, resolution, span, touched, is_stopped)?;
        self.keep(source, at, (day, i64::MAX), made, Some(touched))?;
        match self.days_before.has(day) {
            true => Ok(()),
            false => self.thin_out(source, day, i64::MAX).map(drop),
        }
    }

    /// Commits windows of a resolution, and records those that are late for the next one: revised windows, but also new
    /// ones, because a quiet period completes the current window of each resolution, and long ones end after short
    /// ones.
    fn commit_windows(&mut self, source: &Snapshot, at: usize, made: RollupOutput) -> Result<(), RollupError> {
        let left_out = made.left_out;
        let remade = self.commit(source, made)?;
        if left_out > 0 {
            self.metrics.rollup_inexact.inc_by(left_out);
            tracing::warn!(
                table = self.spec.name,
                rows = left_out,
                "rows are in no window because they do not fit their series"
            );
        }
        if let Some(late) = self.late.get_mut(at + 1) {
            join(late, remade);
        }
        Ok(())
    }

    fn pass(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        span: RollupTimeRange,
        touched: Option<LateRows<'_>>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<RollupOutput, RollupError> {
        let start = clock::now();
        let mut last = self.last.take();
        let (Some(own), Some(committer)) = (self.own(), &self.committer) else {
            return Ok(RollupOutput::default());
        };
        let files = self.files_of(source, span.of);
        let mut files: Vec<&&Arc<FileEntry>> = files
            .iter()
            .filter(|file| overlaps(file, span.since, span.to))
            .collect();
        files.sort_by_key(|file| (file.modified_unix_ms, file.path.clone()));
        let (log, schema) = match span.of {
            RollupSource::Points => (&self.source, &source.schema),
            RollupSource::Windows(_) => (&self.log, &own.schema),
        };
        let here = files
            .iter()
            .map(|file| threads::block_on(&self.runtime, log.local_file(&file.path, file.size)));
        let here: Vec<LocalFile> = here.collect::<Result<_, _>>()?;
        let inputs: Vec<PathBuf> = here.iter().map(|file| file.path().to_owned()).collect();
        let date = date_of(day_of(span.from));
        let taken = taken(self.spec, schema, &committer.bindings);
        let (own_schema, rules) = (own.schema.clone(), self.rules.clone());
        let arrival = files.iter().filter_map(|file| file.arrival_max).max();
        let mut made = RollupFileWriter::new(RollupFileSpec {
            spec: self.spec,
            schema: &own_schema,
            taken: &taken,
            resolution,
            date: &date,
            // Unique per commit: windows may be made again from the same version of the source.
            revision: own.version,
            is_late: touched.is_some(),
            // The arrival of the newest source row, whenever the window is made.
            arrival: arrival.unwrap_or_else(|| unix_ms().saturating_mul(1_000_000)),
            rules: &rules,
        });
        let pass = RollupPass {
            source: self.spec_of(span.of),
            schema,
            inputs: &inputs,
            resolution,
            from: span.from,
            to: span.to,
            since: span.since,
            touched,
            next_until: self.next_until(at, day_of(span.from)),
            is_stopped,
        };
        let seen = pass.run((at == 0).then_some(&mut last), &mut made);
        let file = made.finish();
        self.last = last;
        let (seen, file) = (seen?, file?);
        tracing::debug!(
            table = self.spec.name,
            resolution = resolution.seconds(),
            files = inputs.len(),
            windows = file.as_ref().map_or(0, |file| file.rows),
            late = touched.is_some(),
            seconds = start.elapsed().as_secs_f64(),
            "windows were made"
        );
        Ok(RollupOutput {
            file,
            remade: seen.remade,
            made_again: seen.made_again,
            left_out: seen.left_out,
        })
    }

    /// Commits a file with the watermarks. Returns what the next resolution must make again.
    fn commit(&mut self, source: &Snapshot, made: RollupOutput) -> Result<SeriesTimeRanges, RollupError> {
        let Some(file) = made.file else {
            return Ok(SeriesTimeRanges::new());
        };
        let positions = self.positions(source);
        let Some(committer) = &mut self.committer else {
            return Ok(SeriesTimeRanges::new());
        };
        let ready = RollupCommitPayload {
            names: Vec::new(),
            files: vec![file],
        };
        committer.commit(&ready, &positions)?;
        Ok(made.remade)
    }

    /// The watermarks as the next commit has them. Those for late rows do not advance while late rows wait, so that they are
    /// found again after a restart.
    fn positions(&mut self, source: &Snapshot) -> Vec<CommittedOffset> {
        let own = self.own().map_or(-1, |own| own.version);
        // Coarser windows that a quiet period has made lack later points. If the finest windows are left out, only the points
        // tell of them.
        let (until, all) = (self.state(0).until.unwrap_or(i64::MIN), self.last_until());
        let is_ahead = until < all && source.files.values().any(|file| overlaps(file, until, all));
        let mut positions = Vec::new();
        for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
            let Some(state) = self.states.get_mut(at) else { continue };
            // Late rows of days without this resolution wait with those of coarser ones.
            let mut waiting = self.late.iter().skip(at);
            if waiting.all(SeriesTimeRanges::is_empty) && (at > 0 || !is_ahead) {
                state.late = if at == 0 { source.version } else { own };
            }
            let Some(until) = state.until else { continue };
            for (what, value) in [
                ("until", until / NANOS_PER_S),
                ("late", state.late),
                ("left_out", state.left_out.unwrap_or(-1)),
            ] {
                positions.push(CommittedOffset {
                    application: application(self.source_spec, resolution, what),
                    offset: value,
                    is_last: false,
                });
            }
        }
        positions
    }
}

/// A time range in nanoseconds; rows of the source are read from `since` on.
#[derive(Clone, Copy, Debug)]
struct RollupTimeRange {
    of: RollupSource,
    from: i64,
    to: i64,
    since: i64,
}

#[derive(Default)]
struct RollupOutput {
    file: Option<EncodedFile>,
    remade: SeriesTimeRanges,
    made_again: Vec<WindowPoints>,
    /// Rows that no window could include.
    left_out: u64,
}

/// Finished files, or attribute names.
#[derive(Default)]
struct RollupCommitPayload {
    names: Vec<(AttributeSource, String)>,
    files: Vec<EncodedFile>,
}

impl CommitPayload for RollupCommitPayload {
    fn names(&self, _: &AttributeBindings) -> Vec<(AttributeSource, &str)> {
        self.names
            .iter()
            .map(|(source, name)| (*source, name.as_str()))
            .collect()
    }

    fn encode(&self, _: &TableSchema, _: &AttributeBindings) -> Result<(Vec<EncodedFile>, OverflowCounts), String> {
        Ok((self.files.clone(), OverflowCounts::default()))
    }
}

fn application(table: &TableSpec, resolution: Resolution, what: &str) -> String {
    format!("thalweg/rollup/{}/{}/{what}", table.name, resolution.seconds())
}

/// The attributes that have columns, and the types of columns without texts.
fn attributes(schema: &TableSchema) -> impl Iterator<Item = (AttributeSource, &str, Option<AttributeType>)> {
    schema.columns.iter().filter_map(|column| {
        let (source, name) = column.binding()?;
        Some((
            AttributeSource::of_name(source)?,
            name,
            AttributeType::of_column(column),
        ))
    })
}

/// The identity columns of series in the source, with their names in the rollup.
fn taken(table: &TableSpec, source: &TableSchema, bindings: &AttributeBindings) -> Vec<IdentityColumn> {
    let identity = table.series.map_or(&[][..], |series| series.identity);
    let fixed = identity.iter().map(|name| (*name).to_owned());
    let fixed = fixed.map(|name| IdentityColumn {
        source: name.clone(),
        name,
    });
    let bound = source.columns.iter().filter_map(|column| {
        let (of, name) = column.binding()?;
        match bindings.place(AttributeSource::of_name(of)?, name)? {
            AttributeTarget::Column(at) => Some(IdentityColumn {
                source: column.name.clone(),
                name: bindings.columns().get(usize::from(at))?.clone(),
            }),
            AttributeTarget::Overflow => None,
        }
    });
    fixed.chain(bound).collect()
}

fn overlaps(file: &FileEntry, from: i64, to: i64) -> bool {
    file.times.is_some_and(|(first, last)| first < to && last >= from)
}

/// The approximate number of rows in a time range.
fn rows_within(file: &FileEntry, from: i64, to: i64) -> u64 {
    let (Some((first, last)), Some(rows)) = (file.times, file.stats.rows) else {
        return 0;
    };
    let end = last.saturating_add(1);
    let whole = end.saturating_sub(first).max(1) as f64;
    let part = end.min(to).saturating_sub(first.max(from)).max(0) as f64;
    (rows as f64 * (part / whole).clamp(0.0, 1.0)) as u64
}

fn first_time(files: &[&Arc<FileEntry>]) -> Option<i64> {
    files.iter().filter_map(|file| Some(file.times?.0)).min()
}

/// `2031-05-06`
fn date_of(day: i64) -> String {
    let mut date = Ticks(day.saturating_mul(TICKS_PER_DAY)).to_string();
    date.truncate("2031-05-06".len());
    date
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
