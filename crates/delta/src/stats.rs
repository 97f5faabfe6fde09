//! Statistics of a file: row count, and per column the bounds and the number of nulls. They make it unnecessary to open
//! files that cannot match.
//!
//! When a file is written, they are converted from the Parquet footer to Delta's JSON; when a commit is read, from the
//! JSON to typed bounds. A bound is never tighter than the data: texts may be truncated, timestamps are rounded
//! outwards to milliseconds, and a column whose bounds are not reliable (NaN, infinities) has none. The bounds of other
//! programs are widened accordingly.
//!
//! Some readers take a missing bound for null, so that no filter matches the file. They expect bounds of the columns
//! that a table names in [`INDEXED_COLUMNS_KEY`], so [`bounded_columns`] names only those whose bounds are always
//! there.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::compute::kernels::cast_utils::Parser as _;
use arrow::datatypes::{Date32Type, TimestampMicrosecondType};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::statistics::Statistics;
use serde_json::{Map, Value};
use thalweg_record::{Ticks, Value as Sent, json};

use super::schema::{ColumnType, TableColumn, TableSchema};

/// The number of columns with statistics: the first ones of the schema, as Delta counts them.
pub const INDEXED_COLUMNS: usize = 32;

/// The table property with the columns of which readers may expect statistics.
pub const INDEXED_COLUMNS_KEY: &str = "delta.dataSkippingStatsColumns";

const TICKS_PER_MILLI: i64 = 10_000;
const MICROS_PER_MILLI: i64 = 1_000;

/// The statistics of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileStats {
    /// `None` if the writer of the file did not state it.
    pub rows: Option<u64>,
    pub columns: Box<[ColumnStats]>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ColumnStats {
    pub column: Arc<str>,
    pub min: Option<ColumnBound>,
    pub max: Option<ColumnBound>,
    pub nulls: Option<u64>,
}

/// A lower or upper bound.
#[derive(Clone, Debug, PartialEq)]
pub enum ColumnBound {
    /// Longs and integers, dates in days, timestamps in microseconds, booleans as 0 and 1.
    Int(i64),
    Float(f64),
    Text(Box<str>),
}

/// The columns of a new table that have bounds in each file in which they have values, as the value of
/// [`INDEXED_COLUMNS_KEY`]. `columns` are those that the table always had: a file that is older than a column has no
/// statistics of it.
///
/// Doubles are left out because a NaN or an infinity has no bounds in JSON, booleans because files of earlier versions
/// have no bounds of them, and skipping by two values is of no use.
pub fn bounded_columns(columns: &TableSchema, partitions: &[&str]) -> String {
    let has_bounds = |kind: &ColumnType| {
        use ColumnType::*;
        matches!(kind, Date | Timestamp | Long | Integer | String)
    };
    let first = columns.columns.iter().take(INDEXED_COLUMNS);
    let bounded = first.filter(|column| !partitions.contains(&column.name.as_str()) && has_bounds(&column.kind));
    let names: Vec<&str> = bounded.map(|column| column.name.as_str()).collect();
    names.join(",")
}

impl FileStats {
    pub fn column(&self, name: &str) -> Option<&ColumnStats> {
        self.columns.iter().find(|stats| &*stats.column == name)
    }

    /// Delta's JSON for a newly written file. Columns of `schema` that the file lacks count as all null.
    pub fn delta_json(schema: &TableSchema, partitions: &[&str], file: &ParquetMetaData) -> String {
        let rows = file.file_metadata().num_rows();
        let (mut min, mut max, mut nulls) = (Map::new(), Map::new(), Map::new());
        for (column, merged) in merged_columns(schema, partitions, file) {
            let Some(merged) = merged else {
                if !column.kind.is_nested() {
                    nulls.insert(column.name.clone(), rows.into());
                }
                continue;
            };
            if let Some(count) = merged.nulls {
                nulls.insert(column.name.clone(), count.into());
            }
            if let Some((low, high)) = merged.bounds.and_then(|bounds| bounds.to_json(&column.kind)) {
                min.insert(column.name.clone(), low);
                max.insert(column.name.clone(), high);
            }
        }
        serde_json::json!({"numRecords": rows, "minValues": min, "maxValues": max, "nullCount": nulls}).to_string()
    }

