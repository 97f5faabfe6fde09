//! OpenTelemetry SDKs as senders and other engines as readers of the lake: every field that an SDK sends is found by SQL, and
//! other engines read the same rows as Thalweg.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use thalweg_tests::servers::{free_port, node_modules, python};
use thalweg_tests::{Thalweg, eventually};

/// A receiving process, with its base URLs of gRPC and HTTP.
fn start(more: &str) -> (Thalweg, String, String) {
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let yaml = format!(
        "ingest:\n  otlp:\n    http: {{address: \"127.0.0.1:{http}\"}}\n    grpc: {{address: \"127.0.0.1:{grpc}\"}}\n{more}"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    thalweg.wait_ready().unwrap();
    (
        thalweg,
        format!("http://127.0.0.1:{grpc}"),
        format!("http://127.0.0.1:{http}"),
    )
}

pub fn send(program: &mut Command, script: &str, arguments: &[&str]) {
    let script = thalweg_tests::beside("senders").join(script);
    let sent = program.arg(script).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&sent.stderr);
    assert!(sent.status.success(), "{arguments:?}: {error}");
}

/// The result of a query, as soon as it has this many rows. Before its first commit a table lacks the attribute columns.
fn ask(thalweg: &Thalweg, rows: usize, sql: &str) -> Vec<Value> {
    let answer = eventually(|| {
        let found = thalweg.sql(sql)?;
        anyhow::ensure!(found.len() >= rows, "{} rows of {rows}", found.len());
        Ok(found)
    });
    let answer = answer.unwrap();
    assert_eq!(answer.len(), rows, "{sql}");
    answer
}

/// The result of another engine.
pub fn ask_with(engine: &str, table: &Path, sql: &str) -> Value {
    let script = thalweg_tests::beside("python/read_table.py");
    let asked = Command::new(python().unwrap())
        .arg(script)
        .arg(engine)
        .arg(table)
        .arg(sql)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{engine}: {error}");
    serde_json::from_slice(&asked.stdout).unwrap()
}

#[test]
fn every_field_of_the_python_sdk_is_found() {
    let (mut thalweg, grpc, http) = start("");
    let senders = [("grpc", &grpc, None), ("http", &http, Some("gzip"))];
    for (protocol, endpoint, compression) in senders {
        let arguments: Vec<&str> = [protocol, endpoint].into_iter().chain(compression).collect();
        send(&mut Command::new(python().unwrap()), "otel_sdk.py", &arguments);
        let service = format!("python-{protocol}");
        python_logs(&thalweg, &service);
        python_metrics(&thalweg, &service);
        python_spans(&thalweg, &service);
    }
    thalweg.records_are_accounted_for().unwrap();
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait_within(std::time::Duration::from_secs(20)).unwrap();
    assert!(status.success(), "{}", thalweg.process.stderr());
    let tables = thalweg.data_dir().join("lake");
    for engine in ["duckdb", "deltalake"] {
        let logs = "select count(*) as rows, count(distinct attr_n) as n, sum(severity_number)::int as severity, \
                    count(distinct fingerprint) as fingerprints from t";
        let found = ask_with(engine, &tables.join("logs"), logs);
        assert_eq!(
            found,
            json!([{"rows": 500, "n": 250, "severity": 500 * 13, "fingerprints": 3}]),
            "{engine}"
        );
        let metrics = "select metric_name, count(*) as rows, max(len(bucket_counts)) as buckets from t group by 1 order by 1 limit 1";
        let found = ask_with(engine, &tables.join("metrics"), metrics);
        assert_eq!(
            found,
            json!([{"metric_name": "latency", "rows": 2, "buckets": 16}]),
            "{engine}"
        );
        let spans = "select name, len(events) as events, len(links) as links from t order by name, trace_id limit 1";
        let found = ask_with(engine, &tables.join("traces"), spans);
        assert_eq!(
            found,
            json!([{"name": "child", "events": null, "links": 1}]),
            "{engine}"
        );
    }
}

