//! Attribute columns of a declared type: each value is in its column, or in the overflow map as the text that was sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;

use super::rollup_tests::roll;
use super::table_tests::{World, message, slow};
use crate::codes::LakeCode;
use crate::commit::CommitPayload as _;
use crate::ingest::files::ChunkBatch;
use crate::memtable_view::{OverflowCounts, project};
use thalweg_columns::attribute_types::AttributeType;
use thalweg_columns::attributes::{AttributeBindings, AttributePromotion};
use thalweg_columns::file::FileRules;
use thalweg_columns::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::double_text::write_double;
use thalweg_columns::tables::{TAGS, tags};
use thalweg_delta::actions::Action;
use thalweg_delta::schema::{ColumnType, TableColumn, TableSchema};
use thalweg_delta::store::SyncedStore;
use thalweg_delta::{CommitOutcome, DeltaLog, Snapshot, SnapshotDetail};

const SOON: Duration = Duration::from_secs(20);

fn promotion(types: &[(&str, &str)]) -> AttributePromotion {
    let types = types.iter();
    let types = types.map(|(column, kind)| ((*column).to_owned(), AttributeType::declared(kind).unwrap()));
    AttributePromotion::default().with_types(types.collect())
}

async fn newest(world: &World, table: &str) -> Snapshot {
    let log = DeltaLog::new(&world.lake.path().join(table), SyncedStore::new()).unwrap();
    log.load(SnapshotDetail::Stats).await.unwrap().unwrap()
}

async fn kind_of(world: &World, column: &str) -> ColumnType {
    newest(world, "tags").await.schema.column(column).unwrap().kind.clone()
}

