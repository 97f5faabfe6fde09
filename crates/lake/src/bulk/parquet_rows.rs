//! Rows of foreign Parquet files with any column types, read in batches.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
    UInt64Array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Schema, TimeUnit};
use arrow::error::ArrowError;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};

use super::error::BulkError;
use super::file_import::FileImport;
use super::memtable::BulkMemtables;
use crate::named_rows::{BadRow, CellValue, NamedRowBuilder};
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::double_text::write_double;
use thalweg_columns::tables::TableSpec;

/// Rows in memory at a time. Few, since each value may be long.
const BATCH_ROWS: usize = 256;
const NANOS_PER_DAY: i64 = 86_400_000_000_000;

/// Reads all rows of a file.
pub(super) fn read(
    file: File,
    spec: &'static TableSpec,
    maker: &mut NamedRowBuilder,
    reading: &mut FileImport<'_>,
    rows: &mut BulkMemtables<'_>,
) -> Result<(), BulkError> {
    let (reader, total) = guarded(|| open(file))?;
    let mut reader = reader;
    let mut done = 0;
    let size = reading.watched.size.load(Ordering::Relaxed);
    while let Some(batch) = guarded(|| reader.next().transpose().map_err(|error| wrong(&error)))? {
        let names: Vec<String> = batch
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect();
        let columns = names.iter().zip(batch.columns()).map(|(name, column)| {
            ParquetColumn::of(column).map_err(|error| {
                let kind = column.data_type();
                BulkError::Parquet(format!("column {name} of type {kind} cannot be read: {error}"))
            })
        });
        let columns: Vec<ParquetColumn> = columns.collect::<Result<_, _>>()?;
        for row in 0..batch.num_rows() {
            done += 1;
            let mut changed = RowChangeCounts::default();
            let made = make(&names, &columns, row, maker).and_then(|()| maker.end(rows.chunk(spec), &mut changed));
            reading.counts.changed(&changed);
            if let Err(bad) = made {
                reading.bad(done, &bad, &as_text(&batch, row))?;
            }
        }
        let read = u128::from(size) * u128::from(done) / u128::from(total.max(1));
        reading.watched.bytes.store(read as u64, Ordering::Relaxed);
        if !reading.goes_on_with(maker, rows) {
            break;
        }
    }
    Ok(())
}

fn open(file: File) -> Result<(ParquetRecordBatchReader, u64), BulkError> {
    // Arrow types of the writer add nothing to the types of the file.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = thalweg_columns::file::footer::load(&file, options).map_err(|error| wrong(&error))?;
    let opened = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
    let total = u64::try_from(opened.metadata().file_metadata().num_rows()).unwrap_or_default();
    let reader = opened
        .with_batch_size(BATCH_ROWS)
        .build()
        .map_err(|error| wrong(&error))?;
    Ok((reader, total))
}

/// The library panics in some places on inconsistent files.
fn guarded<T>(read: impl FnOnce() -> Result<T, BulkError>) -> Result<T, BulkError> {
    let contradicts = || BulkError::Parquet("the file is inconsistent and cannot be read".to_owned());
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(contradicts()))
}

fn wrong(error: &dyn std::error::Error) -> BulkError {
    BulkError::Parquet(error.to_string())
}

fn make(names: &[String], columns: &[ParquetColumn], row: usize, maker: &mut NamedRowBuilder) -> Result<(), BadRow> {
    maker.begin();
    let mut text = String::new();
    for (name, column) in names.iter().zip(columns) {
        let value = column.cell(row, &mut text);
        maker.put(name, value)?;
    }
    Ok(())
}

/// A bad row as JSON.
fn as_text(batch: &RecordBatch, row: usize) -> Vec<u8> {
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().build::<_, LineDelimited>(&mut text);
    // A row that cannot be shown is found by its number.
    let _ = writer.write(&batch.slice(row, 1)).and_then(|()| writer.finish());
    drop(writer);
    text.trim_ascii_end().to_vec()
}

/// A column of a batch, by type of value.
enum ParquetColumn {
    Booleans(BooleanArray),
    Longs(Int64Array),
    Unsigned(UInt64Array),
    Doubles(Float64Array),
    /// Numbers as digits: decimals, and floats of fewer bits.
    Digits(Vec<Option<String>>),
    Texts(StringArray),
    Bytes(BinaryArray),
    /// Times, and their unit in nanoseconds.
    Moments(Int64Array, i64),
    Nested(Vec<Option<String>>),
    Nothing,
}

