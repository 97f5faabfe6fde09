//! Prints rows of a file as JSON lines, optionally only some columns and matching rows, a few at a time.

use std::io::{ErrorKind, Write};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::execution::SessionStateBuilder;
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;

use super::{ParquetFile, ParquetFileError};
use crate::bounded::rewrite;
use crate::error::QueryError;
use crate::format::{BytesAs, RowFormat, RowWriter};

const BATCH_ROWS: usize = 1024;

/// The rows and columns to print.
#[derive(Clone, Debug, Default)]
pub struct Cat {
    pub limit: Option<usize>,
    /// In this order; all columns if empty.
    pub columns: Vec<String>,
    /// A SQL expression over the columns of the file.
    pub filter: Option<String>,
    pub bytes: BytesAs,
}

/// Writes rows and returns their number. It also returns `Ok` when the reader of `out` leaves early.
pub fn cat(opened: &ParquetFile, wanted: &Cat, out: &mut dyn Write) -> Result<usize, ParquetFileError> {
    match write_rows(opened, wanted, out) {
        Err(ParquetFileError::Output(error)) if error.kind() == ErrorKind::BrokenPipe => Ok(0),
        done => done,
    }
}

fn write_rows(opened: &ParquetFile, wanted: &Cat, out: &mut dyn Write) -> Result<usize, ParquetFileError> {
    let schema = opened.metadata.schema();
    let shown = shown(schema, &wanted.columns)?;
    let filter = wanted
        .filter
        .as_deref()
        .map(|text| CatFilter::plan(text, schema, &shown));
    let filter = filter.transpose()?;
    let mut read: Vec<usize> = shown.clone();
    read.extend(filter.iter().flat_map(|filter| filter.columns.iter()));
    read.sort_unstable();
    read.dedup();
    let mut builder =
        ParquetRecordBatchReaderBuilder::new_with_metadata(opened.file.try_clone()?, opened.metadata.clone());
    let mask = ProjectionMask::roots(builder.parquet_schema(), read.iter().copied());
    builder = builder.with_projection(mask).with_batch_size(BATCH_ROWS);
    match &filter {
        Some(filter) => builder = builder.with_row_groups(filter.groups(&opened.metadata)),
        None => {
            if let Some(limit) = wanted.limit {
                builder = builder.with_limit(limit);
            }
        }
    }
    let reader = builder.build().map_err(|error| opened.broken(error))?;
    // The shown columns among those that were read, in the requested order.
    let places: Vec<usize> = shown
        .iter()
        .filter_map(|at| read.iter().position(|read| read == at))
        .collect();
    let shown = Arc::new(schema.project(&shown).map_err(|error| opened.broken(error.into()))?);
    let mut writer = RowWriter::with_bytes(RowFormat::NdJson, &shown, wanted.bytes).map_err(ParquetFileError::Row)?;
    let mut left = wanted.limit.unwrap_or(usize::MAX);
    let mut rows = 0;
    for batch in reader {
        if left == 0 {
            break;
        }
        let mut batch = batch.map_err(|error| opened.broken(error.into()))?;
        if let Some(filter) = &filter {
            batch = filter.apply(&batch)?;
        }
        batch = batch.slice(0, batch.num_rows().min(left));
        let batch = batch.project(&places).map_err(|error| opened.broken(error.into()))?;
        (left, rows) = (left - batch.num_rows(), rows + batch.num_rows());
        out.write_all(&writer.write(&batch).map_err(ParquetFileError::Row)?)?;
    }
    out.flush()?;
    Ok(rows)
}

/// The indexes of the requested columns.
fn shown(schema: &SchemaRef, columns: &[String]) -> Result<Vec<usize>, ParquetFileError> {
    if columns.is_empty() {
        return Ok((0..schema.fields().len()).collect());
    }
    let place = |name: &String| {
        schema.index_of(name).map_err(|_| ParquetFileError::NoColumn {
            column: name.clone(),
            known: schema.fields().iter().map(|field| field.name().clone()).collect(),
        })
    };
    columns.iter().map(place).collect()
}

/// Selects matching rows.
struct CatFilter {
    expr: Arc<dyn PhysicalExpr>,
    /// The columns to read: those of the expression and those that are shown.
    schema: SchemaRef,
    /// The indexes of the expression's columns.
    columns: Vec<usize>,
}

