//! Checkpoints of the state of all groups, so that a start reads little.

use std::sync::Arc;

use smol_str::SmolStr;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;

use crate::dead_letters::dropped_record;
use crate::group::Group;
use crate::group_partition::{GroupPartition, LeasingMember, UnsavedState};
use crate::maintenance::CHECKPOINT_AFTER;
use crate::queue::Queue;

impl Queue {
    /// Schedules a checkpoint after a change.
    pub(crate) fn checkpoint_by_and_by(&self) {
        self.maintenance.wake_by(self.clock.now() + CHECKPOINT_AFTER);
    }

    /// The most records since the last checkpoint, over all group partitions that are worth another one.
    pub(crate) fn most_records(&self, groups: &[Arc<Group>]) -> u32 {
        if self.is_in_memory() {
            return 0;
        }
        let parts = groups.iter().flat_map(|group| group.parts());
        parts.map(|(_, part)| part.unsaved_records()).max().unwrap_or(0)
    }

    /// Writes a checkpoint of every partition for which `wanted` holds in at least one group. A checkpoint contains all
    /// groups: a start reads nothing before it, so a group missing from it would start over.
    pub(crate) fn checkpoint(&self, wanted: impl Fn(UnsavedState) -> bool) {
        for partition in 0..self.partition_count() {
            let _listed = self.groups.hold();
            let groups = self.groups();
            let parts: Vec<(Arc<Group>, Arc<GroupPartition>)> = groups
                .iter()
                .filter_map(|group| Some((group.clone(), group.part(partition)?.clone())))
                .collect();
            let drops = match partition {
                0 => self.letters.unsaved(),
                _ => 0,
            };
            let whole = parts.iter().map(|(_, part)| part.inner.lock().unsaved);
            let letters = UnsavedState::of_letters(drops + self.sent_here.lock().unsaved(partition), whole);
            if !wanted(letters) && !parts.iter().any(|(_, part)| wanted(part.inner.lock().unsaved)) {
                continue;
            }
            // A dead letter may be stored before its message has left the group. A checkpoint now would undo the
            // removal, so it is postponed.
            let moves: Option<Vec<_>> = parts.iter().map(|(_, part)| part.moving.try_lock().ok()).collect();
            let Some(_no_moves) = moves else { continue };
            if let Err(error) = self.checkpoint_of(partition, &parts) {
                tracing::warn!(
                    queue = %self.name(), partition, %error,
                    "the checkpoint of group state cannot be written"
                );
            }
        }
    }

    /// Adds a new group and stores where it begins, so that a restart does not begin elsewhere. The lock keeps a
    /// checkpoint from coming between the two: it would contain the group before its beginning, or the beginning before
    /// the group.
    pub(crate) fn begin_group(&self, group: &Arc<Group>) -> thalweg_log::Result<()> {
        let _listed = self.groups.hold();
        self.add_group(group.clone());
        self.keep_beginning(group)
    }

    /// Stores where a new group begins, without the state of the other groups.
    fn keep_beginning(&self, group: &Group) -> thalweg_log::Result<()> {
        if self.is_in_memory() {
            return Ok(());
        }
        for (partition, part) in group.parts() {
            let (state, now) = (self.identity.state_id(partition), self.clock.now());
            let (mut inner, mut values) = (part.inner.lock(), Vec::new());
            inner.store(self.log.as_ref(), state, group.id, now)?;
            inner.checkpoint(group.id, &[], &mut values);
            part.note_unsaved(&inner);
            // Under the lock, so that later changes come after it.
            self.log.journal(state, FrameKind::State, &mut |records| {
                values
                    .iter()
                    .try_for_each(|value| records.push(&RecordRef::of(now, value)))
            })?;
        }
        Ok(())
    }

    /// Writes all groups of a partition as of one moment; nothing may be journaled between them. Pending changes are
    /// stored first: if the checkpoint is too large for the log, or the disk is full, a start reads them instead.
    fn checkpoint_of(&self, partition: u32, parts: &[(Arc<Group>, Arc<GroupPartition>)]) -> thalweg_log::Result<()> {
        let mut locked: Vec<_> = parts
            .iter()
            .map(|(group, part)| (group, part, part.inner.lock()))
            .collect();
        let (state, now) = (self.identity.state_id(partition), self.clock.now());
        let (mut values, mut consumers) = (Vec::new(), Vec::new());
        for (group, _, inner) in &mut locked {
            inner.store(self.log.as_ref(), state, group.id, now)?;
            let members = group.members.lock();
            let holding = members.iter().filter(|member| member.leases > 0);
            let holding: Vec<LeasingMember> = holding
                .map(|member| (member.index, SmolStr::new(member.id), member.kind))
                .collect();
            drop(members);
            inner.checkpoint(group.id, &holding, &mut values);
            consumers.push(holding);
        }
        // The lock lasts until the checkpoint is written, so that later drops come after it.
        let dropped = match partition {
            0 => self.letters.lock(),
            _ => None,
        };
        if dropped.is_some() && self.letters.is_under_way() {
            return Ok(());
        }
        let mut sent_here = self.sent_here.lock();
        if sent_here.is_under_way(partition) {
            return Ok(());
        }
        values.extend(sent_here.records(partition));
        let drops = match &dropped {
            Some(_) => self.letters.take_unsaved(),
            None => 0,
        };
        values.extend(dropped.as_deref().map(dropped_record));
        let written = self.log.journal(state, FrameKind::Checkpoint, &mut |records| {
            values
                .iter()
                .try_for_each(|value| records.push(&RecordRef::of(now, value)))
        });
        if written.is_ok() {
            sent_here.saved(partition);
        }
        drop((dropped, sent_here));
        let bytes = values.iter().map(Vec::len).sum();
        for ((_, part, inner), holding) in locked.iter_mut().zip(&consumers) {
            inner.checkpointed(holding, bytes, written.is_ok());
            part.note_unsaved(inner);
        }
        if written.is_err() {
            self.letters.add_unsaved(drops);
        }
        written
    }
}
