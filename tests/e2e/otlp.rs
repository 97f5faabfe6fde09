//! OpenTelemetry data over HTTP into the lake: data acknowledged with 200 is in its table, once, whatever happens in between.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use thalweg_tests::api::{Answer, Api};
use thalweg_tests::servers::free_port;
use thalweg_tests::{Thalweg, eventually};

/// A receiving process, with its HTTP port.
pub fn start(more: &str) -> (Thalweg, Api) {
    let (http, grpc) = (free_port().unwrap(), free_port().unwrap());
    let yaml = format!(
        "ingest:\n  otlp:\n    http: {{address: \"127.0.0.1:{http}\"}}\n    grpc: {{address: \"127.0.0.1:{grpc}\"}}\n{more}"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    // The status page responds before the receivers are ready.
    thalweg.wait_ready().unwrap();
    (thalweg, Api::at_root(&format!("127.0.0.1:{http}")))
}

/// Stops it like an operator.
pub fn end(thalweg: &mut Thalweg) {
    thalweg.process.signal("TERM").unwrap();
    let status = thalweg.process.wait_within(Duration::from_secs(20)).unwrap();
    assert!(status.success(), "{}", thalweg.process.stderr());
}

pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

pub fn attributes(pairs: &[(&str, Value)]) -> Value {
    let pair = |(key, value): &(&str, Value)| json!({"key": key, "value": value});
    pairs.iter().map(pair).collect()
}

pub fn text(text: &str) -> Value {
    json!({"stringValue": text})
}

/// An export request of logs with numbers.
pub fn logs(numbers: std::ops::Range<u64>) -> Value {
    logs_of(now(), numbers)
}

/// The same, of a given time.
pub fn logs_of(time: u64, numbers: std::ops::Range<u64>) -> Value {
    let record = |n: u64| {
        json!({
            "timeUnixNano": time.to_string(), "severityNumber": 9, "severityText": "INFO", "body": text(&format!("line {n}")),
            "attributes": attributes(&[("n", json!({"intValue": n.to_string()})), ("even", json!({"boolValue": n.is_multiple_of(2)}))]),
        })
    };
    let resource = attributes(&[("service.name", text("shop")), ("host.name", text("h1"))]);
    let records: Vec<Value> = numbers.map(record).collect();
    json!({"resourceLogs": [{
        "resource": {"attributes": resource},
        "scopeLogs": [{"scope": {"name": "tests", "version": "1"}, "logRecords": records}],
    }]})
}

pub fn is_stored(answer: &Answer) {
    assert_eq!((answer.status, answer.text.as_str()), (200, "{}"), "{answer:?}");
}

/// The numbers of rows and of distinct numbers, and their sum.
pub fn counts(thalweg: &Thalweg) -> anyhow::Result<(u64, u64, u64)> {
    let sql = "select count(*) as rows, count(distinct attr_n) as numbers, \
               coalesce(sum(cast(attr_n as bigint)), 0) as sum from logs";
    let row = thalweg.sql(sql)?.remove(0);
    let of = |name: &str| row[name].as_u64().unwrap_or(u64::MAX);
    Ok((of("rows"), of("numbers"), of("sum")))
}

#[test]
fn logs_metrics_and_spans_are_in_their_tables_with_every_field() {
    let (mut thalweg, otlp) = start("");
    is_stored(&otlp.post("/v1/logs", &logs(0..3)));
    let time = now();
    let resource = json!({"attributes": attributes(&[("service.name", text("shop"))])});
    is_stored(&otlp.post(
        "/v1/metrics",
        &json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [
            {"name": "requests", "unit": "1", "description": "all", "sum": {"aggregationTemporality": 2, "isMonotonic": true,
                "dataPoints": [{"timeUnixNano": time.to_string(), "asInt": "42", "attributes": attributes(&[("route", text("/a"))])}]}},
            {"name": "latency", "unit": "ms", "histogram": {"aggregationTemporality": 1, "dataPoints": [{
                "timeUnixNano": time.to_string(), "count": "3", "sum": 6.5, "min": 0.5, "max": 4.0,
                "explicitBounds": [1.0, 5.0], "bucketCounts": ["1", "2", "0"]}]}},
        ]}]}]}),
    ));
    is_stored(&otlp.post(
        "/v1/traces",
        &json!({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [{
            "traceId": "0102030405060708090a0b0c0d0e0f10", "spanId": "0102030405060708", "name": "GET /a", "kind": 2,
            "startTimeUnixNano": time.to_string(), "endTimeUnixNano": (time + 1500).to_string(),
            "status": {"code": 2, "message": "broken"},
            "events": [{"timeUnixNano": (time + 10).to_string(), "name": "retry", "attributes": attributes(&[("try", json!({"intValue": "2"}))])}],
            "links": [{"traceId": "ffffffffffffffffffffffffffffffff", "spanId": "eeeeeeeeeeeeeeee"}],
        }]}]}]}),
    ));
    let all = eventually(|| {
        let logs = thalweg.sql(
            "select body, severity_number, severity_text, resource_service_name, resource_host_name, scope_name, \
             scope_version, attr_n, attr_even, time_source from logs order by attr_n",
        )?;
        let metrics = thalweg.sql(
            "select metric_name, metric_type, temporality, is_monotonic, unit, value_int, value, count, sum, min, max, \
             explicit_bounds, bucket_counts, attr_route from metrics order by metric_name",
        )?;
        let spans = thalweg.sql(
            "select trace_id, span_id, name, kind, duration_ns, status_code, status_message, \
             events[1]['name'] as event, events[1]['attributes']['try'] as try, links[1]['span_id'] as link from traces",
        )?;
        anyhow::ensure!(logs.len() == 3 && metrics.len() == 2 && spans.len() == 1);
        Ok((logs, metrics, spans))
    });
    let (logs, metrics, spans) = all.unwrap();
    assert_eq!(
        logs[1],
        json!({"body": "line 1", "severity_number": 9, "severity_text": "INFO", "resource_service_name": "shop",
            "resource_host_name": "h1", "scope_name": "tests", "scope_version": "1", "attr_n": "1", "attr_even": "false",
            "time_source": null})
    );
    assert_eq!(
        metrics[0],
        json!({"metric_name": "latency", "metric_type": "histogram", "temporality": "delta", "is_monotonic": null, "unit": "ms",
            "value_int": null, "value": null, "count": 3, "sum": 6.5, "min": 0.5, "max": 4.0, "explicit_bounds": [1.0, 5.0],
            "bucket_counts": [1, 2, 0], "attr_route": null})
    );
    let sum = &metrics[1];
    assert_eq!(
        [
            &sum["metric_type"],
            &sum["temporality"],
            &sum["is_monotonic"],
            &sum["value_int"],
            &sum["value"],
            &sum["attr_route"]
        ],
        [
            &json!("sum"),
            &json!("cumulative"),
            &json!(true),
            &json!(42),
            &json!(42.0),
            &json!("/a")
        ]
    );
    assert_eq!(
        spans[0],
        json!({"trace_id": "0102030405060708090a0b0c0d0e0f10", "span_id": "0102030405060708", "name": "GET /a",
            "kind": "server", "duration_ns": 1500, "status_code": "error", "status_message": "broken", "event": "retry",
            "try": "2", "link": "eeeeeeeeeeeeeeee"})
    );
    thalweg.records_are_accounted_for().unwrap();
    end(&mut thalweg);
}

