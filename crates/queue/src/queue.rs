//! One queue: its partitions, its groups, and what a producer does with it.
//!
//! What is appended is counted before, under one lock, against the limits of depth and bytes; so these hold however many
//! produce at the same time. What a group settles makes room again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use smol_str::SmolStr;
use thalweg_log::format::frame::Kind;
use thalweg_log::{Durability, Listener, Log, Micros, Offset, PartitionId, Records, Unit};
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::dedup::{Dedup, Place, Seen, Ticket};
use crate::error::{QueueError, Result};
use crate::group::{Group, sharing};
use crate::hash::partition_of;
use crate::ids::{MessageId, Receipt};
use crate::machine::{self, Backoff, Policy};
use crate::message::NewMessage;
use crate::part::State;
use crate::produce::{Answer, message_of, record_of, with_dedup_id};
use crate::queues::{Home, no_group};
use crate::ranges::Ranges;
use crate::settings::{self, Overflow, QueueSettings};
use crate::store::{MemoryStore, Store};
use crate::times::micros;

/// Marks the partition in which the state of the groups of another is kept.
const STATE: u32 = 1 << 31;
/// Messages of a partition and group that may be older than the window.
const MAX_HELD: u32 = 1_000_000;

pub struct Queue {
    pub(crate) id: u32,
    name: SmolStr,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) clock: Arc<dyn Clock>,
    durability: Durability,
    pub(crate) settings: RwLock<Arc<QueueSettings>>,
    pub(crate) partitions: RwLock<Vec<Arc<Store>>>,
    pub(crate) groups: RwLock<BTreeMap<SmolStr, Arc<Group>>>,
    /// The number of the next group.
    pub(crate) next_group: AtomicU32,
    pub(crate) admission: Mutex<Admission>,
    dedup: Mutex<Dedup>,
    /// Producers that wait for room.
    room: Notify,
    turn: AtomicUsize,
    pub(crate) paused: Paused,
    pub(crate) counters: Counters,
    pub(crate) keeper: Keeper,
    /// Dead letters that are gone from the middle.
    pub(crate) dropped: Mutex<Ranges>,
    pub(crate) removed: AtomicBool,
    /// The set of queues that it belongs to.
    pub(crate) home: Weak<Home>,
}

/// What producers may add.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Bytes of messages that are stored or being stored.
    pub bytes: u64,
    /// Of those, what is being stored.
    pub storing_bytes: u64,
    pub storing: u64,
    /// Messages that are retained or being stored.
    pub retained: u64,
    /// Since the start of the process.
    pub enqueued: u64,
}

impl Admission {
    pub fn retained_less(&mut self, count: u64) {
        self.retained = self.retained.saturating_sub(count);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Paused {
    pub produce: AtomicBool,
    pub consume: AtomicBool,
}

/// Since the start of the process.
#[derive(Debug, Default)]
pub struct Counters {
    pub refused_full: AtomicU64,
    pub refused_paused: AtomicU64,
    pub refused_too_large: AtomicU64,
    pub refused_log: AtomicU64,
    pub repeated: AtomicU64,
}

/// Calls the task that does what is due.
#[derive(Debug)]
pub(crate) struct Keeper {
    /// When it will wake by itself.
    pub planned: AtomicI64,
    pub call: Notify,
    /// Something was settled since messages were let go.
    pub trim: AtomicBool,
}

/// Where a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Produced {
    pub partition: u32,
    pub offset: Offset,
    /// A message with this dedup-id is there already; this one was not stored.
    pub repeated: bool,
}

/// Records of state that go with a message.
pub(crate) type Fact = (PartitionId, Records);

pub(crate) struct Parts {
    pub id: u32,
    pub name: SmolStr,
    pub log: Arc<dyn Log>,
    pub clock: Arc<dyn Clock>,
    pub durability: Durability,
    pub settings: QueueSettings,
    pub home: Weak<Home>,
}

impl Queue {
    pub(crate) fn new(parts: Parts) -> Queue {
        let dedup = Dedup::new(parts.settings.dedup_window);
        Queue {
            id: parts.id,
            name: parts.name,
            log: parts.log,
            clock: parts.clock,
            durability: parts.durability,
            settings: RwLock::new(Arc::new(parts.settings)),
            partitions: RwLock::default(),
            groups: RwLock::default(),
            next_group: AtomicU32::new(1),
            admission: Mutex::default(),
            dedup: Mutex::new(dedup),
            room: Notify::new(),
            turn: AtomicUsize::new(0),
            paused: Paused::default(),
            counters: Counters::default(),
            keeper: Keeper {
                planned: AtomicI64::new(Micros::MAX),
                call: Notify::new(),
                trim: AtomicBool::new(false),
            },
            dropped: Mutex::default(),
            removed: AtomicBool::new(false),
            home: parts.home,
        }
    }

