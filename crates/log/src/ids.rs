//! Identifiers of the log.

use std::fmt;

pub use thalweg_kit::time::Micros;

/// Position of a record in its partition: strictly increasing, with gaps.
pub type Offset = u64;

/// Number of a block across all files of a log, increasing by one per block.
pub type Sequence = u64;

/// One partition of a queue: a sequence of records with its own offsets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub queue: u32,
    pub partition: u32,
}

impl PartitionId {
    /// Queue numbers from here on belong to other APIs: namespaces of events. The numbers let each API find its own
    /// partitions.
    pub const EVENTS: u32 = 3 << 30;
    /// Queue numbers from here on belong to the MQTT broker.
    pub const MQTT: u32 = 7 << 29;

    pub const fn new(queue: u32, partition: u32) -> PartitionId {
        PartitionId { queue, partition }
    }

    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.queue) << 32 | u64::from(self.partition)
    }

    pub(crate) fn from_bits(bits: u64) -> PartitionId {
        PartitionId {
            queue: (bits >> 32) as u32,
            partition: bits as u32,
        }
    }
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.queue, self.partition)
    }
}
