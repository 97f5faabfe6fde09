//! Flows that feed the tables of logs, metrics and traces: messages are rows, or OTLP requests.

use serde_json::{Value, json};
use thalweg_tests::{Thalweg, eventually};

fn flow(name: &str, table: &str) -> String {
    format!(
        "  - name: {name}\n    input: {{label: {name}, file: {{paths: [{name}.jsonl], codec: lines}}}}\n    output: {{lake: {{table: {table}}}}}\n"
    )
}

const LOGS: &str = r#"{"time":"2026-03-01T10:00:00.000000123Z","message":"pump 7 started","level":"warn","resource_service_name":"plant","plant":"a","n":7}
{"resourceLogs":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"plant"}}]},"scopeLogs":[{"logRecords":[{"timeUnixNano":"1772359201000000000","severityNumber":9,"body":{"stringValue":"as OTLP"},"attributes":[{"key":"plant","value":{"stringValue":"b"}}]}]}]}]}
a line of text
{"message":"without a time","nested":{"deep":[1,2]}}
{"time":"soon","message":"refused"}
{"resourceSpans":[]}
"#;
const POINTS: &str = r#"{"time":"2026-03-01T10:00:00Z","metric_name":"load","value":0.5,"metric_type":"gauge","plant":"a"}
{"time":"2026-03-01T10:00:01Z","metric_name":"load","value":41,"metric_type":"gauge","plant":"a"}
"#;
const SPANS: &str = r#"{"trace_id":"5b8efff798038103d269b633813fc60c","span_id":"eee19b7ec3c1b174","name":"get","kind":"server","time_unix_nano":1772359200000000000,"end_time_unix_nano":1772359200000002000}
"#;

#[test]
fn messages_of_flows_become_rows_of_the_tables_of_otlp() {
    let yaml = format!(
        "log: {{commit: {{spare: 1}}}}\ndead_letter: {{file: {{path: dead.jsonl, codec: lines}}}}\nflows:\n{}{}{}",
        flow("logs", "logs"),
        flow("points", "metrics"),
        flow("spans", "traces"),
    );
    let files = [("logs.jsonl", LOGS), ("points.jsonl", POINTS), ("spans.jsonl", SPANS)];
    let mut thalweg = Thalweg::spawn_with(&yaml, &files).unwrap();
    thalweg.finish().unwrap();
    let dead = std::fs::read_to_string(thalweg.folder.path().join("dead.jsonl")).unwrap();
    for refused in ["a line of text", "refused", "resourceSpans"] {
        assert!(dead.contains(refused), "{refused} is no dead letter: {dead}");
    }
    assert_eq!(dead.lines().count(), 3, "{dead}");
    seen(&thalweg_of_tables(thalweg));
}

/// The same data without the inputs.
fn thalweg_of_tables(mut thalweg: Thalweg) -> Thalweg {
    let yaml =
        "log: {commit: {spare: 1}}\ningest: {otlp: {grpc: {address: '127.0.0.1:0'}, http: {address: '127.0.0.1:0'}}}\n";
    std::fs::write(thalweg.folder.path().join("flow.yaml"), yaml).unwrap();
    thalweg.restart().unwrap();
    thalweg
}

fn seen(thalweg: &Thalweg) {
    let query = "select time_unix_nano as time, severity_text, severity_number as number, body, resource_service_name as service, \
                 attr_plant as plant, time_source as source, overflow from logs order by body";
    let mut rows = Vec::new();
    eventually(|| {
        rows = thalweg.sql(query)?;
        anyhow::ensure!(rows.len() == 3, "{rows:?}");
        Ok(())
    })
    .unwrap();
    assert_eq!(rows[0]["body"], "as OTLP");
    assert_eq!((&rows[0]["number"], &rows[0]["plant"]), (&9.into(), &"b".into()));
    let pump = &rows[1];
    assert_eq!(pump["time"], "1772359200000000123");
    assert_eq!((&pump["severity_text"], &pump["number"]), (&"warn".into(), &13.into()));
    assert_eq!((&pump["service"], &pump["plant"]), (&"plant".into(), &"a".into()));
    assert_eq!(rows[2]["body"], "without a time");
    assert_eq!(rows[2]["source"], "arrival");
    let points = thalweg
        .sql("select value, value_int, attr_plant as plant, series_id from metrics order by time_unix_nano")
        .unwrap();
    assert_eq!(
        (&points[0]["value"], &points[0]["value_int"]),
        (&0.5.into(), &Value::Null)
    );
    assert_eq!(
        (&points[1]["value"], &points[1]["value_int"]),
        (&41.0.into(), &41.into())
    );
    assert_eq!(points[0]["series_id"], points[1]["series_id"]);
    let spans = thalweg.sql("select name, kind, duration_ns from traces").unwrap();
    assert_eq!(spans, [json!({"name": "get", "kind": "server", "duration_ns": 2000})]);
}

/// A source that redelivers unacknowledged messages, killed while it is read: nothing is lost. Rows are then only in the log,
/// because the commit is a minute away.
#[test]
fn what_a_flow_was_told_is_stored_is_there_after_kill_9() {
    const NUMBERS: u64 = 6000;
    const QUEUE: &str = "log: {commit: {spare: 1}}\nqueues: {list: [{name: numbers, max_depth: 100000, ttl: 0}]}\n";
    let fill = format!(
        "{QUEUE}input: {{generate: {{count: {NUMBERS}, interval: '', batch_size: 100, mapping: 'root = {{\"message\": \"x\", \"n\": counter()}}'}}}}\n\
         output: {{queue: {{name: numbers}}}}\n"
    );
    let mut thalweg = Thalweg::spawn(&fill).unwrap();
    assert_eq!(thalweg.finish().unwrap().out, NUMBERS);
    let moved = format!(
        "{QUEUE}input: {{label: q, queue: {{name: numbers, claim_batch: 50}}}}\n\
         pipeline: {{processors: [{{sleep: {{duration: 1ms}}}}]}}\noutput: {{lake: {{table: logs}}}}\n"
    );
    std::fs::write(thalweg.folder.path().join("flow.yaml"), moved).unwrap();
    thalweg.restart().unwrap();
    for part in 1..=3 {
        reached(&thalweg, part * NUMBERS / 4);
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
    }
    reached(&thalweg, NUMBERS);
    let seen = thalweg
        .sql("select min(n) as least, max(n) as greatest from (select cast(attr_n as bigint) as n from logs)")
        .unwrap();
    assert_eq!(seen, [json!({"least": 1, "greatest": NUMBERS})]);
    thalweg.stop().unwrap();
}

fn reached(thalweg: &Thalweg, numbers: u64) {
    eventually(|| {
        let rows = thalweg.sql("select count(distinct attr_n) as n from logs")?;
        anyhow::ensure!(rows[0]["n"].as_u64() >= Some(numbers), "{rows:?} of {numbers}");
        Ok(())
    })
    .unwrap();
}
