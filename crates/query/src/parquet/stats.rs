//! Statistics of a file: row groups, and the sizes, encodings and bounds of each column.

use std::collections::BTreeSet;

use arrow::array::{Array, ArrayRef};
use arrow::compute::{SortOptions, sort_to_indices};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use datafusion::parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use datafusion::parquet::schema::types::SchemaDescriptor;
use serde::Serialize;

use super::ParquetFile;

/// Sizes are in bytes; a ratio is uncompressed to compressed size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileInfo {
    pub created_by: Option<String>,
    pub bytes: u64,
    pub rows: i64,
    pub compressed: i64,
    pub uncompressed: i64,
    pub ratio: f64,
    pub row_groups: Vec<GroupInfo>,
    /// Over all row groups.
    pub columns: Vec<ColumnStatistics>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupInfo {
    pub number: usize,
    pub rows: i64,
    pub compressed: i64,
    pub uncompressed: i64,
    pub ratio: f64,
    /// The columns that sort its rows, with `desc` and `nulls last` where they apply.
    pub sorted_by: Vec<String>,
    pub columns: Vec<ChunkInfo>,
}

/// A column in a row group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChunkInfo {
    pub path: String,
    pub codec: String,
    pub encodings: Vec<String>,
    pub compressed: i64,
    pub uncompressed: i64,
    pub values: i64,
    pub nulls: Option<u64>,
    pub min: Option<String>,
    pub max: Option<String>,
    pub pages: Option<usize>,
    pub has_column_index: bool,
    pub has_bloom_filter: bool,
}

/// A column in the whole file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ColumnStatistics {
    pub path: String,
    pub physical: String,
    pub codecs: Vec<String>,
    pub encodings: Vec<String>,
    pub compressed: i64,
    pub uncompressed: i64,
    pub ratio: f64,
    pub values: i64,
    /// `None` if a row group does not state it.
    pub nulls: Option<u64>,
    pub min: Option<String>,
    pub max: Option<String>,
    pub pages: Option<usize>,
}

pub fn stats(opened: &ParquetFile) -> FileInfo {
    let footer = opened.metadata.metadata();
    let leaves = footer.file_metadata().schema_descr();
    let bounds: Vec<ColumnBounds> = (0..leaves.num_columns())
        .map(|leaf| ColumnBounds::of(opened, leaf))
        .collect();
    let groups: Vec<GroupInfo> = footer
        .row_groups()
        .iter()
        .enumerate()
        .map(|(number, group)| group_info(opened, number, group, &bounds))
        .collect();
    let columns = (0..leaves.num_columns()).map(|leaf| column(leaves, leaf, &groups, bounds.get(leaf)));
    let (compressed, uncompressed) = (
        groups.iter().map(|group| group.compressed).sum(),
        groups.iter().map(|group| group.uncompressed).sum(),
    );
    FileInfo {
        created_by: footer.file_metadata().created_by().map(str::to_owned),
        bytes: opened.bytes,
        rows: footer.file_metadata().num_rows(),
        compressed,
        uncompressed,
        ratio: ratio(uncompressed, compressed),
        columns: columns.collect(),
        row_groups: groups,
    }
}

fn ratio(uncompressed: i64, compressed: i64) -> f64 {
    // Two decimals are enough.
    (uncompressed as f64 / compressed.max(1) as f64 * 100.0).round() / 100.0
}

fn group_info(opened: &ParquetFile, number: usize, group: &RowGroupMetaData, bounds: &[ColumnBounds]) -> GroupInfo {
    let compressed = group.columns().iter().map(ColumnChunkMetaData::compressed_size).sum();
    let uncompressed = group.columns().iter().map(ColumnChunkMetaData::uncompressed_size).sum();
    let columns = group.columns().iter().zip(bounds).enumerate();
    GroupInfo {
        number,
        rows: group.num_rows(),
        compressed,
        uncompressed,
        ratio: ratio(uncompressed, compressed),
        sorted_by: sorted_by(group),
        columns: columns
            .map(|(leaf, (chunk, bounds))| chunk_info(opened, (number, leaf), chunk, bounds))
            .collect(),
    }
}

fn sorted_by(group: &RowGroupMetaData) -> Vec<String> {
    let by = group.sorting_columns().into_iter().flatten();
    by.filter_map(|column| {
        let chunk = group.columns().get(usize::try_from(column.column_idx).ok()?)?;
        let direction = if column.descending { " desc" } else { "" };
        let nulls = if column.nulls_first { "" } else { " nulls last" };
        Some(format!("{}{direction}{nulls}", chunk.column_path().string()))
    })
    .collect()
}

