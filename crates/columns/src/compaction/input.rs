//! Reads a sorted file from its beginning to its end.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, RowGroupMetaData};

use super::keys::{KeyRows, SortKeys, dictionary, key_type};
use super::merge::MergeError;
use crate::file::{SourceColumn, footer, is_sorted};
use crate::tables::TableSpec;
use thalweg_delta::schema::{ColumnType, TableSchema};

pub(super) const PIECE_ROWS: usize = 8192;
const TIME_NANOS: &str = "time_unix_nano";
const ARRIVAL: &str = "arrival_unix_nano";

/// How a file is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct MergeReadOptions {
    /// Columns that are not read.
    pub left_out: &'static [&'static str],
    /// Reads all texts as dictionaries, whatever their encoding in the file.
    pub as_dictionaries: bool,
}

/// The columns of a row group that are read page by page.
pub(crate) type SourceColumns = HashMap<String, Arc<SourceColumn>>;

/// Some rows of a file with their sort keys.
pub struct KeyedBatch {
    /// Without the columns that are read page by page.
    pub rows: RecordBatch,
    pub(super) keys: KeyRows,
    pub input: usize,
    /// Those of the row group.
    pub(super) sources: Arc<SourceColumns>,
    /// Its row number in the row group.
    pub first_row: usize,
    /// The least and the greatest time.
    pub times: (i64, i64),
}

impl KeyedBatch {
    /// A batch of generated rows, which are not compared with others.
    pub fn of(rows: RecordBatch) -> KeyedBatch {
        KeyedBatch {
            keys: KeyRows::default(),
            input: 0,
            sources: Arc::default(),
            first_row: 0,
            times: (0, 0),
            rows,
        }
    }
}

/// A row count and a checksum that prove that no row was lost. They do not depend on the row order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowChecksum {
    pub rows: u64,
    checksum: u64,
}

/// A file whose footer has been read.
struct OpenParquetFile<'a> {
    path: &'a Path,
    file: Arc<File>,
    metadata: ArrowReaderMetadata,
}

impl OpenParquetFile<'_> {
    fn new<'a>(
        path: &'a Path,
        spec: &TableSpec,
        table: &TableSchema,
        reading: MergeReadOptions,
    ) -> Result<OpenParquetFile<'a>, MergeError> {
        let open = || -> Result<(File, ArrowReaderMetadata), ParquetError> {
            let file = File::open(path)?;
            let options = ArrowReaderOptions::new()
                .with_skip_arrow_metadata(true)
                .with_page_index_policy(PageIndexPolicy::Optional);
            let found = footer::load(&file, options.clone())?;
            let schema = as_read(spec, table, found.schema(), found.metadata(), reading);
            let options = options.with_schema(Arc::new(schema));
            Ok((file, ArrowReaderMetadata::try_new(found.metadata().clone(), options)?))
        };
        let (file, metadata) = open().map_err(|error| broken(path, &error))?;
        Ok(OpenParquetFile {
            path,
            file: Arc::new(file),
            metadata,
        })
    }

    /// Reads one row group. Batches never span row groups, because each group has its own dictionaries.
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

pub(super) fn broken(path: &Path, error: &dyn std::fmt::Display) -> MergeError {
    MergeError::Input {
        path: path.to_owned(),
        error: error.to_string(),
    }
}

pub struct MergeInput<'a> {
    opened: OpenParquetFile<'a>,
    number: usize,
    next_group: usize,
    reader: Option<ParquetRecordBatchReader>,
    /// By row group, for the groups that are not open yet.
    sources: Vec<Arc<SourceColumns>>,
    /// Those of the current row group. Batches of earlier groups keep theirs alive, with their cached pages.
    group_sources: Arc<SourceColumns>,
    next_row: usize,
    /// Uncompressed bytes per row.
    pub bytes_per_row: usize,
    /// Columns that are not read.
    left_out: &'static [&'static str],
}

