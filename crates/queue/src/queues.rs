//! All queues of a process, on one log: opened at start, created, changed and removed.

mod change_locks;
mod registry;
mod registry_access;
mod start;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use smol_str::SmolStr;
use thalweg_log::clock::Clock;
use thalweg_log::{Durability, Log};

use crate::budget::Budget;
use crate::catalog::Catalog;
use crate::epoch::Epoch;
use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::produce::DetachedFuture;
use crate::queue::Queue;
use crate::reconcile;
use crate::settings::{GroupSettings, QueueSettings};
use change_locks::ChangeLocks;
pub(crate) use registry::{QueueRegistry, new_state};
use start::finish_when_there_is_room;

/// Options for all queues.
#[derive(Clone, Copy, Debug)]
pub struct QueuesOptions {
    /// Default durability.
    pub durability: Durability,
    /// Queues that were not declared are created on first use.
    pub auto_create: bool,
    /// Memory limit for all queues of durability `memory` together.
    pub memory_bytes: u64,
    /// Memory limit for all dedup-ids, beside a small minimum per queue.
    pub dedup_bytes: u64,
    /// Memory limit for the state of leased, waiting and delayed messages, beside a small minimum per partition.
    pub state_bytes: u64,
}

/// The queues of a process; clones share state. A change that was started runs to its end even if the caller stops
/// waiting, so it is applied completely or not at all.
#[derive(Clone)]
pub struct Queues {
    pub(crate) home: Arc<QueueRegistry>,
}

impl Queues {
    /// Opens the queues of a log. Reads their state since the last checkpoints.
    pub async fn open(log: Arc<dyn Log>, clock: Arc<dyn Clock>, options: QueuesOptions) -> Result<Queues> {
        let catalog = Catalog::open(log.as_ref()).await?;
        let now = clock.now();
        let has_lost = catalog.lost() > 0;
        if has_lost {
            tracing::error!(
                records = catalog.lost(),
                "the catalogue of queues has lost records to damage; no queue is removed because of it: queues whose \
                 entry is lost are recovered as found-<number>, and a setting, a pause or a deletion may be reverted"
            );
        }
        let left = reconcile::settle(&catalog, log.as_ref(), now).await?;
        let epoch = Arc::new(Epoch::new(catalog.next_epoch(now).await));
        let home = Arc::new(QueueRegistry {
            log,
            clock,
            memory: Budget::new(options.memory_bytes),
            dedup: Budget::new(options.dedup_bytes),
            state: Budget::new(options.state_bytes),
            options,
            catalog,
            epoch,
            queues: RwLock::default(),
            set_aside: RwLock::default(),
            closing: AtomicBool::new(false),
            changes: ChangeLocks::default(),
            listener: OnceLock::new(),
        });
        if let Err(error) = home.store_epoch().await {
            tracing::warn!(%error, "claims are not possible yet; messages can be read, purged and deleted");
        }
        let is_whole = home.open_all_but(left).await?;
        if has_lost {
            // The checkpoint contains everything found, so the next start need not search again.
            home.catalog.write_whole(home.log.as_ref(), now).await;
        }
        if !is_whole {
            tokio::spawn(finish_when_there_is_room(Arc::downgrade(&home)));
        }
        Ok(Queues { home })
    }

    /// Sorted by name.
    pub fn all(&self) -> Vec<Arc<Queue>> {
        self.home.queues.read().values().cloned().collect()
    }

    pub fn get(&self, name: &str) -> Result<Arc<Queue>> {
        self.home.get(name)
    }

    /// Returns the queue. Creates it with default settings if it is missing and that is allowed.
    pub async fn get_or_create(&self, name: &str) -> Result<Arc<Queue>> {
        match self.get(name) {
            Err(QueueError::QueueNotFound { .. }) if self.home.options.auto_create => {
                crate::names::check_user_change(name, crate::names::QueueChange::Create)?;
                match self.create(name, QueueSettings::default()).await {
                    Err(QueueError::QueueExists { .. }) => self.get(name),
                    made => made,
                }
            }
            found => found,
        }
    }

