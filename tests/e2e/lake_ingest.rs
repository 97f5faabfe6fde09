//! `thalweg lake ingest`: files of every kind are in their tables once, however often they are ingested, at whatever moment a
//! run is killed, and whichever other writers are active.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use thalweg_tests::eventually;
use thalweg_tests::servers::python;
use thalweg_tests::thalweg::{Finished, binary, run};

use crate::otlp::{attributes, end, is_stored, now, start, text};
use crate::otlp_senders::ask_with;

/// Runs it in a folder with the lake `data`.
fn ingest(folder: &Path, arguments: &[&str]) -> Finished {
    let all: Vec<&str> = ["lake", "ingest", "--data-dir", "data"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    run(folder, &all).unwrap()
}

/// The same, parsed as JSON.
fn report(folder: &Path, arguments: &[&str], code: i32) -> Value {
    let all: Vec<&str> = ["--json"].iter().chain(arguments).copied().collect();
    let finished = ingest(folder, &all);
    assert_eq!(finished.status.code(), Some(code), "{arguments:?}: {}", finished.stderr);
    serde_json::from_str(&finished.stdout).unwrap()
}

/// Files from other writers: Python has the libraries that Rust's tests lack.
fn by_python(folder: &Path, script: &str) {
    let made = Command::new(python().unwrap())
        .arg("-c")
        .arg(script)
        .current_dir(folder)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{error}");
}

/// A protobuf request with logs of these bodies.
fn binpb(bodies: impl Iterator<Item = String>) -> Vec<u8> {
    fn field(key: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![key];
        let mut len = body.len();
        while len >= 0x80 {
            out.push((len & 0x7f) as u8 | 0x80);
            len >>= 7;
        }
        out.push(len as u8);
        out.extend_from_slice(body);
        out
    }
    let time = [&[0x09][..], &now().to_le_bytes()].concat();
    let group = |body: String| {
        let record = [&time[..], &field(0x2a, &field(0x0a, body.as_bytes()))].concat();
        field(0x0a, &field(0x12, &field(0x12, &record)))
    };
    bodies.flat_map(group).collect()
}

fn sql(folder: &Path, query: &str) -> Vec<Value> {
    let asked = run(folder, &["sql", "--data-dir", "data", "--format", "json", query]).unwrap();
    assert!(asked.status.success(), "{query}: {}", asked.stderr);
    serde_json::from_str(&asked.stdout).unwrap()
}

/// Lines of rows with numbers.
fn lines(numbers: std::ops::Range<u64>) -> String {
    let mut lines = String::new();
    for n in numbers {
        let second = n % 60;
        writeln!(
            lines,
            "{{\"timestamp\":\"2026-11-20T10:11:{second:02}Z\",\"message\":\"line {n} of many\",\"level\":\"info\",\"n\":{n}}}"
        )
        .unwrap();
    }
    lines
}

/// The numbers of rows and of distinct numbers.
const COUNTS: &str = "select count(*) as rows, count(distinct attr_n) as numbers, \
                      coalesce(sum(cast(attr_n as bigint)), 0)::bigint as sum from t";

fn counts(numbers: u64) -> Value {
    json!([{"rows": numbers, "numbers": numbers, "sum": numbers * (numbers - 1) / 2}])
}

#[test]
fn files_of_every_kind_are_in_their_tables_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    write("logs.binpb", &binpb((0..10).map(|n| format!("binpb {n}"))));
    write("app.ndjson", lines(0..10).as_bytes());
    let span = json!({"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "0102030405060708090a0b0c0d0e0f10",
        "spanId": "0102030405060708", "name": "GET /", "startTimeUnixNano": now().to_string()}]}]}]});
    let point = json!({"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "load", "gauge": {"dataPoints":
        [{"timeUnixNano": now().to_string(), "asDouble": 1.5}]}}]}]}]});
    write("otlp.jsonl", format!("{span}\n{point}\n").as_bytes());
    write(
        "pretty.json",
        serde_json::to_string_pretty(&point)
            .unwrap()
            .replace("load", "more")
            .as_bytes(),
    );
    write(
        "x.csv",
        b"ts,msg,user\n1763633471,csv 1,ann\n1763633472,\"csv, 2\",bob\n",
    );
    by_python(
        folder,
        "import gzip, duckdb\n\
         open('more.binpb.gz', 'wb').write(gzip.compress(open('logs.binpb', 'rb').read().replace(b'binpb', b'gzips')))\n\
         duckdb.connect().execute(\"copy (select timestamp '2026-11-20 10:11:12' as ts, 'from duckdb' as message, 1.5::decimal(9,2) as amount, \
         [1, 2] as list, n as big from range(3) t(n)) to 'x.parquet'\")",
    );
    let files = [
        "logs.binpb",
        "more.binpb.gz",
        "app.ndjson",
        "otlp.jsonl",
        "pretty.json",
        "x.csv",
        "x.parquet",
    ];
    let dry: Vec<&str> = ["--dry-run"].into_iter().chain(files).collect();
    assert_eq!(report(folder, &dry, 0)["rows"], 38);
    assert!(!folder.join("data/lake").exists());
    let first = report(folder, &files, 0);
    assert_eq!(
        (&first["rows"], &first["rejected"], &first["failed_files"]),
        (&json!(38), &json!(0), &json!(0))
    );
    let second = report(folder, &files, 0);
    assert_eq!(second["rows"], 0, "{second}");
    let rows = sql(
        folder,
        "select body, attr_amount, attr_list, attr_user from logs where body like '%csv%' or body like '%duckdb' order by 1",
    );
    assert_eq!(
        rows[0],
        json!({"body": "csv 1", "attr_amount": null, "attr_list": null, "attr_user": "ann"})
    );
    assert_eq!(
        rows[2],
        json!({"body": "from duckdb", "attr_amount": "1.5", "attr_list": "[1,2]", "attr_user": null})
    );
    let found = sql(
        folder,
        "select (select count(*) from logs) as logs, (select count(*) from metrics) as metrics, (select count(*) from traces) as traces",
    );
    assert_eq!(found, [json!({"logs": 35, "metrics": 2, "traces": 1})]);
    for engine in ["duckdb", "deltalake"] {
        for (table, count) in [("logs", 35), ("metrics", 2), ("traces", 1)] {
            let found = ask_with(
                engine,
                &folder.join("data/lake").join(table),
                "select count(*) as n from t",
            );
            assert_eq!(found, json!([{"n": count}]), "{engine} {table}");
        }
    }
    let again = report(folder, &["--again", "x.csv"], 0);
    assert_eq!(again["rows"], 2);
    let text = ingest(folder, &["x.csv"]);
    assert_eq!(text.status.code(), Some(0));
    assert!(
        text.stderr.contains("x.csv: the tables have this file already"),
        "{}",
        text.stderr
    );
    assert!(
        text.stderr.contains("0 rows, 0 rejected, ") && text.stderr.contains("1 of 1 files"),
        "{}",
        text.stderr
    );
}