impl MergeInput<'_> {
    pub fn open<'a>(
        path: &'a Path,
        number: usize,
        spec: &TableSpec,
        table: &TableSchema,
        reading: MergeReadOptions,
    ) -> Result<MergeInput<'a>, MergeError> {
        let opened = OpenParquetFile::new(path, spec, table, reading)?;
        if !is_sorted(opened.metadata.metadata(), spec.sort) {
            return Err(MergeError::Unsorted { path: path.to_owned() });
        }
        let groups = opened.metadata.metadata().row_groups();
        let bytes: i64 = groups.iter().map(|group| group.total_byte_size()).sum();
        let rows: i64 = groups.iter().map(|group| group.num_rows()).sum();
        Ok(MergeInput {
            bytes_per_row: usize::try_from(bytes / rows.max(1)).unwrap_or_default(),
            opened,
            number,
            next_group: 0,
            reader: None,
            sources: Vec::new(),
            group_sources: Arc::default(),
            next_row: 0,
            left_out: reading.left_out,
        })
    }

    /// Finds the columns that can be read page by page. Sort and checksum columns are read in advance.
    pub fn find_sources(&mut self, spec: &TableSpec, table: &TableSchema) {
        let metadata = self.opened.metadata.metadata();
        let leaves = metadata.file_metadata().schema_descr();
        let of_group = |group: usize| -> SourceColumns {
            let of_leaf = |leaf: usize| {
                let column = leaves.column(leaf);
                let [name] = column.path().parts() else { return None };
                let is_read_before =
                    spec.sort.contains(&name.as_str()) || [TIME_NANOS, ARRIVAL].contains(&name.as_str());
                let is_of_table = stored(&table.column(name)?.kind) == Some(column.physical_type());
                (is_of_table && !is_read_before).then_some(())?;
                let source = SourceColumn::of(&self.opened.file, metadata, group, leaf)?;
                Some((name.clone(), Arc::new(source)))
            };
            (0..leaves.num_columns()).filter_map(of_leaf).collect()
        };
        self.sources = (0..self.opened.groups()).map(of_group).map(Arc::new).collect();
    }

    /// Whether a column is read page by page or does not exist.
    pub fn is_source(&self, name: &str) -> bool {
        self.columns().index_of(name).is_err() || self.sources.iter().all(|sources| sources.contains_key(name))
    }

    /// Restricts the columns that are read page by page to these.
    pub fn keep_sources(&mut self, names: &HashSet<String>) {
        for sources in &mut self.sources {
            Arc::make_mut(sources).retain(|name, _| names.contains(name));
        }
    }

    pub fn columns(&self) -> &Schema {
        self.opened.metadata.schema()
    }

    pub fn next(&mut self, keys: &SortKeys, tally: &mut RowChecksum) -> Result<Option<KeyedBatch>, MergeError> {
        loop {
            let Some(reader) = &mut self.reader else {
                if self.next_group == self.opened.groups() {
                    return Ok(None);
                }
                let begun = self.sources.get_mut(self.next_group).map(std::mem::take);
                self.group_sources = begun.unwrap_or_default();
                let left_out = self.left_out;
                let sources = &self.group_sources;
                let is_read = |name: &str| !left_out.contains(&name) && !sources.contains_key(name);
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
            return Ok(Some(KeyedBatch {
                times: (least, greatest),
                rows,
                keys,
                input: self.number,
                sources: self.group_sources.clone(),
                first_row,
            }));
        }
    }
}

/// What reading a file requires, according to its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputRequirements {
    /// Memory for reading it as one of several inputs: one page and the dictionary of each column.
    pub memory: u64,
    /// Whether it can be an input of a merge.
    pub is_sorted: bool,
}

/// Reads the footer of a file.
pub fn needs_of(path: &Path, spec: &TableSpec, table: &TableSchema) -> Result<InputRequirements, MergeError> {
    let opened = OpenParquetFile::new(path, spec, table, MergeReadOptions::default())?;
    Ok(InputRequirements {
        memory: memory_of(&opened),
        is_sorted: is_sorted(opened.metadata.metadata(), spec.sort),
    })
}

