use super::simulated::{SimulatedDisk, StepKind};
use super::*;
use object_store::ObjectStoreExt as _;

fn location(folder: &Path, name: &str) -> StorePath {
    StorePath::from_absolute_path(folder.join(name)).unwrap()
}

fn create() -> PutOptions {
    PutOptions {
        mode: PutMode::Create,
        ..PutOptions::default()
    }
}

#[tokio::test]
async fn a_new_name_is_given_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = SyncedStore::new();
    let path = location(folder.path(), "a/b/c.json");
    store.put_opts(&path, "one".into(), create()).await.unwrap();
    let error = store.put_opts(&path, "two".into(), create()).await.unwrap_err();
    assert_eq!(fault_kind(&error), FaultKind::Exists);
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "one");
    store.put(&path, "three".into()).await.unwrap();
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "three");
    let names: Vec<_> = std::fs::read_dir(folder.path().join("a/b")).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file is left");
}

#[tokio::test]
async fn parts_become_one_file_when_they_are_complete_and_none_before() {
    let folder = tempfile::tempdir().unwrap();
    let store = SyncedStore::new();
    let path = location(folder.path(), "x.parquet");
    let mut upload = store.put_multipart(&path).await.unwrap();
    let (first, second) = (upload.put_part("ab".into()), upload.put_part("cd".into()));
    // Parts may run in any order.
    second.await.unwrap();
    first.await.unwrap();
    assert_eq!(fault_kind(&store.head(&path).await.unwrap_err()), FaultKind::Missing);
    upload.complete().await.unwrap();
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "abcd");
    let mut dropped = store.put_multipart(&location(folder.path(), "y")).await.unwrap();
    dropped.put_part("z".into()).await.unwrap();
    drop(dropped);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_and_goes_on_when_there_is_space() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::default();
    let store = SyncedStore::with_disk(Arc::new(disk.clone()));
    disk.fail(StepKind::Write, io::ErrorKind::StorageFull);
    let path = location(folder.path(), "f");
    let error = store.put_opts(&path, "bytes".into(), create()).await.unwrap_err();
    assert_eq!(fault_kind(&error), FaultKind::DiskFull);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(store.poisoned().is_none());
    disk.heal();
    store.put_opts(&path, "bytes".into(), create()).await.unwrap();
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_any_more() {
    for kind in [StepKind::SyncFile, StepKind::SyncDirectory] {
        let folder = tempfile::tempdir().unwrap();
        let disk = SimulatedDisk::default();
        let store = SyncedStore::with_disk(Arc::new(disk.clone()));
        disk.fail(kind, io::ErrorKind::Other);
        let error = store
            .put_opts(&location(folder.path(), "f"), "bytes".into(), create())
            .await
            .unwrap_err();
        assert_eq!(fault_kind(&error), FaultKind::SyncFailed);
        disk.heal();
        let steps = disk.steps();
        let error = store
            .put(&location(folder.path(), "g"), "bytes".into())
            .await
            .unwrap_err();
        assert_eq!(fault_kind(&error), FaultKind::SyncFailed);
        assert!(
            fault_text(&error).starts_with("lake.sync_failed: "),
            "{}",
            fault_text(&error)
        );
        assert_eq!(disk.steps(), steps, "nothing was tried");
    }
}

/// If the machine stops at any point of a put, the file is complete or absent, and complete if the put had returned.
#[tokio::test]
async fn power_loss_at_any_step_leaves_a_whole_file_or_none() {
    let content = "0123456789".repeat(100);
    for step in 1..=12 {
        for seed in 0..8u64 {
            let folder = tempfile::tempdir().unwrap();
            let disk = SimulatedDisk::dies_at(step);
            let store = SyncedStore::with_disk(Arc::new(disk.clone()));
            let path = location(folder.path(), "d/f");
            let ended = store.put_opts(&path, content.clone().into(), create()).await.is_ok();
            let mut random = seed;
            disk.lose_power(folder.path(), || {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                random >> 33
            });
            match std::fs::read_to_string(folder.path().join("d/f")) {
                Ok(found) => assert_eq!(found, content, "torn at step {step}"),
                Err(_) => assert!(!ended, "lost after it was acknowledged, step {step}"),
            }
        }
    }
}

#[tokio::test]
async fn temporary_files_are_hidden() {
    use futures::TryStreamExt as _;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(staged_path(&folder.path().join("a")), "x").unwrap();
    std::fs::write(folder.path().join("b"), "x").unwrap();
    let prefix = StorePath::from_absolute_path(folder.path()).unwrap();
    let listed: Vec<_> = SyncedStore::new().list(Some(&prefix)).try_collect().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(is_staged("a#12") && !is_staged("a#") && !is_staged("a#b1") && !is_staged("a"));
}
