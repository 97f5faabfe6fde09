//! Encodes the rows of a commit as sorted files, one per day.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use bytes::Bytes;
use parquet::errors::ParquetError;
use thalweg_record::Ticks;

use super::columns::column;
use super::order::order;
use crate::codes::LakeCode;
use crate::commit::{CommitPayload, EncodedFile};
use crate::memtable_view::{OverflowCounts, overflowing};
use thalweg_columns::attributes::AttributeBindings;
use thalweg_columns::file::{self, FileColumn, FileRules};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::memory_usage::MemoryUsage;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::actions::Add;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::FileStats;
use thalweg_kit::{clock::unix_ms, random};

const DATE: &str = "date";
const NANOS_PER_DAY: i64 = 86_400_000_000_000;
const TICKS_PER_DAY: i64 = 864_000_000_000;

/// The chunks of one commit.
pub(crate) struct ChunkBatch<'a> {
    pub spec: &'static TableSpec,
    pub chunks: &'a [Arc<MemtableChunk>],
    pub rules: &'a FileRules,
}

impl CommitPayload for ChunkBatch<'_> {
    fn names(&self, bindings: &AttributeBindings) -> Vec<(AttributeSource, &str)> {
        let slots = self.chunks.iter().flat_map(|chunk| chunk.slots().all());
        let used = slots.filter(|slot| !slot.column.keys().is_empty());
        let new = used.filter(|slot| bindings.place(slot.source, &slot.name).is_none());
        new.map(|slot| (slot.source, &*slot.name)).collect()
    }

    fn encode(
        &self,
        schema: &TableSchema,
        bindings: &AttributeBindings,
    ) -> Result<(Vec<EncodedFile>, OverflowCounts), String> {
        let failed = |error: ParquetError| {
            let (code, table) = (LakeCode::EncodeFailed, self.spec.name);
            format!("{code}: rows of {table} cannot be written as Parquet: {error}")
        };
        let overflow = overflowing(self.chunks.iter().map(AsRef::as_ref), bindings);
        Ok((self.files(schema, bindings).map_err(failed)?, overflow))
    }
}

/// The rows of one day, as indexes into all rows.
struct DayRows {
    day: i64,
    rows: Vec<u32>,
    arrival_max: i64,
}

impl ChunkBatch<'_> {
    fn files(&self, schema: &TableSchema, bindings: &AttributeBindings) -> Result<Vec<EncodedFile>, ParquetError> {
        let rows: usize = self.chunks.iter().map(|chunk| chunk.rows()).sum();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let (arrow, columns) = self.columns(schema, bindings)?;
        let sort = |name: &&str| columns.get(arrow.index_of(name).ok()?);
        let sort: Vec<&FileColumn<'_>> = self.spec.sort.iter().filter_map(sort).collect();
        let order = order(rows, &sort);
        let space: MemoryUsage = self.chunks.iter().map(|chunk| chunk.space()).sum();
        let all = file::FileRows {
            schema: arrow,
            columns,
            sort: self.spec.sort,
            bytes_per_row: space.used / rows,
        };
        let days = self.days(order);
        days.into_iter().map(|day| self.file(schema, &all, day)).collect()
    }

    /// The file columns: all fixed ones, and attribute columns with at least one value.
    fn columns(
        &self,
        schema: &TableSchema,
        bindings: &AttributeBindings,
    ) -> Result<(SchemaRef, Vec<FileColumn<'_>>), ParquetError> {
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for of_table in schema.columns.iter().filter(|column| column.name != DATE) {
            let Some(kind) = of_table.kind.arrow() else { continue };
            let field = Field::new(&of_table.name, kind, of_table.nullable);
            let made = column(self.spec, self.chunks, of_table, &field, bindings)?;
            let is_fixed = of_table.binding().is_none() || self.spec.sort.contains(&of_table.name.as_str());
            if is_fixed || !matches!(made, FileColumn::Nothing) {
                fields.push(field);
                columns.push(made);
            }
        }
        Ok((Arc::new(Schema::new(fields)), columns))
    }

    fn days(&self, order: Vec<u32>) -> Vec<DayRows> {
        let chunks = || self.chunks.iter();
        let times: Vec<i64> = chunks()
            .filter_map(|chunk| chunk.times())
            .flat_map(|times| times.values().iter().copied())
            .collect();
        let arrivals: Vec<i64> = chunks()
            .filter_map(|chunk| chunk.arrivals())
            .flat_map(|times| times.values().iter().copied())
            .collect();
        let day_of = |time: i64| time.div_euclid(NANOS_PER_DAY);
        let (first, last) = (times.iter().min().copied(), times.iter().max().copied());
        let first = first.map(day_of).unwrap_or_default();
        if last.map(day_of).unwrap_or_default() == first {
            return vec![DayRows {
                day: first,
                rows: order,
                arrival_max: arrivals.iter().max().copied().unwrap_or(i64::MIN),
            }];
        }
        let mut days: BTreeMap<i64, DayRows> = BTreeMap::new();
        for row in order {
            let at = |numbers: &[i64]| numbers.get(row as usize).copied().unwrap_or_default();
            let day = day_of(at(&times));
            let found = days.entry(day).or_insert(DayRows {
                day,
                rows: Vec::new(),
                arrival_max: i64::MIN,
            });
            found.rows.push(row);
            found.arrival_max = found.arrival_max.max(at(&arrivals));
        }
        days.into_values().collect()
    }

    fn file(&self, schema: &TableSchema, all: &file::FileRows<'_>, day: DayRows) -> Result<EncodedFile, ParquetError> {
        let (bytes, footer) = all.write(&day.rows, self.rules)?;
        let bytes = Bytes::from(bytes);
        let mut date = Ticks(day.day.saturating_mul(TICKS_PER_DAY)).to_string();
        date.truncate("2031-05-06".len());
        let tags = [
            ("thalweg.arrival_max", day.arrival_max.to_string()),
            ("thalweg.level", "0".to_owned()),
        ];
        let tags = tags.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        let add = Add {
            path: format!("{DATE}={date}/{}.parquet", random::uuid()),
            partition_values: [(DATE.to_owned(), Some(date))].into(),
            size: bytes.len() as u64,
            modification_time: unix_ms(),
            data_change: true,
            stats: Some(FileStats::delta_json(schema, self.spec.partitions, &footer)),
            tags: Some(tags.collect()),
            deletion_vector: None,
        };
        Ok(EncodedFile {
            bytes,
            rows: day.rows.len() as u64,
            add,
        })
    }
}