fn chunk_info(
    opened: &ParquetFile,
    (group, leaf): (usize, usize),
    chunk: &ColumnChunkMetaData,
    bounds: &ColumnBounds,
) -> ChunkInfo {
    let pages = opened.metadata.metadata().offset_index();
    ChunkInfo {
        path: chunk.column_path().string(),
        codec: codec(chunk),
        encodings: chunk.encodings().map(|encoding| encoding.to_string()).collect(),
        compressed: chunk.compressed_size(),
        uncompressed: chunk.uncompressed_size(),
        values: chunk.num_values(),
        nulls: chunk.statistics().and_then(|statistics| statistics.null_count_opt()),
        min: text_at(bounds.least.as_ref(), group),
        max: text_at(bounds.greatest.as_ref(), group),
        pages: pages
            .and_then(|pages| pages.get(group)?.get(leaf))
            .map(|pages| pages.page_locations().len()),
        has_column_index: chunk.column_index_offset().is_some(),
        has_bloom_filter: chunk.bloom_filter_offset().is_some(),
    }
}

/// The codec without the level, which the footer does not state: `ZSTD(ZstdLevel(1))`.
fn codec(chunk: &ColumnChunkMetaData) -> String {
    let codec = chunk.compression().to_string();
    codec.split('(').next().unwrap_or_default().to_owned()
}

fn column(
    leaves: &SchemaDescriptor,
    leaf: usize,
    groups: &[GroupInfo],
    bounds: Option<&ColumnBounds>,
) -> ColumnStatistics {
    let chunks = || groups.iter().filter_map(|group| group.columns.get(leaf));
    let (compressed, uncompressed) = (
        chunks().map(|chunk| chunk.compressed).sum(),
        chunks().map(|chunk| chunk.uncompressed).sum(),
    );
    let codecs: BTreeSet<&String> = chunks().map(|chunk| &chunk.codec).collect();
    let encodings: BTreeSet<&String> = chunks().flat_map(|chunk| &chunk.encodings).collect();
    let descriptor = leaves.column(leaf);
    ColumnStatistics {
        path: descriptor.path().string(),
        physical: descriptor.physical_type().to_string(),
        codecs: codecs.into_iter().cloned().collect(),
        encodings: encodings.into_iter().cloned().collect(),
        compressed,
        uncompressed,
        ratio: ratio(uncompressed, compressed),
        values: chunks().map(|chunk| chunk.values).sum(),
        nulls: chunks().map(|chunk| chunk.nulls).sum(),
        min: bounds.and_then(|bounds| end_of(bounds.least.as_ref(), false)),
        max: bounds.and_then(|bounds| end_of(bounds.greatest.as_ref(), true)),
        pages: chunks().map(|chunk| chunk.pages).sum(),
    }
}

/// The bounds of a column by row group, as the type that its values are read as.
struct ColumnBounds {
    least: Option<ArrayRef>,
    greatest: Option<ArrayRef>,
}

impl ColumnBounds {
    /// Nested columns have no bounds here.
    fn of(opened: &ParquetFile, leaf: usize) -> ColumnBounds {
        let metadata = &opened.metadata;
        let column = metadata.parquet_schema().column(leaf);
        let converter = match column.path().parts() {
            [name] => StatisticsConverter::try_new(name, metadata.schema(), metadata.parquet_schema()).ok(),
            _ => None,
        };
        let groups = metadata.metadata().row_groups();
        ColumnBounds {
            least: converter
                .as_ref()
                .and_then(|converter| converter.row_group_mins(groups).ok()),
            greatest: converter
                .as_ref()
                .and_then(|converter| converter.row_group_maxes(groups).ok()),
        }
    }
}

fn text_at(values: Option<&ArrayRef>, at: usize) -> Option<String> {
    let values = values.filter(|values| at < values.len() && values.is_valid(at))?;
    let options = FormatOptions::default().with_display_error(true);
    let formatter = ArrayFormatter::try_new(values, &options).ok()?;
    Some(formatter.value(at).to_string())
}

/// The minimum or maximum over all row groups; `None` if a row group with values does not state it.
fn end_of(values: Option<&ArrayRef>, descending: bool) -> Option<String> {
    let values = values?;
    let options = SortOptions {
        descending,
        nulls_first: false,
    };
    let order = sort_to_indices(values, Some(options), Some(1)).ok()?;
    text_at(Some(values), *order.values().first()? as usize)
}
