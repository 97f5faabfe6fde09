//! Ingests files whose columns have other names than those of the tables.

use super::*;

fn strict() -> World {
    World {
        accept_missing: false,
        ..World::new()
    }
}

/// The rows without the columns that follow from others.
fn rows(world: &World, table: &str) -> Vec<Row> {
    let mut rows = world.rows(table);
    for row in &mut rows {
        for made in ["fingerprint", "series_id", "metric_type"] {
            row.remove(made);
        }
    }
    rows
}

const TIME: &str = "1780000000000000000";

#[test]
fn the_usual_names_are_known_whatever_their_case() {
    let times = [
        ("timestamp", "\"2026-05-28T20:26:40Z\""),
        ("Timestamp", "\"2026-05-28T20:26:40Z\""),
        ("TIME", "\"2026-05-28 20:26:40\""),
        ("Ts", "1780000000"),
        ("@Timestamp", "1780000000000"),
        ("DateTime", "\"2026-05-28T20:26:40Z\""),
        ("Date", "\"2026-05-28T20:26:40Z\""),
        ("event_time", "1780000000"),
        ("eventTime", "1780000000000000"),
        ("createdAt", "\"2026-05-28T22:26:40+02:00\""),
        ("created_at", "1780000000"),
        ("timestamp_ns", "1780000000000000000"),
        ("timestamp_us", "\"1780000000000000\""),
        ("timestamp_ms", "1780000000000"),
        ("_cardinalhq.timestamp", "1780000000000"),
    ];
    let bodies = [
        "message",
        "Message",
        "MSG",
        "body",
        "Body",
        "text",
        "Content",
        "raw",
        "log",
        "Line",
        "_cardinalhq.message",
    ];
    let levels = [
        "level",
        "Level",
        "severity",
        "logLevel",
        "loglevel",
        "SeverityText",
        "_cardinalhq.level",
    ];
    let services = [
        "service",
        "Service",
        "service_name",
        "service.name",
        "_cardinalhq.service",
    ];
    let row_of = |(time, value): (&str, &str), body: &str, level: &str, service: &str| {
        format!(r#"{{"{time}":{value},"{body}":"it runs","{level}":"WARN","{service}":"shop"}}"#)
    };
    let usual = (times[0], bodies[0], levels[0], services[0]);
    let lines: Vec<String> = times
        .iter()
        .map(|time| row_of(*time, usual.1, usual.2, usual.3))
        .chain(bodies.iter().map(|body| row_of(usual.0, body, usual.2, usual.3)))
        .chain(levels.iter().map(|level| row_of(usual.0, usual.1, level, usual.3)))
        .chain(
            services
                .iter()
                .map(|service| row_of(usual.0, usual.1, usual.2, service)),
        )
        .collect();
    let world = strict();
    let report = world.ingest("x.ndjson", lines.join("\n").as_bytes()).unwrap();
    assert_eq!((report.rows(), report.rejected()), (lines.len() as u64, 0));
    let expected = row(&[
        ("body", "it runs"),
        ("resource_service_name", "shop"),
        ("severity_number", "13"),
        ("severity_text", "WARN"),
        ("time_unix_nano", TIME),
    ]);
    for found in rows(&world, "logs") {
        assert_eq!(found, expected);
    }
}

#[test]
fn of_several_names_the_best_is_used_and_nothing_is_lost() {
    let world = strict();
    let lines = r#"{"Timestamp":"2026-05-28T20:26:40Z","timestamp":"2026-05-28T20:26:40Z","message":"","text":"a"}
{"created_at":"2020-01-01T00:00:00Z","ts":1780000000,"log":{"level":"error","file":"x.c"},"line":"b"}
{"time":1780000000,"raw":"whole","msg":"c","level":"odd","severity":7,"service":{"name":"shop","version":"2"}}
{"date":"2026-05-28","time":"20:26:40","message":"d"}
{"date":"2026-05-28T20:26:40Z","message":"e","TraceId":"0101010101010101010101010101010A","Flags":"many"}
{"timestamp_ms":3,"ts":1780000000,"message":"f","Level":"info","trace_id":"01010101010101010101010101010101","traceId":"x"}"#;
    let report = world.ingest("x.ndjson", lines.as_bytes()).unwrap();
    assert_eq!((report.rows(), report.rejected()), (6, 0), "{report:?}");
    let mut found: Vec<Row> = rows(&world, "logs")
        .into_iter()
        .map(|mut row| {
            assert_eq!(row.remove("time_unix_nano").as_deref(), Some(TIME), "{row:?}");
            row
        })
        .collect();
    found.sort_by_key(|row| row["body"].clone());
    let expected = [
        row(&[
            ("attr_message", ""),
            ("attr_timestamp", "2026-05-28T20:26:40Z"),
            ("body", "a"),
        ]),
        row(&[
            ("attr_created_at", "2020-01-01T00:00:00Z"),
            ("attr_log_file", "x.c"),
            ("body", "b"),
            ("severity_number", "17"),
            ("severity_text", "error"),
        ]),
        row(&[
            ("attr_level", "odd"),
            ("attr_raw", "whole"),
            ("attr_service_version", "2"),
            ("body", "c"),
            ("resource_service_name", "shop"),
            ("severity_number", "7"),
        ]),
        row(&[("attr_time", "20:26:40"), ("body", "d")]),
        row(&[
            ("attr_flags", "many"),
            ("body", "e"),
            ("trace_id", "0101010101010101010101010101010a"),
        ]),
        row(&[
            ("attr_timestamp_ms", "3"),
            ("attr_traceid", "x"),
            ("body", "f"),
            ("severity_number", "9"),
            ("severity_text", "info"),
            ("trace_id", "01010101010101010101010101010101"),
        ]),
    ];
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    let mapped = BulkRequest {
        renamed: vec![
            ("seen".to_owned(), "time".to_owned()),
            ("attributes.what".to_owned(), "body".to_owned()),
        ],
        ..BulkRequest::default()
    };
    let world = strict();
    let line =
        r#"{"timestamp":"2020-01-01T00:00:00Z","seen":1780000000,"message":"other","attributes":{"what":"mapped"}}"#;
    world.ingest_with("y.ndjson", line.as_bytes(), mapped).unwrap();
    assert_eq!(
        rows(&world, "logs"),
        [row(&[
            ("attr_message", "other"),
            ("attr_timestamp", "2020-01-01T00:00:00Z"),
            ("body", "mapped"),
            ("time_unix_nano", TIME)
        ])]
    );
}

const MEMBERS: [(&str, &str); 7] = [
    ("attr_http_route", "/a"),
    ("attr_labels_app", "web"),
    ("attr_labels_deep", "{\"a\":{\"b\":[1]}}"),
    ("body", "it runs"),
    ("resource_host_name", "h"),
    ("resource_service_name", "shop"),
    ("time_unix_nano", TIME),
];

#[test]
fn objects_are_attributes_as_in_requests() {
    let world = strict();
    let line = r#"{"time":1780000000,"Body":"it runs","attributes":{"http.route":"/a","nothing":null},
        "resource":{"attributes":{"service.name":"shop","host.name":"h"}},"scope":{"name":"lib","version":"1","attributes":{"x":true}},
        "labels":{"app":"web","deep":{"a": {"b": [1]}}},"empty":{},"list":[{"a":1}]}"#;
    world.ingest("x.json", line.as_bytes()).unwrap();
    let mut expected = row(&MEMBERS);
    expected.extend(row(&[
        ("attr_empty", "{}"),
        ("attr_list", "[{\"a\":1}]"),
        ("scope_name", "lib"),
        ("scope_version", "1"),
        ("scope_x", "true"),
    ]));
    assert_eq!(rows(&world, "logs"), [expected]);
    // So many names would fill the columns of a table.
    let many: Vec<String> = (0..300).map(|n| format!("\"k{n}\":1")).collect();
    let line = format!("{{\"time\":1780000000,\"msg\":\"m\",\"by_id\":{{{}}}}}", many.join(","));
    let world = strict();
    world.ingest("y.ndjson", line.as_bytes()).unwrap();
    assert_eq!(rows(&world, "logs")[0]["attr_by_id"], format!("{{{}}}", many.join(",")));
}

