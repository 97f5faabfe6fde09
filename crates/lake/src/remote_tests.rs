//! A lake on a failing object store: each entry of the log must be in the table exactly once, whichever calls fail, are
//! delayed, or are executed although they seem to have failed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::AsArray as _;
use futures::TryStreamExt as _;
use object_store::ObjectStore as _;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use thalweg_telemetry::{Metrics, StatusSource as _};

use crate::error::OpenError;
use crate::ingest::tests::{World, accepting, rows_alone};
use crate::ingest::{IngestOptions, TableWriter, keep_ends};
use crate::maintenance::{MaintenanceOptions, MaintenanceThread};
use crate::metrics::LakeMetrics;
use object_store::path::Path as StorePath;
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::compaction::CompactionOptions;
use thalweg_columns::tables::LOGS;
use thalweg_delta::store::flaky::{Faults, Flaky};
use thalweg_delta::store::{LakeStorage, ScratchOptions};
use thalweg_delta::{Snapshot, SnapshotDetail};

const SOON: Duration = Duration::from_secs(30);

struct Remotely {
    world: World,
    store: Flaky,
}

impl Remotely {
    async fn new(seed: u64) -> Remotely {
        Remotely {
            world: World::new().await,
            store: Flaky::new(seed),
        }
    }

    fn site(&self) -> LakeStorage {
        let scratch = ScratchOptions {
            folder: self.world.folder.path().join("lake/_thalweg"),
            spool_bytes: 1 << 20,
            free_min: 0,
            bytes_per_second: 0,
        };
        LakeStorage::remote(
            "s3://bucket/lake",
            Arc::new(self.store.clone()),
            "lake".into(),
            &scratch,
        )
    }

    async fn try_open(&self, options: &IngestOptions) -> Result<TableWriter, OpenError> {
        let metrics = LakeMetrics::register(&Metrics::default());
        let promotion = AttributePromotion::default();
        TableWriter::open(
            &self.site(),
            &LOGS,
            self.world.feed(),
            &rows_alone(&LOGS),
            promotion,
            metrics,
            options,
        )
        .await
    }

    /// Opens the table, with retries. If the store fails every fourth call, about one attempt in twenty succeeds.
    async fn open(&self) -> TableWriter {
        let until = Instant::now() + 10 * SOON;
        loop {
            match self.try_open(&fast()).await {
                Ok(writer) => return writer,
                Err(error) => assert!(!error.is_permanent() && Instant::now() < until, "{error}"),
            }
        }
    }

    /// The table as another reader sees it.
    async fn table(&self) -> Option<Snapshot> {
        let site = Remotely {
            world: World::new().await,
            store: self.store.clone(),
        };
        let truth = self.store.truth();
        let scratch = ScratchOptions {
            folder: site.world.folder.path().to_owned(),
            spool_bytes: 0,
            free_min: 0,
            bytes_per_second: 0,
        };
        let site = LakeStorage::remote("s3://bucket/lake", truth, "lake".into(), &scratch);
        site.log("logs").unwrap().load(SnapshotDetail::Counts).await.unwrap()
    }

    /// The bodies of all rows, sorted.
    async fn bodies(&self) -> Vec<String> {
        let (truth, mut bodies) = (self.store.truth(), Vec::new());
        for file in self.table().await.iter().flat_map(|table| table.files.values()) {
            let path = StorePath::parse(format!("lake/logs/{}", file.path)).unwrap();
            let bytes = truth
                .get_opts(&path, Default::default())
                .await
                .unwrap()
                .bytes()
                .await
                .unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(bytes)
                .unwrap()
                .build()
                .unwrap();
            for rows in reader {
                let rows = rows.unwrap();
                let column = rows.column_by_name("body").unwrap();
                let texts = arrow::compute::cast(column, &arrow::datatypes::DataType::Utf8).unwrap();
                bodies.extend(texts.as_string::<i32>().iter().flatten().map(str::to_owned));
            }
        }
        bodies.sort();
        bodies
    }

    async fn objects(&self) -> usize {
        let truth = self.store.truth();
        let listed = truth
            .list(Some(&"lake/logs".into()))
            .try_collect::<Vec<_>>()
            .await
            .unwrap();
        let is_of_rows =
            |path: &StorePath| path.as_ref().ends_with(".parquet") && !path.as_ref().contains("_delta_log");
        listed.iter().filter(|object| is_of_rows(&object.location)).count()
    }
}

