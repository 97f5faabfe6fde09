//! Messages to Parquet and back: what a reader finds must be what a plain reading of the rules says.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use proptest::prelude::*;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Stamps, Text, Ticks, Value};

use super::sample::Cells;
use super::*;
use crate::attributes::{Bindings, Promotion, column_name};
use crate::commit::EncodedFile;
use crate::delta::schema::TableSchema;
use crate::delta::stats::{Bound, FileStats};
use crate::rows::slots::Source;

const ARRIVAL: i64 = 1_935_817_689_123_456_700;

/// A row as a map from column to text, nulls left out.
type Row = BTreeMap<String, String>;

struct Written {
    files: Vec<EncodedFile>,
    schema: TableSchema,
}

fn write(messages: &[Message], promotion: Promotion) -> Written {
    let rows = generation(messages);
    let (schema, bindings) = bound(&rows, promotion);
    let files = Encoder::new(&rows, &schema, &bindings, FileOptions::default())
        .encode(5)
        .unwrap();
    Written { files, schema }
}

fn generation(messages: &[Message]) -> Generation {
    let mut table = SeriesTable::new(RowLimits::default());
    let mut rows = Generation::new(1);
    let source: Arc<str> = "plant".into();
    for message in messages {
        rows.push(
            &mut table,
            &source,
            message,
            ARRIVAL,
            &RowRules::default(),
            &mut Changed::default(),
        )
        .unwrap();
    }
    rows
}

/// The columns of the table once the names of `rows` are admitted.
fn bound(rows: &Generation, promotion: Promotion) -> (TableSchema, Bindings) {
    let mut schema = schema::schema();
    let mut bindings = Bindings::of(&schema, promotion);
    let names = rows
        .series
        .iter()
        .flat_map(|series| series.attributes.iter().map(|(name, _)| name.as_str()));
    schema
        .columns
        .extend(bindings.admit(names.map(|name| (Source::Attr, name))));
    (schema, bindings)
}

fn read(file: &EncodedFile) -> Vec<RecordBatch> {
    ParquetRecordBatchReaderBuilder::try_new(file.bytes.clone())
        .unwrap()
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let schema = batch.schema();
    let cell = |column: &ArrayRef, row: usize| -> Option<String> {
        if column.is_null(row) {
            return None;
        }
        use arrow::datatypes::DataType::*;
        Some(match column.data_type() {
            Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
            Float64 => column.as_primitive::<Float64Type>().value(row).to_bits().to_string(),
            Timestamp(..) => column.as_primitive::<TimestampMicrosecondType>().value(row).to_string(),
            Utf8 => column.as_string::<i32>().value(row).to_owned(),
            Binary => format!("{:?}", column.as_binary::<i32>().value(row)),
            Map(..) => {
                let entries = column.as_map().value(row);
                let (keys, values) = (
                    entries.column(0).as_string::<i32>(),
                    entries.column(1).as_string::<i32>(),
                );
                format!(
                    "{:?}",
                    keys.iter().flatten().zip(values.iter().flatten()).collect::<Vec<_>>()
                )
            }
            other => panic!("a column of type {other} in a file"),
        })
    };
    (0..batch.num_rows())
        .map(|row| {
            let cells = schema.fields().iter().zip(batch.columns());
            cells
                .filter_map(|(field, column)| Some((field.name().clone(), cell(column, row)?)))
                .collect()
        })
        .collect()
}

