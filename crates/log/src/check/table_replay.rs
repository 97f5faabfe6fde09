//! Replays the table of partitions from the frames of the log's own partition when some of the files are damaged.

use std::collections::BTreeSet;

use super::finding::{Finding, FindingKind};
use super::outline::bytes;
use crate::file::LogFile;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::format::record;
use crate::ids::{Offset, PartitionId};
use crate::index::FrameEntry;
use crate::partition_table::{self, META, PartitionTable};

/// The first offset of a partition whose table entry was lost. The partition then begins with its first frame.
pub(super) const UNKNOWN: Offset = Offset::MAX;

/// What the commit files record about partitions since the newest sound snapshot.
#[derive(Default)]
pub(super) struct TableReplay {
    pub table: PartitionTable,
    pub has_snapshot: bool,
    /// The commit file that begins with the snapshot.
    snapshot_in: u64,
    /// The first damaged commit file since the snapshot.
    pub damaged: Option<u64>,
    pub next: Offset,
    /// Partitions with frames since the snapshot.
    pub seen: BTreeSet<PartitionId>,
    removed: BTreeSet<PartitionId>,
}

impl TableReplay {
    /// Records a frame of a partition that exists or existed.
    pub fn see(&mut self, header: &FrameHeader) {
        self.seen.insert(header.partition);
    }

    /// Records that something in a commit file about partitions may be lost.
    pub fn damage(&mut self, file: &LogFile) {
        self.damaged.get_or_insert(file.number);
    }

    /// Records that the blocks before file `newest` are lost, unless the snapshot of that file covers them.
    pub fn lose_before(&mut self, newest: u64) {
        if !self.has_snapshot || self.snapshot_in < newest {
            self.damaged = Some(0);
        }
    }

    /// Whether a partition may have frames in segments but no table entry. That needs a partition that was created
    /// after the snapshot and in a file before the last one in use, because only full files are moved. For all other
    /// partitions the snapshot says whether they were removed.
    pub fn misses_names(&self, last_in_use: u64) -> bool {
        !self.has_snapshot || self.damaged.is_some_and(|number| number < last_in_use)
    }

    /// Applies the next frame of the log's own partition.
    pub fn take(&mut self, file: &LogFile, entry: &FrameEntry, sound: bool, findings: &mut [Finding]) {
        self.next = self.next.max(entry.header.next());
        let is_snapshot = entry.header.kind == FrameKind::Checkpoint;
        if !sound {
            self.damage(file);
            return;
        }
        let body = bytes(file, entry.body_at, entry.header.body_len as usize);
        for record in record::records(&body) {
            let applied = record.ok().and_then(|record| {
                self.removed.extend(partition_table::removed_by(record.value));
                self.table.apply(record.value).ok()
            });
            if applied.is_none() {
                self.damage(file);
                return;
            }
        }
        if is_snapshot {
            (self.has_snapshot, self.snapshot_in, self.damaged) = (true, file.number, None);
            self.seen.clear();
            // The snapshot repeats what was damaged before it.
            for finding in findings.iter_mut() {
                let own = finding.records.is_some_and(|(id, _, _)| id == META);
                finding.is_error &= !(own && finding.kind == FindingKind::BadBody);
            }
        }
    }

    /// If something is lost, partitions that have frames but no entry are recreated with the strictest durability.
    pub fn into_table(self, damaged: bool) -> PartitionTable {
        let mut table = self.table;
        if !damaged {
            return table;
        }
        for id in self.seen.difference(&self.removed) {
            table.partitions.entry(*id).or_insert(partition_table::PartitionEntry {
                durability: crate::durability::Durability::Fsync,
                first: UNKNOWN,
                next: 0,
            });
        }
        table
    }
}
