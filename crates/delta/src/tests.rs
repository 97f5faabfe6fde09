mod cancelled;
mod forgotten;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::actions::{Action, Add, Remove};
use super::schema::{ColumnType, TableColumn, TableSchema};
use super::*;
use crate::store::flaky::Flaky;
use crate::store::{LakeStorage, ScratchOptions, SyncedStore};

fn schema() -> TableSchema {
    TableSchema {
        columns: vec![
            TableColumn::required("date", ColumnType::Date),
            TableColumn::new("n", ColumnType::Long),
        ],
    }
}

fn add(name: &str, rows: u64) -> Action {
    Action::Add(Add {
        path: format!("date=2031-05-06/{name}"),
        partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
        size: 10,
        modification_time: 1,
        data_change: true,
        stats: Some(format!(
            "{{\"numRecords\":{rows},\"minValues\":{{\"n\":1}},\"maxValues\":{{\"n\":{rows}}}}}"
        )),
        tags: Some([("thalweg.level".to_owned(), Some("2".to_owned()))].into()),
        deletion_vector: None,
    })
}

async fn created(folder: &std::path::Path) -> DeltaLog {
    let log = DeltaLog::new(&folder.join("t"), SyncedStore::new()).unwrap();
    let actions = creation(new_metadata(
        &schema(),
        &["date"],
        &[("delta.checkpointInterval", "100")],
        7,
    ));
    assert_eq!(log.commit(0, &actions).await.unwrap(), CommitOutcome::Committed);
    log
}

/// The log of a table in an object store, for a writer without the lease.
fn log_on(store: &Flaky, scratch: &std::path::Path) -> DeltaLog {
    let on_disk = ScratchOptions {
        folder: scratch.to_owned(),
        spool_bytes: 0,
        free_min: 0,
        bytes_per_second: 0,
    };
    let site = LakeStorage::remote("s3://bucket/lake", Arc::new(store.clone()), "lake".into(), &on_disk);
    site.log("t").unwrap().for_guest()
}

