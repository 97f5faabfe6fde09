//! Writes the windows of one day and resolution to a file. The identity columns of a series are copied from a source
//! row.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray as _, BinaryBuilder, DictionaryArray, Float64Builder, Int32Array, Int64Builder,
    ListBuilder, RecordBatch, RecordBatchOptions, StringArray, TimestampMicrosecondArray, new_null_array,
};
use arrow::compute::{cast, interleave};
use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
use bytes::Bytes;
use hashbrown::HashMap;

use super::Resolution;
use super::windows::RollupWindow;
use crate::commit::EncodedFile;
use thalweg_columns::attribute_types;
use thalweg_columns::compaction::{KeyedBatch, MergeError, RowRun, columns};
use thalweg_columns::file::{FileRules, FileWriter};
use thalweg_columns::tables::TableSpec;
use thalweg_delta::actions::Add;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::FileStats;
use thalweg_kit::{clock::unix_ms, random};

/// Rows per row group.
const GROUP_ROWS: usize = 1 << 17;
/// The most batches that stay in memory as identities for a row group.
const GROUP_PIECES: usize = 64;

/// A rollup column that is copied from the source table: its name here and there.
#[derive(Clone, Debug)]
pub(super) struct IdentityColumn {
    pub name: String,
    pub source: String,
}

/// The properties that all rows of a file share.
pub(super) struct RollupFileSpec<'a> {
    pub spec: &'static TableSpec,
    pub schema: &'a TableSchema,
    /// The identity columns of a series.
    pub taken: &'a [IdentityColumn],
    pub resolution: Resolution,
    /// As in the folder name.
    pub date: &'a str,
    pub revision: i64,
    /// Rows for these windows exist already.
    pub is_late: bool,
    /// In nanoseconds since 1970; the arrival of all rows.
    pub arrival: i64,
    pub rules: &'a FileRules,
}

/// Collects rows in table order and writes them to a file.
pub(super) struct RollupFileWriter<'a> {
    file: RollupFileSpec<'a>,
    arrow: SchemaRef,
    pieces: Vec<Arc<KeyedBatch>>,
    /// For each row, the batch and row that have its identity.
    rows: Vec<(usize, usize)>,
    numbers: WindowColumnBuilders,
    writer: Option<FileWriter>,
    written: u64,
}

#[derive(Default)]
struct WindowColumnBuilders {
    start: Vec<i64>,
    count: Vec<i64>,
    sum: Float64Builder,
    min: Float64Builder,
    max: Float64Builder,
    first: Float64Builder,
    last: Float64Builder,
    increase: Float64Builder,
    first_time: Int64Builder,
    last_time: Int64Builder,
    resets: Int64Builder,
    sketch: BinaryBuilder,
    bounds: ListBuilder<Float64Builder>,
    counts: ListBuilder<Int64Builder>,
}

impl WindowColumnBuilders {
    fn push(&mut self, window: &RollupWindow<'_>) {
        self.start.push(window.start);
        self.count.push(window.count);
        self.sum.append_option(window.sum);
        self.min.append_option(window.min);
        self.max.append_option(window.max);
        self.first.append_option(window.first);
        self.last.append_option(window.last);
        self.increase.append_option(window.increase);
        self.first_time.append_option(window.first_time);
        self.last_time.append_option(window.last_time);
        self.resets.append_option(window.resets);
        self.sketch.append_option(window.sketch);
        self.bounds
            .values()
            .append_slice(window.explicit_bounds.unwrap_or_default());
        self.bounds.append(window.explicit_bounds.is_some());
        self.counts
            .values()
            .append_slice(window.bucket_counts.unwrap_or_default());
        self.counts.append(window.bucket_counts.is_some());
    }

