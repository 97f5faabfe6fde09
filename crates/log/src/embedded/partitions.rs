//! Creates and removes partitions, one or many in one commit, so that a queue with a thousand partitions costs what a
//! queue with one does. Invariant: a partition that is not stored cannot be found, and one whose removal is stored is
//! gone, even if the caller dropped the future.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use super::{EmbeddedLog, check_offered};
use crate::clock::Clock as _;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::FrameKind;
use crate::format::record::RecordRef;
use crate::ids::PartitionId;
use crate::maintenance::SCRUBBED;
use crate::partition::Partition;
use crate::partition_table::{META, PARTITIONS_MAX, PartitionChange};
use crate::records::{Records, SUBMISSION_RECORDS_MAX};
use crate::writer::group::SubmissionPart;
use crate::writer::slots::SlotAllocator;
use crate::writer::thread::LogWriter;

/// The maximum number of partitions that are created or removed in one commit.
const TOGETHER: usize = SUBMISSION_RECORDS_MAX;

impl EmbeddedLog {
    /// Creates an empty partition. Durable when it returns. An id is never reused after its partition was removed.
    pub async fn create(&self, id: PartitionId, durability: Durability) -> Result<()> {
        self.create_all(&[id], durability).await
    }

    /// Creates several partitions, all or none: after a crash, a start finds either all or none of those that share a
    /// commit. Durable when it returns.
    pub async fn create_all(&self, ids: &[PartitionId], durability: Durability) -> Result<()> {
        check_offered(durability)?;
        if let Some(own) = ids.iter().find(|id| [META, SCRUBBED].contains(id)) {
            return Err(LogError::PartitionExists(*own));
        }
        for some in ids.chunks(TOGETHER) {
            let made = add_partitions(&self.partitions, &self.slots, &self.writer, some, durability)?;
            // Also runs if the future is dropped: a partition that is not stored must not be found.
            let unmade = scopeguard::guard(made, |made| self.forget(&made));
            let created = some.iter().map(|id| PartitionChange::Created(*id, durability));
            self.change_all(created, false).await?;
            scopeguard::ScopeGuard::into_inner(unmade);
        }
        Ok(())
    }

    /// Removes a partition and its records. Durable when it returns. Works on a full disk, because it frees space.
    pub async fn remove(&self, id: PartitionId) -> Result<()> {
        self.remove_all(&[id]).await
    }

    /// Removes several partitions, in this order if they do not fit into one commit: on a full disk, the reserve of a
    /// file may have room for only some of them at a time. Durable when it returns.
    pub async fn remove_all(&self, ids: &[PartitionId]) -> Result<()> {
        let (mut left, mut most) = (ids, TOGETHER);
        while !left.is_empty() {
            let (some, others) = left.split_at_checked(most).unwrap_or((left, &[]));
            let partitions: Vec<_> = some.iter().map(|id| self.partition(*id)).collect::<Result<_>>()?;
            match self
                .change_all(some.iter().map(|id| PartitionChange::Removed(*id)), true)
                .await
            {
                Ok(()) => left = others,
                Err(LogError::DiskFull { .. }) if some.len() > 1 => {
                    most = some.len() / 2;
                    continue;
                }
                Err(error) => return Err(error),
            }
            self.forget(&partitions);
            self.pool.wake();
        }
        Ok(())
    }

    /// Removes them from memory.
    fn forget(&self, gone: &[Arc<Partition>]) {
        {
            let mut partitions = self.partitions.write();
            gone.iter().for_each(|partition| drop(partitions.remove(&partition.id)));
        }
        gone.iter().for_each(|partition| partition.remove());
        self.writer.remove_partitions(gone);
    }

    /// Stores a change to the table of partitions. Durable when it returns.
    pub(crate) async fn change(&self, change: PartitionChange) -> Result<()> {
        self.change_all([change].into_iter(), false).await
    }

    /// Stores several changes in one commit.
    async fn change_all(&self, changes: impl Iterator<Item = PartitionChange>, frees: bool) -> Result<()> {
        let (mut records, mut value, now) = (Records::new(), Vec::with_capacity(32), self.clock.now());
        for change in changes {
            value.clear();
            change.encode(&mut value);
            records.push(&RecordRef::of(now, &value))?;
        }
        let bytes = records.bytes();
        let part = SubmissionPart::of(&self.meta, FrameKind::Meta, records);
        let submitted = self.submit_with([part].into(), Durability::Fsync, bytes, frees);
        submitted.await.map(drop)
    }
}

/// Adds new partitions and registers them with the writer, all or none. The caller must then store their creation.
pub(crate) fn add_partitions(
    partitions: &RwLock<HashMap<PartitionId, Arc<Partition>>>,
    slots: &Mutex<SlotAllocator>,
    writer: &LogWriter,
    ids: &[PartitionId],
    durability: Durability,
) -> Result<Vec<Arc<Partition>>> {
    // Lock order: before the partitions and before the writer's inbox.
    let mut slots = slots.lock();
    let mut partitions = partitions.write();
    let mut own = HashSet::with_capacity(ids.len());
    if let Some(known) = ids.iter().find(|id| partitions.contains_key(id) || !own.insert(**id)) {
        return Err(LogError::PartitionExists(*known));
    }
    if partitions.len() + ids.len() > PARTITIONS_MAX {
        return Err(LogError::TooManyPartitions { limit: PARTITIONS_MAX });
    }
    let mut made = Vec::with_capacity(ids.len());
    for id in ids {
        let partition = Arc::new(Partition::new(*id, slots.take(), durability, 0));
        writer.add_partition(partition.clone());
        partitions.insert(*id, partition.clone());
        made.push(partition);
    }
    Ok(made)
}
