//! Recovers the groups of a queue from the state partitions, starting at their last checkpoint.

mod interrupted_moves;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smol_str::{SmolStr, format_smolstr};
use thalweg_kit::blocking;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Log, LogError, Micros, Offset, PartitionId, ReadOptions};

use crate::budget::Budget;
use crate::catalog::{GroupEntry, QueueEntry};
use crate::dead_letter_move::ended_record;
use crate::error::{QueueError, Result};
use crate::group::{Group, sharing};
use crate::group_partition::{GroupPartition, GroupState, StateRecord, parse_record, part_bytes};
use crate::machine::{MachineRecovery, StreamMachine};
use crate::members::{MemberKind, Members};
use crate::message_times::micros;
use crate::queue::Queue;
use crate::queues::new_state;
use crate::settings::{GroupMode, GroupSettings};
use crate::store::{Cursor, MessageStore, NextMessage};
use interrupted_moves::InterruptedMoves;

const READ_BYTES: usize = 1 << 20;
/// After a start, consumers have this long to come back before a group expires.
const COME_BACK: Micros = 60_000_000;

/// The stored state of one group in one partition.
#[derive(Default)]
struct StoredGroupState {
    checkpoint: Option<Vec<u8>>,
    /// When it was written.
    checkpoint_at: Option<Micros>,
    /// Since the checkpoint.
    changes: Vec<u8>,
    consumers: BTreeMap<u32, (MemberKind, SmolStr)>,
    dropped: Vec<u8>,
    sent: Vec<Vec<u8>>,
}

/// Recovers all groups of a queue; `dead` is the partition of its dead letters. Also reads leased messages, because
/// leases must be known before anything is delivered. If the catalogue `has_lost` records, the result includes groups
/// that only the state partitions know. `memory` is the budget for the state of groups.
pub(crate) async fn recover(
    queue: &Arc<Queue>,
    entry: &QueueEntry,
    dead: Option<PartitionId>,
    has_lost: bool,
    memory: Arc<Budget>,
) -> Result<Vec<Group>> {
    let (queue, entry) = (queue.clone(), entry.clone());
    let recovered = blocking::spawn(move || recover_blocking(&queue, entry, dead, has_lost, &memory)).await;
    recovered.unwrap_or(Err(QueueError::Log(LogError::Closed)))
}

fn recover_blocking(
    queue: &Queue,
    mut entry: QueueEntry,
    dead: Option<PartitionId>,
    has_lost: bool,
    memory: &Arc<Budget>,
) -> Result<Vec<Group>> {
    let mut told = Vec::new();
    for partition in 0..queue.partition_count() {
        told.push(match queue.is_in_memory() {
            true => BTreeMap::new(),
            false => read_state(queue, partition)?,
        });
    }
    for (partition, told) in (0..).zip(&mut told) {
        let Some(letters) = told.remove(&0) else { continue };
        let damaged = |found: &str| queue.identity.damaged(partition, found);
        let known = queue.letters.restore(&letters.dropped);
        known.ok_or_else(|| damaged("its removed messages cannot be read"))?;
        let known = queue.sent_here.lock().restore(partition, &letters.sent);
        known.ok_or_else(|| damaged("the dead letters resent to it cannot be read"))?;
    }
    if has_lost {
        found_groups(queue, &mut entry, &told);
    }
    if queue.keeps_ids() {
        queue.restore_ids()?;
    }
    let letters = match dead {
        Some(dead) if !queue.is_in_memory() && !queue.log.caps().atomic_units => {
            InterruptedMoves::read(queue, dead, oldest_checkpoint(&entry, &told))
        }
        _ => InterruptedMoves::default(),
    };
    entry
        .groups
        .iter()
        .map(|group| group_of(queue, group, &mut told, &letters, memory))
        .collect()
}

