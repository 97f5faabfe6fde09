//! Reads every table of a lake with the public packages `duckdb` and `deltalake` after each change: new rows, new
//! attribute names, merged files, expired rows, deleted files, and files rewritten by `deltalake`. They must find the
//! same rows and values as Thalweg, and a deep verification must find no damage. With filters, they and `pandas` and
//! `polars` must find the rows that they find in the whole table.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/python/ask.rs"]
mod ask;
#[path = "readers/engines.rs"]
mod engines;
#[path = "readers/plant.rs"]
mod plant;

use std::collections::BTreeSet;

use serde_json::Value;

use engines::{Engines, Rows};
use plant::{Plant, compact_alone};
use thalweg_columns::tables::{EVENTS, LOGS, METRICS, METRICS_ROLLUP, TAGS, TAGS_ROLLUP, TRACES, TableSpec};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_lake::inspect::{Lake, VerifyOptions, verify};
use thalweg_lake::maintenance::MaintenanceTask;

const TABLES: [&str; 7] = [
    "logs",
    "metrics",
    "traces",
    "tags",
    "events",
    "metrics_rollup",
    "tags_rollup",
];

/// All engines agree on every row of every table, and no file is damaged. Returns the rows.
async fn agree(engines: &Engines, moment: &str) -> Vec<Rows> {
    let mut all = Vec::new();
    let site = LakeStorage::folder(engines.lake(), SyncedStore::new());
    let lake = Lake::open(&site).await.unwrap();
    for table in TABLES {
        let (options, mut progress) = (VerifyOptions { deep: true }, |_, _| {});
        let verified = verify(&lake, table, options, &mut progress).await.unwrap();
        assert!(verified.files > 0 && verified.rows > 0, "{moment}: {table}");
        assert!(verified.findings.is_empty(), "{moment}: {:?}", verified.findings);
    }
    let others = engines.others(&TABLES).await;
    for (table, others) in TABLES.iter().zip(others) {
        let own = engines.own(table).await;
        assert!(!own.is_empty(), "{moment}: {table} has no rows");
        for (engine, rows) in others {
            let difference = rows.symmetric_difference(&own).next();
            assert_eq!(
                difference, None,
                "{moment}: {engine} and this program differ in a row of {table}"
            );
            assert_eq!(rows.len(), own.len());
        }
        all.push(own);
    }
    all
}

/// The attribute columns of a type, in a table beside one where they are texts.
async fn typed_columns_hold(engines: &Engines) {
    let types = async |table: &str| -> Vec<String> {
        let described = engines.ask(&format!("describe {table}")).await;
        let of = |name: &str| {
            let row = described.iter().find(|row| row["column_name"] == name).unwrap();
            row["data_type"].as_str().unwrap().to_owned()
        };
        ["attr_http_status_code", "attr_ratio", "resource_host_0"]
            .map(of)
            .to_vec()
    };
    for table in ["logs", "metrics", "metrics_rollup"] {
        assert_eq!(types(table).await, ["Int64", "Float64", "Boolean"], "{table}");
    }
    let texts = types("traces").await;
    assert!(texts.iter().all(|kind| kind.starts_with("Utf8")), "{texts:?}");
    // The same values are sent to both.
    let names = ["http.status_code", "ratio"].map(|name| format!("attr('{name}')"));
    for name in names {
        let of = async |table: &str| {
            let sql = format!("select {name} as text, count(*) as n from {table} group by {name} order by text");
            engines.ask(&sql).await
        };
        let (typed, texts) = (of("logs").await, of("traces").await);
        assert!(typed.len() > 4 && typed == texts, "{name}: {typed:?} and {texts:?}");
    }
    let both = "select count(*) as n from (select distinct attr_http_status_code as s from logs) l join \
                (select distinct attr_http_status_code as s from traces) t on l.s = t.s";
    assert_eq!(engines.ask(both).await[0]["n"], 5);
    let joined = "select count(*) as n from logs l join traces t on l.trace_id = t.trace_id and l.time = t.time \
                  where l.attr('http.status_code') = t.attr('http.status_code') and l.attr_http_status_code + 0 = t.attr_http_status_code";
    let alone = "select count(attr_http_status_code) as n from logs";
    assert_eq!(engines.ask(joined).await, engines.ask(alone).await);
    let misfits = "select count(*) as n from logs where attr('http.status_code') in ('timeout', '200.5') and attr_http_status_code is null";
    assert!(engines.ask(misfits).await[0]["n"].as_i64().unwrap() > 0);
}

