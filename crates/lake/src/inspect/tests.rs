use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use thalweg_telemetry::{Metrics, StatusSource as _};

use super::*;
use crate::LakeMetrics;
use crate::ingest::tests::{World, fast};
use crate::maintenance::{MaintenanceOptions, MaintenanceReport, MaintenanceRequest, MaintenanceTask, by_hand_alone};
use thalweg_columns::compaction::CompactionOptions;
use thalweg_delta::store::{LakeStorage, SyncedStore};

const SOON: Duration = Duration::from_secs(30);

/// A table `logs` with some files of one day, without a writer.
async fn made(files: usize) -> (World, Lake) {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    for number in 0..files {
        world.append(number % 2, &[&format!("body {number:02}"), "again"]).await;
        let rows = 2 * (number as u64 + 1);
        let until = std::time::Instant::now() + SOON;
        while writer.tables()[0].rows < rows {
            assert!(std::time::Instant::now() < until, "it took too long");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    writer.close(SOON).await;
    let site = LakeStorage::folder(world.folder.path(), SyncedStore::new());
    let lake = Lake::open(&site).await.unwrap();
    (world, lake)
}

async fn verified(lake: &Lake, deep: bool) -> VerifyReport {
    verify(lake, "logs", VerifyOptions { deep }, &mut |_, _| {})
        .await
        .unwrap()
}

fn problems(verified: &VerifyReport) -> Vec<(&'static str, &str)> {
    let findings = verified.findings.iter();
    findings.map(|found| (found.kind, found.problem.as_str())).collect()
}

async fn paths(lake: &Lake) -> Vec<PathBuf> {
    let (log, snapshot) = lake.newest("logs", SnapshotDetail::Counts).await.unwrap();
    snapshot.files.keys().map(|path| log.table().join(&**path)).collect()
}

async fn by_hand(lake: &Path, asked: MaintenanceRequest, options: MaintenanceOptions) -> Vec<MaintenanceReport> {
    let (lake, runtime) = (lake.to_owned(), tokio::runtime::Handle::current());
    let run = move || {
        let metrics = LakeMetrics::register(&Metrics::default());
        let mut did = Vec::new();
        by_hand_alone(
            &LakeStorage::folder(&lake, SyncedStore::new()),
            &asked,
            &[],
            options,
            metrics,
            &runtime,
            &mut |done| {
                did.push(done);
                true
            },
        )
        .map(|()| did)
    };
    tokio::task::spawn_blocking(run).await.unwrap().unwrap()
}

fn asked(task: MaintenanceTask) -> MaintenanceRequest {
    MaintenanceRequest {
        task,
        table: Some("logs".to_owned()),
        date: None,
        dry_run: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_table_has_no_finding_and_its_figures_are_those_of_its_files() {
    let (_world, lake) = made(3).await;
    for deep in [false, true] {
        let verified = verified(&lake, deep).await;
        assert_eq!(problems(&verified), []);
        assert_eq!((verified.files, verified.rows), (3, 6));
    }
    assert_eq!(lake.names(), ["logs"]);
    let table = table(&lake, "logs").await.unwrap();
    assert_eq!((table.rows, table.files, table.sealed), (6, 3, 0));
    assert_eq!(table.levels, [(0, 3)].into());
    assert_eq!(table.first_date, table.last_date);
    let (_, snapshot) = lake.newest("logs", SnapshotDetail::Counts).await.unwrap();
    let day = table.first_date.unwrap();
    let files = files(&snapshot, Some(&day));
    assert_eq!(files.len(), 3);
    assert!(
        files
            .iter()
            .all(|file| file.rows == Some(2) && file.first_time.as_ref().unwrap().starts_with(&day))
    );
    assert!(super::files(&snapshot, Some("1999-01-01")).is_empty());
    let error = lake.log("x").err().unwrap().to_string();
    assert_eq!(error, "there is no table x; the tables are: logs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_file_a_short_one_and_a_wrong_count_are_found() {
    let (_world, lake) = made(3).await;
    let log = lake.log("logs").unwrap();
    let newest = log.load(SnapshotDetail::Counts).await.unwrap().unwrap().version;
    let commit = log.table().join(format!("_delta_log/{newest:020}.json"));
    let text = std::fs::read_to_string(&commit).unwrap();
    // Each file gets one fault.
    let mut files = paths(&lake).await;
    files.retain(|path| !text.contains(path.file_name().unwrap().to_str().unwrap()));
    std::fs::remove_file(&files[0]).unwrap();
    let bytes = std::fs::read(&files[1]).unwrap();
    std::fs::write(&files[1], &bytes[..bytes.len() - 10]).unwrap();
    let wrong = text.replace("\\\"numRecords\\\":2", "\\\"numRecords\\\":3");
    assert_ne!(text, wrong);
    std::fs::write(&commit, wrong).unwrap();
    let found = verified(&lake, false).await;
    let of = |kind: &str| -> Vec<String> {
        let found = found.findings.iter().filter(|found| found.kind == kind);
        found.map(ToString::to_string).collect()
    };
    let [missing, size] = [&of("missing")[..], &of("size")[..]];
    assert!(
        matches!(missing, [one] if one.ends_with(".parquet: the file is missing")),
        "{missing:?}"
    );
    assert!(
        matches!(size, [one] if one.contains("bytes, the table says")),
        "{size:?}"
    );
    assert_eq!(of("unreadable").len(), 1);
    let rows = of("rows");
    assert!(
        rows.iter()
            .any(|found| found.ends_with("the file has 2 rows, the table says 3")),
        "{rows:?}"
    );
    std::fs::remove_file(log.table().join(format!("_delta_log/{:020}.json", newest - 1))).unwrap();
    let broken = verified(&lake, false).await;
    assert!(
        broken.findings.iter().any(|found| found.kind == "log"),
        "{:?}",
        broken.findings
    );
}

/// Page contents have checksums; some header bits do not matter to readers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_byte_in_a_page_is_found() {
    let (_world, lake) = made(1).await;
    let file = paths(&lake).await.remove(0);
    let whole = std::fs::read(&file).unwrap();
    let opened = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(whole.clone())).unwrap();
    let columns = opened.metadata().row_groups()[0].columns().iter();
    let ends = columns
        .map(|column| column.byte_range())
        .map(|(begin, len)| begin + len);
    let pages = 4..usize::try_from(ends.max().unwrap()).unwrap();
    let (mut tried, mut found) = (0, 0);
    for at in pages.step_by(5) {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&file, &flipped).unwrap();
        tried += 1;
        found += usize::from(!verified(&lake, true).await.findings.is_empty());
    }
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(problems(&verified(&lake, true).await), []);
    assert!(found * 10 >= tried * 8, "{found} of {tried} were found");
}

/// Between the pages and the footer. Some bits there do not matter to readers, and the page order is optional.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_in_the_index_of_pages_is_found() {
    let (_world, lake) = made(1).await;
    let file = paths(&lake).await.remove(0);
    let whole = std::fs::read(&file).unwrap();
    let opened = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(whole.clone())).unwrap();
    let columns = || opened.metadata().row_groups()[0].columns().iter();
    let begins = columns().flat_map(|column| [column.column_index_offset(), column.offset_index_offset()]);
    let begin = usize::try_from(begins.flatten().min().unwrap()).unwrap();
    let ends =
        columns().filter_map(|column| Some(column.offset_index_offset()? + i64::from(column.offset_index_length()?)));
    let end = usize::try_from(ends.max().unwrap()).unwrap();
    let (mut tried, mut found) = (0, 0);
    for (at, bit) in (begin..end).zip((0..8).cycle()) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << bit;
        std::fs::write(&file, &flipped).unwrap();
        tried += 1;
        found += usize::from(!verified(&lake, true).await.findings.is_empty());
    }
    std::fs::write(&file, &whole).unwrap();
    assert_eq!(problems(&verified(&lake, true).await), []);
    assert!(tried > 100 && found * 10 >= tried * 7, "{found} of {tried} were found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_says_what_each_commit_did() {
    let (world, lake) = made(3).await;
    let mut done = by_hand(
        world.folder.path(),
        asked(MaintenanceTask::Compact),
        MaintenanceOptions::default(),
    )
    .await;
    assert_eq!(done.pop().map(|did| did.files), Some(3));
    let all = history(&lake, "logs", 100).await.unwrap();
    assert_eq!(all[0].operation, "CREATE TABLE");
    assert!(all[0].columns.iter().any(|column| column == "body"));
    let merged = all.last().unwrap();
    assert_eq!(
        (merged.operation.as_str(), merged.added.files, merged.removed.files),
        ("OPTIMIZE", 1, 3)
    );
    assert_eq!((merged.added.rows, merged.removed.rows, merged.table.rows), (6, 6, 6));
    assert!(
        merged
            .positions
            .keys()
            .all(|application| application.starts_with("thalweg/"))
    );
    let rows: u64 = all.iter().map(|commit| commit.added.rows - commit.removed.rows).sum();
    assert_eq!(rows, 6);
    let newest = history(&lake, "logs", 2).await.unwrap();
    assert_eq!(newest, all[all.len() - 2..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_asked_for_by_hand_is_done_alone_or_only_said() {
    let (world, lake) = made(5).await;
    let folder = world.folder.path();
    let options = MaintenanceOptions {
        compaction: CompactionOptions {
            inputs: 4,
            // The rows are old, but nothing should be sealed here.
            seal_after: Duration::from_secs(100 * 365 * 86_400),
            ..CompactionOptions::default()
        },
        vacuum_retain: Duration::ZERO,
        retention: vec![("logs", 30)],
        ..MaintenanceOptions::default()
    };
    let dry = |task| MaintenanceRequest {
        dry_run: true,
        ..asked(task)
    };
    let said = by_hand(folder, dry(MaintenanceTask::Compact), options.clone()).await;
    assert_eq!(said.iter().map(|did| did.files).collect::<Vec<_>>(), [4]);
    assert_eq!(paths(&lake).await.len(), 5, "nothing was done");
    let other_day = MaintenanceRequest {
        date: Some("1999-01-01".to_owned()),
        ..asked(MaintenanceTask::Compact)
    };
    assert_eq!(by_hand(folder, other_day, options.clone()).await[0].files, 0);
    let done = by_hand(folder, asked(MaintenanceTask::Compact), options.clone()).await;
    assert_eq!(
        done.iter().map(|did| did.files).collect::<Vec<_>>(),
        [4, 2],
        "four are open at a time"
    );
    assert!(
        done.iter()
            .all(|did| did.error.is_none() && did.merged.as_ref().is_some_and(|into| into.files == 1))
    );
    assert_eq!(paths(&lake).await.len(), 1);
    assert_eq!(problems(&verified(&lake, true).await), []);
    let said = by_hand(folder, dry(MaintenanceTask::Vacuum), options.clone()).await;
    assert_eq!(said[0].files, 6);
    let done = by_hand(folder, asked(MaintenanceTask::Vacuum), options.clone()).await;
    assert_eq!((done[0].files, done[0].bytes), (6, said[0].bytes));
    assert_eq!(
        by_hand(folder, asked(MaintenanceTask::Vacuum), options.clone()).await[0].files,
        0
    );
    let done = by_hand(folder, asked(MaintenanceTask::Retain), options).await;
    assert_eq!((done[0].files, done[0].rows), (1, 10));
    assert!(paths(&lake).await.is_empty());
}
