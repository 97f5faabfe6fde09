//! One pass over sorted rows: makes all windows of a resolution in a time range, or those of some series again.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Int64Type;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};

use super::Resolution;
use super::file_writer::RollupFileWriter;
use super::input::{self, RollupInputRows, TIME};
use super::last_points::LastPointCache;
use super::windows::{LOOKBACK_NANOS, PointData, PointKind, RollupWindow, RollupWindowBuilder};
use thalweg_columns::compaction::{
    KeyedBatch, MergeError, MergeInput, MergeIterator, MergeReadOptions, RevisionFilter, RowRun, SortKeys,
};
use thalweg_columns::file::footer;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::schema::TableSchema;

/// The times of the first and the last late row, by series.
pub(super) type SeriesTimeRanges = HashMap<i64, (i64, i64)>;

/// Windows by series and beginning.
pub(super) type WindowKeys = HashSet<(i64, i64)>;

/// Which windows are made again.
#[derive(Clone, Copy)]
pub(super) struct LateRows<'a> {
    /// These series and times, and the next window, because its first difference has changed.
    pub touched: &'a SeriesTimeRanges,
    /// But not these.
    pub kept: &'a WindowKeys,
}

/// The points of a window, as far as they show whether it lacks some of another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPoints {
    pub series: i64,
    /// The beginning of the window.
    pub start: i64,
    /// `None` if more points may have a lower count, as those of cumulative histograms.
    pub count: Option<i64>,
    pub first_time: Option<i64>,
    pub last_time: Option<i64>,
}

impl WindowPoints {
    /// Whether the window lacks points that an earlier one has. Points are only added, unless they expire.
    pub fn lacks_some_of(&self, before: &WindowPoints) -> bool {
        let is_less = |now: Option<i64>, before: Option<i64>| before.is_some_and(|before| now < Some(before));
        let has_later_first = |first: i64| self.first_time.is_none_or(|now| now > first);
        self.count.is_some() && is_less(self.count, before.count)
            || before.first_time.is_some_and(has_later_first)
            || is_less(self.last_time, before.last_time)
    }
}

/// The input and the windows of a pass.
pub(super) struct RollupPass<'a> {
    pub source: &'static TableSpec,
    pub schema: &'a TableSchema,
    /// In log order.
    pub inputs: &'a [PathBuf],
    pub resolution: Resolution,
    /// Makes the windows that begin at or after `from` and end by `to`.
    pub from: i64,
    pub to: i64,
    /// Reads rows from here on.
    pub since: i64,
    /// Only these windows.
    pub touched: Option<LateRows<'a>>,
    /// The end of the existing windows of the next resolution.
    pub next_until: i64,
    pub is_stopped: &'a dyn Fn() -> bool,
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(super) struct RollupPassReport {
    /// Rows that no window could include.
    pub left_out: u64,
    /// Windows inside existing windows of the next resolution, by series: the beginnings of the first and the last.
    pub remade: SeriesTimeRanges,
    /// The windows that were made again.
    pub made_again: Vec<WindowPoints>,
}

/// The current series.
struct RollupSeries {
    id: i64,
    kind: PointKind,
    /// A row with its identity.
    of: (Arc<KeyedBatch>, usize),
    /// The last row, to which the next difference relates.
    last: Option<(Arc<KeyedBatch>, usize)>,
    touched: Option<(i64, i64)>,
    /// A window after the touched ones was made.
    is_past: bool,
    /// A window was kept, so the point before the next window is not known.
    has_kept: bool,
}

impl RollupPass<'_> {
    pub fn run(
        &self,
        last: Option<&mut LastPointCache>,
        made: &mut RollupFileWriter<'_>,
    ) -> Result<RollupPassReport, MergeError> {
        let series = self.source.series.ok_or(MergeError::NoKey)?;
        let reading = MergeReadOptions {
            left_out: series.left_out,
            as_dictionaries: true,
        };
        let open = |(number, path)| MergeInput::open(path, number, self.source, self.schema, reading);
        let inputs: Vec<MergeInput<'_>> = self
            .inputs
            .iter()
            .map(PathBuf::as_path)
            .enumerate()
            .map(open)
            .collect::<Result<_, _>>()?;
        let mut running = RollupPassRun {
            pass: self,
            windows: RollupWindowBuilder::new(self.resolution),
            rows: inputs.iter().map(|_| None).collect(),
            series: None,
            skipped: None,
            last,
            made,
            seen: RollupPassReport::default(),
        };
        let mut sorted = MergeIterator::new(inputs, SortKeys::new(self.source));
        let mut newest = RevisionFilter::default();
        while let Some(run) = sorted.next()? {
            if (self.is_stopped)() {
                return Err(MergeError::Stopped);
            }
            match self.source.has_revisions() {
                true => newest.push(&run, |run| running.take(run))?,
                false => running.take(&run)?,
            }
        }
        if let Some(run) = newest.finish() {
            running.take(&run)?;
        }
        running.end_series()?;
        Ok(running.seen)
    }
}

