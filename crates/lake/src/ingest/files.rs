//! Rows that are committed together, as files: one for each day, in the order of the table.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take};
use arrow::datatypes::{Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use thalweg_record::Ticks;

use crate::attributes::Bindings;
use crate::commit::{EncodedFile, Rows, unix_ms};
use crate::delta::actions::Add;
use crate::delta::schema::{ColumnType, TableSchema};
use crate::delta::stats::FileStats;
use crate::live::{overflowing, project};
use crate::rows::chunk::Chunk;
use crate::rows::slots::Source;
use crate::tables::TableSpec;

const DATE: &str = "date";
const NANOS_PER_DAY: i64 = 86_400_000_000_000;
const TICKS_PER_DAY: i64 = 864_000_000_000;
const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
const STATISTICS_BYTES: usize = 64;
const ROW_GROUP_ROWS: usize = 1 << 20;

/// How files are written.
#[derive(Clone, Debug)]
pub struct FileRules {
    pub zstd_level: i32,
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

/// The chunks of one commit.
pub(super) struct Together<'a> {
    pub spec: &'static TableSpec,
    pub chunks: &'a [Arc<Chunk>],
    pub rules: &'a FileRules,
}

impl Rows for Together<'_> {
    fn names(&self, bindings: &Bindings) -> Vec<(Source, &str)> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.slots().all());
        let used = slots.filter(|slot| !slot.column.keys().is_empty());
        let new = used.filter(|slot| bindings.place(slot.source, &slot.name).is_none());
        new.map(|slot| (slot.source, &*slot.name)).collect()
    }

    fn encode(&self, schema: &TableSchema, bindings: &Bindings) -> Result<(Vec<EncodedFile>, u64), String> {
        let failed = |error: ParquetError| {
            let table = self.spec.name;
            format!("lake.encode_failed: rows of {table} cannot be written as Parquet: {error}")
        };
        let overflow = self.chunks.iter().map(|chunk| overflowing(chunk, bindings)).sum();
        Ok((self.files(schema).map_err(failed)?, overflow))
    }
}

/// Rows of one day, by their places in the batch of all.
struct Day {
    day: i64,
    rows: Vec<u32>,
    arrival_max: i64,
}