    /// Creates a queue. The change is durable on return.
    pub async fn create(&self, name: &str, settings: QueueSettings) -> Result<Arc<Queue>> {
        let (home, name) = (self.home.clone(), SmolStr::new(name));
        DetachedFuture::new(async move {
            let _changes = home.changes.of(&name).await;
            home.create(&name, settings).await
        })
        .await
    }

    /// Applies the settings that may be changed. The change is durable on return.
    pub async fn configure(&self, name: &str, settings: QueueSettings) -> Result<()> {
        let (queues, name) = (self.clone(), SmolStr::new(name));
        DetachedFuture::new(async move { queues.configure_now(&name, settings).await }).await
    }

    async fn configure_now(&self, name: &str, settings: QueueSettings) -> Result<()> {
        let _changes = self.home.changes.of(name).await;
        let queue = self.get(name)?;
        self.home.check(name, &settings, queue.durability())?;
        let old = queue.settings();
        let may_become = || old.may_become(&settings, queue.depth(), queue.durability());
        may_become()?;
        settings
            .groups
            .iter()
            .try_for_each(|group| may_be_declared(&queue, group))?;
        let (mut partitions_room, mut groups_room) = self.home.room_for_change(&queue, &settings)?;
        let mut entry = queue.entry();
        entry.settings = settings.clone();
        if !settings.dedup_window.is_zero() {
            self.home.make_ids(&queue, settings.partitions).await?;
        }
        let grows = settings.partitions > queue.partition_count();
        let more = settings.partitions.saturating_sub(queue.partition_count());
        let _counted = self.home.count_partitions(more)?;
        if grows {
            self.home.make_partitions(&queue, settings.partitions).await?;
        }
        let mut still = None;
        if grows || old.becomes_stricter(&settings) {
            // Nothing may come between the check and the change. Under an order, a key may move to another partition
            // only while the queue is empty, and leases from before the order must not interfere. Partitions created in
            // a failed attempt stay for the next one.
            still = Some(queue.admission.still().await);
            may_become()?;
        }
        // A shorter retention, or a smaller limit, frees space.
        self.home
            .catalog
            .put_freeing(self.home.log.as_ref(), queue.name(), entry, self.home.clock.now())
            .await?;
        self.home
            .publish_partitions(&queue, settings.partitions, &mut partitions_room)?;
        let kept_ids = queue.keeps_ids();
        queue.set_settings(settings.clone());
        drop(still);
        if kept_ids && !queue.keeps_ids() {
            queue.forget_ids();
        }
        self.home
            .declare_groups(&queue, &old.groups, &settings.groups, &mut groups_room)
            .await
    }

    /// Removes a queue with all its messages. `force` is required if it is not empty. The change is durable on return.
    pub async fn remove(&self, name: &str, force: bool) -> Result<()> {
        let (queues, name) = (self.clone(), SmolStr::new(name));
        DetachedFuture::new(async move { queues.remove_now(&name, force).await }).await
    }

    async fn remove_now(&self, name: &str, force: bool) -> Result<()> {
        let _changes = self.home.changes.of(name).await;
        if force && self.home.remove_set_aside(name).await? {
            return Ok(());
        }
        let queue = self.get(name)?;
        let kept = queue.kept();
        if kept > 0 && !force {
            return Err(QueueError::invalid(format!(
                "queue {name} holds {kept} messages that a group has yet to read or its retention keeps; let consumers \
                 finish, purge it, or delete it with force=true"
            )));
        }
        self.home.remove(&queue).await
    }

    /// Returns an existing group, or creates one. The change is durable on return.
    pub async fn join_group(&self, queue: &Arc<Queue>, settings: GroupSettings) -> Result<Arc<Group>> {
        if let Some(group) = queue.groups.find(&settings.name) {
            return same(queue, group, &settings);
        }
        let (home, queue) = (self.home.clone(), queue.clone());
        DetachedFuture::new(async move {
            let _changes = home.changes.of(queue.name()).await;
            if let Some(group) = queue.groups.find(&settings.name) {
                return same(&queue, group, &settings);
            }
            home.add_group(&queue, settings, false).await
        })
        .await
    }

