//! What makes rollups: looks which windows are complete, and which have late rows, and commits them.
//!
//! How far each resolution is stands in the table's own commits (`txn` actions), so a commit has its windows or was never made:
//! `thalweg/rollup/<table>/<seconds>/until` is the second at which the windows that are made end, and `…/late` the version of the
//! source up to which late rows are in them. Late rows that were seen and are in no window yet are found again after a restart.

mod late;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_record::Ticks;
use tokio::runtime::Handle;

use late::join;

use super::Resolution;
use super::file_writer::{IdentityColumn, RollupFileSpec, RollupFileWriter};
use super::last_points::LastPointCache;
use super::pass::{RollupPass, SeriesTimeRanges, since};
use crate::commit::{
    CommitError, CommitPayload, CommittedOffset, Committer, EncodedFile, FileReplacement, TableHealth,
};
use crate::error::{AppendError, OpenError};
use crate::metrics::LakeMetrics;
use crate::opening;
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion, AttributeTarget};
use thalweg_columns::compaction::MergeError;
use thalweg_columns::file::FileRules;
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::store::{LakeStorage, LocalFile};
use thalweg_delta::{DeltaError, DeltaLog, FileEntry, Snapshot, SnapshotDetail};
use thalweg_kit::time::unix_ms;

const NANOS_PER_S: i64 = 1_000_000_000;
const NANOS_PER_DAY: i64 = 86_400 * NANOS_PER_S;
const TICKS_PER_DAY: i64 = 864_000_000_000;
const CHECKPOINT_INTERVAL: i64 = 100;
/// Rows that a pass reads, about: what it makes is held until it is committed.
const PASS_ROWS: u64 = 2_000_000;
/// Files that a pass reads at a time, where it has the choice.
const PASS_FILES: usize = 64;
/// Late rows are waited for so long, so that a window with many of them is not made again for each.
const LATE_EVERY: Duration = Duration::from_secs(300);
/// Series with late rows, beyond which they are not waited for.
const TOUCHED_MAX: usize = 1 << 20;
/// Without new rows for so long no more are expected, and what there is becomes windows.
const QUIET: Duration = Duration::from_secs(300);

/// How rollups are made (`lake.rollup.*`).
#[derive(Clone, Debug)]
pub struct RollupOptions {
    /// After the end of a window, for rows that come late; by resolution.
    pub lateness: [Duration; 5],
    /// Memory for what differences are made to.
    pub memory: usize,
    pub late_every: Duration,
    pub quiet: Duration,
}

impl Default for RollupOptions {
    fn default() -> RollupOptions {
        RollupOptions {
            lateness: [30, 60, 120, 300, 300].map(Duration::from_secs),
            memory: 64 << 20,
            late_every: LATE_EVERY,
            quiet: QUIET,
        }
    }
}

/// Why nothing more was made for now.
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

/// What a resolution has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RollupWatermark {
    /// The windows that are made end here, in nanoseconds; `None` before the first.
    until: Option<i64>,
    /// Late rows of the source's versions up to this one are in them.
    late: i64,
}

