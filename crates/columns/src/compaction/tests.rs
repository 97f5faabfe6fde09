//! Merges files with random rows and reads them back.

mod rewrite;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MapBuilder, MapFieldNames, RecordBatch, StringBuilder};
use arrow::buffer::BooleanBuffer;
use arrow::datatypes::{Field, Int64Type, Schema};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::file::{FileColumn, FileRows, FileRules};
use crate::tables::LOGS;
use thalweg_delta::schema::{TableColumn, TableSchema};

const HOUR: i64 = 3_600_000_000_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    service: Option<String>,
    time: i64,
    arrival: i64,
    body: Option<String>,
    attribute: Option<String>,
    flags: Option<i64>,
    overflow: Option<String>,
}

fn table() -> TableSchema {
    let mut table = (LOGS.columns)();
    table
        .columns
        .push(TableColumn::attribute("attr_x".to_owned(), "attr", "x"));
    table
}

fn texts<'a>(rows: &'a [Row], of: impl Fn(&'a Row) -> &'a Option<String>) -> Vec<Option<&'a [u8]>> {
    rows.iter().map(|row| of(row).as_ref().map(String::as_bytes)).collect()
}

fn dictionary(rows: Vec<Option<&[u8]>>) -> FileColumn<'_> {
    let mut texts: Vec<&[u8]> = Vec::new();
    let mut ids = Vec::new();
    for text in rows {
        ids.push(text.map_or(crate::rows::text::NULL, |text| {
            let known = texts.iter().position(|known| *known == text);
            known.unwrap_or_else(|| {
                texts.push(text);
                texts.len() - 1
            }) as u32
        }));
    }
    FileColumn::Dictionary { texts, ids }
}

fn maps(rows: &[Row]) -> ArrayRef {
    let names = MapFieldNames {
        entry: "key_value".to_owned(),
        key: "key".to_owned(),
        value: "value".to_owned(),
    };
    let mut maps = MapBuilder::new(Some(names), StringBuilder::new(), StringBuilder::new());
    for row in rows {
        if let Some(text) = &row.overflow {
            maps.keys().append_value("attr.y");
            maps.values().append_value(text);
        }
        maps.append(row.overflow.is_some()).unwrap();
    }
    let maps: ArrayRef = Arc::new(maps.finish());
    arrow::compute::cast(&maps, &thalweg_delta::schema::text_map_type()).unwrap()
}

/// Writes a sorted file as a flush does. Some files have no column for the attribute.
fn write(rows: &[Row], path: &Path, rules: &FileRules) {
    let mut rows = rows.to_vec();
    rows.sort_by(|a, b| (&a.service, a.time).cmp(&(&b.service, b.time)));
    let table = table();
    let longs = |values: Vec<i64>, present: Option<BooleanBuffer>, is_near| FileColumn::Longs {
        values,
        present,
        is_near,
    };
    let times = |of: fn(&Row) -> i64| rows.iter().map(of).collect::<Vec<i64>>();
    let flags = BooleanBuffer::collect_bool(rows.len(), |row| rows[row].flags.is_some());
    let mut columns = vec![
        ("resource_service_name", dictionary(texts(&rows, |row| &row.service))),
        ("time_unix_nano", longs(times(|row| row.time), None, true)),
        ("time", longs(times(|row| row.time.div_euclid(1000)), None, true)),
        ("arrival_unix_nano", longs(times(|row| row.arrival), None, true)),
        ("body", FileColumn::Plain(texts(&rows, |row| &row.body))),
        (
            "flags",
            longs(times(|row| row.flags.unwrap_or_default()), Some(flags), false),
        ),
    ];
    let attributes = texts(&rows, |row| &row.attribute);
    if attributes.iter().any(Option::is_some) {
        columns.push((
            "attr_x",
            match rows.len() % 2 {
                0 => dictionary(attributes),
                _ => FileColumn::Plain(attributes),
            },
        ));
    }
    columns.push(("overflow", FileColumn::Nested(maps(&rows))));
    let field = |name: &str| {
        let column = table.column(name).unwrap();
        Field::new(name, column.kind.arrow().unwrap(), column.nullable)
    };
    let file = FileRows {
        schema: Arc::new(Schema::new(
            columns.iter().map(|(name, _)| field(name)).collect::<Vec<Field>>(),
        )),
        columns: columns.into_iter().map(|(_, column)| column).collect(),
        sort: LOGS.sort,
        bytes_per_row: 100,
    };
    let order: Vec<u32> = (0..rows.len() as u32).collect();
    std::fs::write(path, file.write(&order, rules).unwrap().0).unwrap();
}