    /// Creates a group that does not expire, or declares one that a consumer created. The change is durable on return.
    pub async fn create_group(&self, queue: &Arc<Queue>, settings: GroupSettings) -> Result<Arc<Group>> {
        let (queues, queue) = (self.clone(), queue.clone());
        DetachedFuture::new(async move { queues.create_group_now(&queue, settings).await }).await
    }

    async fn create_group_now(&self, queue: &Arc<Queue>, settings: GroupSettings) -> Result<Arc<Group>> {
        let _changes = self.home.changes.of(queue.name()).await;
        let Some(group) = queue.groups.find(&settings.name) else {
            return self.home.add_group(queue, settings, true).await;
        };
        if group.is_declared() {
            return Err(QueueError::GroupExists {
                queue: queue.name().clone(),
                group: settings.name,
            });
        }
        may_be_declared(queue, &settings)?;
        let mut entry = queue.entry();
        entry.groups_of(group.id).for_each(|group| group.declared = true);
        self.home.save_as(queue, entry).await?;
        group.declared.store(true, Ordering::Relaxed);
        queue.admission.has_changed();
        Ok(group)
    }

    /// Removes a group with its state. The change is durable on return.
    pub async fn remove_group(&self, queue: &Arc<Queue>, name: &str) -> Result<()> {
        let (home, queue, name) = (self.home.clone(), queue.clone(), SmolStr::new(name));
        DetachedFuture::new(async move {
            let _changes = home.changes.of(queue.name()).await;
            home.remove_group(&queue, &name).await
        })
        .await
    }

    /// Pauses or resumes producers, consumers or a group. The change is durable on return.
    pub async fn pause(&self, queue: &Arc<Queue>, what: Pause, paused: bool) -> Result<()> {
        let (home, queue) = (self.home.clone(), queue.clone());
        DetachedFuture::new(async move {
            let _changes = home.changes.of(queue.name()).await;
            let mut entry = queue.entry();
            let (produce, consume) = match &what {
                Pause::Produce => (true, false),
                Pause::Consume => (false, true),
                Pause::Both => (true, true),
                Pause::Group(group) => {
                    entry.groups_of(group.id).for_each(|group| group.paused = paused);
                    (false, false)
                }
            };
            if produce && paused && queue.letters.has_letters() {
                let why = "dead letters must still arrive, or dead messages could not leave their queue; pause \
                           produce on the source queue, or only consume here";
                return Err(QueueError::invalid(format!("produce: {why}")));
            }
            if produce {
                entry.produce_paused = paused;
            }
            if consume {
                entry.consume_paused = paused;
            }
            // Stored first, so that a refused change has no effect.
            let (produce, consume) = (entry.produce_paused, entry.consume_paused);
            home.save_as(&queue, entry).await?;
            queue.paused.set(produce, consume);
            if let Pause::Group(group) = &what {
                group.paused.store(paused, Ordering::Relaxed);
            }
            queue.groups.wake();
            Ok(())
        })
        .await
    }

    /// The wall clock was set: delays that refer to it are recomputed. Returns before that is done.
    pub fn clock_was_set(&self) {
        self.all().iter().for_each(|queue| queue.maintenance.wake_by(0));
    }

    /// Writes checkpoints of all groups, so that the next start reads little.
    pub async fn close(&self) {
        self.home.closing.store(true, Ordering::Release);
        for queue in self.all() {
            for group in &queue.groups() {
                queue.keep_use(group).await;
            }
            queue.end();
            if !queue.is_in_memory() {
                queue.checkpoint(|unsaved| unsaved.records > 0);
                let states = queue.identity.state_ids(0..queue.partition_count());
                if let Err(error) = self.home.log.flush(&states).await {
                    tracing::warn!(queue = %queue.name(), %error, "the state of groups cannot be stored");
                }
            }
        }
    }
}

/// What to pause.
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

/// The same name with another mode is another group, which cannot have the name too.
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

/// Whether an existing group of this name matches the declaration. Where a group begins matters only for new groups.
fn may_be_declared(queue: &Queue, wanted: &GroupSettings) -> Result<()> {
    let Some(known) = queue.groups.find(&wanted.name) else {
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
