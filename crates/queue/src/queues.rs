//! All queues of a process, on one log: found again at the start, made, changed and removed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::RwLock;
use smol_str::SmolStr;
use thalweg_log::{Durability, Log, LogError, Micros, PartitionId};
use tokio::sync::Mutex;

use crate::budget::Budget;
use crate::catalog::{Catalog, Entry, GroupEntry};
use crate::clock::Clock;
use crate::died::DeadLetterListener;
use crate::error::{QueueError, Result};
use crate::group::{Group, sharing};
use crate::leftovers;
use crate::machine::{Machine, StreamMachine};
use crate::members::Members;
use crate::names::{check_name, dead_letter_name};
use crate::part::{Part, State};
use crate::queue::{Parts, Queue};
use crate::recover::recover;
use crate::settings::{GroupMode, GroupSettings, PROCESS_PARTITIONS_MAX, QueueSettings, Start};
use crate::store::Store;
use crate::times::micros;

/// Of all queues.
#[derive(Clone, Copy, Debug)]
pub struct QueuesOptions {
    /// Of queues that name none.
    pub durability: Durability,
    /// Queues that nobody declared are made when they are first used.
    pub auto_create: bool,
    /// What queues of durability `memory` keep together at most.
    pub memory_bytes: u64,
}

/// The queues of a process. Clones are the same.
#[derive(Clone)]
pub struct Queues {
    pub(crate) home: Arc<Home>,
}

pub(crate) struct Home {
    pub log: Arc<dyn Log>,
    clock: Arc<dyn Clock>,
    options: QueuesOptions,
    memory: Arc<Budget>,
    catalog: Catalog,
    queues: RwLock<BTreeMap<SmolStr, Arc<Queue>>>,
    /// Of queues and groups: one at a time.
    changes: Mutex<()>,
    pub listener: OnceLock<Arc<dyn DeadLetterListener>>,
}

impl Queues {
    /// Finds the queues of a log. Reads their state since its last checkpoints.
    pub async fn open(log: Arc<dyn Log>, clock: Arc<dyn Clock>, options: QueuesOptions) -> Result<Queues> {
        let catalog = Catalog::open(log.as_ref()).await?;
        let now = clock.now();
        leftovers::remove(&catalog, log.as_ref(), now).await?;
        leftovers::adopt(&catalog, log.as_ref(), now).await?;
        let entries = catalog.all().await;
        let home = Arc::new(Home {
            log,
            clock,
            memory: Budget::new(options.memory_bytes),
            options,
            catalog,
            queues: RwLock::default(),
            changes: Mutex::default(),
            listener: OnceLock::new(),
        });
        for (name, entry) in &entries {
            let queue = home.queue_of(name, entry);
            let dead = dead_letter_name(name).ok().flatten();
            let dead = dead.and_then(|dead| entries.binary_search_by_key(&&dead, |(name, _)| name).ok());
            let dead = dead.and_then(|at| entries.get(at));
            let dead = dead.map(|(_, dead)| PartitionId::new(dead.id, 0));
            if queue.keeps_ids() {
                home.make_ids(&queue, queue.partition_count()).await?;
            }
            for group in recover(&queue, entry, dead).await? {
                queue.add_group(Arc::new(group));
            }
            home.start(queue)?;
        }
        Ok(Queues { home })
    }

    /// In the order of their names.
    pub fn all(&self) -> Vec<Arc<Queue>> {
        self.home.queues.read().values().cloned().collect()
    }

    pub fn get(&self, name: &str) -> Result<Arc<Queue>> {
        self.home.get(name)
    }

    /// The queue, made with default settings if that is allowed and it is not there.
    pub async fn get_or_create(&self, name: &str) -> Result<Arc<Queue>> {
        match self.get(name) {
            Err(QueueError::QueueNotFound { .. }) if self.home.options.auto_create => {
                crate::names::check_user_change(name, crate::names::Change::Create)?;
                match self.create(name, QueueSettings::default()).await {
                    Err(QueueError::QueueExists { .. }) => self.get(name),
                    made => made,
                }
            }
            found => found,
        }
    }

