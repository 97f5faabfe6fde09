//! The table `tags`: acknowledged messages are in it, once, and every reader sees the same.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use thalweg_tests::servers::python;
use thalweg_tests::thalweg::run;
use thalweg_tests::{Thalweg, eventually};

const FLOW: &str = "\
log: {commit: {spare: 1}}
input:
  label: plant
  generate:
    interval: 5ms
    batch_size: 20
    mapping: |
      root = counter()
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"enterprise.site\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"n\" + (msg.payload % 7);
          return msg;
output:
  lake: {table: tags}
";

/// A short commit interval.
const FLUSHED: &str = "lake: {flush: {interval: 300ms}}\n";

/// The table as seen by another reader.
fn read_with(script: &str, table: &Path) -> Value {
    let path = thalweg_tests::beside("python").join(script);
    let output = Command::new(python().unwrap()).arg(path).arg(table).output().unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn other_engines_read_the_table_while_it_is_written_and_after() {
    let mut thalweg = Thalweg::start(&format!("{FLUSHED}{FLOW}")).unwrap();
    let table = thalweg.data_dir().join("lake/tags");
    eventually(|| {
        let rows = thalweg.sql("select count(*) as n from tags")?;
        anyhow::ensure!(rows[0]["n"].as_u64() > Some(500), "{rows:?}");
        // Other engines see committed rows.
        let committed = thalweg.metric("thalweg_lake_rows", "table=\"tags\"")?;
        anyhow::ensure!(committed > 500.0, "{committed}");
        Ok(())
    })
    .unwrap();
    for script in ["read_tags_deltalake.py", "read_tags_duckdb.py"] {
        assert!(
            read_with(script, &table)["rows"].as_u64() > Some(500),
            "{script} while the table is written"
        );
    }
    let balance = thalweg.stop().unwrap();

    let query = "select count(*) as rows, min(value_int) as min, max(value_int) as max, sum(value_int) as sum, count(distinct tag) as tags from tags";
    let own = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", query],
    )
    .unwrap();
    assert!(own.status.success(), "{}", own.stderr);
    let own: Value = serde_json::from_str(&own.stdout).unwrap();
    let rows = own[0]["rows"].as_u64().unwrap();
    // Every number once: no loss, no duplicate.
    assert_eq!(own[0]["min"], 1);
    assert_eq!(own[0]["max"].as_u64(), Some(rows));
    assert_eq!(own[0]["sum"].as_u64(), Some(rows * (rows + 1) / 2));
    assert_eq!(own[0]["tags"], 7);
    for script in ["read_tags_deltalake.py", "read_tags_duckdb.py"] {
        let theirs = read_with(script, &table);
        assert_eq!(theirs["rows"].as_u64(), Some(rows), "{script}");
        assert_eq!(theirs["sum"].as_u64(), own[0]["sum"].as_u64(), "{script}");
    }
    assert_eq!((balance.entered, balance.out), (rows, rows));
}

/// A table whose first commits have expired is complete through its checkpoint.
#[test]
fn other_engines_read_the_table_from_its_checkpoint() {
    let mut thalweg = Thalweg::start(&format!("lake: {{flush: {{interval: 10ms}}}}\n{FLOW}")).unwrap();
    let log = thalweg.data_dir().join("lake/tags/_delta_log");
    eventually(|| {
        anyhow::ensure!(log.join(format!("{:020}.json", 105)).exists() && log.join("_last_checkpoint").exists());
        Ok(())
    })
    .unwrap();
    let balance = thalweg.stop().unwrap();
    for version in 0..100 {
        std::fs::remove_file(log.join(format!("{version:020}.json"))).unwrap();
    }
    let query = "select count(*) as rows, sum(value_int) as sum from tags";
    let own = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", query],
    )
    .unwrap();
    let own: Value = serde_json::from_str(&own.stdout).unwrap();
    let rows = own[0]["rows"].as_u64().unwrap();
    assert_eq!(balance.out, rows);
    assert_eq!(own[0]["sum"].as_u64(), Some(rows * (rows + 1) / 2), "each number once");
    for script in ["read_tags_deltalake.py", "read_tags_duckdb.py"] {
        let theirs = read_with(script, log.parent().unwrap());
        assert_eq!(
            (theirs["rows"].as_u64(), theirs["sum"].as_u64()),
            (Some(rows), own[0]["sum"].as_u64()),
            "{script}"
        );
    }
}

fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap()
}

/// Duplicate rows among those acknowledged together.
const TWICE: &str =
    "select count(*) as n from (select value_int, arrival_unix_nano from tags group by 1, 2 having count(*) > 1)";

#[test]
fn after_kill_9_everything_acknowledged_is_seen_once_whether_it_was_committed_or_not() {
    for flush in ["", FLUSHED] {
        let mut thalweg = Thalweg::start(&format!("{flush}{FLOW}")).unwrap();
        let mut acknowledged_before = 0;
        for _ in 0..3 {
            let mut acknowledged = 0;
            eventually(|| {
                acknowledged = thalweg.balance()?.out;
                anyhow::ensure!(acknowledged > 2000);
                Ok(())
            })
            .unwrap();
            thalweg.process.kill().unwrap();
            let killed = unix_nanos();
            acknowledged_before += acknowledged;
            thalweg.restart().unwrap();
            let of_before = format!("select count(*) as n from tags where arrival_unix_nano < {killed}");
            eventually(|| {
                let rows = thalweg.sql(&of_before)?;
                anyhow::ensure!(
                    rows[0]["n"].as_u64() >= Some(acknowledged_before),
                    "{acknowledged_before} were acknowledged, the table has {rows:?}"
                );
                Ok(())
            })
            .unwrap();
        }
        assert_eq!(thalweg.sql(TWICE).unwrap()[0]["n"], 0);
        thalweg.stop().unwrap();
        let rows = run(
            thalweg.folder.path(),
            &["sql", "--data-dir", "data", "--format", "json", TWICE],
        )
        .unwrap();
        assert_eq!(rows.stdout.trim(), "[{\"n\":0}]", "{}", rows.stderr);
    }
}

/// The queue redelivers unacknowledged messages, so a number may come twice, in entries of different times; none is lost, and
/// none is twice in one entry.
#[test]
fn a_source_that_repeats_what_was_not_acknowledged_loses_nothing_over_kill_9() {
    const NUMBERS: u64 = 30_000;
    const QUEUE: &str = "log: {commit: {spare: 1}}\nqueues: {list: [{name: numbers, max_depth: 100000, ttl: 0}]}\n";
    let fill = format!(
        "{QUEUE}input: {{generate: {{count: {NUMBERS}, interval: '', batch_size: 100, mapping: root = counter()}}}}\n\
         output: {{queue: {{name: numbers}}}}\n"
    );
    let mut thalweg = Thalweg::spawn(&fill).unwrap();
    assert_eq!(thalweg.finish().unwrap().out, NUMBERS);
    let moved = format!(
        "{QUEUE}{FLUSHED}input: {{label: q, queue: {{name: numbers, claim_batch: 50}}}}\n\
         pipeline: {{processors: [{{sleep: {{duration: 1ms}}}}]}}\noutput: {{lake: {{}}}}\n"
    );
    std::fs::write(thalweg.folder.path().join("flow.yaml"), moved).unwrap();
    thalweg.restart().unwrap();
    let count = "select count(distinct value_int) as n, max(value_int) as max from tags";
    for part in 1..=4 {
        eventually(|| {
            let rows = thalweg.sql("select count(distinct value_int) as n from tags")?;
            anyhow::ensure!(rows[0]["n"].as_u64() > Some(part * NUMBERS / 10), "{rows:?}");
            Ok(())
        })
        .unwrap();
        std::thread::sleep(Duration::from_millis(37 * part));
        thalweg.process.kill().unwrap();
        thalweg.restart().unwrap();
    }
    eventually(|| {
        let rows = thalweg.sql(count)?;
        anyhow::ensure!(
            rows[0]["n"].as_u64() == Some(NUMBERS) && rows[0]["max"].as_u64() == Some(NUMBERS),
            "{rows:?}"
        );
        Ok(())
    })
    .unwrap();
    assert_eq!(thalweg.sql(TWICE).unwrap()[0]["n"], 0);
    thalweg.stop().unwrap();
}

