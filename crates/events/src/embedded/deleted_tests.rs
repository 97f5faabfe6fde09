//! Messages of deleted namespaces while a program reads the log itself and is behind.

use std::sync::Arc;
use std::time::Duration;

use thalweg_log::{Durability, Log, ReadOptions};

use super::between_tests::{events, to};
use super::test_support::{all_of, closed, is_healthy, new};
use super::tests::Disks;
use super::{CatalogChange, EmbeddedStore, LogPartition, maintenance};
use crate::store::Store as _;

async fn fill(store: &EmbeddedStore, name: &str, messages: usize) -> LogPartition {
    store.create(new(name)).await.unwrap();
    let own = store.namespace(name).await.unwrap();
    own.append(&to("s", events(None, messages))).await.unwrap();
    let mut all = store.partitions().into_iter();
    all.find(|partition| partition.namespace == name && !partition.is_deleted)
        .unwrap()
}

fn log(store: &EmbeddedStore) -> Arc<dyn Log> {
    store.inner.place.log.clone()
}

fn has_bytes(store: &EmbeddedStore, partition: &LogPartition) -> bool {
    let want = ReadOptions {
        bytes: 1 << 20,
        synced: true,
    };
    let from = log(store).bounds(partition.id).map_or(0, |bounds| bounds.first);
    let frames = log(store).read(partition.id, from, want);
    frames.is_ok_and(|frames| !frames.is_empty())
}

fn deleted(store: &EmbeddedStore) -> Vec<(u32, String)> {
    let all = store.partitions().into_iter().filter(|partition| partition.is_deleted);
    all.map(|partition| (partition.number, partition.namespace)).collect()
}

async fn is_freed(store: &EmbeddedStore, partition: &LogPartition) {
    for _ in 0..1000 {
        if !log(store).partitions().contains(&partition.id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{partition:?} is still there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_deleted_namespace_had_stays_until_it_is_let_go_over_restarts_and_under_its_old_name() {
    let disks = Disks::new();
    let store = disks.open_as(Durability::Fsync, true).await;
    let first = fill(&store, "a", 3).await;
    assert_eq!(store.delete("a").await.unwrap(), 3);
    assert!(store.namespace("a").await.is_err(), "it is gone for everybody else");
    let second = fill(&store, "a", 2).await;
    store.delete("a").await.unwrap();
    let third = fill(&store, "a", 1).await;
    assert!(first.number < second.number && second.number < third.number);
    let both = [(first.number, "a".to_owned()), (second.number, "a".to_owned())];
    assert_eq!(deleted(&store), both);
    closed(store).await;

    let store = disks.open_as(Durability::Fsync, true).await;
    assert_eq!(deleted(&store), both);
    assert!(has_bytes(&store, &first) && has_bytes(&store, &second));
    store.let_go(first.number);
    // Releasing an existing or already released namespace frees nothing.
    store.let_go(third.number);
    store.let_go(first.number);
    is_freed(&store, &first).await;
    assert_eq!(deleted(&store), both[1..]);
    assert!(has_bytes(&store, &second) && has_bytes(&store, &third));
    // A start with many changes rewrites the catalog.
    for _ in 0..30 {
        let other = fill(&store, "b", 1).await;
        store.delete("b").await.unwrap();
        store.let_go(other.number);
        is_freed(&store, &other).await;
    }
    closed(store).await;
    for _ in 0..2 {
        let store = disks.open_as(Durability::Fsync, true).await;
        assert_eq!(deleted(&store), both[1..]);
        assert!(has_bytes(&store, &second) && has_bytes(&store, &third));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_at_which_nobody_else_reads_frees_what_is_deleted() {
    let disks = Disks::new();
    let store = disks.open_as(Durability::Fsync, true).await;
    let partition = fill(&store, "a", 3).await;
    store.delete("a").await.unwrap();
    closed(store).await;
    let store = disks.open_as(Durability::Fsync, false).await;
    assert_eq!(deleted(&store), []);
    assert!(!log(&store).partitions().contains(&partition.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_backup_reads_stays_although_it_is_let_go() {
    let disks = Disks::new();
    let store = disks.open_as(Durability::Fsync, true).await;
    let partition = fill(&store, "a", 3).await;
    let backup = store.backup().await.unwrap();
    store.delete("a").await.unwrap();
    store.let_go(partition.number);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(has_bytes(&store, &partition));
    drop(backup);
    is_freed(&store, &partition).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_while_the_catalogue_is_written_again_brings_nothing_back() {
    for keep_deleted in [true, false] {
        let disks = Disks::new();
        let store = disks.open_as(Durability::Fsync, true).await;
        let partition = fill(&store, "a", 3).await;
        let named = store.inner.opened("a").unwrap().named();
        store.delete("a").await.unwrap();
        // The rewrite repeats the creation, and then the process ends.
        let again = CatalogChange::Created(named);
        store.inner.catalog.lock().await.store(&again, 0).await.unwrap();
        closed(store).await;
        for _ in 0..2 {
            let store = disks.open_as(Durability::Fsync, keep_deleted).await;
            assert!(store.namespace("a").await.is_err());
            assert_eq!(deleted(&store).len(), usize::from(keep_deleted));
            assert_eq!(has_bytes(&store, &partition), keep_deleted);
        }
    }
}

/// Waits until the tables are smaller than this.
async fn have_less(store: &EmbeddedStore, bytes: u64, what: &str) {
    for _ in 0..2000 {
        if store.index_sizes().file_bytes < bytes {
            return is_healthy(store, what).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: {:?}", store.index_sizes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_tables_have_of_a_namespace_that_is_gone_leaves_disk_and_memory_although_nothing_is_written() {
    let disks = Disks::new();
    let store = disks.open_as(Durability::Os, false).await;
    fill(&store, "kept", 10).await;
    for name in ["a", "b"] {
        fill(&store, name, 10_000).await;
    }
    store.flush_indexes().await.unwrap();
    let before = store.index_sizes();
    let resident_before = store.inner.place.table_store.tables().resident_bytes();
    store.delete("a").await.unwrap();
    // Half of the table is still useful, so it is not copied again and again.
    let inner = store.inner.clone();
    let merged = tokio::task::spawn_blocking(move || maintenance::merge_once(&inner));
    assert!(!merged.await.unwrap().unwrap());
    assert_eq!(store.index_sizes().file_bytes, before.file_bytes);
    store.delete("b").await.unwrap();
    have_less(&store, before.file_bytes / 4, "deleted").await;
    let resident = store.inner.place.table_store.tables().resident_bytes();
    assert!(
        resident < resident_before,
        "{resident_before} bytes before, {resident} now"
    );
    let kept = store.namespace("kept").await.unwrap();
    assert_eq!(all_of(&kept).await.len(), 10);
    // The same for a cleared namespace, and for one that was deleted just before the process ended.
    for how in ["cleared", "ended"] {
        fill(&store, how, 10_000).await;
        store.flush_indexes().await.unwrap();
    }
    store.namespace("cleared").await.unwrap().clear().await.unwrap();
    store.delete("ended").await.unwrap();
    closed(store).await;
    let store = disks.open_as(Durability::Os, false).await;
    have_less(&store, before.file_bytes / 4, "opened again").await;
    assert_eq!(all_of(&store.namespace("kept").await.unwrap()).await.len(), 10);
}