/// Its row groups have odd ordinals (`fixtures/README.md`).
#[test]
fn a_file_of_parquet_go_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = include_bytes!("fixtures/parquet-go-0.25.1.parquet");
    std::fs::write(folder.path().join("go.parquet"), file).unwrap();
    assert_eq!(report(folder.path(), &["go.parquet"], 0)["rows"], 15);
    let query = "select count(*) as rows, count(distinct resource_service_name) as services, min(time) as first, max(time) as last,
        sum(attr_value) as total, max(body) as body, min(severity_text) as level from logs";
    let found = json!([{
        "rows": 15, "services": 3, "first": "2026-01-01T00:00:00Z", "last": "2026-01-01T00:00:14Z", "total": 52.5,
        "body": "message 9", "level": "info",
    }]);
    assert_eq!(json!(sql(folder.path(), query)), found);
}

#[test]
fn exit_codes_say_what_became_of_files() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(
        folder.join("bad.ndjson"),
        "{\"message\":\"a\",\"ts\":1763633471}\nno\n{\"ts\":\"noon\"}\n",
    )
    .unwrap();
    std::fs::write(folder.join("text.txt"), "Nov 20 something happened\n").unwrap();
    std::fs::write(folder.join("logs.binpb"), &binpb(std::iter::once("x".to_owned()))[..9]).unwrap();
    let rejected = ingest(folder, &["bad.ndjson"]);
    assert_eq!(rejected.status.code(), Some(3), "{}", rejected.stderr);
    assert!(
        rejected.stderr.contains("rejected: bad_line 2; bad lines are in "),
        "{}",
        rejected.stderr
    );
    let quarantine = folder.join("data/lake/_thalweg/quarantine");
    let kept = std::fs::read_dir(&quarantine).unwrap().next().unwrap().unwrap().path();
    let kept = std::fs::read_to_string(kept).unwrap();
    assert!(
        kept.starts_with("{\"line\":2,\"reason\":\"byte 0: ") && kept.lines().count() == 2,
        "{kept}"
    );
    let failed = ingest(
        folder,
        &[
            "--max-bad",
            "1",
            "--again",
            "bad.ndjson",
            "text.txt",
            "logs.binpb",
            "missing",
        ],
    );
    assert_eq!(failed.status.code(), Some(4), "{}", failed.stderr);
    for part in [
        "bad.ndjson: ingest.too_many_bad: more than 1 lines are bad, the first is line 2: ",
        "text.txt: ingest.kind_unknown: ",
        "logs.binpb: otlp.malformed: byte 9: it is cut off within a field",
        "missing: it cannot be read: ",
        "0 of 4 files",
    ] {
        assert!(failed.stderr.contains(part), "{part}: {}", failed.stderr);
    }
    assert_eq!(sql(folder, "select count(*) as n from logs"), [json!({"n": 1})]);
    // Columns that are not known are no failure of the file: nothing is added, and it says what to write.
    std::fs::write(folder.join("other.csv"), "When,what\n20.11.2025,it runs\n").unwrap();
    let unknown = ingest(folder, &["other.csv"]);
    assert_eq!(unknown.status.code(), Some(3), "{}", unknown.stderr);
    for part in [
        "other.csv: ingest.missing_fields: 1 of 1 rows have no time, and 1 no body; the columns are When",
        "--map When=time --map what=body and --time-format FORMAT; or add the rows as they are with --accept-missing",
    ] {
        assert!(unknown.stderr.contains(part), "{part}: {}", unknown.stderr);
    }
    let both = ingest(folder, &["other.csv", "missing"]);
    assert_eq!(both.status.code(), Some(4), "{}", both.stderr);
    assert_eq!(sql(folder, "select count(*) as n from logs"), [json!({"n": 1})]);
    let named = [
        "--map",
        "When=time",
        "--map",
        "what=body",
        "--time-format",
        "%d.%m.%Y",
        "other.csv",
    ];
    assert_eq!(report(folder, &named, 0)["rows"], 1);
    assert_eq!(
        report(folder, &["--accept-missing", "--again", "other.csv"], 0)["rows"],
        1
    );
    let found = sql(
        folder,
        "select time_source, attr_when, attr_what, body from logs where body is distinct from 'a' order by body",
    );
    assert_eq!(
        found,
        [
            json!({"time_source": null, "attr_when": null, "attr_what": null, "body": "it runs"}),
            json!({"time_source": "arrival", "attr_when": "20.11.2025", "attr_what": "it runs", "body": null}),
        ]
    );
    for wrong in [
        &["--map", "x", "bad.ndjson"][..],
        &["--table", "nothing", "bad.ndjson"],
        &["--time-format", "%H", "bad.ndjson"],
        &["--signal", "noise", "bad.ndjson"],
        &["-", "-"],
        &[],
    ] {
        let finished = ingest(folder, wrong);
        assert_eq!(finished.status.code(), Some(2), "{wrong:?}: {}", finished.stderr);
    }
    std::fs::write(folder.join("no-folder"), "").unwrap();
    let finished = run(folder, &["lake", "ingest", "--data-dir", "no-folder", "bad.ndjson"]).unwrap();
    assert_eq!(finished.status.code(), Some(1), "{}", finished.stderr);
}

