//! Days without windows of a resolution. The windows of a day take less space than its points: where the finest ones have few
//! points each, they are left out, and the next resolution is made of the points.
//!
//! A resolution is left out of a day while its windows are made, once there are enough of them to tell: those that are there are
//! removed from the table. Windows that are kept longer than the points are never left out.

use std::collections::HashSet;
use std::sync::Arc;

use super::super::Resolution;
use super::super::pass::{SeriesTimeRanges, touch};
use super::late::join;
use super::{NANOS_PER_DAY, RollupBuilder, RollupCommitPayload, RollupError, RollupOptions, overlaps, rows_within};
use crate::commit::{EncodedFile, FileReplacement};
use thalweg_columns::tables::TableSpec;
use thalweg_delta::{FileEntry, Snapshot};
use thalweg_kit::threads;

/// Limit for the last resolution, which is always kept.
const COARSEST: usize = Resolution::ALL.len() - 1;

pub(super) fn day_of(time: i64) -> i64 {
    time.div_euclid(NANOS_PER_DAY)
}

pub(super) fn begin_of(day: i64) -> i64 {
    day.saturating_mul(NANOS_PER_DAY)
}

/// The space of some rows of a day once they are merged. Small files have more bytes for each row, so those of the file with the
/// most rows count.
#[derive(Clone, Copy, Debug, Default)]
struct DaySize {
    rows: u64,
    /// Rows and bytes.
    largest: (u64, u64),
}

impl DaySize {
    fn add(&mut self, rows: u64, file: (u64, u64)) {
        self.rows += rows;
        self.largest = self.largest.max(file);
    }

    fn bytes(&self) -> f64 {
        let (rows, bytes) = self.largest;
        self.rows as f64 * bytes as f64 / rows.max(1) as f64
    }
}

/// What a resolution of a day is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RollupSource {
    Points,
    /// The windows of this resolution.
    Windows(usize),
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
            if let (Some(at), Some((first, _))) = (level_of(file), file.times)
                && let Some(present) = days.present.get_mut(at)
            {
                present.insert(day_of(first));
            }
        }
        days
    }

    pub(super) fn is_skipped(&self, days: &WindowDays, at: usize, day: i64) -> bool {
        !self.options.is_kept(at) && days.is_left_out(at, day)
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
            while time <= last && days.source_of(at, day_of(time)) != of {
                time = begin_of(day_of(time).saturating_add(1));
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

    /// The resolution to leave out of a day: the finest one that may be, if the windows before `to`, with those of a file that is
    /// not in the table yet, take more space than they may.
    pub(super) fn too_large(
        &self,
        source: &Snapshot,
        day: i64,
        (at, made): (usize, Option<&EncodedFile>),
        to: i64,
    ) -> Option<usize> {
        let mut windows = [DaySize::default(); 5];
        let of_day = self.own().map(|own| own.files.values()).into_iter().flatten();
        for file in of_day.filter(|file| is_of(file, day)) {
            if let (Some(size), Some(rows)) = (level_of(file).and_then(|at| windows.get_mut(at)), file.stats.rows) {
                size.add(rows, (rows, file.size));
            }
        }
        if let (Some(size), Some(made)) = (windows.get_mut(at), made) {
            size.add(made.rows, (made.rows, made.bytes.len() as u64));
        }
        let mut points = DaySize::default();
        let (from, to) = (begin_of(day), to.min(begin_of(day.saturating_add(1))));
        for file in source.files.values().filter(|file| overlaps(file, from, to)) {
            points.add(rows_within(file, from, to), (file.stats.rows.unwrap_or(0), file.size));
        }
        let all: f64 = windows.iter().map(DaySize::bytes).sum();
        if all * 100.0 <= points.bytes() * self.options.max_percent as f64 {
            return None;
        }
        let is_removable = |at: &usize| {
            let rows = windows.get(*at).map_or(0, |size| size.rows);
            !self.options.is_kept(*at) && rows > 0 && rows >= self.options.min_windows
        };
        (0..COARSEST).find(is_removable)
    }

    /// Leaves a resolution out of a day. `remade` are rows that windows of the next resolution lack.
    pub(super) fn leave_out(
        &mut self,
        source: &Snapshot,
        at: usize,
        day: i64,
        remade: SeriesTimeRanges,
    ) -> Result<(), RollupError> {
        if let Some(late) = self.late.get_mut(at + 1) {
            join(late, remade);
        }
        self.touch_complete_windows(source, at, day)?;
        let removed: Vec<Arc<str>> = self
            .windows_of(at)
            .filter(|file| is_of(file, day))
            .map(|file| file.path.clone())
            .collect();
        tracing::info!(
            table = self.spec.name,
            resolution = Resolution::ALL.get(at).map_or(0, |of| of.seconds()),
            date = super::date_of(day),
            "windows of this resolution are left out of the day, because the windows take more space than the points"
        );
        if let Some(state) = self.states.get_mut(at) {
            state.left_out = state.left_out.max(Some(day));
        }
        if removed.is_empty() {
            return Ok(());
        }
        // First the mark, then the removal: without it, the day would look as if it had no points yet.
        let positions = self.positions(source);
        let Some(committer) = &mut self.committer else {
            return Ok(());
        };
        committer.commit(
            &RollupCommitPayload {
                names: Vec::new(),
                files: Vec::new(),
            },
            &positions,
        )?;
        committer.replace(&FileReplacement {
            operation: "DELETE",
            kind: "retain",
            removed,
            added: Vec::new(),
            changes_data: true,
        })?;
        Ok(())
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

    /// Makes windows that were left out, if they must be kept now, while their points are still there.
    pub(super) fn make_left_out(&mut self, source: &Snapshot, now: i64) {
        let days = self.window_days();
        for at in 0..COARSEST {
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
            let lacking = source.files.values().filter_map(|file| {
                let (first, end) = file.times?;
                let mut of_file = day_of(first).max(oldest)..=day_of(end).min(last);
                of_file.find(|day| days.is_left_out(at, *day))
            });
            let first = lacking.min();
            tracing::info!(
                table = self.spec.name,
                resolution = Resolution::ALL.get(at).map_or(0, |of| of.seconds()),
                "windows of this resolution are kept from now on, also those that were left out"
            );
            if let Some(state) = self.states.get_mut(at) {
                state.left_out = None;
                state.until = first.map_or(Some(until), |first| Some(until.min(begin_of(first))));
            }
        }
    }
}

fn level_of(file: &FileEntry) -> Option<usize> {
    Resolution::of_file(file).map(|of| of as usize)
}

fn is_of(file: &FileEntry, day: i64) -> bool {
    file.times.is_some_and(|(first, _)| day_of(first) == day)
}