impl ParquetColumn {
    fn of(column: &ArrayRef) -> Result<ParquetColumn, ArrowError> {
        use DataType as Type;
        let as_type = |kind: &Type| {
            let options = CastOptions {
                safe: false,
                ..CastOptions::default()
            };
            cast_with_options(column, kind, &options)
        };
        let longs = || -> Result<Int64Array, ArrowError> { Ok(as_type(&Type::Int64)?.as_primitive().clone()) };
        let texts = || -> Result<StringArray, ArrowError> { Ok(as_type(&Type::Utf8)?.as_string().clone()) };
        Ok(match column.data_type() {
            Type::Null => ParquetColumn::Nothing,
            Type::Boolean => ParquetColumn::Booleans(column.as_boolean().clone()),
            Type::Int8 | Type::Int16 | Type::Int32 | Type::Int64 => ParquetColumn::Longs(longs()?),
            Type::UInt8 | Type::UInt16 | Type::UInt32 => ParquetColumn::Longs(longs()?),
            Type::UInt64 => ParquetColumn::Unsigned(column.as_primitive().clone()),
            Type::Float64 => ParquetColumn::Doubles(column.as_primitive().clone()),
            Type::Float32 => {
                let values = column.as_primitive::<Float32Type>().iter();
                ParquetColumn::Digits(values.map(|value| value.map(|value| value.to_string())).collect())
            }
            Type::Float16 => {
                let values = column.as_primitive::<Float16Type>().iter();
                ParquetColumn::Digits(values.map(|value| value.map(|value| value.to_string())).collect())
            }
            Type::Decimal32(..) | Type::Decimal64(..) | Type::Decimal128(..) | Type::Decimal256(..) => {
                ParquetColumn::Digits(texts()?.iter().map(|digits| digits.map(str::to_owned)).collect())
            }
            Type::Binary | Type::LargeBinary | Type::FixedSizeBinary(_) => {
                ParquetColumn::Bytes(as_type(&Type::Binary)?.as_binary().clone())
            }
            Type::Timestamp(unit, _) => ParquetColumn::Moments(longs()?, nanos_of(unit)),
            Type::Date32 => {
                ParquetColumn::Moments(as_type(&Type::Int32).and_then(|days| cast_long(&days))?, NANOS_PER_DAY)
            }
            Type::Date64 => ParquetColumn::Moments(longs()?, nanos_of(&TimeUnit::Millisecond)),
            Type::List(_) | Type::LargeList(_) | Type::FixedSizeList(..) | Type::Struct(_) | Type::Map(..) => {
                ParquetColumn::Nested(nested(column)?)
            }
            _ => ParquetColumn::Texts(texts()?),
        })
    }

    /// The value of a row; `text` is a buffer for it.
    fn cell<'a>(&'a self, row: usize, text: &'a mut String) -> CellValue<'a> {
        text.clear();
        let is_null = match self {
            ParquetColumn::Booleans(values) => values.is_null(row),
            ParquetColumn::Longs(values) | ParquetColumn::Moments(values, _) => values.is_null(row),
            ParquetColumn::Unsigned(values) => values.is_null(row),
            ParquetColumn::Doubles(values) => values.is_null(row),
            ParquetColumn::Texts(values) => values.is_null(row),
            ParquetColumn::Bytes(values) => values.is_null(row),
            ParquetColumn::Digits(values) | ParquetColumn::Nested(values) => {
                values.get(row).is_none_or(Option::is_none)
            }
            ParquetColumn::Nothing => true,
        };
        if is_null {
            return CellValue::Null;
        }
        match self {
            ParquetColumn::Booleans(values) => CellValue::Bool(values.value(row)),
            ParquetColumn::Longs(values) => {
                text.push_str(itoa::Buffer::new().format(values.value(row)));
                CellValue::Number(text)
            }
            ParquetColumn::Unsigned(values) => {
                text.push_str(itoa::Buffer::new().format(values.value(row)));
                CellValue::Number(text)
            }
            ParquetColumn::Doubles(values) => {
                write_double(values.value(row), text);
                CellValue::Number(text)
            }
            ParquetColumn::Texts(values) => CellValue::Text(values.value(row)),
            ParquetColumn::Bytes(values) => CellValue::Bytes(values.value(row)),
            ParquetColumn::Moments(values, unit) => CellValue::Time(i128::from(values.value(row)) * i128::from(*unit)),
            ParquetColumn::Digits(values) => {
                CellValue::Number(values.get(row).and_then(Option::as_deref).unwrap_or_default())
            }
            ParquetColumn::Nested(values) => {
                CellValue::Json(values.get(row).and_then(Option::as_deref).unwrap_or_default())
            }
            ParquetColumn::Nothing => CellValue::Null,
        }
    }
}

fn cast_long(column: &ArrayRef) -> Result<Int64Array, ArrowError> {
    let longs = cast_with_options(column, &DataType::Int64, &CastOptions::default())?;
    Ok(longs.as_primitive().clone())
}

fn nanos_of(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Nested values as JSON.
fn nested(column: &ArrayRef) -> Result<Vec<Option<String>>, ArrowError> {
    const NAME: &str = "v";
    let field = Field::new(NAME, column.data_type().clone(), true);
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column.clone()])?;
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new()
        .with_explicit_nulls(true)
        .build::<_, LineDelimited>(&mut text);
    writer.write(&batch)?;
    writer.finish()?;
    drop(writer);
    let text = String::from_utf8_lossy(&text);
    let value = |(row, line): (usize, &str)| {
        let value = line.strip_prefix("{\"v\":").and_then(|line| line.strip_suffix('}'));
        value.filter(|_| column.is_valid(row)).map(str::to_owned)
    };
    Ok(text.lines().enumerate().map(value).collect())
}
