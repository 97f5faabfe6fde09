//! Late rows: determines which existing windows must be made again, and which of these must stay, because they have points
//! that have expired since.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::super::Resolution;
use super::super::pass::{LateRows, SeriesTimeRanges, WindowKeys, WindowPoints, stored_windows, touch};
use super::super::windows::LOOKBACK_NANOS;
use super::{RollupBuilder, RollupError, RollupOutput, RollupTimeRange, day_of, overlaps};
use thalweg_delta::actions::Action;
use thalweg_delta::{DeltaLog, FileEntry, Snapshot, times_of};
use thalweg_kit::{clock, threads};

/// A file that was added to a table.
struct AddedFile {
    path: Arc<str>,
    bytes: u64,
    times: Option<(i64, i64)>,
}

impl AddedFile {
    fn of(file: &FileEntry) -> AddedFile {
        AddedFile {
            path: file.path.clone(),
            bytes: file.size,
            times: file.times,
        }
    }
}

impl RollupBuilder {
    /// Finds rows in newly added files whose windows exist already.
    pub(super) fn look_for_late_rows(&mut self, source: &Snapshot) -> Result<(), RollupError> {
        let mut late: [SeriesTimeRanges; 5] = Default::default();
        if let Some(until) = self.state(0).until {
            // A file may be merged already, so this reads the commits instead of the file list. After a start it begins
            // at the watermark.
            let since = self.looked_until.unwrap_or(self.state(0).late);
            let all = || source.files.values().map(|file| AddedFile::of(file)).collect();
            let added = self.added(&self.source, since, source.version)?.unwrap_or_else(all);
            // Where the finest windows are left out, the late rows of all others are found here.
            let (days, all) = (self.window_days(), self.last_until());
            let is_left_out = |time: &i64| days.is_left_out(0, day_of(*time));
            let until = |first, last| {
                if [first, last].iter().any(is_left_out) {
                    all
                } else {
                    until
                }
            };
            self.touch(source, 0, &added, &until, &mut late)?;
            if self.looked_until.is_none() {
                for at in 1..Resolution::ALL.len() {
                    self.look_for_revisions(at, &mut late)?;
                }
            }
        }
        // Not earlier: after an error they are looked for again.
        self.looked_until = Some(source.version);
        for (known, more) in self.late.iter_mut().zip(late) {
            join(known, more);
        }
        self.late_arrived();
        Ok(())
    }

    /// Finds revisions of the finer resolution that this one does not include.
    fn look_for_revisions(&self, at: usize, late: &mut [SeriesTimeRanges; 5]) -> Result<(), RollupError> {
        let state = self.state(at);
        let (Some(until), Some(own)) = (state.until, self.own()) else {
            return Ok(());
        };
        let before = at.checked_sub(1).and_then(|before| Resolution::ALL.get(before));
        let folder = before.map_or_else(String::new, |before| format!("resolution_s={}/", before.seconds()));
        let all = || own.files.values().map(|file| AddedFile::of(file)).collect();
        let mut added = self.added(&self.log, state.late, own.version)?.unwrap_or_else(all);
        added.retain(|added| added.path.starts_with(&folder));
        self.touch(own, at, &added, &|_, _| until, late)
    }

    /// Finds rows in the added files whose windows exist already: those before `until` of the file's first and last time.
    fn touch(
        &self,
        table: &Snapshot,
        at: usize,
        added: &[AddedFile],
        until: &dyn Fn(i64, i64) -> i64,
        late: &mut [SeriesTimeRanges; 5],
    ) -> Result<(), RollupError> {
        let (spec, log) = match at {
            0 => (self.source_spec, &self.source),
            _ => (self.spec, &self.log),
        };
        let Some(touched) = late.get_mut(at) else { return Ok(()) };
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for AddedFile { path, bytes, times } in added {
            let Some((first, last)) = times.filter(|(first, last)| *first < until(*first, *last)) else {
                continue;
            };
            let until = until(first, last);
            let is_gone = !table.files.contains_key(path)
                && threads::block_on(&self.runtime, log.missing(std::iter::once(path.clone())))? > 0;
            // A merged file is deleted at some time. Then all files with overlapping times are read in its place.
            let merged = table
                .files
                .values()
                .filter(|file| overlaps(file, first, last.saturating_add(1)));
            let files = match is_gone {
                true => merged.map(|file| (&*file.path, file.size)).collect(),
                false => vec![(&**path, *bytes)],
            };
            for (path, bytes) in files {
                if seen.insert(path) {
                    let file = threads::block_on(&self.runtime, log.local_file(path, bytes))?;
                    touch(spec, file.path(), until, touched)?;
                }
            }
        }
        Ok(())
    }

