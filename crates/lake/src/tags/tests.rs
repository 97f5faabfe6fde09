//! Writes messages to Parquet and reads them back: the rows must match a simple implementation of the rules.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Float64Type, Int64Type, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
use proptest::prelude::*;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, ValueQuality};

use super::row_decoder::TagRowDecoder;
use super::sample::{RowTime, TagValueCells};
use super::*;
use crate::commit::{CommitPayload as _, EncodedFile};
use crate::ingest::files::ChunkBatch;
use crate::ingest::{DecodeEntry as _, DecodedEntry, Handoff};
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion, column_name};
use thalweg_columns::file::FileRules;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_columns::tables::TAGS;
use thalweg_delta::schema::TableSchema;
use thalweg_delta::stats::{ColumnBound, FileStats};

const ARRIVAL: i64 = 1_935_817_689_123_456_700;

/// A row as a map from column to text, without nulls.
type Row = BTreeMap<String, String>;

struct Written {
    files: Vec<EncodedFile>,
    schema: TableSchema,
}

/// Encodes messages through log entries, and checks that handoffs give identical files.
fn write(messages: &[Message], promotion: AttributePromotion) -> Written {
    let written = encode(&chunks(messages, Way::Log), promotion.clone());
    let handed = encode(&chunks(messages, Way::Handed), promotion);
    let bytes = |written: &Written| written.files.iter().map(|file| file.bytes.clone()).collect::<Vec<_>>();
    assert!(
        bytes(&written) == bytes(&handed),
        "rows differ by the way that entries come"
    );
    written
}

fn encode(chunks: &[Arc<MemtableChunk>], promotion: AttributePromotion) -> Written {
    let rules = FileRules::default();
    let together = ChunkBatch {
        spec: &TAGS,
        chunks,
        rules: &rules,
    };
    let mut schema = (TAGS.columns)();
    let mut bindings = AttributeBindings::of(&schema, promotion);
    let columns = bindings.admit(together.names(&bindings));
    schema.columns.extend(columns);
    let (files, _) = together.encode(&schema, &bindings).unwrap();
    Written { files, schema }
}

/// How an entry reaches the decoder.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Log,
    Handed,
}

/// Splits the messages into two chunks.
fn chunks(messages: &[Message], way: Way) -> Vec<Arc<MemtableChunk>> {
    let mut batch_writer = TagBatchWriter::default();
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), 1 << 20);
    let halves = messages.split_at(messages.len() / 2);
    let of_half = |half: &[Message]| {
        let packed = batch_writer.pack(&"plant".into(), half, ARRIVAL);
        assert_eq!(packed.refused, []);
        let mut chunk = MemtableChunk::new(&TAGS);
        let all = Arc::new(half.to_vec());
        for entry in &packed.entries {
            if way == Way::Handed {
                let handed = packed.handed(entry, &all, &"plant".into(), ARRIVAL);
                samples.decode_handed(&Handoff::Messages(handed), &mut chunk).unwrap();
                continue;
            }
            let DecodedEntry { arrival, .. } = samples.decode(&entry.bytes, &mut chunk).unwrap();
            assert_eq!(arrival, ARRIVAL);
        }
        assert_eq!(chunk.rows(), half.len());
        Arc::new(chunk)
    };
    [halves.0, halves.1].map(of_half).to_vec()
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
                let mut entries: Vec<_> = keys.iter().flatten().zip(values.iter().flatten()).collect();
                entries.sort();
                format!("{entries:?}")
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