/// Adds groups that were created after the remaining catalogue was written. They keep their messages as
/// `found-<number>`, because a newly declared group would begin with what exists.
fn found_groups(queue: &Queue, entry: &mut QueueEntry, told: &[BTreeMap<u32, StoredGroupState>]) {
    let mut found: BTreeMap<u32, GroupMode> = BTreeMap::new();
    for (id, told) in told.iter().flatten().filter(|(id, _)| **id >= entry.next_group) {
        let mode = told.checkpoint.as_deref().and_then(mode_of).unwrap_or(GroupMode::Work);
        found.entry(*id).or_insert(mode);
    }
    for (id, mode) in found {
        let numbered = (2u64..).map(|n| format_smolstr!("found-{id}-{n}"));
        let mut names = std::iter::once(format_smolstr!("found-{id}")).chain(numbered);
        let is_free = |name: &SmolStr| entry.groups.iter().all(|group| group.settings.name != *name);
        let Some(name) = names.find(is_free) else { continue };
        tracing::error!(
            queue = %queue.name(), group = %name,
            "the catalogue entry of a group was lost to damage; its unsettled messages are kept under this name: \
             delete the group when it is not needed"
        );
        entry.groups.push(GroupEntry {
            id,
            settings: GroupSettings::new(&name, mode),
            declared: true,
            paused: false,
            unused_since: None,
        });
        queue.groups.skip_number(id);
    }
}

/// The mode of the group whose checkpoint this is.
fn mode_of(checkpoint: &[u8]) -> Option<GroupMode> {
    if StreamMachine::restore(checkpoint, 1).is_ok() {
        return Some(GroupMode::Stream);
    }
    MachineRecovery::new(0, Some(checkpoint)).ok().map(|_| GroupMode::Work)
}

/// Over all groups and partitions.
fn oldest_checkpoint(entry: &QueueEntry, told: &[BTreeMap<u32, StoredGroupState>]) -> Micros {
    let groups = entry
        .groups
        .iter()
        .flat_map(|group| told.iter().map(|told| told.get(&group.id)));
    let times = groups.map(|told| told.and_then(|told| told.checkpoint_at).unwrap_or_default());
    times.min().unwrap_or_default()
}

fn read_state(queue: &Queue, partition: u32) -> Result<BTreeMap<u32, StoredGroupState>> {
    let mut told: BTreeMap<u32, StoredGroupState> = BTreeMap::new();
    let id = queue.identity.state_id(partition);
    let from = queue.log.last_checkpoint(id)?.unwrap_or(queue.log.bounds(id)?.first);
    let read = each_record(queue.log.as_ref(), id, from, |record| {
        let (group, state) = parse_record(record.value)?;
        told.entry(group).or_default().take(state, record.time);
        Some(())
    })?;
    read.ok_or_else(|| queue.identity.damaged(partition, "one of its records is invalid"))?;
    Ok(told)
}

