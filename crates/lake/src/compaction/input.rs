//! A sorted file that is read from its beginning to its end.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use arrow::row::{RowConverter, Rows, SortField};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use xxhash_rust::xxh3::xxh3_64;

use super::merge::MergeError;
use crate::delta::schema::{ColumnType, TableSchema};
use crate::tables::TableSpec;

const PIECE_ROWS: usize = 8192;
const TIME_NANOS: &str = "time_unix_nano";
const ARRIVAL: &str = "arrival_unix_nano";

/// Some rows of a file, and what they are ordered by.
pub(super) struct Piece {
    pub rows: RecordBatch,
    pub keys: Rows,
    pub input: usize,
}

/// What tells that no row was lost: it does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub rows: u64,
    checksum: u64,
}

/// Makes keys that sort as bytes: the same for all files of a table.
pub(super) struct Keys {
    converter: RowConverter,
    names: &'static [&'static str],
}

impl Keys {
    pub fn new(spec: &'static TableSpec, table: &TableSchema) -> Result<Keys, MergeError> {
        let field = |name: &&str| {
            let kind = table.column(name).map(|column| &column.kind);
            SortField::new(key_type(spec, name, kind.unwrap_or(&ColumnType::String)))
        };
        Ok(Keys {
            converter: RowConverter::new(spec.sort.iter().map(field).collect())?,
            names: spec.sort,
        })
    }

    fn of(&self, rows: &RecordBatch) -> Result<Rows, MergeError> {
        let column = |name: &&str| rows.column_by_name(name).cloned();
        let columns: Option<Vec<ArrayRef>> = self.names.iter().map(column).collect();
        let columns = columns.ok_or(MergeError::NoKey)?;
        Ok(self.converter.convert_columns(&columns)?)
    }
}

fn key_type(spec: &TableSpec, name: &str, kind: &ColumnType) -> DataType {
    match kind {
        ColumnType::String if spec.plain.contains(&name) => DataType::Utf8View,
        ColumnType::String => dictionary(),
        other => other.arrow().unwrap_or(DataType::Null),
    }
}

fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// A file whose footer was read.
struct Opened<'a> {
    path: &'a Path,
    file: File,
    metadata: ArrowReaderMetadata,
}

impl Opened<'_> {
    fn new<'a>(path: &'a Path, spec: &TableSpec, table: &TableSchema) -> Result<Opened<'a>, MergeError> {
        let open = || -> Result<(File, ArrowReaderMetadata), ParquetError> {
            let file = File::open(path)?;
            let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
            let found = ArrowReaderMetadata::load(&file, options.clone())?;
            let schema = as_read(spec, table, found.schema(), found.metadata());
            let options = options.with_schema(Arc::new(schema));
            Ok((file, ArrowReaderMetadata::try_new(found.metadata().clone(), options)?))
        };
        let (file, metadata) = open().map_err(|error| broken(path, &error))?;
        Ok(Opened { path, file, metadata })
    }

    /// The rows of one row group: no piece has those of two, which have different dictionaries.
    fn group(&self, group: usize, columns: Option<&[&str]>) -> Result<ParquetRecordBatchReader, MergeError> {
        let read = || -> Result<ParquetRecordBatchReader, ParquetError> {
            let builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.try_clone()?, self.metadata.clone());
            let mask = match columns {
                Some(columns) => ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied()),
                None => ProjectionMask::all(),
            };
            builder
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(PIECE_ROWS)
                .build()
        };
        read().map_err(|error| broken(self.path, &error))
    }

    fn groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }
}

fn broken(path: &Path, error: &dyn std::fmt::Display) -> MergeError {
    MergeError::Input {
        path: path.to_owned(),
        error: error.to_string(),
    }
}

pub(super) struct Input<'a> {
    opened: Opened<'a>,
    number: usize,
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
    /// Of a row, before it is compressed.
    pub bytes_per_row: usize,
}