    pub fn name(&self) -> &SmolStr {
        &self.name
    }

    pub fn durability(&self) -> Durability {
        self.durability
    }

    pub fn settings(&self) -> Arc<QueueSettings> {
        self.settings.read().clone()
    }

    pub fn partition_count(&self) -> u32 {
        self.partitions.read().len() as u32
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn message_id(&self, partition: u32, offset: Offset) -> MessageId {
        MessageId {
            queue: self.name.clone(),
            partition,
            offset,
        }
    }

    pub(crate) fn receipt(&self, partition: u32, offset: Offset, delivery: u32) -> Receipt {
        Receipt {
            id: self.message_id(partition, offset),
            delivery,
        }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.durability == Durability::Memory
    }

    pub(crate) fn data_id(&self, partition: u32) -> PartitionId {
        PartitionId::new(self.id, partition)
    }

    pub(crate) fn state_id(&self, partition: u32) -> PartitionId {
        PartitionId::new(self.id | STATE, partition)
    }

    /// How a partition keeps its messages.
    pub(crate) fn new_store(&self, partition: u32) -> Store {
        if self.is_in_memory() {
            return Store::Memory(MemoryStore::default());
        }
        Store::Log {
            log: self.log.clone(),
            id: self.data_id(partition),
        }
    }

    /// Stores a message. Returns when it is as durable as the queue promises.
    pub async fn produce(&self, message: NewMessage) -> Result<Produced> {
        if self.is_in_memory() && message.dedup_id.is_none() {
            let settings = self.settings.read();
            if settings.overflow == Overflow::Reject {
                return self.produce_in_memory(message, &settings);
            }
        }
        let mut produced = self.produce_all(vec![message]).await?;
        produced.pop().ok_or_else(|| QueueError::invalid("no message"))
    }

    /// Stores messages together or not at all. Those without a key stay together in one partition.
    pub async fn produce_all(&self, messages: Vec<NewMessage>) -> Result<Vec<Produced>> {
        self.produce_with(messages, Vec::new()).await
    }

    /// The same, with facts of other partitions that are stored in the same commit.
    pub(crate) async fn produce_with(&self, messages: Vec<NewMessage>, facts: Vec<Fact>) -> Result<Vec<Produced>> {
        self.may_produce(&messages, &self.settings())?;
        let (messages, mut answers) = self.without_repeated(messages).await?;
        let tickets: Vec<Ticket> = answers.iter().filter_map(Answer::ticket).collect();
        let stored = match messages.is_empty() {
            true => Ok(Vec::new()),
            false => self.store(messages, facts).await,
        };
        let mut dedup = self.dedup.lock();
        match stored {
            Ok(places) => {
                let mut places = places.into_iter();
                for answer in &mut answers {
                    answer.settle(&mut places, &mut dedup);
                }
                Ok(answers.into_iter().map(Answer::produced).collect())
            }
            Err(error) => {
                tickets.into_iter().for_each(|ticket| dedup.failed(ticket));
                Err(error)
            }
        }
    }

    fn not_found(&self) -> QueueError {
        QueueError::QueueNotFound {
            queue: self.name.clone(),
        }
    }

    fn may_produce(&self, messages: &[NewMessage], settings: &QueueSettings) -> Result<()> {
        if self.removed.load(Ordering::Relaxed) {
            return Err(self.not_found());
        }
        if self.paused.produce.load(Ordering::Relaxed) {
            self.counters.refused_paused.fetch_add(1, Ordering::Relaxed);
            return Err(QueueError::Paused {
                what: format!("producing to queue {}", self.name).into(),
            });
        }
        let limit = settings.max_message_size;
        let too_large = messages.iter().find(|message| message.payload.len() as u64 > limit);
        if let Some(message) = too_large {
            self.counters.refused_too_large.fetch_add(1, Ordering::Relaxed);
            return Err(QueueError::MessageTooLarge {
                queue: self.name.clone(),
                size: message.payload.len() as u64,
                limit,
            });
        }
        Ok(())
    }

    /// Leaves out those whose dedup-id was seen. Waits for those that are being stored just now.
    async fn without_repeated(&self, messages: Vec<NewMessage>) -> Result<(Vec<NewMessage>, Vec<Answer>)> {
        let window = self.settings.read().dedup_window;
        if window.is_zero() || messages.iter().all(|message| message.dedup_id.is_none()) {
            let answers = messages.iter().map(|_| Answer::New(None)).collect();
            return Ok((messages, answers));
        }
        let (mut left, mut answers) = (Vec::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        for message in messages {
            let Some(id) = message.dedup_id.clone() else {
                answers.push(Answer::New(None));
                left.push(message);
                continue;
            };
            loop {
                let seen = self.dedup.lock().see(self.clock.now(), &id);
                match seen {
                    Seen::First(ticket) => {
                        answers.push(Answer::New(Some(ticket)));
                        left.push(message);
                    }
                    Seen::Stored(place) => {
                        self.counters.repeated.fetch_add(1, Ordering::Relaxed);
                        answers.push(Answer::Repeated(place));
                    }
                    Seen::Pending(ticket) if answers.iter().any(|answer| answer.ticket() == Some(ticket)) => {
                        // Twice in this very batch.
                        answers.push(Answer::SameAs(ticket));
                    }
                    Seen::Pending(_) => {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        continue;
                    }
                }
                break;
            }
        }
        Ok((left, answers))
    }

    async fn store(&self, messages: Vec<NewMessage>, facts: Vec<Fact>) -> Result<Vec<Place>> {
        let count = messages.len() as u64;
        let bytes: u64 = messages.iter().map(|message| message.bytes() as u64).sum();
        self.admit(count, bytes).await?;
        let placed = self.place(messages);
        let stored = match self.is_in_memory() {
            true => Ok(self.store_in_memory(placed)),
            false => self.store_in_log(placed, facts).await,
        };
        self.stored(count, bytes, stored.is_ok());
        if stored.is_err() {
            self.counters.refused_log.fetch_add(1, Ordering::Relaxed);
        }
        stored
    }

    /// Chooses the partitions.
    fn place(&self, messages: Vec<NewMessage>) -> Vec<(u32, NewMessage)> {
        let partitions = self.partition_count();
        let keyless = self.next_partition(partitions);
        let place = |message: NewMessage| match &message.key {
            Some(key) => (partition_of(key, partitions), message),
            None => (keyless, message),
        };
        messages.into_iter().map(place).collect()
    }

    fn next_partition(&self, partitions: u32) -> u32 {
        (self.turn.fetch_add(1, Ordering::Relaxed) % partitions.max(1) as usize) as u32
    }

    async fn store_in_log(&self, messages: Vec<(u32, NewMessage)>, facts: Vec<Fact>) -> Result<Vec<Place>> {
        let now = self.clock.now();
        let ttl = self.settings.read().ttl;
        let mut parts: Vec<(u32, Records)> = Vec::new();
        let mut places = Vec::with_capacity(messages.len());
        for (partition, message) in &messages {
            let at = match parts.iter().position(|(known, _)| known == partition) {
                Some(at) => at,
                None => {
                    parts.push((*partition, Records::with_capacity(message.bytes() + 64)));
                    parts.len() - 1
                }
            };
            if let Some((_, records)) = parts.get_mut(at) {
                places.push((at, records.len() as u64));
                records.push(&record_of(message, &with_dedup_id(message), ttl, now))?;
            }
        }
        let partitions: Vec<u32> = parts.iter().map(|(partition, _)| *partition).collect();
        let unit = parts.into_iter().fold(Unit::default(), |unit, (partition, records)| {
            unit.and(self.data_id(partition), records)
        });
        let unit = facts
            .into_iter()
            .fold(unit, |unit, (id, records)| unit.and_of(Kind::State, id, records));
        let appended = self.log.append(unit, None).await?;
        let place = |(at, n): (usize, u64)| Place {
            partition: partitions.get(at).copied().unwrap_or_default(),
            offset: appended.offsets.get(at).copied().unwrap_or_default() + n,
        };
        Ok(places.into_iter().map(place).collect())
    }

    fn store_in_memory(&self, messages: Vec<(u32, NewMessage)>) -> Vec<Place> {
        let now = self.clock.now();
        let ttl = self.settings.read().ttl;
        let stores = self.partitions.read();
        let mut places = Vec::with_capacity(messages.len());
        for (partition, message) in messages {
            let Some(Store::Memory(store)) = stores.get(partition as usize).map(Arc::as_ref) else {
                continue;
            };
            let offset = store.append(std::iter::once(message_of(message, ttl, now)));
            places.push(Place { partition, offset });
        }
        drop(stores);
        self.grown();
        places
    }

    /// The short way of one message: nothing to wait for, and no more memory than the message itself.
    fn produce_in_memory(&self, message: NewMessage, settings: &QueueSettings) -> Result<Produced> {
        self.may_produce(std::slice::from_ref(&message), settings)?;
        let bytes = message.bytes() as u64;
        let message = message_of(message, settings.ttl, self.clock.now());
        let stores = self.partitions.read();
        let partitions = stores.len() as u32;
        let partition = match &message.key {
            Some(key) => partition_of(key, partitions),
            None => self.next_partition(partitions),
        };
        let Some(Store::Memory(store)) = stores.get(partition as usize).map(Arc::as_ref) else {
            return Err(self.not_found());
        };
        let groups = self.groups.read();
        let offset = {
            let mut admission = self.admission.lock();
            self.reserve_in(&mut admission, &groups, settings, 1, bytes)?;
            // Stored at once, so nobody sees it counted and not there.
            admission.storing -= 1;
            admission.storing_bytes -= bytes;
            admission.enqueued += 1;
            store.append(std::iter::once(message))
        };
        groups.values().for_each(|group| group.wake());
        Ok(Produced {
            partition,
            offset,
            repeated: false,
        })
    }

    /// Waits for room, or makes it, as the queue is set to.
    async fn admit(&self, count: u64, bytes: u64) -> Result<()> {
        let overflow = self.settings.read().overflow;
        let until = tokio::time::Instant::now() + self.settings.read().block_timeout;
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let Err(full) = self.reserve(count, bytes) else {
                return Ok(());
            };
            match overflow {
                Overflow::Reject => return Err(full),
                Overflow::DropOldest if self.drop_oldest(count, bytes) => {}
                Overflow::DropOldest => return Err(full),
                Overflow::Block => tokio::select! {
                    () = &mut room => {}
                    () = tokio::time::sleep_until(until) => return self.reserve(count, bytes),
                },
            }
        }
    }

    /// Counts what is to be stored, if it is within the limits.
    fn reserve(&self, count: u64, bytes: u64) -> Result<()> {
        let (settings, groups) = (self.settings.read(), self.groups.read());
        self.reserve_in(&mut self.admission.lock(), &groups, &settings, count, bytes)
    }

    fn reserve_in(
        &self,
        admission: &mut Admission,
        groups: &BTreeMap<SmolStr, Arc<Group>>,
        settings: &QueueSettings,
        count: u64,
        bytes: u64,
    ) -> Result<()> {
        let full = |key, limit| {
            self.counters.refused_full.fetch_add(1, Ordering::Relaxed);
            QueueError::QueueFull {
                queue: self.name.clone(),
                key,
                limit,
            }
        };
        if settings.max_depth > 0 && depth(groups, admission.retained) + count > settings.max_depth {
            return Err(full("max_depth", settings.max_depth));
        }
        if settings.max_bytes > 0 && admission.bytes + bytes > settings.max_bytes {
            return Err(full("max_bytes", settings.max_bytes));
        }
        admission.bytes += bytes;
        admission.storing_bytes += bytes;
        admission.storing += count;
        admission.retained += count;
        for group in groups.values() {
            group.backlog.fetch_add(count as i64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counts what is stored whatever the limits say: dead letters.
    pub(crate) fn admit_always(&self, count: u64, bytes: u64) {
        let groups = self.groups.read();
        let mut admission = self.admission.lock();
        admission.bytes += bytes;
        admission.storing_bytes += bytes;
        admission.storing += count;
        admission.retained += count;
        for group in groups.values() {
            group.backlog.fetch_add(count as i64, Ordering::Relaxed);
        }
    }

    pub(crate) fn append_in_memory(&self, message: NewMessage, now: Micros) {
        if let Some(Store::Memory(store)) = self.partitions.read().first().map(Arc::as_ref) {
            store.append(std::iter::once(message_of(message, Duration::ZERO, now)));
        }
    }

    /// What was counted is stored, or is not.
    pub(crate) fn stored(&self, count: u64, bytes: u64, ok: bool) {
        if ok {
            let mut admission = self.admission.lock();
            admission.enqueued += count;
            admission.storing_bytes -= bytes;
            admission.storing -= count;
            return;
        }
        let groups = self.groups.read();
        let mut admission = self.admission.lock();
        admission.bytes = admission.bytes.saturating_sub(bytes);
        admission.storing_bytes -= bytes;
        admission.storing -= count;
        admission.retained = admission.retained.saturating_sub(count);
        for group in groups.values() {
            group.backlog.fetch_sub(count as i64, Ordering::Relaxed);
        }
        drop((admission, groups));
        self.room.notify_waiters();
    }

    /// The largest backlog, by which the queue is limited.
    pub fn depth(&self) -> u64 {
        let groups = self.groups.read();
        let retained = self.admission.lock().retained;
        depth(&groups, retained)
    }

    pub fn bytes(&self) -> u64 {
        self.admission.lock().bytes
    }

    /// Something was settled or freed.
    pub(crate) fn has_room(&self) {
        self.room.notify_waiters();
    }

    /// Whoever waits for messages may look again.
    pub(crate) fn grown(&self) {
        for group in self.groups.read().values() {
            group.wake();
        }
    }

    /// What the machines of its work groups go by.
    pub(crate) fn policy(&self, partition: u32) -> Policy {
        let settings = self.settings.read();
        let retry = &settings.retry;
        Policy {
            ordering: match settings.ordering {
                settings::Ordering::None => machine::Ordering::None,
                settings::Ordering::Partition => machine::Ordering::Partition,
                settings::Ordering::Strict => machine::Ordering::Strict,
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
                seed: u64::from(self.id) << 32 | u64::from(partition),
            },
            total_timeout: micros(retry.total_timeout),
        }
    }

    /// Other settings hold from now on.
    pub(crate) fn set_settings(&self, settings: QueueSettings) {
        self.dedup.lock().set_window(settings.dedup_window);
        let now = self.clock.now();
        *self.settings.write() = Arc::new(settings);
        let settings = self.settings();
        for group in self.groups.read().values() {
            let mut members = group.members.lock();
            members.set_sharing(sharing(&settings, group.settings.mode));
            members.set_consumer_timeout(now, settings.consumer_timeout);
            drop(members);
            for (partition, part) in (0..).zip(group.parts.read().iter()) {
                if let State::Work(machine) = &mut part.inner.lock().state {
                    machine.set_policy(self.policy(partition));
                }
            }
        }
        self.has_room();
    }

    /// What is stored already.
    pub(crate) fn count_retained(&self) -> Result<()> {
        let stores = self.partitions.read();
        let mut admission = self.admission.lock();
        for store in stores.iter() {
            admission.retained += store.next()? - store.first()?;
            admission.bytes += store.bytes()?;
        }
        Ok(())
    }

    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.groups.read().values().cloned().collect()
    }

    pub fn group(&self, name: &str) -> Result<Arc<Group>> {
        let found = self.groups.read().get(name).cloned();
        found.ok_or_else(|| no_group(self, name))
    }

    /// Ids that were stored before, found at the start.
    pub(crate) fn restore_dedup(&self, since: Micros, id: &str, place: Place) {
        self.dedup.lock().restore(since, id, place);
    }
}

impl Listener for Queue {
    fn grown(&self, _next: Offset) {
        Queue::grown(self);
    }
}

/// The largest backlog among work groups; without any, what the slowest declared stream group has not committed; without
/// that too, what is retained.
fn depth(groups: &BTreeMap<SmolStr, Arc<Group>>, retained: u64) -> u64 {
    let work = groups.values().filter(|group| group.is_work());
    let streams = groups.values().filter(|group| !group.is_work() && group.declared);
    let largest = work.map(|group| group.backlog()).max();
    let largest = largest.or_else(|| streams.map(|group| group.backlog()).max());
    largest.unwrap_or(retained)
}
