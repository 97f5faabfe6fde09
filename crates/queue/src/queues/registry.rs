//! The registry of queues: creates and removes queues and groups and stores them in the catalogue. Every change of a
//! queue is called under its lock (`change_locks.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use smol_str::SmolStr;
use thalweg_log::clock::Clock;
use thalweg_log::{Durability, Log, LogError, Offset, PartitionId};

use super::change_locks::{ChangeLocks, PartitionQuotaGuard};
use super::{QueuesOptions, no_group};
use crate::budget::{Budget, Reservation};
use crate::catalog::{Catalog, CleanupMark, QueueEntry};
use crate::dead_letter_listener::DeadLetterListener;
use crate::epoch::Epoch;
use crate::error::{QueueError, Result};
use crate::group::{Group, sharing};
use crate::group_partition::{GroupPartition, GroupState, part_bytes};
use crate::identity::QueueIdentity;
use crate::machine::{StreamMachine, WorkMachine};
use crate::members::Members;
use crate::names::{check_name, dead_letter_name};
use crate::pause::PauseFlags;
use crate::queue::{Queue, QueueParts};
use crate::reconcile;
use crate::settings::{GroupMode, GroupSettings, GroupStart, PROCESS_PARTITIONS_MAX, QUEUE_GROUPS_MAX, QueueSettings};
use crate::store::MessageStore;

pub(crate) struct QueueRegistry {
    pub log: Arc<dyn Log>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: QueuesOptions,
    pub(super) memory: Arc<Budget>,
    pub(super) dedup: Arc<Budget>,
    pub(super) state: Arc<Budget>,
    pub(super) catalog: Catalog,
    pub(super) epoch: Arc<Epoch>,
    pub(super) queues: RwLock<BTreeMap<SmolStr, Arc<Queue>>>,
    /// Queues that lack partitions until the disk has room for them, and why.
    pub(super) set_aside: RwLock<BTreeMap<SmolStr, LogError>>,
    pub(super) changes: ChangeLocks,
    /// The process is stopping: no work is started any more.
    pub(super) closing: AtomicBool,
    pub listener: OnceLock<Arc<dyn DeadLetterListener>>,
}

impl QueueRegistry {
    pub fn get(&self, name: &str) -> Result<Arc<Queue>> {
        if let Some(queue) = self.queues.read().get(name) {
            return Ok(queue.clone());
        }
        match self.set_aside.read().get(name) {
            Some(error) => Err(QueueError::Log(error.clone())),
            None => Err(QueueError::QueueNotFound {
                queue: SmolStr::new(name),
            }),
        }
    }

    /// Why queues are set aside, if any are.
    pub fn first_set_aside(&self) -> Option<LogError> {
        self.set_aside.read().values().next().cloned()
    }

    pub(super) fn queue_of(self: &Arc<QueueRegistry>, name: &SmolStr, entry: &QueueEntry) -> Arc<Queue> {
        let identity = QueueIdentity {
            id: entry.id,
            name: name.clone(),
            durability: entry.durability,
        };
        let queue = Queue::new(QueueParts {
            identity,
            epoch: self.epoch.clone(),
            log: self.log.clone(),
            clock: self.clock.clone(),
            settings: entry.settings.clone(),
            next_group: entry.next_group,
            expires_early: entry.expires_early,
            paused: PauseFlags::new(entry.produce_paused, entry.consume_paused),
            home: Arc::downgrade(self),
            memory: self.memory.clone(),
            dedup: self.dedup.clone(),
        });
        (0..entry.settings.partitions).for_each(|partition| queue.add_store(queue.new_store(partition)));
        Arc::new(queue)
    }

    /// Puts a queue into service. Its stored messages are counted already.
    pub(super) fn start(self: &Arc<QueueRegistry>, queue: Arc<Queue>) -> Result<()> {
        for partition in 0..queue.partition_count() {
            self.listen(&queue, partition)?;
        }
        tokio::spawn(queue.clone().run_timer_task());
        tokio::spawn(queue.clone().maintain());
        if queue.expiry.is_early_stored() && !queue.is_in_memory() {
            tokio::spawn(queue.clone().learn_ages());
        }
        // Messages settled before the process ended may not have been trimmed.
        queue.maintenance.trim_now();
        self.queues.write().insert(queue.name().clone(), queue);
        Ok(())
    }

    /// Registers for the growth of a partition. Called once per partition, because there is no way to unregister.
    fn listen(&self, queue: &Arc<Queue>, partition: u32) -> Result<()> {
        if !queue.is_in_memory() {
            self.log
                .listen(queue.identity.data_id(partition), queue.listener(partition))?;
        }
        Ok(())
    }