/// Passes the records of a partition from an offset on to `take`; `None` as soon as one is damaged or `take` returns
/// `None`. Blocks.
pub(crate) fn each_record(
    log: &dyn Log,
    id: PartitionId,
    mut from: Offset,
    mut take: impl FnMut(&RecordRef<'_>) -> Option<()>,
) -> Result<Option<()>> {
    loop {
        let want = ReadOptions {
            bytes: READ_BYTES,
            synced: false,
        };
        let frames = match log.read(id, from, want) {
            Err(LogError::Gap { to, .. }) => {
                from = to;
                continue;
            }
            frames => frames?,
        };
        let Some(last) = frames.last() else {
            return Ok(Some(()));
        };
        from = last.header.next();
        for record in frames.iter().flat_map(|frame| records(&frame.body)) {
            if record.ok().and_then(|record| take(&record)).is_none() {
                return Ok(None);
            }
        }
    }
}

impl StoredGroupState {
    fn take(&mut self, record: StateRecord<'_>, time: Micros) {
        match record {
            StateRecord::Changes(bytes) => self.changes.extend_from_slice(bytes),
            StateRecord::Checkpoint(bytes) => {
                self.checkpoint = Some(bytes.to_vec());
                self.checkpoint_at = Some(time);
                self.changes.clear();
            }
            StateRecord::Dropped(bytes) => self.dropped.extend_from_slice(bytes),
            StateRecord::Sent(bytes) => self.sent.push(bytes.to_vec()),
            StateRecord::Consumer(index, kind, id) => drop(self.consumers.insert(index, (kind, SmolStr::new(id)))),
        }
    }
}

fn group_of(
    queue: &Queue,
    entry: &GroupEntry,
    told: &mut [BTreeMap<u32, StoredGroupState>],
    letters: &InterruptedMoves,
    memory: &Arc<Budget>,
) -> Result<Group> {
    let settings = queue.settings();
    let now = queue.clock.now();
    let stores = queue.stores();
    let mut members = Members::new(
        now,
        stores.len() as u32,
        sharing(&settings, entry.settings.mode),
        settings.consumer_timeout,
    );
    let (mut parts, mut backlog) = (Vec::with_capacity(stores.len()), 0);
    for ((partition, store), told) in (0..).zip(&stores).zip(told) {
        let told = told.remove(&entry.id).unwrap_or_default();
        let mut state = state_of(queue, entry, partition, store, &told, letters)?;
        if let GroupState::Work(machine) = &state {
            // Members whose leases run on.
            for (index, leases) in machine.leases_by_consumer() {
                if let Some((kind, id)) = told.consumers.get(&index) {
                    let before = members
                        .iter()
                        .find(|member| member.index == index)
                        .map_or(0, |member| member.leases);
                    if before > 0 {
                        members.leases_taken(index, leases);
                    } else {
                        members.restore(now, index, id, *kind, leases);
                    }
                }
            }
        }
        if let GroupState::Stream(machine) = &mut state {
            machine.begins_at(store.first()?);
        }
        // Stored state is never refused.
        let room = memory.reserve_anyway(part_bytes(entry.settings.mode));
        let part = GroupPartition::new(state, room);
        backlog += part.inner.lock().backlog(store.next()?);
        parts.push(Arc::new(part));
    }
    if let Some(since) = entry.unused_since {
        let earliest = (now + COME_BACK).saturating_sub(micros(settings.group_expiry));
        members.restore_empty(since.clamp(earliest.min(now), now));
    }
    let group = Group::new(
        entry.id,
        entry.settings.clone(),
        entry.declared,
        members,
        parts,
        (queue.admission.total(), backlog),
    );
    group.paused.store(entry.paused, Ordering::Relaxed);
    Ok(group)
}

fn state_of(
    queue: &Queue,
    entry: &GroupEntry,
    partition: u32,
    store: &MessageStore,
    told: &StoredGroupState,
    letters: &InterruptedMoves,
) -> Result<GroupState> {
    let bad = |error: crate::machine::DamagedState| queue.identity.damaged(partition, &error.to_string());
    if queue.is_in_memory() {
        return Ok(new_state(queue, &entry.settings, partition, store.first()?));
    }
    if entry.settings.mode == GroupMode::Stream {
        let mut all = told.checkpoint.clone().unwrap_or_default();
        all.extend_from_slice(&told.changes);
        let max_pending = queue.settings().max_pending;
        let mut machine = match all.is_empty() {
            true => StreamMachine::new(store.first()?, max_pending),
            false => StreamMachine::restore(&all, max_pending).map_err(bad)?,
        };
        machine.set_epoch(queue.epoch.number());
        return Ok(GroupState::Stream(Box::new(machine)));
    }
    let mut restoring = MachineRecovery::new(store.first()?, told.checkpoint.as_deref()).map_err(bad)?;
    restoring.apply(&told.changes).map_err(bad)?;
    let name = &entry.settings.name;
    let left = letters.settle((name, partition), store, told.checkpoint_at, &mut restoring)?;
    for (offset, terminal) in left {
        let id = queue.identity.message_id(partition, offset);
        tracing::info!(
            message = %id, group = %name,
            "the message was already a dead letter when the process ended; its move is complete now"
        );
        let value = ended_record(entry.id, offset, terminal);
        queue
            .log
            .journal(queue.identity.state_id(partition), FrameKind::State, &mut |records| {
                records.push(&RecordRef::of(queue.clock.now(), &value))
            })?;
    }
    let mut cursor = Cursor::default();
    for offset in restoring.unknown() {
        if let Some(passing) = passing(store, &mut cursor, offset, entry)? {
            restoring.fill(&passing);
        }
    }
    let can_return = |index: u32| told.consumers.get(&index).is_some_and(|(kind, _)| kind.can_return());
    let mut machine = restoring.finish(queue.policy(partition), queue.clock.now(), can_return);
    machine.set_epoch(queue.epoch.number());
    Ok(GroupState::Work(Box::new(machine)))
}

/// What a group must know about a delivered message.
fn passing(
    store: &MessageStore,
    cursor: &mut Cursor,
    offset: Offset,
    entry: &GroupEntry,
) -> Result<Option<crate::machine::MessageMeta>> {
    let mut next = store.at(cursor, offset)?;
    if matches!(next, NextMessage::Load) {
        *cursor = store.load(offset)?;
        next = store.at(cursor, offset)?;
    }
    Ok(match next {
        NextMessage::Message(message, hint) if message.offset == offset => {
            Some(message.passing(&entry.settings.name, entry.settings.filter.as_deref(), hint))
        }
        _ => None,
    })
}
