//! One queue: its partitions, groups and settings, and how these affect each other.
//!
//! Data that every call reads needs no lock: partitions are only added, and settings and groups are replaced as a
//! whole. Producers read both under the lock under which the limits are checked (`admission.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smol_str::SmolStr;
use thalweg_log::clock::Clock;
use thalweg_log::{Durability, Log, Micros, Offset, PartitionId, PartitionListener};

use crate::admission::AdmissionGate;
use crate::alarm::Alarm;
use crate::budget::{self, Budget};
use crate::claim::{ClaimDefaults, Delivery};
use crate::compaction::KeyCompaction;
use crate::dead_letters::{LetterRemovals, ReceivedLetters};
use crate::dedup::SharedDedup;
use crate::delayed_messages::WallClockFollower;
use crate::epoch::Epoch;
use crate::error::Result;
use crate::expiry::MessageExpiry;
use crate::group::{Group, sharing};
use crate::group_list::GroupList;
use crate::group_partition::GroupState;
use crate::identity::QueueIdentity;
use crate::ids::Receipt;
use crate::machine::{self, Backoff, DeliveryPolicy};
use crate::maintenance::MaintenanceSchedule;
use crate::message_times::micros;
use crate::pause::PauseFlags;
use crate::produce::PartitionTurn;
use crate::queues::QueueRegistry;
use crate::retention::TrimLock;
use crate::settings::{self, QueueSettings};
use crate::stats::QueueStatistics;
use crate::store::{MemoryStore, MessageStore};

/// Unsettled messages per partition and group that may be outside the window.
const MAX_HELD: u32 = 1_000_000;
/// Messages with a longer delay are read again when their time comes.
const SLEEP_AFTER: Micros = 60_000_000;

/// One queue. Each part owns its state. What needs several parts is a method of the queue, in the file of the main one.
pub struct Queue {
    pub(crate) identity: QueueIdentity,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    settings: ArcSwap<QueueSettings>,
    /// The epoch of leases until a seek; see `machine/epoch.rs`.
    pub(crate) epoch: Arc<Epoch>,
    /// The registry that it belongs to.
    home: Weak<QueueRegistry>,
    removed: AtomicBool,
    pub(crate) paused: PauseFlags,
    /// The messages, by partition.
    stores: boxcar::Vec<Arc<MessageStore>>,
    pub(crate) groups: GroupList,
    pub(crate) admission: AdmissionGate,
    pub(crate) turn: PartitionTurn,
    pub(crate) dedup: SharedDedup,
    pub(crate) claims: ClaimDefaults,
    pub(crate) expiry: MessageExpiry,
    pub(crate) wall_clock: WallClockFollower,
    pub(crate) trimming: TrimLock,
    pub(crate) compaction: KeyCompaction,
    pub(crate) letters: LetterRemovals,
    /// Dead letters of other queues that were sent here.
    pub(crate) sent_here: Mutex<ReceivedLetters>,
    pub(crate) timers: Alarm,
    pub(crate) maintenance: MaintenanceSchedule,
    pub(crate) statistics: QueueStatistics,
}

pub(crate) struct QueueParts {
    pub identity: QueueIdentity,
    pub epoch: Arc<Epoch>,
    pub log: Arc<dyn Log>,
    pub clock: Arc<dyn Clock>,
    pub settings: QueueSettings,
    /// The number of the next group.
    pub next_group: u32,
    /// Whether the catalogue has stored that messages may expire early.
    pub expires_early: bool,
    pub paused: PauseFlags,
    pub home: Weak<QueueRegistry>,
    /// Budget for the messages of a queue in memory.
    pub memory: Arc<Budget>,
    /// Budget for dedup-ids.
    pub dedup: Arc<Budget>,
}