#[test]
fn a_running_process_is_asked_over_http_and_every_format_agrees() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.sql("select count(*) as n from tags")?[0]["n"].as_u64() > Some(0));
        Ok(())
    })
    .unwrap();
    let folder = thalweg.folder.path();
    for (format, expected) in [
        ("json", "[{\"x\":1,\"t\":\"a\"}]"),
        ("csv", "x,t\n1,a\n"),
        ("ndjson", "{\"x\":1,\"t\":\"a\"}\n"),
    ] {
        let answer = run(
            folder,
            &[
                "sql",
                "--data-dir",
                "data",
                "--format",
                format,
                "select 1 as x, 'a' as t",
            ],
        )
        .unwrap();
        assert!(answer.status.success(), "{}", answer.stderr);
        assert_eq!(answer.stdout.trim_end(), expected.trim_end(), "{format}");
    }
    let table = run(
        folder,
        &["sql", "--data-dir", "data", "--format", "table", "select 1 as x"],
    )
    .unwrap();
    assert!(
        table.stdout.contains("| x |") || table.stdout.contains("x"),
        "{}",
        table.stdout
    );
    let refused = run(folder, &["sql", "--data-dir", "data", "drop table tags"]).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(refused.stderr.contains("sql.not_allowed"), "{}", refused.stderr);
    let mistaken = run(
        folder,
        &["sql", "--data-dir", "data", "select no_such_column from tags"],
    )
    .unwrap();
    assert_eq!(mistaken.status.code(), Some(1));
    assert!(mistaken.stderr.contains("no_such_column"), "{}", mistaken.stderr);
    thalweg.stop().unwrap();
}

#[test]
fn a_running_process_is_asked_without_a_proxy_and_may_be_left_in_the_middle_of_its_answer() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    eventually(|| {
        anyhow::ensure!(thalweg.sql("select count(*) as n from tags")?[0]["n"].as_u64() > Some(0));
        Ok(())
    })
    .unwrap();
    let ask = |query: &str| {
        let mut command = Command::new(thalweg_tests::thalweg::binary());
        command
            .args(["sql", "--data-dir", "data", "--format", "csv", query])
            .current_dir(thalweg.folder.path());
        command
    };
    let asked = ask("select 1 as x")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("http_proxy", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&asked.stderr);
    assert!(asked.status.success(), "{error}");
    assert_eq!(asked.stdout, b"x\n1\n");

    // More than any pipe can buffer.
    let long = "select a.tag as one, b.tag as two from tags a, tags b, (values (1), (2), (3), (4), (5), (6), (7), (8), (9), (10)) c";
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let left = ask(long).stdout(writer).output().unwrap();
    let error = String::from_utf8_lossy(&left.stderr);
    assert!(left.status.success() && error.is_empty(), "{error}");
    thalweg.stop().unwrap();
}

