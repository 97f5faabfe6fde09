//! Converts rows of files to points and windows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, ListArray, PrimitiveArray, RecordBatch};
use arrow::datatypes::{ArrowPrimitiveType, Float64Type, Int32Type, Int64Type};

use super::windows::{ExponentialHistogramData, HistogramData, PointData, PointKind, RollupPoint, RollupWindow};
use thalweg_columns::compaction::{KeyedBatch, MergeError};
use thalweg_columns::tables::{SeriesSpec, TableSpec};
use thalweg_sketch::SketchBucketRun;

pub(super) const TIME: &str = "time_unix_nano";

/// A batch of a file with the columns for windows. Rows are read one at a time.
pub(super) struct RollupInputRows {
    pub piece: Arc<KeyedBatch>,
    series: PrimitiveArray<Int64Type>,
    times: PrimitiveArray<Int64Type>,
    /// `None`: all points are plain values.
    kind: Option<[Option<ArrayRef>; 2]>,
    is_monotonic: Option<BooleanArray>,
    start: OptionalLongArray,
    count: OptionalLongArray,
    sum: OptionalDoubleArray,
    min: OptionalDoubleArray,
    max: OptionalDoubleArray,
    bounds: OptionalListArray,
    counts: OptionalListArray,
    of: RollupInputColumns,
}

type OptionalLongArray = Option<PrimitiveArray<Int64Type>>;
type OptionalDoubleArray = Option<PrimitiveArray<Float64Type>>;
type OptionalIntArray = Option<PrimitiveArray<Int32Type>>;
type OptionalListArray = Option<ListArray>;

/// The columns that only points or only windows have.
enum RollupInputColumns {
    Points(Box<PointInputColumns>),
    Windows(Box<WindowInputColumns>),
}

struct PointInputColumns {
    value: OptionalDoubleArray,
    /// OPC UA status codes.
    quality: OptionalLongArray,
    scale: OptionalIntArray,
    zero_count: OptionalLongArray,
    zero_threshold: OptionalDoubleArray,
    offsets: [OptionalIntArray; 2],
    sides: [OptionalListArray; 2],
}

struct WindowInputColumns {
    first: OptionalDoubleArray,
    last: OptionalDoubleArray,
    increase: OptionalDoubleArray,
    first_time: OptionalLongArray,
    last_time: OptionalLongArray,
    resets: OptionalLongArray,
    sketch: Option<ArrayRef>,
}

pub(super) fn numbers<T: ArrowPrimitiveType>(rows: &RecordBatch, name: &str) -> Option<PrimitiveArray<T>> {
    rows.column_by_name(name)?.as_primitive_opt::<T>().cloned()
}

/// A column without nulls.
type RequiredLongArray = PrimitiveArray<Int64Type>;

pub(super) fn series_and_times(
    rows: &RecordBatch,
    series: &SeriesSpec,
) -> Option<(RequiredLongArray, RequiredLongArray)> {
    numbers(rows, series.id).zip(numbers(rows, TIME))
}

fn lists(rows: &RecordBatch, name: &str) -> OptionalListArray {
    rows.column_by_name(name)?.as_list_opt::<i32>().cloned()
}

pub(super) fn at<T: ArrowPrimitiveType>(column: &Option<PrimitiveArray<T>>, row: usize) -> Option<T::Native> {
    let column = column.as_ref()?;
    column.is_valid(row).then(|| column.value(row))
}

/// The numbers of a list; empty for null.
fn list<T: ArrowPrimitiveType>(column: &OptionalListArray, row: usize) -> &[T::Native] {
    let Some(column) = column.as_ref().filter(|column| column.is_valid(row)) else {
        return &[];
    };
    let ends = column.value_offsets();
    let (Some(begin), Some(end)) = (ends.get(row), ends.get(row + 1)) else {
        return &[];
    };
    let values = column.values().as_primitive_opt::<T>();
    let range = usize::try_from(*begin).unwrap_or_default()..usize::try_from(*end).unwrap_or_default();
    values.and_then(|values| values.values().get(range)).unwrap_or_default()
}

fn text(column: &Option<ArrayRef>, row: usize) -> Option<&str> {
    let column = column.as_ref()?.as_dictionary_opt::<Int32Type>()?;
    let texts = column.values().as_string_opt::<i32>()?;
    column.key(row).map(|key| texts.value(key))
}

/// Whether a status code is bad: the highest of its 32 bits is set.
fn is_bad(quality: i64) -> bool {
    quality & 1 << 31 != 0
}