fn counts(all: &[Rows]) -> Vec<usize> {
    all.iter().map(BTreeSet::len).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_is_read_alike_by_others_after_all_that_happens_to_it() {
    let mut plant = Plant::new().await;
    let engines = Engines::of(plant.data_dir());
    // Rounds of forty days ago, then of now. Each adds attribute names that the tables did not have.
    for round in 0..4 {
        plant.round(round, true).await;
    }
    for round in 4..8 {
        plant.round(round, false).await;
    }
    plant.roll_up(&engines).await;
    let appended = agree(&engines, "rows and columns have come").await;
    let base = counts(&appended);
    assert_eq!(base[..5], [plant.rows(); 5], "what was appended is what is read");
    typed_columns_hold(&engines).await;
    let files = plant.files().await;
    assert!(files.iter().all(|files| *files >= 8), "files by table: {files:?}");

    // Rollup windows that were computed at once are already in one file per day.
    let merges = plant.maintain(MaintenanceTask::Compact).await;
    let had_many = |table: &&str| table.ends_with("_rollup") || merges.iter().any(|merged| merged == *table);
    assert!(TABLES.iter().all(had_many), "each table had files to merge: {merges:?}");
    let merged = agree(&engines, "files were merged").await;
    assert!(merged == appended, "a merge changes no row");
    for ((table, now), before) in TABLES.iter().zip(plant.files().await).zip(&files) {
        let was_merged = merges.iter().any(|merged| merged == table);
        assert!(now < *before || !was_merged, "{table}: {before} files, then {now}");
    }

    // New names in merged tables.
    plant.round(8, false).await;
    plant.roll_up(&engines).await;
    let grown = agree(&engines, "columns have come to merged tables").await;
    assert!(
        grown
            .iter()
            .zip(&merged)
            .take(5)
            .all(|(now, before)| now.len() > before.len())
    );
    // Existing windows may have grown.
    assert!(grown.iter().zip(&merged).all(|(now, before)| now != before));

    let expired = plant.maintain(MaintenanceTask::Retain).await;
    assert_eq!(expired.len(), TABLES.len(), "each table had old rows: {expired:?}");
    let kept = agree(&engines, "old rows have left").await;
    for ((table, now), before) in TABLES.iter().zip(&kept).zip(&grown) {
        assert!(now.is_subset(before) && now.len() < before.len(), "{table}");
    }
    assert_eq!(counts(&kept)[..5], [plant.rows(); 5], "what is young stays");

    let on_disk = plant.files_on_disk();
    let deleted = plant.maintain(MaintenanceTask::Vacuum).await;
    assert_eq!(
        deleted.len(),
        TABLES.len(),
        "each table had files that nobody needs: {deleted:?}"
    );
    assert!(plant.files_on_disk() < on_disk);
    let cleaned = agree(&engines, "files were deleted").await;
    assert!(cleaned == kept);

    // Everything works after the deletion, too.
    plant.round(9, false).await;
    plant.roll_up(&engines).await;
    plant.maintain(MaintenanceTask::Compact).await;
    agree(&engines, "more has come and was merged").await;
    plant.close().await;
}

const SPECS: [&TableSpec; 7] = [&LOGS, &METRICS, &TRACES, &TAGS, &EVENTS, &METRICS_ROLLUP, &TAGS_ROLLUP];

/// A filter that another program evaluates on the statistics in the Delta log must not lose rows, whatever the values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_of_others_find_what_they_find_in_the_whole_table() {
    let mut plant = Plant::new().await;
    let engines = Engines::of(plant.data_dir());
    for round in 0..2 {
        plant.round(round, false).await;
    }
    plant.numbers(&["1.5", "3", "NaN", "5"]).await;
    plant.numbers(&["Infinity", "4", "-0.0"]).await;
    plant.numbers(&["-Infinity", "Infinity", "NaN"]).await;
    plant.numbers(&["2", "2.5"]).await;
    plant.roll_up(&engines).await;
    // The readers ask many questions, so the tables must not change meanwhile.
    let folder = plant.close().await;
    let (mut wrong, mut types) = (Vec::new(), 0);
    for (table, found) in TABLES.iter().zip(engines.filter(&TABLES).await) {
        for reader in ["deltalake", "pandas", "polars", "duckdb"] {
            let asked = found["asked"][reader].as_u64().unwrap();
            assert!(asked >= 100, "{table}: {reader} was asked {asked} times");
        }
        types += found["types"].as_array().unwrap().len();
        wrong.extend(
            found["wrong"]
                .as_array()
                .unwrap()
                .iter()
                .map(|text| format!("{table}: {text}")),
        );
    }
    assert!(types > 25, "columns of many types: {types}");
    assert!(wrong.is_empty(), "{} filters: {wrong:#?}", wrong.len());
    drop(folder);
}