struct RollupPassRun<'r, 'm> {
    pass: &'r RollupPass<'r>,
    windows: RollupWindowBuilder,
    /// The current batch of each input.
    rows: Vec<Option<RollupInputRows>>,
    series: Option<RollupSeries>,
    /// A series that has no windows, or is not requested.
    skipped: Option<i64>,
    last: Option<&'r mut LastPointCache>,
    made: &'r mut RollupFileWriter<'m>,
    seen: RollupPassReport,
}

impl RollupPassRun<'_, '_> {
    fn take(&mut self, run: &RowRun) -> Result<(), MergeError> {
        let place = self.rows.get_mut(run.piece.input).ok_or(MergeError::NoKey)?;
        let rows = match place.take() {
            Some(rows) if Arc::ptr_eq(&rows.piece, &run.piece) => rows,
            _ => RollupInputRows::new(run.piece.clone(), self.pass.source)?,
        };
        for row in run.begin..run.begin + run.len {
            self.take_row(&rows, row)?;
        }
        if let Some(place) = self.rows.get_mut(run.piece.input) {
            *place = Some(rows);
        }
        Ok(())
    }

    fn take_row(&mut self, rows: &RollupInputRows, row: usize) -> Result<(), MergeError> {
        let (id, time) = (rows.series(row), rows.time(row));
        if self.skipped == Some(id) {
            return Ok(());
        }
        if self.series.as_ref().is_none_or(|series| series.id != id) {
            self.end_series()?;
            self.begin_series(rows, row, id);
        }
        let Some(series) = &mut self.series else { return Ok(()) };
        if time < self.pass.since || time >= self.pass.to {
            return Ok(());
        }
        let ready = if self.pass.source.has_revisions() {
            match rows.window(row) {
                Some(window) => self.windows.push_window(&window),
                None => Ok(None),
            }
        } else {
            let point = rows.point(series.kind, row);
            if series.kind.has_differences() && !matches!(point.data, PointData::Nothing) {
                series.last = Some((rows.piece.clone(), row));
            }
            self.windows.push(&point)
        };
        match ready {
            Ok(Some(window)) => keep(self.pass, series, &window, self.made, &mut self.seen),
            Ok(None) => Ok(()),
            Err(error) => {
                self.seen.left_out += 1;
                tracing::debug!(series = id, "a row is in no window: {error}");
                Ok(())
            }
        }
    }

    fn begin_series(&mut self, rows: &RollupInputRows, row: usize, id: i64) {
        let touched = match self.pass.touched {
            Some(late) => late.touched.get(&id).copied(),
            None => Some((self.pass.from, self.pass.to)),
        };
        let (Some(kind), Some((first, _))) = (rows.kind(row), touched) else {
            self.skipped = Some(id);
            return;
        };
        let from = self.pass.resolution.window_of(first).max(self.pass.from);
        self.windows.begin(kind, from);
        if let Some(point) = self.last.as_ref().and_then(|last| last.get(id)) {
            // A point before this range completes no window.
            let is_before = point.time < self.pass.since;
            if is_before && self.windows.push(&point).is_err() {
                self.seen.left_out += 1;
            }
        }
        self.series = Some(RollupSeries {
            id,
            kind,
            of: (rows.piece.clone(), row),
            last: None,
            touched: self.pass.touched.and(touched),
            is_past: false,
            has_kept: false,
        });
    }

    fn end_series(&mut self) -> Result<(), MergeError> {
        let Some(mut series) = self.series.take() else {
            return Ok(());
        };
        if let Some(window) = self.windows.finish() {
            keep(self.pass, &mut series, &window, self.made, &mut self.seen)?;
        }
        let (Some((piece, row)), Some(last)) = (&series.last, &mut self.last) else {
            return Ok(());
        };
        let known = self.rows.get(piece.input).and_then(Option::as_ref);
        match known.filter(|rows| Arc::ptr_eq(&rows.piece, piece)) {
            Some(rows) => last.put(series.id, series.kind, &rows.point(series.kind, *row)),
            None => {
                let rows = RollupInputRows::new(piece.clone(), self.pass.source)?;
                last.put(series.id, series.kind, &rows.point(series.kind, *row));
            }
        }
        Ok(())
    }
}