#[test]
fn a_stream_of_any_length_is_one_commit_and_a_killed_run_adds_nothing() {
    const LINES: u64 = 600_000;
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("all.ndjson"), lines(0..LINES)).unwrap();
    let table = folder.join("data/lake/logs");
    // So small that a run writes many files.
    std::fs::write(folder.join("small.yaml"), "ingest: {}\nlake: {flush: {bytes: 8MiB}}\n").unwrap();
    let settings = ["lake", "ingest", "--data-dir", "data", "--config", "small.yaml"];
    // A first commit, so that the table can be queried after each kill.
    std::fs::write(folder.join("logs.binpb"), binpb(std::iter::once("first".to_owned()))).unwrap();
    report(folder, &["logs.binpb"], 0);
    for (round, millis) in [20, 120, 300, 500, 800, 1100].into_iter().enumerate() {
        let mut command = Command::new(binary());
        command.args(settings).current_dir(folder);
        // Alternately by name and as a stream: both have the same content.
        match round % 2 {
            0 => command.arg("all.ndjson"),
            _ => command.arg("-").stdin(File::open(folder.join("all.ndjson")).unwrap()),
        };
        let mut running = command.stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        running.kill().unwrap();
        running.wait().unwrap();
        let found = ask_with("duckdb", &table, "select count(*) as n from t where body like 'line %'");
        let count = found[0]["n"].as_u64().unwrap();
        assert!(count == 0 || count == LINES, "{count} rows after {millis} ms");
    }
    let mut command = Command::new(binary());
    command.args(settings).args(["--json", "-"]).current_dir(folder);
    let finished = command
        .stdin(File::open(folder.join("all.ndjson")).unwrap())
        .output()
        .unwrap();
    assert!(
        finished.status.success(),
        "{}",
        String::from_utf8_lossy(&finished.stderr)
    );
    let told: Value = serde_json::from_slice(&finished.stdout).unwrap();
    let files = told["files"][0]["tables"]["logs"]["files"].as_u64().unwrap();
    assert!(files > 1 || told["rows"] == 0, "{told}");
    for engine in ["duckdb", "deltalake"] {
        let counts_of_lines = format!("{COUNTS} where body like 'line %'");
        assert_eq!(ask_with(engine, &table, &counts_of_lines), counts(LINES), "{engine}");
    }
    assert_eq!(report(folder, &["all.ndjson"], 0)["rows"], 0);
    let entries = std::fs::read_dir(folder.join("data/lake/_thalweg/ingest"))
        .unwrap()
        .flatten();
    let left: Vec<_> = entries.filter(|entry| entry.path().is_dir()).collect();
    assert!(left.is_empty(), "what killed runs left is removed: {left:?}");
}