/// Checks Thalweg's use of the row order: each day separately, where the files are few enough to rely on it.
async fn orders_hold(engines: &Engines, moment: &str) {
    for spec in SPECS {
        let (table, keys) = (spec.name, spec.sort.join(", "));
        let days = engines
            .ask(&format!("select distinct cast(date as varchar) as d from {table}"))
            .await;
        for day in days {
            let of_day = format!("from {table} where date = '{}'", day["d"].as_str().unwrap());
            let when = format!("{moment}: {of_day}");
            let all = engines.ask(&format!("select {keys} {of_day}")).await;
            let keys_of = |row: &Value| -> Vec<Value> { spec.sort.iter().map(|key| row[*key].clone()).collect() };
            let texts = |rows: &[Value]| -> Vec<String> {
                rows.iter().map(|row| Value::Array(keys_of(row)).to_string()).collect()
            };
            let distinct: BTreeSet<String> = texts(&all).into_iter().collect();
            let groups = engines.ask(&format!("select {keys} {of_day} group by {keys}")).await;
            assert_eq!(groups.len(), distinct.len(), "{when}");
            let numbered = format!(
                "select count(*) as n from (select row_number() over (partition by {keys} order by {keys}) as r {of_day}) where r = 1"
            );
            assert_eq!(engines.ask(&numbered).await[0]["n"], distinct.len(), "{when}");
            let sorted = engines.ask(&format!("select {keys} {of_day} order by {keys}")).await;
            // The same after a sort without a known order.
            let anew = engines
                .ask(&format!(
                    "select {keys} from (select * {of_day} union all select * {of_day} and false) order by {keys}"
                ))
                .await;
            assert_eq!(texts(&sorted), texts(&anew), "{when}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_another_program_rewrites_stay_what_they_are() {
    let mut plant = Plant::new().await;
    let engines = Engines::of(plant.data_dir());
    for round in 0..6 {
        plant.round(round, round < 2).await;
    }
    plant.roll_up(&engines).await;
    let appended = agree(&engines, "rows have come").await;

    // While Thalweg writes, too.
    engines.optimize(&TABLES).await;
    plant.is_own_again().await;
    assert!(agree(&engines, "files were rewritten by both").await == appended);
    orders_hold(&engines, "rewritten by both").await;
    plant.round(6, false).await;
    plant.round(7, false).await;
    plant.roll_up(&engines).await;
    let grown = agree(&engines, "it goes on").await;

    // While nobody rewrites them again.
    let folder = plant.close().await;
    engines.optimize(&TABLES).await;
    let of_rows = TABLES.iter().filter(|table| !table.ends_with("_rollup")).count();
    assert!(Plant::foreign_files(folder.path()).await >= of_rows);
    assert!(agree(&engines, "files are of another writer").await == grown);
    orders_hold(&engines, "of another writer").await;
    compact_alone(folder.path()).await;
    assert_eq!(Plant::foreign_files(folder.path()).await, 0);
    assert!(agree(&engines, "files were merged by hand").await == grown);
    orders_hold(&engines, "merged by hand").await;

    // The other program writes checkpoints long afterwards. Consumed entries must not be consumed again.
    let taken = Plant::transactions(folder.path()).await;
    assert!(taken.iter().all(|taken| !taken.is_empty()), "{taken:?}");
    Plant::forget_soon(folder.path(), "file/of a week ago").await;
    engines.checkpoint(&TABLES).await;
    assert_eq!(Plant::transactions(folder.path()).await, taken);
    assert!(agree(&engines, "checkpoints are of another writer").await == grown);
}
