//! The identity of a queue: its number, name and durability, none of which ever changes, and the log partitions that
//! follow from them. Each partition of messages has one for the state of its groups and one for its dedup-ids.

use std::ops::Range;

use smol_str::SmolStr;
use thalweg_log::{Durability, LogError, Offset, PartitionId};

use crate::error::QueueError;
use crate::ids::MessageId;

/// Marks the log partition with the state of another partition's groups.
pub(crate) const STATE: u32 = 1 << 31;
/// Marks the log partition with the dedup-ids of another partition.
pub(crate) const IDS: u32 = 1 << 30;

#[derive(Debug)]
pub(crate) struct QueueIdentity {
    pub id: u32,
    pub name: SmolStr,
    pub durability: Durability,
}

impl QueueIdentity {
    pub fn is_in_memory(&self) -> bool {
        self.durability == Durability::Memory
    }

    pub fn message_id(&self, partition: u32, offset: Offset) -> MessageId {
        MessageId {
            queue: self.name.clone(),
            partition,
            offset,
        }
    }

    /// The log partition of messages.
    pub fn data_id(&self, partition: u32) -> PartitionId {
        PartitionId::new(self.id, partition)
    }

    /// The log partition of group state.
    pub fn state_id(&self, partition: u32) -> PartitionId {
        PartitionId::new(self.id | STATE, partition)
    }

    /// The log partition of dedup-ids.
    pub fn ids_id(&self, partition: u32) -> PartitionId {
        PartitionId::new(self.id | IDS, partition)
    }

    /// Log partitions of messages and group state; empty for a queue in memory.
    pub fn partition_ids(&self, partitions: Range<u32>) -> Vec<PartitionId> {
        let partitions = partitions.filter(|_| !self.is_in_memory());
        partitions
            .flat_map(|partition| [self.data_id(partition), self.state_id(partition)])
            .collect()
    }

    /// Log partitions of dedup-ids; empty for a queue in memory.
    pub fn ids_ids(&self, partitions: Range<u32>) -> Vec<PartitionId> {
        let partitions = partitions.filter(|_| !self.is_in_memory());
        partitions.map(|partition| self.ids_id(partition)).collect()
    }

    /// Log partitions of group state.
    pub fn state_ids(&self, partitions: Range<u32>) -> Vec<PartitionId> {
        partitions.map(|partition| self.state_id(partition)).collect()
    }

    pub fn not_found(&self) -> QueueError {
        QueueError::QueueNotFound {
            queue: self.name.clone(),
        }
    }

    /// `found` says what cannot be read in the state of a partition.
    pub fn damaged(&self, partition: u32, found: &str) -> QueueError {
        QueueError::Log(LogError::Corrupt {
            file: format!("the state of queue {}, partition {partition}", self.name),
            position: 0,
            expected: None,
            found: found.to_owned(),
        })
    }
}

/// The queue number of a log partition. A partition of another component returns its own number, which no queue has.
pub(crate) fn number_of(id: PartitionId) -> u32 {
    match is_foreign(id) {
        true => id.queue,
        false => id.queue & !(STATE | IDS),
    }
}

/// Whether it belongs to another component.
pub(crate) fn is_foreign(id: PartitionId) -> bool {
    id.queue >= PartitionId::EVENTS
}