impl CatFilter {
    fn plan(text: &str, schema: &SchemaRef, shown: &[usize]) -> Result<CatFilter, ParquetFileError> {
        let state = SessionStateBuilder::new().with_default_features().build();
        let failed = |error| ParquetFileError::Filter(QueryError::of_planning(error));
        let all = DFSchema::try_from(schema.clone()).map_err(failed)?;
        let planned = state
            .create_logical_expr(text, &all)
            .and_then(rewrite::functions)
            .map_err(failed)?;
        let named = planned.column_refs();
        let columns: Vec<usize> = named
            .iter()
            .filter_map(|column| schema.index_of(&column.name).ok())
            .collect();
        let mut read: Vec<usize> = columns.iter().chain(shown).copied().collect();
        read.sort_unstable();
        read.dedup();
        let read = Arc::new(schema.project(&read).map_err(|error| failed(error.into()))?);
        let of_read = DFSchema::try_from(read.clone()).map_err(failed)?;
        let expr = state.create_physical_expr(planned, &of_read).map_err(failed)?;
        if expr.data_type(&read).map_err(failed)? != DataType::Boolean {
            let what = QueryError::plan(format!(
                "{text} is neither true nor false; use a condition such as \"a > 1\""
            ));
            return Err(ParquetFileError::Filter(what));
        }
        Ok(CatFilter {
            expr,
            schema: read,
            columns,
        })
    }

    fn apply(&self, rows: &RecordBatch) -> Result<RecordBatch, ParquetFileError> {
        let failed = |error| ParquetFileError::Filter(QueryError::of_execution(error));
        let matches = self.expr.evaluate(rows).map_err(failed)?;
        let matches = matches.into_array(rows.num_rows()).map_err(failed)?;
        filter_record_batch(rows, matches.as_boolean()).map_err(|error| failed(error.into()))
    }

    /// Row groups that may contain matching rows.
    fn groups(&self, metadata: &ArrowReaderMetadata) -> Vec<usize> {
        let all = metadata.metadata().num_row_groups();
        let predicate = PruningPredicateBuilder::new()
            .with_file_schema(self.schema.clone())
            .try_build(self.expr.clone());
        let kept = predicate.and_then(|predicate| predicate.prune(&RowGroupStatistics(metadata)));
        match kept {
            Ok(kept) => (0..all)
                .zip(kept)
                .filter(|(_, kept)| *kept)
                .map(|(group, _)| group)
                .collect(),
            Err(_) => (0..all).collect(),
        }
    }
}

/// Reliable statistics of row groups. In files of other programs these are the bounds of integers and times only: other
/// writers leave NaN out of the bounds of doubles, treat zeros differently, cut texts without raising the last
/// remaining byte, or compare bytes as signed.
struct RowGroupStatistics<'a>(&'a ArrowReaderMetadata);

impl RowGroupStatistics<'_> {
    fn converter<'s>(&'s self, column: &'s Column) -> Option<StatisticsConverter<'s>> {
        let schema: &Schema = self.0.schema();
        let converter = StatisticsConverter::try_new(&column.name, schema, self.0.parquet_schema()).ok()?;
        // A writer that does not count nulls may still have some.
        Some(converter.with_missing_null_counts_as_zero(false))
    }

    fn has_bounds(&self, column: &Column) -> bool {
        let is_of_all = |kind: &DataType| {
            kind.is_signed_integer() || matches!(kind, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
        };
        let field = self.0.schema().field_with_name(&column.name);
        thalweg_columns::file::is_own(self.0.metadata()) || field.is_ok_and(|field| is_of_all(field.data_type()))
    }
}

impl PruningStatistics for RowGroupStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        let groups = self.0.metadata().row_groups();
        let converter = self.converter(column).filter(|_| self.has_bounds(column));
        converter?.row_group_mins(groups).ok()
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        let groups = self.0.metadata().row_groups();
        let converter = self.converter(column).filter(|_| self.has_bounds(column));
        converter?.row_group_maxes(groups).ok()
    }

    fn num_containers(&self) -> usize {
        self.0.metadata().num_row_groups()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let groups = self.0.metadata().row_groups();
        Some(Arc::new(self.converter(column)?.row_group_null_counts(groups).ok()?))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let groups = self.0.metadata().row_groups().iter();
        let rows = groups.map(|group| u64::try_from(group.num_rows()).ok());
        Some(Arc::new(arrow::array::UInt64Array::from_iter(rows)))
    }

    fn contained(&self, _column: &Column, _values: &std::collections::HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}
