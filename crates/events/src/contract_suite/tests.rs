//! The store of this crate keeps the contract.

use thalweg_log::disk::{Disk, Folder};
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};

use super::*;
use crate::{EmbeddedStore, EventsOptions};

fn suite(folder: &tempfile::TempDir) -> Suite {
    let disk: Arc<dyn Disk> = Arc::new(Folder::open(folder.path()).unwrap());
    Suite::new(move || {
        let disk = disk.clone();
        Box::pin(async move {
            let options = LogOptions {
                min_free_bytes: Some(0),
                ..LogOptions::default()
            };
            let log: Arc<dyn Log> = Arc::new(EmbeddedLog::open(disk, 1, &options).unwrap());
            let options = EventsOptions {
                durability: Durability::Fsync,
                in_memory: false,
            };
            Arc::new(EmbeddedStore::open(log, options).await.unwrap()) as Arc<dyn Store>
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
async fn random_work_on_the_embedded_store_is_as_a_model_has_it() {
    let folder = tempfile::tempdir().unwrap();
    suite(&folder).random().await;
}
