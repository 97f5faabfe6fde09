//! A sorted file that is read from its beginning to its end.

use std::collections::{HashMap, HashSet};
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
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use xxhash_rust::xxh3::xxh3_64;

use super::merge::MergeError;
use crate::delta::schema::{ColumnType, TableSchema};
use crate::file::{SourcePages, level_of};
use crate::tables::TableSpec;

const PIECE_ROWS: usize = 8192;
const TIME_NANOS: &str = "time_unix_nano";
const ARRIVAL: &str = "arrival_unix_nano";

/// How a file is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reading {
    /// Columns that are not looked at.
    pub left_out: &'static [&'static str],
    /// All texts are dictionaries, whatever they are in the file.
    pub as_dictionaries: bool,
}

/// Some rows of a file, and what they are ordered by.
pub(crate) struct Piece {
    /// Without the columns whose pages are copied.
    pub rows: RecordBatch,
    keys: Option<Rows>,
    pub input: usize,
    /// Pages of the row group, by column.
    pub pages: Arc<HashMap<String, Arc<SourcePages>>>,
    /// Of the row group.
    pub first_row: usize,
    /// Of its rows, the least and the greatest.
    pub times: (i64, i64),
}

impl Piece {
    /// Rows that were made, and are not compared with others.
    pub fn of(rows: RecordBatch) -> Piece {
        Piece {
            keys: None,
            input: 0,
            pages: Arc::default(),
            first_row: 0,
            times: (0, 0),
            rows,
        }
    }

    pub fn key(&self, row: usize) -> &[u8] {
        self.keys.as_ref().map_or(&[], |keys| keys.row(row).data())
    }
}

/// What tells that no row was lost: it does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub rows: u64,
    checksum: u64,
}

/// Makes keys that sort as bytes: the same for all files of a table.
pub(crate) struct Keys {
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
    file: Arc<File>,
    metadata: ArrowReaderMetadata,
}

impl Opened<'_> {
    fn new<'a>(
        path: &'a Path,
        spec: &TableSpec,
        table: &TableSchema,
        reading: Reading,
    ) -> Result<Opened<'a>, MergeError> {
        let open = || -> Result<(File, ArrowReaderMetadata), ParquetError> {
            let file = File::open(path)?;
            let options = ArrowReaderOptions::new()
                .with_skip_arrow_metadata(true)
                .with_page_index_policy(PageIndexPolicy::Optional);
            let found = ArrowReaderMetadata::load(&file, options.clone())?;
            let schema = as_read(spec, table, found.schema(), found.metadata(), reading);
            let options = options.with_schema(Arc::new(schema));
            Ok((file, ArrowReaderMetadata::try_new(found.metadata().clone(), options)?))
        };
        let (file, metadata) = open().map_err(|error| broken(path, &error))?;
        Ok(Opened {
            path,
            file: Arc::new(file),
            metadata,
        })
    }

    /// The rows of one row group: no piece has those of two, which have different dictionaries.
    fn group(&self, group: usize, wanted: impl Fn(&str) -> bool) -> Result<ParquetRecordBatchReader, MergeError> {
        let read = || -> Result<ParquetRecordBatchReader, ParquetError> {
            let builder =
                ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.try_clone()?, self.metadata.clone());
            let fields = builder.schema().fields().iter().map(|field| field.name().as_str());
            let roots = fields.enumerate().filter(|(_, name)| wanted(name)).map(|(at, _)| at);
            let mask = ProjectionMask::roots(builder.parquet_schema(), roots.collect::<Vec<usize>>());
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

pub(crate) struct Input<'a> {
    opened: Opened<'a>,
    number: usize,
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
    /// Columns whose pages can be copied, by row group.
    pages: Vec<Arc<HashMap<String, Arc<SourcePages>>>>,
    next_row: usize,
    /// Of a row, before it is compressed.
    pub bytes_per_row: usize,
    /// Columns that are not read.
    left_out: &'static [&'static str],
}

