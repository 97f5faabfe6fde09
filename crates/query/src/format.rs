//! Encodes rows as JSON, newline-delimited JSON, CSV, or an Arrow stream.
//!
//! JSON cannot represent all values of a table: integers beyond 2^53 and non-finite floats become strings, bytes
//! base64. CSV has no nesting: maps and lists become JSON text, bytes base64.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch, StringArray, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, Int64Type, Schema, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use arrow::json::writer::{
    Encoder, EncoderFactory, EncoderOptions, JsonArray, LineDelimited, NullableEncoder, Writer as JsonWriter,
    WriterBuilder, make_encoder,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::QueryError;

/// The largest integer up to which every double is exact.
const EXACT_MAX: u64 = 1 << 53;

/// An output format for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowFormat {
    /// One array of objects.
    Json,
    /// One object per line.
    NdJson,
    Csv,
    /// The Arrow IPC stream format.
    Arrow,
}

impl RowFormat {
    pub const NAMES: &'static str = "json, ndjson, csv, arrow";

    pub fn parse(name: &str) -> Option<RowFormat> {
        Some(match name {
            "json" => RowFormat::Json,
            "ndjson" => RowFormat::NdJson,
            "csv" => RowFormat::Csv,
            "arrow" => RowFormat::Arrow,
            _ => return None,
        })
    }

    /// The media type of the format, which clients may request.
    pub fn media_type(self) -> &'static str {
        match self {
            RowFormat::Json => "application/json",
            RowFormat::NdJson => "application/x-ndjson",
            RowFormat::Csv => "text/csv",
            RowFormat::Arrow => "application/vnd.apache.arrow.stream",
        }
    }
}

/// Writes the batches of one answer and returns the bytes of each step.
pub struct RowWriter {
    schema: SchemaRef,
    kind: FormatWriter,
}

enum FormatWriter {
    Json(JsonWriter<Vec<u8>, JsonArray>),
    NdJson(JsonWriter<Vec<u8>, LineDelimited>),
    Csv(Box<arrow::csv::Writer<SharedBuffer>>, SharedBuffer),
    Arrow(Box<StreamWriter<Vec<u8>>>),
}

/// How JSON represents bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BytesAs {
    #[default]
    Base64,
    /// `[12]byte`, for people who look at rows.
    Length,
}

impl RowWriter {
    pub fn new(format: RowFormat, schema: &SchemaRef) -> Result<RowWriter, QueryError> {
        RowWriter::with_bytes(format, schema, BytesAs::default())
    }

    pub fn with_bytes(format: RowFormat, schema: &SchemaRef, bytes: BytesAs) -> Result<RowWriter, QueryError> {
        let json = || {
            WriterBuilder::new()
                .with_explicit_nulls(true)
                .with_encoder_factory(Arc::new(LosslessEncoderFactory(bytes)))
        };
        let mut schema = schema.clone();
        let kind = match format {
            RowFormat::Json => FormatWriter::Json(json().build(Vec::new())),
            RowFormat::NdJson => FormatWriter::NdJson(json().build(Vec::new())),
            RowFormat::Csv => {
                schema = Arc::new(flat_schema(&schema));
                let shared = SharedBuffer::default();
                let builder = arrow::csv::WriterBuilder::new().with_header(true);
                FormatWriter::Csv(Box::new(builder.build(shared.clone())), shared)
            }
            RowFormat::Arrow => {
                FormatWriter::Arrow(Box::new(StreamWriter::try_new(Vec::new(), &schema).map_err(broken)?))
            }
        };
        Ok(RowWriter { schema, kind })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<Vec<u8>, QueryError> {
        match &mut self.kind {
            FormatWriter::Json(writer) => writer.write(batch).map(|()| std::mem::take(writer.get_mut())),
            FormatWriter::NdJson(writer) => writer.write(batch).map(|()| std::mem::take(writer.get_mut())),
            FormatWriter::Csv(writer, bytes) => flatten(batch, &self.schema)
                .and_then(|flat| writer.write(&flat))
                .map(|()| bytes.take()),
            FormatWriter::Arrow(writer) => writer.write(batch).map(|()| std::mem::take(writer.get_mut())),
        }
        .map_err(broken)
    }

    /// Ends the answer.
    pub fn finish(mut self) -> Result<Vec<u8>, QueryError> {
        match &mut self.kind {
            FormatWriter::Json(writer) => writer.finish().map(|()| {
                let mut bytes = std::mem::take(writer.get_mut());
                bytes.push(b'\n');
                bytes
            }),
            FormatWriter::NdJson(writer) => writer.finish().map(|()| std::mem::take(writer.get_mut())),
            // An answer without rows still names its columns.
            FormatWriter::Csv(writer, bytes) => writer
                .write(&RecordBatch::new_empty(self.schema.clone()))
                .map(|()| bytes.take()),
            FormatWriter::Arrow(writer) => writer.finish().map(|()| std::mem::take(writer.get_mut())),
        }
        .map_err(broken)
    }
}

fn broken(error: ArrowError) -> QueryError {
    QueryError::execute(format!("the answer cannot be written in this format: {error}"))
}

/// A buffer shared with the CSV writer, which does not expose its output.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<parking_lot::Mutex<Vec<u8>>>);

impl SharedBuffer {
    fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock())
    }
}