    /// A new queue. Durable when this returns.
    pub async fn create(&self, name: &str, settings: QueueSettings) -> Result<Arc<Queue>> {
        let _changes = self.home.changes.lock().await;
        self.home.create(name, settings).await
    }

    /// Changes what may be changed. Durable when this returns.
    pub async fn configure(&self, name: &str, settings: QueueSettings) -> Result<()> {
        let _changes = self.home.changes.lock().await;
        let queue = self.get(name)?;
        self.home.check(name, &settings, queue.durability())?;
        let old = queue.settings();
        let may_become = || old.may_become(&settings, queue.depth(), queue.durability());
        may_become()?;
        settings
            .groups
            .iter()
            .try_for_each(|group| may_be_declared(&queue, group))?;
        let mut entry = queue.entry();
        entry.settings = settings.clone();
        if !settings.dedup_window.is_zero() {
            self.home.make_ids(&queue, settings.partitions).await?;
        }
        let grows = settings.partitions > queue.partition_count();
        if grows {
            let more = settings.partitions - queue.partition_count();
            self.home.count_partitions(more)?;
            self.home.make_partitions(&queue, settings.partitions).await?;
        }
        let mut still = None;
        if grows || old.becomes_stricter(&settings) {
            // Nobody may come between the look and the change: under an order a key moves only while the queue is empty, and
            // what was handed out without an order is in nobody's way. Partitions that were made then stay for the next try.
            still = Some(queue.still().await);
            may_become()?;
        }
        self.home
            .catalog
            .put(self.home.log.as_ref(), queue.name(), entry, self.home.clock.now())
            .await?;
        self.home.publish_partitions(&queue, settings.partitions)?;
        let kept_ids = queue.keeps_ids();
        queue.set_settings(settings.clone());
        drop(still);
        if kept_ids && !queue.keeps_ids() {
            queue.forget_ids();
        }
        self.home.declare_groups(&queue, &old.groups, &settings.groups).await
    }

    /// A queue goes with all that is in it; one that is not empty only by `force`. Durable when this returns.
    pub async fn remove(&self, name: &str, force: bool) -> Result<()> {
        let _changes = self.home.changes.lock().await;
        let queue = self.get(name)?;
        let kept = queue.kept();
        if kept > 0 && !force {
            return Err(QueueError::invalid(format!(
                "queue {name} holds {kept} messages that a group has yet to read or its retention keeps; let consumers \
                 finish, purge it, or delete it with force=true"
            )));
        }
        let home = &self.home;
        home.catalog
            .remove(home.log.as_ref(), queue.name(), home.clock.now())
            .await?;
        home.queues.write().remove(name);
        queue.removed.store(true, Ordering::Release);
        queue.keeper.call.notify_one();
        queue.grown();
        home.clear(queue.id).await;
        Ok(())
    }

    /// A group that is there, or a new one. Durable when this returns.
    pub async fn join_group(&self, queue: &Arc<Queue>, settings: GroupSettings) -> Result<Arc<Group>> {
        if let Some(group) = queue.known_group(&settings.name) {
            return same(queue, group, &settings);
        }
        let _changes = self.home.changes.lock().await;
        if let Some(group) = queue.known_group(&settings.name) {
            return same(queue, group, &settings);
        }
        self.home.add_group(queue, settings, false).await
    }