impl Input<'_> {
    pub fn open<'a>(
        path: &'a Path,
        number: usize,
        spec: &TableSpec,
        table: &TableSchema,
    ) -> Result<Input<'a>, MergeError> {
        let opened = Opened::new(path, spec, table)?;
        let groups = opened.metadata.metadata().row_groups();
        let bytes: i64 = groups.iter().map(|group| group.total_byte_size()).sum();
        let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
        Ok(Input {
            bytes_per_row: usize::try_from(bytes / rows.max(1)).unwrap_or_default(),
            opened,
            number,
            next_group: 0,
            reader: None,
        })
    }

    pub fn columns(&self) -> &Schema {
        self.opened.metadata.schema()
    }

    pub fn next(&mut self, keys: &Keys, tally: &mut Tally) -> Result<Option<Piece>, MergeError> {
        loop {
            let Some(reader) = &mut self.reader else {
                if self.next_group == self.opened.groups() {
                    return Ok(None);
                }
                self.reader = Some(self.opened.group(self.next_group, None)?);
                self.next_group += 1;
                continue;
            };
            let next = reader.next().transpose();
            let Some(rows) = next.map_err(|error| broken(self.opened.path, &error))? else {
                self.reader = None;
                continue;
            };
            let keys = keys.of(&rows)?;
            tally.add(&rows, &keys)?;
            return Ok(Some(Piece {
                rows,
                keys,
                input: self.number,
            }));
        }
    }
}

impl Tally {
    pub(super) fn and(self, other: Tally) -> Tally {
        Tally {
            rows: self.rows + other.rows,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }

    fn add(&mut self, rows: &RecordBatch, keys: &Rows) -> Result<(), MergeError> {
        let arrivals = longs(rows, ARRIVAL)?;
        for (key, arrival) in keys.iter().zip(arrivals) {
            let sum = xxh3_64(key.as_ref()) ^ (*arrival as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.checksum = self.checksum.wrapping_add(sum);
        }
        self.rows += rows.num_rows() as u64;
        Ok(())
    }

    /// Of a file that is there.
    pub(super) fn of_file(
        path: &Path,
        spec: &TableSpec,
        table: &TableSchema,
        keys: &Keys,
    ) -> Result<Tally, MergeError> {
        let opened = Opened::new(path, spec, table)?;
        let columns: Vec<&str> = keys.names.iter().chain(&[ARRIVAL]).copied().collect();
        let mut tally = Tally::default();
        for group in 0..opened.groups() {
            for rows in opened.group(group, Some(&columns))? {
                let rows = rows.map_err(|error| broken(path, &error))?;
                let of_rows = keys.of(&rows)?;
                tally.add(&rows, &of_rows)?;
            }
        }
        Ok(tally)
    }
}

/// When each row happened, in nanoseconds.
pub(super) fn times(rows: &RecordBatch) -> Result<&[i64], MergeError> {
    longs(rows, TIME_NANOS)
}

fn longs<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a [i64], MergeError> {
    let column = rows.column_by_name(name).ok_or(MergeError::NoKey)?;
    let column = column.as_primitive_opt::<Int64Type>().ok_or(MergeError::NoKey)?;
    // Every row has one.
    (column.null_count() == 0)
        .then(|| &column.values()[..])
        .ok_or(MergeError::NoKey)
}

/// Texts as they are in the file: by a dictionary where it has one, else as views into its pages.
fn as_read(spec: &TableSpec, table: &TableSchema, file: &Schema, metadata: &ParquetMetaData) -> Schema {
    let leaves = metadata.file_metadata().schema_descr();
    let has_dictionary = |name: &str| {
        let leaf = (0..leaves.num_columns()).find(|at| leaves.column(*at).path().parts() == [name.to_owned()]);
        let groups = metadata.row_groups();
        leaf.is_some_and(|leaf| {
            let chunk = |group: &parquet::file::metadata::RowGroupMetaData| {
                let chunk = group.column(leaf);
                chunk.dictionary_page_offset().is_some()
            };
            groups.iter().all(chunk)
        })
    };
    let field = |field: &Arc<Field>| {
        let name = field.name().as_str();
        let kind = match (field.data_type(), table.column(name).map(|column| &column.kind)) {
            (_, Some(kind)) if spec.sort.contains(&name) => key_type(spec, name, kind),
            (DataType::Utf8, _) if has_dictionary(name) => dictionary(),
            (DataType::Utf8, _) => DataType::Utf8View,
            (DataType::Binary, _) => DataType::BinaryView,
            (kind, _) => kind.clone(),
        };
        Field::new(name, kind, field.is_nullable())
    };
    Schema::new(file.fields().iter().map(field).collect::<Vec<Field>>())
}
