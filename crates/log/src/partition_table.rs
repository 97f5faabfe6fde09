//! The table of partitions and where they begin. Changes are records of a separate partition, and each new commit file
//! starts with a snapshot of the table, so that older files can be removed.
//!
//! A change: kind 1 · partition 8 · then for a creation or a change of durability the durability 1, for a trim the
//! offset as varint. A snapshot: 0 · number of partitions as varint · for each: partition 8 · durability 1 · first
//! offset, next offset and a reserved number (ownership epoch, 0) as varints.
//!
//! Earlier versions could also write the change of an owner, with its epoch as varint. It is read and changes nothing,
//! and neither does an epoch in a snapshot.

use std::collections::BTreeMap;

use thalweg_kit::varint;

use crate::durability::Durability;
use crate::format::{FieldReader, FieldWriter};
use crate::ids::{Offset, PartitionId};

/// The log's own partition.
pub(crate) const META: PartitionId = PartitionId::new(0, 0);

pub(crate) const PARTITIONS_MAX: usize = 300_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartitionEntry {
    pub durability: Durability,
    pub first: Offset,
    /// The committed end when this was written; more records may follow.
    pub next: Offset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionChange {
    Created(PartitionId, Durability),
    Removed(PartitionId),
    /// Records before the offset are no longer needed.
    Trimmed(PartitionId, Offset),
    /// A new durability from now on.
    Promises(PartitionId, Durability),
}

const SNAPSHOT: u8 = 0;
const CREATED: u8 = 1;
const REMOVED: u8 = 2;
const TRIMMED: u8 = 3;
/// A new owner. Only earlier versions wrote it.
const ACQUIRED: u8 = 4;
const PROMISES: u8 = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PartitionTable {
    pub partitions: BTreeMap<PartitionId, PartitionEntry>,
}

/// Bytes that are neither a change nor a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotATable;

impl PartitionChange {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            PartitionChange::Created(id, durability) => {
                FieldWriter(out).u8(CREATED).u64(id.to_bits()).u8(durability.byte());
            }
            PartitionChange::Removed(id) => {
                FieldWriter(out).u8(REMOVED).u64(id.to_bits());
            }
            PartitionChange::Trimmed(id, first) => {
                FieldWriter(out).u8(TRIMMED).u64(id.to_bits());
                varint::put(out, first);
            }
            PartitionChange::Promises(id, durability) => {
                FieldWriter(out).u8(PROMISES).u64(id.to_bits()).u8(durability.byte());
            }
        }
    }
}

/// The partition that a change removes.
pub(crate) fn removed_by(value: &[u8]) -> Option<PartitionId> {
    let mut take = FieldReader(value);
    (take.u8()? == REMOVED).then(|| take.u64().map(PartitionId::from_bits))?
}

impl PartitionTable {
    pub fn encode(rows: impl ExactSizeIterator<Item = (PartitionId, PartitionEntry)>, out: &mut Vec<u8>) {
        FieldWriter(out).u8(SNAPSHOT);
        varint::put(out, rows.len() as u64);
        for (id, known) in rows {
            FieldWriter(out).u64(id.to_bits()).u8(known.durability.byte());
            varint::put(out, known.first);
            varint::put(out, known.next);
            varint::put(out, 0);
        }
    }

    /// Applies a change, or a snapshot that replaces everything before it.
    pub fn apply(&mut self, value: &[u8]) -> Result<(), NotATable> {
        self.take(value).ok_or(NotATable)
    }

    fn take(&mut self, value: &[u8]) -> Option<()> {
        let mut take = FieldReader(value);
        let kind = take.u8()?;
        if kind == SNAPSHOT {
            self.partitions = snapshot(&mut take)?;
            return Some(());
        }
        let id = PartitionId::from_bits(take.u64()?);
        match kind {
            CREATED => {
                let known = PartitionEntry {
                    durability: Durability::of_byte(take.u8()?)?,
                    first: 0,
                    next: 0,
                };
                self.partitions.insert(id, known);
            }
            REMOVED => drop(self.partitions.remove(&id)),
            TRIMMED => {
                let first = varint_of(&mut take)?;
                if let Some(known) = self.partitions.get_mut(&id) {
                    known.first = known.first.max(first);
                    known.next = known.next.max(first);
                }
            }
            ACQUIRED => {
                varint_of(&mut take)?;
            }
            PROMISES => {
                let durability = Durability::of_byte(take.u8()?)?;
                if let Some(known) = self.partitions.get_mut(&id) {
                    known.durability = durability;
                }
            }
            _ => return None,
        }
        take.0.is_empty().then_some(())
    }
}

