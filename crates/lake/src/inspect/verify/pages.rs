//! Verifies every value of a file: pages decode, rows are in sort order and of their day, and the footer's statistics
//! hold.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::kernels::cmp::{gt, lt};
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};
use arrow::row::{OwnedRow, RowConverter, SortField};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;

use super::VerifyTarget;
use crate::inspect::summary::{date_of, nanos_text};
use thalweg_delta::FileEntry;

const BATCH_ROWS: usize = 4096;
const TIME_NANOS: &str = "time_unix_nano";

type PageFindings = Vec<(&'static str, String)>;

pub(super) fn look_at(
    subject: &VerifyTarget<'_>,
    entry: &FileEntry,
    file: &File,
    metadata: &ArrowReaderMetadata,
    found: &mut PageFindings,
) {
    // Other writers need not keep the order of the table.
    let spec = subject.spec.filter(|_| !entry.is_foreign);
    let mut order = spec.and_then(|spec| RowOrderCheck::new(spec.sort, metadata.schema()));
    let date = date_of(subject.snapshot, entry);
    for group in 0..metadata.metadata().num_row_groups() {
        let read = read_group(file, metadata, group, &mut |said, rows| {
            said.check(rows, group, found);
            if let Some(order) = &mut order {
                order.check(rows, found);
            }
            if let Some(date) = date {
                dates(date, rows, found);
            }
        });
        match read {
            Ok(said) => said.end(group, found),
            Err(error) => found.push(("unreadable", format!("row group {group} cannot be read: {error}"))),
        }
    }
}

fn read_group(
    file: &File,
    metadata: &ArrowReaderMetadata,
    group: usize,
    look: &mut dyn FnMut(&mut FooterClaims, &RecordBatch),
) -> Result<FooterClaims, ParquetError> {
    let mut said = FooterClaims::of(metadata, group)?;
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file.try_clone()?, metadata.clone())
        .with_row_groups(vec![group])
        .with_batch_size(BATCH_ROWS)
        .build()?;
    for rows in reader {
        look(&mut said, &rows?);
    }
    Ok(said)
}

/// The footer's statistics of a row group.
struct FooterClaims {
    rows: usize,
    columns: Vec<ColumnClaims>,
    seen: usize,
}

struct ColumnClaims {
    name: String,
    /// Arrays with one value, or null if there is no bound.
    least: ArrayRef,
    greatest: ArrayRef,
    nulls: Option<u64>,
    seen_nulls: u64,
    is_outside: bool,
}

impl FooterClaims {
    fn of(metadata: &ArrowReaderMetadata, group: usize) -> Result<FooterClaims, ParquetError> {
        let (schema, parquet) = (metadata.schema(), metadata.parquet_schema());
        let groups = metadata.metadata().row_groups();
        let this = groups.get(group).into_iter();
        let mut columns = Vec::new();
        for field in schema.fields().iter().filter(|field| !field.data_type().is_nested()) {
            let converter = StatisticsConverter::try_new(field.name(), schema, parquet)?;
            let nulls = converter.row_group_null_counts(this.clone())?;
            columns.push(ColumnClaims {
                name: field.name().clone(),
                least: converter.row_group_mins(this.clone())?,
                greatest: converter.row_group_maxes(this.clone())?,
                nulls: nulls.iter().next().flatten(),
                seen_nulls: 0,
                is_outside: false,
            });
        }
        let rows = this.map(|group| group.num_rows()).sum::<i64>();
        Ok(FooterClaims {
            rows: usize::try_from(rows).unwrap_or(usize::MAX),
            columns,
            seen: 0,
        })
    }

    fn check(&mut self, rows: &RecordBatch, group: usize, found: &mut PageFindings) {
        self.seen += rows.num_rows();
        for said in &mut self.columns {
            let Some(values) = rows.column_by_name(&said.name) else {
                continue;
            };
            said.seen_nulls += values.logical_null_count() as u64;
            if !said.is_outside && said.is_beyond(values) {
                said.is_outside = true;
                let problem = format!(
                    "row group {group} has a {} outside of the bounds in its footer",
                    said.name
                );
                found.push(("values", problem));
            }
        }
    }