async fn write(world: &World, sent: &[(&str, &str)]) {
    let writer = world.open(&slow()).await;
    world.append(vec![message("t", 1, sent)]).await;
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_keeps_the_type_that_it_was_made_with() {
    let mut world = World::new().await;
    let open = async |world: &World| world.open_with(SyncedStore::new(), &slow()).await;
    write(&world, &[("old", "1")]).await;
    // A column that has texts.
    world.promotion = promotion(&[("attr_old", "long"), ("attr_new", "long")]);
    let refused = open(&world).await.err().unwrap();
    let path = world.table().display().to_string();
    assert_eq!(
        refused.to_string(),
        format!(
            "{}: the column attr_old of the table {path} has the type string, and lake.tags.types declares long; a column of a \
             table keeps its type: remove attr_old there, or begin with new tables at another lake.url",
            LakeCode::ColumnType
        )
    );
    assert!(refused.is_permanent());
    // The cure, and a column that is new.
    world.promotion = promotion(&[("attr_new", "long")]);
    write(&world, &[("old", "2"), ("new", "3")]).await;
    write(&world, &[("old", "2"), ("new", "3")]).await;
    assert_eq!(kind_of(&world, "attr_new").await, ColumnType::Long);
    assert_eq!(kind_of(&world, "attr_old").await, ColumnType::String);
    // The type is taken back, which changes nothing.
    world.promotion = AttributePromotion::default();
    write(&world, &[("new", "4")]).await;
    write(&world, &[("new", "four")]).await;
    assert_eq!(kind_of(&world, "attr_new").await, ColumnType::Long);
    let mut values: Vec<Option<String>> = world
        .rows()
        .await
        .iter()
        .map(|row| row.get("attr_new").cloned())
        .collect();
    values.sort();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(values, [None, None, text("3"), text("3"), text("4")]);
    // Another type.
    for kind in ["double", "string"] {
        world.promotion = promotion(&[("attr_new", kind)]);
        let refused = open(&world).await.err().unwrap().to_string();
        let expected = format!("has the type long, and lake.tags.types declares {kind}");
        assert!(refused.contains(&expected), "{refused}");
    }
}

/// `lake ingest` without a configuration may be first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_column_that_another_writer_makes_first_has_its_type_until_the_next_start() {
    let mut world = World::new().await;
    write(&world, &[("line", "north")]).await;
    world.promotion = promotion(&[("attr_n", "long")]);
    let writer = world.open(&slow()).await;
    let log = DeltaLog::new(&world.table(), SyncedStore::new()).unwrap();
    let before = newest(&world, "tags").await;
    let mut schema = (*before.schema).clone();
    schema
        .columns
        .push(TableColumn::attribute("attr_n".into(), "attr", "n"));
    let mut metadata = before.metadata.clone();
    metadata.schema_string = schema.to_delta();
    let committed = log
        .commit(before.version + 1, &[Action::Metadata(metadata)])
        .await
        .unwrap();
    assert_eq!(committed, CommitOutcome::Committed);
    world
        .append(vec![message("t", 1, &[("n", "7")]), message("t", 2, &[("n", "x")])])
        .await;
    writer.close(SOON).await;
    let mut values: Vec<Option<String>> = world
        .rows()
        .await
        .iter()
        .map(|row| row.get("attr_n").cloned())
        .collect();
    values.sort();
    assert_eq!(values, [None, Some("7".to_owned()), Some("x".to_owned())]);
    assert_eq!(kind_of(&world, "attr_n").await, ColumnType::String);
    let refused = world
        .open_with(SyncedStore::new(), &slow())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        refused.contains("attr_n") && refused.starts_with("lake.column_type: "),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_that_do_not_fit_are_counted_by_their_column() {
    let mut world = World::new().await;
    world.promotion = promotion(&[("attr_n", "long"), ("attr_r", "double"), ("attr_up", "boolean")]);
    let writer = world.open(&slow()).await;
    let sent = [
        message("a", 1, &[("n", "7"), ("r", "0.5"), ("up", "true")]),
        message("b", 2, &[("n", "seven"), ("r", "2"), ("up", "yes")]),
        message("c", 3, &[("n", "7.5"), ("r", "NaN"), ("other", "x")]),
    ];
    world.append(sent.to_vec()).await;
    writer.close(SOON).await;
    let counted = |column: &str| world.metrics.misfit_values.with_label_values(&["tags", column]).get();
    assert_eq!(["attr_n", "attr_r", "attr_up"].map(counted), [2, 0, 1]);
    assert_eq!(world.metrics.overflow_values.with_label_values(&["tags"]).get(), 0);
    let kinds = ["attr_n", "attr_r", "attr_up", "attr_other"];
    let table = newest(&world, "tags").await;
    let kinds = kinds.map(|name| table.schema.column(name).unwrap().kind.clone());
    assert_eq!(
        kinds,
        [
            ColumnType::Long,
            ColumnType::Double,
            ColumnType::Boolean,
            ColumnType::String
        ]
    );
}

/// The columns of all files of a table.
fn columns(table: &std::path::Path, snapshot: &Snapshot, names: &[&str]) -> Vec<(DataType, Vec<Option<String>>)> {
    let mut found: Vec<(DataType, Vec<Option<String>>)> = names.iter().map(|_| (DataType::Null, Vec::new())).collect();
    for file in snapshot.files.values() {
        let bytes = bytes::Bytes::from(std::fs::read(table.join(&*file.path)).unwrap());
        for rows in ParquetRecordBatchReaderBuilder::try_new(bytes)
            .unwrap()
            .build()
            .unwrap()
        {
            let rows = rows.unwrap();
            for (name, (kind, values)) in names.iter().zip(&mut found) {
                match rows.column_by_name(name) {
                    Some(array) => {
                        *kind = array.data_type().clone();
                        values.extend((0..rows.num_rows()).map(|row| cell(array, row)));
                    }
                    None => values.extend((0..rows.num_rows()).map(|_| None)),
                }
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_have_the_types_of_their_source() {
    let mut world = World::new().await;
    world.promotion = promotion(&[("attr_batch", "long"), ("attr_ratio", "double"), ("attr_up", "boolean")]);
    let writer = world.open(&slow()).await;
    let sent = [
        message(
            "a",
            1,
            &[("batch", "7"), ("ratio", "0.5"), ("up", "true"), ("line", "north")],
        ),
        message(
            "a",
            5,
            &[("batch", "7"), ("ratio", "0.5"), ("up", "true"), ("line", "north")],
        ),
        message("b", 2, &[("batch", "seven"), ("ratio", "1e3"), ("up", "false")]),
    ];
    world.append(sent.to_vec()).await;
    let end = world.end();
    while world.taken().await != Some(end) {
        writer.hurry();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    roll(&world, &writer).await;
    let (path, table) = (
        world.lake.path().join("tags_rollup"),
        newest(&world, "tags_rollup").await,
    );
    let names = [
        "tag",
        "count",
        "attr_batch",
        "attr_ratio",
        "attr_up",
        "attr_line",
        "overflow",
    ];
    let found = columns(&path, &table, &names);
    let kinds: Vec<&DataType> = found.iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds[1..6],
        [
            &DataType::Int64,
            &DataType::Int64,
            &DataType::Float64,
            &DataType::Boolean,
            &DataType::Utf8
        ]
    );
    let rows = found[0].1.len();
    assert_eq!(rows, 10, "five resolutions of two tags");
    for row in 0..rows {
        let cells: Vec<&str> = found[1..]
            .iter()
            .map(|(_, values)| values[row].as_deref().unwrap_or("null"))
            .collect();
        match found[0].1[row].as_deref() {
            Some("a") => assert_eq!(cells, ["2", "7", "0.5", "true", "north", "null"]),
            _ => assert_eq!(cells, ["1", "null", "1000", "false", "null", "attr.batch=seven"]),
        }
    }
    writer.close(SOON).await;
}

fn cell(array: &ArrayRef, row: usize) -> Option<String> {
    if array.is_null(row) {
        return None;
    }
    Some(match array.data_type() {
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float64 => {
            let mut text = String::new();
            write_double(array.as_primitive::<Float64Type>().value(row), &mut text);
            text
        }
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Utf8 => array.as_string::<i32>().value(row).to_owned(),
        DataType::Utf8View => array.as_string_view().value(row).to_owned(),
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let texts = |at: usize| entries.column(at).as_string::<i32>().clone();
            let (keys, values) = (texts(0), texts(1));
            let entries = keys.iter().flatten().zip(values.iter().flatten());
            let mut entries: Vec<String> = entries.map(|(key, value)| format!("{key}={value}")).collect();
            entries.sort();
            entries.join(";")
        }
        other => panic!("a column of type {other}"),
    })
}

const NAMES: [&str; 4] = ["n", "r", "b", "s"];
const TYPES: [(&str, &str); 4] = [
    ("attr_n", "long"),
    ("attr_r", "double"),
    ("attr_b", "boolean"),
    ("attr_s", "string"),
];

type SentRow = [Option<String>; 4];

fn double_text(value: f64) -> String {
    let mut text = String::new();
    write_double(value, &mut text);
    text
}

fn sent_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => any::<i64>().prop_map(|number| number.to_string()),
        4 => (-300_i64..300).prop_map(|number| number.to_string()),
        2 => (-4_i64..4).prop_map(|around| ((1_i64 << 53) + around).to_string()),
        4 => any::<f64>().prop_map(double_text),
        2 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(-0.0)].prop_map(double_text),
        2 => (-9_999_i64..9_999, 0..4).prop_map(|(digits, places)| format!("{digits}e-{places}")),
        1 => (0_u32..99, 0_u32..999).prop_map(|(whole, part)| format!("{whole}.{part:03}")),
        2 => any::<bool>().prop_map(|truth| truth.to_string()),
        2 => "[-+]?[0-9]{0,22}[.]?[0-9]{0,3}(e[0-9]{1,3})?",
        2 => "\\PC{0,6}",
    ]
}

/// A chunk with these rows. If it is full of names, further attributes have no column in it.
fn chunk(rows: &[SentRow], begin: i64, is_full: bool) -> MemtableChunk {
    let mut chunk = MemtableChunk::new(&TAGS);
    for n in 0..if is_full { 1024 } else { 0 } {
        let mut none = AttributeColumnHint::default();
        assert!(
            chunk
                .slots
                .next(AttributeSource::Attr, &format!("f{n}"), &mut none)
                .is_some()
        );
    }
    for (time, sent) in (begin..).zip(rows) {
        let row = chunk.begin_row();
        chunk.longs(tags::TAG_ID).push(row, 7);
        chunk.longs(tags::TIME_NANOS).push(row, time);
        chunk.longs(tags::ARRIVAL).push(row, time);
        for (name, text) in NAMES.iter().zip(sent) {
            let Some(text) = text else { continue };
            let mut none = AttributeColumnHint::default();
            match chunk.slots.next(AttributeSource::Attr, name, &mut none) {
                Some(column) => drop(column.push(row, text.as_bytes())),
                None => chunk.push_extra(row, AttributeSource::Attr, name, text),
            }
        }
    }
    chunk
}

/// Whether a value is the number of a text, by other means than those that made it.
fn is_equal(value: &str, text: &str, kind: &str) -> bool {
    match kind {
        "long" | "double" => match (value.parse::<i128>(), text.parse::<i128>()) {
            (Ok(value), Ok(text)) => value == text,
            _ => {
                let numbers = [value, text].map(|text| text.parse::<f64>().unwrap());
                numbers[0] == numbers[1] || numbers.iter().all(|number| number.is_nan())
            }
        },
        _ => value == text,
    }
}

/// Whether a text is a value of the type in the form in which such values are sent.
fn is_plain(text: &str, kind: &str) -> bool {
    match kind {
        "long" => text.parse::<i64>().is_ok_and(|number| number.to_string() == text),
        "double" => text.parse::<f64>().is_ok_and(|number| double_text(number) == text),
        "boolean" => ["true", "false"].contains(&text),
        _ => true,
    }
}

/// The cells of rows, by column.
fn cells(batches: &[RecordBatch]) -> Vec<BTreeMap<String, String>> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let columns = batch
                .schema_ref()
                .fields()
                .iter()
                .zip(batch.columns())
                .filter_map(|(field, array)| {
                    let is_asked = field.name().starts_with("attr_") || field.name() == "overflow";
                    Some((field.name().clone(), is_asked.then(|| cell(array, row))??))
                });
            rows.push(columns.collect());
        }
    }
    rows
}

