//! Rows to Parquet: one sorted file per day, with the statistics that the Delta log needs.
//!
//! The rows of a generation are ordered by tag and time without being moved; columns are then gathered in that order,
//! a piece at a time. Texts that belong to a series are written as a dictionary over the series, and no text is copied
//! per row.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, DictionaryArray, Int64Array, MapBuilder, MapFieldNames, PrimitiveArray, RecordBatch,
    StringArray, StringBuilder, TimestampMicrosecondArray, UInt8Array, UInt32Array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Field, Float64Type, Int64Type, Schema, UInt8Type, UInt32Type};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use thalweg_record::{Text, Ticks};

use super::rows::{Generation, HAS_INTEGER, HAS_NUMBER, HAS_QUALITY, NO_TIME};
use super::sample::TimeSource;
use super::schema as tags;
use super::series::{Resolved, Series};
use crate::attributes::Bindings;
use crate::commit::EncodedFile;
use crate::delta::actions::Add;
use crate::delta::schema::{TableSchema, text_map_type};
use crate::delta::stats::FileStats;

const NANOS_PER_DAY: i64 = 86_400_000_000_000;
const TICKS_PER_DAY: i64 = 864_000_000_000;
const NANOS_PER_MICRO: i64 = 1_000;
/// Rows that are gathered at a time.
const PIECE_ROWS: usize = 65_536;
/// Text bytes after which a piece ends early: Arrow's offsets have 31 bits, and a piece is a copy that the writer's
/// memory must have room for. A longer row is a piece of its own.
pub(super) const PIECE_TEXT_BYTES: usize = 32 << 20;
const PAGE_BYTES: usize = 1 << 20;
const PAGE_ROWS: usize = 20_000;
const STATISTICS_BYTES: usize = 64;

/// How files are written.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    pub zstd_level: i32,
    pub row_group_bytes: usize,
    pub row_group_rows: usize,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        FileOptions {
            zstd_level: 1,
            row_group_bytes: 32 << 20,
            row_group_rows: 1 << 20,
        }
    }
}

/// The encoder is given only what it made itself, so this means a fault in the program or the library.
#[derive(Debug, thiserror::Error)]
#[error("lake.encode_failed: rows of {table} cannot be written as Parquet: {source}", table = tags::TABLE)]
pub struct EncodeError {
    #[from]
    source: parquet::errors::ParquetError,
}

impl From<arrow::error::ArrowError> for EncodeError {
    fn from(source: arrow::error::ArrowError) -> EncodeError {
        EncodeError { source: source.into() }
    }
}

/// Writes the rows of one generation.
pub struct Encoder<'a> {
    rows: &'a Generation,
    schema: &'a TableSchema,
    bindings: &'a Bindings,
    options: FileOptions,
    resolved: Vec<Arc<Resolved>>,
    /// What a row of each series puts into its overflow map; empty where no series has anything to put there.
    overflow_bytes: Vec<usize>,
}