    /// A group that does not expire: a new one, or one that a consumer has made. Durable when this returns.
    pub async fn create_group(&self, queue: &Arc<Queue>, settings: GroupSettings) -> Result<Arc<Group>> {
        let _changes = self.home.changes.lock().await;
        let Some(group) = queue.known_group(&settings.name) else {
            return self.home.add_group(queue, settings, true).await;
        };
        if group.is_declared() {
            return Err(QueueError::GroupExists {
                queue: queue.name().clone(),
                group: settings.name,
            });
        }
        may_be_declared(queue, &settings)?;
        group.declared.store(true, Ordering::Relaxed);
        self.home.save(queue).await?;
        Ok(group)
    }

    /// A group goes with what it has settled and not settled. Durable when this returns.
    pub async fn remove_group(&self, queue: &Arc<Queue>, name: &str) -> Result<()> {
        let _changes = self.home.changes.lock().await;
        self.home.remove_group(queue, name).await
    }

    /// Keeps who is paused. Durable when this returns.
    pub async fn pause(&self, queue: &Arc<Queue>, what: Pause, paused: bool) -> Result<()> {
        let _changes = self.home.changes.lock().await;
        match &what {
            Pause::Produce => queue.paused.produce.store(paused, Ordering::Relaxed),
            Pause::Consume => queue.paused.consume.store(paused, Ordering::Relaxed),
            Pause::Both => {
                queue.paused.produce.store(paused, Ordering::Relaxed);
                queue.paused.consume.store(paused, Ordering::Relaxed);
            }
            Pause::Group(group) => group.paused.store(paused, Ordering::Relaxed),
        }
        queue.grown();
        self.home.save(queue).await
    }

    /// Writes the state of all groups as a whole, so that the next start reads little.
    pub async fn close(&self) {
        for queue in self.all() {
            let groups = queue.groups();
            for group in &groups {
                queue.keep_use(group).await;
            }
            queue.removed.store(true, Ordering::Release);
            queue.keeper.call.notify_one();
            queue.grown();
            if !queue.is_in_memory() {
                queue.checkpoint(&groups, |unsaved| unsaved.records > 0);
                let states: Vec<_> = (0..queue.partition_count())
                    .map(|partition| queue.state_id(partition))
                    .collect();
                if let Err(error) = self.home.log.flush(&states).await {
                    tracing::warn!(queue = %queue.name(), %error, "the state of groups is not stored");
                }
            }
        }
    }
}

/// What is paused.
#[derive(Clone)]
pub enum Pause {
    Produce,
    Consume,
    Both,
    Group(Arc<Group>),
}

pub(crate) fn no_group(queue: &Queue, name: &str) -> QueueError {
    QueueError::GroupNotFound {
        queue: queue.name().clone(),
        group: SmolStr::new(name),
    }
}

/// A name with another filter or mode is another group, which cannot have the name too.
fn same(queue: &Queue, group: Arc<Group>, settings: &GroupSettings) -> Result<Arc<Group>> {
    if group.settings.mode == settings.mode {
        return Ok(group);
    }
    Err(QueueError::invalid(format!(
        "group {} of queue {} has mode {}; delete it to make it {}",
        settings.name,
        queue.name(),
        group.settings.mode.name(),
        settings.mode.name()
    )))
}

/// Whether a group of that name, if there is one, is what is declared. Where it begins concerns new groups only.
fn may_be_declared(queue: &Queue, wanted: &GroupSettings) -> Result<()> {
    let Some(known) = queue.known_group(&wanted.name) else {
        return Ok(());
    };
    let known = &known.settings;
    if (known.mode, &known.filter) == (wanted.mode, &wanted.filter) {
        return Ok(());
    }
    let shown = |group: &GroupSettings| {
        let filter = group.filter.as_deref().unwrap_or("#");
        format!("mode {} and filter {filter}", group.mode.name())
    };
    Err(QueueError::invalid(format!(
        "group {} of queue {} has {}, which cannot become {}; delete the group first, or declare another name",
        wanted.name,
        queue.name(),
        shown(known),
        shown(wanted)
    )))
}

