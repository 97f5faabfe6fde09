//! Runs the contract suite against the logs of this crate.

use super::*;
use crate::disk::sim::SimDisk;
use crate::disk::{Disk, FolderDisk};
use crate::embedded::EmbeddedLog;
use crate::multi_disk::MultiDiskLog;
use crate::options::LogOptions;

fn options(folder: &str) -> LogOptions {
    LogOptions {
        folder: folder.to_owned(),
        file_bytes: 34 << 20,
        first_file_bytes: 1 << 20,
        spare: 1,
        min_free_bytes: Some(0),
        interval: Duration::from_millis(5),
        tail_bytes_max: 1 << 20,
        index_bytes_max: 1 << 16,
        io_bytes_per_second: 0,
        ..LogOptions::default()
    }
}

fn alone(disk: Arc<dyn Disk>) -> ContractSuite {
    ContractSuite::new(move || {
        let disk = disk.clone();
        Box::pin(async move { Arc::new(EmbeddedLog::open(disk, 1, &options("log")).unwrap()) as Arc<dyn Log> })
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_in_a_folder_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    alone(Arc::new(FolderDisk::open(folder.path()).unwrap())).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_on_a_simulated_disk_keeps_the_contract() {
    alone(Arc::new(SimDisk::new(1, 1 << 30))).run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_on_several_disks_keeps_the_contract() {
    let disks: Vec<SimDisk> = (0..3).map(|seed| SimDisk::new(seed, 1 << 30)).collect();
    let suite = ContractSuite::new(move || {
        let disks: Vec<_> = disks
            .iter()
            .zip(["one", "two", "three"])
            .map(|(disk, name)| (Arc::new(disk.clone()) as Arc<dyn Disk>, options(name)))
            .collect();
        Box::pin(async move {
            let disks = MultiDiskLog::open(disks, 5, |id| id).await.unwrap();
            Arc::new(disks).into_log()
        })
    });
    suite.run().await;
}
