//! Examples that read files, the standard input or made-up values, and end by themselves or keep running.

use std::io::Write as _;

use anyhow::ensure;
use serde_json::{Value, json};
use thalweg_tests::{Api, Balance, Thalweg, eventually};

use super::{example, lines, rows, with};

fn text(thalweg: &Thalweg, file: &str) -> String {
    std::fs::read_to_string(thalweg.folder.path().join(file)).unwrap_or_default()
}

/// Runs an example to its end.
fn finish(yaml: &str, files: &[(&str, &str)]) -> (Thalweg, Balance) {
    let mut thalweg = Thalweg::spawn_with(yaml, files).unwrap();
    let balance = thalweg.finish().unwrap();
    (thalweg, balance)
}

#[test]
fn access_logs_become_rows_and_other_lines_are_kept_apart() {
    let log = r#"192.0.2.1 - - [28/Nov/2026:10:00:00 +0100] "GET /index.html?a=b HTTP/1.1" 200 5120 "-" "curl/8.0"
192.0.2.2 - anna [28/Nov/2026:10:00:01 +0100] "POST /api/orders HTTP/1.1" 503 - "-" "Mozilla/5.0"
no access log line
192.0.2.1 - - [28/Nov/2026:10:00:02 +0100] "GET /missing HTTP/1.1" 404 153 "-" "curl/8.0"
"#;
    let (thalweg, balance) = finish(&example("access-log"), &[("access.log", log)]);
    assert_eq!((balance.entered, balance.out, balance.dropped), (4, 3, 1));
    assert_eq!(
        text(&thalweg, "thalweg-data/no-access-log-lines.txt"),
        "no access log line\n"
    );
    let found = rows(
        &thalweg,
        "select time, severity_text as level, resource_service_name as service, attr_client as client, attr_verb as verb, \
         attr_path as path, attr_status as status, attr_bytes as bytes from logs order by time",
    );
    let row = |time: &str, level: &str, client: &str, verb: &str, path: &str, status: &str, bytes: &str| {
        json!({"time": time, "level": level, "service": "web", "client": client, "verb": verb, "path": path,
            "status": status.parse::<i64>().unwrap(), "bytes": bytes.parse::<i64>().unwrap()})
    };
    let expected = json!([
        row(
            "2026-11-28T09:00:00Z",
            "INFO",
            "192.0.2.1",
            "GET",
            "/index.html",
            "200",
            "5120"
        ),
        row(
            "2026-11-28T09:00:01Z",
            "ERROR",
            "192.0.2.2",
            "POST",
            "/api/orders",
            "503",
            "0"
        ),
        row(
            "2026-11-28T09:00:02Z",
            "WARN",
            "192.0.2.1",
            "GET",
            "/missing",
            "404",
            "153"
        ),
    ]);
    assert_eq!(found, expected);
}

#[test]
fn the_journal_becomes_rows_and_what_is_bad_is_printed() {
    let journal = r#"{"PRIORITY":"3","__REALTIME_TIMESTAMP":"1795863600123456","MESSAGE":"disk failed","SYSLOG_IDENTIFIER":"smartd","_HOSTNAME":"gw7","_SYSTEMD_UNIT":"smartd.service"}
{"PRIORITY":"6","__REALTIME_TIMESTAMP":"1795863601000000","MESSAGE":"Started it.","_COMM":"systemd","_HOSTNAME":"gw7"}
{"PRIORITY":"4","__REALTIME_TIMESTAMP":"1795863602000000","MESSAGE":[104,105],"_HOSTNAME":"gw7"}
"#;
    let mut thalweg = Thalweg::spawn(&example("journal")).unwrap();
    let stdin = thalweg.process.stdin().unwrap();
    stdin.write_all(journal.as_bytes()).unwrap();
    thalweg.process.close_stdin();
    let balance = thalweg.finish().unwrap();
    assert_eq!((balance.entered, balance.out), (3, 3));
    assert_eq!(
        thalweg.process.stdout(),
        "ERROR smartd: disk failed\nWARN kernel: [104,105]\n"
    );
    let found = rows(
        &thalweg,
        "select time, severity_number as level, body, resource_service_name as service, attr_unit as unit from logs order by time",
    );
    let expected = json!([
        {"time": "2026-11-28T11:00:00.123456Z", "level": 17, "body": "disk failed", "service": "smartd", "unit": "smartd.service"},
        {"time": "2026-11-28T11:00:01Z", "level": 9, "body": "Started it.", "service": "systemd", "unit": null},
        {"time": "2026-11-28T11:00:02Z", "level": 13, "body": "[104,105]", "service": "kernel", "unit": null},
    ]);
    assert_eq!(found, expected);
}