impl std::io::Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Encodes types for which the default JSON would lose information.
#[derive(Debug)]
struct LosslessEncoderFactory(BytesAs);

impl EncoderFactory for LosslessEncoderFactory {
    fn make_default_encoder<'a>(
        &self,
        _field: &'a FieldRef,
        array: &'a dyn Array,
        _options: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let base64: fn(&[u8], &mut Vec<u8>) = match self.0 {
            BytesAs::Base64 => base64,
            BytesAs::Length => length,
        };
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Int64 => Box::new(FnEncoder(|i, out: &mut Vec<u8>| {
                let value = array.as_primitive::<Int64Type>().value(i);
                integer(&value.to_string(), value.unsigned_abs(), out);
            })),
            DataType::UInt64 => Box::new(FnEncoder(|i, out: &mut Vec<u8>| {
                let value = array.as_primitive::<UInt64Type>().value(i);
                integer(&value.to_string(), value, out);
            })),
            DataType::Float64 => Box::new(FnEncoder(|i, out: &mut Vec<u8>| {
                float(array.as_primitive::<Float64Type>().value(i), out)
            })),
            DataType::Float32 => Box::new(FnEncoder(|i, out: &mut Vec<u8>| {
                single(array.as_primitive::<Float32Type>().value(i), out)
            })),
            DataType::Binary => Box::new(FnEncoder(move |i, out: &mut Vec<u8>| {
                base64(array.as_binary::<i32>().value(i), out)
            })),
            DataType::LargeBinary => Box::new(FnEncoder(move |i, out: &mut Vec<u8>| {
                base64(array.as_binary::<i64>().value(i), out)
            })),
            DataType::BinaryView => Box::new(FnEncoder(move |i, out: &mut Vec<u8>| {
                base64(array.as_binary_view().value(i), out)
            })),
            DataType::FixedSizeBinary(_) => Box::new(FnEncoder(move |i, out: &mut Vec<u8>| {
                base64(array.as_fixed_size_binary().value(i), out)
            })),
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}

/// An encoder from a function that writes one row.
struct FnEncoder<F>(F);

impl<F: FnMut(usize, &mut Vec<u8>)> Encoder for FnEncoder<F> {
    fn encode(&mut self, index: usize, out: &mut Vec<u8>) {
        (self.0)(index, out);
    }
}

fn length(bytes: &[u8], out: &mut Vec<u8>) {
    quoted(&format!("[{}]byte", bytes.len()), out);
}

fn integer(digits: &str, magnitude: u64, out: &mut Vec<u8>) {
    match magnitude <= EXACT_MAX {
        true => out.extend_from_slice(digits.as_bytes()),
        false => quoted(digits, out),
    }
}

fn float(value: f64, out: &mut Vec<u8>) {
    match non_finite(value) {
        Some(name) => quoted(name, out),
        None => out.extend_from_slice(serde_json::json!(value).to_string().as_bytes()),
    }
}

fn single(value: f32, out: &mut Vec<u8>) {
    match non_finite(value.into()) {
        Some(name) => quoted(name, out),
        None => out.extend_from_slice(serde_json::json!(value).to_string().as_bytes()),
    }
}

fn non_finite(value: f64) -> Option<&'static str> {
    match value {
        value if value.is_nan() => Some("NaN"),
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    }
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    quoted(&STANDARD.encode(bytes), out);
}

/// Writes text that needs no JSON escapes.
fn quoted(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// The schema for CSV; nested columns become text.
fn flat_schema(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| match is_flat(field.data_type()) {
        true => field.clone(),
        false => Arc::new(Field::new(field.name(), DataType::Utf8, true)),
    });
    Schema::new(fields.collect::<Vec<_>>())
}

fn is_flat(data_type: &DataType) -> bool {
    !data_type.is_nested()
        && !matches!(
            data_type,
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView
        )
}

