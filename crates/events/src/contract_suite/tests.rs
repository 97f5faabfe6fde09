//! Runs the contract suite against the store of this crate.

use parking_lot::Mutex;
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::*;
use crate::{EmbeddedStore, EventsOptions};

fn suite(folder: &tempfile::TempDir) -> Suite {
    let disk: Arc<dyn Disk> = Arc::new(FolderDisk::open(folder.path().join("log")).unwrap());
    let indexes: Arc<dyn Disk> = Arc::new(FolderDisk::open(folder.path().join("events")).unwrap());
    let opened: Arc<Mutex<Option<Arc<EmbeddedLog>>>> = Arc::default();
    Suite::new(move || {
        let (disk, indexes, opened) = (disk.clone(), indexes.clone(), opened.clone());
        Box::pin(async move {
            if let Some(log) = opened.lock().take() {
                log.close();
            }
            let options = LogOptions {
                min_free_bytes: Some(0),
                ..LogOptions::default()
            };
            let log = Arc::new(EmbeddedLog::open(disk, 1, &options).unwrap());
            *opened.lock() = Some(log.clone());
            let options = EventsOptions {
                durability: Durability::Fsync,
                in_memory: false,
                indexes: Some(indexes),
                index_memory: 8 << 20,
                keep_deleted: false,
                accept_loss: false,
            };
            Arc::new(EmbeddedStore::open(log as Arc<dyn Log>, options).await.unwrap()) as Arc<dyn Store>
        })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn appends_to_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).appends().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_of_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).reads().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imports_into_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).imports().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).limits().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_of_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).namespaces().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_in_the_embedded_store_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).retention().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_in_the_embedded_store_keep_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).documents().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_work_on_the_embedded_store_is_as_a_model_has_it() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).random().await;
}