#[test]
fn csv_files_of_a_folder_become_tags_and_are_deleted() {
    let shift = "time;machine;signal;value;unit\n28.11.2026 06:00:00;press1;force;12,5;kN\n\
                 28.11.2026 06:00:10;press1;force;13;kN\n28.11.2026 06:00:00;press2;temperature;71,25;°C\n";
    let files = [
        ("inbox/shift1.csv", shift),
        ("inbox/shift2.csv", "a;b\n1;2\n"),
        ("inbox/read.me", "no csv"),
    ];
    let (thalweg, balance) = finish(&example("csv-folder"), &files);
    // The file of three rows is three messages.
    assert_eq!((balance.entered, balance.out, balance.dropped), (4, 3, 1));
    let found = rows(&thalweg, "select time, tag, value, unit from tags order by time, tag");
    let expected = json!([
        {"time": "2026-11-28T06:00:00Z", "tag": "umh.v1.acme.berlin.press1._raw.force", "value": 12.5, "unit": "kN"},
        {"time": "2026-11-28T06:00:00Z", "tag": "umh.v1.acme.berlin.press2._raw.temperature", "value": 71.25, "unit": "°C"},
        {"time": "2026-11-28T06:00:10Z", "tag": "umh.v1.acme.berlin.press1._raw.force", "value": 13.0, "unit": "kN"},
    ]);
    assert_eq!(found, expected);
    assert_eq!(text(&thalweg, "thalweg-data/no-csv.txt"), "a;b\n1;2\n\n");
    let left: Vec<String> = std::fs::read_dir(thalweg.folder.path().join("inbox"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["read.me"]);
}

#[test]
fn classic_payloads_become_one_line_for_each_value() {
    let payloads = r#"{"topic": "umh.v1.acme.berlin._historian.press", "timestamp_ms": 1767225600000, "force": 12.5, "axis": {"x": 1}}
{"topic": "umh.v1.acme.berlin._historian.press", "force": 1}
"#;
    let (thalweg, balance) = finish(&example("classic-payloads"), &[("payloads.jsonl", payloads)]);
    assert_eq!((balance.entered, balance.out, balance.dropped), (3, 2, 1));
    let line = |value: Value, tag: &str| json!({"value": value, "timestamp_ms": 1_767_225_600_000_u64, "topic": format!("umh.v1.acme.berlin._raw.press.{tag}")});
    assert_eq!(
        lines(&thalweg, "values.jsonl"),
        [line(json!(12.5), "force"), line(json!(1), "axis.x")]
    );
    assert_eq!(lines(&thalweg, "no-payloads.jsonl"), [json!({"force": 1})]);
}

#[test]
fn failed_messages_are_in_a_queue_and_in_the_report() {
    let readings = "{\"pump\": \"p1\", \"bar\": 1.5}\n{\"pump\": \"p2\", \"bar\": \"high\"}\nno json\n";
    let yaml = example("dead-letters").replace("${READINGS:readings.jsonl}", "readings.jsonl");
    let mut thalweg = Thalweg::spawn_with(&yaml, &[("readings.jsonl", readings)]).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        let found = lines(&thalweg, "report.jsonl").len();
        ensure!(found == 2, "{found} lines in the report");
        Ok(())
    })
    .unwrap();
    let queue = Api::new(&thalweg.address().unwrap())
        .get("/queues/failed/stats")
        .ok(200);
    assert_eq!(queue["enqueued"], 2, "{queue}");
    let groups: Vec<(&str, u64)> = queue["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (group["name"].as_str().unwrap(), group["backlog"].as_u64().unwrap()))
        .collect();
    // What was reported waits for its repair.
    assert!(groups.contains(&("repair", 2)), "{queue}");
    thalweg.stop().unwrap();
    assert_eq!(
        lines(&thalweg, "pressures.jsonl"),
        [json!({"pump": "p1", "pascal": 150_000})]
    );
    let report = lines(&thalweg, "report.jsonl");
    for (row, message) in report.iter().zip(["{\"pump\": \"p2\", \"bar\": \"high\"}", "no json"]) {
        assert_eq!(row["message"], message);
        assert_eq!(
            (&row["reason"], &row["stage"]),
            (&json!("script_error"), &json!("root.pipeline.processors.0"))
        );
        assert!(row["error"].as_str().unwrap().contains("no pressure in bar"), "{row}");
    }
}