    fn column(&mut self, name: &str, revision: i64) -> Option<ArrayRef> {
        use arrow::array::Int64Array;
        Some(match name {
            "time_unix_nano" => Arc::new(Int64Array::from(self.start.clone())),
            "time" => {
                let micros = self.start.iter().map(|nanos| nanos.div_euclid(1000));
                Arc::new(TimestampMicrosecondArray::from_iter_values(micros).with_timezone("UTC"))
            }
            "revision" => Arc::new(Int64Array::from(vec![revision; self.start.len()])),
            "count" => Arc::new(Int64Array::from(self.count.clone())),
            "sum" => Arc::new(self.sum.finish()),
            "min" => Arc::new(self.min.finish()),
            "max" => Arc::new(self.max.finish()),
            "first" => Arc::new(self.first.finish()),
            "last" => Arc::new(self.last.finish()),
            "increase" => Arc::new(self.increase.finish()),
            "first_time_unix_nano" => Arc::new(self.first_time.finish()),
            "last_time_unix_nano" => Arc::new(self.last_time.finish()),
            "resets" => Arc::new(self.resets.finish()),
            "sketch" => cast(&self.sketch.finish(), &DataType::BinaryView).ok()?,
            "explicit_bounds" => Arc::new(self.bounds.finish()),
            "bucket_counts" => Arc::new(self.counts.finish()),
            _ => return None,
        })
    }
}

impl<'a> RollupFileWriter<'a> {
    pub fn new(file: RollupFileSpec<'a>) -> RollupFileWriter<'a> {
        let is_stored = |name: &str| !file.spec.partitions.contains(&name);
        let columns = file.schema.columns.iter().filter(|column| is_stored(&column.name));
        let field = |column: &thalweg_delta::schema::TableColumn| {
            Some(Field::new(&column.name, column.kind.arrow()?, column.nullable))
        };
        let arrow = Schema::new(columns.filter_map(field).collect::<Vec<Field>>());
        RollupFileWriter {
            arrow: Arc::new(arrow),
            file,
            pieces: Vec::new(),
            rows: Vec::new(),
            numbers: WindowColumnBuilders::default(),
            writer: None,
            written: 0,
        }
    }

    /// Adds a window of a row's series. Windows must come in table order.
    pub fn push(&mut self, window: &RollupWindow<'_>, of: &(Arc<KeyedBatch>, usize)) -> Result<(), MergeError> {
        let (piece, row) = of;
        if self.pieces.last().is_none_or(|last| !Arc::ptr_eq(last, piece)) {
            if self.pieces.len() >= GROUP_PIECES {
                self.write_group()?;
            }
            self.pieces.push(piece.clone());
        }
        self.rows.push((self.pieces.len() - 1, *row));
        self.numbers.push(window);
        match self.rows.len() >= GROUP_ROWS {
            true => self.write_group(),
            false => Ok(()),
        }
    }

    fn write_group(&mut self) -> Result<(), MergeError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let made = self.batch()?;
        let run = RowRun {
            begin: 0,
            len: made.num_rows(),
            piece: Arc::new(KeyedBatch::of(made)),
        };
        let columns = columns(self.file.spec, &self.arrow, std::slice::from_ref(&run))?;
        let order: Vec<u32> = (0..run.len as u32).collect();
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(FileWriter::new(
                self.arrow.clone(),
                self.file.spec.sort,
                self.file.rules,
            )?),
        };
        writer.write_group(&columns, &order)?;
        drop(columns);
        self.written += run.len as u64;
        self.pieces.clear();
        self.rows.clear();
        self.numbers = WindowColumnBuilders::default();
        Ok(())
    }

    fn batch(&mut self) -> Result<RecordBatch, MergeError> {
        let (mut fields, mut arrays) = (Vec::new(), Vec::new());
        for field in self.arrow.fields() {
            let own = self.numbers.column(field.name(), self.file.revision);
            let taken = self.file.taken.iter().find(|taken| taken.name == *field.name());
            let array = match (own, taken) {
                (Some(own), _) => own,
                (None, Some(taken)) => match identity(&taken.source, &self.pieces, &self.rows, field.data_type())? {
                    // The column may be older than the type of an attribute in the source.
                    Some(array) => attribute_types::as_type(array, field.data_type())?,
                    None => continue,
                },
                (None, None) => continue,
            };
            fields.push(Field::new(field.name(), array.data_type().clone(), true));
            arrays.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows.len()));
        Ok(RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            arrays,
            &options,
        )?)
    }

    /// Returns the file, unless it has no rows.
    pub fn finish(mut self) -> Result<Option<EncodedFile>, MergeError> {
        self.write_group()?;
        let Some(writer) = self.writer else { return Ok(None) };
        let (bytes, footer) = writer.finish()?;
        let (bytes, file) = (Bytes::from(bytes), self.file);
        let seconds = file.resolution.seconds().to_string();
        let arrival = file.arrival.to_string();
        let mut tags = vec![("thalweg.level", "0".to_owned()), ("thalweg.arrival_max", arrival)];
        if file.is_late {
            tags.push(("thalweg.revises", "true".to_owned()));
        }
        let tags = tags.into_iter().map(|(key, value)| (key.to_owned(), Some(value)));
        let [resolution, date] = ["resolution_s", "date"];
        let add = Add {
            path: format!("{resolution}={seconds}/{date}={}/{}.parquet", file.date, random::uuid()),
            partition_values: [
                (resolution.to_owned(), Some(seconds)),
                (date.to_owned(), Some(file.date.to_owned())),
            ]
            .into(),
            size: bytes.len() as u64,
            modification_time: unix_ms(),
            data_change: true,
            stats: Some(FileStats::delta_json(file.schema, file.spec.partitions, &footer)),
            tags: Some(tags.collect()),
            deletion_vector: None,
        };
        Ok(Some(EncodedFile {
            bytes,
            rows: self.written,
            add,
        }))
    }
}