fn commit_file(log: &DeltaLog, version: i64) -> PathBuf {
    log.table().join(format!("_delta_log/{version:020}.json"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_is_given_once_and_snapshots_follow() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    let mut first = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
    assert_eq!(
        log.commit(1, &[add("a", 5), add("b", 7)]).await.unwrap(),
        CommitOutcome::Committed
    );
    assert_eq!(log.commit(1, &[add("c", 9)]).await.unwrap(), CommitOutcome::Taken);
    let remove = Remove {
        path: "date=2031-05-06/a".into(),
        data_change: true,
        deletion_timestamp: None,
    };
    log.commit(2, &[Action::Remove(remove), add("c", 9)]).await.unwrap();
    assert!(log.refresh(&mut first).await.unwrap());
    assert!(!log.refresh(&mut first).await.unwrap());
    assert_eq!(
        (first.version, first.rows, first.bytes, first.files.len()),
        (2, 16, 20, 2)
    );
    assert_eq!(first.files_by_level(), [(2, 2)].into());
    let loaded = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
    assert_eq!(loaded.files, first.files, "what was followed is what is loaded");
    assert_eq!(loaded.metadata, first.metadata);
    let counts = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    assert_eq!((counts.rows, counts.bytes), (16, 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_stands_in_for_the_commits_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    for version in 1..=12 {
        log.commit(version, &[add(&format!("f{version}"), 1)]).await.unwrap();
    }
    log.checkpoint(10).await.unwrap();
    for version in 0..=10 {
        std::fs::remove_file(commit_file(&log, version)).unwrap();
    }
    let snapshot = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
    assert_eq!((snapshot.version, snapshot.rows, snapshot.files.len()), (12, 12, 12));
    assert!(
        snapshot
            .files
            .values()
            .all(|file| file.level == 2 && file.stats.column("n").is_some())
    );
    assert_eq!(*snapshot.schema, schema());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_wrong_hint_and_a_damaged_checkpoint_cost_time_and_no_data() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    for version in 1..=6 {
        log.commit(version, &[add(&format!("f{version}"), 1)]).await.unwrap();
    }
    log.checkpoint(2).await.unwrap();
    log.checkpoint(4).await.unwrap();
    let in_log = |name: &str| log.table().join("_delta_log").join(name);
    // From here on only the checkpoints have the beginning of the table.
    for version in 0..=2 {
        std::fs::remove_file(commit_file(&log, version)).unwrap();
    }
    let whole = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
    assert_eq!((whole.version, whole.files.len()), (6, 6));
    let damage: [(&str, Option<&str>); 5] = [
        ("_last_checkpoint", None),
        ("_last_checkpoint", Some("{")),
        ("_last_checkpoint", Some("{\"version\":9,\"size\":1}")),
        ("_last_checkpoint", Some("{\"version\":2,\"size\":1}")),
        ("00000000000000000004.checkpoint.parquet", Some("PAR1")),
    ];
    for (file, content) in damage {
        match content {
            None => std::fs::remove_file(in_log(file)).unwrap(),
            Some(content) => std::fs::write(in_log(file), content).unwrap(),
        }
        let loaded = log.load(SnapshotDetail::Stats).await.unwrap().unwrap();
        assert_eq!((loaded.version, &loaded.files), (6, &whole.files), "{file} {content:?}");
    }
    std::fs::write(in_log("00000000000000000002.checkpoint.parquet"), "").unwrap();
    let error = log.load(SnapshotDetail::Stats).await.unwrap_err().to_string();
    assert!(
        error.starts_with("lake.corrupt_log: the history of ")
            && error.contains("00000000000000000002.checkpoint.parquet"),
        "{error}"
    );
    std::fs::remove_file(in_log("00000000000000000002.checkpoint.parquet")).unwrap();
    std::fs::remove_file(in_log("00000000000000000004.checkpoint.parquet")).unwrap();
    let error = log.load(SnapshotDetail::Stats).await.unwrap_err().to_string();
    assert!(error.contains("the oldest commit is 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_beyond_the_retention_go_the_oldest_first_and_never_past_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let log = DeltaLog::new(&folder.path().join("t"), SyncedStore::new()).unwrap();
    let week = [("delta.logRetentionDuration", "interval 7 days")];
    log.commit(0, &creation(new_metadata(&schema(), &["date"], &week, 7)))
        .await
        .unwrap();
    for version in 1..=8 {
        log.commit(version, &[add(&format!("f{version}"), 1)]).await.unwrap();
    }
    log.checkpoint(2).await.unwrap();
    let old = std::time::SystemTime::now() - Duration::from_secs(8 * 24 * 3600);
    for version in [0, 1, 2, 3, 5, 6, 7] {
        let file = std::fs::File::options()
            .write(true)
            .open(commit_file(&log, version))
            .unwrap();
        file.set_modified(old).unwrap();
    }
    log.checkpoint(6).await.unwrap();
    let left: Vec<i64> = (0..=8).filter(|&version| commit_file(&log, version).exists()).collect();
    assert_eq!(left, [4, 5, 6, 7, 8], "commit 4 is young, so what follows it stays");
    assert!(
        !log.table()
            .join("_delta_log/00000000000000000002.checkpoint.parquet")
            .exists()
    );
    let file = std::fs::File::options().write(true).open(commit_file(&log, 4)).unwrap();
    file.set_modified(old).unwrap();
    log.checkpoint(7).await.unwrap();
    let left: Vec<i64> = (0..=8).filter(|&version| commit_file(&log, version).exists()).collect();
    assert_eq!(left, [7, 8], "the checkpoint's own commit stays");
    let loaded = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    assert_eq!((loaded.version, loaded.rows), (8, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_newest_commit_is_moved_away_and_an_older_one_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let quarantine = folder.path().join("quarantine");
    let log = created(folder.path()).await;
    log.commit(1, &[add("a", 5)]).await.unwrap();
    log.commit(2, &[add("b", 6)]).await.unwrap();
    let whole = std::fs::read(commit_file(&log, 2)).unwrap();
    std::fs::write(commit_file(&log, 2), &whole[..whole.len() / 2]).unwrap();
    log.recover(&quarantine, Duration::ZERO).await.unwrap();
    assert_eq!(log.load(SnapshotDetail::Counts).await.unwrap().unwrap().version, 1);
    assert_eq!(std::fs::read_dir(&quarantine).unwrap().count(), 1, "nothing is deleted");

    log.commit(2, &[add("c", 7)]).await.unwrap();
    std::fs::write(commit_file(&log, 1), "{\"add\":").unwrap();
    log.recover(&quarantine, Duration::ZERO).await.unwrap();
    let mut snapshot = Snapshot::new(
        0,
        actions::Protocol::plain(),
        new_metadata(&schema(), &["date"], &[], 0),
        SnapshotDetail::Counts,
    )
    .unwrap();
    let error = log.refresh(&mut snapshot).await.unwrap_err().to_string();
    assert!(
        error.starts_with("lake.corrupt_log: commit 1 of ") && error.ends_with("to go back to version 0"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_temporary_files_are_swept_and_young_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    let staged = log.table().join("_delta_log/00000000000000000001.json#123");
    std::fs::write(&staged, "half").unwrap();
    log.recover(folder.path(), Duration::from_secs(3600)).await.unwrap();
    assert!(staged.exists());
    log.recover(folder.path(), Duration::ZERO).await.unwrap();
    assert!(!staged.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_represented_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    let mut snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let newer = actions::Protocol {
        min_reader_version: 3,
        ..actions::Protocol::plain()
    };
    log.commit(1, &[Action::Protocol(newer)]).await.unwrap();
    let error = log.refresh(&mut snapshot).await.unwrap_err().to_string();
    assert!(error.starts_with("lake.unsupported_table: "), "{error}");
    let Action::Add(mut elsewhere) = add("x", 1) else {
        unreachable!()
    };
    elsewhere.path = "s3://bucket/x".into();
    assert!(snapshot.apply(vec![Action::Add(elsewhere)]).is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_is_no_table_where_there_is_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = DeltaLog::new(&folder.path().join("t"), SyncedStore::new()).unwrap();
    assert!(log.load(SnapshotDetail::Counts).await.unwrap().is_none());
    std::fs::create_dir_all(folder.path().join("t/_delta_log")).unwrap();
    assert!(log.load(SnapshotDetail::Counts).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_versions_are_found_by_number_and_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let log = created(folder.path()).await;
    let made = |at: i64| Action::CommitInfo(actions::CommitInfo::of("WRITE", at));
    log.commit(1, &[made(1_000), add("a", 5)]).await.unwrap();
    log.commit(2, &[made(2_000), add("b", 7)]).await.unwrap();
    log.checkpoint(2).await.unwrap();
    log.commit(3, &[made(3_000), add("c", 9)]).await.unwrap();
    let versions = log.versions().await.unwrap().unwrap();
    assert_eq!(versions.all, 0..=3);
    for (version, rows) in [(0, 0), (1, 5), (2, 12), (3, 21)] {
        let loaded = log.load_at(&versions, version, SnapshotDetail::Stats).await.unwrap();
        assert_eq!((loaded.version, loaded.rows), (version, rows));
    }
    let missing = log
        .load_at(&versions, 4, SnapshotDetail::Stats)
        .await
        .unwrap_err()
        .to_string();
    assert!(missing.ends_with("has no version 4; it has 0 to 3"), "{missing}");
    // Without the first commit, history begins at the checkpoint.
    std::fs::remove_file(commit_file(&log, 0)).unwrap();
    let versions = log.versions().await.unwrap().unwrap();
    assert_eq!(versions.all, 2..=3, "from the checkpoint on");
    for (at, version) in [(2_000, 2), (2_999, 2), (3_000, 3), (9_000, 3)] {
        assert_eq!(log.version_at(&versions, at).await.unwrap(), version, "{at}");
    }
    let early = log.version_at(&versions, 1_999).await.unwrap_err().to_string();
    assert!(early.contains("had no version at that time"), "{early}");
    assert!(
        DeltaLog::new(&folder.path().join("no"), SyncedStore::new())
            .unwrap()
            .versions()
            .await
            .unwrap()
            .is_none()
    );
}