/// Makes the rollup of one table. Its calls block.
pub(crate) struct RollupBuilder {
    source: DeltaLog,
    source_spec: &'static TableSpec,
    spec: &'static TableSpec,
    log: DeltaLog,
    /// Once there is a table.
    committer: Option<Committer>,
    snapshot: Option<Snapshot>,
    /// The version of the source up to which late rows were looked for.
    looked_until: Option<i64>,
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
    /// The rollup of a table, which lies beside it.
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
        let opened = runtime.block_on(opening::open(site, spec.name, spec.partitions, &columns));
        let (log, found) = opened?;
        let mut rollups = RollupBuilder {
            source,
            source_spec,
            spec,
            log,
            committer: None,
            snapshot: None,
            looked_until: None,
            states: Default::default(),
            late: Default::default(),
            late_since: None,
            last: LastPointCache::new(options.memory),
            options,
            rules: FileRules::default(),
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

    /// What it waits for, and whether that has any use.
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
            };
        }
        // What has a column in the source has one here.
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

    /// Puts files of the rollup in the place of others. `false`: these are not there any more; `None`: nobody knows.
    pub fn replace(&mut self, files: &FileReplacement) -> Option<bool> {
        let done = self.committer.as_mut()?.replace(files).map_err(RollupError::from);
        if let Err(error) = &done {
            tracing::error!(table = self.spec.name, "files were not replaced: {error}");
        }
        done.ok()
    }

    /// Makes what is due. `now` is in nanoseconds.
    pub fn run(&mut self, now: i64, is_stopped: &dyn Fn() -> bool) -> Result<(), RollupError> {
        let Some(snapshot) = self.newest_source()? else {
            return Ok(());
        };
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
            let made = self.runtime.block_on(made)?;
            self.adopt(made);
        }
        self.look_for_late_rows(source)?;
        self.admit(source)?;
        for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
            self.complete(source, at, resolution, now, is_stopped)?;
        }
        self.late_arrived();
        let has_late = self.late.iter().any(|touched| !touched.is_empty());
        let is_due = self
            .late_since
            .is_some_and(|since| since.elapsed() >= self.options.late_every)
            || self.late.iter().any(|touched| touched.len() > TOUCHED_MAX);
        if has_late && is_due {
            for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
                self.revise(source, at, resolution, is_stopped)?;
            }
            self.late_since = None;
        }
        Ok(())
    }

    fn newest_source(&mut self) -> Result<Option<Snapshot>, RollupError> {
        match self.snapshot.take() {
            Some(mut snapshot) => {
                let refreshed = self.runtime.block_on(self.source.refresh(&mut snapshot));
                refreshed?;
                Ok(Some(snapshot))
            }
            None => Ok(self.runtime.block_on(self.source.load(SnapshotDetail::Counts))?),
        }
    }

    fn own(&self) -> Option<&Snapshot> {
        self.committer.as_ref().map(|committer| &committer.snapshot)
    }

    fn state(&self, at: usize) -> RollupWatermark {
        self.states.get(at).copied().unwrap_or_default()
    }

    /// Gives the attributes of the source their columns.
    fn admit(&mut self, source: &Snapshot) -> Result<(), RollupError> {
        let Some(committer) = &mut self.committer else {
            return Ok(());
        };
        let names = attributes(&source.schema).filter(|(of, name)| committer.bindings.place(*of, name).is_none());
        let names: Vec<(AttributeSource, String)> = names.map(|(of, name)| (of, name.to_owned())).collect();
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

    /// Makes the windows that are complete, some at a time.
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
            let files = self.files_before(source, at);
            let begin = self.state(at).until.or_else(|| first_time(&files));
            let next = begin.and_then(|begin| next_time(&files, begin));
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
            let to = self.end_of_pass(&files, from, target, resolution);
            let needed = match self.last.reach(from, first_time(&files).unwrap_or(from)) {
                true if at == 0 => from,
                _ => since(from, self.source_of(at)),
            };
            let made = self.pass(
                source,
                at,
                resolution,
                RollupTimeRange {
                    from,
                    to,
                    since: needed,
                },
                None,
                is_stopped,
            )?;
            if at == 0 {
                self.last.seen(needed, to);
            }
            let before = self.states;
            if let Some(state) = self.states.get_mut(at) {
                state.until = Some(to);
            }
            if let Err(error) = self.commit_windows(source, at, made) {
                self.states = before;
                self.last.forget();
                return Err(error);
            }
        }
    }

    /// Up to where windows are complete.
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

    fn source_of(&self, at: usize) -> &'static TableSpec {
        if at == 0 { self.source_spec } else { self.spec }
    }

    /// Those that a resolution is made from.
    fn files_before<'a>(&'a self, source: &'a Snapshot, at: usize) -> Vec<&'a Arc<FileEntry>> {
        let Some(before) = at.checked_sub(1).and_then(|before| Resolution::ALL.get(before)) else {
            return source.files.values().collect();
        };
        let folder = before.seconds().to_string();
        let is_before =
            |file: &&Arc<FileEntry>| file.partition.first().is_some_and(|of| of.as_deref() == Some(&folder));
        let own = self.own().map(|own| own.files.values()).into_iter().flatten();
        own.filter(is_before).collect()
    }

    /// At most a day, and not more rows and files than memory has room for, nor more bytes than can be copied to this machine.
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

    /// Makes windows again that have late rows.
    fn revise(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), RollupError> {
        // They stay there up to their last day: what a commit says is done is not looked for again after a restart.
        let touched = self.late.get(at).cloned().unwrap_or_default();
        let Some(until) = self.state(at).until else {
            return Ok(());
        };
        let first = touched.values().map(|(first, _)| *first).min();
        let last = touched.values().map(|(_, last)| *last).max();
        if let (Some(first), Some(last)) = (first, last) {
            // The difference behind a late point is another one now.
            let behind = last
                .saturating_add(super::windows::LOOKBACK_NANOS)
                .saturating_add(resolution.nanos());
            let (first, end) = (resolution.window_of(first), behind.min(until));
            let mut done = Ok(());
            let last_day = end.div_euclid(NANOS_PER_DAY);
            for day in first.div_euclid(NANOS_PER_DAY)..=last_day {
                if day == last_day {
                    self.late.get_mut(at).map(std::mem::take);
                }
                let begin = day.saturating_mul(NANOS_PER_DAY);
                let (from, to) = (begin.max(first), begin.saturating_add(NANOS_PER_DAY).min(until));
                done = self.revise_day(source, at, resolution, (from, to), &touched, is_stopped);
                if done.is_err() {
                    break;
                }
            }
            if let Err(error) = done {
                // They are tried again, also those that are done.
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
        let files = self.files_before(source, at);
        if from >= to || !files.iter().any(|file| overlaps(file, from, to)) {
            return Ok(());
        }
        let span = RollupTimeRange {
            from,
            to,
            since: since(from, self.source_of(at)),
        };
        let made = self.pass(source, at, resolution, span, Some(touched), is_stopped)?;
        self.commit_windows(source, at, made)
    }

    /// Commits windows of a resolution, and remembers those that are late for the next: windows made for late rows, but also new
    /// ones, since a pause makes the windows of each resolution that it lies in, the long ones beyond the end of the short ones.
    fn commit_windows(&mut self, source: &Snapshot, at: usize, made: RollupOutput) -> Result<(), RollupError> {
        let remade = self.commit(source, made)?;
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
        touched: Option<&SeriesTimeRanges>,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<RollupOutput, RollupError> {
        let start = Instant::now();
        let mut last = self.last.take();
        let (Some(own), Some(committer)) = (self.own(), &self.committer) else {
            return Ok(RollupOutput::default());
        };
        let files = self.files_before(source, at);
        let mut files: Vec<&&Arc<FileEntry>> = files
            .iter()
            .filter(|file| overlaps(file, span.since, span.to))
            .collect();
        files.sort_by_key(|file| (file.modified_unix_ms, file.path.clone()));
        let (log, schema) = match at {
            0 => (&self.source, &source.schema),
            _ => (&self.log, &own.schema),
        };
        let here = files
            .iter()
            .map(|file| self.runtime.block_on(log.local_file(&file.path, file.size)));
        let here: Vec<LocalFile> = here.collect::<Result<_, _>>()?;
        let inputs: Vec<PathBuf> = here.iter().map(|file| file.path().to_owned()).collect();
        let mut date = Ticks(span.from.div_euclid(NANOS_PER_DAY).saturating_mul(TICKS_PER_DAY)).to_string();
        date.truncate("2031-05-06".len());
        let taken = taken(self.spec, schema, &committer.bindings);
        let (own_schema, rules) = (own.schema.clone(), self.rules.clone());
        let arrival = files.iter().filter_map(|file| file.arrival_max).max();
        let mut made = RollupFileWriter::new(RollupFileSpec {
            spec: self.spec,
            schema: &own_schema,
            taken: &taken,
            resolution,
            date: &date,
            // Each commit has its own: windows may be made again from a version of the source that they were made from.
            revision: own.version,
            is_late: touched.is_some(),
            // Windows are as old as what they were made from, whenever that was.
            arrival: arrival.unwrap_or_else(|| unix_ms().saturating_mul(1_000_000)),
            rules: &rules,
        });
        let pass = RollupPass {
            source: self.source_of(at),
            schema,
            inputs: &inputs,
            resolution,
            from: span.from,
            to: span.to,
            since: span.since,
            touched,
            next_until: self.state(at + 1).until.unwrap_or(i64::MIN),
            is_stopped,
        };
        let seen = pass.run((at == 0).then_some(&mut last), &mut made);
        let file = made.finish();
        self.last = last;
        let (seen, file) = (seen?, file?);
        if seen.left_out > 0 {
            self.metrics.rollup_inexact.inc_by(seen.left_out);
            tracing::warn!(
                table = self.spec.name,
                rows = seen.left_out,
                "rows are in no window, since they do not fit their series"
            );
        }
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
        })
    }

    /// Commits a file, and how far the rollup is with it. What the next resolution is to make again.
    fn commit(&mut self, source: &Snapshot, made: RollupOutput) -> Result<SeriesTimeRanges, RollupError> {
        let (Some(committer), Some(file)) = (&mut self.committer, made.file) else {
            return Ok(SeriesTimeRanges::new());
        };
        // Rows that wait for their windows are looked for again from where they were.
        let mut positions = Vec::new();
        for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
            let Some(state) = self.states.get_mut(at) else { continue };
            if self.late.get(at).is_none_or(SeriesTimeRanges::is_empty) {
                state.late = if at == 0 {
                    source.version
                } else {
                    committer.snapshot.version
                };
            }
            let Some(until) = state.until else { continue };
            for (what, value) in [("until", until / NANOS_PER_S), ("late", state.late)] {
                positions.push(CommittedOffset {
                    application: application(self.source_spec, resolution, what),
                    offset: value,
                    is_last: false,
                });
            }
        }
        let ready = RollupCommitPayload {
            names: Vec::new(),
            files: vec![file],
        };
        committer.commit(&ready, &positions)?;
        Ok(made.remade)
    }
}

