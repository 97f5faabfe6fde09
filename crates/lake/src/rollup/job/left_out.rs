//! Days without windows of a resolution. The windows of a day take less space than its points: where the finest ones have few
//! points each, they are left out, and the next resolution is made of the points.
//!
//! A resolution is left out of a day while its windows are made, once there are enough of them to tell: those that are there are
//! removed from the table. Windows that are kept longer than the points are never left out, and none are removed of days whose
//! points may have expired.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use arrow::compute::kernels::cast_utils::Parser as _;
use arrow::datatypes::Date32Type;

use super::super::Resolution;
use super::super::pass::{SeriesTimeRanges, since, touch};
use super::day_size::{DaySize, FileSize, bytes_of_windows};
use super::late::join;
use super::{
    NANOS_PER_DAY, RollupBuilder, RollupCommitPayload, RollupError, RollupOptions, RollupOutput, RollupTimeRange,
    overlaps, rows_within,
};
use crate::commit::{EncodedFile, FileReplacement};
use crate::error::AppendError;
use thalweg_columns::compaction::MergeError;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::{FileEntry, Snapshot, times_of};
use thalweg_kit::threads;

/// This resolution is always there.
const COARSEST: usize = Resolution::ALL.len() - 1;
/// How often files are removed if another writer replaces them meanwhile.
const REMOVALS: usize = 10;
/// How many days are looked at again in a run, and are remembered.
const UNDECIDED_AT_ONCE: usize = 8;
const UNDECIDED_MAX: usize = 4096;

pub(super) fn day_of(time: i64) -> i64 {
    time.div_euclid(NANOS_PER_DAY)
}

pub(super) fn begin_of(day: i64) -> i64 {
    day.saturating_mul(NANOS_PER_DAY)
}

/// What a resolution of a day is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollupSource {
    Points,
    /// The windows of this resolution.
    Windows(usize),
}

/// Whether the windows of a day take more space than they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeVerdict {
    /// There are too few of them, or no files that tell.
    Unknown,
    Fits,
    /// This resolution, the finest of the day, is left out.
    TooLarge(usize),
}

/// The days that have windows, by resolution, and those that have none although they have points.
#[derive(Debug, Default)]
pub(super) struct WindowDays {
    present: [HashSet<i64>; 5],
    /// The last day that was left out.
    left_out: [Option<i64>; 5],
    /// The first day that has not all windows of the coarsest resolution yet.
    incomplete: i64,
}

impl WindowDays {
    /// Whether windows of this resolution are missing on purpose, or have expired: coarser ones are there. The days before these
    /// are made are known by the last one that was left out.
    pub fn is_left_out(&self, at: usize, day: i64) -> bool {
        let is_present = |days: &HashSet<i64>| days.contains(&day);
        let coarser = self.present.get(at + 1..).unwrap_or_default();
        let last = self.left_out.get(at).copied().flatten();
        at < COARSEST
            && !self.present.get(at).is_some_and(is_present)
            && (coarser.iter().any(is_present) || last.is_some_and(|last| (self.incomplete..=last).contains(&day)))
    }

    /// Whether the windows of the day are not complete, as far as its last ones tell, or there are some of a coarser resolution:
    /// then nobody takes a missing resolution for a day without points.
    fn may_leave_out(&self, at: usize, day: i64) -> bool {
        let coarser = self.present.get(at + 1..).unwrap_or_default();
        day >= self.incomplete || coarser.iter().any(|days| days.contains(&day))
    }

    /// Whether the day has windows.
    pub fn has(&self, day: i64) -> bool {
        self.present.iter().any(|days| days.contains(&day))
    }

    /// The next finer resolution that the day has.
    pub fn source_of(&self, at: usize, day: i64) -> RollupSource {
        let finer = (0..at).rev().find(|finer| !self.is_left_out(*finer, day));
        finer.map_or(RollupSource::Points, RollupSource::Windows)
    }
}

impl RollupOptions {
    /// Whether windows of this resolution are kept, however few points they have.
    fn is_kept(&self, at: usize) -> bool {
        let days = self.days.get(at).copied().unwrap_or_default();
        at >= COARSEST || self.max_percent == 0 || self.source_days > 0 && (days == 0 || days > self.source_days)
    }
}

impl RollupBuilder {
    pub(super) fn window_days(&self) -> WindowDays {
        let mut days = WindowDays {
            left_out: self.states.map(|state| state.left_out),
            incomplete: self.state(COARSEST).until.map_or(i64::MIN, day_of),
            ..WindowDays::default()
        };
        for file in self.own().iter().flat_map(|own| own.files.values()) {
            if let (Some(at), Some(day)) = (level_of(file), date_of_file(file))
                && let Some(present) = days.present.get_mut(at)
            {
                present.insert(day);
            }
        }
        days
    }