    /// An error is better than a setting without effect.
    pub(super) fn check(&self, name: &str, settings: &QueueSettings, durability: Durability) -> Result<()> {
        settings.check_dead_letters(name)?;
        if let Some((key, why)) = settings.without_effect() {
            return Err(QueueError::invalid(format!("{key}: {why}")));
        }
        let (key, instead) = if settings.dlq.webhook.is_some() && self.listener.get().is_none() {
            (
                "dlq.webhook: not in this process",
                "calls no webhooks; list the dead letters instead",
            )
        } else if settings.compaction.enabled && durability == Durability::Memory {
            (
                "compaction.enabled: not with durability memory",
                "has no files to rewrite; set retention.max_messages",
            )
        } else {
            return Ok(());
        };
        Err(QueueError::invalid(format!("{key}, which {instead}; remove it")))
    }

    fn durability_of(&self, settings: &QueueSettings) -> Durability {
        settings.durability.unwrap_or(self.options.durability)
    }

    pub(super) async fn create(self: &Arc<QueueRegistry>, name: &str, settings: QueueSettings) -> Result<Arc<Queue>> {
        self.check(name, &settings, self.durability_of(&settings))?;
        check_name(name).map_err(|error| QueueError::invalid(error.to_string()))?;
        if self.queues.read().contains_key(name) || self.set_aside.read().contains_key(name) {
            return Err(QueueError::QueueExists {
                queue: SmolStr::new(name),
            });
        }
        let _counted = self.count_partitions(settings.partitions)?;
        let name = SmolStr::new(name);
        let modes = settings.groups.iter().map(|group| group.mode);
        let mut room = self.room_for_parts(&name, modes, settings.partitions)?;
        let durability = self.durability_of(&settings);
        let entry = QueueEntry {
            id: self.begin().await?,
            settings,
            durability,
            groups: Vec::new(),
            next_group: 1,
            produce_paused: false,
            consume_paused: false,
            expires_early: false,
        };
        let queue = self.queue_of(&name, &entry);
        if let Err(error) = self.make(&queue, &mut room).await {
            self.clear(entry.id).await;
            return Err(error);
        }
        self.start(queue.clone())?;
        Ok(queue)
    }

    /// The number of a new queue.
    async fn begin(&self) -> Result<u32> {
        let begun = self
            .catalog
            .begin(self.log.as_ref(), CleanupMark::Making, self.clock.now());
        begun.await
    }

    /// Stores the epoch of the process, so that leases may use it. The change is durable on return.
    pub(super) async fn store_epoch(&self) -> Result<()> {
        self.catalog.store_epoch(self.log.as_ref(), self.clock.now()).await?;
        self.epoch.stored();
        Ok(())
    }

    /// Creates all partitions together, and only then the catalogue entry with the groups, so that a crash leaves all
    /// of it or nothing.
    async fn make(&self, queue: &Arc<Queue>, room: &mut Reservation) -> Result<()> {
        let mut all = queue.identity.partition_ids(0..queue.partition_count());
        if queue.keeps_ids() {
            all.extend(queue.identity.ids_ids(0..queue.partition_count()));
        }
        self.make_all(queue, all).await?;
        for group in &queue.settings().groups {
            self.new_group(queue, group.clone(), true, room).await?;
        }
        self.save(queue).await
    }

    /// Removes a queue, whatever is in it.
    pub(super) async fn remove(&self, queue: &Queue) -> Result<()> {
        self.catalog
            .remove(self.log.as_ref(), queue.name(), self.clock.now())
            .await?;
        self.queues.write().remove(queue.name());
        queue.end();
        self.clear(queue.identity.id).await;
        Ok(())
    }

    /// Removes what is left under the number of a removed queue. A failure is repaired at the next start.
    pub(super) async fn clear(&self, id: u32) {
        let cleared = reconcile::remove_one(&self.catalog, self.log.as_ref(), id, self.clock.now()).await;
        if let Err(error) = cleared {
            tracing::warn!(id, %error, "partitions of a removed queue are left over; the next start removes them");
        }
    }