/// The expected row of a message by a simple implementation of the rules. Supports metadata without OPC UA tags only.
fn expected(message: &Message, promoted: &dyn Fn(&str) -> bool) -> Row {
    let cells = TagValueCells::of(&message.payload);
    let stamps = message.meta.stamps();
    let explicit = message
        .meta
        .get("timestamp_ms")
        .and_then(|text| text.parse::<i64>().ok());
    let time = RowTime::of(ArrivalWindow::default(), explicit, stamps, cells.time_ms, ARRIVAL);
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
    overflow.sort();
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

/// Messages that share maps, some with changes.
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
                        ValueQuality {
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

    /// Random messages, with columns promoted or not: the files together have exactly the rows of the rules, in order.
    #[test]
    fn what_is_read_back_is_what_the_rules_say(messages in messages(), keep_out in any::<bool>()) {
        let never = if keep_out { vec!["b*".to_owned()] } else { Vec::new() };
        let promotion = AttributePromotion::new(256, Vec::new(), &never).unwrap();
        let promoted = |name: &str| !(keep_out && name.starts_with('b'));
        // Without OPC UA or MQTT metadata, the only tag key is the topic.
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

/// Every value is within the bounds in the Delta log.
fn check_stats(file: &EncodedFile, schema: &TableSchema, rows: &[Row]) {
    let stats = FileStats::parse(file.add.stats.as_ref().unwrap(), schema, &mut Default::default());
    assert_eq!(stats.rows, Some(rows.len() as u64));
    for column in &stats.columns {
        let values: Vec<&String> = rows.iter().filter_map(|row| row.get(&*column.column)).collect();
        if let Some(nulls) = column.nulls {
            assert_eq!(nulls as usize, rows.len() - values.len(), "{}", column.column);
        }
        for value in values {
            let inside = |bound: &ColumnBound, least: bool| match bound {
                ColumnBound::Int(bound) if least => *bound <= value.parse().unwrap(),
                ColumnBound::Int(bound) => *bound >= value.parse().unwrap(),
                ColumnBound::Float(bound) => {
                    let value = f64::from_bits(value.parse().unwrap());
                    if least { *bound <= value } else { *bound >= value }
                }
                ColumnBound::Text(bound) if least => **bound <= **value,
                ColumnBound::Text(bound) => **bound >= **value,
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
    let stamps = ValueQuality {
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
    let written = write(&messages, AttributePromotion::default());
    let file = &written.files[0];
    let metadata = ArrowReaderMetadata::load(&file.bytes, Default::default())
        .unwrap()
        .metadata()
        .clone();
    let pairs = metadata.file_metadata().key_value_metadata().unwrap();
    assert!(pairs.iter().all(|pair| pair.key != "ARROW:schema"));
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
        AttributePromotion::default(),
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
    let written = write(&[yesterday, number_at("t", 0, 2.0)], AttributePromotion::default());
    assert_eq!(written.files.len(), 2, "a day each");
    let has = |row: &Row| row.contains_key("attr_only_yesterday");
    let rows: Vec<Row> = written
        .files
        .iter()
        .flat_map(read)
        .flat_map(|batch| rows_of(&batch))
        .collect();
    assert_eq!(rows.iter().map(has).collect::<Vec<_>>(), [true, false]);
    let today = write(&[number_at("t", 0, 2.0)], AttributePromotion::default());
    let fields = read(&today.files[0])[0].schema();
    assert!(fields.field_with_name("attr_site").is_ok() && fields.field_with_name("attr_only_yesterday").is_err());
}

#[test]
fn long_texts_without_a_column_end_an_entry_and_count_for_the_rows_that_have_them() {
    const LEN: usize = 40_000;
    let mut message = number_at("t", 0, 1.0);
    message.meta.set("big", "x".repeat(LEN));
    let messages = vec![message; 2_000];
    let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, ARRIVAL);
    let untils: Vec<usize> = packed.entries.iter().map(|entry| entry.part.end).collect();
    assert_eq!(untils.last(), Some(&2_000));
    assert!(untils[0] * LEN <= (24 << 20) + LEN, "{untils:?}");
    let bytes: usize = packed.entries.iter().map(|entry| entry.bytes.len()).sum();
    assert!(
        bytes < 6 * LEN,
        "what many messages have is written once for each entry: {bytes} bytes"
    );
    let chunks = chunks(&messages, Way::Handed);
    let used: usize = chunks.iter().map(|chunk| chunk.space().used).sum();
    assert!(used > 2_000 * (LEN - 2_000), "{used} bytes");

    let promotion = AttributePromotion::new(256, vec![], &["big".to_owned()]).unwrap();
    let written = write(&messages, promotion);
    let lengths: Vec<usize> = read(&written.files[0])
        .iter()
        .flat_map(rows_of)
        .map(|row| row["overflow"].len())
        .collect();
    assert_eq!(lengths.len(), 2_000);
    assert!(lengths.iter().all(|length| *length > LEN), "no text is cut");
}

#[test]
fn a_chunk_has_more_rows_than_tags_however_much_tags_say() {
    const TAGS_COUNT: usize = 20_000;
    let long = |tag: usize| format!("{tag} {}", "x".repeat(1000));
    // As the input keeps them.
    let maps: Vec<Arc<MetaMap>> = (0..TAGS_COUNT)
        .map(|tag| {
            let own = [
                ("umh_topic".into(), format!("t{tag}").into()),
                ("note".into(), long(tag).into()),
            ];
            Arc::new(MetaMap::new(own, None))
        })
        .collect();
    let message = |map: &Arc<MetaMap>| {
        let meta = Metadata::stamped(map.clone(), ValueQuality::NONE);
        Message::new(Payload::Value(Value::F64(1.0)), meta)
    };
    let messages: Arc<Vec<Message>> = Arc::new(maps.iter().map(message).collect());
    let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, ARRIVAL);
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), 200 << 20);
    let mut round = |chunk: &mut MemtableChunk| {
        for entry in &packed.entries {
            samples
                .decode_handed(
                    &Handoff::Messages(packed.handed(entry, &messages, &"plant".into(), ARRIVAL)),
                    chunk,
                )
                .unwrap();
        }
    };
    // Recurring series are cached.
    let mut first = MemtableChunk::new(&TAGS);
    (0..3).for_each(|_| round(&mut first));
    let (mut chunk, mut rounds) = (MemtableChunk::new(&TAGS), 0);
    while !chunk.is_full() {
        round(&mut chunk);
        rounds += 1;
    }
    let space = chunk.space();
    assert!(
        (1000 * TAGS_COUNT..1200 * TAGS_COUNT).contains(&space.shared),
        "{space:?}"
    );
    assert!(rounds >= 5 && space.own() >= space.shared, "{rounds} rounds, {space:?}");
    assert_eq!(chunk.rows(), rounds * TAGS_COUNT);
}

#[test]
fn refused_messages_are_named_and_the_others_are_in_entries() {
    let limits = TagRowLimits {
        attribute_value_bytes_max: 10,
        value_bytes_max: 70 << 10,
        ..TagRowLimits::default()
    };
    let mut batch_writer = TagBatchWriter::new(limits);
    let value = |bytes: usize| Message::new(Payload::Value(Value::text("x".repeat(bytes))), Metadata::default());
    let mut named = number_at("t", 0, 1.0);
    named.meta.set("x", "12345678901");
    let escaped = Value::from(vec![Value::text("\u{1}".repeat(40 << 10)); 2]);
    let messages = [
        value(3),
        named.clone(),
        value(70 << 10),
        value((70 << 10) + 1),
        Message::new(Payload::Value(escaped), Metadata::default()),
        value(4),
    ];
    let packed = batch_writer.pack(&"plant".into(), &messages, ARRIVAL);
    let refused: Vec<(usize, &str)> = packed
        .refused
        .iter()
        .map(|refused| (refused.index, refused.refusal.error.split(':').next().unwrap()))
        .collect();
    assert_eq!(refused, [1, 3, 4].map(|index| (index, "value_too_long")));
    let mut chunk = MemtableChunk::new(&TAGS);
    let DecodedEntry { changed, .. } = TagRowDecoder::new(ArrivalWindow::default(), 1 << 20)
        .decode(&packed.entries[0].bytes, &mut chunk)
        .unwrap();
    assert_eq!((chunk.rows(), changed), (3, RowChangeCounts::default()));
    let handed = packed.handed(
        &packed.entries[0],
        &Arc::new(messages.to_vec()),
        &"plant".into(),
        ARRIVAL,
    );
    assert_eq!(handed.iter().count(), 3);
    let none = batch_writer.pack(&"plant".into(), &[named], ARRIVAL);
    assert!(none.entries.is_empty() && none.refused.len() == 1);
}

#[test]
fn a_large_message_has_an_entry_of_its_own_and_one_that_the_log_cannot_take_is_refused() {
    let text = |bytes: usize| Message::new(Payload::Value(Value::text("x".repeat(bytes))), Metadata::default());
    let mut too_much = text(1);
    for name in 0..40 {
        too_much.meta.set(format!("n{name}"), "y".repeat(1 << 20));
    }
    let messages = [text(1), text(10 << 20), text(2), too_much, text(3)];
    let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, ARRIVAL);
    let untils: Vec<usize> = packed.entries.iter().map(|entry| entry.part.end).collect();
    assert_eq!(untils, [1, 2, 3, 5]);
    assert_eq!(packed.refused[0].index, 3);
    assert!(packed.refused[0].refusal.error.starts_with("message_too_long"));
}

#[test]
fn an_entry_that_is_cut_or_of_another_kind_is_an_error() {
    let packed = TagBatchWriter::default().pack(&"plant".into(), &[number_at("t", 0, 1.0)], ARRIVAL);
    let entry = &packed.entries[0].bytes;
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), 1 << 20);
    for cut in 0..entry.len() {
        assert!(
            samples.decode(&entry[..cut], &mut MemtableChunk::new(&TAGS)).is_err(),
            "{cut}"
        );
    }
    row_decoder::fuzz(entry);
    row_decoder::fuzz(&entry[4..]);
}

