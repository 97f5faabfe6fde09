//! Writes rows as a Parquet file.
//!
//! The caller knows which texts are equal, so it passes columns as dictionaries with keys, numbers, or plain texts, for
//! all rows at once, together with a row order. Rows are written in that order without moving them first. Non-empty
//! list, struct and map columns and the footer go through Arrow's writer.

mod bits;
mod bounds;
mod column;
mod copy;
mod pages;
mod source;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{Schema, SchemaRef};
use parquet::arrow::ArrowSchemaConverter;
use parquet::arrow::arrow_writer::{ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, ParquetMetaData, RowGroupMetaData, SortingColumn};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;

pub use column::ValidityBitmap;
pub use copy::SourceSegment;
use pages::{ColumnChunkWriter, PageCompressor};
pub use source::SourceColumn;
pub use thalweg_delta::footer;

const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
const STATISTICS_BYTES: usize = 64;
const ROW_GROUP_ROWS: usize = 1 << 20;
/// If this many rows have the same text in the first sort column, the first and the last 1/`EDGES` of them get their
/// own pages.
const EDGED_ROWS: usize = if cfg!(test) { 64 } else { 4096 };
const EDGES: usize = 16;

/// The prefix of `created_by` in the footers that this program writes, in all versions.
const CREATED_BY: &str = "thalweg version ";

/// Whether this program has written a file.
pub fn is_own(file: &ParquetMetaData) -> bool {
    let created_by = file.file_metadata().created_by();
    created_by.is_some_and(|created_by| created_by.starts_with(CREATED_BY))
}

/// Whether the rows of a file are certainly sorted: this program has written it, and its footer names the order. Other
/// writers may not keep the order that their footers claim.
pub fn is_sorted(file: &ParquetMetaData, sort: &[&str]) -> bool {
    is_own(file)
        && file
            .row_groups()
            .iter()
            .all(|group| sorting_of(file, group).eq(expected(file, sort)))
}

/// The columns by which a row group claims to be sorted, in this program's direction.
pub fn sorting_of<'a>(file: &'a ParquetMetaData, group: &'a RowGroupMetaData) -> impl Iterator<Item = &'a str> {
    let columns = file.file_metadata().schema_descr();
    let name = |column: &SortingColumn| {
        let at = usize::try_from(column.column_idx).ok()?;
        let is_ours = !column.descending && column.nulls_first && at < columns.num_columns();
        is_ours
            .then(|| columns.columns().get(at))
            .flatten()
            .map(|column| column.name())
    };
    group
        .sorting_columns()
        .into_iter()
        .flatten()
        .map(move |column| name(column).unwrap_or_default())
}

/// The columns by which it should be sorted. A column without values is not in the file.
pub fn expected<'a>(file: &'a ParquetMetaData, sort: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let columns = file.file_metadata().schema_descr().columns();
    let is_there = |name: &&str| {
        columns
            .iter()
            .any(|column| column.path().parts().first().is_some_and(|first| first == *name))
    };
    sort.iter().copied().filter(is_there)
}

/// The metadata key of the compression level.
const LEVEL_KEY: &str = "thalweg.zstd";

/// The compression level of a file; `None` if the file does not state it.
pub(crate) fn level_of(file: &ParquetMetaData) -> Option<i32> {
    let pairs = file.file_metadata().key_value_metadata()?;
    pairs
        .iter()
        .find(|pair| pair.key == LEVEL_KEY)?
        .value
        .as_ref()?
        .parse()
        .ok()
}

/// How files are written.
#[derive(Clone, Debug)]
pub struct FileRules {
    pub zstd_level: i32,
    /// The approximate size of a row group, uncompressed.
    pub row_group_bytes: usize,
}

impl Default for FileRules {
    fn default() -> FileRules {
        FileRules {
            zstd_level: 1,
            row_group_bytes: 32 << 20,
        }
    }
}