#[test]
fn changes_of_state_are_told_with_their_time_and_long_stops_are_alarms() {
    let state = |machine: &str, state: &str, minute: u64| {
        let time = 1_767_225_600_000 + 60_000 * minute;
        format!(
            "{}\n",
            json!({"machine": machine, "state": state, "timestamp_ms": time})
        )
    };
    let states = [
        state("press1", "running", 0),
        state("press2", "running", 0),
        state("press1", "running", 1),
        state("press1", "stopped", 2),
        state("press2", "stopped", 2),
        state("press2", "running", 3),
        state("press1", "running", 12),
    ];
    let (thalweg, balance) = finish(&example("machine-states"), &[("states.jsonl", &states.concat())]);
    assert_eq!((balance.entered, balance.out, balance.filtered), (7, 4, 3));
    let mut changes = lines(&thalweg, "changes.jsonl");
    changes.sort_by_key(|row| (row["machine"].to_string(), row["from_ms"].as_u64()));
    let change = |machine: &str, state: &str, minute: u64, seconds: u64, more: Value| {
        let mut row = json!({"machine": machine, "state": state, "from_ms": 1_767_225_600_000 + 60_000 * minute, "seconds": seconds});
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        row
    };
    let alarm = change(
        "press1",
        "stopped",
        2,
        600,
        json!({"alarm": "stood still for 10 minutes"}),
    );
    let expected = [
        change("press1", "running", 0, 120, json!({})),
        alarm.clone(),
        change("press2", "running", 0, 120, json!({})),
        change("press2", "stopped", 2, 60, json!({"note": "short stop"})),
    ];
    assert_eq!(changes, expected);
    assert_eq!(lines(&thalweg, "alarms.jsonl"), [alarm]);
    assert!(thalweg.process.stdout().contains("press1 stood still for 10 minutes"));
}

#[test]
fn a_recording_comes_out_again_without_what_is_skipped_or_broken() {
    let recording =
        "{\"n\":1,\"pause_ms\":5}\n{\"n\":2,\"skip\":true}\nno json\n{\"n\":3}\n{\"n\":4,\"pause_ms\":\"long\"}\n";
    let (thalweg, balance) = finish(&example("replay"), &[("recording.jsonl", recording)]);
    assert_eq!((balance.entered, balance.out, balance.filtered), (5, 2, 3));
    assert_eq!(thalweg.process.stdout(), "{\"n\":1,\"pause_ms\":5}\n{\"n\":3}\n");
    // The log is JSON lines beside it, with the line that was left out.
    let log = thalweg.process.stderr();
    let left_out: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["level"] == "error")
        .collect();
    assert_eq!(left_out.len(), 2, "{log}");
    assert!(left_out[0].to_string().contains("no json"), "{log}");
}