fn snapshot(take: &mut FieldReader<'_>) -> Option<BTreeMap<PartitionId, PartitionEntry>> {
    let count = varint_of(take)?;
    let mut partitions = BTreeMap::new();
    for _ in 0..count {
        let id = PartitionId::from_bits(take.u64()?);
        let known = PartitionEntry {
            durability: Durability::of_byte(take.u8()?)?,
            first: varint_of(take)?,
            next: varint_of(take)?,
        };
        varint_of(take)?;
        partitions.insert(id, known);
    }
    take.0.is_empty().then_some(partitions)
}

fn varint_of(take: &mut FieldReader<'_>) -> Option<u64> {
    let (value, rest) = varint::take(take.0)?;
    take.0 = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_change() -> impl Strategy<Value = PartitionChange> {
        let id = (1..4u32, 0..3u32).prop_map(|(queue, partition)| PartitionId::new(queue, partition));
        let modes = prop::sample::select(vec![Durability::Fsync, Durability::Interval, Durability::Os]);
        (id, modes, any::<u32>(), 0..4u8).prop_map(|(id, durability, number, kind)| match kind {
            0 => PartitionChange::Created(id, durability),
            1 => PartitionChange::Removed(id),
            2 => PartitionChange::Trimmed(id, number.into()),
            _ => PartitionChange::Promises(id, durability),
        })
    }

    proptest! {
        #[test]
        fn a_snapshot_says_what_all_changes_before_it_said(changes in prop::collection::vec(any_change(), 0..30)) {
            let mut table = PartitionTable::default();
            for change in &changes {
                let mut value = Vec::new();
                change.encode(&mut value);
                prop_assert_eq!(table.apply(&value), Ok(()));
            }
            let rows: Vec<_> = table.partitions.iter().map(|(id, known)| (*id, *known)).collect();
            let mut snapshot = Vec::new();
            PartitionTable::encode(rows.into_iter(), &mut snapshot);
            let mut again = PartitionTable::default();
            prop_assert_eq!(again.apply(&snapshot), Ok(()));
            prop_assert_eq!(again, table);
        }

        #[test]
        fn any_bytes_are_a_change_or_refused(bytes: Vec<u8>) {
            let _ = PartitionTable::default().apply(&bytes);
        }
    }

    #[test]
    fn a_partition_is_what_was_said_last() {
        let (one, two) = (PartitionId::new(1, 0), PartitionId::new(2, 0));
        let mut table = PartitionTable::default();
        for change in [
            PartitionChange::Created(one, Durability::Os),
            PartitionChange::Created(two, Durability::Fsync),
            PartitionChange::Trimmed(one, 50),
            PartitionChange::Trimmed(one, 40),
            PartitionChange::Promises(one, Durability::Interval),
            PartitionChange::Removed(two),
            PartitionChange::Promises(two, Durability::Os),
        ] {
            let mut value = Vec::new();
            change.encode(&mut value);
            table.apply(&value).unwrap();
        }
        let known = PartitionEntry {
            durability: Durability::Interval,
            first: 50,
            next: 50,
        };
        assert_eq!(table.partitions, BTreeMap::from([(one, known)]));
    }

    #[test]
    fn epochs_of_an_earlier_version_are_passed_over() {
        let id = PartitionId::new(1, 0);
        let known = PartitionEntry {
            durability: Durability::Os,
            first: 50,
            next: 60,
        };
        let mut written = Vec::new();
        PartitionTable::encode([(id, known)].into_iter(), &mut written);
        // The epoch is the last number of a snapshot.
        assert_eq!(written.pop(), Some(0));
        varint::put(&mut written, 300);
        let mut acquired = Vec::new();
        FieldWriter(&mut acquired).u8(ACQUIRED).u64(id.to_bits());
        varint::put(&mut acquired, 301);
        let mut table = PartitionTable::default();
        for value in [&written, &acquired] {
            assert_eq!(table.apply(value), Ok(()));
        }
        assert_eq!(table.partitions, BTreeMap::from([(id, known)]));
    }
}
