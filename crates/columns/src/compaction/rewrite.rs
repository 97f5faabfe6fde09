//! Rewrites the file of another writer: sorts its rows in table order, as many at a time as memory allows.
//!
//! Merges and rollups take sorted files only, and the order of foreign files is unknown. Rows are converted to the
//! column types of the table. A value that cannot be converted is an error that names the column, and the file stays as
//! it is. As after a merge, the output is read back and compared with the input.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow::compute::{CastOptions, SortColumn, SortOptions, cast_with_options, concat_batches, lexsort_to_indices};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::ParquetError;

use super::columns::columns;
use super::input::{KeyedBatch, PIECE_ROWS, RowChecksum, broken};
use super::keys::SortKeys;
use super::merge::{FileSink, MergeError, MergeOutput, MergeResult};
use super::merge_iterator::RowRun;
use crate::file::{FileRules, FileWriter, footer, rows_of_group};
use crate::tables::TableSpec;
use thalweg_delta::schema::{TableColumn, TableSchema};

/// The most rows that are sorted at a time.
const ROWS_MAX: usize = 1 << 20;
/// Memory per row and column, beside the value.
const CELL_BYTES: usize = 24;

/// See the module.
pub struct RewriteJob<'a> {
    pub spec: &'static TableSpec,
    pub table: &'a TableSchema,
    pub input: &'a Path,
    pub rules: FileRules,
    /// Memory for the rows that are sorted at a time, in bytes.
    pub memory: u64,
    /// Polled for each batch.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

