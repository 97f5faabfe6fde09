//! Every table of a lake, read by the public packages `duckdb` and `deltalake` after each thing that happens to a table: rows come, names
//! of attributes come, files are merged, rows are too old, files are deleted. They must find, row by row and value by value, what
//! this program finds itself.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/python/ask.rs"]
mod ask;
#[path = "readers/engines.rs"]
mod engines;
#[path = "readers/plant.rs"]
mod plant;

use std::collections::BTreeSet;

use engines::{Engines, Rows};
use plant::Plant;
use thalweg_lake::upkeep::Task;

const TABLES: [&str; 7] = [
    "logs",
    "metrics",
    "traces",
    "tags",
    "events",
    "metrics_rollup",
    "tags_rollup",
];

/// All agree on every row of every table. Returns what they read.
async fn agree(engines: &Engines, moment: &str) -> Vec<Rows> {
    let mut all = Vec::new();
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

fn counts(all: &[Rows]) -> Vec<usize> {
    all.iter().map(BTreeSet::len).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_table_is_read_alike_by_others_after_all_that_happens_to_it() {
    let mut plant = Plant::new().await;
    let engines = Engines::of(plant.data_dir());
    // Rounds of forty days ago, and of now. Each brings names that the tables did not have.
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
    let files = plant.files().await;
    assert!(files.iter().all(|files| *files >= 8), "files by table: {files:?}");

    let merges = plant.upkeep(Task::Compact).await;
    assert_eq!(merges.len(), TABLES.len(), "each table had files to merge: {merges:?}");
    let merged = agree(&engines, "files were merged").await;
    assert!(merged == appended, "a merge changes no row");
    assert!(plant.files().await.iter().zip(&files).all(|(now, before)| now < before));

    // Names come to tables that were merged, too.
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
    // More may be in windows that there were.
    assert!(grown.iter().zip(&merged).all(|(now, before)| now != before));

    let expired = plant.upkeep(Task::Retain).await;
    assert_eq!(expired.len(), TABLES.len(), "each table had old rows: {expired:?}");
    let kept = agree(&engines, "old rows have left").await;
    for ((table, now), before) in TABLES.iter().zip(&kept).zip(&grown) {
        assert!(now.is_subset(before) && now.len() < before.len(), "{table}");
    }
    assert_eq!(counts(&kept)[..5], [plant.rows(); 5], "what is young stays");

    let on_disk = plant.files_on_disk();
    let deleted = plant.upkeep(Task::Vacuum).await;
    assert_eq!(
        deleted.len(),
        TABLES.len(),
        "each table had files that nobody needs: {deleted:?}"
    );
    assert!(plant.files_on_disk() < on_disk);
    let cleaned = agree(&engines, "files were deleted").await;
    assert!(cleaned == kept);

    // And it goes on.
    plant.round(9, false).await;
    plant.upkeep(Task::Compact).await;
    agree(&engines, "more has come and was merged").await;
    plant.close().await;
}