#[test]
fn what_was_answered_is_there_once_after_every_kill() {
    const ROUNDS: u64 = 8;
    let (mut thalweg, otlp) = start("lake: {flush: {interval: 100ms}}\n");
    let (mut next, mut stored) = (0_u64, Vec::new());
    for round in 0..ROUNDS {
        for _ in 0..20 {
            is_stored(&otlp.post("/v1/logs", &logs(next..next + 50)));
            stored.push(next..next + 50);
            next += 50;
            std::thread::sleep(Duration::from_millis(round * 3));
        }
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
        thalweg.wait_ready().unwrap();
    }
    let each_is_there_once = |thalweg: &Thalweg, next: u64| {
        let all = eventually(|| {
            let (rows, numbers, sum) = counts(thalweg)?;
            anyhow::ensure!(rows >= next, "{rows} of {next}");
            assert_eq!((rows, numbers, sum), (next, next, next * (next - 1) / 2));
            Ok(())
        });
        all.unwrap();
    };
    each_is_there_once(&thalweg, next);
    // No duplicates appear later: they would come before what is sent now.
    end(&mut thalweg);
    thalweg.restart().unwrap();
    thalweg.wait_ready().unwrap();
    for _ in 0..20 {
        is_stored(&otlp.post("/v1/logs", &logs(next..next + 50)));
        next += 50;
    }
    each_is_there_once(&thalweg, next);
    end(&mut thalweg);
}

#[test]
fn what_cannot_be_taken_is_refused_with_its_reason() {
    let (mut thalweg, otlp) = start("");
    let json = [("content-type", "application/json")];
    let proto = [("content-type", "application/x-protobuf")];
    /// Path, headers, body, and the status and code of the response.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);
    let cases: [Case<'_>; 4] = [
        ("/v1/logs", &json, b"{\"resourceLogs\": [", 400, "otlp.malformed"),
        ("/v1/logs", &proto, &[0x0a, 0x05, 0x01], 400, "otlp.malformed"),
        (
            "/v1/logs",
            &[("content-type", "text/plain")],
            b"x",
            415,
            "otlp.media_type",
        ),
        (
            "/v1/traces",
            &json,
            b"{\"resourceSpans\": [{\"scopeSpans\": [{\"spans\": [{\"name\": \"x\"}]}]}]}",
            400,
            "otlp.all_rejected",
        ),
    ];
    let mut seen: HashMap<&str, String> = HashMap::new();
    for (path, headers, body, status, code) in cases {
        let answer = otlp.send("POST", path, headers, body);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.text.contains(code), "{code}: {answer:?}");
        seen.insert(code, answer.text);
    }
    assert_eq!(seen.len(), 3);
    thalweg.records_are_accounted_for().unwrap();
    end(&mut thalweg);
}