    /// Reserves partitions in the process-wide count before they are created, until they are counted with their queue.
    pub(super) fn count_partitions(&self, more: u32) -> Result<PartitionQuotaGuard<'_>> {
        let queues = self.queues.read();
        let made: u64 = queues.values().map(|queue| u64::from(queue.partition_count())).sum();
        let room = PROCESS_PARTITIONS_MAX.saturating_sub(made);
        let counted = self.changes.make(u64::from(more), room);
        counted.ok_or(QueueError::QuotaExceeded {
            what: "partitions of all queues together",
            limit: PROCESS_PARTITIONS_MAX,
        })
    }

    /// Reserves memory for this many partitions of groups of these modes, before any is created.
    fn room_for_parts(
        &self,
        queue: &SmolStr,
        modes: impl Iterator<Item = GroupMode>,
        partitions: u32,
    ) -> Result<Reservation> {
        let bytes: u64 = modes.map(|mode| part_bytes(mode) * u64::from(partitions)).sum();
        self.state.reserve(bytes).ok_or_else(|| QueueError::NoRoomForGroups {
            queue: queue.clone(),
            limit: self.state.limit(),
        })
    }

    /// Reserves memory for what new settings add to a queue: partitions of its groups, and declared groups.
    pub(super) fn room_for_change(
        &self,
        queue: &Queue,
        settings: &QueueSettings,
    ) -> Result<(Reservation, Reservation)> {
        let groups = queue.groups.now();
        let known = groups.iter().map(|group| group.settings.mode);
        let is_new = |group: &&GroupSettings| queue.groups.find(&group.name).is_none();
        let new = settings.groups.iter().filter(is_new).map(|group| group.mode);
        let more = settings.partitions.saturating_sub(queue.partition_count());
        Ok((
            self.room_for_parts(queue.name(), known, more)?,
            self.room_for_parts(queue.name(), new, settings.partitions)?,
        ))
    }

    /// Creates the partitions of dedup-ids.
    pub(super) async fn make_ids(&self, queue: &Queue, partitions: u32) -> Result<()> {
        self.make_all(queue, queue.identity.ids_ids(0..partitions)).await
    }

    /// Creates log partitions in one commit; nobody uses them yet. Some may exist from an attempt that failed half-way
    /// or was refused, or from before a dedup window was removed, because a number is never reused.
    async fn make_all(&self, queue: &Queue, mut all: Vec<PartitionId>) -> Result<()> {
        all.retain(|id| matches!(self.log.bounds(*id), Err(LogError::NoPartition(_))));
        if all.is_empty() {
            return Ok(());
        }
        match self.log.create_all(&all, queue.durability()).await {
            Err(LogError::DurabilityUnavailable { offered, .. }) => Err(QueueError::DurabilityUnavailable {
                queue: queue.name().clone(),
                durability: queue.durability(),
                cause: format!("the log offers {offered}").into(),
            }),
            made => Ok(made?),
        }
    }

    /// Creates the additional partitions of an existing queue.
    pub(super) async fn make_partitions(&self, queue: &Queue, count: u32) -> Result<()> {
        let more = queue.identity.partition_ids(queue.partition_count()..count);
        self.make_all(queue, more).await
    }

    /// Puts additional partitions into service.
    pub(super) fn publish_partitions(&self, queue: &Arc<Queue>, count: u32, room: &mut Reservation) -> Result<()> {
        for partition in queue.partition_count()..count {
            let store = queue.new_store(partition);
            let start = store.first().unwrap_or_default();
            for group in queue.groups() {
                let state = new_state(queue, &group.settings, partition, start);
                group.add_part(GroupPartition::new(state, room.split(part_bytes(group.settings.mode))));
                group.members.lock().set_partitions(self.clock.now(), partition + 1);
            }
            queue.add_store(store);
            self.listen(queue, partition)?;
        }
        Ok(())
    }

    /// Declares the groups of the list, whoever created them. Groups no longer in the list lose the declaration and may
    /// expire.
    pub(super) async fn declare_groups(
        self: &Arc<QueueRegistry>,
        queue: &Arc<Queue>,
        old: &[GroupSettings],
        new: &[GroupSettings],
        room: &mut Reservation,
    ) -> Result<()> {
        for group in new.iter().filter(|group| queue.groups.find(&group.name).is_none()) {
            self.add_group_within(queue, group.clone(), true, room).await?;
        }
        let is_in = |groups: &[GroupSettings], known: &Group| groups.iter().any(|group| group.name == *known.name());
        let (mut entry, mut changed, now) = (queue.entry(), Vec::new(), self.clock.now());
        for group in queue.groups() {
            let declared = match (is_in(new, &group), is_in(old, &group)) {
                (true, _) => true,
                (false, true) => false,
                (false, false) => continue,
            };
            if declared != group.is_declared() {
                let is_unused = !declared && group.members.lock().empty_since().is_some();
                let since = is_unused.then_some(now);
                entry.groups_of(group.id).for_each(|entry| {
                    (entry.declared, entry.unused_since) = (declared, since);
                });
                changed.push((group, declared));
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.save_as(queue, entry).await?;
        for (group, declared) in changed {
            group.declared.store(declared, Ordering::Relaxed);
            if !declared {
                // Its expiry time begins now.
                group.members.lock().restore_empty(now);
            }
        }
        // The depth of a queue with only stream groups is that of the declared ones.
        queue.admission.has_changed();
        queue.maintenance.wake_by(now);
        Ok(())
    }

    /// Adds a new group to a queue. The change is durable on return.
    pub(super) async fn add_group(
        &self,
        queue: &Arc<Queue>,
        settings: GroupSettings,
        declared: bool,
    ) -> Result<Arc<Group>> {
        let modes = std::iter::once(settings.mode);
        let mut room = self.room_for_parts(queue.name(), modes, queue.partition_count())?;
        self.add_group_within(queue, settings, declared, &mut room).await
    }

    async fn add_group_within(
        &self,
        queue: &Arc<Queue>,
        settings: GroupSettings,
        declared: bool,
        room: &mut Reservation,
    ) -> Result<Arc<Group>> {
        let group = self.new_group(queue, settings, declared, room).await?;
        if let Err(error) = self.save(queue).await {
            // A restart would not know the group or what it had settled.
            queue.remove_group(group.name());
            group.wake();
            return Err(error);
        }
        Ok(group)
    }

    /// Like `add_group`, but does not store it in the catalogue.
    async fn new_group(
        &self,
        queue: &Arc<Queue>,
        settings: GroupSettings,
        declared: bool,
        room: &mut Reservation,
    ) -> Result<Arc<Group>> {
        check_name(&settings.name).map_err(|error| QueueError::invalid(error.to_string()))?;
        if queue.has_ended() {
            return Err(queue.identity.not_found());
        }
        if queue.groups.now().len() >= QUEUE_GROUPS_MAX {
            return Err(QueueError::QuotaExceeded {
                what: "groups of one queue",
                limit: QUEUE_GROUPS_MAX as u64,
            });
        }
        let id = queue.groups.take_number();
        let start = settings.start;
        let wanted = queue.beside_the_disk(move |queue| starts_of(queue, start)).await;
        let starts = wanted.unwrap_or(Err(LogError::Closed))?;
        // While the queue is quiesced its backlog is exact, because no message is in transit.
        let still = queue.admission.still().await;
        let stores = queue.stores();
        let mut parts = Vec::with_capacity(stores.len());
        let mut backlog = 0;
        for (partition, store) in (0..).zip(&stores) {
            let start = start_of(store, starts.get(partition as usize).copied().flatten(), settings.mode)?;
            let mut state = new_state(queue, &settings, partition, start);
            if let GroupState::Stream(machine) = &mut state {
                machine.begins_at(store.first()?);
            }
            let part = GroupPartition::new(state, room.split(part_bytes(settings.mode)));
            backlog += part.inner.lock().backlog(store.next()?);
            parts.push(Arc::new(part));
        }
        let queue_settings = queue.settings();
        let members = Members::new(
            self.clock.now(),
            stores.len() as u32,
            sharing(&queue_settings, settings.mode),
            queue_settings.consumer_timeout,
        );
        let total = queue.admission.total();
        let group = Arc::new(Group::new(id, settings, declared, members, parts, (total, backlog)));
        let kept = queue.begin_group(&group);
        drop(still);
        if let Err(error) = kept {
            queue.remove_group(group.name());
            return Err(error.into());
        }
        Ok(group)
    }

    pub(super) async fn remove_group(&self, queue: &Arc<Queue>, name: &str) -> Result<()> {
        let Some(group) = queue.groups.find(name) else {
            return Err(no_group(queue, name));
        };
        let mut entry = queue.entry();
        entry.groups.retain(|known| known.id != group.id);
        // A removed group is not declared either; whoever declares it again gets a new one.
        entry.settings.groups.retain(|group| group.name != name);
        let settings = entry.settings.clone();
        let was_declared = settings.groups.len() < queue.settings().groups.len();
        self.save_as(queue, entry).await?;
        queue.remove_group(name);
        if was_declared {
            queue.set_settings(settings);
        }
        group.wake();
        queue.settled(&group);
        Ok(())
    }

    /// Removes an undeclared group that had no member for long enough.
    pub async fn expire_group(&self, queue: &Arc<Queue>, group: &Group) -> Result<()> {
        let _changes = self.changes.of(queue.name()).await;
        // If a consumer came meanwhile, the group stays.
        match queue.expires_at(group) {
            Some(at) if at <= self.clock.now() => self.remove_group(queue, group.name()).await,
            _ => Ok(()),
        }
    }

    /// Stores whether a group that may expire has members, or since when it has none, if that changed.
    pub(super) async fn keep_use(&self, queue: &Queue, group: &Group) -> Result<()> {
        let _changes = self.changes.of(queue.name()).await;
        let to_keep = group.members.lock().to_keep();
        if let Some(since) = to_keep.filter(|_| !queue.has_ended()) {
            self.save(queue).await?;
            group.members.lock().is_kept(since);
        }
        Ok(())
    }

    /// Stores that messages of a queue may expire early, if that is not stored yet.
    pub(super) async fn keep_expires_early(&self, queue: &Queue) -> Result<()> {
        let _changes = self.changes.of(queue.name()).await;
        if !queue.has_ended() {
            self.save(queue).await?;
            queue.expiry.early_is_stored();
        }
        Ok(())
    }

    /// Stores the entry of a queue, if the queue still exists. The entry of a removed queue would bring it back, or
    /// take the name from another.
    pub(super) async fn save(&self, queue: &Queue) -> Result<()> {
        if queue.has_ended() {
            return Err(queue.identity.not_found());
        }
        self.catalog
            .put(self.log.as_ref(), queue.name(), queue.entry(), self.clock.now())
            .await
    }

    /// Stores an entry before the change is applied. A deletion or a pause frees or saves space, so it is accepted on a
    /// full disk too.
    pub(super) async fn save_as(&self, queue: &Queue, entry: QueueEntry) -> Result<()> {
        if queue.has_ended() {
            return Err(queue.identity.not_found());
        }
        self.catalog
            .put_freeing(self.log.as_ref(), queue.name(), entry, self.clock.now())
            .await
    }

    /// The dead-letter queue of a queue, created when it is first needed.
    pub async fn dead_letters_of(self: &Arc<QueueRegistry>, queue: &Queue) -> Result<Option<Arc<Queue>>> {
        let name = dead_letter_name(queue.name()).map_err(|error| QueueError::invalid(error.to_string()))?;
        let Some(name) = name else {
            return Ok(None);
        };
        if let Ok(found) = self.get(&name) {
            return Ok(Some(found));
        }
        let _changes = self.changes.of(&name).await;
        if let Ok(found) = self.get(&name) {
            return Ok(Some(found));
        }
        let mut settings = QueueSettings::of_dead_letters(&queue.settings());
        settings.durability = Some(queue.durability());
        self.create(&name, settings).await.map(Some)
    }
}

/// Where a new group should begin, by partition; `None` means at the beginning. Times may need a disk read.
fn starts_of(queue: &Queue, start: GroupStart) -> thalweg_log::Result<Vec<Option<Offset>>> {
    let stores = queue.stores();
    let start_in = |store: &Arc<MessageStore>| match start {
        GroupStart::Earliest => Ok(None),
        GroupStart::Latest => Ok(Some(Offset::MAX)),
        GroupStart::Offset(offset) => Ok(Some(offset)),
        GroupStart::Time(time) => store.offset_at(time).map(Some),
    };
    stores.iter().map(start_in).collect()
}

/// Where the group begins, given the partition while the queue is quiesced.
fn start_of(store: &MessageStore, wanted: Option<Offset>, mode: GroupMode) -> Result<Offset> {
    let (first, next) = (store.first()?, store.next()?);
    let at = wanted.unwrap_or(first);
    // Work groups do not report gaps.
    Ok(match mode {
        GroupMode::Work => at.clamp(first, next),
        GroupMode::Stream => at.min(next),
    })
}

pub(crate) fn new_state(queue: &Queue, group: &GroupSettings, partition: u32, start: u64) -> GroupState {
    let settings = queue.settings();
    match group.mode {
        GroupMode::Stream => {
            let mut machine = StreamMachine::new(start, settings.max_pending);
            machine.set_epoch(queue.epoch.number());
            GroupState::Stream(Box::new(machine))
        }
        GroupMode::Work => {
            let mut machine = WorkMachine::new(queue.policy(partition), start);
            if queue.is_in_memory() {
                machine = machine.without_journal();
            }
            machine.set_epoch(queue.epoch.number());
            GroupState::Work(Box::new(machine))
        }
    }
}