#[test]
fn maps_and_structs_of_parquet_are_attributes_as_in_requests() {
    use arrow::array::{Int64Array, MapBuilder, StringArray, StringBuilder, StructArray};
    use arrow::datatypes::{DataType, Field};
    let map = |pairs: &[(&str, &str)]| -> ArrayRef {
        let mut map = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        for (name, value) in pairs {
            map.keys().append_value(name);
            map.values().append_value(value);
        }
        map.append(true).unwrap();
        Arc::new(map.finish())
    };
    let texts = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let text_field = |name: &str| Arc::new(Field::new(name, DataType::Utf8, true));
    let labels = StructArray::from(vec![
        (text_field("app"), texts("web")),
        (text_field("deep"), texts("{\"a\":{\"b\":[1]}}")),
    ]);
    let batch = RecordBatch::try_from_iter([
        ("Timestamp", Arc::new(Int64Array::from(vec![1_780_000_000])) as ArrayRef),
        ("Body", texts("it runs")),
        ("LogAttributes", map(&[("http.route", "/a")])),
        ("ResourceAttributes", map(&[("host.name", "h")])),
        ("ServiceName", texts("shop")),
        ("labels", Arc::new(labels)),
    ])
    .unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let world = strict();
    world.ingest("x.parquet", &bytes).unwrap();
    assert_eq!(rows(&world, "logs"), [row(&MEMBERS)]);
}

