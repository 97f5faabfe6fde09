//! Where in a file the frames of each partition lie.

use std::collections::HashMap;

use crate::format::frame::FrameHeader;
use crate::ids::{Offset, PartitionId};

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub header: FrameHeader,
    /// Of the body, from the start of the file.
    pub body_at: u64,
}

/// All frames of one file, in the order of their offsets for each partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileIndex {
    partitions: HashMap<PartitionId, Vec<Entry>>,
    frames: usize,
}

impl FileIndex {
    pub fn push(&mut self, entry: Entry) {
        self.frames += 1;
        self.partitions.entry(entry.header.partition).or_default().push(entry);
    }

    pub fn retain(&mut self, keep: impl Fn(&Entry) -> bool) {
        for entries in self.partitions.values_mut() {
            entries.retain(&keep);
        }
        self.partitions.retain(|_, entries| !entries.is_empty());
        self.frames = self.partitions.values().map(Vec::len).sum();
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &[Entry])> {
        self.partitions.iter().map(|(id, entries)| (*id, &entries[..]))
    }

    /// The frames of a partition that hold `from` or what follows it.
    pub fn from(&self, partition: PartitionId, from: Offset) -> &[Entry] {
        let entries = self.partitions.get(&partition).map_or(&[][..], Vec::as_slice);
        let start = entries.partition_point(|entry| entry.header.next() <= from);
        entries.get(start..).unwrap_or_default()
    }
}
