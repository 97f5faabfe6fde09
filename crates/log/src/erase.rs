//! Erases the bytes of removed records from the disk. A rewrite leaves them in place: in a full file until that file is
//! not needed any more, and after its reuse under a new number until they are overwritten. So erasing works on whole
//! files: it closes the current file, rewrites all of them, and reuses none.
//!
//! Overwriting the records with zeros in place was rejected, because a reader would treat the block as damaged.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use thalweg_kit::{clock, threads};

use crate::embedded::EmbeddedLog;
use crate::error::{LogError, Result};
use crate::partition_table::{META, PartitionChange};
use crate::status::LogStatus;

/// How long to wait for readers, which hold a file only while they read a few frames. The time restarts whenever a file
/// was removed, because a slow disk takes long for many files.
const READERS_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
const LOOK: Duration = Duration::from_millis(10);

impl EmbeddedLog {
    /// Closes the current file. When it returns, everything stored so far is in full files that are not reused.
    pub async fn roll(&self) -> Result<()> {
        let rolled = self.roll_once().await?;
        // The file pool never removes the newest full file, so one more file must follow.
        self.roll_once().await?;
        self.rolled.fetch_max(rolled, Ordering::Relaxed);
        Ok(())
    }

    async fn roll_once(&self) -> Result<u64> {
        let rolled = self.pool.retire()?;
        // The removal changes nothing, because META is not in the table, but its block forces a new file.
        self.change(PartitionChange::Removed(META)).await?;
        Ok(rolled)
    }

    /// Rewrites what partitions have in files that were full at the last roll, and removes those files. Blocks.
    pub fn erase(&self) -> Result<()> {
        let rolled = self.rolled.load(Ordering::Relaxed);
        let left = self.maintenance.move_all_out(rolled)?;
        let (mut went, mut fewest) = (clock::now(), usize::MAX);
        loop {
            let there = self.there_of(&left)?;
            if there.len() < fewest {
                (went, fewest) = (clock::now(), there.len());
            }
            let Some(file) = there.into_iter().next() else { break };
            if went.elapsed() > READERS_MAX {
                if let Some(error) = self.pool.broken() {
                    return Err(error);
                }
                let why = "a reader has kept it open for a long time; try again later";
                return Err(LogError::NotErased { file, why });
            }
            // The thread that removes files has stopped if the log is poisoned.
            if let LogStatus::Poisoned(cause) = self.status() {
                return Err(LogError::Poisoned { cause: cause.into() });
            }
            threads::sleep(LOOK);
            self.maintenance.remove_dead_segments()?;
            self.pool.called();
        }
        // Makes the removals survive a power cut.
        let synced = self.pool.disk.sync_names();
        synced.map_err(LogError::io("cannot sync the names in", self.folder()))
    }

    /// Those of the named files that still exist.
    fn there_of(&self, names: &[String]) -> Result<Vec<String>> {
        let there: HashSet<String> = self.pool.names()?.into_iter().collect();
        Ok(names.iter().filter(|name| there.contains(*name)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thalweg_kit::blocking;

    use super::*;
    use crate::disk::sim::SimDisk;
    use crate::durability::Durability;
    use crate::ids::PartitionId;
    use crate::test_support::{append, open, values};

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_file_that_somebody_reads_for_a_long_time_is_told_of_and_goes_when_he_is_done() {
        let log = Arc::new(open(&SimDisk::new(1, 256 << 20)));
        let id = PartitionId::new(1, 0);
        log.create(id, Durability::Fsync).await.unwrap();
        for n in 0..10 {
            append(&log, id, &[n]).await;
        }
        log.roll().await.unwrap();
        let held = log.pool.sealed().swap_remove(0);
        let erase = async || {
            let log = log.clone();
            blocking::spawn(move || log.erase()).await.unwrap()
        };
        let told = erase().await.unwrap_err();
        assert!(
            matches!(&told, LogError::NotErased { file, .. } if *file == held.name),
            "{told}"
        );
        assert!(
            told.to_string()
                .ends_with("a reader has kept it open for a long time; try again later")
        );
        drop(held);
        erase().await.unwrap();
        assert_eq!(values(log.as_ref(), id), (0..10).map(|n| [n]).collect::<Vec<_>>());
    }
}