impl<'a> Encoder<'a> {
    /// Every attribute name of `rows` must have been admitted to `bindings`, and `schema` must hold its columns.
    pub fn new(
        rows: &'a Generation,
        schema: &'a TableSchema,
        bindings: &'a Bindings,
        options: FileOptions,
    ) -> Encoder<'a> {
        let resolved: Vec<_> = rows.series.iter().map(|series| series.resolve(bindings)).collect();
        let overflow_bytes = match resolved.iter().all(|resolved| resolved.overflow.is_empty()) {
            true => Vec::new(),
            false => rows
                .series
                .iter()
                .zip(&resolved)
                .map(|(s, r)| overflow_bytes(s, r))
                .collect(),
        };
        Encoder {
            rows,
            schema,
            bindings,
            options,
            resolved,
            overflow_bytes,
        }
    }

    /// The number of values that go to overflow maps.
    pub fn overflow_values(&self) -> u64 {
        let per_series: Vec<u64> = self
            .resolved
            .iter()
            .map(|resolved| resolved.overflow.len() as u64)
            .collect();
        let of_series = self
            .rows
            .row_series
            .iter()
            .map(|series| per_series.get(*series as usize).unwrap_or(&0));
        of_series.sum::<u64>() + self.rows.row_overflow.len() as u64
    }

    /// One file per day, in the order of days. `now_unix_ms` is the time of the files.
    pub fn encode(&self, now_unix_ms: i64) -> Result<Vec<EncodedFile>, EncodeError> {
        let order = sorted(self.rows);
        order
            .into_iter()
            .map(|(day, order)| self.encode_day(day, &order, now_unix_ms))
            .collect()
    }

    fn encode_day(&self, day: i64, order: &[u32], now_unix_ms: i64) -> Result<EncodedFile, EncodeError> {
        let plan = FilePlan::of(self, order);
        let arrow = Arc::new(Schema::new(plan.fields.clone()));
        // Without the Arrow schema in the file its texts are plain strings to every reader.
        let options = ArrowWriterOptions::new()
            .with_properties(self.properties(&plan))
            .with_skip_arrow_metadata(true);
        let mut writer = ArrowWriter::try_new_with_options(Vec::new(), arrow.clone(), options)?;
        let mut rest = order;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece_len(rest));
            writer.write(&RecordBatch::try_new(arrow.clone(), self.gather(&plan, piece)?)?)?;
            rest = after;
        }
        let footer = writer.finish()?;
        let bytes = Bytes::from(std::mem::take(writer.inner_mut()));
        let date = date_text(day);
        let tags = [
            ("thalweg.arrival_max", plan.arrival_max.to_string()),
            ("thalweg.level", "0".to_owned()),
        ];
        let add = Add {
            path: format!("{}={date}/{}.parquet", tags::DATE, uuid::Uuid::new_v4()),
            partition_values: [(tags::DATE.to_owned(), Some(date))].into(),
            size: bytes.len() as u64,
            modification_time: now_unix_ms,
            data_change: true,
            stats: Some(FileStats::delta_json(self.schema, &[tags::DATE], &footer)),
            tags: Some(tags.into_iter().map(|(k, v)| (k.to_owned(), Some(v))).collect()),
            deletion_vector: None,
        };
        Ok(EncodedFile {
            bytes,
            rows: order.len() as u64,
            add,
        })
    }

    fn properties(&self, plan: &FilePlan) -> WriterProperties {
        let level = ZstdLevel::try_new(self.options.zstd_level).unwrap_or_default();
        let sorted = |index| SortingColumn {
            column_idx: index,
            descending: false,
            nulls_first: false,
        };
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("thalweg version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(Compression::ZSTD(level))
            .set_data_page_size_limit(PAGE_BYTES)
            .set_data_page_row_count_limit(PAGE_ROWS)
            .set_max_row_group_row_count(Some(self.options.row_group_rows))
            .set_max_row_group_bytes(Some(self.options.row_group_bytes))
            .set_statistics_enabled(EnabledStatistics::Page)
            .set_statistics_truncate_length(Some(STATISTICS_BYTES))
            .set_column_index_truncate_length(Some(STATISTICS_BYTES))
            .set_sorting_columns(Some(vec![sorted(0), sorted(1)]));
        let deltas = [
            tags::TIME_NANOS,
            tags::TIME,
            tags::ARRIVAL,
            tags::VALUE_INT,
            tags::SOURCE_TIME,
            tags::SERVER_TIME,
        ];
        for column in deltas.map(ColumnPath::from) {
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        for column in [tags::VALUE, tags::VALUE_BYTES].map(ColumnPath::from) {
            properties = properties.set_column_dictionary_enabled(column, false);
        }
        if plan.has_nan {
            // Bounds leave NaN out, and a reader that puts it above all numbers would skip rows that it asks for.
            properties = properties.set_column_statistics_enabled(tags::VALUE.into(), EnabledStatistics::None);
        }
        properties.build()
    }

    /// How many of the next rows make a piece: what is copied per row, values and overflow maps, stays below a limit.
    pub(super) fn piece_len(&self, rest: &[u32]) -> usize {
        let rows = self.rows;
        let len = rest.len().min(PIECE_ROWS);
        let no_values = rows.text.is_empty() && rows.bytes.is_empty();
        if no_values && rows.row_overflow.is_empty() && self.overflow_bytes.is_empty() {
            return len;
        }
        let mut bytes = 0;
        let fits = rest.iter().take(len).take_while(|row| {
            let value = |sparse: &super::rows::Sparse| sparse.get(**row).map_or(0, <[u8]>::len);
            let own: usize = row_overflow(rows, **row)
                .map(|(_, name, value)| OVERFLOW_PREFIX_BYTES + name.len() + value.len())
                .sum();
            bytes +=
                value(&rows.text) + value(&rows.bytes) + at(&self.overflow_bytes, at(&rows.row_series, **row)) + own;
            bytes <= PIECE_TEXT_BYTES
        });
        fits.count().max(1)
    }

    fn gather(&self, plan: &FilePlan, order: &[u32]) -> Result<Vec<ArrayRef>, EncodeError> {
        let rows = self.rows;
        let series: Vec<u32> = order.iter().map(|row| at(&rows.row_series, *row)).collect();
        let keys = UInt32Array::from(series);
        let micros = order.iter().map(|row| at(&rows.time, *row).div_euclid(NANOS_PER_MICRO));
        let mut arrays: Vec<ArrayRef> = vec![
            Arc::new(gather_by(&keys, |series| {
                rows.series.get(series as usize).map_or(0, |s| s.tag_id)
            })),
            Arc::new(Int64Array::from_iter_values(
                order.iter().map(|row| at(&rows.time, *row)),
            )),
            Arc::new(TimestampMicrosecondArray::from_iter_values(micros).with_timezone("UTC")),
            Arc::new(Int64Array::from_iter_values(
                order.iter().map(|row| at(&rows.arrival, *row)),
            )),
            self.time_sources(order)?,
            self.original_times(order),
            self.overflow(order, &keys)?,
            plan.source.gather(&keys)?,
            plan.tag.gather(&keys)?,
            Arc::new(self.flagged::<Float64Type>(order, HAS_NUMBER, &rows.number)),
            Arc::new(self.flagged::<Int64Type>(order, HAS_INTEGER, &rows.integer)),
            self.texts(order),
            self.binaries(order),
            plan.kinds.gather(
                order
                    .iter()
                    .map(|row| rows.kind.get(*row as usize).copied().unwrap_or_default()),
            )?,
            Arc::new(self.quality(order)),
            Arc::new(times(order, &rows.source_time)),
            Arc::new(times(order, &rows.server_time)),
            plan.unit.gather(&keys)?,
        ];
        for column in &plan.promoted {
            arrays.push(column.gather(&keys)?);
        }
        Ok(arrays)
    }

    fn flagged<T: ArrowPrimitiveType>(&self, order: &[u32], flag: u8, values: &[T::Native]) -> PrimitiveArray<T> {
        let values: Vec<T::Native> = order
            .iter()
            .map(|row| values.get(*row as usize).copied().unwrap_or_default())
            .collect();
        let valid = BooleanBuffer::from_iter(order.iter().map(|row| at(&self.rows.has, *row) & flag != 0));
        PrimitiveArray::new(ScalarBuffer::from(values), nulls(valid))
    }

    fn quality(&self, order: &[u32]) -> Int64Array {
        let values: Vec<i64> = order
            .iter()
            .map(|row| i64::from(at(&self.rows.quality, *row)))
            .collect();
        let valid = BooleanBuffer::from_iter(order.iter().map(|row| at(&self.rows.has, *row) & HAS_QUALITY != 0));
        Int64Array::new(values.into(), nulls(valid))
    }

    fn time_sources(&self, order: &[u32]) -> Result<ArrayRef, EncodeError> {
        let source = |row: u32| {
            self.rows
                .time_source
                .get(row as usize)
                .copied()
                .unwrap_or(TimeSource::Own)
        };
        let keys = UInt8Array::from_iter(order.iter().map(|row| match source(*row) {
            TimeSource::Own => None,
            TimeSource::Observed => Some(0),
            TimeSource::Arrival => Some(1),
        }));
        let names = StringArray::from(vec!["observed", "arrival"]);
        Ok(Arc::new(DictionaryArray::<UInt8Type>::try_new(keys, Arc::new(names))?))
    }

    fn original_times(&self, order: &[u32]) -> ArrayRef {
        let originals = &self.rows.time_original;
        if originals.is_empty() {
            return new_null_array(&DataType::Utf8, order.len());
        }
        // Rows were pushed in order, so the list is sorted by row.
        let find = |row: &u32| {
            originals
                .binary_search_by_key(row, |(at, _)| *at)
                .ok()
                .and_then(|i| originals.get(i))
        };
        Arc::new(StringArray::from_iter(
            order.iter().map(|row| find(row).map(|(_, text)| text)),
        ))
    }

    fn texts(&self, order: &[u32]) -> ArrayRef {
        if self.rows.text.is_empty() {
            return new_null_array(&DataType::Utf8, order.len());
        }
        let mut builder = StringBuilder::with_capacity(order.len(), 0);
        for row in order {
            // Only texts are pushed there.
            builder.append_option(
                self.rows
                    .text
                    .get(*row)
                    .and_then(|bytes| std::str::from_utf8(bytes).ok()),
            );
        }
        Arc::new(builder.finish())
    }

    fn binaries(&self, order: &[u32]) -> ArrayRef {
        if self.rows.bytes.is_empty() {
            return new_null_array(&DataType::Binary, order.len());
        }
        let mut builder = BinaryBuilder::with_capacity(order.len(), 0);
        for row in order {
            builder.append_option(self.rows.bytes.get(*row));
        }
        Arc::new(builder.finish())
    }

    fn overflow(&self, order: &[u32], keys: &UInt32Array) -> Result<ArrayRef, EncodeError> {
        let of_rows = &self.rows.row_overflow;
        if of_rows.is_empty() && self.resolved.iter().all(|resolved| resolved.overflow.is_empty()) {
            return Ok(new_null_array(&text_map_type(), order.len()));
        }
        let names = MapFieldNames {
            entry: "key_value".into(),
            key: "key".into(),
            value: "value".into(),
        };
        let mut builder = MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new());
        let prefix = format!("{}.", tags::ATTRIBUTE_SOURCE);
        for (row, series) in order.iter().zip(keys.values()) {
            let (mut any, mut name_buffer) = (false, prefix.clone());
            let mut put = |name: &str, value: &str| {
                name_buffer.truncate(prefix.len());
                name_buffer.push_str(name);
                builder.keys().append_value(&name_buffer);
                builder.values().append_value(value);
                any = true;
            };
            let known = self
                .rows
                .series
                .get(*series as usize)
                .zip(self.resolved.get(*series as usize));
            if let Some((series, resolved)) = known {
                for (name, value) in resolved
                    .overflow
                    .iter()
                    .filter_map(|i| series.attributes.get(usize::from(*i)))
                {
                    put(name, value);
                }
            }
            for (_, name, value) in row_overflow(self.rows, *row) {
                put(name, value);
            }
            builder.append(any)?;
        }
        Ok(Arc::new(builder.finish()))
    }
}

