//! Commits whose responses are lost while others commit, and stores with outages.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use tempfile::TempDir;
use thalweg_telemetry::Metrics;

use super::*;
use crate::opening;
use thalweg_columns::tables::LOGS;
use thalweg_delta::SnapshotDetail;
use thalweg_delta::actions::Metadata;
use thalweg_delta::schema::TableColumn;
use thalweg_delta::store::flaky::{Faults, Flaky};
use thalweg_delta::store::{LakeStorage, ScratchOptions, SyncedStore};

const SOON: Duration = Duration::from_secs(30);

/// One row with an attribute.
struct OneRow {
    path: String,
    attribute: &'static str,
}

impl OneRow {
    fn new(attribute: &'static str) -> OneRow {
        OneRow {
            path: format!("date=2031-05-06/{attribute}.parquet"),
            attribute,
        }
    }
}

fn add(path: &str) -> Add {
    Add {
        path: path.to_owned(),
        partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
        size: 1,
        modification_time: 1,
        data_change: true,
        stats: Some("{\"numRecords\":1}".to_owned()),
        tags: None,
        deletion_vector: None,
    }
}

impl CommitPayload for OneRow {
    fn names(&self, _: &AttributeBindings) -> Vec<(AttributeSource, &str)> {
        vec![(AttributeSource::Attr, self.attribute)]
    }

    fn encode(
        &self,
        schema: &TableSchema,
        _: &AttributeBindings,
    ) -> Result<(Vec<EncodedFile>, OverflowCounts), String> {
        assert!(schema.column(&format!("attr_{}", self.attribute)).is_some());
        let file = EncodedFile {
            bytes: Bytes::from_static(b"x"),
            rows: 1,
            add: add(&self.path),
        };
        Ok((vec![file], OverflowCounts::default()))
    }
}

fn taken(offset: i64) -> [CommittedOffset; 1] {
    [CommittedOffset {
        application: "thalweg/ab/lake.logs/0".to_owned(),
        offset,
        is_last: false,
    }]
}

async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < end, "it took too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A new table `logs` with its committer.
async fn committer(site: &LakeStorage, health: Arc<TableHealth>) -> Committer {
    let (columns, metrics) = ((LOGS.columns)(), LakeMetrics::register(&Metrics::default()));
    let opened = opening::open(site, LOGS.name, LOGS.partitions, &columns);
    let (log, _) = opened.await.unwrap();
    let made = opening::create(&log, LOGS.partitions, &columns, &metrics);
    let snapshot = made.await.unwrap();
    Committer::new(
        log,
        snapshot,
        AttributePromotion::default(),
        health,
        metrics,
        100,
        Handle::current(),
    )
}

fn on_store(scratch: &TempDir, store: Arc<dyn object_store::ObjectStore>) -> LakeStorage {
    let scratch = ScratchOptions {
        folder: scratch.path().join("lake/_thalweg"),
        spool_bytes: 1 << 20,
        free_min: 0,
        bytes_per_second: 0,
    };
    LakeStorage::remote("s3://bucket/lake", store, "lake".into(), &scratch)
}

/// Commits on a separate thread, as all callers do.
fn commit(mut committer: Committer, rows: OneRow, offset: i64) -> JoinHandle<Committer> {
    std::thread::spawn(move || {
        assert!(committer.commit(&rows, &taken(offset)).is_ok());
        committer
    })
}