    /// The exact statistics of a file, of which [`FileStats::delta_json`] is made.
    pub fn of_footer(schema: &TableSchema, partitions: &[&str], file: &ParquetMetaData) -> FileStats {
        let columns = merged_columns(schema, partitions, file).filter_map(|(column, merged)| {
            let Some(merged) = merged else {
                let rows = u64::try_from(file.file_metadata().num_rows()).ok();
                return (!column.kind.is_nested()).then(|| ColumnStats {
                    column: column.name.as_str().into(),
                    min: None,
                    max: None,
                    nulls: rows,
                });
            };
            let (min, max) = merged.bounds.and_then(|bounds| bounds.exact(&column.kind)).unzip();
            Some(ColumnStats {
                column: column.name.as_str().into(),
                min,
                max,
                nulls: merged.nulls,
            })
        });
        FileStats {
            columns: columns.collect(),
            rows: u64::try_from(file.file_metadata().num_rows()).ok(),
        }
    }

    /// Parses Delta's JSON; what does not fit the schema is dropped. `names` shares column names between files.
    pub fn parse(text: &str, schema: &TableSchema, names: &mut HashMap<String, Arc<str>>) -> FileStats {
        // This parser is exact for floats: a bound that is off by one bit would hide rows.
        let Ok(Sent::Object(stats)) = json::parse(text.as_bytes()) else {
            return FileStats::default();
        };
        let part = |key: &str, column: &str| match stats.get(key) {
            Some(Sent::Object(values)) => values.get(column),
            _ => None,
        };
        let columns = schema.columns.iter().filter_map(|column| {
            let bound = |key| part(key, &column.name).and_then(|value| parse_bound(value, &column.kind));
            let (min, max) = (
                bound("minValues"),
                bound("maxValues").map(|max| max.widened(&column.kind)),
            );
            let nulls = part("nullCount", &column.name).and_then(count_of);
            if min.is_none() && max.is_none() && nulls.is_none() {
                return None;
            }
            let name = match names.get(&column.name) {
                Some(name) => name.clone(),
                None => names
                    .entry(column.name.clone())
                    .or_insert_with(|| column.name.as_str().into())
                    .clone(),
            };
            Some(ColumnStats {
                column: name,
                min,
                max,
                nulls,
            })
        });
        FileStats {
            columns: columns.collect(),
            rows: stats.get("numRecords").and_then(count_of),
        }
    }
}

impl FileStats {
    /// Drops float bounds: other programs exclude NaN from their bounds, but here NaN is the greatest value.
    pub(super) fn forget_floats(&mut self) {
        for stats in &mut self.columns {
            let is_float = |bound: &Option<ColumnBound>| matches!(bound, Some(ColumnBound::Float(_)));
            if is_float(&stats.min) || is_float(&stats.max) {
                (stats.min, stats.max) = (None, None);
            }
        }
    }
}

impl ColumnBound {
    /// Other programs truncate times to milliseconds, as the format prescribes, so an upper bound in whole milliseconds
    /// covers all of its last millisecond.
    fn widened(self, kind: &ColumnType) -> ColumnBound {
        match (kind, self) {
            (ColumnType::Timestamp, ColumnBound::Int(micros)) if micros.rem_euclid(MICROS_PER_MILLI) == 0 => {
                ColumnBound::Int(micros.saturating_add(MICROS_PER_MILLI - 1))
            }
            (_, bound) => bound,
        }
    }
}