impl RewriteJob<'_> {
    /// Writes sorted files with the rows of the input, then reads them back and compares checksums.
    pub fn run(
        &self,
        new_file: &mut dyn FnMut() -> Result<Box<dyn FileSink>, MergeError>,
    ) -> Result<MergeResult, MergeError> {
        let RewriteInput {
            reader,
            bytes_per_row,
            rows_at_a_time,
        } = self.open()?;
        let (keys, mut read, mut outputs) = (SortKeys::new(self.spec), RowChecksum::default(), Vec::new());
        let (mut waiting, mut rows) = (Vec::new(), 0);
        for batch in reader {
            if (self.is_stopped)() {
                return Err(MergeError::Stopped);
            }
            let batch = batch.map_err(|error| broken(self.input, &error))?;
            let batch = self.as_table(&batch)?;
            read.add(&batch, &keys.of(&batch)?)?;
            rows += batch.num_rows();
            waiting.push(batch);
            if rows >= rows_at_a_time {
                outputs.push(self.write(&std::mem::take(&mut waiting), bytes_per_row, new_file)?);
                rows = 0;
            }
        }
        if rows > 0 {
            outputs.push(self.write(&waiting, bytes_per_row, new_file)?);
        }
        let mut written = RowChecksum::default();
        for output in &outputs {
            written = written.and(RowChecksum::of_file(output.sink.path(), self.spec, self.table, &keys)?);
        }
        match written == read {
            true => Ok(MergeResult {
                outputs,
                tally: written,
            }),
            false => Err(MergeError::Mismatch { read, written }),
        }
    }

    fn open(&self) -> Result<RewriteInput, MergeError> {
        let open = || -> Result<RewriteInput, ParquetError> {
            let file = File::open(self.input)?;
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let metadata = footer::load(&file, options)?;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
            let groups = builder.metadata().row_groups();
            let bytes: i64 = groups.iter().map(|group| group.total_byte_size()).sum();
            let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
            let bytes_per_row = usize::try_from(bytes / rows.max(1)).unwrap_or_default();
            let in_memory = bytes_per_row + CELL_BYTES * builder.parquet_schema().num_columns();
            let room = usize::try_from(self.memory).unwrap_or(usize::MAX) / in_memory.max(1);
            Ok(RewriteInput {
                reader: builder.with_batch_size(PIECE_ROWS).build()?,
                bytes_per_row,
                rows_at_a_time: room.clamp(1, ROWS_MAX),
            })
        };
        open().map_err(|error| broken(self.input, &error))
    }

    /// Converts rows to the columns of the table, in the types that merges read.
    fn as_table(&self, batch: &RecordBatch) -> Result<RecordBatch, MergeError> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for column in &self.table.columns {
            let Some(kind) = column.kind.arrow().map(as_view) else {
                continue;
            };
            if self.spec.partitions.contains(&column.name.as_str()) {
                continue;
            }
            let array = match batch.column_by_name(&column.name) {
                Some(array) => self.cast(column, array, &kind)?,
                None if self.spec.sort.contains(&column.name.as_str()) || !column.nullable => {
                    new_null_array(&kind, batch.num_rows())
                }
                None => continue,
            };
            if !column.nullable && array.null_count() > 0 {
                return Err(self.foreign(format!("a row has no {}", column.name)));
            }
            fields.push(Field::new(&column.name, kind, column.nullable));
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let schema = Arc::new(Schema::new(fields));
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }

    fn cast(&self, column: &TableColumn, array: &ArrayRef, kind: &DataType) -> Result<ArrayRef, MergeError> {
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        cast_with_options(array, kind, &options)
            .map_err(|error| self.foreign(format!("{} does not have the type of the table: {error}", column.name)))
    }

    fn foreign(&self, why: String) -> MergeError {
        MergeError::Foreign {
            path: self.input.to_owned(),
            why,
        }
    }

    /// Writes a file of these rows in sort order.
    fn write(
        &self,
        waiting: &[RecordBatch],
        bytes_per_row: usize,
        new_file: &mut dyn FnMut() -> Result<Box<dyn FileSink>, MergeError>,
    ) -> Result<MergeOutput, MergeError> {
        let schema = waiting.first().map(RecordBatch::schema).ok_or(MergeError::NoKey)?;
        let rows = concat_batches(&schema, waiting)?;
        let (order, written_as) = (self.order(&rows)?, self.schema(&schema));
        let count = rows.num_rows();
        let runs = [RowRun {
            piece: Arc::new(KeyedBatch::of(rows)),
            begin: 0,
            len: count,
        }];
        let made = columns(self.spec, &written_as, &runs)?;
        let mut writer = FileWriter::new(written_as, self.spec.sort, &self.rules)?;
        let mut sink = new_file()?;
        for group in order.chunks(rows_of_group(&self.rules, bytes_per_row)) {
            writer.write_group(&made, group)?;
            sink.write(writer.take_bytes())?;
        }
        let before = writer.written_bytes();
        let (rest, footer) = writer.finish()?;
        let bytes = before + rest.len() as u64;
        sink.write(rest)?;
        sink.finish()?;
        Ok(MergeOutput {
            sink,
            footer,
            bytes,
            rows: count as u64,
        })
    }

    /// The sort order of the rows. The sort is stable.
    fn order(&self, rows: &RecordBatch) -> Result<Vec<u32>, MergeError> {
        let column = |values: ArrayRef| SortColumn {
            values,
            options: Some(SortOptions {
                descending: false,
                nulls_first: true,
            }),
        };
        let places = UInt32Array::from_iter_values(0..u32::try_from(rows.num_rows()).unwrap_or(u32::MAX));
        let keys = self.spec.sort.iter().map(|name| rows.column_by_name(name).cloned());
        let keys: Option<Vec<ArrayRef>> = keys.chain([Some(Arc::new(places) as ArrayRef)]).collect();
        let keys: Vec<SortColumn> = keys.ok_or(MergeError::NoKey)?.into_iter().map(column).collect();
        Ok(lexsort_to_indices(&keys, None)?.values().to_vec())
    }

    /// The schema of the output file.
    fn schema(&self, read: &Schema) -> SchemaRef {
        let column = |field: &Arc<Field>| {
            let column = self.table.column(field.name())?;
            Some(Field::new(&column.name, column.kind.arrow()?, column.nullable))
        };
        Arc::new(Schema::new(
            read.fields().iter().filter_map(column).collect::<Vec<Field>>(),
        ))
    }
}

struct RewriteInput {
    reader: ParquetRecordBatchReader,
    /// Uncompressed, as the input file states it.
    bytes_per_row: usize,
    rows_at_a_time: usize,
}

/// Reads texts as views, so that nothing is copied before the rows are sorted.
fn as_view(kind: DataType) -> DataType {
    match kind {
        DataType::Utf8 => DataType::Utf8View,
        DataType::Binary => DataType::BinaryView,
        other => other,
    }
}
