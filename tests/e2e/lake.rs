//! The table `tags`: what was acknowledged is in it, once, and every reader sees the same.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use thalweg_tests::servers::python;
use thalweg_tests::thalweg::run;
use thalweg_tests::{Thalweg, eventually};

const FLOW: &str = "\
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

/// What another reader says of the table.
fn read_with(script: &str, table: &Path) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(script);
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
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    eventually(|| {
        let rows = thalweg.sql("select count(*) as n from tags")?;
        anyhow::ensure!(rows[0]["n"].as_u64() > Some(500), "{rows:?}");
        Ok(())
    })
    .unwrap();
    let table = thalweg.data_dir().join("lake/tags");
    for script in ["read_tags_deltalake.py", "read_tags_duckdb.py"] {
        assert!(
            read_with(script, &table)["rows"].as_u64() > Some(500),
            "{script} while the table is written"
        );
    }
    thalweg.stop().unwrap();

    let query = "select count(*) as rows, min(value_int) as min, max(value_int) as max, sum(value_int) as sum, count(distinct tag) as tags from tags";
    let own = run(
        thalweg.folder.path(),
        &["sql", "--data-dir", "data", "--format", "json", query],
    )
    .unwrap();
    assert!(own.status.success(), "{}", own.stderr);
    let own: Value = serde_json::from_str(&own.stdout).unwrap();
    let rows = own[0]["rows"].as_u64().unwrap();
    // Every number once: nothing lost, nothing twice.
    assert_eq!(own[0]["min"], 1);
    assert_eq!(own[0]["max"].as_u64(), Some(rows));
    assert_eq!(own[0]["sum"].as_u64(), Some(rows * (rows + 1) / 2));
    assert_eq!(own[0]["tags"], 7);
    for script in ["read_tags_deltalake.py", "read_tags_duckdb.py"] {
        let theirs = read_with(script, &table);
        assert_eq!(theirs["rows"].as_u64(), Some(rows), "{script}");
        assert_eq!(theirs["sum"].as_u64(), own[0]["sum"].as_u64(), "{script}");
    }
    let log = thalweg.process.stdout();
    assert!(
        log.contains(&format!(
            "in {rows} = out {rows} + filtered 0 + dropped 0 + in flight 0"
        )),
        "{log}"
    );
}

#[test]
fn kill_9_leaves_a_table_that_opens_and_holds_everything_acknowledged() {
    let mut thalweg = Thalweg::start(FLOW).unwrap();
    let mut acknowledged_before = 0;
    for _ in 0..3 {
        let mut acknowledged = 0;
        eventually(|| {
            acknowledged = thalweg.balance()?.out;
            anyhow::ensure!(acknowledged > 200);
            Ok(())
        })
        .unwrap();
        thalweg.process.kill().unwrap();
        acknowledged_before += acknowledged;
        let rows = run(
            thalweg.folder.path(),
            &[
                "sql",
                "--data-dir",
                "data",
                "--format",
                "json",
                "select count(*) as n from tags",
            ],
        )
        .unwrap();
        assert!(rows.status.success(), "{}", rows.stderr);
        let rows: Value = serde_json::from_str(&rows.stdout).unwrap();
        assert!(
            rows[0]["n"].as_u64() >= Some(acknowledged_before),
            "{acknowledged_before} were acknowledged, the table has {rows}"
        );
        thalweg.restart().unwrap();
    }
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
fn types_of_values_survive_into_the_table() {
    let mut thalweg = Thalweg::spawn(
        "\
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
    assert!(
        thalweg.process.wait().unwrap().success(),
        "{}",
        thalweg.process.stderr()
    );
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