#[test]
fn files_come_in_beside_a_running_process_that_gets_new_columns_too() {
    const REQUESTS: u64 = 60;
    const FILES: u64 = 12;
    let (mut thalweg, otlp) = start("lake: {flush: {interval: 200ms}}\n");
    let folder = tempfile::tempdir().unwrap();
    let data = thalweg.data_dir();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..REQUESTS {
                let name = format!("sent.{n}");
                let record = json!({"timeUnixNano": now().to_string(), "body": text("sent"),
                    "attributes": attributes(&[(name.as_str(), text("x")), ("n", json!({"intValue": n.to_string()}))])});
                is_stored(&otlp.post("/v1/logs", &json!({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        scope.spawn(|| {
            for file in 0..FILES {
                let name = format!("{file}.ndjson");
                let rows =
                    (0..50).map(|n| format!("{{\"message\":\"file\",\"file.{file}\":\"{n}\",\"file_{file}\":1}}\n"));
                std::fs::write(folder.path().join(&name), rows.collect::<String>()).unwrap();
                let data = data.to_str().unwrap();
                let arguments = [
                    "lake",
                    "ingest",
                    "--json",
                    "--accept-missing",
                    "--data-dir",
                    data,
                    &name,
                ];
                let finished = run(folder.path(), &arguments).unwrap();
                assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
            }
        });
    });
    let all = "select count(*) filter (where body = 'sent') as sent, count(distinct attr_n) as numbers, \
               count(*) filter (where body = 'file') as file, count(attr_file_0) + count(attr_file_11) as columns from logs";
    let expected = json!({"sent": REQUESTS, "numbers": REQUESTS, "file": 50 * FILES, "columns": 100});
    let found = eventually(|| {
        let found = thalweg.sql(all)?.remove(0);
        anyhow::ensure!(found == expected, "{found}");
        Ok(found)
    });
    assert_eq!(found.unwrap(), expected);
    end(&mut thalweg);
    for engine in ["duckdb", "deltalake"] {
        let counted = "select count(*) filter (where body = 'sent') as sent, count(distinct attr_n) as numbers, \
                       count(*) filter (where body = 'file') as file, count(attr_sent_59) as last from t";
        let found = ask_with(engine, &data.join("lake/logs"), counted);
        assert_eq!(
            found,
            json!([{"sent": REQUESTS, "numbers": REQUESTS, "file": 50 * FILES, "last": 1}]),
            "{engine}"
        );
    }
    // The committed offset of the process is kept: nothing comes twice.
    thalweg.restart().unwrap();
    let found = eventually(|| {
        let found = thalweg.sql(all)?.remove(0);
        anyhow::ensure!(found == expected, "{found}");
        Ok(found)
    });
    assert_eq!(found.unwrap(), expected);
}