#[test]
fn what_is_remembered_of_tags_is_counted_and_has_an_end() {
    const BYTES: usize = 256 << 10;
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), BYTES);
    let (mut largest, mut chunk) = (0, MemtableChunk::new(&TAGS));
    for round in 0..400 {
        let messages: Vec<Message> = (0..10)
            .map(|tag| number_at(&format!("line.{round}.tag{tag}"), 0, 1.0))
            .collect();
        // What occurs once is not cached.
        for _ in 0..2 {
            for entry in TagBatchWriter::default()
                .pack(&"plant".into(), &messages, ARRIVAL)
                .entries
            {
                samples.decode(&entry.bytes, &mut chunk).unwrap();
            }
        }
        largest = largest.max(samples.remembered_bytes());
    }
    assert!(largest > BYTES / 2, "{largest}");
    // The limit is checked before each entry.
    assert!(largest < BYTES + BYTES / 4, "{largest}");
    samples.forget();
    assert_eq!(samples.remembered_bytes(), 0);
}

/// The assumption of the memory shares: metadata as an OPC UA input and a tag_processor produce it.
#[test]
fn a_tag_of_opc_ua_takes_about_three_kibibytes() {
    const TAGS_COUNT: usize = 1_000;
    let entries = |n: usize| {
        [
            ("data_contract", "_historian".to_owned()),
            ("location_path", "enterprise.site.area.line".to_owned()),
            ("opcua_attr_accesslevel", "CurrentRead".to_owned()),
            ("opcua_attr_browsename", format!("Temperature{n}")),
            ("opcua_attr_datatype", "Double".to_owned()),
            ("opcua_attr_nodeclass", "NodeClassVariable".to_owned()),
            ("opcua_attr_nodeid", format!("ns=2;s=Press.Zone.Temperature{n}")),
            ("opcua_tag_group", "Press.Zone".to_owned()),
            ("opcua_tag_name", format!("Temperature{n}")),
            ("opcua_tag_path", "Press.Zone".to_owned()),
            ("opcua_tag_type", "number".to_owned()),
            ("tag_name", format!("Temperature{n}")),
            (
                "umh_topic",
                format!("umh.v1.enterprise.site.area.line._historian.Press.Zone.Temperature{n}"),
            ),
            ("virtual_path", "Press.Zone".to_owned()),
        ]
    };
    let message = |n: usize| {
        let entries = entries(n).map(|(name, text)| (Text::from(name), Text::from(text)));
        let map = Arc::new(MetaMap::new(entries, Some(n as u64)));
        Message::new(
            Payload::Value(Value::F64(1.0)),
            Metadata::stamped(map, ValueQuality::NONE),
        )
    };
    let messages: Vec<Message> = (0..TAGS_COUNT).map(message).collect();
    let mut samples = TagRowDecoder::new(ArrivalWindow::default(), 64 << 20);
    let mut chunk = MemtableChunk::new(&TAGS);
    let mut decode = |samples: &mut TagRowDecoder| {
        for entry in TagBatchWriter::default()
            .pack(&"plant".into(), &messages, ARRIVAL)
            .entries
        {
            samples.decode(&entry.bytes, &mut chunk).unwrap();
        }
        samples.remembered_bytes()
    };
    // The maps, and the admission filter.
    let of_maps = decode(&mut samples) / TAGS_COUNT;
    let both = decode(&mut samples) / TAGS_COUNT;
    let sights = (64 << 20) / 64 / TAGS_COUNT;
    let (of_maps, of_series) = (of_maps - sights, both - of_maps);
    let told = format!("{of_maps} bytes of maps, {of_series} of series");
    assert!((700..1_100).contains(&of_maps), "{told}");
    assert!((1_400..2_100).contains(&of_series), "{told}");
}

#[test]
fn maps_that_only_one_message_has_are_counted_with_the_entry_that_has_it() {
    let mut messages = vec![number_at("t", 0, 1.0); 100];
    messages.push(number_at("alone", 0, 1.0));
    let mut large = number_at("large", 0, 1.0);
    large.payload = Payload::Value(Value::text("x".repeat(5 << 20)));
    messages.push(large);
    messages.extend(vec![number_at("u", 0, 1.0); 2]);
    let packed = TagBatchWriter::default().pack(&"plant".into(), &messages, ARRIVAL);
    let bytes: Vec<usize> = packed.entries.iter().map(|entry| entry.own_maps_bytes).collect();
    let [alone, large, 0] = bytes[..] else {
        panic!("{bytes:?}")
    };
    // Two entries with two texts each.
    let entries = 4 * size_of::<Text>();
    assert!((entries..entries + 100).contains(&alone), "{bytes:?}");
    assert_eq!(alone, large);
    let all = Arc::new(messages);
    let handed = packed.handed(&packed.entries[1], &all, &"plant".into(), ARRIVAL);
    assert_eq!((handed.own_maps_bytes, handed.iter().count()), (large, 1));
}