/// `attr.`
const OVERFLOW_PREFIX_BYTES: usize = tags::ATTRIBUTE_SOURCE.len() + 1;

/// Bytes that a row of a series puts into its overflow map.
fn overflow_bytes(series: &Series, resolved: &Resolved) -> usize {
    let entries = resolved.overflow.iter();
    entries
        .filter_map(|i| series.attributes.get(usize::from(*i)))
        .map(|(name, value)| OVERFLOW_PREFIX_BYTES + name.len() + value.len())
        .sum()
}

/// The overflow entries that only this row has; rows were pushed in order, so the list is sorted by row.
fn row_overflow(rows: &Generation, row: u32) -> impl Iterator<Item = &(u32, Text, Text)> {
    let entries = &rows.row_overflow;
    let first = entries.partition_point(|(at, _, _)| *at < row);
    entries.iter().skip(first).take_while(move |(at, _, _)| *at == row)
}

/// What a file needs besides its rows: the columns it has, and the texts of its series.
struct FilePlan {
    fields: Vec<Field>,
    source: SeriesTexts,
    tag: SeriesTexts,
    unit: SeriesTexts,
    kinds: Kinds,
    /// In the order of the table; columns without a value in this file are left out.
    promoted: Vec<SeriesTexts>,
    has_nan: bool,
    arrival_max: i64,
}