/// The row of a message by the rules, without any of the machinery: for metadata that is not OPC UA's.
fn expected(message: &Message, promoted: &dyn Fn(&str) -> bool) -> Row {
    let cells = Cells::of(&message.payload);
    let stamps = message.meta.stamps();
    let explicit = message
        .meta
        .get("timestamp_ms")
        .and_then(|text| text.parse::<i64>().ok());
    let time = TimeWindow::default().row_time(explicit, stamps, cells.time_ms, ARRIVAL);
    let tag = message.meta.get("umh_topic").map(Cow::into_owned);
    let mut row = Row::new();
    let mut put = |column: &str, value: Option<String>| {
        if let Some(value) = value {
            row.insert(column.to_owned(), value);
        }
    };
    put("tag_id", Some(tag_id("plant", tag.as_deref()).to_string()));
    put("time_unix_nano", Some(time.nanos.to_string()));
    put("time", Some(time.nanos.div_euclid(1000).to_string()));
    put("arrival_unix_nano", Some(ARRIVAL.to_string()));
    let names = [None, Some("observed"), Some("arrival")];
    put("time_source", names[time.source as usize].map(str::to_owned));
    put("time_original", time.original);
    put("source", Some("plant".to_owned()));
    put("tag", tag);
    put("value", cells.number.map(|number| number.to_bits().to_string()));
    put("value_int", cells.integer.map(|integer| integer.to_string()));
    put("value_text", cells.text.map(Cow::into_owned));
    put("value_bytes", cells.bytes.map(|bytes| format!("{bytes:?}")));
    put("value_type", Some(cells.kind.to_owned()));
    put("quality", stamps.map(|stamps| stamps.status.to_string()));
    let mut overflow = Vec::new();
    let fixed = [
        "umh_topic",
        "unit",
        "opcua_source_timestamp",
        "opcua_server_timestamp",
        "opcua_attr_statuscode",
    ];
    for (name, value) in message.meta.iter() {
        match name {
            "unit" => put("unit", Some(value.into_owned())),
            "timestamp_ms" if explicit.is_some() => {}
            name if fixed.contains(&name) => {}
            name if promoted(name) => put(&column_name("attr", name), Some(value.into_owned())),
            name => overflow.push((format!("attr.{name}"), value.into_owned())),
        }
    }
    if let Some(stamps) = stamps {
        for (column, key, at) in [
            ("source_time_unix_nano", "opcua_source_timestamp", stamps.source_time),
            ("server_time_unix_nano", "opcua_server_timestamp", stamps.server_time),
        ] {
            match at.unix_nanos() {
                _ if at.is_missing() => {}
                Some(nanos) => put(column, Some(nanos.to_string())),
                None => overflow.push((format!("attr.{key}"), at.to_string())),
            }
        }
    }
    put("overflow", (!overflow.is_empty()).then(|| format!("{overflow:?}")));
    row
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::I64),
        any::<u64>().prop_map(Value::U64),
        any::<i16>().prop_map(Value::I16),
        any::<f64>().prop_map(Value::F64),
        Just(Value::F64(f64::NAN)),
        Just(Value::F64(f64::NEG_INFINITY)),
        any::<f32>().prop_map(Value::F32),
        "[0-9]{20,40}".prop_map(|digits| Value::Decimal(digits.into())),
        ".{0,20}".prop_map(Value::text),
        prop::collection::vec(any::<u8>(), 0..10).prop_map(|bytes| Value::Bytes(bytes.into())),
        any::<u32>().prop_map(Value::Status),
        any::<i32>().prop_map(|ticks| Value::Time(Ticks(ticks.into()))),
        prop::collection::vec(any::<i64>().prop_map(Value::I64), 0..4).prop_map(Value::from),
    ]
}

fn ticks() -> impl Strategy<Value = Ticks> {
    let near = (-864_000_000_000i64 * 3..864_000_000_000).prop_map(|offset| Ticks(ARRIVAL / 100 + offset));
    prop_oneof![8 => near, 1 => Just(Ticks::MISSING), 1 => any::<i64>().prop_map(Ticks)]
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        4 => value().prop_map(Payload::Value),
        2 => (value(), any::<i64>()).prop_map(|(value, time_ms)| Payload::Sample { value, time_ms }),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|bytes| Payload::Raw(bytes.into())),
        1 => "(\\{\"value\":[0-9]{1,3},\"timestamp_ms\":19358176[0-9]{5}\\})|([0-9.e]{1,6})|(\\[1, 2\\])"
            .prop_map(|text| Payload::Raw(text.into())),
    ]
}

/// Source time, server time, status.
type OpcUa = (Ticks, Ticks, u32);