impl RollupInputRows {
    pub fn new(piece: Arc<KeyedBatch>, table: &TableSpec) -> Result<RollupInputRows, MergeError> {
        let rows = &piece.rows;
        let of_table = table.series.ok_or(MergeError::NoKey)?;
        let (series, times) = series_and_times(rows, of_table).ok_or(MergeError::NoKey)?;
        let kind = || ["metric_type", "temporality"].map(|name| rows.column_by_name(name).cloned());
        let of = match table.has_revisions() {
            false => RollupInputColumns::Points(Box::new(PointInputColumns {
                value: numbers(rows, "value"),
                quality: numbers(rows, "quality"),
                scale: numbers(rows, "scale"),
                zero_count: numbers(rows, "zero_count"),
                zero_threshold: numbers(rows, "zero_threshold"),
                offsets: ["positive_offset", "negative_offset"].map(|name| numbers(rows, name)),
                sides: ["positive_counts", "negative_counts"].map(|name| lists(rows, name)),
            })),
            true => RollupInputColumns::Windows(Box::new(WindowInputColumns {
                first: numbers(rows, "first"),
                last: numbers(rows, "last"),
                increase: numbers(rows, "increase"),
                first_time: numbers(rows, "first_time_unix_nano"),
                last_time: numbers(rows, "last_time_unix_nano"),
                resets: numbers(rows, "resets"),
                sketch: rows.column_by_name("sketch").cloned(),
            })),
        };
        Ok(RollupInputRows {
            series,
            times,
            kind: of_table.has_differences.then(kind),
            is_monotonic: rows
                .column_by_name("is_monotonic")
                .and_then(|column| column.as_boolean_opt().cloned()),
            start: numbers(rows, "start_time_unix_nano"),
            count: numbers(rows, "count"),
            sum: numbers(rows, "sum"),
            min: numbers(rows, "min"),
            max: numbers(rows, "max"),
            bounds: lists(rows, "explicit_bounds"),
            counts: lists(rows, "bucket_counts"),
            of,
            piece,
        })
    }

    pub fn series(&self, row: usize) -> i64 {
        self.series.value(row)
    }

    pub fn time(&self, row: usize) -> i64 {
        self.times.value(row)
    }

    /// `None` if there are no windows for this kind.
    pub fn kind(&self, row: usize) -> Option<PointKind> {
        let Some([kind, temporality]) = &self.kind else {
            return Some(PointKind::Value);
        };
        let is_monotonic = self.is_monotonic.as_ref();
        let is_monotonic = is_monotonic.is_some_and(|column| column.is_valid(row) && column.value(row));
        PointKind::of_metric(text(kind, row)?, text(temporality, row), is_monotonic)
    }

    pub fn point(&self, kind: PointKind, row: usize) -> RollupPoint<'_> {
        RollupPoint {
            time: self.time(row),
            start: at(&self.start, row),
            data: self.data(kind, row).unwrap_or(PointData::Nothing),
        }
    }

    fn data(&self, kind: PointKind, row: usize) -> Option<PointData<'_>> {
        let RollupInputColumns::Points(points) = &self.of else {
            return None;
        };
        if at(&points.quality, row).is_some_and(is_bad) {
            return None;
        }
        Some(match kind {
            PointKind::Value | PointKind::Delta | PointKind::Counter => PointData::Number(at(&points.value, row)?),
            PointKind::Histogram { .. } => PointData::Histogram(HistogramData {
                count: at(&self.count, row)?,
                sum: at(&self.sum, row),
                min: at(&self.min, row),
                max: at(&self.max, row),
                bounds: list::<Float64Type>(&self.bounds, row),
                counts: list::<Int64Type>(&self.counts, row),
            }),
            PointKind::Exponential { .. } => {
                let side = |side: usize| SketchBucketRun {
                    offset: points
                        .offsets
                        .get(side)
                        .and_then(|offset| at(offset, row))
                        .unwrap_or_default(),
                    counts: points
                        .sides
                        .get(side)
                        .map(|counts| list::<Int64Type>(counts, row))
                        .unwrap_or_default(),
                };
                PointData::Exponential(ExponentialHistogramData {
                    count: at(&self.count, row)?,
                    sum: at(&self.sum, row),
                    min: at(&self.min, row),
                    max: at(&self.max, row),
                    scale: at(&points.scale, row).unwrap_or_default(),
                    zero_count: at(&points.zero_count, row).unwrap_or_default(),
                    zero_threshold: at(&points.zero_threshold, row).unwrap_or_default(),
                    positive: side(0),
                    negative: side(1),
                })
            }
        })
    }

    /// The window of a rollup row.
    pub fn window(&self, row: usize) -> Option<RollupWindow<'_>> {
        let RollupInputColumns::Windows(windows) = &self.of else {
            return None;
        };
        let sketch = windows.sketch.as_ref().filter(|column| column.is_valid(row));
        let has_buckets = self.counts.as_ref().is_some_and(|counts| counts.is_valid(row));
        Some(RollupWindow {
            start: self.time(row),
            count: at(&self.count, row)?,
            sum: at(&self.sum, row),
            min: at(&self.min, row),
            max: at(&self.max, row),
            first: at(&windows.first, row),
            last: at(&windows.last, row),
            increase: at(&windows.increase, row),
            first_time: at(&windows.first_time, row),
            last_time: at(&windows.last_time, row),
            resets: at(&windows.resets, row),
            explicit_bounds: has_buckets.then(|| list::<Float64Type>(&self.bounds, row)),
            bucket_counts: has_buckets.then(|| list::<Int64Type>(&self.counts, row)),
            sketch: sketch.and_then(|column| Some(column.as_binary_view_opt()?.value(row))),
        })
    }
}