impl Home {
    pub fn get(&self, name: &str) -> Result<Arc<Queue>> {
        self.queues
            .read()
            .get(name)
            .cloned()
            .ok_or_else(|| QueueError::QueueNotFound {
                queue: SmolStr::new(name),
            })
    }

    fn queue_of(self: &Arc<Home>, name: &SmolStr, entry: &Entry) -> Arc<Queue> {
        let queue = Queue::new(Parts {
            id: entry.id,
            name: name.clone(),
            log: self.log.clone(),
            clock: self.clock.clone(),
            durability: entry.durability,
            settings: entry.settings.clone(),
            home: Arc::downgrade(self),
            memory: self.memory.clone(),
        });
        queue.paused.produce.store(entry.produce_paused, Ordering::Relaxed);
        queue.paused.consume.store(entry.consume_paused, Ordering::Relaxed);
        queue.next_group.store(entry.next_group, Ordering::Relaxed);
        (0..entry.settings.partitions).for_each(|partition| queue.add_store(queue.new_store(partition)));
        Arc::new(queue)
    }

    /// A queue takes part from now on.
    fn start(self: &Arc<Home>, queue: Arc<Queue>) -> Result<()> {
        queue.count_retained()?;
        for partition in 0..queue.partition_count() {
            self.listen(&queue, partition)?;
        }
        tokio::spawn(queue.clone().keep());
        // What was settled before the process ended may not have been let go.
        queue.trim_soon();
        self.queues.write().insert(queue.name().clone(), queue);
        Ok(())
    }

    /// Hears when a partition grows. Once for each: there is no way to stop listening.
    fn listen(&self, queue: &Arc<Queue>, partition: u32) -> Result<()> {
        if !queue.is_in_memory() {
            self.log.listen(queue.data_id(partition), queue.listener(partition))?;
        }
        Ok(())
    }

