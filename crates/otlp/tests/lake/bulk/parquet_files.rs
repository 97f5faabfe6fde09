//! Ingests Parquet files of other programs and of Thalweg.

use super::*;

/// A file of a program that knows nothing of Thalweg.
fn parquet() -> Vec<u8> {
    use arrow::array::{
        BinaryArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array, ListArray, StringArray,
        TimestampMicrosecondArray, UInt64Array,
    };
    let list =
        ListArray::from_iter_primitive::<arrow::datatypes::Int32Type, _, _>(vec![Some(vec![Some(1), None]), None]);
    let trace = [[1_u8; 16], [2; 16]];
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "@timestamp",
            Arc::new(TimestampMicrosecondArray::from(vec![
                1_780_000_000_000_001,
                1_780_000_000_000_002,
            ])),
        ),
        ("message", Arc::new(StringArray::from(vec![Some("a"), None]))),
        ("level", Arc::new(StringArray::from(vec!["INFO", "odd"]))),
        (
            "amount",
            Arc::new(
                Decimal128Array::from(vec![12345, -5])
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        ("big", Arc::new(UInt64Array::from(vec![u64::MAX, 1]))),
        ("ratio", Arc::new(Float32Array::from(vec![0.1, f32::NAN]))),
        ("day", Arc::new(Date32Array::from(vec![20_601, 0]))),
        ("raw", Arc::new(BinaryArray::from(vec![&b"\x01\x02"[..], b""]))),
        (
            "trace_id",
            Arc::new(FixedSizeBinaryArray::try_from_iter(trace.iter()).unwrap()),
        ),
        ("parts", Arc::new(list)),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[test]
fn parquet_of_others_keeps_its_values_whatever_their_types() {
    let world = World::new();
    let report = world.ingest("x.parquet", &parquet()).unwrap();
    assert_eq!((report.rows(), report.rejected()), (2, 0));
    let found: Vec<Row> = world
        .rows("logs")
        .into_iter()
        .map(|mut row| {
            row.remove("fingerprint");
            row
        })
        .collect();
    let ones = "01".repeat(16);
    let twos = "02".repeat(16);
    assert_eq!(
        found.into_iter().collect::<std::collections::BTreeSet<_>>(),
        [
            row(&[
                ("attr_amount", "123.45"),
                ("attr_big", "18446744073709551615"),
                ("attr_day", "2026-05-28T00:00:00Z"),
                ("attr_parts", "[1,null]"),
                ("attr_ratio", "0.1"),
                ("attr_raw", "AQI="),
                ("body", "a"),
                ("severity_number", "9"),
                ("severity_text", "INFO"),
                ("time_unix_nano", "1780000000000001000"),
                ("trace_id", &ones),
            ]),
            row(&[
                ("attr_amount", "-0.05"),
                ("attr_big", "1"),
                ("attr_day", "1970-01-01T00:00:00Z"),
                ("attr_ratio", "NaN"),
                ("attr_raw", ""),
                ("severity_text", "odd"),
                ("time_unix_nano", "1780000000000002000"),
                ("trace_id", &twos),
            ]),
        ]
        .into()
    );
    assert!(world.ingest("x.parquet", &parquet()).unwrap().is_known());
    let mut cut = parquet();
    cut.truncate(cut.len() - 7);
    let error = world.ingest("y.parquet", &cut).unwrap_err().to_string();
    assert!(error.starts_with("ingest.parquet: "), "{error}");
    let error = world.stream(&parquet()).unwrap_err().to_string();
    assert!(
        error.starts_with("ingest.kind_unknown: Parquet is read from its end"),
        "{error}"
    );
}

#[test]
fn a_file_of_a_table_comes_back_as_the_rows_that_it_has() {
    let world = World::new();
    let line =
        r#"{"timestamp":1780000000,"message":"took 5 ms","level":"info","http.route":"/a","resource.host.name":"h"}"#;
    world.ingest("x.ndjson", line.as_bytes()).unwrap();
    let file = world.snapshot("logs").unwrap().files.keys().next().unwrap().clone();
    let bytes = std::fs::read(world.lake().join("logs").join(&*file)).unwrap();
    assert_eq!(world.ingest("copy.parquet", &bytes).unwrap().rows(), 1);
    let rows = world.rows("logs");
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0], rows[1]);
}