fn flatten(batch: &RecordBatch, flat: &SchemaRef) -> Result<RecordBatch, ArrowError> {
    let fields = batch.schema();
    let columns = fields
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| match field.data_type() {
            flat if is_flat(flat) => Ok(column.clone()),
            DataType::Binary | DataType::LargeBinary | DataType::BinaryView => base64_column(column),
            _ => json_column(field, column),
        });
    RecordBatch::try_new(flat.clone(), columns.collect::<Result<_, _>>()?)
}

fn base64_column(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let bytes = cast(column, &DataType::Binary)?;
    let bytes: &BinaryArray = bytes.as_binary();
    Ok(Arc::new(StringArray::from_iter(
        bytes.iter().map(|bytes| Some(STANDARD.encode(bytes?))),
    )))
}

/// Each value as JSON text.
pub(crate) fn json_column(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let options = EncoderOptions::default().with_encoder_factory(Arc::new(LosslessEncoderFactory(BytesAs::Base64)));
    let mut encoder = make_encoder(field, column, &options)?;
    let mut texts = StringBuilder::new();
    let mut buffer = Vec::new();
    for row in 0..column.len() {
        if encoder.is_null(row) {
            texts.append_null();
            continue;
        }
        buffer.clear();
        encoder.encode(row, &mut buffer);
        texts.append_value(String::from_utf8_lossy(&buffer));
    }
    Ok(Arc::new(texts.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, Float64Array, Int64Array, MapBuilder};

    fn batch() -> RecordBatch {
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        map.keys().append_value("k\"");
        map.values().append_value("v");
        map.append(true).unwrap();
        map.append(false).unwrap();
        RecordBatch::try_from_iter_with_nullable([
            (
                "n",
                Arc::new(Int64Array::from(vec![Some(i64::MIN), Some(1 << 53)])) as ArrayRef,
                true,
            ),
            ("f", Arc::new(Float64Array::from(vec![f64::NAN, 0.1])), true),
            (
                "b",
                Arc::new(BinaryArray::from_iter([Some(&[0xff, 0][..]), None])),
                true,
            ),
            ("m", Arc::new(map.finish()), true),
            ("t", Arc::new(StringArray::from(vec!["a,\"b\"", ""])), true),
            ("x", Arc::new(BooleanArray::from(vec![Some(true), None])), true),
        ])
        .unwrap()
    }

    fn written(format: RowFormat, batches: &[RecordBatch]) -> Vec<u8> {
        let mut writer = RowWriter::new(format, &batch().schema()).unwrap();
        let mut bytes = Vec::new();
        for batch in batches {
            bytes.extend(writer.write(batch).unwrap());
        }
        bytes.extend(writer.finish().unwrap());
        bytes
    }

    #[test]
    fn json_loses_nothing_that_tables_hold() {
        let json: serde_json::Value = serde_json::from_slice(&written(RowFormat::Json, &[batch(), batch()])).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 4);
        assert_eq!(
            json[0],
            serde_json::json!({"n": "-9223372036854775808", "f": "NaN", "b": "/wA=", "m": {"k\"": "v"}, "t": "a,\"b\"", "x": true})
        );
        assert_eq!(
            json[1],
            serde_json::json!({"n": 9007199254740992u64, "f": 0.1, "b": null, "m": null, "t": "", "x": null})
        );
        assert_eq!(written(RowFormat::Json, &[]), b"[]\n");
    }

    #[test]
    fn lines_are_objects() {
        let text = String::from_utf8(written(RowFormat::NdJson, &[batch()])).unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            assert!(serde_json::from_str::<serde_json::Value>(line).unwrap().is_object());
        }
        assert!(written(RowFormat::NdJson, &[]).is_empty());
    }

    #[test]
    fn csv_has_a_header_once_and_text_for_what_nests() {
        let text = String::from_utf8(written(RowFormat::Csv, &[batch(), batch()])).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[0], "n,f,b,m,t,x");
        assert_eq!(
            lines[1],
            "-9223372036854775808,NaN,/wA=,\"{\"\"k\\\"\"\"\":\"\"v\"\"}\",\"a,\"\"b\"\"\",true"
        );
        assert_eq!(
            String::from_utf8(written(RowFormat::Csv, &[])).unwrap(),
            "n,f,b,m,t,x\n"
        );
    }

    #[test]
    fn an_arrow_stream_reads_back() {
        let bytes = written(RowFormat::Arrow, &[batch()]);
        let read: Vec<_> = arrow::ipc::reader::StreamReader::try_new(&bytes[..], None)
            .unwrap()
            .collect();
        assert_eq!(read.len(), 1);
        assert_eq!(read[0].as_ref().unwrap().num_rows(), 2);
    }
}
