//! The bounds of a table's files in the form in which a filter can be evaluated on all of them at once.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Float64Array, Int32Array, Int64Array, StringViewArray,
    TimestampMicrosecondArray, UInt64Array,
};
use datafusion::arrow::datatypes::{DataType, SchemaRef, TimeUnit};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, ScalarValue};
use thalweg_lake::delta::FileEntry;
use thalweg_lake::delta::stats::{Bound, ColumnStats};

/// See the module. What is not known of a file is null there, and keeps it.
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

    fn bounds(&self, column: &Column, bound: impl Fn(&ColumnStats) -> &Option<Bound>) -> Option<ArrayRef> {
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
                Some(Bound::Int(value)) => Some(*value),
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
                Some(Bound::Float(value)) => Some(*value),
                _ => None,
            }))),
            DataType::Utf8View => Arc::new(StringViewArray::from_iter(of_files().map(|bound| match bound {
                Some(Bound::Text(text)) => Some(text),
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