impl FilePlan {
    fn of(encoder: &Encoder<'_>, order: &[u32]) -> FilePlan {
        let rows = encoder.rows;
        let mut used = vec![false; rows.series.len()];
        for row in order {
            if let Some(used) = used.get_mut(at(&rows.row_series, *row) as usize) {
                *used = true;
            }
        }
        let series = |i: usize| rows.series.get(i);
        let in_file = || {
            rows.series
                .iter()
                .zip(&used)
                .map(|(series, used)| used.then_some(series))
        };
        let mut cells: Vec<Vec<Option<&str>>> = vec![Vec::new(); encoder.bindings.columns().len()];
        for (i, resolved) in encoder
            .resolved
            .iter()
            .enumerate()
            .filter(|(i, _)| used.get(*i) == Some(&true))
        {
            for (column, index) in &resolved.cells {
                let value = series(i).and_then(|series| series.attributes.get(usize::from(*index)));
                if let (Some(values), Some((_, value))) = (cells.get_mut(usize::from(*column)), value) {
                    values.resize(i, None);
                    values.push(Some(value));
                }
            }
        }
        let mut fields = fixed_fields(encoder.schema);
        let mut promoted = Vec::new();
        for (name, mut values) in encoder
            .bindings
            .columns()
            .iter()
            .zip(cells)
            .filter(|(_, values)| !values.is_empty())
        {
            values.resize(rows.series.len(), None);
            fields.push(Field::new(name, series_text_type(), true));
            promoted.push(SeriesTexts::new(values.into_iter()));
        }
        let is_nan = |row: &u32| rows.number.get(*row as usize).is_some_and(|number| number.is_nan());
        FilePlan {
            fields,
            source: SeriesTexts::new(in_file().map(|series| Some(&*series?.source))),
            tag: SeriesTexts::new(in_file().map(|series| series?.tag.as_deref())),
            unit: SeriesTexts::new(in_file().map(|series| series?.unit.as_deref())),
            kinds: Kinds::of(&rows.kind),
            promoted,
            has_nan: order.iter().any(is_nan),
            arrival_max: order.iter().map(|row| at(&rows.arrival, *row)).max().unwrap_or(0),
        }
    }
}