fn read(path: &Path) -> Vec<Row> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    let mut rows = Vec::new();
    for batch in builder.build().unwrap() {
        let batch: RecordBatch = batch.unwrap();
        let text = |name: &str, row: usize| {
            let column = batch.column_by_name(name)?.as_string::<i32>();
            column.is_valid(row).then(|| column.value(row).to_owned())
        };
        let long = |name: &str, row: usize| {
            let column = batch.column_by_name(name)?.as_primitive::<Int64Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        for row in 0..batch.num_rows() {
            let overflow = batch.column_by_name("overflow").unwrap().as_map();
            rows.push(Row {
                service: text("resource_service_name", row),
                time: long("time_unix_nano", row).unwrap(),
                arrival: long("arrival_unix_nano", row).unwrap(),
                body: text("body", row),
                attribute: text("attr_x", row),
                flags: long("flags", row),
                overflow: overflow.is_valid(row).then(|| {
                    let entries = overflow.value(row);
                    assert_eq!(entries.column(0).as_string::<i32>().value(0), "attr.y");
                    entries.column(1).as_string::<i32>().value(0).to_owned()
                }),
            });
        }
    }
    rows
}

struct ToDisk {
    file: File,
    path: PathBuf,
    /// Ends as a copy of the first input.
    is_bad: bool,
}

impl FileSink for ToDisk {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        self.file
            .write_all(&bytes)
            .map_err(|error| MergeError::Sink(error.to_string()))
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        if self.is_bad {
            // Replaces the output with another file.
            std::fs::copy(self.path.with_file_name("0.parquet"), &self.path).unwrap();
        }
        Ok(())
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

struct World {
    folder: TempDir,
    inputs: Vec<PathBuf>,
}

impl World {
    fn new(files: &[Vec<Row>], rules: &FileRules) -> World {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(format!("{number}.parquet"));
        files
            .iter()
            .enumerate()
            .for_each(|(number, rows)| write(rows, &path(number), rules));
        World {
            inputs: (0..files.len()).map(path).collect(),
            folder,
        }
    }

