mod foreign;

use std::path::Path;

use thalweg_telemetry::{Metrics, StatusSource as _};

use super::*;
use crate::ingest::tests::{World, fast, rows_alone};
use thalweg_columns::attributes::AttributePromotion;
use thalweg_columns::tables::LOGS;
use thalweg_delta::store::simulated::{SimulatedDisk, StepKind};
use thalweg_delta::store::{LakeStorage, SyncedStore};

const SOON: Duration = Duration::from_secs(30);

/// Checks all the time, and merges four files.
fn eager() -> MaintenanceOptions {
    MaintenanceOptions {
        compaction: CompactionOptions {
            inputs: 4,
            ..CompactionOptions::default()
        },
        bytes_per_second: 0,
        look_every: Duration::from_millis(5),
        ..MaintenanceOptions::default()
    }
}

fn start(writer: &Arc<TableWriter>, options: MaintenanceOptions) -> MaintenanceThread {
    let metrics = LakeMetrics::register(&Metrics::default());
    let maintenance = MaintenanceThread::start(options, metrics).unwrap();
    maintenance.keep(writer.clone());
    maintenance
}

async fn stop(maintenance: MaintenanceThread) {
    tokio::task::spawn_blocking(|| maintenance.stop()).await.unwrap();
}

async fn snapshot(lake: &Path) -> Snapshot {
    let log = DeltaLog::new(&lake.join("logs"), SyncedStore::new()).unwrap();
    log.load(SnapshotDetail::Counts).await.unwrap().unwrap()
}

fn on_disk(lake: &Path) -> usize {
    let days = std::fs::read_dir(lake.join("logs")).unwrap().flatten();
    let days = days.filter(|day| day.file_name().to_string_lossy().starts_with("date="));
    days.map(|day| std::fs::read_dir(day.path()).unwrap().count()).sum()
}

async fn eventually(mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + SOON;
    while !is_so().await {
        assert!(Instant::now() < until, "it took too long");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Twenty small files.
async fn many_files(world: &World, writer: &TableWriter) -> Vec<String> {
    let mut bodies = Vec::new();
    for number in 0..20 {
        let body = format!("body {number:02}");
        world.append(number % 2, &[&body]).await;
        bodies.push(body);
        eventually(async || writer.tables()[0].rows == bodies.len() as u64).await;
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_files_are_merged_while_rows_come_and_those_that_nobody_needs_are_deleted() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    let maintenance = start(&writer, eager());
    let bodies = many_files(&world, &writer).await;
    let lake = world.folder.path();
    // Of 20 files with one row each, four of a level become one of the next.
    eventually(async || snapshot(lake).await.files.len() <= 5).await;
    let merged = snapshot(lake).await;
    assert_eq!(merged.rows, 20);
    assert!(
        merged.files.values().any(|file| file.level >= 2),
        "{:?}",
        merged.files_by_level()
    );
    assert_eq!(world.stored().await, (bodies.clone(), vec![10, 10]));
    stop(maintenance).await;
    assert!(on_disk(lake) > merged.files.len(), "readers may have an older version");
    let now = MaintenanceOptions {
        vacuum_retain: Duration::ZERO,
        ..eager()
    };
    let maintenance = start(&writer, now);
    eventually(async || on_disk(lake) == snapshot(lake).await.files.len()).await;
    stop(maintenance).await;
    assert_eq!(world.stored().await, (bodies, vec![10, 10]));
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_complete_is_sealed_and_rows_that_are_too_old_leave() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    many_files(&world, &writer).await;
    let lake = world.folder.path();
    let mut options = eager();
    options.compaction.seal_after = Duration::ZERO;
    let maintenance = start(&writer, options.clone());
    eventually(async || snapshot(lake).await.files.values().all(|file| file.is_sealed)).await;
    assert_eq!(snapshot(lake).await.files.len(), 1);
    stop(maintenance).await;
    // The rows are of 2023.
    options.retention = vec![("metrics", 1), ("logs", 36_500)];
    let maintenance = start(&writer, options.clone());
    tokio::time::sleep(Duration::from_millis(100)).await;
    stop(maintenance).await;
    assert_eq!(snapshot(lake).await.rows, 20);
    options.retention = vec![("logs", 30)];
    let maintenance = start(&writer, options);
    eventually(async || snapshot(lake).await.files.is_empty()).await;
    stop(maintenance).await;
    assert_eq!(
        world.stored().await,
        (vec![], vec![10, 10]),
        "how far the log was taken stays"
    );
    writer.close(SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_complete_and_too_much_for_a_job_is_sealed_all_the_same() {
    let world = World::new().await;
    let writer = Arc::new(world.open(&fast()).await);
    let body = "x".repeat(30_000);
    for number in 1..=10_u64 {
        let bodies: Vec<String> = (0..20).map(|row| format!("{number:02} {row:02} {body}")).collect();
        let bodies: Vec<&str> = bodies.iter().map(String::as_str).collect();
        world.append(0, &bodies).await;
        eventually(async || writer.tables()[0].rows == number * 20).await;
    }
    let lake = world.folder.path();
    let mut options = eager();
    options.compaction.seal_after = Duration::ZERO;
    // Memory for two files, of which each merge makes two: a row group ends a file.
    (options.compaction.memory, options.compaction.target) = (1, 1);
    let version = snapshot(lake).await.version;
    let maintenance = start(&writer, options);
    eventually(async || snapshot(lake).await.files.values().all(|file| file.is_sealed)).await;
    let sealed = snapshot(lake).await;
    assert_eq!(sealed.rows, 200);
    assert!(
        sealed.version <= version + 10,
        "each job took two files: {}",
        sealed.version
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(
        snapshot(lake).await.version,
        sealed.version,
        "there is nothing left to do"
    );
    stop(maintenance).await;
    assert_eq!(world.stored().await.0.len(), 200);
    writer.close(SOON).await;
}

/// Otherwise a stop, and that of the table's writer, would take its whole time limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_stopped_while_the_disk_takes_no_commit_does_not_wait_for_it() {
    let world = World::new().await;
    let disk = SimulatedDisk::default();
    let site = LakeStorage::folder(world.folder.path(), SyncedStore::with_disk(Arc::new(disk.clone())));
    let metrics = LakeMetrics::register(&Metrics::default());
    let options = fast();
    let decoder = rows_alone(&LOGS);
    let opened = TableWriter::open(
        &site,
        &LOGS,
        world.feed(),
        &decoder,
        AttributePromotion::default(),
        metrics,
        &options,
    );
    let writer = Arc::new(opened.await.unwrap());
    world.append(0, &["a"]).await;
    eventually(async || writer.tables()[0].rows == 1).await;
    disk.fail(StepKind::Link, std::io::ErrorKind::StorageFull);
    let files = FileReplacement {
        operation: "DELETE",
        kind: "retain",
        removed: snapshot(world.folder.path()).await.files.keys().cloned().collect(),
        added: Vec::new(),
        changes_data: true,
    };
    let stop = Arc::new(MaintenanceControl::default());
    let (mut owner, stopped) = (writer.clone(), stop.clone());
    let asked = tokio::task::spawn_blocking(move || owner.replace(files, &stopped));
    eventually(async || writer.tables()[0].failed.is_some()).await;
    assert!(!asked.is_finished(), "it waits for the disk");
    stop.wanted.lock().stop = true;
    assert_eq!(tokio::time::timeout(SOON, asked).await.unwrap().unwrap(), None);
    drop(writer);
}