    fn end(self, group: usize, found: &mut PageFindings) {
        if self.seen != self.rows {
            let problem = format!(
                "row group {group} has {} rows, its footer says {}",
                self.seen, self.rows
            );
            found.push(("rows", problem));
        }
        for said in self.columns {
            if let Some(nulls) = said.nulls.filter(|nulls| *nulls != said.seen_nulls) {
                let (name, seen) = (said.name, said.seen_nulls);
                let problem =
                    format!("row group {group}: {name} has {seen} rows without a value, its footer says {nulls}");
                found.push(("values", problem));
            }
        }
    }
}

impl ColumnClaims {
    fn is_beyond(&self, values: &ArrayRef) -> bool {
        if *values.data_type() == DataType::Float64 {
            return self.is_beyond_floats(values);
        }
        let any = |compared: Result<BooleanArray, _>| compared.is_ok_and(|beyond| beyond.true_count() > 0);
        let is_said = |bound: &ArrayRef| bound.len() == 1 && bound.is_valid(0);
        (is_said(&self.least) && any(lt(values, &arrow::array::Scalar::new(&self.least))))
            || (is_said(&self.greatest) && any(gt(values, &arrow::array::Scalar::new(&self.greatest))))
    }

    /// Bounds do not cover NaN, and do not distinguish the zeros.
    fn is_beyond_floats(&self, values: &ArrayRef) -> bool {
        let bound = |bound: &ArrayRef| {
            let bound = bound.as_primitive_opt::<Float64Type>()?;
            bound.iter().next().flatten()
        };
        let (least, greatest) = (bound(&self.least), bound(&self.greatest));
        let values = values.as_primitive::<Float64Type>().iter().flatten();
        values
            .into_iter()
            .any(|value| least.is_some_and(|least| value < least) || greatest.is_some_and(|greatest| value > greatest))
    }
}

/// Checks the sort order of rows.
struct RowOrderCheck {
    converter: RowConverter,
    by: Vec<String>,
    last: Option<OwnedRow>,
    seen: usize,
    is_broken: bool,
}

impl RowOrderCheck {
    fn new(sort: &[&str], schema: &SchemaRef) -> Option<RowOrderCheck> {
        // A column that is not in the file is null in all rows, so it does not affect the order.
        let fields = sort.iter().filter_map(|name| schema.field_with_name(name).ok());
        let by = fields.clone().map(|field| field.name().clone()).collect();
        let keys = fields.map(|field| SortField::new(field.data_type().clone()));
        Some(RowOrderCheck {
            converter: RowConverter::new(keys.collect()).ok()?,
            by,
            last: None,
            seen: 0,
            is_broken: false,
        })
    }

    fn check(&mut self, rows: &RecordBatch, found: &mut PageFindings) {
        let columns = self.by.iter().map(|name| rows.column_by_name(name).map(Arc::clone));
        let Some(columns) = columns.collect::<Option<Vec<ArrayRef>>>() else {
            return;
        };
        let Ok(keys) = self.converter.convert_columns(&columns) else {
            return;
        };
        let first = keys.iter().next();
        let follows = |last: &OwnedRow| first.is_none_or(|first| last.row() <= first);
        let mut bad = (!self.last.as_ref().is_none_or(follows)).then_some(0);
        if bad.is_none() {
            let pairs = keys.iter().zip(keys.iter().skip(1));
            bad = pairs.zip(1..).find_map(|((a, b), row)| (a > b).then_some(row));
        }
        if let Some(row) = bad.filter(|_| !self.is_broken) {
            self.is_broken = true;
            let problem = format!(
                "row {} is out of order after the previous row by {}",
                self.seen + row,
                self.by.join(", ")
            );
            found.push(("order", problem));
        }
        self.seen += rows.num_rows();
        self.last = keys.iter().next_back().map(|row| row.owned());
    }
}

fn dates(date: &str, rows: &RecordBatch, found: &mut PageFindings) {
    let times = rows.column_by_name(TIME_NANOS);
    let Some(times) = times.and_then(|times| times.as_primitive_opt::<Int64Type>()) else {
        return;
    };
    let ends = [times.iter().flatten().min(), times.iter().flatten().max()];
    for time in ends.into_iter().flatten().map(nanos_text) {
        if !time.starts_with(date) {
            found.push(("date", format!("a row of {time} is in a file of {date}")));
            return;
        }
    }
}