    /// The files with rows that were added after version `after`; `None` if a commit is missing.
    fn added(&self, log: &DeltaLog, after: i64, version: i64) -> Result<Option<Vec<AddedFile>>, RollupError> {
        let mut added = Vec::new();
        for version in after + 1..=version {
            let Some(actions) = threads::block_on(&self.runtime, log.read_commit(version))? else {
                return Ok(None);
            };
            for action in actions {
                if let Action::Add(add) = action
                    && add.data_change
                {
                    added.push(AddedFile {
                        times: times_of(&add),
                        bytes: add.size,
                        path: add.path.into(),
                    });
                }
            }
        }
        Ok(Some(added))
    }

    /// Makes windows of some late rows again. A window that has points which have expired since is not replaced, because
    /// the new one would lack them: it goes without its late rows, which are counted as inexact.
    pub(super) fn make_again(
        &mut self,
        source: &Snapshot,
        at: usize,
        resolution: Resolution,
        span: RollupTimeRange,
        touched: &SeriesTimeRanges,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<RollupOutput, RollupError> {
        let mut kept = WindowKeys::new();
        loop {
            let late = LateRows { touched, kept: &kept };
            let made = self.pass(source, at, resolution, span, Some(late), is_stopped)?;
            let expired = self.with_expired_points(at, &made.made_again)?;
            if expired.is_empty() {
                return Ok(made);
            }
            self.metrics.rollup_inexact.inc_by(expired.len() as u64);
            tracing::warn!(
                table = self.spec.name,
                resolution = resolution.seconds(),
                windows = expired.len(),
                "late rows are in no window, because points of their windows have expired"
            );
            kept.extend(expired);
        }
    }

    /// The windows that have points which those that were made in their place lack.
    fn with_expired_points(&self, at: usize, made: &[WindowPoints]) -> Result<WindowKeys, RollupError> {
        let starts = || made.iter().map(|window| window.start);
        let (Some(first), Some(last)) = (starts().min(), starts().max()) else {
            return Ok(WindowKeys::new());
        };
        let key = |window: &WindowPoints| (window.series, window.start);
        let mut newest: HashMap<_, Option<(i64, WindowPoints)>> =
            made.iter().map(|window| (key(window), None)).collect();
        for file in self.windows_of(at) {
            if !overlaps(file, first, last.saturating_add(1)) {
                continue;
            }
            let local = threads::block_on(&self.runtime, self.log.local_file(&file.path, file.size))?;
            stored_windows(self.spec, local.path(), |window, revision| {
                if let Some(known) = newest.get_mut(&key(&window))
                    && known.is_none_or(|(before, _)| before < revision)
                {
                    *known = Some((revision, window));
                }
            })?;
        }
        let has_expired = |window: &&WindowPoints| match newest.get(&key(window)) {
            Some(Some((_, before))) => window.lacks_some_of(before),
            _ => false,
        };
        Ok(made.iter().filter(has_expired).map(key).collect())
    }

    /// Late rows of days without this resolution are those of the next one.
    pub(super) fn pass_on(&mut self, at: usize, resolution: Resolution, touched: &SeriesTimeRanges) {
        let times = touched.values();
        let (Some(first), Some(last)) = (
            times.clone().map(|(first, _)| *first).min(),
            times.map(|(_, last)| *last).max(),
        ) else {
            return;
        };
        // The difference of the point after a late point has changed.
        let last = last.saturating_add(LOOKBACK_NANOS).saturating_add(resolution.nanos());
        let days = self.window_days();
        let is_passed_on = (day_of(first)..=day_of(last)).any(|day| days.is_left_out(at, day));
        if let Some(next) = self.late.get_mut(at + 1).filter(|_| is_passed_on) {
            join(next, touched.clone());
        }
    }

    pub(super) fn late_arrived(&mut self) {
        if self.late_since.is_none() && self.late.iter().any(|touched| !touched.is_empty()) {
            self.late_since = Some(clock::now());
        }
    }
}

pub(super) fn join(late: &mut SeriesTimeRanges, more: SeriesTimeRanges) {
    for (series, (first, last)) in more {
        let span = late.entry(series).or_insert((first, last));
        *span = (span.0.min(first), span.1.max(last));
    }
}