/// The columns that have statistics in the log, with what the file has of each; `None` if it lacks the column.
fn merged_columns<'a>(
    schema: &'a TableSchema,
    partitions: &'a [&str],
    file: &'a ParquetMetaData,
) -> impl Iterator<Item = (&'a TableColumn, Option<MergedColumnStats>)> {
    let leaves = file.file_metadata().schema_descr().columns().iter().enumerate();
    let written: HashMap<&str, usize> = leaves
        .filter(|(_, leaf)| leaf.path().parts().len() == 1)
        .map(|(index, leaf)| (leaf.name(), index))
        .collect();
    let indexed = schema.columns.iter().take(INDEXED_COLUMNS);
    let indexed = indexed.filter(|column| !partitions.contains(&column.name.as_str()));
    indexed.map(move |column| {
        let leaf = written.get(column.name.as_str());
        (column, leaf.map(|leaf| MergedColumnStats::of(file, *leaf)))
    })
}

/// The statistics of one column over all row groups.
struct MergedColumnStats {
    nulls: Option<u64>,
    /// `None` if a row group has values without bounds, or no row group has values.
    bounds: Option<ColumnBounds>,
}

enum ColumnBounds {
    Int(i64, i64),
    Float(f64, f64),
    Text(Box<str>, Box<str>),
}

impl MergedColumnStats {
    fn of(file: &ParquetMetaData, leaf: usize) -> MergedColumnStats {
        let (mut nulls, mut bounds, mut complete) = (Some(0), None, true);
        for group in file.row_groups() {
            let stats = group.columns().get(leaf).and_then(|chunk| chunk.statistics());
            let group_nulls = stats.and_then(Statistics::null_count_opt);
            nulls = nulls.zip(group_nulls).map(|(a, b)| a + b);
            if group_nulls == Some(group.num_rows().unsigned_abs()) {
                continue;
            }
            match stats.and_then(ColumnBounds::of) {
                Some(of_group) => bounds = ColumnBounds::merge(bounds, of_group),
                None => complete = false,
            }
        }
        MergedColumnStats {
            nulls,
            bounds: bounds.filter(|_| complete),
        }
    }
}

impl ColumnBounds {
    fn of(stats: &Statistics) -> Option<ColumnBounds> {
        Some(match stats {
            Statistics::Boolean(s) => ColumnBounds::Int((*s.min_opt()?).into(), (*s.max_opt()?).into()),
            Statistics::Int32(s) => ColumnBounds::Int((*s.min_opt()?).into(), (*s.max_opt()?).into()),
            Statistics::Int64(s) => ColumnBounds::Int(*s.min_opt()?, *s.max_opt()?),
            Statistics::Double(s) => ColumnBounds::Float(*s.min_opt()?, *s.max_opt()?),
            Statistics::ByteArray(s) => ColumnBounds::Text(
                std::str::from_utf8(s.min_opt()?.data()).ok()?.into(),
                std::str::from_utf8(s.max_opt()?.data()).ok()?.into(),
            ),
            _ => return None,
        })
    }

    fn merge(known: Option<ColumnBounds>, more: ColumnBounds) -> Option<ColumnBounds> {
        Some(match (known, more) {
            (None, more) => more,
            (Some(ColumnBounds::Int(a, b)), ColumnBounds::Int(c, d)) => ColumnBounds::Int(a.min(c), b.max(d)),
            (Some(ColumnBounds::Float(a, b)), ColumnBounds::Float(c, d)) => ColumnBounds::Float(a.min(c), b.max(d)),
            (Some(ColumnBounds::Text(a, b)), ColumnBounds::Text(c, d)) => ColumnBounds::Text(a.min(c), b.max(d)),
            _ => return None,
        })
    }

    /// The bounds of the types that have some in the log.
    fn exact(self, kind: &ColumnType) -> Option<(ColumnBound, ColumnBound)> {
        use ColumnType::{Boolean, Double, Integer, Long, String, Timestamp};
        Some(match (kind, self) {
            (Timestamp | Long | Integer | Boolean, ColumnBounds::Int(min, max)) => {
                (ColumnBound::Int(min), ColumnBound::Int(max))
            }
            (Double, ColumnBounds::Float(min, max)) if min.is_finite() && max.is_finite() => {
                (ColumnBound::Float(min), ColumnBound::Float(max))
            }
            (String, ColumnBounds::Text(min, max)) => (ColumnBound::Text(min), ColumnBound::Text(max)),
            _ => return None,
        })
    }