fn check(sent: &[SentRow], schema: &TableSchema, rows: &[BTreeMap<String, String>], counts: &OverflowCounts) {
    let (mut misfits, mut without_column) = (0, 0);
    for (sent, found) in sent.iter().zip(rows) {
        let mut in_map = Vec::new();
        for ((name, text), (column, kind)) in NAMES.iter().zip(sent).zip(TYPES) {
            let value = found.get(column);
            let Some(text) = text else {
                assert_eq!(value, None);
                continue;
            };
            match (value, schema.column(column)) {
                (Some(value), Some(_)) => assert!(is_equal(value, text, kind), "{text} as {kind} is {value}"),
                (Some(_), None) => panic!("{column} is no column"),
                (None, of_table) => {
                    assert!(of_table.is_none() || !is_plain(text, kind), "{text} is no {kind}");
                    misfits += u64::from(of_table.is_some());
                    without_column += u64::from(of_table.is_none());
                    in_map.push(format!("attr.{name}={text}"));
                }
            }
        }
        in_map.sort();
        let map = found.get("overflow").cloned().unwrap_or_default();
        assert_eq!(map, in_map.join(";"));
    }
    assert_eq!(counts.misfits.values().sum::<u64>(), misfits);
    assert_eq!(counts.without_column, without_column);
}