#[test]
fn one_tag_from_two_inputs_of_a_broker_is_two_series() {
    let mut thalweg = Thalweg::spawn(
        "\
log: {commit: {spare: 1}}
input:
  broker:
    inputs:
      - label: north
        generate: {count: 3, interval: \"\", mapping: root = 1}
      - generate: {count: 4, interval: \"\", mapping: root = 2}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"e\"; msg.meta.data_contract = \"_raw\"; msg.meta.tag_name = \"t\"; return msg;
output:
  lake: {table: tags}
",
    )
    .unwrap();
    assert_eq!(thalweg.finish().unwrap().out, 7);
    let query = "select source, count(*) as rows, count(distinct tag_id) as ids, max(value_int) as value from tags group by 1 order by 1";
    let answer = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", query],
    )
    .unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let rows: Value = serde_json::from_str(&answer.stdout).unwrap();
    let expected = serde_json::json!([
        {"source": "north", "rows": 3, "ids": 1, "value": 1},
        {"source": "root.input.broker.inputs.1", "rows": 4, "ids": 1, "value": 2},
    ]);
    assert_eq!(rows, expected);
    let ids = run(
        thalweg.folder.path(),
        &[
            "sql",
            "--data-dir",
            "data",
            "--format",
            "json",
            "select count(distinct tag_id) as n from tags",
        ],
    )
    .unwrap();
    assert_eq!(ids.stdout.trim(), "[{\"n\":2}]");
}

#[test]
fn types_of_values_survive_into_the_table() {
    let mut thalweg = Thalweg::spawn(
        "\
log: {commit: {spare: 1}}
input:
  generate:
    count: 6
    interval: \"\"
    mapping: |
      let n = counter()
      root = match $n {
        1 => 9007199254740993
        2 => 2.5
        3 => true
        4 => \"12\"
        5 => {\"a\": [1, 2]}
        _ => \"text\"
      }
      meta n = $n
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"e\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"v\" + msg.meta.n;
          return msg;
output:
  lake: {table: tags}
",
    )
    .unwrap();
    assert_eq!(thalweg.finish().unwrap().out, 6);
    let query = "select tag, value, value_int, value_text, value_type, attr_tag_name from tags order by tag";
    let answer = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", query],
    )
    .unwrap();
    assert!(answer.status.success(), "{}", answer.stderr);
    let rows: Vec<Value> = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[0]["tag"], "umh.v1.e._raw.v1");
    assert_eq!(
        rows[0]["value_int"], "9007199254740993",
        "beyond 2^53 an integer is a JSON string"
    );
    assert_eq!(rows[1]["value"], 2.5);
    assert_eq!(rows[2]["value_int"], 1);
    assert_eq!(rows[3]["value_int"], 12, "tag_processor makes a number of numeric text");
    assert_eq!(rows[4]["value_text"], "{\"a\":[1,2]}");
    assert_eq!(rows[5]["value_text"], "text");
    assert_eq!(rows[5]["attr_tag_name"], "v6");
}

/// Ten minutes of samples of two tags, a second apart, and the expected rollup of each ten seconds.
#[test]
fn tags_have_windows_of_their_numbers() {
    let begin = unix_nanos() / 1_000_000_000 / 3600 * 3600 - 3600;
    let yaml = format!(
        "\
log: {{commit: {{spare: 1}}}}
lake:
  flush: {{interval: 100ms}}
  rollup:
    lateness: {{10s: 0s, 1m: 0s, 5m: 0s, 20m: 0s, 1h: 0s}}
input:
  label: plant
  generate:
    interval: 1ms
    batch_size: 10
    mapping: |
      let n = counter()
      root = if $n <= 1200 {{ $n }} else {{ deleted() }}
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = \"e\";
          msg.meta.data_contract = \"_raw\";
          msg.meta.tag_name = \"t\" + (msg.payload % 2);
          msg.meta.timestamp_ms = String({begin} * 1000 + Math.floor(msg.payload / 2) * 1000);
          return msg;
output:
  lake: {{table: tags}}
"
    );
    let mut thalweg = Thalweg::start(&yaml).unwrap();
    let until = (begin + 590) * 1_000_000_000;
    for seconds in [10_u64, 60] {
        let nanos = seconds * 1_000_000_000;
        let raw = format!(
            "select tag, time_unix_nano - time_unix_nano % {nanos} as at, count(*) as count, sum(value) as sum, min(value) as min, \
             max(value) as max from tags where time_unix_nano < {until} - {until} % {nanos} group by 1, 2 order by 1, 2"
        );
        let windows = format!(
            "select tag, time_unix_nano as at, count, sum, min, max from tags_rollup \
             where resolution_s = {seconds} and time_unix_nano < {until} - {until} % {nanos} order by 1, 2"
        );
        eventually(|| {
            let (raw, windows) = (thalweg.sql(&raw)?, thalweg.sql(&windows)?);
            anyhow::ensure!(
                raw.len() as u64 == 2 * (590 / seconds) && raw == windows,
                "{} {}",
                raw.len(),
                windows.len()
            );
            Ok(())
        })
        .unwrap();
    }
    let query =
        "select count(*) as n, min(sketch_quantile(sketch, 0.5)) as median from tags_rollup where resolution_s = 10";
    let rows = thalweg.sql(query).unwrap();
    assert!(rows[0]["median"].as_f64() > Some(0.0), "{rows:?}");
    thalweg.stop().unwrap();
}