/// Writes a window if it is requested.
fn keep(
    pass: &RollupPass<'_>,
    series: &mut RollupSeries,
    window: &RollupWindow<'_>,
    made: &mut RollupFileWriter<'_>,
    seen: &mut RollupPassReport,
) -> Result<(), MergeError> {
    if let Some((_, last)) = series.touched {
        // After the late rows, only the first window has a changed difference.
        let is_other = series.kind.has_differences() && !pass.source.has_revisions();
        if window.start > last && (!is_other || series.has_kept || std::mem::replace(&mut series.is_past, true)) {
            return Ok(());
        }
    }
    if let Some(late) = pass.touched {
        if late.kept.contains(&(series.id, window.start)) {
            series.has_kept = true;
            return Ok(());
        }
        let counts_points = !series.kind.has_differences() || series.kind == PointKind::Counter;
        seen.made_again.push(WindowPoints {
            series: series.id,
            start: window.start,
            count: counts_points.then_some(window.count),
            first_time: window.first_time,
            last_time: window.last_time,
        });
    }
    if window.start < pass.next_until {
        let span = seen.remade.entry(series.id).or_insert((window.start, window.start));
        span.1 = window.start;
    }
    made.push(window, &series.of)
}

/// The time from which rows are needed for windows from `from` on.
pub(super) fn since(from: i64, source: &TableSpec) -> i64 {
    let is_compared = source.series.is_some_and(|series| series.has_differences);
    match is_compared && !source.has_revisions() {
        true => from.saturating_sub(LOOKBACK_NANOS),
        false => from,
    }
}

/// Adds the time ranges of a file's rows that are earlier than `before`.
pub(super) fn touch(
    table: &TableSpec,
    path: &Path,
    before: i64,
    touched: &mut SeriesTimeRanges,
) -> Result<(), MergeError> {
    let of_table = table.series.ok_or(MergeError::NoKey)?;
    read_columns(path, &[of_table.id, TIME], |rows| {
        let (series, times) = input::series_and_times(rows, of_table).ok_or(MergeError::NoKey)?;
        for (series, time) in series.values().iter().zip(times.values()) {
            if *time < before {
                let span = touched.entry(*series).or_insert((*time, *time));
                *span = (span.0.min(*time), span.1.max(*time));
            }
        }
        Ok(())
    })
}

/// Calls `see` with each window of a file and its revision.
pub(super) fn stored_windows(
    table: &TableSpec,
    path: &Path,
    mut see: impl FnMut(WindowPoints, i64),
) -> Result<(), MergeError> {
    const NUMBERS: [&str; 4] = ["revision", "count", "first_time_unix_nano", "last_time_unix_nano"];
    let of_table = table.series.ok_or(MergeError::NoKey)?;
    let names = [&[of_table.id, TIME][..], &NUMBERS].concat();
    read_columns(path, &names, |rows| {
        let (series, times) = input::series_and_times(rows, of_table).ok_or(MergeError::NoKey)?;
        let [revision, count, first, last] = NUMBERS.map(|name| input::numbers::<Int64Type>(rows, name));
        for (row, (series, start)) in series.values().iter().zip(times.values()).enumerate() {
            let points = WindowPoints {
                series: *series,
                start: *start,
                count: input::at(&count, row),
                first_time: input::at(&first, row),
                last_time: input::at(&last, row),
            };
            see(points, input::at(&revision, row).unwrap_or_default());
        }
        Ok(())
    })
}

/// Calls `see` with these columns of a file, batch by batch.
fn read_columns(
    path: &Path,
    names: &[&str],
    mut see: impl FnMut(&RecordBatch) -> Result<(), MergeError>,
) -> Result<(), MergeError> {
    let broken = |error: &dyn std::fmt::Display| MergeError::Input {
        path: path.to_owned(),
        error: error.to_string(),
    };
    let file = File::open(path).map_err(|error| broken(&error))?;
    // A file of another writer may be here until it is rewritten.
    let metadata = footer::load(&file, ArrowReaderOptions::new()).map_err(|error| broken(&error))?;
    let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let mask = ProjectionMask::columns(builder.parquet_schema(), names.iter().copied());
    let reader = builder.with_projection(mask).build().map_err(|error| broken(&error))?;
    for rows in reader {
        see(&rows.map_err(|error| broken(&error))?)?;
    }
    Ok(())
}