    fn merge(&self, rules: &FileRules, target_bytes: u64, is_bad: bool) -> Result<MergeResult, MergeError> {
        let merge = MergeJob {
            spec: &LOGS,
            table: &table(),
            inputs: &self.inputs,
            bucket: BucketWidth(HOUR),
            rules: rules.clone(),
            target_bytes,
            is_stopped: &|| false,
        };
        let mut made = 0;
        merge.run(&mut || {
            made += 1;
            let path = self.folder.path().join(format!("merged-{made}.parquet"));
            let file = File::create(&path).unwrap();
            Ok(Box::new(ToDisk { file, path, is_bad }))
        })
    }
}

fn row(services: usize, hours: i64) -> impl Strategy<Value = Row> {
    let service = prop::option::of((0..services).prop_map(|number| format!("s{number}")));
    let maybe = |of: &'static str| prop::option::of(of);
    let times = (0..hours * HOUR / 1000, 0_i64..1000);
    (
        service,
        times,
        maybe("\\PC{0,20}"),
        maybe("[a-f]{1,2}"),
        any::<Option<i64>>(),
        maybe("[a-z]{0,3}"),
    )
        .prop_map(|(service, (time, arrival), body, attribute, flags, overflow)| Row {
            service,
            time: time * 1000,
            arrival,
            body,
            attribute,
            flags,
            overflow,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merged_files_have_the_rows_of_all_in_order(
        files in prop::collection::vec(prop::collection::vec(row(3, 3), 1..200), 1..8),
        row_group_bytes in prop_oneof![Just(1_usize << 20), 500_usize..5000],
        target_bytes in prop_oneof![Just(1_u64 << 30), 1_u64..20_000],
        zstd_level in 1..3,
    ) {
        let world = World::new(&files, &FileRules { row_group_bytes, zstd_level: 1 });
        let rules = FileRules { row_group_bytes, zstd_level };
        let merged = world.merge(&rules, target_bytes, false).unwrap();
        // Equal rows come in file order, and within a file in row order.
        let mut expected: Vec<Row> = Vec::new();
        for file in &files {
            let mut rows = file.clone();
            rows.sort_by(|a, b| (&a.service, a.time).cmp(&(&b.service, b.time)));
            expected.extend(rows);
        }
        expected.sort_by(|a, b| (&a.service, a.time).cmp(&(&b.service, b.time)));
        let mut by_hour: std::collections::BTreeMap<i64, Vec<Row>> = Default::default();
        for row in expected {
            by_hour.entry(row.time / HOUR).or_default().push(row);
        }
        let mut found: std::collections::BTreeMap<i64, Vec<Row>> = Default::default();
        for output in &merged.outputs {
            let rows = read(output.sink.path());
            prop_assert_eq!(output.rows, rows.len() as u64);
            prop_assert_eq!(output.bytes, output.sink.path().metadata().unwrap().len());
            let hour = rows[0].time / HOUR;
            prop_assert!(rows.iter().all(|row| row.time / HOUR == hour));
            found.entry(hour).or_default().extend(rows);
        }
        prop_assert_eq!(found, by_hour);
    }
}

#[test]
fn files_that_are_not_what_was_read_are_found_out() {
    let row = |time: i64| Row {
        service: Some("a".to_owned()),
        time,
        arrival: time,
        body: None,
        attribute: None,
        flags: None,
        overflow: None,
    };
    let files = [vec![row(1), row(2)], vec![row(3), row(4)]];
    let rules = FileRules::default();
    let world = World::new(&files, &rules);
    let failed = world.merge(&rules, 1 << 30, true).err();
    assert!(matches!(failed, Some(MergeError::Mismatch { .. })), "{failed:?}");
    std::fs::write(&world.inputs[1], b"PAR1 torn").unwrap();
    let failed = world.merge(&rules, 1 << 30, false).err().unwrap().to_string();
    assert!(failed.contains("1.parquet cannot be read"), "{failed}");
}

#[test]
fn what_was_merged_of_a_file_leaves_memory() {
    let row = |time: i64| Row {
        service: Some("a".to_owned()),
        time,
        arrival: time,
        body: Some("x".repeat(100)),
        attribute: None,
        flags: None,
        overflow: None,
    };
    let rules = FileRules {
        row_group_bytes: 1000,
        ..FileRules::default()
    };
    let world = World::new(&[(0..100).map(row).collect()], &rules);
    let mut input = MergeInput::open(&world.inputs[0], 0, &LOGS, &table(), MergeReadOptions::default()).unwrap();
    input.find_sources(&LOGS, &table());
    let (keys, mut tally) = (SortKeys::new(&LOGS), Default::default());
    let mut before = Vec::new();
    while let Some(piece) = input.next(&keys, &mut tally).unwrap() {
        assert!(piece.sources.contains_key("body"));
        before.push(Arc::downgrade(&piece.sources));
    }
    let (last, others) = before.split_last().unwrap();
    assert!(others.len() > 5 && last.upgrade().is_some());
    assert!(others.iter().all(|sources| sources.upgrade().is_none()));
}