/// A source column for the given rows of the batches; `None` if no batch has it.
fn identity(
    name: &str,
    pieces: &[Arc<KeyedBatch>],
    rows: &[(usize, usize)],
    kind: &DataType,
) -> Result<Option<ArrayRef>, MergeError> {
    let found: Vec<Option<&ArrayRef>> = pieces.iter().map(|piece| piece.rows.column_by_name(name)).collect();
    let Some(first) = found.iter().flatten().next() else {
        return Ok(None);
    };
    let texts = found.iter().map(|array| match array {
        Some(array) => DictionaryTexts::of(array).map(Some),
        None => Some(None),
    });
    if let Some(texts) = texts.collect::<Option<Vec<_>>>() {
        return Ok(Some(Arc::new(of_series(&texts, rows)?)));
    }
    // Files may name the fields within maps differently.
    let kind = match first.data_type() {
        DataType::Map(..) => kind.clone(),
        other => other.clone(),
    };
    let of_piece = |(array, piece): (&Option<&ArrayRef>, &Arc<KeyedBatch>)| match array {
        Some(array) if *array.data_type() == kind => Ok((*array).clone()),
        Some(array) => cast(array, &kind),
        None => Ok(new_null_array(&kind, piece.rows.num_rows())),
    };
    let arrays: Vec<ArrayRef> = found.iter().zip(pieces).map(of_piece).collect::<Result<_, _>>()?;
    let arrays: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    Ok(Some(interleave(&arrays, rows)?))
}

/// A dictionary array and its texts.
struct DictionaryTexts<'a> {
    keys: &'a DictionaryArray<Int32Type>,
    texts: &'a StringArray,
}

impl DictionaryTexts<'_> {
    fn of(array: &ArrayRef) -> Option<DictionaryTexts<'_>> {
        let keys = array.as_dictionary_opt::<Int32Type>()?;
        let texts = keys.values().as_string_opt::<i32>()?;
        Some(DictionaryTexts { keys, texts })
    }
}

/// The texts of the rows as one dictionary. All windows of a series refer to the same row, so each text is looked up
/// once, and unused dictionary entries are not touched.
fn of_series(
    pieces: &[Option<DictionaryTexts<'_>>],
    rows: &[(usize, usize)],
) -> Result<DictionaryArray<Int32Type>, MergeError> {
    let (mut known, mut texts): (HashMap<&str, i32>, Vec<&str>) = (HashMap::new(), Vec::new());
    let mut keys = Vec::with_capacity(rows.len());
    for same in rows.chunk_by(|row, next| row == next) {
        let place = same
            .first()
            .and_then(|(piece, row)| Some((pieces.get(*piece)?.as_ref()?, *row)));
        let text = place.and_then(|(piece, row)| Some(piece.texts.value(piece.keys.key(row)?)));
        let key = text.map(|text| {
            *known.entry(text).or_insert_with(|| {
                texts.push(text);
                texts.len() as i32 - 1
            })
        });
        keys.resize(keys.len() + same.len(), key);
    }
    let texts = Arc::new(StringArray::from_iter_values(texts));
    Ok(DictionaryArray::try_new(Int32Array::from(keys), texts)?)
}
