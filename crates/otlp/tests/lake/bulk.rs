//! Ingests files of each kind and checks the tables.

mod limits;
mod names;
mod parquet_files;

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, RecordBatch};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use prost::Message as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::proto::{
    Any, Data, Gauge, Log, Logs, Metric, Metrics, NumberPoint, NumberValue, Pair, Resource, ResourceLogs,
    ResourceMetrics, ResourceSpans, ScopeLogs, ScopeMetrics, ScopeSpans, Span, Traces, Value,
};
use thalweg_columns::tables::{METRICS, TRACES};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_delta::{DeltaLog, Snapshot, SnapshotDetail};
use thalweg_lake::bulk::{BulkError, BulkImporter, BulkOptions, BulkProgress, BulkReport, BulkRequest, BulkSource};
use thalweg_lake::{LakeMetrics, Signal};
use thalweg_otlp::OtlpBulkRequests;

/// A row by its columns, without nulls.
type Row = BTreeMap<String, String>;

struct World {
    runtime: Runtime,
    folder: TempDir,
    options: BulkOptions,
    /// Adds the rows of files that lack times or bodies.
    accept_missing: bool,
}

impl World {
    fn new() -> World {
        World {
            runtime: Runtime::new().unwrap(),
            folder: tempfile::tempdir().unwrap(),
            options: BulkOptions::default(),
            accept_missing: true,
        }
    }

    fn lake(&self) -> PathBuf {
        self.folder.path().join("lake")
    }