    pub(super) fn files_of<'a>(&'a self, source: &'a Snapshot, of: RollupSource) -> Vec<&'a Arc<FileEntry>> {
        match of {
            RollupSource::Points => source.files.values().collect(),
            RollupSource::Windows(at) => self.windows_of(at).collect(),
        }
    }

    /// The files with windows of a resolution.
    pub(super) fn windows_of(&self, at: usize) -> impl Iterator<Item = &Arc<FileEntry>> {
        let own = self.own().map(|own| own.files.values()).into_iter().flatten();
        own.filter(move |file| level_of(file) == Some(at))
    }

    pub(super) fn spec_of(&self, of: RollupSource) -> &'static TableSpec {
        match of {
            RollupSource::Points => self.source_spec,
            RollupSource::Windows(_) => self.spec,
        }
    }

    /// The time of the next row, at or after `from`, of which windows of a resolution are made.
    pub(super) fn next_row(&self, source: &Snapshot, at: usize, days: &WindowDays, from: i64) -> Option<i64> {
        let next_in = |file: &Arc<FileEntry>, of: RollupSource| {
            let (first, last) = file.times?;
            let mut time = first.max(from);
            // Most files have rows of one day. Only days that have windows are passed over.
            while days.source_of(at, day_of(time)) != of {
                let next = begin_of(day_of(time).saturating_add(1));
                if next > last || next <= time {
                    return None;
                }
                time = next;
            }
            (time <= last).then_some(time)
        };
        let points = source.files.values();
        let points = points.filter_map(|file| next_in(file, RollupSource::Points));
        let windows = self.own().map(|own| own.files.values()).into_iter().flatten();
        let windows = windows.filter_map(|file| {
            let finer = level_of(file).filter(|finer| *finer < at)?;
            next_in(file, RollupSource::Windows(finer))
        });
        points.chain(windows).min()
    }

    /// Whether the windows of a day before `to` take more space than they may, with those of a file that is not in the table yet.
    pub(super) fn verdict(
        &self,
        source: &Snapshot,
        day: i64,
        (at, made): (usize, Option<&EncodedFile>),
        to: i64,
    ) -> SizeVerdict {
        // Points of such a day may have expired.
        let oldest = self
            .now
            .saturating_sub(i64::from(self.options.source_days).saturating_mul(NANOS_PER_DAY));
        if self.options.source_days > 0 && begin_of(day) < oldest {
            return SizeVerdict::Fits;
        }
        let (from, to) = (begin_of(day), to.min(begin_of(day.saturating_add(1))));
        let mut windows: [DaySize; 5] = Default::default();
        let of_day = self.own().map(|own| own.files.values()).into_iter().flatten();
        for file in of_day.filter(|file| date_of_file(file) == Some(day)) {
            if let Some(size) = level_of(file).and_then(|at| windows.get_mut(at)) {
                size.add(rows_within(file, from, to), FileSize::of(file));
            }
        }
        if let (Some(size), Some(made)) = (windows.get_mut(at), made) {
            let (rows, bytes) = (made.rows, made.bytes.len() as u64);
            let nanos = times_of(&made.add).map_or(0, |(first, last)| last.saturating_sub(first));
            size.add(rows, FileSize { rows, bytes, nanos });
        }
        let Some(finest) = windows.iter().position(|size| size.rows > 0) else {
            return SizeVerdict::Unknown;
        };
        let (rows, days) = (windows.get(finest).map_or(0, |size| size.rows), self.window_days());
        if self.options.is_kept(finest) {
            return SizeVerdict::Fits;
        }
        if rows < self.options.min_windows || !days.may_leave_out(finest, day) {
            return SizeVerdict::Unknown;
        }
        let mut points = DaySize::default();
        for file in source.files.values().filter(|file| overlaps(file, from, to)) {
            points.add(rows_within(file, from, to), FileSize::of(file));
        }
        let span = self.options.min_span;
        let (Some(all), Some(bytes)) = (bytes_of_windows(&windows, span), points.bytes(span)) else {
            return SizeVerdict::Unknown;
        };
        // Points and windows are not merged at the same time, and a decision cannot be taken back.
        let margin = if day >= days.incomplete { 1.1 } else { 1.0 };
        let is_large = all * 100.0 > bytes * self.options.max_percent as f64 * margin;
        // With far fewer points than windows, some of them have expired. Their number in a part of a file is an estimate.
        match is_large && points.rows >= rows / 2 {
            true => SizeVerdict::TooLarge(finest),
            false => SizeVerdict::Fits,
        }
    }

    /// Leaves a resolution out of a day. `remade` are rows that windows of the next resolution lack.
    pub(super) fn leave_out(
        &mut self,
        source: &Snapshot,
        at: usize,
        day: i64,
        remade: SeriesTimeRanges,
    ) -> Result<(), RollupError> {
        self.touch_complete_windows(source, at, day)?;
        if let Some(late) = self.late.get_mut(at + 1) {
            join(late, remade);
        }
        let before = self.states;
        if let Some(state) = self.states.get_mut(at) {
            state.left_out = state.left_out.max(Some(day));
        }
        if let Err(error) = self.remove_windows(source, at, day) {
            self.states = before;
            return Err(error);
        }
        tracing::info!(
            table = self.spec.name,
            resolution = Resolution::ALL.get(at).map_or(0, |of| of.seconds()),
            date = super::date_of(day),
            "windows of this resolution are left out of the day, because the windows take more space than the points"
        );
        Ok(())
    }

    /// Removes the windows of a resolution and a day, with the mark in the same commit. Another writer may merge them meanwhile.
    fn remove_windows(&mut self, source: &Snapshot, at: usize, day: i64) -> Result<(), RollupError> {
        for _ in 0..REMOVALS {
            let of_day = self.windows_of(at).filter(|file| date_of_file(file) == Some(day));
            let removed: Vec<Arc<str>> = of_day.map(|file| file.path.clone()).collect();
            let positions = self.positions(source);
            let Some(committer) = self.committer.as_mut().filter(|_| !removed.is_empty()) else {
                return Ok(());
            };
            let files = FileReplacement {
                operation: "DELETE",
                kind: "retain",
                removed,
                added: Vec::new(),
                changes_data: true,
            };
            committer.replace_with(&files, &positions)?;
        }
        let why = format!("another program replaces the files of {} all the time", self.spec.name);
        Err(RollupError::Commit(AppendError::Failed(why)))
    }

    /// Commits windows of a day, or leaves a resolution out of it. `touched` has late rows if they are made again.
    pub(super) fn keep(
        &mut self,
        source: &Snapshot,
        at: usize,
        (day, to): (i64, i64),
        made: RollupOutput,
        touched: Option<&SeriesTimeRanges>,
    ) -> Result<(), RollupError> {
        let is_first = !self.window_days().has(day);
        if is_first && made.file.is_some() {
            self.undecided.push_back(day);
        }
        // The points of windows that late rows change may have expired since.
        let may_leave_out = touched.is_none() || !self.days_before.has(day);
        match self.verdict(source, day, (at, made.file.as_ref()), to) {
            SizeVerdict::TooLarge(finest) if finest == at && may_leave_out => {
                let remade = touched.map_or(made.remade, SeriesTimeRanges::clone);
                self.leave_out(source, at, day, remade)
            }
            _ => self.commit_windows(source, at, made),
        }
    }

    /// Leaves out the finest resolutions of a day while its windows take more space than they may. Returns whether that is known.
    pub(super) fn thin_out(&mut self, source: &Snapshot, day: i64, to: i64) -> Result<bool, RollupError> {
        for _ in 0..COARSEST {
            match self.verdict(source, day, (COARSEST, None), to) {
                SizeVerdict::TooLarge(finest) => self.leave_out(source, finest, day, SeriesTimeRanges::new())?,
                verdict => return Ok(verdict == SizeVerdict::Fits),
            }
        }
        Ok(true)
    }

    /// The same for the days that have got windows last, and for some others that could not be told yet: files that tell may have
    /// been merged since.
    pub(super) fn thin_out_later(&mut self, source: &Snapshot) -> Result<(), RollupError> {
        let Some(until) = self.state(0).until else {
            return Ok(());
        };
        let newest = day_of(until);
        for day in [newest.saturating_sub(1), newest] {
            self.thin_out(source, day, until)?;
        }
        for _ in 0..self.undecided.len().min(UNDECIDED_AT_ONCE) {
            let Some(day) = self.undecided.pop_front() else { break };
            if day < newest && !self.thin_out(source, day, i64::MAX)? && self.undecided.len() < UNDECIDED_MAX {
                self.undecided.push_back(day);
            }
        }
        Ok(())
    }

    /// The end of the windows that later rows of a day change: of the next resolution that the day has, and of those before it.
    pub(super) fn next_until(&self, at: usize, day: i64) -> i64 {
        let (days, mut until) = (self.window_days(), i64::MIN);
        for next in at + 1..Resolution::ALL.len() {
            until = until.max(self.state(next).until.unwrap_or(i64::MIN));
            if !days.is_left_out(next, day) {
                break;
            }
        }
        until
    }

    /// A quiet period may have made coarser windows that have more rows since. Where windows are left out, nothing else finds them.
    fn touch_complete_windows(&mut self, source: &Snapshot, at: usize, day: i64) -> Result<(), RollupError> {
        let (until, complete) = (self.state(at).until.unwrap_or(i64::MIN), self.last_until());
        let (from, to) = (until.max(begin_of(day)), complete.min(begin_of(day.saturating_add(1))));
        let Some(late) = self.late.get_mut(at + 1).filter(|_| from < to) else {
            return Ok(());
        };
        for file in source.files.values().filter(|file| overlaps(file, from, to)) {
            let local = threads::block_on(&self.runtime, self.source.local_file(&file.path, file.size))?;
            touch(self.source_spec, local.path(), to, late)?;
        }
        Ok(())
    }

    /// The end of the last window of any resolution.
    pub(super) fn last_until(&self) -> i64 {
        self.states
            .iter()
            .filter_map(|state| state.until)
            .max()
            .unwrap_or(i64::MIN)
    }

    /// Makes windows that were left out, if they must be kept now, while their points are still there. Until then a day is left out
    /// as a whole. Returns whether all were made: of damaged points none can be, and other days must not wait for them.
    pub(super) fn make_left_out(
        &mut self,
        source: &Snapshot,
        now: i64,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<bool, RollupError> {
        let mut are_all_made = true;
        for (at, resolution) in Resolution::ALL.into_iter().enumerate() {
            let state = self.state(at);
            let (true, Some(last), Some(until)) = (self.options.is_kept(at), state.left_out, state.until) else {
                continue;
            };
            let kept = i64::from(self.options.days.get(at).copied().unwrap_or_default());
            let oldest = if kept == 0 {
                i64::MIN
            } else {
                day_of(now).saturating_sub(kept - 1)
            };
            let days = self.window_days();
            let lacking = source
                .files
                .values()
                .filter_map(|file| file.times)
                .flat_map(|(first, end)| {
                    let of_file = day_of(first).max(oldest)..=day_of(end).min(last);
                    of_file.filter(|day| days.is_left_out(at, *day))
                });
            let lacking: BTreeSet<i64> = lacking.collect();
            for day in lacking {
                let (begin, end) = (begin_of(day), begin_of(day.saturating_add(1)).min(until));
                let made = self.make_day(source, at, resolution, (begin, end), is_stopped);
                let Err(error) = made else { continue };
                if !matches!(&error, RollupError::Merge(merge) if !matches!(merge, MergeError::Stopped)) {
                    return Err(error);
                }
                are_all_made = false;
                tracing::error!(
                    table = self.spec.name,
                    resolution = resolution.seconds(),
                    date = super::date_of(day),
                    "windows that were left out, and are to be kept from now on, cannot be made, which is tried again: {error}"
                );
            }
        }
        Ok(are_all_made)
    }

    /// Makes all windows of a day that has none, and commits them at once, so that nobody sees a part of them.
    fn make_day(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        (mut from, end): (i64, i64),
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<(), RollupError> {
        let day = day_of(from);
        let of = self.window_days().source_of(at, day);
        let (mut placed, mut held) = (Vec::new(), Vec::new());
        while from < end {
            let to = self.end_of_pass(&self.files_of(source, of), from, end, resolution);
            let span = RollupTimeRange {
                of,
                from,
                to,
                since: since(from, self.spec_of(of)),
            };
            let made = self.pass(source, at, resolution, span, None, is_stopped)?;
            if let (Some(committer), Some(file)) = (&mut self.committer, made.file) {
                let (add, hold) = committer.store_ahead(file)?;
                placed.push(add);
                held.push(hold);
            }
            from = to;
        }
        let positions = self.positions(source);
        if let Some(committer) = self.committer.as_mut().filter(|_| !placed.is_empty()) {
            committer.commit_with(&RollupCommitPayload::default(), &placed, &positions)?;
            tracing::info!(
                table = self.spec.name,
                resolution = resolution.seconds(),
                date = super::date_of(day),
                "windows that were left out were made, because they are kept from now on"
            );
        }
        Ok(())
    }
}

fn level_of(file: &FileEntry) -> Option<usize> {
    Resolution::of_file(file).map(|of| of as usize)
}

/// The day of a file with windows.
fn date_of_file(file: &FileEntry) -> Option<i64> {
    Date32Type::parse(file.partition.get(1)?.as_deref()?).map(i64::from)
}