#[test]
fn a_file_whose_columns_are_not_known_is_not_added() {
    let advice = |world: &World, name: &str, text: &str, wanted: BulkRequest| {
        let error = world.ingest_with(name, text.as_bytes(), wanted).unwrap_err();
        assert!(error.is_of_columns() && !error.is_of_lake(), "{error}");
        assert!(world.rows("logs").is_empty() && world.leftovers() == 0);
        error.to_string()
    };
    let world = strict();
    let csv = "when it was,what,n\n2026-05-28 20:26:40,the pump has stopped,1\n2026-05-28 20:26:41,it runs,2\n";
    for dry_run in [false, true] {
        let wanted = BulkRequest {
            dry_run,
            ..BulkRequest::default()
        };
        assert_eq!(
            advice(&world, "x.csv", csv, wanted),
            "ingest.missing_fields: 2 of 2 rows have no time, and 2 no body; the columns are when it was \
             (\"2026-05-28 20:26:40\"), what (\"the pump has stopped\"), n (\"1\"); say which they are with \
             --map 'when it was=time' --map what=body; or add the rows as they are with --accept-missing"
        );
    }
    let no_body =
        "{\"ts\":1780000000,\"message\":\"a\"}\n{\"ts\":1780000000,\"n\":1}\n{\"ts\":1780000000,\"body\":\"\"}\n";
    let error = advice(&world, "x.ndjson", no_body, BulkRequest::default());
    assert!(
        error.starts_with("ingest.missing_fields: 2 of 3 rows have no body; the columns are ts"),
        "{error}"
    );
    let of_table = |table| BulkRequest {
        table: Some(table),
        ..BulkRequest::default()
    };
    let error = advice(
        &world,
        "p.ndjson",
        r#"{"metric_name":"load","value":1,"at":"2026-05-28T20:26:40Z"}"#,
        of_table(&METRICS),
    );
    assert!(
        error.contains("1 of 1 rows have no time; ") && error.contains("--map at=time; "),
        "{error}"
    );
    // The rest of a long file is not read.
    let long = "{\"n\":1}\n".repeat(150_000);
    let error = advice(&world, "long.ndjson", &long, BulkRequest::default());
    let read = error.trim_start_matches("ingest.missing_fields: ").split(' ').next();
    let read: u64 = read.and_then(|rows| rows.parse().ok()).unwrap();
    assert!((100_000..150_000).contains(&read), "{error}");

    let mapped = BulkRequest {
        renamed: vec![
            ("when it was".to_owned(), "time".to_owned()),
            ("what".to_owned(), "body".to_owned()),
        ],
        ..BulkRequest::default()
    };
    assert_eq!(world.ingest_with("x.csv", csv.as_bytes(), mapped).unwrap().rows(), 2);
    assert_eq!(
        world
            .rows("logs")
            .iter()
            .filter(|row| row.contains_key("time_source"))
            .count(),
        0
    );
    let half = "{\"ts\":1780000000,\"message\":\"a\"}\n{\"n\":1}\n";
    assert_eq!(world.ingest("half.ndjson", half.as_bytes()).unwrap().rows(), 2);
    let accepting = World::new();
    assert_eq!(accepting.ingest("x.csv", csv.as_bytes()).unwrap().rows(), 2);
    assert_eq!(accepting.rows("logs")[0]["time_source"], "arrival");
}