/// The values of a column for all rows, independent of their order in the file.
pub enum FileColumn<'a> {
    /// `is_near`: times and positions, each of them close to the previous one.
    Longs {
        values: Vec<i64>,
        present: ValidityBitmap,
        is_near: bool,
    },
    Integers(Vec<i32>, ValidityBitmap),
    Doubles(Vec<f64>, ValidityBitmap),
    Booleans(Vec<bool>, ValidityBitmap),
    /// Distinct texts, and the index of each row's text; [`NULL`](crate::rows::text::NULL) for none.
    Dictionary {
        texts: Vec<&'a [u8]>,
        ids: Vec<u32>,
    },
    Plain(Vec<Option<&'a [u8]>>),
    /// Rows of other files, which are read while they are written.
    Read {
        segments: Vec<SourceSegment>,
        is_near: bool,
    },
    /// Lists, structs or maps.
    Nested(ArrayRef),
    /// All rows are null.
    Nothing,
}

/// Rows to be written.
pub struct FileRows<'a> {
    /// One field per column, in order.
    pub schema: SchemaRef,
    pub columns: Vec<FileColumn<'a>>,
    /// The sort columns.
    pub sort: &'static [&'static str],
    /// The approximate size of a row.
    pub bytes_per_row: usize,
}

impl FileRows<'_> {
    /// Writes a file with the rows in the given order.
    pub fn write(&self, order: &[u32], rules: &FileRules) -> Result<(Vec<u8>, ParquetMetaData)> {
        let mut writer = FileWriter::new(self.schema.clone(), self.sort, rules)?;
        let rows_of_group = rows_of_group(rules, self.bytes_per_row);
        // Row groups of equal size avoid a small last one.
        let groups = order.len().div_ceil(rows_of_group).max(1);
        for rows in order.chunks(order.len().div_ceil(groups).max(1)) {
            writer.write_group(&self.columns, rows)?;
        }
        writer.finish()
    }
}

/// How many rows of this size make a row group.
pub(crate) fn rows_of_group(rules: &FileRules, bytes_per_row: usize) -> usize {
    (rules.row_group_bytes / bytes_per_row.max(1)).clamp(1, ROW_GROUP_ROWS)
}

/// Writes a file, one row group after the other.
pub struct FileWriter {
    writer: SerializedFileWriter<Vec<u8>>,
    compressor: PageCompressor,
    schema: SchemaRef,
    groups: usize,
    taken: u64,
    /// The first sort column.
    sorted_by: Option<usize>,
}

impl FileWriter {
    pub fn new(schema: SchemaRef, sort: &[&str], rules: &FileRules) -> Result<FileWriter> {
        let compression = Compression::ZSTD(ZstdLevel::try_new(rules.zstd_level)?);
        let parquet = ArrowSchemaConverter::new().convert(&schema)?;
        let properties = Arc::new(properties(&schema, sort, compression, rules.zstd_level));
        Ok(FileWriter {
            writer: SerializedFileWriter::new(Vec::new(), parquet.root_schema_ptr(), properties)?,
            compressor: PageCompressor::new(compression, rules.zstd_level)?,
            sorted_by: sort.first().and_then(|name| schema.index_of(name).ok()),
            schema,
            groups: 0,
            taken: 0,
        })
    }

    /// The bytes finished since the last call.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let place = self.writer.inner_mut();
        // The next row group has about the same size.
        let next = Vec::with_capacity(place.len() + place.len() / 8);
        let bytes = std::mem::replace(place, next);
        self.taken += bytes.len() as u64;
        bytes
    }

    /// Bytes of the file so far.
    pub fn written_bytes(&self) -> u64 {
        self.taken + self.writer.inner().len() as u64
    }

    /// Returns the rest of the file, and its footer.
    pub fn finish(mut self) -> Result<(Vec<u8>, ParquetMetaData)> {
        let footer = self.writer.finish()?;
        Ok((std::mem::take(self.writer.inner_mut()), footer))
    }

    /// Writes a row group. The columns must match the schema of the file.
    pub fn write_group(&mut self, columns: &[FileColumn<'_>], order: &[u32]) -> Result<()> {
        let FileWriter {
            writer,
            compressor,
            schema,
            ..
        } = self;
        let is_nested = |column: &FileColumn<'_>| matches!(column, FileColumn::Nested(_));
        let mut nested = match columns.iter().any(is_nested) {
            true => {
                let factory = ArrowRowGroupWriterFactory::new(writer, schema.clone());
                factory.create_column_writers(self.groups)?
            }
            false => Vec::new(),
        }
        .into_iter();
        self.groups += 1;
        let breaks = breaks(self.sorted_by.and_then(|at| columns.get(at)), order);
        let leaves = writer.schema_descr().columns().to_vec();
        let mut group = writer.next_row_group()?;
        let mut leaves = leaves.into_iter().peekable();
        for (field, column) in schema.fields().iter().zip(columns) {
            let FileColumn::Nested(array) = column else {
                // One Arrow column may be several Parquet columns.
                while let Some(leaf) = leaves.next_if(|leaf| leaf.path().parts().first() == Some(field.name())) {
                    nested.next();
                    let mut pages = ColumnChunkWriter::new(compressor, leaf);
                    write_column(&mut pages, column, order, &breaks)?;
                    let (packed, closed) = pages.close()?;
                    group.append_column(&&packed, closed)?;
                    compressor.column = packed.0;
                }
                continue;
            };
            let array = take(array, &UInt32Array::from(order.to_vec()), None)?;
            for leaf in compute_leaves(field, &array)? {
                leaves.next();
                let missing = || ParquetError::General("a column has no writer".to_owned());
                let mut writer = nested.next().ok_or_else(missing)?;
                writer.write(&leaf)?;
                writer.close()?.append_to_row_group(&mut group)?;
            }
        }
        group.close()?;
        Ok(())
    }
}