/// Of time, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RollupTimeRange {
    from: i64,
    to: i64,
    since: i64,
}

#[derive(Default)]
struct RollupOutput {
    file: Option<EncodedFile>,
    remade: SeriesTimeRanges,
}

/// Files that are made already, or names of attributes.
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

    fn encode(&self, _: &TableSchema, _: &AttributeBindings) -> Result<(Vec<EncodedFile>, u64), String> {
        Ok((self.files.clone(), 0))
    }
}

fn application(table: &TableSpec, resolution: Resolution, what: &str) -> String {
    format!("thalweg/rollup/{}/{}/{what}", table.name, resolution.seconds())
}

fn attributes(schema: &TableSchema) -> impl Iterator<Item = (AttributeSource, &str)> {
    let bound = schema.columns.iter().filter_map(|column| column.binding());
    bound.filter_map(|(source, name)| Some((AttributeSource::of_name(source)?, name)))
}

/// The columns of a source that identify series, as the rollup calls them.
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

/// About, of a span of time.
fn rows_within(file: &FileEntry, from: i64, to: i64) -> u64 {
    let (Some((first, last)), Some(rows)) = (file.times, file.stats.rows) else {
        return 0;
    };
    let whole = (last - first).max(1) as f64;
    let part = (last.min(to) - first.max(from)).max(0) as f64;
    (rows as f64 * (part / whole).clamp(0.0, 1.0)) as u64
}

fn first_time(files: &[&Arc<FileEntry>]) -> Option<i64> {
    files.iter().filter_map(|file| Some(file.times?.0)).min()
}

/// From when on there are rows, from a time on.
fn next_time(files: &[&Arc<FileEntry>], from: i64) -> Option<i64> {
    let behind = files
        .iter()
        .filter_map(|file| file.times)
        .filter(|(_, last)| *last >= from);
    behind.map(|(first, _)| first.max(from)).min()
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