/// Names that mean something, in several spellings, and some that mean nothing. Those of times and ids are given values
/// that are none.
const NAMES: [&str; 34] = [
    "message",
    "Message",
    "msg",
    "body",
    "text",
    "Content",
    "raw",
    "log",
    "line",
    "level",
    "Level",
    "severity",
    "severity_text",
    "logLevel",
    "service",
    "Service",
    "service.name",
    "resource.service.name",
    "resource",
    "scope",
    "attributes",
    "LogAttributes",
    "labels",
    "kubernetes",
    "created_at",
    "eventTime",
    "date",
    "TraceId",
    "SpanId",
    "Flags",
    "event_name",
    "EventName",
    "_cardinalhq.message",
    "x",
];

/// Takes the next number below `limit`.
fn below(seed: &mut u64, limit: usize) -> usize {
    *seed = seed
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % limit
}

#[test]
fn whatever_a_row_has_is_somewhere_in_the_table() {
    let (mut seed, mut next, mut lines, mut sent) = (7, 0, Vec::new(), Vec::new());
    for _ in 0..400 {
        let (mut members, mut words, mut names) = (Vec::new(), Vec::new(), NAMES.to_vec());
        let mut word = || {
            next += 1;
            words.push(format!("word{next}w"));
            words[words.len() - 1].clone()
        };
        for _ in 0..1 + below(&mut seed, 9) {
            let name = names.swap_remove(below(&mut seed, names.len()));
            let value = match below(&mut seed, 3) {
                0 => {
                    let inner = NAMES[below(&mut seed, NAMES.len())];
                    format!(
                        r#"{{"{inner}":"{}","attributes":{{"deep":"{}"}},"y":["{}"]}}"#,
                        word(),
                        word(),
                        word()
                    )
                }
                _ => format!("\"{}\"", word()),
            };
            members.push(format!("\"{name}\":{value}"));
        }
        lines.push(format!("{{\"ts\":1780000000,{}}}", members.join(",")));
        sent.push(words);
    }
    let world = World::new();
    let report = world.ingest("x.ndjson", lines.join("\n").as_bytes()).unwrap();
    assert_eq!((report.rows(), report.rejected()), (400, 0));
    let all: Vec<String> = rows(&world, "logs").iter().map(|row| format!("{row:?}")).collect();
    let is_missing = |word: &&String| !all.iter().any(|row| row.contains(word.as_str()));
    let missing: Vec<&String> = sent.iter().flatten().filter(is_missing).collect();
    // Of an attribute that comes twice one value is kept.
    let repeated = report.changed.get("key_repeated").copied().unwrap_or_default();
    assert!(
        missing.len() as u64 <= repeated && repeated < 100,
        "{missing:?}, {repeated} repeated"
    );
}