fn memory_of(opened: &OpenParquetFile<'_>) -> u64 {
    /// Overhead of a column.
    const COLUMN: u64 = 16 << 10;
    let metadata = opened.metadata.metadata();
    let of_group = |(number, group): (usize, &RowGroupMetaData)| -> u64 {
        let offsets = metadata.offset_index().and_then(|index| index.get(number));
        let of_leaf = |(leaf, chunk): (usize, &ColumnChunkMetaData)| {
            let all = u64::try_from(chunk.uncompressed_size()).unwrap_or_default();
            let pages = offsets
                .and_then(|offsets| offsets.get(leaf))
                .map_or(1, |pages| pages.page_locations.len());
            match chunk.dictionary_page_offset() {
                Some(_) => COLUMN + all,
                None => COLUMN + all / pages.max(1) as u64,
            }
        };
        group.columns().iter().enumerate().map(of_leaf).sum()
    };
    let groups = metadata.row_groups().iter().enumerate();
    groups.map(of_group).max().unwrap_or_default()
}

impl RowChecksum {
    pub(super) fn and(self, other: RowChecksum) -> RowChecksum {
        RowChecksum {
            rows: self.rows + other.rows,
            checksum: self.checksum.wrapping_add(other.checksum),
        }
    }

    pub(super) fn add(&mut self, rows: &RecordBatch, keys: &KeyRows) -> Result<(), MergeError> {
        let sums = keys.checksums(rows.num_rows(), arrivals(rows)?);
        self.checksum = sums.iter().fold(self.checksum, |all, sum| all.wrapping_add(*sum));
        self.rows += sums.len() as u64;
        Ok(())
    }

    pub(super) fn add_row(&mut self, piece: &KeyedBatch, row: usize) -> Result<(), MergeError> {
        let arrival = arrivals(&piece.rows)?.and_then(|arrivals| arrivals.get(row));
        self.checksum = self.checksum.wrapping_add(piece.keys.checksum(row, arrival.copied()));
        self.rows += 1;
        Ok(())
    }

    /// Reads the checksum of an existing file.
    pub(super) fn of_file(
        path: &Path,
        spec: &TableSpec,
        table: &TableSchema,
        keys: &SortKeys,
    ) -> Result<RowChecksum, MergeError> {
        let opened = OpenParquetFile::new(path, spec, table, MergeReadOptions::default())?;
        let is_read = |name: &str| name == ARRIVAL || keys.names.contains(&name);
        let mut tally = RowChecksum::default();
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

/// The time of each row, in nanoseconds.
pub(super) fn times(rows: &RecordBatch) -> Result<&[i64], MergeError> {
    longs(rows, TIME_NANOS)
}

/// Derived rows have no arrival time.
fn arrivals(rows: &RecordBatch) -> Result<Option<&[i64]>, MergeError> {
    match rows.column_by_name(ARRIVAL) {
        Some(_) => longs(rows, ARRIVAL).map(Some),
        None => Ok(None),
    }
}

fn longs<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a [i64], MergeError> {
    let column = rows.column_by_name(name).ok_or(MergeError::NoKey)?;
    let column = column.as_primitive_opt::<Int64Type>().ok_or(MergeError::NoKey)?;
    // Nulls are not allowed.
    (column.null_count() == 0)
        .then(|| &column.values()[..])
        .ok_or(MergeError::NoKey)
}

/// The physical type of a column in a file; `None` if it is nested.
fn stored(kind: &ColumnType) -> Option<Type> {
    Some(match kind {
        ColumnType::Long | ColumnType::Timestamp => Type::INT64,
        ColumnType::Integer | ColumnType::Date => Type::INT32,
        ColumnType::Double => Type::DOUBLE,
        ColumnType::Boolean => Type::BOOLEAN,
        ColumnType::String | ColumnType::Binary => Type::BYTE_ARRAY,
        _ => return None,
    })
}

/// Reads texts in their encoding: as dictionaries where the file has them, else as views into the pages.
fn as_read(
    spec: &TableSpec,
    table: &TableSchema,
    file: &Schema,
    metadata: &ParquetMetaData,
    reading: MergeReadOptions,
) -> Schema {
    let leaves = metadata.file_metadata().schema_descr();
    let has_dictionary = |name: &str| {
        let leaf = (0..leaves.num_columns()).find(|at| leaves.column(*at).path().parts() == [name.to_owned()]);
        let groups = metadata.row_groups();
        leaf.is_some_and(|leaf| {
            let chunk = |group: &RowGroupMetaData| {
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