fn properties(schema: &Schema, sort: &[&str], compression: Compression, level: i32) -> WriterProperties {
    let sorted = |name: &&str| {
        let index = schema.index_of(name).ok();
        Some(SortingColumn {
            column_idx: i32::try_from(index?).ok()?,
            descending: false,
            nulls_first: true,
        })
    };
    WriterProperties::builder()
        .set_created_by(format!("{CREATED_BY}{}", env!("CARGO_PKG_VERSION")))
        .set_compression(compression)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_statistics_truncate_length(Some(STATISTICS_BYTES))
        .set_column_index_truncate_length(Some(STATISTICS_BYTES))
        .set_sorting_columns(Some(sort.iter().filter_map(sorted).collect()))
        .set_key_value_metadata(Some(vec![KeyValue::new(LEVEL_KEY.to_owned(), level.to_string())]))
        .build()
}

/// A row at which a page of texts should begin, because a merge copies whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageBreak {
    row: usize,
    /// Applies even if the previous page is small.
    is_due: bool,
}

/// Page breaks where the text of the first sort column changes. Of many rows with one text, the first and the last,
/// whose times may overlap with other files, get their own pages, so that a merge keeps the pages between them whole.
fn breaks(column: Option<&FileColumn<'_>>, order: &[u32]) -> Vec<PageBreak> {
    let Some(FileColumn::Dictionary { ids, .. }) = column else {
        return Vec::new();
    };
    let id = |row: &u32| ids.get(*row as usize);
    let (mut breaks, mut begin, mut were_many) = (Vec::new(), 0, false);
    for same in order.chunk_by(|row, next| id(row) == id(next)) {
        let (len, end, are_many) = (same.len(), begin + same.len(), same.len() >= EDGED_ROWS);
        breaks.push(PageBreak {
            row: begin,
            is_due: are_many || were_many,
        });
        if are_many {
            breaks.extend([begin + len / EDGES, end - len / EDGES].map(|row| PageBreak { row, is_due: true }));
        }
        were_many = are_many;
        begin = end;
    }
    breaks
}

fn write_column(
    pages: &mut ColumnChunkWriter<'_>,
    column: &FileColumn<'_>,
    order: &[u32],
    breaks: &[PageBreak],
) -> Result<()> {
    match column {
        FileColumn::Longs {
            values,
            present,
            is_near: true,
        } => column::near(pages, order, values, present),
        FileColumn::Longs { values, present, .. } => column::numbers(pages, order, values, present),
        FileColumn::Integers(values, present) => column::numbers(pages, order, values, present),
        FileColumn::Doubles(values, present) => column::numbers(pages, order, values, present),
        FileColumn::Booleans(values, present) => column::booleans(pages, order, values, present),
        FileColumn::Dictionary { texts, ids } => column::dictionary(pages, order, breaks, texts, ids),
        FileColumn::Plain(rows) => column::plain(pages, order, breaks, rows),
        FileColumn::Read { segments, is_near } => copy::copy(pages, segments, order, breaks, *is_near),
        FileColumn::Nested(_) | FileColumn::Nothing => pages.nulls(order.len()),
    }
}