fn series_text_type() -> DataType {
    DataType::Dictionary(Box::new(DataType::UInt32), Box::new(DataType::Utf8))
}

/// The fixed columns that lie in files (all but the partition), with the types in which they are handed to the writer.
fn fixed_fields(table: &TableSchema) -> Vec<Field> {
    let nullable = |name: &str| table.column(name).is_none_or(|column| column.nullable);
    let small = DataType::Dictionary(Box::new(DataType::UInt8), Box::new(DataType::Utf8));
    let fixed = tags::schema();
    let fields = fixed
        .columns
        .iter()
        .filter(|column| column.name != tags::DATE)
        .filter_map(|column| {
            let data_type = match column.name.as_str() {
                tags::SOURCE | tags::TAG | tags::UNIT => series_text_type(),
                tags::TIME_SOURCE | tags::VALUE_TYPE => small.clone(),
                _ => column.kind.arrow()?,
            };
            Some(Field::new(&column.name, data_type, nullable(&column.name)))
        });
    fields.collect()
}

/// A text column whose value is that of the row's series.
struct SeriesTexts {
    values: ArrayRef,
    /// Which series have a value; `None` when all have.
    valid: Option<Vec<bool>>,
}

impl SeriesTexts {
    fn new<'t>(texts: impl Iterator<Item = Option<&'t str>>) -> SeriesTexts {
        let texts: Vec<Option<&str>> = texts.collect();
        let valid: Vec<bool> = texts.iter().map(Option::is_some).collect();
        let values = StringArray::from_iter_values(texts.into_iter().map(Option::unwrap_or_default));
        SeriesTexts {
            values: Arc::new(values),
            valid: valid.contains(&false).then_some(valid),
        }
    }

    fn gather(&self, keys: &UInt32Array) -> Result<ArrayRef, EncodeError> {
        let keys = match &self.valid {
            None => keys.clone(),
            Some(valid) => {
                let valid = keys
                    .values()
                    .iter()
                    .map(|key| valid.get(*key as usize).copied().unwrap_or(false));
                UInt32Array::new(keys.values().clone(), nulls(BooleanBuffer::from_iter(valid)))
            }
        };
        Ok(Arc::new(DictionaryArray::<UInt32Type>::try_new(
            keys,
            self.values.clone(),
        )?))
    }
}

/// The column of type names.
struct Kinds {
    names: Vec<&'static str>,
    /// By address of the name: there is one text per type in the program.
    keys: HashMap<usize, u8>,
}