impl Input<'_> {
    pub fn open<'a>(
        path: &'a Path,
        number: usize,
        spec: &TableSpec,
        table: &TableSchema,
        reading: Reading,
    ) -> Result<Input<'a>, MergeError> {
        let opened = Opened::new(path, spec, table, reading)?;
        let groups = opened.metadata.metadata().row_groups();
        let bytes: i64 = groups.iter().map(|group| group.total_byte_size()).sum();
        let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
        Ok(Input {
            bytes_per_row: usize::try_from(bytes / rows.max(1)).unwrap_or_default(),
            opened,
            number,
            next_group: 0,
            reader: None,
            pages: Vec::new(),
            next_row: 0,
            left_out: reading.left_out,
        })
    }

    /// Columns of texts whose pages can be copied into a file that is compressed so hard.
    pub fn copyable(&mut self, spec: &TableSpec, level: i32) -> Vec<String> {
        let metadata = self.opened.metadata.metadata();
        if level_of(metadata).is_none_or(|own| own < level) {
            return Vec::new();
        }
        let leaves = metadata.file_metadata().schema_descr();
        let of_group = |group: usize| -> HashMap<String, Arc<SourcePages>> {
            let of_leaf = |leaf: usize| {
                let column = leaves.column(leaf);
                let [name] = column.path().parts() else { return None };
                if spec.sort.contains(&name.as_str()) {
                    return None;
                }
                let pages = SourcePages::of(&self.opened.file, metadata, group, leaf)?;
                Some((name.clone(), Arc::new(pages)))
            };
            (0..leaves.num_columns()).filter_map(of_leaf).collect()
        };
        let pages: Vec<_> = (0..self.opened.groups()).map(of_group).collect();
        let names = pages
            .first()
            .map(|pages| pages.keys().cloned().collect::<Vec<String>>());
        let names = names.unwrap_or_default().into_iter();
        let names = names.filter(|name| pages.iter().all(|pages| pages.contains_key(name)));
        let names: Vec<String> = names.collect();
        self.pages = pages.into_iter().map(Arc::new).collect();
        names
    }

    /// The pages of these columns are copied, and no others.
    pub fn copy_only(&mut self, names: &HashSet<String>) {
        for pages in &mut self.pages {
            Arc::make_mut(pages).retain(|name, _| names.contains(name));
        }
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
                let pages = self.pages.get(self.next_group);
                let left_out = self.left_out;
                let is_read =
                    |name: &str| !left_out.contains(&name) && pages.is_none_or(|pages| !pages.contains_key(name));
                self.reader = Some(self.opened.group(self.next_group, is_read)?);
                self.next_group += 1;
                self.next_row = 0;
                continue;
            };
            let next = reader.next().transpose();
            let Some(rows) = next.map_err(|error| broken(self.opened.path, &error))? else {
                self.reader = None;
                continue;
            };
            let keys = keys.of(&rows)?;
            tally.add(&rows, &keys)?;
            let first_row = self.next_row;
            self.next_row += rows.num_rows();
            let all = times(&rows)?;
            let least = all.iter().copied().min().unwrap_or_default();
            let greatest = all.iter().copied().max().unwrap_or_default();
            return Ok(Some(Piece {
                times: (least, greatest),
                rows,
                keys: Some(keys),
                input: self.number,
                pages: self.pages.get(self.next_group - 1).cloned().unwrap_or_default(),
                first_row,
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
        let arrivals = arrivals(rows)?;
        for (row, key) in keys.iter().enumerate() {
            self.add_key(key.data(), arrivals.and_then(|arrivals| arrivals.get(row)));
        }
        Ok(())
    }

    fn add_key(&mut self, key: &[u8], arrival: Option<&i64>) {
        let arrival = arrival.map_or(0, |arrival| *arrival as u64);
        let sum = xxh3_64(key) ^ arrival.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.checksum = self.checksum.wrapping_add(sum);
        self.rows += 1;
    }

    pub(super) fn add_row(&mut self, piece: &Piece, row: usize) {
        let arrivals = arrivals(&piece.rows).ok().flatten();
        let arrival = arrivals.and_then(|arrivals| arrivals.get(row));
        self.add_key(piece.key(row), arrival);
    }

    /// Of a file that is there.
    pub(super) fn of_file(
        path: &Path,
        spec: &TableSpec,
        table: &TableSchema,
        keys: &Keys,
    ) -> Result<Tally, MergeError> {
        let opened = Opened::new(path, spec, table, Reading::default())?;
        let is_read = |name: &str| name == ARRIVAL || keys.names.contains(&name);
        let mut tally = Tally::default();
        for group in 0..opened.groups() {
            for rows in opened.group(group, is_read)? {
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

/// Rows that were derived have none.
fn arrivals(rows: &RecordBatch) -> Result<Option<&[i64]>, MergeError> {
    match rows.column_by_name(ARRIVAL) {
        Some(_) => longs(rows, ARRIVAL).map(Some),
        None => Ok(None),
    }
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
fn as_read(
    spec: &TableSpec,
    table: &TableSchema,
    file: &Schema,
    metadata: &ParquetMetaData,
    reading: Reading,
) -> Schema {
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
            (DataType::Utf8, _) if reading.as_dictionaries || has_dictionary(name) => dictionary(),
            (DataType::Utf8, _) => DataType::Utf8View,
            (DataType::Binary, _) => DataType::BinaryView,
            (kind, _) => kind.clone(),
        };
        Field::new(name, kind, field.is_nullable())
    };
    Schema::new(file.fields().iter().map(field).collect::<Vec<Field>>())
}
