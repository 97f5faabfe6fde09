//! The writer's table of partitions: a row for each, at its slot. The slot of a partition that was removed is given to another
//! one later, so that memory follows the partitions that there are, not those that there ever were.
//!
//! What names a partition over the end of a block (a submission that waits, a frame that is not released yet, one in the tail)
//! names its id beside the slot. An id is never used again, so it tells generations of a slot apart: what is late finds no row.

use std::sync::Arc;

use super::group::Slot;
use crate::ids::{Offset, PartitionId, Sequence};
use crate::partition::Partition;
use crate::partition_table::{META, PartitionEntry};

/// The partition of the log itself is the first of all.
pub(crate) const META_SLOT: Slot = 0;

pub(super) struct WriterPartition {
    pub partition: Arc<Partition>,
    pub next: Offset,
    /// The block, and the frame in it, that took the newest records.
    pub block: Sequence,
    pub frame: usize,
    pub unsynced: bool,
}

#[derive(Default)]
pub(super) struct WriterPartitions {
    rows: Vec<Option<WriterPartition>>,
}

impl WriterPartitions {
    pub fn add(&mut self, partition: Arc<Partition>) {
        let slot = partition.slot;
        if self.rows.len() <= slot {
            self.rows.resize_with(slot + 1, || None);
        }
        let row = WriterPartition {
            next: partition.bounds().next,
            partition,
            block: Sequence::MAX,
            frame: 0,
            unsynced: false,
        };
        if let Some(place) = self.rows.get_mut(slot) {
            debug_assert!(place.is_none(), "a slot has one partition at a time");
            *place = Some(row);
        }
    }

    /// The partition is gone; its slot may be given to another one.
    pub fn remove(&mut self, slot: Slot, id: PartitionId) {
        if self.of(slot, id).is_some()
            && let Some(place) = self.rows.get_mut(slot)
        {
            *place = None;
        }
    }

    /// Of a partition; `None` if it is gone, whoever has its slot by now.
    pub fn of(&self, slot: Slot, id: PartitionId) -> Option<&WriterPartition> {
        self.at(slot).filter(|row| row.partition.id == id)
    }

    pub fn of_mut(&mut self, slot: Slot, id: PartitionId) -> Option<&mut WriterPartition> {
        self.at_mut(slot).filter(|row| row.partition.id == id)
    }

    /// Within a block, whose partitions were looked up when it was gathered.
    pub fn at(&self, slot: Slot) -> Option<&WriterPartition> {
        self.rows.get(slot)?.as_ref()
    }

    pub fn at_mut(&mut self, slot: Slot) -> Option<&mut WriterPartition> {
        self.rows.get_mut(slot)?.as_mut()
    }

    /// What the table of partitions says.
    pub fn known(&self) -> Vec<(PartitionId, PartitionEntry)> {
        self.rows.iter().flatten().filter_map(WriterPartition::known).collect()
    }
}

impl WriterPartition {
    fn known(&self) -> Option<(PartitionId, PartitionEntry)> {
        let partition = &self.partition;
        let bounds = partition.bounds();
        let known = PartitionEntry {
            durability: partition.durability(),
            first: bounds.first,
            next: bounds.next,
            epoch: bounds.epoch,
        };
        (partition.id != META && !partition.is_removed()).then_some((partition.id, known))
    }
}

/// Slots that are given to new partitions.
#[derive(Debug)]
pub(crate) struct SlotAllocator {
    next: Slot,
    /// Of partitions that the writer knows no more.
    free: Vec<Slot>,
}

impl SlotAllocator {
    /// Those from `next` on were never given.
    pub fn from(next: Slot) -> SlotAllocator {
        SlotAllocator { next, free: Vec::new() }
    }

    pub fn take(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// So many were ever given.
    #[cfg(test)]
    pub fn given(&self) -> usize {
        self.next
    }

    pub fn free(&mut self, slots: impl Iterator<Item = Slot>) {
        self.free.extend(slots);
    }
}