    fn bulk(&self, wanted: BulkRequest) -> BulkImporter {
        let metrics = LakeMetrics::register(&thalweg_telemetry::Metrics::default());
        let runtime = self.runtime.handle().clone();
        let site = LakeStorage::folder(&self.lake(), SyncedStore::new());
        let requests = Box::new(OtlpBulkRequests::default());
        let wanted = BulkRequest {
            accept_missing: self.accept_missing,
            ..wanted
        };
        BulkImporter::new(
            site,
            &self.lake(),
            runtime,
            metrics,
            requests,
            self.options.clone(),
            wanted,
        )
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn ingest_with(&self, name: &str, bytes: &[u8], wanted: BulkRequest) -> Result<BulkReport, BulkError> {
        let path = self.file(name, bytes);
        let mut bulk = self.bulk(wanted);
        let report = bulk.ingest(
            &path.display().to_string(),
            BulkSource::File(path),
            &BulkProgress::default(),
        );
        bulk.close();
        report
    }

    fn ingest(&self, name: &str, bytes: &[u8]) -> Result<BulkReport, BulkError> {
        self.ingest_with(name, bytes, BulkRequest::default())
    }

    fn stream(&self, bytes: &[u8]) -> Result<BulkReport, BulkError> {
        let source = BulkSource::Stream(Box::new(Cursor::new(bytes.to_vec())));
        self.bulk(BulkRequest::default())
            .ingest("-", source, &BulkProgress::default())
    }

    fn snapshot(&self, table: &str) -> Option<Snapshot> {
        let log = DeltaLog::new(&self.lake().join(table), SyncedStore::new()).unwrap();
        self.runtime.block_on(log.load(SnapshotDetail::Counts)).unwrap()
    }

    /// All rows of a table in time order, without the columns that differ from run to run.
    fn rows(&self, table: &str) -> Vec<Row> {
        let Some(snapshot) = self.snapshot(table) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for file in snapshot.files.values() {
            let bytes = bytes::Bytes::from(std::fs::read(self.lake().join(table).join(&*file.path)).unwrap());
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
                .unwrap()
                .build()
                .unwrap();
            for batch in reader {
                rows.extend(shown(&batch.unwrap()));
            }
        }
        rows.sort();
        rows
    }

    /// Counts the files of uncommitted work.
    fn leftovers(&self) -> usize {
        std::fs::read_dir(self.lake().join("_thalweg/ingest")).map_or(0, |entries| entries.count())
    }
}

fn shown(batch: &RecordBatch) -> Vec<Row> {
    let options = FormatOptions::default();
    let schema = batch.schema();
    let of_row = |row: usize| {
        let value = |(field, column): (&Arc<arrow::datatypes::Field>, &ArrayRef)| {
            let is_there = column.is_valid(row) && field.name() != "arrival_unix_nano" && field.name() != "time";
            let text = || {
                ArrayFormatter::try_new(column, &options)
                    .unwrap()
                    .value(row)
                    .to_string()
            };
            is_there.then(|| (field.name().clone(), text()))
        };
        schema.fields().iter().zip(batch.columns()).filter_map(value).collect()
    };
    (0..batch.num_rows()).map(of_row).collect()
}

fn row(pairs: &[(&str, &str)]) -> Row {
    pairs
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

/// Keeps only the named columns of rows.
fn only(rows: &[Row], names: &[&str]) -> Vec<Row> {
    let kept = |row: &Row| {
        row.iter()
            .filter(|(name, _)| names.contains(&name.as_str()))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    rows.iter().map(kept).collect()
}

fn text(value: &str) -> Option<Any> {
    Some(Any {
        value: Some(Value::Text(value.to_owned())),
    })
}

fn pair(name: &str, value: &str) -> Pair {
    Pair {
        key: name.to_owned(),
        value: text(value),
    }
}

fn resource() -> Option<Resource> {
    Some(Resource {
        attributes: vec![pair("service.name", "shop")],
        ..Resource::default()
    })
}

/// One group for each three records.
fn logs(bodies: &[String]) -> Vec<u8> {
    let groups = bodies.chunks(3).map(|bodies| ResourceLogs {
        resource: resource(),
        scopes: vec![ScopeLogs {
            records: bodies
                .iter()
                .map(|body| Log {
                    time: 1_780_000_000_000_000_000,
                    body: text(body),
                    ..Log::default()
                })
                .collect(),
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    });
    Logs {
        groups: groups.collect(),
    }
    .encode_to_vec()
}

fn bodies(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("order {n} is paid")).collect()
}

fn spans() -> Vec<u8> {
    let span = Span {
        trace_id: vec![1; 16],
        span_id: vec![2; 8],
        name: "GET /".to_owned(),
        start: 1_780_000_000_000_000_000,
        end: 1_780_000_000_000_000_500,
        ..Span::default()
    };
    let scopes = vec![ScopeSpans {
        records: vec![span],
        ..ScopeSpans::default()
    }];
    Traces {
        groups: vec![ResourceSpans {
            resource: resource(),
            scopes,
            ..ResourceSpans::default()
        }],
    }
    .encode_to_vec()
}

fn points() -> Vec<u8> {
    let point = NumberPoint {
        time: 1_780_000_000_000_000_000,
        value: Some(NumberValue::Double(1.5)),
        ..NumberPoint::default()
    };
    let metric = Metric {
        name: "load".to_owned(),
        data: Some(Data::Gauge(Gauge { points: vec![point] })),
        ..Metric::default()
    };
    let scopes = vec![ScopeMetrics {
        records: vec![metric],
        ..ScopeMetrics::default()
    }];
    Metrics {
        groups: vec![ResourceMetrics {
            resource: resource(),
            scopes,
            ..ResourceMetrics::default()
        }],
    }
    .encode_to_vec()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_file_is_in_its_table_once_however_often_it_is_ingested() {
    let world = World::new();
    let bytes = gzip(&logs(&bodies(10)));
    let report = world.ingest("x.binpb.gz", &bytes).unwrap();
    assert_eq!((report.rows(), report.rejected(), report.is_known()), (10, 0, false));
    assert_eq!(report.tables["logs"].version, Some(1));
    let again = world.ingest("other-name.binpb.gz", &bytes).unwrap();
    assert!(again.is_known() && again.rows() == 0, "{again:?}");
    assert!(world.stream(&bytes).unwrap().is_known());
    assert_eq!(world.rows("logs").len(), 10);
    let wanted = BulkRequest {
        again: true,
        ..BulkRequest::default()
    };
    assert_eq!(
        world.ingest_with("x.binpb.gz", &bytes, wanted.clone()).unwrap().rows(),
        10
    );
    assert_eq!(world.ingest_with("x.binpb.gz", &bytes, wanted).unwrap().rows(), 10);
    assert_eq!(world.rows("logs").len(), 30);
    assert!(world.ingest("x.binpb.gz", &bytes).unwrap().is_known());
    assert_eq!(world.leftovers(), 0);
}

#[test]
fn signals_are_found_by_name_by_content_and_by_what_is_asked_for() {
    let world = World::new();
    let tables = |report: BulkReport| report.tables.keys().copied().collect::<Vec<_>>();
    assert_eq!(tables(world.ingest("a.binpb", &logs(&bodies(1))).unwrap()), ["logs"]);
    assert_eq!(tables(world.ingest("b.binpb", &spans()).unwrap()), ["traces"]);
    assert_eq!(tables(world.ingest("c.binpb", &points()).unwrap()), ["metrics"]);
    assert_eq!(tables(world.stream(&[spans(), spans()].concat()).unwrap()), ["traces"]);
    assert_eq!(world.rows("traces").len(), 3);
    // A body alone could also be the name of a span or a metric.
    let bare = Logs {
        groups: vec![ResourceLogs {
            scopes: vec![ScopeLogs {
                records: vec![Log::default()],
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    }
    .encode_to_vec();
    for bytes in [&b"\x0a\x04\x12\x02\x12\x00"[..], &bare] {
        let error = world.ingest("d.binpb", bytes);
        match error {
            Err(error) => assert!(error.to_string().starts_with("ingest.signal_unknown: "), "{error}"),
            Ok(report) => assert_eq!(tables(report), ["logs"], "an empty log is a log alone"),
        }
    }
    let error = world
        .ingest("traces-1.binpb", &logs(&bodies(2)))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("otlp.malformed: byte "), "{error}");
    let wanted = BulkRequest {
        signal: Some(Signal::Traces),
        ..BulkRequest::default()
    };
    assert_eq!(
        tables(
            world
                .ingest_with("logs.binpb", &[spans(), vec![]].concat(), wanted)
                .unwrap()
        ),
        ["traces"]
    );
}

#[test]
fn a_file_that_is_larger_than_memory_may_be_is_many_files_and_one_commit() {
    let mut world = World::new();
    world.options.flush_bytes = 1;
    // The parts of a request are one megabyte each.
    let long = "x".repeat(2000);
    let bodies: Vec<String> = (0..3000).map(|n| format!("{n} {long}")).collect();
    let report = world.ingest("logs.binpb", &logs(&bodies)).unwrap();
    let table = &report.tables["logs"];
    assert_eq!((table.rows, report.rejected()), (3000, 0));
    assert!(table.files >= 6, "{table:?}");
    let snapshot = world.snapshot("logs").unwrap();
    assert_eq!((snapshot.rows, snapshot.files.len() as u64), (3000, table.files));
    let log = DeltaLog::new(&world.lake().join("logs"), SyncedStore::new()).unwrap();
    let adds = |version| {
        let actions = world.runtime.block_on(log.read_commit(version)).unwrap().unwrap();
        actions
            .iter()
            .filter(|action| matches!(action, thalweg_delta::actions::Action::Add(_)))
            .count() as u64
    };
    let all: Vec<u64> = (0..=snapshot.version).map(adds).collect();
    assert_eq!(
        (all.iter().sum::<u64>(), all.last()),
        (table.files, Some(&table.files)),
        "{all:?}"
    );
    assert_eq!(world.leftovers(), 0);
    assert!(world.ingest("logs.binpb", &logs(&bodies)).unwrap().is_known());
}

#[test]
fn nothing_of_a_file_that_fails_is_in_a_table() {
    let mut world = World::new();
    world.options.flush_bytes = 1;
    let long = "x".repeat(2000);
    let whole = logs(&(0..2000).map(|n| format!("{n} {long}")).collect::<Vec<_>>());
    let error = world
        .ingest("logs.binpb", &whole[..whole.len() - 5])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("otlp.malformed: byte ") && error.ends_with("it is cut off within a field"),
        "{error}"
    );
    let packed = gzip(&whole);
    let error = world
        .ingest("logs.binpb.gz", &packed[..packed.len() / 2])
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("otlp.malformed: it cannot be decompressed"),
        "{error}"
    );
    let bomb = gzip(&vec![b'\n'; 64 << 20]);
    let error = world.ingest("x.ndjson.gz", &bomb).unwrap_err().to_string();
    assert!(
        error.starts_with("otlp.decoded_too_large: it becomes more than 1000 times"),
        "{error}"
    );
    assert_eq!(world.snapshot("logs").map_or(0, |snapshot| snapshot.rows), 0);
    assert_eq!(world.leftovers(), 0);
    let missing = world.bulk(BulkRequest::default()).ingest(
        "x",
        BulkSource::File("/no/such/file".into()),
        &BulkProgress::default(),
    );
    assert!(missing.unwrap_err().to_string().starts_with("it cannot be read: "));
}

#[test]
fn lines_are_requests_of_any_signal_or_rows() {
    let world = World::new();
    let lines = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"timeUnixNano":"1780000000000000000","body":{"stringValue":"from otlp"}}]}]}]}