impl Queue {
    pub(crate) fn new(parts: QueueParts) -> Queue {
        let dedup = SharedDedup::new(parts.settings.dedup_window, parts.dedup);
        let maintenance = MaintenanceSchedule::new(parts.clock.clone());
        let letters = LetterRemovals::of(&parts.identity.name);
        let settings = Arc::new(parts.settings);
        let memory = parts
            .identity
            .is_in_memory()
            .then(|| budget::Allowance::of(parts.memory));
        Queue {
            identity: parts.identity,
            log: parts.log,
            clock: parts.clock,
            claims: ClaimDefaults::of(&settings),
            settings: ArcSwap::new(settings.clone()),
            epoch: parts.epoch,
            home: parts.home,
            removed: AtomicBool::new(false),
            paused: parts.paused,
            stores: boxcar::Vec::new(),
            groups: GroupList::new(parts.next_group),
            admission: AdmissionGate::new(settings, memory),
            turn: PartitionTurn::default(),
            dedup,
            expiry: MessageExpiry::new(parts.expires_early),
            wall_clock: WallClockFollower::new(),
            trimming: TrimLock::default(),
            compaction: KeyCompaction::default(),
            letters,
            sent_here: Mutex::default(),
            timers: Alarm::default(),
            maintenance,
            statistics: QueueStatistics::default(),
        }
    }

    pub fn name(&self) -> &SmolStr {
        &self.identity.name
    }

    pub fn durability(&self) -> Durability {
        self.identity.durability
    }

    pub fn settings(&self) -> Arc<QueueSettings> {
        self.settings.load_full()
    }

    /// Like `settings`, for short use.
    pub(crate) fn settings_now(&self) -> arc_swap::Guard<Arc<QueueSettings>> {
        self.settings.load()
    }

    pub fn partition_count(&self) -> u32 {
        self.stores.count() as u32
    }

    pub(crate) fn store(&self, partition: u32) -> Option<&Arc<MessageStore>> {
        self.stores.get(partition as usize)
    }

    /// By partition.
    pub(crate) fn stores(&self) -> Vec<Arc<MessageStore>> {
        self.stores.iter().map(|(_, store)| store.clone()).collect()
    }

    /// Adds one partition. One caller at a time.
    pub(crate) fn add_store(&self, store: MessageStore) {
        self.expiry.add_partition();
        self.stores.push(Arc::new(store));
    }

    /// The receipt with which the consumer settles a delivery.
    pub fn receipt(&self, delivery: &Delivery) -> Receipt {
        Receipt {
            id: self.identity.message_id(delivery.partition, delivery.message.offset),
            delivery: delivery.delivery,
            tag: Some(delivery.tag),
        }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.identity.is_in_memory()
    }

    /// The log partitions of the messages, for direct readers; empty for a queue in memory.
    pub fn data_ids(&self) -> Vec<PartitionId> {
        match self.is_in_memory() {
            true => Vec::new(),
            false => (0..self.partition_count())
                .map(|partition| self.identity.data_id(partition))
                .collect(),
        }
    }

    /// Creates the message store of a partition.
    pub(crate) fn new_store(&self, partition: u32) -> MessageStore {
        if self.is_in_memory() {
            // Offsets continue above those of earlier processes, so that old message ids name no new message. They are
            // exact in JSON, where numbers are doubles.
            return MessageStore::Memory(MemoryStore::starting_at(
                self.clock.now().max(0) as Offset,
                self.clock.clone(),
            ));
        }
        MessageStore::Log {
            log: self.log.clone(),
            id: self.identity.data_id(partition),
            clock: self.clock.clone(),
        }
    }

    /// The clock of message times, which also converts them to the wall clock.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }

