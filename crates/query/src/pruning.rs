//! Evaluates a filter on the bounds of all files of a table at once: first on whole days, by the times that the day of
//! a file implies, then on the statistics in the log for each remaining file.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, AsArray as _, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, StringViewArray,
    TimestampMicrosecondArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, Date32Type, SchemaRef, TimeUnit};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::physical_optimizer::pruning::PruningPredicate;
use thalweg_delta::FileEntry;
use thalweg_delta::stats::{ColumnBound, ColumnStats};

/// The partition column that follows from the time of a row.
const DATE: &str = "date";
const TIME: &str = "time";
const TIME_NANOS: &str = "time_unix_nano";
const MICROS_PER_DAY: i64 = 86_400_000_000;
const NANOS_PER_MICRO: i64 = 1_000;

/// The files that may contain matching rows, and how many each step left out.
#[derive(Debug, Default)]
pub struct PruningResult {
    pub files: Vec<Arc<FileEntry>>,
    pub by_date: usize,
    pub by_statistics: usize,
}

/// Evaluates a filter on days and files.
pub fn prune(
    files: &[Arc<FileEntry>],
    predicate: &PruningPredicate,
    schema: &SchemaRef,
    partitions: &[String],
) -> Result<PruningResult> {
    let of_day = FileBounds::new(&[], schema, partitions);
    let mut days: BTreeMap<&[Option<Box<str>>], bool> = BTreeMap::new();
    let mut first = Vec::new();
    for file in files {
        days.entry(&file.partition).or_insert_with(|| {
            first.push(file.clone());
            true
        });
    }
    let kept = predicate.prune(&DayBounds(FileBounds {
        files: &first,
        ..of_day
    }))?;
    for (file, kept) in first.iter().zip(kept) {
        if let Some(day) = days.get_mut(&*file.partition) {
            *day = kept;
        }
    }
    let is_kept = |file: &&Arc<FileEntry>| days.get(&*file.partition).is_none_or(|kept| *kept);
    let left: Vec<Arc<FileEntry>> = files.iter().filter(is_kept).cloned().collect();
    let by_date = files.len() - left.len();
    let keep = predicate.prune(&FileBounds::new(&left, schema, partitions))?;
    let all = left.len();
    let kept = left.into_iter().zip(keep).filter(|(_, keep)| *keep);
    let kept: Vec<Arc<FileEntry>> = kept.map(|(file, _)| file).collect();
    Ok(PruningResult {
        by_statistics: all - kept.len(),
        by_date,
        files: kept,
    })
}

/// Bounds that follow from the partition alone: the time of a row is on its day.
struct DayBounds<'a>(FileBounds<'a>);

impl DayBounds<'_> {
    /// `at` is in microseconds since the start of the day.
    fn times(&self, column: &Column, at: i64) -> Option<ArrayRef> {
        let bounds = &self.0;
        let data_type = bounds.schema.field_with_name(&column.name).ok()?.data_type();
        if let Some(at) = bounds.partitions.iter().position(|name| *name == column.name) {
            return bounds.partition_values(at, data_type);
        }
        let date = bounds.partitions.iter().position(|name| name == DATE)?;
        let days = bounds.partition_values(date, &DataType::Date32)?;
        let days = days.as_primitive_opt::<Date32Type>()?.iter();
        let micros = days.map(|day| i64::from(day?).checked_mul(MICROS_PER_DAY)?.checked_add(at));
        match (column.name.as_str(), data_type) {
            (TIME, DataType::Timestamp(TimeUnit::Microsecond, zone)) => Some(Arc::new(
                TimestampMicrosecondArray::from_iter(micros).with_timezone_opt(zone.clone()),
            )),
            (TIME_NANOS, DataType::Int64) => {
                // The last nanosecond of the last microsecond.
                let rest = if at > 0 { NANOS_PER_MICRO - 1 } else { 0 };
                let nanos = micros.map(|micros| micros?.checked_mul(NANOS_PER_MICRO)?.checked_add(rest));
                Some(Arc::new(Int64Array::from_iter(nanos)))
            }
            _ => None,
        }
    }
}

impl PruningStatistics for DayBounds<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.times(column, 0)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.times(column, MICROS_PER_DAY - 1)
    }

    fn num_containers(&self) -> usize {
        self.0.files.len()
    }

    fn null_counts(&self, _column: &Column) -> Option<ArrayRef> {
        None
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        None
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// The bounds of files for DataFusion. An unknown bound is null, which keeps the file.
pub struct FileBounds<'a> {
    files: &'a [Arc<FileEntry>],
    schema: &'a SchemaRef,
    partitions: &'a [String],
}

impl<'a> FileBounds<'a> {
    pub fn new(files: &'a [Arc<FileEntry>], schema: &'a SchemaRef, partitions: &'a [String]) -> FileBounds<'a> {
        FileBounds {
            files,
            schema,
            partitions,
        }
    }

    fn bounds(&self, column: &Column, bound: impl Fn(&ColumnStats) -> &Option<ColumnBound>) -> Option<ArrayRef> {
        let data_type = self.schema.field_with_name(&column.name).ok()?.data_type();
        if let Some(at) = self.partitions.iter().position(|name| *name == column.name) {
            return self.partition_values(at, data_type);
        }
        let of_files = || {
            self.files
                .iter()
                .map(|file| file.stats.column(&column.name).and_then(|stats| bound(stats).as_ref()))
        };
        let ints = || {
            of_files().map(|bound| match bound {
                Some(ColumnBound::Int(value)) => Some(*value),
                _ => None,
            })
        };
        Some(match data_type {
            DataType::Int64 => Arc::new(Int64Array::from_iter(ints())),
            DataType::Int32 => Arc::new(Int32Array::from_iter(ints().map(|value| i32::try_from(value?).ok()))),
            DataType::Date32 => Arc::new(Date32Array::from_iter(ints().map(|value| i32::try_from(value?).ok()))),
            DataType::Timestamp(TimeUnit::Microsecond, zone) => {
                Arc::new(TimestampMicrosecondArray::from_iter(ints()).with_timezone_opt(zone.clone()))
            }
            DataType::Float64 => Arc::new(Float64Array::from_iter(of_files().map(|bound| match bound {
                Some(ColumnBound::Float(value)) => Some(*value),
                _ => None,
            }))),
            DataType::Utf8View => Arc::new(StringViewArray::from_iter(of_files().map(|bound| match bound {
                Some(ColumnBound::Text(text)) => Some(text),
                _ => None,
            }))),
            _ => return None,
        })
    }

    /// All rows of a file have the same value in a partition column.
    fn partition_values(&self, at: usize, data_type: &DataType) -> Option<ArrayRef> {
        let values = self.files.iter().map(|file| {
            let text = file.partition.get(at).and_then(Option::as_ref);
            let value = text.and_then(|text| ScalarValue::try_from_string(text.to_string(), data_type).ok());
            value.map_or_else(|| ScalarValue::try_from(data_type), Ok)
        });
        ScalarValue::iter_to_array(values.collect::<Result<Vec<_>, _>>().ok()?).ok()
    }
}

impl PruningStatistics for FileBounds<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |stats| &stats.min)
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.bounds(column, |stats| &stats.max)
    }

    fn num_containers(&self) -> usize {
        self.files.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        if self.partitions.contains(&column.name) {
            return None;
        }
        let nulls = self.files.iter().map(|file| file.stats.column(&column.name)?.nulls);
        Some(Arc::new(UInt64Array::from_iter(nulls)))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        Some(Arc::new(UInt64Array::from_iter(
            self.files.iter().map(|file| file.stats.rows),
        )))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