    fn to_json(&self, kind: &ColumnType) -> Option<(Value, Value)> {
        Some(match (kind, self) {
            (ColumnType::Timestamp, ColumnBounds::Int(min, max)) => {
                // The upper bound is rounded up, because values within its last millisecond must be included.
                let max_millis = max.div_euclid(MICROS_PER_MILLI) + i64::from(max.rem_euclid(MICROS_PER_MILLI) != 0);
                (millis_text(min.div_euclid(MICROS_PER_MILLI)), millis_text(max_millis))
            }
            (ColumnType::Long | ColumnType::Integer, ColumnBounds::Int(min, max)) => ((*min).into(), (*max).into()),
            (ColumnType::Boolean, ColumnBounds::Int(min, max)) => ((*min != 0).into(), (*max != 0).into()),
            (ColumnType::Double, ColumnBounds::Float(min, max)) if min.is_finite() && max.is_finite() => {
                ((*min).into(), (*max).into())
            }
            (ColumnType::String, ColumnBounds::Text(min, max)) => (min.to_string().into(), max.to_string().into()),
            _ => return None,
        })
    }
}

fn millis_text(millis: i64) -> Value {
    Ticks(millis.saturating_mul(TICKS_PER_MILLI)).to_string().into()
}

fn count_of(value: &Sent) -> Option<u64> {
    value.as_i64().and_then(|count| u64::try_from(count).ok())
}