proptest! {
    /// In files, and before.
    #[test]
    fn every_value_is_in_its_column_or_a_text_in_the_overflow_map(
        sent in prop::collection::vec(prop::array::uniform4(prop::option::of(sent_text())), 1..24),
        part in 0_usize..24,
        are_full in any::<[bool; 2]>(),
    ) {
        let (first, second) = sent.split_at(part.min(sent.len()));
        let chunks = [
            Arc::new(chunk(first, 0, are_full[0])),
            Arc::new(chunk(second, first.len() as i64, are_full[1])),
        ];
        let rules = FileRules::default();
        let batch = ChunkBatch { spec: &TAGS, chunks: &chunks, rules: &rules };
        let mut schema = (TAGS.columns)();
        let mut bindings = AttributeBindings::of(&schema, promotion(&TYPES));
        let columns = bindings.admit(batch.names(&bindings));
        schema.columns.extend(columns);
        let (files, counts) = batch.encode(&schema, &bindings).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(files[0].bytes.clone()).unwrap().build().unwrap();
        let stored: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
        check(&sent, &schema, &cells(&stored), &counts);

        let asked: Vec<_> = schema.arrow().fields().iter().map(|field| match field.data_type() {
            DataType::Utf8 => field.as_ref().clone().with_data_type(DataType::Utf8View),
            DataType::Binary => field.as_ref().clone().with_data_type(DataType::BinaryView),
            _ => field.as_ref().clone(),
        }.with_nullable(true)).collect();
        let asked = Arc::new(arrow::datatypes::Schema::new(asked));
        let before: Vec<RecordBatch> = chunks.iter().map(|chunk| project(chunk, &schema, &asked).unwrap()).collect();
        prop_assert_eq!(cells(&before), cells(&stored), "rows are the same before and after their commit");
    }
}