pub fn python_logs(thalweg: &Thalweg, service: &str) {
    let sql = format!(
        "select time_unix_nano, observed_time_unix_nano, time_source, severity_number, severity_text, body, body_kind, trace_id, \
         event_name, scope_name, scope_version, resource_service_version, resource_answer, resource_ratio, resource_tags, \
         resource_telemetry_sdk_language, attr_n, attr_even, attr_half, attr_raw, attr_list from logs \
         where resource_service_name = '{service}' order by cast(attr_n as int)"
    );
    let logs = ask(thalweg, 250, &sql);
    let trace = logs[0]["trace_id"].as_str().unwrap_or_default();
    assert_eq!(trace.len(), 32, "{:?}", logs[0]);
    let expected = |n: u64| {
        let own = n % 2 == 1;
        let observed = 1_780_000_000_000_000_500 + n;
        json!({
            "time_unix_nano": (if own { 1_780_000_000_000_000_000 + n } else { observed }).to_string(),
            "observed_time_unix_nano": observed.to_string(),
            "time_source": if own { Value::Null } else { "observed".into() },
            "severity_number": 13, "severity_text": "WARN",
            "body": if n == 1 { r#"{"n":1,"deep":{"list":[1,"two",null]}}"#.to_owned() } else { format!("line {n} of {service}") },
            "body_kind": if n == 1 { "map".into() } else { Value::Null },
            "trace_id": if n == 0 { trace.into() } else { Value::Null },
            "event_name": if n == 2 { "tick".into() } else { Value::Null },
            "scope_name": "sender", "scope_version": "9", "resource_service_version": "1.2.3", "resource_answer": "42",
            "resource_ratio": "0.5", "resource_tags": r#"["a","b"]"#, "resource_telemetry_sdk_language": "python",
            "attr_n": n.to_string(), "attr_even": n.is_multiple_of(2).to_string(), "attr_half": (n as f64 / 2.0).to_string(),
            "attr_raw": "AP8=", "attr_list": "[1,2]",
        })
    };
    for (n, found) in (0..).zip(&logs) {
        assert_eq!(*found, expected(n), "log {n}");
    }
}

pub fn python_metrics(thalweg: &Thalweg, service: &str) {
    let sql = format!(
        "select metric_name, metric_type, temporality, is_monotonic, unit, value, value_int, count, sum, min, max, \
         zero_count, attr_route, attr_room, series_id is not null as has_series from metrics \
         where resource_service_name = '{service}' order by metric_name"
    );
    let metrics = ask(thalweg, 5, &sql);
    let [latency, open, requests, sizes, temperature] = &metrics[..] else {
        panic!("{metrics:?}")
    };
    let histogram = json!({
        "metric_name": "latency", "metric_type": "histogram", "temporality": "cumulative", "is_monotonic": null, "unit": "ms",
        "value": null, "value_int": null, "count": 3, "sum": 731.0, "min": 1.0, "max": 700.0, "zero_count": null,
        "attr_route": null, "attr_room": null, "has_series": true,
    });
    assert_eq!(*latency, histogram);
    assert_eq!((&open["value_int"], &open["is_monotonic"]), (&json!(-2), &json!(false)));
    assert_eq!(
        (
            &requests["value_int"],
            &requests["is_monotonic"],
            &requests["unit"],
            &requests["attr_route"]
        ),
        (&json!(5), &json!(true), &json!("{request}"), &json!("/a"))
    );
    assert_eq!(
        (&sizes["metric_type"], &sizes["count"], &sizes["zero_count"]),
        (&json!("exponential_histogram"), &json!(3), &json!(0))
    );
    assert_eq!(
        (
            &temperature["metric_type"],
            &temperature["value"],
            &temperature["attr_room"]
        ),
        (&json!("gauge"), &json!(21.5), &json!("north"))
    );
}

pub fn python_spans(thalweg: &Thalweg, service: &str) {
    let sql = format!(
        "select name, kind, trace_id, span_id, parent_span_id, status_code, status_message, duration_ns >= 0 as took, \
         scope_schema_url, events[1]['name'] as event, links[1]['span_id'] as link from traces \
         where resource_service_name = '{service}' order by name"
    );
    let spans = ask(thalweg, 2, &sql);
    let (child, parent) = (&spans[0], &spans[1]);
    assert_eq!(
        (&child["trace_id"], &child["parent_span_id"]),
        (&parent["trace_id"], &parent["span_id"])
    );
    assert_eq!(child["link"], parent["span_id"]);
    assert_eq!(
        [
            &child["kind"],
            &child["status_code"],
            &child["status_message"],
            &parent["kind"],
            &parent["status_code"]
        ],
        [
            &json!("client"),
            &json!("error"),
            &json!("no route"),
            &json!("server"),
            &json!("unset")
        ]
    );
    assert_eq!(
        [
            &parent["event"],
            &parent["took"],
            &parent["scope_schema_url"],
            &parent["parent_span_id"]
        ],
        [
            &json!("cache miss"),
            &json!(true),
            &json!("https://opentelemetry.io/schemas/1.30.0"),
            &Value::Null
        ]
    );
}

#[test]
fn every_field_of_the_node_sdk_is_found() {
    let (mut thalweg, grpc, http) = start("");
    for (protocol, endpoint) in [("grpc", &grpc), ("json", &http), ("proto", &http)] {
        let mut node = Command::new("node");
        node.env("NODE_PATH", node_modules().unwrap());
        send(&mut node, "otel_sdk.mjs", &[protocol, endpoint]);
        let service = format!("node-{protocol}");
        let sql = format!(
            "select time_unix_nano, severity_number, body, resource_answer, resource_tags, attr_n, attr_even, attr_half, attr_raw \
             from logs where resource_service_name = '{service}' order by cast(attr_n as int)"
        );
        let logs = ask(&thalweg, 100, &sql);
        for (n, found) in (0_u64..).zip(&logs) {
            let body = if n == 1 {
                r#"{"n":1,"deep":[1,"two",null]}"#.to_owned()
            } else {
                format!("line {n} of {service}")
            };
            let expected = json!({
                "time_unix_nano": (1_780_000_000_000_000_000 + n).to_string(), "severity_number": 13, "body": body,
                "resource_answer": "42", "resource_tags": r#"["a","b"]"#, "attr_n": n.to_string(),
                "attr_even": n.is_multiple_of(2).to_string(), "attr_half": (n as f64 / 2.0 + 0.25).to_string(), "attr_raw": "AP8=",
            });
            assert_eq!(*found, expected, "log {n} over {protocol}");
        }
        if protocol == "proto" {
            continue;
        }
        let sql = format!(
            "select metric_name, value, count, sum, min, max, attr_route from metrics \
             where resource_service_name = '{service}' order by metric_name"
        );
        let metrics = ask(&thalweg, 2, &sql);
        assert_eq!(
            [
                &metrics[0]["count"],
                &metrics[0]["sum"],
                &metrics[1]["value"],
                &metrics[1]["attr_route"]
            ],
            [&json!(3), &json!(731.0), &json!(5.0), &json!("/a")]
        );
        let sql = format!(
            "select name, kind, status_message, trace_id, attr_http_route, events[1]['attributes']['key'] as key from traces \
             where resource_service_name = '{service}' order by name"
        );
        let spans = ask(&thalweg, 2, &sql);
        assert_eq!(spans[0]["trace_id"], spans[1]["trace_id"]);
        assert_eq!(
            [
                &spans[0]["kind"],
                &spans[0]["status_message"],
                &spans[1]["attr_http_route"],
                &spans[1]["key"]
            ],
            [&json!("client"), &json!("no route"), &json!("/cart/{id}"), &json!("k1")]
        );
    }
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait_within(std::time::Duration::from_secs(20)).unwrap();
    assert!(status.success(), "{}", thalweg.process.stderr());
}