    /// Better an error than a setting that does nothing.
    fn check(&self, name: &str, settings: &QueueSettings, durability: Durability) -> Result<()> {
        settings.check_dead_letters(name)?;
        if let Some((key, why)) = settings.without_effect() {
            return Err(QueueError::invalid(format!("{key}: {why}")));
        }
        let (key, instead) = if settings.dlq.webhook.is_some() && self.listener.get().is_none() {
            ("dlq.webhook: not in this process", "calls nobody; ask for dead letters")
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

    async fn create(self: &Arc<Home>, name: &str, settings: QueueSettings) -> Result<Arc<Queue>> {
        self.check(name, &settings, self.durability_of(&settings))?;
        check_name(name).map_err(|error| QueueError::invalid(error.to_string()))?;
        if self.queues.read().contains_key(name) {
            return Err(QueueError::QueueExists {
                queue: SmolStr::new(name),
            });
        }
        self.count_partitions(settings.partitions)?;
        let name = SmolStr::new(name);
        let durability = self.durability_of(&settings);
        let entry = Entry {
            id: self.catalog.begin(self.log.as_ref(), self.clock.now()).await?,
            settings,
            durability,
            groups: Vec::new(),
            next_group: 1,
            produce_paused: false,
            consume_paused: false,
        };
        let queue = self.queue_of(&name, &entry);
        if let Err(error) = self.make(&queue, &entry).await {
            self.clear(entry.id).await;
            return Err(error);
        }
        self.start(queue.clone())?;
        for group in entry.settings.groups {
            self.add_group(&queue, group, true).await?;
        }
        Ok(queue)
    }

    /// Its partitions, and only then what is kept of it.
    async fn make(&self, queue: &Queue, entry: &Entry) -> Result<()> {
        for partition in 0..queue.partition_count() {
            self.make_partition(queue, partition).await?;
        }
        if queue.keeps_ids() {
            self.make_ids(queue, queue.partition_count()).await?;
        }
        let now = self.clock.now();
        self.catalog
            .put(self.log.as_ref(), queue.name(), entry.clone(), now)
            .await
    }

    /// Removes what is left under the number of a queue that is not there. What fails is done at the next start.
    async fn clear(&self, id: u32) {
        let cleared = leftovers::remove_one(&self.catalog, self.log.as_ref(), id, self.clock.now()).await;
        if let Err(error) = cleared {
            tracing::warn!(id, %error, "partitions of a queue that is gone are left; they go at the next start");
        }
    }

    /// Whether a process may have so many more, before any is made.
    fn count_partitions(&self, more: u32) -> Result<()> {
        let queues = self.queues.read();
        let all: u64 = queues.values().map(|queue| u64::from(queue.partition_count())).sum();
        if all + u64::from(more) <= PROCESS_PARTITIONS_MAX {
            return Ok(());
        }
        Err(QueueError::QuotaExceeded {
            what: "partitions of all queues together",
            limit: PROCESS_PARTITIONS_MAX,
        })
    }

    async fn make_partition(&self, queue: &Queue, partition: u32) -> Result<()> {
        if queue.is_in_memory() {
            return Ok(());
        }
        for id in [queue.data_id(partition), queue.state_id(partition)] {
            self.make_one(queue, id).await?;
        }
        Ok(())
    }

    /// Where dedup-ids are kept.
    async fn make_ids(&self, queue: &Queue, partitions: u32) -> Result<()> {
        if !queue.is_in_memory() {
            for partition in 0..partitions {
                self.make_one(queue, queue.ids_id(partition)).await?;
            }
        }
        Ok(())
    }

    async fn make_one(&self, queue: &Queue, id: PartitionId) -> Result<()> {
        match self.log.create(id, queue.durability()).await {
            // By an attempt that failed half-way or was refused, or before a dedup window ended: a number is never used again.
            Ok(()) | Err(LogError::PartitionExists(_)) => Ok(()),
            Err(LogError::DurabilityUnavailable { offered, .. }) => Err(QueueError::DurabilityUnavailable {
                queue: queue.name().clone(),
                durability: queue.durability(),
                cause: format!("the log offers {offered}").into(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    /// Of the log; nobody uses them yet.
    async fn make_partitions(&self, queue: &Queue, count: u32) -> Result<()> {
        for partition in queue.partition_count()..count {
            self.make_partition(queue, partition).await?;
        }
        Ok(())
    }

    /// They are the queue's from now on.
    fn publish_partitions(&self, queue: &Arc<Queue>, count: u32) -> Result<()> {
        for partition in queue.partition_count()..count {
            let store = queue.new_store(partition);
            let start = store.first().unwrap_or_default();
            for group in queue.groups() {
                group.add_part(Part::new(new_state(queue, &group.settings, partition, start)));
                group.members.lock().set_partitions(self.clock.now(), partition + 1);
            }
            queue.add_store(store);
            self.listen(queue, partition)?;
        }
        Ok(())
    }

    /// Groups of the list are declared, whoever made them; those that have left it are not any more, and may expire.
    async fn declare_groups(
        self: &Arc<Home>,
        queue: &Arc<Queue>,
        old: &[GroupSettings],
        new: &[GroupSettings],
    ) -> Result<()> {
        let mut changed = false;
        for group in new {
            match queue.known_group(&group.name) {
                Some(known) => changed |= !known.declared.swap(true, Ordering::Relaxed),
                None => drop(self.add_group(queue, group.clone(), true).await?),
            }
        }
        let left = |group: &&GroupSettings| !new.iter().any(|other| other.name == group.name);
        for group in old
            .iter()
            .filter(left)
            .filter_map(|group| queue.known_group(&group.name))
        {
            changed |= group.declared.swap(false, Ordering::Relaxed);
            // Its time begins now.
            group.members.lock().restore_empty(self.clock.now());
        }
        if changed {
            self.save(queue).await?;
            queue.look_at(self.clock.now());
        }
        Ok(())
    }

    /// A new group of a queue.
    async fn add_group(
        self: &Arc<Home>,
        queue: &Arc<Queue>,
        settings: GroupSettings,
        declared: bool,
    ) -> Result<Arc<Group>> {
        check_name(&settings.name).map_err(|error| QueueError::invalid(error.to_string()))?;
        let id = queue.next_group.fetch_add(1, Ordering::Relaxed);
        // So its backlog is exact: everything is there, and nothing is on its way.
        let still = queue.still().await;
        let stores = queue.stores();
        let mut parts = Vec::with_capacity(stores.len());
        let mut backlog = 0;
        for (partition, store) in (0..).zip(&stores) {
            let start = start_of(store, settings.start, settings.mode)?;
            let mut state = new_state(queue, &settings, partition, start);
            if let State::Stream(machine) = &mut state {
                machine.begins_at(store.first()?);
            }
            let part = Part::new(state);
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
        let total = queue.admission.lock().total.clone();
        let group = Arc::new(Group::new(id, settings, declared, members, parts, (total, backlog)));
        queue.add_group(group.clone());
        drop(still);
        // Where it begins is kept, so that a restart does not begin somewhere else.
        if !queue.is_in_memory() {
            queue.checkpoint(&queue.groups(), |_| true);
        }
        self.save(queue).await?;
        Ok(group)
    }

    async fn remove_group(&self, queue: &Arc<Queue>, name: &str) -> Result<()> {
        let Some(group) = queue.remove_group(name) else {
            return Err(no_group(queue, name));
        };
        // What is not there is not declared either: whoever declares it anew gets it anew.
        let mut settings = (*queue.settings()).clone();
        if settings.groups.iter().any(|group| group.name == name) {
            settings.groups.retain(|group| group.name != name);
            queue.set_settings(settings);
        }
        self.save(queue).await?;
        group.wake();
        queue.settled(&group);
        Ok(())
    }

    /// A group that nobody has declared goes when it has had no member for long enough.
    pub async fn expire_group(&self, queue: &Arc<Queue>, group: &Group) -> Result<()> {
        let _changes = self.changes.lock().await;
        // Somebody may have come meanwhile; then it stays.
        match queue.expires_at(group) {
            Some(at) if at <= self.clock.now() => self.remove_group(queue, group.name()).await,
            _ => Ok(()),
        }
    }

    /// Keeps that a group which may expire has members, or since when it has none, if that is not what is kept.
    async fn keep_use(&self, queue: &Queue, group: &Group) -> Result<()> {
        let _changes = self.changes.lock().await;
        let to_keep = group.members.lock().to_keep();
        // What is kept of a queue that is gone would bring it back.
        if let Some(since) = to_keep.filter(|_| !queue.removed.load(Ordering::Acquire)) {
            self.save(queue).await?;
            group.members.lock().is_kept(since);
        }
        Ok(())
    }

    /// Keeps what there is to say of a queue.
    async fn save(&self, queue: &Queue) -> Result<()> {
        self.catalog
            .put(self.log.as_ref(), queue.name(), queue.entry(), self.clock.now())
            .await
    }

    /// The dead letters of a queue, made when they are first needed.
    pub async fn dead_letters_of(self: &Arc<Home>, queue: &Queue) -> Result<Option<Arc<Queue>>> {
        let name = dead_letter_name(queue.name()).map_err(|error| QueueError::invalid(error.to_string()))?;
        let Some(name) = name else {
            return Ok(None);
        };
        if let Ok(found) = self.get(&name) {
            return Ok(Some(found));
        }
        let _changes = self.changes.lock().await;
        if let Ok(found) = self.get(&name) {
            return Ok(Some(found));
        }
        let mut settings = QueueSettings::of_dead_letters(&queue.settings());
        settings.durability = Some(queue.durability());
        self.create(&name, settings).await.map(Some)
    }
}

/// Where a group begins to read a partition.
fn start_of(store: &Store, start: Start, mode: GroupMode) -> Result<u64> {
    let (first, next) = (store.first()?, store.next()?);
    let at = match start {
        Start::Earliest => first,
        Start::Latest => next,
        Start::Offset(offset) => offset,
        Start::Time(time) => store.offset_at(time)?,
    };
    // Work groups have no gaps to tell of.
    Ok(match mode {
        GroupMode::Work => at.clamp(first, next),
        GroupMode::Stream => at.min(next),
    })
}

pub(crate) fn new_state(queue: &Queue, group: &GroupSettings, partition: u32, start: u64) -> State {
    let settings = queue.settings();
    match group.mode {
        GroupMode::Stream => State::Stream(Box::new(StreamMachine::new(start, settings.max_pending))),
        GroupMode::Work => {
            let machine = Machine::new(queue.policy(partition), start);
            let machine = if queue.is_in_memory() {
                machine.without_journal()
            } else {
                machine
            };
            State::Work(Box::new(machine))
        }
    }
}

impl Queue {
    pub(crate) fn entry(&self) -> Entry {
        let groups = self.groups_now();
        Entry {
            id: self.id,
            settings: (*self.settings()).clone(),
            durability: self.durability(),
            groups: groups
                .iter()
                .map(|group| GroupEntry {
                    id: group.id,
                    settings: group.settings.clone(),
                    declared: group.is_declared(),
                    paused: group.is_paused(),
                    unused_since: group.members.lock().empty_since().filter(|_| !group.is_declared()),
                })
                .collect(),
            next_group: self.next_group.load(Ordering::Relaxed),
            produce_paused: self.paused.produce.load(Ordering::Relaxed),
            consume_paused: self.paused.consume.load(Ordering::Relaxed),
        }
    }

    /// When a group goes that nobody has declared, if nobody joins it before.
    pub(crate) fn expires_at(&self, group: &Group) -> Option<Micros> {
        if self.expires_never(group) {
            return None;
        }
        let after = self.settings_now().group_expiry;
        let since = group.members.lock().empty_since()?;
        Some(since.saturating_add(micros(after)))
    }

    /// The first member of a group that may expire has come, or the last one has gone: a restart must know. Most looks find
    /// nothing to keep.
    pub(crate) async fn keep_use(&self, group: &Group) {
        if self.expires_never(group) || group.members.lock().to_keep().is_none() {
            return;
        }
        let Some(home) = Weak::upgrade(&self.home) else { return };
        if let Err(error) = home.keep_use(self, group).await {
            tracing::warn!(queue = %self.name(), group = %group.name(), %error, "since when a group is not used is not kept");
        }
    }

    fn expires_never(&self, group: &Group) -> bool {
        group.is_declared() || self.settings_now().group_expiry.is_zero()
    }

    pub(crate) async fn expire(self: &Arc<Queue>, group: &Group) -> Result<()> {
        match Weak::upgrade(&self.home) {
            Some(home) => home.expire_group(self, group).await,
            None => Ok(()),
        }
    }

    /// Another queue of the same set.
    pub(crate) fn neighbour(&self, name: &str) -> Result<Arc<Queue>> {
        let home = Weak::upgrade(&self.home);
        home.and_then(|home| home.get(name).ok())
            .ok_or_else(|| QueueError::QueueNotFound {
                queue: SmolStr::new(name),
            })
    }

    /// The dead letters, if there have been any.
    pub(crate) fn known_dead_letters(&self) -> Option<Arc<Queue>> {
        let name = dead_letter_name(self.name()).ok().flatten()?;
        Weak::upgrade(&self.home)?.get(&name).ok()
    }

    pub(crate) async fn dead_letters(self: &Arc<Queue>) -> Result<Option<Arc<Queue>>> {
        match Weak::upgrade(&self.home) {
            Some(home) => home.dead_letters_of(self).await,
            None => Ok(None),
        }
    }
}
