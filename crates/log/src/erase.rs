//! Has bytes that were removed leave the disk. A rewrite leaves them where they are: in a full file until nobody needs that file
//! any more, and in the same file under a new number until it is written over. So here the files are changed as a whole: the one
//! that is written on is closed, all are written anew, and none of them is used again.
//!
//! To write zeros over the records in their place was rejected: a block with a hole in it is a damaged one to whoever reads it.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::embedded::EmbeddedLog;
use crate::error::{LogError, Result};
use crate::partition_table::{META, PartitionChange};
use crate::status::LogStatus;

/// A reader has a file for as long as it reads a few frames. Counted since a file went: a slow disk takes its time for many.
const READERS_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
const LOOK: Duration = Duration::from_millis(10);

impl EmbeddedLog {
    /// What was stored so far is in files that are full when it returns, and that are not used again.
    pub async fn roll(&self) -> Result<()> {
        let rolled = self.roll_once().await?;
        // The newest full file is never removed, see the shelf: so one more comes behind those.
        self.roll_once().await?;
        self.rolled.fetch_max(rolled, Ordering::Relaxed);
        Ok(())
    }

    async fn roll_once(&self) -> Result<u64> {
        let rolled = self.shelf.retire()?;
        // Changes nothing, as that one is in no table; its block finds no place but in a new file.
        self.change(PartitionChange::Removed(META)).await?;
        Ok(rolled)
    }

    /// Writes anew what partitions have in files that were full at the last roll, and removes these. Blocks.
    pub fn erase(&self) -> Result<()> {
        let rolled = self.rolled.load(Ordering::Relaxed);
        let left = self.upkeep.move_all_out(rolled)?;
        let (mut went, mut fewest) = (Instant::now(), usize::MAX);
        loop {
            let there = self.there_of(&left)?;
            if there.len() < fewest {
                (went, fewest) = (Instant::now(), there.len());
            }
            let Some(file) = there.into_iter().next() else { break };
            if went.elapsed() > READERS_MAX {
                if let Some(error) = self.shelf.broken() {
                    return Err(error);
                }
                let why = "somebody reads it for a long time; ask again later";
                return Err(LogError::NotErased { file, why });
            }
            // Whoever removes files has stopped then.
            if let LogStatus::Poisoned(cause) = self.status() {
                return Err(LogError::Poisoned { cause: cause.into() });
            }
            std::thread::sleep(LOOK);
            self.upkeep.remove_dead_segments()?;
            self.shelf.called();
        }
        // Nor does a power cut bring them back.
        let synced = self.shelf.disk.sync_names();
        synced.map_err(LogError::io("cannot sync the names in", self.folder()))
    }

    /// Files of these that are still there.
    fn there_of(&self, names: &[String]) -> Result<Vec<String>> {
        let there: HashSet<String> = self.shelf.names()?.into_iter().collect();
        Ok(names.iter().filter(|name| there.contains(*name)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

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
        let held = log.shelf.sealed().swap_remove(0);
        let erase = async || {
            let log = log.clone();
            tokio::task::spawn_blocking(move || log.erase()).await.unwrap()
        };
        let told = erase().await.unwrap_err();
        assert!(
            matches!(&told, LogError::NotErased { file, .. } if *file == held.name),
            "{told}"
        );
        assert!(
            told.to_string()
                .ends_with("somebody reads it for a long time; ask again later")
        );
        drop(held);
        erase().await.unwrap();
        assert_eq!(values(log.as_ref(), id), (0..10).map(|n| [n]).collect::<Vec<_>>());
    }
}
