//! The table `tags`: the cost of a row from message to commit, and the time of queries over many small files.

use std::path::Path;

use anyhow::{Result, ensure};

use super::Effort;
use super::report::{Row, Stage};
use super::under_test::UnderTest;
use crate::shell::binary_under_test;

/// 10,000 tags in turn: floats, with tag metadata.
const PLANT: &str = r#"
input:
  generate:
    interval: ""
    batch_size: 1000
    COUNT
    mapping: |
      let n = counter()
      let tag = $n % 10000
      root = $n * 0.1
      meta opcua_tag_name = "Fast" + $tag.string()
      meta opcua_tag_group = "Line1.Oven"
      meta opcua_tag_type = "number"
pipeline:
  processors:
    - tag_processor:
        defaults: |
          msg.meta.location_path = "enterprise.site.area";
          msg.meta.data_contract = "_raw";
          msg.meta.tag_name = msg.meta.opcua_tag_name;
          return msg;
"#;

/// A process that only answers queries.
const IDLE: &str = "input: {generate: {interval: 1h, mapping: root = 1}}\noutput: {drop: {}}\n";

pub const STAGES: [Stage; 1] = [Stage {
    name: "message -> entry of the log -> row of the table",
    with: "tags_lake",
    without: Some("tags_drop"),
}];

/// In the query rows, one op is one query.
const QUERIES: [(&str, &str); 5] = [
    ("sql_count", "select count(*) from tags"),
    ("sql_aggregate", "select count(*), max(value), sum(value) from tags"),
    (
        "sql_group_by_tag",
        "select tag, avg(value) from tags group by tag order by 2 desc limit 5",
    ),
    (
        "sql_last_of_one_tag",
        "select time, value from tags where tag = 'umh.v1.enterprise.site.area._raw.Fast7' order by time desc limit 10",
    ),
    (
        "sql_time_range",
        "select max(value) from tags where time_unix_nano > (select max(time_unix_nano) - 1000000000 from tags)",
    ),
];

/// Minimum window of a row whose table commits when its memory is full.
const COMMITS_SECONDS: f64 = 4.0;

/// In many small files.
const ROWS: u64 = 1_000_000;
const SMALL_FILES: &str = "lake: {flush: {bytes: 256KiB}}\n";

fn plant(count: Option<u64>, output: &str) -> String {
    let count = count.map(|n| format!("count: {n}")).unwrap_or_default();
    format!("{}output:\n  {output}\n", PLANT.replace("COUNT", &count))
}

pub fn run(effort: Effort) -> Result<Vec<Row>> {
    let binary = binary_under_test()?;
    let mut rows = Vec::new();
    println!("measuring tags_drop");
    rows.push(UnderTest::start(&binary, &plant(None, "drop: {}"))?.measure("tags_drop", effort)?);
    println!("measuring tags_lake");
    // A window has to contain several commits.
    let several = Effort {
        window_seconds: effort.window_seconds.max(COMMITS_SECONDS),
        ..effort
    };
    rows.push(UnderTest::start(&binary, &plant(None, "lake: {table: tags}"))?.measure("tags_lake", several)?);
    println!("writing {ROWS} rows in small files");
    let yaml = format!("{SMALL_FILES}{}", plant(Some(ROWS), "lake: {table: tags}"));
    let mut writer = UnderTest::start(&binary, &yaml)?;
    writer.wait_for_end()?;
    let reader = writer.start_again(&binary, IDLE)?;
    let counted = reader.sql("select count(*) as n from tags")?;
    ensure!(counted[0]["n"] == ROWS, "the table has {counted}, not {ROWS} rows");
    println!(
        "the table has {} files",
        count_files(&reader.data_dir().join("lake/tags"))?
    );
    let short = Effort {
        window_seconds: effort.window_seconds / 2.0,
        ..effort
    };
    for (name, query) in QUERIES {
        println!("measuring {name}");
        rows.push(reader.measure_query(name, query, short)?);
    }
    Ok(rows)
}

/// Parquet files of a table, in its partitions.
fn count_files(table: &Path) -> Result<usize> {
    let mut files = 0;
    for partition in std::fs::read_dir(table)? {
        let partition = partition?.path();
        if partition.is_dir() {
            let names = std::fs::read_dir(partition)?.flatten().map(|entry| entry.path());
            files += names
                .filter(|path| path.extension().is_some_and(|e| e == "parquet"))
                .count();
        }
    }
    Ok(files)
}
