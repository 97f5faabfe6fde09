//! Locates the frames of each partition in a file.

use std::collections::BTreeMap;

use crate::format::footer::PartitionExtent;
use crate::format::frame::FrameHeader;
use crate::ids::{Micros, Offset, PartitionId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameEntry {
    pub header: FrameHeader,
    /// Position of the body in the file.
    pub body_at: u64,
}

/// All frames of one file, by partition in the order of offsets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileIndex {
    // Ordered, so that the same frames always give the same bytes.
    partitions: BTreeMap<PartitionId, Vec<FrameEntry>>,
    frames: usize,
}

impl FileIndex {
    pub fn push(&mut self, entry: FrameEntry) {
        self.frames += 1;
        self.partitions.entry(entry.header.partition).or_default().push(entry);
    }

    pub fn retain(&mut self, keep: impl Fn(&FrameEntry) -> bool) {
        for entries in self.partitions.values_mut() {
            entries.retain(&keep);
        }
        self.partitions.retain(|_, entries| !entries.is_empty());
        self.frames = self.partitions.values().map(Vec::len).sum();
    }

    pub fn frames(&self) -> usize {
        self.frames
    }

    pub fn has(&self, entry: &FrameEntry) -> bool {
        self.from(entry.header.partition, entry.header.base).first() == Some(entry)
    }

    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Approximate size in memory.
    pub fn bytes(&self) -> usize {
        self.frames * size_of::<FrameEntry>() + self.partitions.len() * size_of::<Vec<FrameEntry>>()
    }

    pub fn partitions(&self) -> impl Iterator<Item = (PartitionId, &[FrameEntry])> {
        self.partitions.iter().map(|(id, entries)| (*id, &entries[..]))
    }

    /// The frames of a partition that contain `from` or later offsets.
    pub fn from(&self, partition: PartitionId, from: Offset) -> &[FrameEntry] {
        let entries = self.partitions.get(&partition).map_or(&[][..], Vec::as_slice);
        let start = entries.partition_point(|entry| entry.header.next() <= from);
        entries.get(start..).unwrap_or_default()
    }

    /// The size of the bodies of a partition between two offsets. A frame that is only partly in the range counts in
    /// proportion to its offsets.
    pub fn bytes_within(&self, partition: PartitionId, from: Offset, to: Offset) -> u64 {
        let frames = self.from(partition, from).iter().map(|entry| &entry.header);
        let of = |header: &FrameHeader| {
            let (base, next, bytes) = (header.base, header.next(), u64::from(header.body_len));
            let within = next.min(to).saturating_sub(base.max(from));
            match next - base {
                all if all <= within => bytes,
                all => (u128::from(bytes) * u128::from(within) / u128::from(all)) as u64,
            }
        };
        frames.take_while(|header| header.base < to).map(of).sum()
    }

    /// The first frame of a partition, from an offset on, that can have a record of `time` or later according to its
    /// header.
    pub fn at_time(&self, partition: PartitionId, from: Offset, time: Micros) -> Option<&FrameEntry> {
        let mut entries = self.from(partition, from).iter();
        entries.find(|entry| entry.header.max_time >= time)
    }

    /// The newest frame of a partition whose header matches `is`.
    pub fn last(&self, partition: PartitionId, is: impl Fn(&FrameHeader) -> bool) -> Option<FrameEntry> {
        let entries = self.partitions.get(&partition)?;
        entries.iter().rev().find(|entry| is(&entry.header)).copied()
    }

    /// What the file holds of each partition.
    pub fn holdings(&self) -> Vec<PartitionExtent> {
        let mut entry = 0;
        let rows = self.partitions.iter().filter_map(|(id, entries)| {
            let (first, last) = (entries.first()?, entries.last()?);
            let row = PartitionExtent {
                partition: *id,
                first: first.header.base,
                next: last.header.next(),
                bytes: entries.iter().map(|entry| u64::from(entry.header.body_len)).sum(),
                max_time: entries
                    .iter()
                    .map(|entry| entry.header.max_time)
                    .max()
                    .unwrap_or_default(),
                entry,
                entries: entries.len() as u32,
            };
            entry += row.entries;
            Some(row)
        });
        rows.collect()
    }
}
