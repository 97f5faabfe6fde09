//! The writer's table of partitions, with one row per slot. Slots of removed partitions are reused, so that memory
//! depends on the number of existing partitions, not of all that ever existed.
//!
//! References to a partition that outlive a block (a waiting submission, an unreleased frame, a frame in the tail) have
//! its id beside the slot. Ids are never reused, so a stale reference finds no row.

use std::sync::Arc;

use super::group::Slot;
use crate::ids::{Offset, PartitionId, Sequence};
use crate::partition::Partition;
use crate::partition_table::{META, PartitionEntry};

/// The log's own partition is always the first.
pub(crate) const META_SLOT: Slot = 0;

pub(super) struct WriterPartition {
    pub partition: Arc<Partition>,
    pub next: Offset,
    /// The block and frame with the newest records.
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

    /// Removes a partition. Its slot may be reused.
    pub fn remove(&mut self, slot: Slot, id: PartitionId) {
        if self.of(slot, id).is_some()
            && let Some(place) = self.rows.get_mut(slot)
        {
            *place = None;
        }
    }

    /// The row of a partition; `None` if it was removed, even if its slot was reused.
    pub fn of(&self, slot: Slot, id: PartitionId) -> Option<&WriterPartition> {
        self.at(slot).filter(|row| row.partition.id == id)
    }

    pub fn of_mut(&mut self, slot: Slot, id: PartitionId) -> Option<&mut WriterPartition> {
        self.at_mut(slot).filter(|row| row.partition.id == id)
    }

    /// Looks up a row by slot alone. Only valid within a block, whose partitions were verified when it was gathered.
    pub fn at(&self, slot: Slot) -> Option<&WriterPartition> {
        self.rows.get(slot)?.as_ref()
    }

    pub fn at_mut(&mut self, slot: Slot) -> Option<&mut WriterPartition> {
        self.rows.get_mut(slot)?.as_mut()
    }

    /// The rows for a table snapshot.
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
        };
        (partition.id != META && !partition.is_removed()).then_some((partition.id, known))
    }
}

/// Allocates slots for new partitions.
#[derive(Debug)]
pub(crate) struct SlotAllocator {
    next: Slot,
    /// Slots of partitions that were removed from the writer.
    free: Vec<Slot>,
}

impl SlotAllocator {
    /// Slots from `next` on are unused.
    pub fn from(next: Slot) -> SlotAllocator {
        SlotAllocator { next, free: Vec::new() }
    }

    pub fn take(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// The number of slots that were ever allocated.
    #[cfg(test)]
    pub fn given(&self) -> usize {
        self.next
    }

    pub fn free(&mut self, slots: impl Iterator<Item = Slot>) {
        self.free.extend(slots);
    }
}