/// Commits as another writer: adds a column and optionally replaces a file.
async fn guest_commits(log: &DeltaLog, replaced: Option<&str>) {
    let log = log.clone().for_guest();
    let snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let mut schema = (*snapshot.schema).clone();
    let column = TableColumn::attribute("attr_guest".to_owned(), "attr", "guest");
    schema.columns.push(column);
    let mut actions = vec![Action::Metadata(Metadata {
        schema_string: schema.to_delta(),
        ..snapshot.metadata.clone()
    })];
    if let Some(path) = replaced {
        actions.push(Action::Remove(Remove {
            path: path.to_owned(),
            data_change: false,
            deletion_timestamp: Some(1),
        }));
        actions.push(Action::Add(add("date=2031-05-06/merged.parquet")));
    }
    let outcome = log.commit(snapshot.version + 1, &actions).await;
    assert_eq!(outcome.unwrap(), CommitOutcome::Committed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_that_another_writer_added_while_an_answer_was_lost_stay_in_the_table() {
    for is_replaced in [false, true] {
        let (scratch, store) = (tempfile::tempdir().unwrap(), Flaky::new(1));
        let site = on_store(&scratch, Arc::new(store.clone()));
        let health = Arc::new(TableHealth::default());
        let committer = committer(&site, health.clone()).await;
        let elsewhere = tempfile::tempdir().unwrap();
        let truth = on_store(&elsewhere, store.truth()).log("logs").unwrap();
        let newest = async || truth.load(SnapshotDetail::Counts).await.unwrap().unwrap();

        // The commit is stored, but its writer gets no response until another one has committed.
        store.set(Faults::LateCommits);
        let first = OneRow::new("a");
        let path = first.path.clone();
        let committing = commit(committer, first, 1);
        until(async || health.trouble().is_some()).await;
        store.set(Faults::Down);
        store.let_go();
        until(async || newest().await.version == 1).await;
        guest_commits(&truth, is_replaced.then_some(path.as_str())).await;
        store.set(Faults::None);
        let committer = tokio::task::spawn_blocking(move || committing.join().unwrap())
            .await
            .unwrap();
        assert_eq!(newest().await.version, 2, "what has arrived is not sent again");

        let committing = commit(committer, OneRow::new("b"), 2);
        tokio::task::spawn_blocking(move || committing.join().unwrap())
            .await
            .unwrap();
        let table = newest().await;
        for column in ["attr_a", "attr_guest", "attr_b"] {
            assert!(table.schema.column(column).is_some(), "{column}, {is_replaced}");
        }
        assert_eq!((table.version, table.rows), (3, 2));
    }
}

/// The columns that a table names as those with statistics.
fn named_columns(table: &Snapshot) -> Option<&str> {
    let value = table.metadata.configuration.get(INDEXED_COLUMNS_KEY);
    value.map(String::as_str)
}

/// A table of an earlier version, without the property, or with `property`.
async fn older_table(folder: &TempDir, property: Option<&str>) -> (Committer, DeltaLog) {
    let site = LakeStorage::folder(&folder.path().join("lake"), SyncedStore::new());
    let mut committer = committer(&site, Arc::new(TableHealth::default())).await;
    let log = committer.log.clone();
    let mut metadata = committer.snapshot.metadata.clone();
    metadata.configuration.remove(INDEXED_COLUMNS_KEY);
    let named = property.map(|property| (INDEXED_COLUMNS_KEY.to_owned(), property.to_owned()));
    metadata.configuration.extend(named);
    let actions = [
        Action::Metadata(metadata),
        Action::Add(add("date=2031-05-06/old.parquet")),
    ];
    log.commit(1, &actions).await.unwrap();
    log.refresh(&mut committer.snapshot).await.unwrap();
    (committer, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_names_the_columns_with_statistics_from_its_next_commit_on() {
    let bounded = bounded_columns(&(LOGS.columns)(), LOGS.partitions);
    assert!(
        bounded.starts_with("resource_service_name,time_unix_nano,time,"),
        "{bounded}"
    );
    for (is_merge, property) in [(false, None), (true, None), (false, Some("body")), (true, Some("body"))] {
        let folder = tempfile::tempdir().unwrap();
        let (mut committer, log) = older_table(&folder, property).await;
        assert_eq!(named_columns(&committer.snapshot), property);
        let committing = std::thread::spawn(move || match is_merge {
            false => assert!(committer.commit(&OneRow::new("a"), &taken(1)).is_ok()),
            true => {
                let merged = FileReplacement {
                    operation: "OPTIMIZE",
                    kind: "compact",
                    removed: vec!["date=2031-05-06/old.parquet".into()],
                    added: vec![add("date=2031-05-06/new.parquet")],
                    changes_data: false,
                };
                assert!(matches!(committer.replace(&merged), Ok(true)));
            }
        });
        tokio::task::spawn_blocking(move || committing.join().unwrap())
            .await
            .unwrap();
        let table = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        assert_eq!(table.version, 2, "no commit of its own");
        let expected = property.unwrap_or(&bounded);
        assert_eq!(named_columns(&table), Some(expected), "what others named stays");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_table_names_the_columns_with_statistics() {
    let folder = tempfile::tempdir().unwrap();
    let site = LakeStorage::folder(&folder.path().join("lake"), SyncedStore::new());
    let committer = committer(&site, Arc::new(TableHealth::default())).await;
    let named = named_columns(&committer.snapshot).unwrap();
    assert_eq!(named, bounded_columns(&(LOGS.columns)(), LOGS.partitions));
    assert!(!named.split(',').any(|name| ["date", "overflow", ""].contains(&name)));
}

/// A folder for staged rows that is blocked by a file until the fault was noticed.
struct Blocked {
    folder: PathBuf,
    health: Arc<TableHealth>,
}

impl Blocked {
    fn new(within: &Path, health: &Arc<TableHealth>) -> Blocked {
        std::fs::write(within, "in the way").unwrap();
        Blocked {
            folder: within.join("rows"),
            health: health.clone(),
        }
    }

    /// Ends once the fault was noticed.
    fn free_once_seen(self) -> JoinHandle<()> {
        std::thread::spawn(move || {
            let end = Instant::now() + SOON;
            while self.health.trouble().is_none() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::remove_file(self.folder.parent().unwrap()).unwrap();
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_short_faults_with_work_between_them_are_not_one_long_one() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let folder = tempfile::tempdir().unwrap();
    let site = LakeStorage::folder(&folder.path().join("lake"), SyncedStore::new());
    let health = Arc::new(TableHealth::with_patience(PATIENCE));
    let mut committer = committer(&site, health.clone()).await;
    let staging = std::thread::spawn(move || {
        for (number, attribute) in ["a", "b"].into_iter().enumerate() {
            let blocked = Blocked::new(&folder.path().join(format!("staging{number}")), &health);
            let place = blocked.folder.clone();
            let freeing = blocked.free_once_seen();
            let staged = committer.stage(&OneRow::new(attribute), &place);
            freeing.join().unwrap();
            assert_eq!(staged.map_err(|_| "it gave up").unwrap().len(), 1, "fault {number}");
            assert!(health.trouble().is_none(), "rows were stored since");
            // The second fault begins after the patience for the first has passed.
            std::thread::sleep(PATIENCE);
        }
    });
    tokio::task::spawn_blocking(move || staging.join().unwrap())
        .await
        .unwrap();
}