impl Together<'_> {
    fn files(&self, schema: &TableSchema) -> Result<Vec<EncodedFile>, ParquetError> {
        let columns = self.stored(schema);
        let batch = |chunk: &Arc<Chunk>| project(chunk, schema, &columns);
        let filled = self.chunks.iter().filter(|chunk| chunk.rows() > 0);
        let batches: Vec<RecordBatch> = filled.map(batch).collect::<Result<_, _>>()?;
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let all = concat_batches(&columns, &batches)?;
        drop(batches);
        let sort = |name: &&str| {
            let values = all.column_by_name(name)?.clone();
            let options = Some(SortOptions::default());
            Some(SortColumn { values, options })
        };
        let sort: Vec<SortColumn> = self.spec.sort.iter().filter_map(sort).collect();
        let order = lexsort_to_indices(&sort, None)?;
        let days = self.days(&order);
        days.iter().map(|day| self.file(schema, &all, day)).collect()
    }

    /// Columns as files have them: fixed ones, and those of attributes that some row has.
    fn stored(&self, schema: &TableSchema) -> SchemaRef {
        let is_used = |source: Source, name: &str| {
            let slots = self.chunks.iter().filter_map(|chunk| chunk.slots().get(source, name));
            slots.into_iter().any(|slot| !slot.column.keys().is_empty())
        };
        let mut fields = Vec::with_capacity(schema.columns.len());
        for column in schema.columns.iter().filter(|column| column.name != DATE) {
            let bound = column
                .binding()
                .and_then(|(source, name)| Some((Source::of_name(source)?, name)));
            let is_sorted_by = self.spec.sort.contains(&column.name.as_str());
            if bound.is_some_and(|(source, name)| !is_sorted_by && !is_used(source, name)) {
                continue;
            }
            let Some(kind) = column.kind.arrow() else { continue };
            fields.push(Field::new(&column.name, crate::live::with_views(kind), column.nullable));
        }
        Arc::new(Schema::new(fields))
    }

    fn days(&self, order: &UInt32Array) -> Vec<Day> {
        let numbers = |which: &dyn Fn(&Chunk) -> Vec<i64>| -> Vec<i64> {
            self.chunks.iter().flat_map(|chunk| which(chunk)).collect()
        };
        let times = numbers(&|chunk| chunk.times().map(|times| times.values().to_vec()).unwrap_or_default());
        let arrivals = numbers(&|chunk| {
            chunk
                .arrivals()
                .map(|times| times.values().to_vec())
                .unwrap_or_default()
        });
        let mut days: BTreeMap<i64, Day> = BTreeMap::new();
        for row in order.values() {
            let at = |numbers: &[i64]| numbers.get(*row as usize).copied().unwrap_or_default();
            let day = at(&times).div_euclid(NANOS_PER_DAY);
            let found = days.entry(day).or_insert(Day {
                day,
                rows: Vec::new(),
                arrival_max: i64::MIN,
            });
            found.rows.push(*row);
            found.arrival_max = found.arrival_max.max(at(&arrivals));
        }
        days.into_values().collect()
    }

    fn file(&self, schema: &TableSchema, all: &RecordBatch, day: &Day) -> Result<EncodedFile, ParquetError> {
        let order = UInt32Array::from(day.rows.clone());
        // Without the Arrow schema in the file its texts are plain strings to every reader.
        let options = ArrowWriterOptions::new()
            .with_properties(self.properties(all.schema_ref(), schema))
            .with_skip_arrow_metadata(true);
        let mut writer = ArrowWriter::try_new_with_options(Vec::new(), all.schema(), options)?;
        let columns = all.columns().iter().map(|column| take(column, &order, None));
        let columns: Vec<ArrayRef> = columns.collect::<Result<_, _>>()?;
        writer.write(&RecordBatch::try_new(all.schema(), columns)?)?;
        let footer = writer.finish()?;
        let bytes = Bytes::from(std::mem::take(writer.inner_mut()));
        let mut date = Ticks(day.day.saturating_mul(TICKS_PER_DAY)).to_string();
        date.truncate("2031-05-06".len());
        let tags = [
            ("thalweg.arrival_max", day.arrival_max.to_string()),
            ("thalweg.level", "0".to_owned()),
        ];
        let add = Add {
            path: format!("{DATE}={date}/{}.parquet", uuid::Uuid::new_v4()),
            partition_values: [(DATE.to_owned(), Some(date))].into(),
            size: bytes.len() as u64,
            modification_time: unix_ms(),
            data_change: true,
            stats: Some(FileStats::delta_json(schema, DATE, &footer)),
            tags: Some(
                tags.into_iter()
                    .map(|(key, value)| (key.to_owned(), Some(value)))
                    .collect(),
            ),
            deletion_vector: None,
        };
        Ok(EncodedFile {
            bytes,
            rows: day.rows.len() as u64,
            add,
        })
    }

    fn properties(&self, columns: &Schema, schema: &TableSchema) -> WriterProperties {
        let level = ZstdLevel::try_new(self.rules.zstd_level).unwrap_or_default();
        let sorted = |name: &&str| {
            let index = columns
                .index_of(name)
                .ok()
                .and_then(|index| i32::try_from(index).ok())?;
            Some(SortingColumn {
                column_idx: index,
                descending: false,
                nulls_first: true,
            })
        };
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("thalweg version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::ZSTD(level))
            .set_data_page_size_limit(PAGE_BYTES)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_max_row_group_bytes(Some(self.rules.row_group_bytes))
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_statistics_truncate_length(Some(STATISTICS_BYTES))
            .set_column_index_truncate_length(Some(STATISTICS_BYTES))
            .set_sorting_columns(Some(self.spec.sort.iter().filter_map(sorted).collect()));
        for name in self.spec.near {
            properties = properties
                .set_column_dictionary_enabled(ColumnPath::from(*name), false)
                .set_column_encoding(ColumnPath::from(*name), Encoding::DELTA_BINARY_PACKED);
        }
        for name in self.spec.plain {
            properties = properties.set_column_dictionary_enabled(ColumnPath::from(*name), false);
        }
        for column in schema.columns.iter().filter(|column| column.kind == ColumnType::Double) {
            let path = ColumnPath::from(column.name.as_str());
            // Bounds leave NaN out, and a reader that puts it above all numbers would skip rows that it asks for.
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_statistics_enabled(path, self.statistics_of(&column.name));
        }
        properties.build()
    }

    fn statistics_of(&self, column: &str) -> EnabledStatistics {
        let has_nan = |chunk: &Arc<Chunk>| chunk.has_nan(column);
        match self.chunks.iter().any(has_nan) {
            true => EnabledStatistics::None,
            false => EnabledStatistics::Page,
        }
    }
}
