//! A log on a failing disk refuses writes, and the next start finds everything that was acknowledged.

use crate::support::{append, message, open};
use thalweg_log::disk::sim::{Faults, SimDisk};
use thalweg_log::{Durability, LogError, LogStatus, PartitionId};

const ID: PartitionId = PartitionId::new(1, 0);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_rename_or_sync_of_the_folder_poisons_the_log_and_the_next_start_has_all_that_was_acknowledged() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed, 64 << 20);
        let log = open(&disk);
        log.create(ID, Durability::Fsync).await.unwrap();
        disk.set_faults(Faults {
            failing_names: 1 + seed % 3,
            ..Faults::default()
        });
        let mut acknowledged = 0;
        let error = loop {
            match log.append(message(ID, &[1; 16 << 10])).await {
                Ok(_) => acknowledged += 1,
                Err(error) => break error,
            }
            assert!(acknowledged < 10_000, "seed {seed}: it goes on");
        };
        assert!(matches!(error, LogError::Poisoned { .. }), "seed {seed}: {error}");
        assert!(matches!(log.status(), LogStatus::Poisoned(_)));
        let later = log.append(message(ID, b"later")).await;
        assert!(
            matches!(later, Err(LogError::Poisoned { .. })),
            "seed {seed}: {later:?}"
        );
        if seed % 2 == 0 {
            disk.power_cut()
        } else {
            disk.kill()
        }
        drop(log);
        disk.set_faults(Faults::default());
        let log = open(&disk);
        assert!(log.bounds(ID).unwrap().next >= acknowledged, "seed {seed}");
        append(&log, ID, b"again").await;
    }
}