#[test]
fn a_small_gateway_keeps_every_value() {
    let yaml = with(
        example("small-gateway"),
        &[
            ("DATA", "data"),
            ("MIN_FREE", "16MiB"),
            ("INTERVAL", "1ms"),
            ("COUNT", "1000"),
        ],
    );
    let (thalweg, balance) = finish(&yaml, &[]);
    assert_eq!((balance.entered, balance.out), (1000, 1000));
    let found = rows(
        &thalweg,
        "select tag, count(*) as n, sum(value) as sum from tags group by tag order by tag",
    );
    let expected: Vec<Value> = (0..5)
        .map(|line| {
            let tag = format!("umh.v1.acme.mobile.line{line}._raw.count");
            // A counter from 1 on, modulo 100: each line has 20 numbers, ten times.
            let sum: u64 = (1..=1000_u64).filter(|n| n % 5 == line).map(|n| n % 100).sum();
            json!({"tag": tag, "n": 200, "sum": sum as f64})
        })
        .collect();
    assert_eq!(found, Value::from(expected));
}

#[test]
fn the_topic_browser_shows_every_topic_beside_the_lake() {
    let mut thalweg = Thalweg::start(&example("topic-browser")).unwrap();
    let topics = eventually(|| {
        thalweg.process.check_running()?;
        let topics = thalweg.json("/api/v1/topics?limit=100")?;
        ensure!(topics["total"] == 12, "{topics}");
        Ok(topics)
    })
    .unwrap();
    let units = [("force", "kN"), ("stroke", "mm"), ("temperature", "°C")];
    for topic in topics["items"].as_array().unwrap() {
        let unit = units.iter().find(|(name, _)| topic["name"] == *name).unwrap().1;
        assert_eq!(topic["metadata"]["unit"], unit, "{topic}");
        assert!(topic["value"].is_number() && topic["contract"] == "_raw", "{topic}");
    }
    eventually(|| {
        let tags = thalweg.sql("select count(distinct tag) as tags from tags")?;
        ensure!(tags[0]["tags"] == 12, "{tags:?}");
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    assert_eq!(balance.dropped, 0);
}

#[test]
fn json_lines_become_tags_and_files_and_other_lines_are_reported() {
    let measurements = "{\"machine\": \"press 1\", \"name\": \"force\", \"value\": 12.5}\nno json\n";
    let mut thalweg = Thalweg::spawn(&example("lines-to-lake")).unwrap();
    let stdin = thalweg.process.stdin().unwrap();
    stdin.write_all(measurements.as_bytes()).unwrap();
    thalweg.process.close_stdin();
    let balance = thalweg.finish().unwrap();
    assert_eq!((balance.entered, balance.out, balance.filtered), (2, 1, 1));
    let found = rows(&thalweg, "select tag, value from tags");
    assert_eq!(found, json!([{"tag": "umh.v1.acme.press_1._raw.force", "value": 12.5}]));
    let lines = lines(&thalweg, "thalweg-data/measurements/press_1.jsonl");
    assert_eq!((lines.len(), &lines[0]["value"]), (1, &json!(12.5)));
    assert!(thalweg.process.stdout().contains("not a measurement"));
}

#[test]
fn what_waits_in_a_buffer_arrives_in_the_order_of_each_machine() {
    let mut thalweg = Thalweg::start(&example("buffered")).unwrap();
    eventually(|| {
        thalweg.process.check_running()?;
        let balance = thalweg.balance()?;
        ensure!(balance.out > 1000, "{balance:?}");
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    let forces = lines(&thalweg, "thalweg-data/forces.jsonl");
    // What came last may still wait in the buffer, for the next start.
    assert!(
        forces.len() as u64 >= balance.out && balance.dropped == 0,
        "{balance:?}"
    );
    assert!(forces.iter().all(|row| row["value"].is_number()));
    let presses: std::collections::BTreeSet<String> = forces.iter().map(|row| row["topic"].to_string()).collect();
    assert_eq!(presses.len(), 20);
}