    /// Whether the queue is removed. Its tasks end with the process; nothing else accepts work from now on.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    /// Like `is_removed`, for the queue's tasks and for changes: what happened before the end is visible to the caller.
    pub(crate) fn has_ended(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// The registry that it belongs to, as long as the process uses it.
    pub(crate) fn registry(&self) -> Option<Arc<QueueRegistry>> {
        self.home.upgrade()
    }

    /// Ends the queue because it is removed or the process stops: its tasks end, and waiting calls return.
    pub(crate) fn end(&self) {
        self.removed.store(true, Ordering::Release);
        self.timers.end();
        self.maintenance.end();
        self.admission.close();
        self.groups.wake();
    }

    pub(crate) fn listener(self: &Arc<Queue>, partition: u32) -> Arc<dyn PartitionListener> {
        Arc::new(GrowthListener {
            queue: Arc::downgrade(self),
            partition,
        })
    }

    /// Wakes the next waiting claim if the partition has a message that some consumer may take now.
    pub(crate) fn call_if_more(&self, group: &Group, partition: u32) {
        if group.waiting.is_empty() {
            return;
        }
        let (Some(store), Some(part)) = (self.store(partition), group.part(partition)) else {
            return;
        };
        let next = store.next_hint().map_or_else(|| store.next(), Ok);
        if next.is_ok_and(|next| !part.is_idle(next, self.clock.now())) {
            group.waiting.call_for(partition);
        }
    }

    /// The policy of its work groups' machines.
    pub(crate) fn policy(&self, partition: u32) -> DeliveryPolicy {
        let settings = self.settings.load();
        let retry = &settings.retry;
        DeliveryPolicy {
            ordering: match settings.ordering {
                settings::QueueOrdering::None => machine::LaneOrdering::None,
                settings::QueueOrdering::Partition => machine::LaneOrdering::Partition,
                settings::QueueOrdering::Strict => machine::LaneOrdering::Strict,
            },
            lane_window: u16::try_from(settings.lane_window).unwrap_or(u16::MAX),
            max_pending: settings.max_pending,
            max_held: MAX_HELD,
            max_retries: retry.max_retries,
            backoff: Backoff {
                initial: micros(retry.initial_backoff),
                max: micros(retry.max_backoff),
                multiplier: retry.multiplier,
                jitter: retry.jitter,
                seed: u64::from(self.identity.id) << 32 | u64::from(partition),
            },
            total_timeout: micros(retry.total_timeout),
            sleep_after: SLEEP_AFTER,
        }
    }

    /// Applies new settings.
    pub(crate) fn set_settings(&self, settings: QueueSettings) {
        self.dedup.set_window(settings.dedup_window);
        let now = self.clock.now();
        let settings = Arc::new(settings);
        {
            let mut admission = self.admission.lock();
            admission.set_settings(settings.clone());
            self.settings.store(settings.clone());
        }
        self.claims.set(&settings);
        for group in self.groups.now().iter() {
            let mut members = group.members.lock();
            members.set_sharing(sharing(&settings, group.settings.mode));
            members.set_consumer_timeout(now, settings.consumer_timeout);
            drop(members);
            for (partition, part) in group.parts() {
                let mut inner = part.inner.lock();
                match &mut inner.state {
                    GroupState::Work(machine) => machine.set_policy(self.policy(partition)),
                    GroupState::Stream(machine) => machine.set_max_pending(settings.max_pending),
                }
                // A wider window may allow waking messages that are due already.
                part.note_due(&inner);
            }
            group.wake();
        }
        self.admission.has_changed();
        // Groups may expire earlier, and messages may have expired.
        self.look_for_old_now();
        self.timers.wake_by(0);
    }

    /// Counts the messages that are already stored. Blocks.
    pub(crate) fn count_retained(&self) -> Result<()> {
        let (mut retained, mut bytes) = (0, 0);
        for (_, store) in self.stores.iter() {
            retained += store.next()? - store.first()?;
            bytes += store.bytes()?;
        }
        let mut admission = self.admission.lock();
        admission.found(retained, bytes);
        if let Some(mut dropped) = self.letters.lock()
            && let Some(store) = self.store(0)
        {
            dropped.trim(store.first()?);
            admission.retained_less(dropped.len());
        }
        Ok(())
    }
}

/// Called when messages are stored in one partition. The log owns it and the queue owns the log, so it must not own the
/// queue.
struct GrowthListener {
    queue: Weak<Queue>,
    partition: u32,
}

impl PartitionListener for GrowthListener {
    fn grown(&self, _next: Offset) {
        if let Some(queue) = self.queue.upgrade() {
            queue.groups.call_for(self.partition);
        }
    }
}