fn fast() -> IngestOptions {
    IngestOptions {
        flush_interval: Duration::from_millis(1),
        checkpoint_interval: 5,
        ..IngestOptions::default()
    }
}

async fn eventually(mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < until, "it took too long");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn sorted(mut bodies: Vec<String>) -> Vec<String> {
    bodies.sort();
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_once_in_a_table_whose_store_fails_at_any_call_and_whose_writer_ends_at_any_moment() {
    let seeds = std::env::var("THALWEG_SIM_SEEDS")
        .ok()
        .and_then(|seeds| seeds.parse().ok());
    for seed in 1..=seeds.unwrap_or(30) {
        let lake = Remotely::new(seed).await;
        let mut bodies = Vec::new();
        for round in 0..4 {
            lake.store.set(Faults::OneOf(4 + seed % 5));
            let writer = lake.open().await;
            for number in 0..6 {
                let body = format!("{round}-{number}");
                lake.world.append(number % 2, &[&body]).await;
                bodies.push(body);
                if (seed + number as u64).is_multiple_of(3) {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
            // Like a killed process: requests in progress may or may not be executed.
            drop(writer);
        }
        lake.store.set(Faults::None);
        let writer = lake.open().await;
        eventually(async || {
            lake.table()
                .await
                .is_some_and(|table| table.rows >= bodies.len() as u64)
        })
        .await;
        writer.close(SOON).await;
        assert_eq!(lake.bodies().await, sorted(bodies), "seed {seed}");
        assert!(lake.store.failed.load(std::sync::atomic::Ordering::Relaxed) > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_arrives_after_its_writer_is_gone_changes_nothing() {
    let lake = Remotely::new(1).await;
    let writer = lake.open().await;
    lake.world.append(0, &["first"]).await;
    eventually(async || lake.table().await.is_some_and(|table| table.rows == 1)).await;
    lake.store.set(Faults::LateCommits);
    lake.world.append(0, &["second"]).await;
    eventually(async || writer.tables()[0].failed.is_some()).await;
    drop(writer);
    lake.store.set(Faults::None);
    let next = lake.open().await;
    lake.world.append(0, &["third"]).await;
    eventually(async || lake.table().await.is_some_and(|table| table.rows >= 3)).await;
    lake.store.let_go();
    tokio::time::sleep(Duration::from_millis(50)).await;
    lake.world.append(0, &["fourth"]).await;
    eventually(async || lake.table().await.is_some_and(|table| table.rows >= 4)).await;
    next.close(SOON).await;
    assert_eq!(lake.bodies().await, ["first", "fourth", "second", "third"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_away_stops_commits_with_one_sentence_and_not_the_log() {
    let lake = Remotely::new(1).await;
    let writer = lake.open().await;
    lake.world.append(0, &["first"]).await;
    eventually(async || lake.table().await.is_some_and(|table| table.rows == 1)).await;
    lake.store.set(Faults::Down);
    lake.world.append(0, &["second"]).await;
    eventually(async || writer.tables()[0].failed.is_some()).await;
    let text = writer.tables()[0].failed.clone().unwrap();
    assert!(
        text.starts_with("rows cannot be stored in s3://bucket/lake/logs and stay in the log until they can: the object store does not"),
        "{text}"
    );
    lake.world.append(1, &["third"]).await;
    eventually(async || writer.tables()[0].buffered_rows == 2).await;
    lake.store.set(Faults::None);
    eventually(async || lake.table().await.is_some_and(|table| table.rows == 3)).await;
    assert_eq!(writer.tables()[0].failed, None);
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_on_an_object_store_are_merged_and_vacuumed_while_calls_fail() {
    let lake = Remotely::new(3).await;
    let writer = Arc::new(lake.open().await);
    let mut bodies = Vec::new();
    for number in 0..20 {
        let body = format!("body {number:02}");
        lake.world.append(number % 2, &[&body]).await;
        bodies.push(body);
        eventually(async || writer.tables()[0].rows == bodies.len() as u64).await;
    }
    lake.store.set(Faults::OneOf(50));
    let options = MaintenanceOptions {
        compaction: CompactionOptions {
            target: 1 << 20,
            inputs: 4,
            seal_after: Duration::from_secs(100 * 365 * 24 * 3600),
            ..CompactionOptions::default()
        },
        look_every: Duration::from_millis(5),
        ..MaintenanceOptions::default()
    };
    let metrics = LakeMetrics::register(&Metrics::default());
    let maintenance = MaintenanceThread::start(options.clone(), metrics.clone()).unwrap();
    maintenance.keep(writer.clone());
    eventually(async || lake.table().await.unwrap().files.len() <= 5).await;
    tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
    lake.store.set(Faults::None);
    assert_eq!(lake.bodies().await, bodies);
    let spools = std::fs::read_dir(lake.world.folder.path().join("lake/_thalweg/spool")).unwrap();
    let has_copies = spools.flatten().any(|spool| spool.path().join("logs").is_dir());
    assert!(has_copies, "inputs are copied there");
    assert!(
        lake.objects().await > lake.table().await.unwrap().files.len(),
        "readers may have an older version"
    );
    let options = MaintenanceOptions {
        vacuum_retain: Duration::ZERO,
        ..options
    };
    let maintenance = MaintenanceThread::start(options, metrics).unwrap();
    maintenance.keep(writer.clone());
    eventually(async || lake.objects().await == lake.table().await.unwrap().files.len()).await;
    tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
    writer.close(SOON).await;
    assert_eq!(lake.bodies().await, bodies);
}

/// The store is unreachable at starts and comes back later, and the log has lost its end before the first of them. New
/// entries must not be mistaken for those that the table has, however many there are, and the loss must be reported
/// when the store is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_while_the_store_was_away_is_not_taken_for_what_the_log_has_lost() {
    for more in [0, 1, 5] {
        let lake = Remotely::new(1).await;
        let writer = lake.open().await;
        for body in ["a", "b", "c"] {
            lake.world.append(0, &[body]).await;
        }
        eventually(async || lake.table().await.is_some_and(|table| table.rows == 3)).await;
        writer.close(SOON).await;
        drop(writer);
        let lake = Remotely {
            world: lake.world.with_another_log().await,
            store: lake.store,
        };
        lake.store.set(Faults::Down);
        let mut expected = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        for start in 0..2 {
            let away = lake.try_open(&fast()).await.err().unwrap();
            assert!(!away.is_permanent(), "{away}");
            keep_ends(&lake.site(), &LOGS, &lake.world.feed(), &Default::default()).unwrap();
            for number in 0..more {
                let body = format!("new {start} {number}");
                lake.world.append(0, &[&body]).await;
                expected.push(body);
            }
        }
        lake.store.set(Faults::None);
        for _ in 0..2 {
            let refused = lake.try_open(&fast()).await.err().unwrap();
            assert!(
                matches!(
                    refused,
                    OpenError::Lost {
                        log_end: 0,
                        table_has: 3,
                        ..
                    }
                ),
                "{refused}"
            );
            assert!(refused.is_permanent() && lake.bodies().await.len() == 3);
        }
        let writer = lake.try_open(&accepting()).await.unwrap();
        lake.world.append(0, &["last"]).await;
        expected.push("last".to_owned());
        eventually(async || {
            lake.table()
                .await
                .is_some_and(|table| table.rows == expected.len() as u64)
        })
        .await;
        writer.close(SOON).await;
        // The table was read meanwhile, so the stored ends do not apply any more.
        let writer = lake.open().await;
        writer.close(SOON).await;
        assert_eq!(lake.bodies().await, sorted(expected), "{more} at a start");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_was_away_at_a_start_without_a_loss_goes_on_where_it_was() {
    let lake = Remotely::new(1).await;
    let writer = lake.open().await;
    lake.world.append(0, &["a"]).await;
    eventually(async || lake.table().await.is_some_and(|table| table.rows == 1)).await;
    writer.close(SOON).await;
    keep_ends(&lake.site(), &LOGS, &lake.world.feed(), &Default::default()).unwrap();
    lake.world.append(0, &["b"]).await;
    lake.world.append(1, &["c"]).await;
    for body in ["d", "e"] {
        let writer = lake.open().await;
        lake.world.append(0, &[body]).await;
        let rows = if body == "d" { 4 } else { 5 };
        eventually(async || lake.table().await.is_some_and(|table| table.rows == rows)).await;
        writer.close(SOON).await;
    }
    assert_eq!(lake.bodies().await, ["a", "b", "c", "d", "e"]);
}