fn parse_bound(value: &Sent, kind: &ColumnType) -> Option<ColumnBound> {
    Some(match kind {
        ColumnType::Long | ColumnType::Integer => ColumnBound::Int(value.as_i64()?),
        ColumnType::Boolean => match value {
            Sent::Bool(value) => ColumnBound::Int((*value).into()),
            _ => return None,
        },
        ColumnType::Date => ColumnBound::Int(Date32Type::parse(value.as_str()?)?.into()),
        ColumnType::Timestamp => ColumnBound::Int(TimestampMicrosecondType::parse(value.as_str()?)?),
        ColumnType::Double => ColumnBound::Float(value.as_f64()?),
        ColumnType::String => ColumnBound::Text(value.as_str()?.into()),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::TableColumn;
    use arrow::array::{BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;

    fn schema() -> TableSchema {
        TableSchema {
            columns: vec![
                TableColumn::required("date", ColumnType::Date),
                TableColumn::new("n", ColumnType::Long),
                TableColumn::new("time", ColumnType::Timestamp),
                TableColumn::new("v", ColumnType::Double),
                TableColumn::new("t", ColumnType::String),
                TableColumn::new("flag", ColumnType::Boolean),
                TableColumn::new("absent", ColumnType::String),
            ],
        }
    }

    fn written(values: Vec<Option<f64>>) -> FileStats {
        let json = FileStats::delta_json(&schema(), &["date"], &footer_of(values));
        FileStats::parse(&json, &schema(), &mut HashMap::new())
    }

    fn footer_of(values: Vec<Option<f64>>) -> ParquetMetaData {
        let (schema, values_len) = (schema(), values.len());
        let arrow = Arc::new(schema.arrow().project(&[1, 2, 3, 4, 5]).unwrap());
        let n = Int64Array::from_iter((0..values.len()).map(|i| (i != 1).then_some(i64::MAX - 9 + i as i64)));
        let time = TimestampMicrosecondArray::from_iter_values((0..values.len()).map(|i| i as i64 * 1_001 - 1));
        let text = StringArray::from_iter_values((0..values.len()).map(|i| format!("{i}{}", "é".repeat(100))));
        let flag = BooleanArray::from_iter((0..values_len).map(|i| (i != 1).then_some(i > 1)));
        let columns: Vec<arrow::array::ArrayRef> = vec![
            Arc::new(n),
            Arc::new(time.with_timezone("UTC")),
            Arc::new(Float64Array::from(values)),
            Arc::new(text),
            Arc::new(flag),
        ];
        let batch = RecordBatch::try_new(arrow.clone(), columns).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(2)).build();
        let mut writer = ArrowWriter::try_new(Vec::new(), arrow, Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap()
    }

    /// Another program cuts the last time off to milliseconds, and its bound contains it all the same.
    #[test]
    fn the_bounds_of_a_footer_are_exact_and_those_of_every_writer_contain_them() {
        let exact = FileStats::of_footer(&schema(), &["date"], &footer_of(vec![Some(1.5), None, Some(-2.0)]));
        let of = |name| exact.column(name).unwrap();
        let micros = |micros| Some(ColumnBound::Int(micros));
        assert_eq!(
            (of("time").min.clone(), of("time").max.clone()),
            (micros(-1), micros(2_001))
        );
        assert_eq!(
            (&of("absent").max, of("absent").nulls, exact.rows),
            (&None, Some(3), Some(3))
        );
        let cut = r#"{"maxValues":{"time":"1970-01-01T00:00:00.002Z"}}"#;
        let cut = FileStats::parse(cut, &schema(), &mut HashMap::new());
        assert_eq!(cut.column("time").unwrap().max, micros(2_999));
    }

    #[test]
    fn bounds_contain_every_value() {
        let stats = written(vec![Some(1.5), None, Some(-2.0)]);
        assert_eq!(stats.rows, Some(3));
        let of = |name| stats.column(name).unwrap();
        assert_eq!(
            (of("n").min.clone(), of("n").nulls),
            (Some(ColumnBound::Int(i64::MAX - 9)), Some(1))
        );
        assert_eq!(of("n").max, Some(ColumnBound::Int(i64::MAX - 7)));
        assert_eq!(
            (&of("time").min, &of("time").max),
            (&Some(ColumnBound::Int(-1_000)), &Some(ColumnBound::Int(3_999))),
            "the last millisecond is there as a whole"
        );
        assert_eq!(
            (&of("v").min, &of("v").max),
            (&Some(ColumnBound::Float(-2.0)), &Some(ColumnBound::Float(1.5)))
        );
        let Some(ColumnBound::Text(max)) = &of("t").max else {
            panic!("no bound")
        };
        assert!(max.len() <= 70 && **max > *format!("2{}", "é".repeat(100)));
        assert_eq!(
            (&of("flag").min, &of("flag").max, of("flag").nulls),
            (&Some(ColumnBound::Int(0)), &Some(ColumnBound::Int(1)), Some(1))
        );
        assert_eq!(of("absent").nulls, Some(3));
    }

    /// A column whose bounds may be missing is not among them: readers that expect bounds take missing ones for null.
    #[test]
    fn columns_of_which_statistics_are_promised_have_them_whatever_their_values() {
        let names = bounded_columns(&schema(), &["date"]);
        assert_eq!(names, "n,time,t,absent");
        let stats = written(vec![Some(f64::NAN), None, Some(f64::INFINITY)]);
        for name in names.split(',') {
            let stats = stats.column(name).unwrap();
            assert!(
                stats.min.is_some() && stats.max.is_some() || stats.nulls == Some(3),
                "{name}"
            );
        }
        let mut many = schema();
        let more = (0..40).map(|n| TableColumn::new(&format!("c{n}"), ColumnType::Long));
        many.columns.extend(more);
        let names = bounded_columns(&many, &["date"]);
        assert!(names.ends_with(",c24"), "{names}");
    }

    #[test]
    fn infinities_have_no_bounds() {
        let stats = written(vec![Some(f64::INFINITY), Some(0.0)]);
        assert_eq!(stats.column("v").unwrap().max, None);
    }
}
