//! What the frames of the log's own partition say of all others, read from files of which some are damaged.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::{Finding, FindingKind};
use super::outline::bytes;
use crate::file::LogFile;
use crate::format::frame::{FrameHeader, FrameKind};
use crate::format::record;
use crate::ids::{Offset, PartitionId};
use crate::index::FrameEntry;
use crate::partition_table::{self, META, PartitionTable};

/// Where a partition begins whose name was lost: with the first of its frames.
pub(super) const UNKNOWN: Offset = Offset::MAX;

/// What the commit files say of partitions, from the newest whole snapshot on.
#[derive(Default)]
pub(super) struct TableReplay {
    pub table: PartitionTable,
    pub has_snapshot: bool,
    /// The commit file that begins with it.
    snapshot_in: u64,
    /// The first commit file since then of which something is damaged.
    pub damaged: Option<u64>,
    pub next: Offset,
    /// Partitions with frames since then, and the highest epoch of each.
    pub seen: BTreeMap<PartitionId, u32>,
    removed: BTreeSet<PartitionId>,
}

impl TableReplay {
    /// A frame of a partition that exists, or did.
    pub fn see(&mut self, header: &FrameHeader) {
        let epoch = self.seen.entry(header.partition).or_default();
        *epoch = (*epoch).max(header.epoch);
    }

    /// Something that a commit file may have said is lost.
    pub fn damage(&mut self, file: &LogFile) {
        self.damaged.get_or_insert(file.number);
    }

    /// Blocks before those of file `newest` are lost, and what is known of them: unless its snapshot tells.
    pub fn lose_before(&mut self, newest: u64) {
        if !self.has_snapshot || self.snapshot_in < newest {
            self.damaged = Some(0);
        }
    }

    /// Whether a partition may have frames in segments and a name that is lost: it was made since the snapshot, in a file before
    /// the last one that was in use, as only what is full is moved. Of all others the snapshot tells whether they were removed.
    pub fn misses_names(&self, last_in_use: u64) -> bool {
        !self.has_snapshot || self.damaged.is_some_and(|number| number < last_in_use)
    }

    /// The next frame of the log's own partition.
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
            // What was damaged before has been said again since.
            for finding in findings.iter_mut() {
                let own = finding.records.is_some_and(|(id, _, _)| id == META);
                finding.is_error &= !(own && finding.kind == FindingKind::BadBody);
            }
        }
    }

    /// If something is lost, partitions that have frames but no name are taken for what they must have been.
    pub fn into_table(self, damaged: bool) -> PartitionTable {
        let mut table = self.table;
        if !damaged {
            return table;
        }
        for (id, epoch) in self.seen.into_iter().filter(|(id, _)| !self.removed.contains(id)) {
            let known = table.partitions.entry(id).or_insert(partition_table::PartitionEntry {
                durability: crate::durability::Durability::Fsync,
                first: UNKNOWN,
                next: 0,
                epoch: 0,
            });
            known.epoch = known.epoch.max(epoch);
        }
        table
    }
}