/// Maps that messages share, and messages that change them or not.
fn messages() -> impl Strategy<Value = Vec<Message>> {
    const KEYS: [&str; 7] = ["umh_topic", "unit", "a", "b.c", "timestamp_ms", "opcua_tag_type", "z"];
    let entries = prop::collection::vec((0..KEYS.len(), "[a-z0-9é]{0,3}"), 0..6);
    let maps = prop::collection::vec(entries, 1..5);
    let change = prop::option::weighted(0.2, (0..KEYS.len(), "[0-9x]{0,2}"));
    let message = (
        any::<prop::sample::Index>(),
        payload(),
        prop::option::of((ticks(), ticks(), any::<u32>())),
        change,
    );
    (maps, prop::collection::vec(message, 1..60)).prop_map(|(maps, messages)| {
        let maps: Vec<_> = maps
            .into_iter()
            .map(|entries| {
                let entries = entries
                    .into_iter()
                    .map(|(key, value)| (Text::from(KEYS[key]), Text::from(value)));
                Arc::new(MetaMap::new(entries, None))
            })
            .collect();
        let build =
            |(map, payload, stamps, change): (prop::sample::Index, _, Option<OpcUa>, Option<(usize, String)>)| {
                let shared = maps[map.index(maps.len())].clone();
                let mut meta = match stamps {
                    Some((source_time, server_time, status)) => Metadata::stamped(
                        shared,
                        Stamps {
                            source_time,
                            server_time,
                            status,
                        },
                    ),
                    None => Metadata::shared(shared),
                };
                if let Some((key, value)) = change {
                    meta.set(KEYS[key], value);
                }
                Message::new(payload, meta)
            };
        messages.into_iter().map(build).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random messages, columns promoted or not: the files together hold exactly the rows of the rules, in order.
    #[test]
    fn what_is_read_back_is_what_the_rules_say(messages in messages(), keep_out in any::<bool>()) {
        let never = if keep_out { vec!["b*".to_owned()] } else { Vec::new() };
        let promotion = Promotion::new(256, Vec::new(), &never).unwrap();
        let promoted = |name: &str| !(keep_out && name.starts_with('b'));
        // Without a tag of OPC UA or MQTT the only key of a tag is the topic.
        let written = write(&messages, promotion);
        let mut rows: Vec<Row> = messages.iter().map(|message| expected(message, &promoted)).collect();
        let number = |row: &Row, column: &str| row[column].parse::<i64>().unwrap();
        let day = |row: &Row| number(row, "time_unix_nano").div_euclid(86_400_000_000_000);
        rows.sort_by_key(|row| (day(row), number(row, "tag_id"), number(row, "time_unix_nano")));
        let mut found = Vec::new();
        for file in &written.files {
            let of_file: Vec<Row> = read(file).iter().flat_map(rows_of).collect();
            prop_assert_eq!(of_file.len() as u64, file.rows);
            let date = Ticks(day(&of_file[0]) * 864_000_000_000).to_string();
            prop_assert_eq!(file.add.partition_values["date"].as_deref(), date.get(..10));
            prop_assert!(of_file.iter().all(|row| day(row) == day(&of_file[0])));
            check_stats(file, &written.schema, &of_file);
            found.extend(of_file);
        }
        prop_assert_eq!(found, rows);
    }
}

/// Every value lies within the bounds that the Delta log states.
fn check_stats(file: &EncodedFile, schema: &TableSchema, rows: &[Row]) {
    let stats = FileStats::parse(file.add.stats.as_ref().unwrap(), schema, &mut Default::default());
    assert_eq!(stats.rows, Some(rows.len() as u64));
    for column in &stats.columns {
        let values: Vec<&String> = rows.iter().filter_map(|row| row.get(&*column.column)).collect();
        if let Some(nulls) = column.nulls {
            assert_eq!(nulls as usize, rows.len() - values.len(), "{}", column.column);
        }
        for value in values {
            let inside = |bound: &Bound, least: bool| match bound {
                Bound::Int(bound) if least => *bound <= value.parse().unwrap(),
                Bound::Int(bound) => *bound >= value.parse().unwrap(),
                Bound::Float(bound) => {
                    let value = f64::from_bits(value.parse().unwrap());
                    if least { *bound <= value } else { *bound >= value }
                }
                Bound::Text(bound) if least => **bound <= **value,
                Bound::Text(bound) => **bound >= **value,
            };
            assert!(
                column.min.as_ref().is_none_or(|min| inside(min, true)),
                "{} {value}",
                column.column
            );
            assert!(
                column.max.as_ref().is_none_or(|max| inside(max, false)),
                "{} {value}",
                column.column
            );
        }
    }
}

fn number_at(tag: &str, seconds: i64, value: f64) -> Message {
    let map = Arc::new(MetaMap::new(
        [("umh_topic".into(), tag.into()), ("site".into(), "x".into())],
        None,
    ));
    let source_time = Ticks(ARRIVAL / 100 + seconds * 10_000_000);
    let stamps = Stamps {
        source_time,
        server_time: source_time,
        status: 0,
    };
    Message::new(Payload::Value(Value::F64(value)), Metadata::stamped(map, stamps))
}

#[test]
fn a_file_says_how_it_is_sorted_and_is_plain_parquet_to_others() {
    let messages: Vec<_> = (0..50_000)
        .map(|i| number_at(&format!("t{}", i % 100), i / 100, i as f64))
        .collect();
    let written = write(&messages, Promotion::default());
    let file = &written.files[0];
    let metadata = ArrowReaderMetadata::load(&file.bytes, Default::default())
        .unwrap()
        .metadata()
        .clone();
    assert!(
        metadata.file_metadata().key_value_metadata().is_none_or(Vec::is_empty),
        "no Arrow schema"
    );
    for group in metadata.row_groups() {
        let sorted: Vec<_> = group
            .sorting_columns()
            .unwrap()
            .iter()
            .map(|s| (s.column_idx, s.descending))
            .collect();
        assert_eq!(sorted, [(0, false), (1, false)]);
        assert_eq!(group.column(0).column_path().string(), "tag_id");
        assert_eq!(group.column(1).column_path().string(), "time_unix_nano");
    }
    let names: Vec<_> = metadata
        .file_metadata()
        .schema_descr()
        .columns()
        .iter()
        .map(|c| c.name().to_owned())
        .collect();
    assert!(names.contains(&"attr_site".to_owned()) && !names.contains(&"date".to_owned()));
    assert_eq!(
        file.add.tags.as_ref().unwrap()["thalweg.arrival_max"].as_deref(),
        Some(&*ARRIVAL.to_string())
    );
    assert!(
        file.bytes.len() < 50_000 * 16,
        "{} bytes for 50,000 rows",
        file.bytes.len()
    );
}

#[test]
fn a_file_with_nan_states_no_bounds_for_the_value() {
    let written = write(
        &[number_at("t", 0, 1.0), number_at("t", 1, f64::NAN)],
        Promotion::default(),
    );
    let stats = FileStats::parse(
        written.files[0].add.stats.as_ref().unwrap(),
        &written.schema,
        &mut Default::default(),
    );
    assert!(
        stats
            .column("value")
            .is_none_or(|column| column.min.is_none() && column.max.is_none())
    );
    assert!(stats.column("tag_id").unwrap().min.is_some());
}

#[test]
fn columns_without_a_value_in_a_file_are_not_in_it() {
    let mut yesterday = number_at("t", -86_400, 1.0);
    yesterday.meta.set("only_yesterday", "1");
    let written = write(&[yesterday, number_at("t", 0, 2.0)], Promotion::default());
    let has = |file: &EncodedFile| read(file)[0].schema().field_with_name("attr_only_yesterday").is_ok();
    assert_eq!(written.files.iter().map(has).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn long_texts_without_a_column_do_not_gather_in_one_piece() {
    const LEN: usize = 40_000;
    let mut message = number_at("t", 0, 1.0);
    message.meta.set("big", "x".repeat(LEN));
    let messages = vec![message; 2_000];
    let promotion = || Promotion::new(256, vec![], &["big".to_owned()]).unwrap();
    let rows = generation(&messages);
    let (schema, bindings) = bound(&rows, promotion());
    let encoder = Encoder::new(&rows, &schema, &bindings, FileOptions::default());
    let order: Vec<u32> = (0..2_000).collect();
    let piece = encoder.piece_len(&order);
    assert!(piece > 1 && piece * LEN <= encode::PIECE_TEXT_BYTES, "{piece} rows");

    let written = write(&messages, promotion());
    let lengths: Vec<usize> = read(&written.files[0])
        .iter()
        .flat_map(rows_of)
        .map(|row| row["overflow"].len())
        .collect();
    assert_eq!(lengths.len(), 2_000);
    assert!(lengths.iter().all(|length| *length > LEN), "no text is cut");
}