impl Kinds {
    fn of(kinds: &[&'static str]) -> Kinds {
        let mut all = Kinds {
            names: Vec::new(),
            keys: HashMap::new(),
        };
        for kind in kinds {
            let known = all.names.len();
            all.keys.entry(kind.as_ptr().addr()).or_insert_with(|| {
                all.names.push(kind);
                u8::try_from(known).unwrap_or(u8::MAX)
            });
        }
        all
    }

    fn gather(&self, kinds: impl Iterator<Item = &'static str>) -> Result<ArrayRef, EncodeError> {
        let mut last = (usize::MAX, 0);
        let keys = UInt8Array::from_iter_values(kinds.map(|kind| {
            let address = kind.as_ptr().addr();
            if last.0 != address {
                last = (address, self.keys.get(&address).copied().unwrap_or(0));
            }
            last.1
        }));
        let names = StringArray::from(self.names.clone());
        Ok(Arc::new(DictionaryArray::<UInt8Type>::try_new(keys, Arc::new(names))?))
    }
}

/// The rows of each day in the order of tag and time; equal ones keep the order in which they came.
fn sorted(rows: &Generation) -> Vec<(i64, Vec<u32>)> {
    let by_tag = by_tag(rows);
    let day_of = |row: u32| at(&rows.time, row).div_euclid(NANOS_PER_DAY);
    let bounds = rows.time.iter().fold((i64::MAX, i64::MIN), |(low, high), time| {
        (low.min(*time), high.max(*time))
    });
    let (first, last) = (bounds.0.div_euclid(NANOS_PER_DAY), bounds.1.div_euclid(NANOS_PER_DAY));
    if first == last {
        return vec![(first, by_tag)];
    }
    let mut days: std::collections::BTreeMap<i64, Vec<u32>> = Default::default();
    for row in by_tag {
        days.entry(day_of(row)).or_default().push(row);
    }
    days.into_iter().collect()
}

/// Counting sort by tag, then by time within each tag, where rows mostly are in order already.
fn by_tag(rows: &Generation) -> Vec<u32> {
    let mut ids: Vec<i64> = rows.series.iter().map(|series| series.tag_id).collect();
    let of_series = ids.clone();
    ids.sort_unstable();
    ids.dedup();
    let rank: Vec<u32> = of_series
        .iter()
        .map(|id| u32::try_from(ids.partition_point(|other| other < id)).unwrap_or(u32::MAX))
        .collect();
    let rank_of = |series: &u32| rank.get(*series as usize).copied().unwrap_or(0) as usize;
    let mut starts = vec![0usize; ids.len() + 1];
    for series in &rows.row_series {
        if let Some(count) = starts.get_mut(rank_of(series) + 1) {
            *count += 1;
        }
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    let mut next = starts.clone();
    let mut order = vec![0u32; rows.rows()];
    for (row, series) in (0u32..).zip(&rows.row_series) {
        if let Some(place) = next.get_mut(rank_of(series)) {
            if let Some(slot) = order.get_mut(*place) {
                *slot = row;
            }
            *place += 1;
        }
    }
    for tag in starts.windows(2) {
        if let [start, end] = tag
            && let Some(part) = order.get_mut(*start..*end)
            && !part.is_sorted_by_key(|row| at(&rows.time, *row))
        {
            part.sort_by_key(|row| at(&rows.time, *row));
        }
    }
    order
}

fn at<T: Copy + Default>(column: &[T], row: u32) -> T {
    column.get(row as usize).copied().unwrap_or_default()
}

fn nulls(valid: BooleanBuffer) -> Option<NullBuffer> {
    let nulls = NullBuffer::new(valid);
    (nulls.null_count() > 0).then_some(nulls)
}

fn gather_by(keys: &UInt32Array, value: impl Fn(u32) -> i64) -> Int64Array {
    Int64Array::from_iter_values(keys.values().iter().map(|key| value(*key)))
}

fn times(order: &[u32], column: &[i64]) -> Int64Array {
    let values: Vec<i64> = order.iter().map(|row| at(column, *row)).collect();
    let valid = BooleanBuffer::from_iter(values.iter().map(|time| *time != NO_TIME));
    Int64Array::new(values.into(), nulls(valid))
}

/// `2031-05-06`
fn date_text(day: i64) -> String {
    let mut text = Ticks(day.saturating_mul(TICKS_PER_DAY)).to_string();
    text.truncate(10);
    text
}