{"timestamp":"2026-05-28T20:26:40Z","message":"from a row","level":"warn","user":{"id": 7, "tags": ["a"]},"took":1.50,"ok":true,"none":null}
{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"01010101010101010101010101010101","spanId":"0202020202020202","name":"x","startTimeUnixNano":"1780000000000000000"}]}]}]}
{"ts":1780000000.5,"msg":{"a":1},"resource.service.name":"shop","scope_name":"lib","trace_id":"01010101010101010101010101010101","time":"noon"}
no json
{"cut": "off
{"timestamp":"yesterday"}
"#;
    let report = world.ingest("x.ndjson", lines.as_bytes()).unwrap();
    let rows = |name: &str| report.tables[name].rows;
    assert_eq!((rows("logs"), rows("traces"), report.rejected["bad_line"]), (3, 1, 3));
    let found = world.rows("logs");
    let mut expected = vec![
        row(&[("body", "from otlp"), ("time_unix_nano", "1780000000000000000")]),
        row(&[
            ("attr_ok", "true"),
            ("attr_took", "1.5"),
            ("attr_user_id", "7"),
            ("attr_user_tags", "[\"a\"]"),
            ("body", "from a row"),
            ("severity_number", "13"),
            ("severity_text", "warn"),
            ("time_unix_nano", "1780000000000000000"),
        ]),
        row(&[
            ("attr_time", "noon"),
            ("body", "{\"a\":1}"),
            ("body_kind", "map"),
            ("resource_service_name", "shop"),
            ("scope_name", "lib"),
            ("time_unix_nano", "1780000000500000000"),
            ("trace_id", "01010101010101010101010101010101"),
        ]),
    ];
    expected.sort();
    let mut found = found;
    for row in &mut found {
        assert!(row.remove("fingerprint").is_some());
    }
    found.sort();
    // A field that looks like a time but is invalid becomes an attribute.
    assert_eq!(found, expected);
    let quarantine = std::fs::read_to_string(report.quarantine.unwrap()).unwrap();
    let bad: Vec<serde_json::Value> = quarantine
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<u64> = bad.iter().map(|bad| bad["line"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [6, 7, 8]);
    assert_eq!(bad[0]["text"], "no json");
    assert!(
        bad[2]["reason"]
            .as_str()
            .unwrap()
            .starts_with("timestamp: \"yesterday\" is not a time")
    );
    assert!(world.ingest("x.ndjson", lines.as_bytes()).unwrap().is_known());
    // A run that was killed between two tables is completed.
    std::fs::remove_dir_all(world.lake().join("traces")).unwrap();
    let report = world.ingest("x.ndjson", lines.as_bytes()).unwrap();
    assert!(report.tables["logs"].is_known && !report.tables["traces"].is_known);
    assert_eq!((world.rows("logs").len(), world.rows("traces").len()), (3, 1));
}

#[test]
fn a_document_may_go_over_lines_or_be_a_list() {
    let world = World::new();
    let list = "[\n  {\"message\": \"a\",\n   \"ts\": 1780000000},\n  {\"message\": \"b\"}\n]\n";
    assert_eq!(world.ingest("x.json", list.as_bytes()).unwrap().rows(), 2);
    let pretty = "{\n  \"resourceLogs\": [{\"scopeLogs\": [{\"logRecords\": [{\n \"body\": {\"stringValue\": \"c\"}}]}]}]\n}\n{\"message\": \"d\"}";
    assert_eq!(world.ingest("y.json", pretty.as_bytes()).unwrap().rows(), 2);
    assert_eq!(world.ingest("empty.json", b"").unwrap().rows(), 0);
    world
        .ingest(
            "long.json",
            format!("[{}]", vec!["{\"n\":1}"; 100_000].join(",")).as_bytes(),
        )
        .unwrap();
    // A truncated line does not swallow the lines after it.
    let cut = world.ingest("z.json", b"{\"message\": \"cut\n{\"n\": 1}\n").unwrap();
    assert_eq!((cut.rows(), cut.rejected()), (1, 1));
    let error = world.ingest_with(
        "x.jsonl",
        list.replace("  ", " ").as_bytes(),
        BulkRequest {
            bad_max: 3,
            ..BulkRequest::default()
        },
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("ingest.too_many_bad: more than 3 lines are bad, the first is line 1: "),
        "{error}"
    );
    assert!(
        error.contains("they are in ") && error.contains("quarantine"),
        "{error}"
    );
    let rows = world.rows("logs");
    assert_eq!(rows.len(), 100_005);
    let mut found: Vec<String> = rows.into_iter().filter_map(|mut row| row.remove("body")).collect();
    found.sort();
    assert_eq!(found, ["a", "b", "c", "d"]);
}

#[test]
fn csv_goes_by_its_header_and_ragged_rows_are_bad() {
    let world = World::new();
    let csv = "\u{feff}when,usr,severity,line,http.route,trace_id\r\n\
               20260528202640,ann,ERROR,\"two\nlines, \"\"quoted\"\"\",/a,\r\n\
               20260528202641,,9,plain,,short\r\n\
               a,b\r\n\
               20260528202642,bob,,last,/b,0101010101010101010101010101010A\r\n";
    let wanted = BulkRequest {
        renamed: vec![
            ("when".to_owned(), "time".to_owned()),
            ("usr".to_owned(), "user.name".to_owned()),
        ],
        time_format: Some("%Y%m%d%H%M%S".to_owned()),
        ..BulkRequest::default()
    };
    let report = world.ingest_with("x.csv", csv.as_bytes(), wanted).unwrap();
    assert_eq!(
        (report.rows(), report.rejected(), report.changed["id_wrong"]),
        (3, 1, 1)
    );
    let names = [
        "attr_user_name",
        "attr_http_route",
        "severity_text",
        "severity_number",
        "body",
        "trace_id",
        "time_unix_nano",
    ];
    assert_eq!(
        only(&world.rows("logs"), &names)
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>(),
        [
            row(&[
                ("attr_http_route", "/a"),
                ("attr_user_name", "ann"),
                ("body", "two\nlines, \"quoted\""),
                ("severity_number", "17"),
                ("severity_text", "ERROR"),
                ("time_unix_nano", "1780000000000000000"),
            ]),
            row(&[
                ("body", "plain"),
                ("severity_number", "9"),
                ("time_unix_nano", "1780000001000000000")
            ]),
            row(&[
                ("attr_http_route", "/b"),
                ("attr_user_name", "bob"),
                ("body", "last"),
                ("time_unix_nano", "1780000002000000000"),
                ("trace_id", "0101010101010101010101010101010a"),
            ]),
        ]
        .into()
    );
    let quarantine = std::fs::read_to_string(report.quarantine.unwrap()).unwrap();
    assert!(
        quarantine.starts_with("{\"line\":5,\"reason\":\"it has 2 values, and the header has 6 names\""),
        "{quarantine}"
    );
    for (text, why) in [
        (
            "a;b\n1;2\n",
            "ingest.no_header: the names in the first line are separated by ';'",
        ),
        ("a,,b\n", "ingest.no_header: column 2 has no name"),
        ("a,a\n", "ingest.no_header: two columns are called \"a\""),
    ] {
        let error = world.ingest("y.csv", text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(why), "{error}");
    }
    assert_eq!(world.ingest("empty.csv", b"").unwrap().rows(), 0);
}

#[test]
fn spans_and_points_of_the_reference_system_are_rows_of_ours() {
    let world = World::new();
    let of = |table| BulkRequest {
        table: Some(table),
        ..BulkRequest::default()
    };
    let spans = r#"{"chq_tsns":1780000000000000000,"chq_timestamp":1780000000000,"span_trace_id":"01010101010101010101010101010101","span_id":"0202020202020202","span_parent_id":"0303030303030303","span_name":"GET /","span_kind":"SPAN_KIND_SERVER","span_status_code":"STATUS_CODE_ERROR","span_duration":1.5,"span_end_timestamp":1780000000002,"resource_service_name":"shop","attr_http_route":"/","events":[{"time_unix_nano":1780000000000000001,"name":"e","attributes":{"k":1}}]}
{"chq_tsns":1,"span_id":"0202020202020202"}
{"span_trace_id":"01010101010101010101010101010101","span_id":"0202020202020202","kind":"sideways"}"#;
    let report = world.ingest_with("x.ndjson", spans.as_bytes(), of(&TRACES)).unwrap();
    assert_eq!(
        (
            report.rows(),
            report.rejected["invalid_id"],
            report.rejected["bad_line"]
        ),
        (1, 1, 1)
    );
    let mut found = world.rows("traces");
    let events = found[0].remove("events").unwrap();
    assert!(events.contains("name: e") && events.contains("k: 1"), "{events}");
    assert!(found[0].remove("fingerprint").is_some());
    assert_eq!(
        found,
        [row(&[
            ("attr_http_route", "/"),
            ("duration_ns", "1500000"),
            ("end_time_unix_nano", "1780000000002000000"),
            ("kind", "server"),
            ("name", "GET /"),
            ("parent_span_id", "0303030303030303"),
            ("resource_service_name", "shop"),
            ("span_id", "0202020202020202"),
            ("status_code", "error"),
            ("time_unix_nano", "1780000000000000000"),
            ("trace_id", "01010101010101010101010101010101"),
        ])]
    );
    let points = r#"{"metric_name":"load","value":3,"timestamp":1780000000,"host":"a","resource_service_name":"shop"}
{"metric_name":"h","metric_type":"histogram","temporality":"Delta","count":3,"sum":1e1,"explicit_bounds":[1,2],"bucket_counts":[1,1,1]}
{"metric_name":"h","metric_type":"histogram","explicit_bounds":[1,2],"bucket_counts":[1,1]}
{"value":1}"#;
    let report = world.ingest_with("y.ndjson", points.as_bytes(), of(&METRICS)).unwrap();
    assert_eq!(
        (
            report.rows(),
            report.rejected["invalid_point"],
            report.rejected["bad_line"]
        ),
        (2, 1, 1)
    );
    let rows = world.rows("metrics");
    let names = [
        "metric_name",
        "metric_type",
        "temporality",
        "value",
        "value_int",
        "count",
        "sum",
        "explicit_bounds",
        "bucket_counts",
    ];
    assert_eq!(
        only(&rows, &names)
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>(),
        [
            row(&[
                ("metric_name", "load"),
                ("metric_type", "gauge"),
                ("value", "3.0"),
                ("value_int", "3")
            ]),
            row(&[
                ("bucket_counts", "[1, 1, 1]"),
                ("count", "3"),
                ("explicit_bounds", "[1.0, 2.0]"),
                ("metric_name", "h"),
                ("metric_type", "histogram"),
                ("sum", "10.0"),
                ("temporality", "delta"),
            ]),
        ]
        .into()
    );
}

#[test]
fn a_dry_run_says_what_would_be_and_leaves_no_trace() {
    let world = World::new();
    let dry = || BulkRequest {
        dry_run: true,
        ..BulkRequest::default()
    };
    let report = world.ingest_with("x.ndjson", b"{\"message\":\"a\"}\nx", dry()).unwrap();
    assert_eq!(
        (report.rows(), report.rejected(), report.tables["logs"].version),
        (1, 1, None)
    );
    assert!(!world.lake().exists());
    world.ingest("x.ndjson", b"{\"message\":\"a\"}\nx").unwrap();
    let report = world.ingest_with("x.ndjson", b"{\"message\":\"a\"}\nx", dry()).unwrap();
    assert!(report.is_known());
}

#[test]
fn who_comes_first_adds_columns_and_who_comes_second_adopts_them() {
    let mut world = World::new();
    world.ingest("first.ndjson", b"{\"message\":\"a\"}").unwrap();
    world.options.flush_bytes = 1;
    let mut slow = world.bulk(BulkRequest::default());
    // It loads the table before another run adds columns.
    slow.ingest(
        "-",
        BulkSource::Stream(Box::new(Cursor::new(b"{\"message\":\"b\"}".to_vec()))),
        &BulkProgress::default(),
    )
    .unwrap();
    world.ingest("second.ndjson", b"{\"message\":\"c\",\"a.b\":1}").unwrap();
    let long = "x".repeat(3000);
    let lines: Vec<String> = (0..300)
        .map(|n| format!("{{\"message\":\"{n} {long}\",\"a_b\":{n},\"new.{}\":1}}", n / 100))
        .collect();
    let report = slow
        .ingest(
            "-",
            BulkSource::Stream(Box::new(Cursor::new(lines.join("\n").into_bytes()))),
            &BulkProgress::default(),
        )
        .unwrap();
    assert_eq!(report.rows(), 300);
    assert!(report.tables["logs"].files > 1);
    let rows = world.rows("logs");
    assert_eq!(rows.len(), 303);
    assert_eq!(
        rows.iter().filter(|row| row.contains_key("attr_a_b")).count(),
        1,
        "it is bound to the first name"
    );
    let suffixed = |row: &&Row| row.keys().any(|name| name.starts_with("attr_a_b__"));
    assert_eq!(rows.iter().filter(suffixed).count(), 300);
    for n in 0..3 {
        assert_eq!(
            rows.iter()
                .filter(|row| row.contains_key(&format!("attr_new_{n}")))
                .count(),
            100
        );
    }
}
