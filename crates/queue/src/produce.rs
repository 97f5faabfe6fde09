//! Producing messages to a queue.
//!
//! A single message to a queue in memory is stored by the call itself. All others are admitted first (`admission.rs`)
//! and then submitted to the log. From then on they cannot be withdrawn, so a cancelled call is completed in the
//! background: admitted messages are either stored or counted out again, and dedup-ids get their outcome.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hashbrown::HashMap;
use thalweg_kit::blocking;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Micros, Offset, PartitionId, Records, WriteBatch};

use crate::admission::AdmissionRequest;
use crate::batch_entry::BatchEntry;
use crate::dead_letters::{LetterArrival, ResentLetters};
use crate::dedup::{DedupLookup, DedupReservations, MessagePosition};
use crate::error::{QueueError, Result};
use crate::hash::partition_of;
use crate::message::{DEDUP_ID, NewMessage};
use crate::message_times::effective_ttl;
use crate::queue::Queue;
use crate::store::{MemoryStore, MessageStore};

/// Where a message was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProduceResult {
    pub partition: u32,
    pub offset: Offset,
    /// A message with this dedup-id exists already; this one was not stored.
    pub repeated: bool,
}

impl ProduceResult {
    fn of(place: MessagePosition) -> ProduceResult {
        ProduceResult {
            partition: place.partition,
            offset: place.offset,
            repeated: false,
        }
    }
}

/// A state record that is stored with messages.
pub(crate) type AttachedRecord = (PartitionId, Vec<u8>);

/// What else happens when messages are stored.
#[derive(Default)]
pub(crate) struct CommitExtras {
    /// Stored in the same commit; for a queue in memory, right after it.
    pub facts: Vec<AttachedRecord>,
    /// The dead letters that these messages were, if their own queue may be on another disk.
    pub sent: Option<ResentLetters>,
    /// Run as soon as the messages are stored, whoever waits for it.
    pub stored: Option<BoxFuture<'static, ()>>,
}

/// A call of [`Queue::produce`]. Await it, unless the message is already stored.
#[must_use = "a message of a durable queue is stored only when this is awaited"]
pub struct ProduceFuture<'a> {
    state: ProduceState<'a>,
}

enum ProduceState<'a> {
    Done(Result<ProduceResult>),
    Begun(BoxFuture<'a, Result<ProduceResult>>),
    Over,
}

impl Future for ProduceFuture<'_> {
    type Output = Result<ProduceResult>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<ProduceResult>> {
        if let ProduceState::Begun(future) = &mut self.state {
            let produced = std::task::ready!(future.as_mut().poll(context));
            self.state = ProduceState::Over;
            return Poll::Ready(produced);
        }
        match std::mem::replace(&mut self.state, ProduceState::Over) {
            ProduceState::Done(produced) => Poll::Ready(produced),
            ProduceState::Begun(_) | ProduceState::Over => Poll::Pending,
        }
    }
}

/// A future that continues in the background when it is dropped before its end.
pub(crate) struct DetachedFuture<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> DetachedFuture<T> {
    pub fn new(future: impl Future<Output = T> + Send + 'static) -> DetachedFuture<T> {
        DetachedFuture(Some(Box::pin(future)))
    }
}

impl<T: Send + 'static> Future for DetachedFuture<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(future) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = std::task::ready!(future.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for DetachedFuture<T> {
    fn drop(&mut self) {
        // Without a runtime the process is about to end, and the counts with it.
        if let (Some(future), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(future);
        }
    }
}

/// The partitions of messages without a key, in turn.
#[derive(Debug, Default)]
pub(crate) struct PartitionTurn(AtomicUsize);

impl PartitionTurn {
    fn next(&self, partitions: u32) -> u32 {
        match partitions {
            0 | 1 => 0,
            _ => (self.0.fetch_add(1, Ordering::Relaxed) % partitions as usize) as u32,
        }
    }
}

impl Queue {
    /// Stores a message. Completes when it is as durable as the queue promises; for a queue in memory, that is when
    /// this call returns.
    pub fn produce(self: &Arc<Queue>, message: NewMessage) -> ProduceFuture<'_> {
        let state = match self.try_produce(message) {
            Ok(produced) => ProduceState::Done(produced),
            Err(message) => ProduceState::Begun(Box::pin(self.produce_one(message))),
        };
        ProduceFuture { state }
    }

    async fn produce_one(self: &Arc<Queue>, message: NewMessage) -> Result<ProduceResult> {
        if self.is_in_memory() || message.dedup_id.is_some() {
            let mut produced = self.produce_all(vec![message]).await?;
            return produced.pop().ok_or_else(|| QueueError::invalid("no message"));
        }
        self.may_produce(std::slice::from_ref(&message))?;
        let ttl = self.settings_now().ttl;
        let wanted = AdmissionRequest {
            count: 1,
            bytes: self.size_of(&message, ttl),
        };
        if !self.admission.admit_now(wanted) {
            self.admit(wanted).await?;
        }
        let queue = self.clone();
        DetachedFuture::new(async move {
            let stored = queue.append_one(&message, ttl).await;
            queue.finished(wanted, stored)
        })
        .await
        .map(ProduceResult::of)
    }

    /// The size counted against limits: bytes of the record, or, in memory, of payload, key and properties.
    pub(crate) fn size_of(&self, message: &NewMessage, ttl: Duration) -> u64 {
        match self.is_in_memory() {
            true => message.bytes() as u64,
            // All times have the same encoded size.
            false => record_of(message, ttl, 0).encoded_len() as u64,
        }
    }

    async fn append_one(&self, message: &NewMessage, ttl: Duration) -> Result<MessagePosition> {
        let partition = self.partition_for(message.key.as_deref());
        let now = self.clock.now();
        let records = blocking::work(message.bytes(), || {
            let mut records = Records::with_capacity(message.bytes() + RECORD_BYTES);
            records.push(&record_of(message, ttl, now)).map(|()| records)
        })?;
        let unit = WriteBatch::of(self.identity.data_id(partition), records);
        let appended = self.log.append(unit).await?;
        let place = MessagePosition {
            partition,
            offset: appended.offsets.first().copied().unwrap_or_default(),
        };
        self.note_age(place, message.life(self.clock.as_ref()), ttl, now);
        self.lives(message, &self.settings_now(), ttl, now);
        Ok(place)
    }

    fn partition_for(&self, key: Option<&[u8]>) -> u32 {
        let partitions = self.partition_count();
        match key {
            Some(key) => partition_of(key, partitions),
            None => self.turn.next(partitions),
        }
    }

    /// Stores all messages or none. Those without a key go to the same partition.
    pub async fn produce_all(self: &Arc<Queue>, messages: Vec<NewMessage>) -> Result<Vec<ProduceResult>> {
        self.produce_with(messages, CommitExtras::default()).await
    }

    /// Like `produce_all`, with extras.
    pub(crate) async fn produce_with(
        self: &Arc<Queue>,
        messages: Vec<NewMessage>,
        along: CommitExtras,
    ) -> Result<Vec<ProduceResult>> {
        self.may_produce(&messages)?;
        let (mut messages, mut answers, mut tickets) = self.without_repeated(messages).await?;
        if messages.is_empty() {
            tickets.settle(&mut answers, std::iter::empty(), self.clock.as_ref());
            return Ok(answers.into_iter().map(BatchEntry::produced).collect());
        }
        messages.iter_mut().for_each(keep_dedup_id);
        let ttl = self.settings_now().ttl;
        let wanted = AdmissionRequest {
            count: messages.len() as u64,
            bytes: messages.iter().map(|message| self.size_of(message, ttl)).sum(),
        };
        if !self.admission.admit_now(wanted) {
            self.admit(wanted).await?;
        }
        let own = tickets.take();
        let (queue, mut along) = (self.clone(), along);
        DetachedFuture::new(async move {
            let tickets = queue.dedup.reservations(own);
            let placed = queue.place(messages);
            let sent = along.sent.take();
            let arriving = sent.map(|sent| LetterArrival::begin(&queue, sent, &placed));
            let arriving = match arriving.transpose() {
                Ok(arriving) => arriving,
                Err(error) => {
                    queue.stored(wanted, false);
                    return Err(error);
                }
            };
            along.facts.extend(arriving.as_ref().map(LetterArrival::fact));
            let stored = match queue.is_in_memory() {
                true => Ok(queue.store_in_memory(placed, ttl)),
                false => queue.store_in_log(placed, ttl, &along.facts).await,
            };
            let is_there = match &stored {
                Ok(_) if !queue.is_in_memory() => {
                    along.facts.clear();
                    true
                }
                Ok(_) => true,
                // The messages are stored on their own disk; the extras are not stored yet.
                Err(QueueError::Log(LogError::Partly { .. })) => !along.facts.is_empty(),
                Err(_) => false,
            };
            if is_there {
                let are_gone = queue.goes_along(along).await;
                arriving.iter().for_each(|arriving| arriving.came(are_gone));
            }
            drop(arriving);
            queue.stored(wanted, is_there);
            let places = queue.counting_refusal(stored)?.into_iter();
            tickets.settle(&mut answers, places, queue.clock.as_ref());
            Ok(answers.into_iter().map(BatchEntry::produced).collect())
        })
        .await
    }

    /// Runs the extras after the messages are stored. Extras that cannot be stored now go with a later block. Returns
    /// whether they are stored too.
    async fn goes_along(&self, along: CommitExtras) -> bool {
        let states: Vec<PartitionId> = along.facts.iter().map(|(id, _)| *id).collect();
        let journaled = along
            .facts
            .iter()
            .try_for_each(|(id, value)| self.journal_fact(*id, value));
        let stored = match journaled {
            Ok(()) if states.is_empty() => Ok(()),
            Ok(()) => self.log.flush(&states).await,
            Err(error) => Err(error),
        };
        if let Err(error) = &stored {
            tracing::warn!(
                queue = %self.name(), %error,
                "dead letters were resent, but their removal is not stored yet; the next start completes it"
            );
        }
        if let Some(stored) = along.stored {
            stored.await;
        }
        stored.is_ok()
    }

    fn journal_fact(&self, id: PartitionId, value: &[u8]) -> thalweg_log::Result<()> {
        let now = self.clock.now();
        self.log.journal(id, FrameKind::State, &mut |records| {
            records.push(&RecordRef::of(now, value))
        })
    }

    fn finished<T>(&self, wanted: AdmissionRequest, stored: Result<T>) -> Result<T> {
        self.stored(wanted, stored.is_ok());
        self.counting_refusal(stored)
    }

    fn counting_refusal<T>(&self, stored: Result<T>) -> Result<T> {
        if let Err(error) = &stored {
            self.counters().refused_by_log.count(error);
        }
        stored
    }

    fn may_produce(&self, messages: &[NewMessage]) -> Result<()> {
        let largest = messages.iter().map(|message| message.payload.len() as u64).max();
        self.may_take(largest.unwrap_or(0), self.settings_now().max_message_size)
    }

    /// Whether a message with this payload size may be produced.
    fn may_take(&self, size: u64, limit: u64) -> Result<()> {
        if self.is_removed() {
            return Err(self.identity.not_found());
        }
        if self.paused.produce() {
            self.counters().refused_paused.fetch_add(1, Ordering::Relaxed);
            return Err(QueueError::Paused {
                what: format!("producing to queue {}", self.name()).into(),
            });
        }
        if size > limit {
            self.counters().refused_too_large.fetch_add(1, Ordering::Relaxed);
            return Err(QueueError::MessageTooLarge {
                queue: self.name().clone(),
                size,
                limit,
            });
        }
        Ok(())
    }

    /// Removes messages whose dedup-id was seen.
    async fn without_repeated(
        &self,
        messages: Vec<NewMessage>,
    ) -> Result<(Vec<NewMessage>, Vec<BatchEntry>, DedupReservations<'_>)> {
        let mut tickets = self.dedup.reservations(Vec::new());
        let window = self.settings_now().dedup_window;
        if window.is_zero() || messages.iter().all(|message| message.dedup_id.is_none()) {
            let answers = messages.iter().map(|_| BatchEntry::New(None)).collect();
            return Ok((messages, answers, tickets));
        }
        let (places, seen) = self.dedup.reserve(&messages, self.clock.as_ref()).await;
        let mut answers = vec![BatchEntry::New(None); messages.len()];
        for (at, seen) in places.iter().zip(seen) {
            if let DedupLookup::First(ticket) = seen {
                tickets.add(ticket);
            }
            let answer = BatchEntry::of(seen, &places);
            if matches!(answer, BatchEntry::Repeated(_)) {
                self.counters().repeated.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(known) = answers.get_mut(*at) {
                *known = answer;
            }
        }
        let new = messages.into_iter().zip(&answers);
        let left = new.filter_map(|(message, answer)| matches!(answer, BatchEntry::New(_)).then_some(message));
        Ok((left.collect(), answers, tickets))
    }

    /// Chooses the partitions.
    fn place(&self, messages: Vec<NewMessage>) -> Vec<(u32, NewMessage)> {
        let partitions = self.partition_count();
        let keyless = self.turn.next(partitions);
        let place = |message: NewMessage| match &message.key {
            Some(key) => (partition_of(key, partitions), message),
            None => (keyless, message),
        };
        messages.into_iter().map(place).collect()
    }

    async fn store_in_log(
        &self,
        messages: Vec<(u32, NewMessage)>,
        ttl: Duration,
        facts: &[AttachedRecord],
    ) -> Result<Vec<MessagePosition>> {
        let now = self.clock.now();
        let bytes = messages.iter().map(|(_, message)| message.bytes()).sum();
        let (parts, stored_at) = blocking::work(bytes, || records_of(&messages, ttl, now))?;
        let partitions: Vec<u32> = parts.iter().map(|(partition, _)| *partition).collect();
        let unit = parts
            .into_iter()
            .fold(WriteBatch::default(), |unit, (partition, records)| {
                unit.and(self.identity.data_id(partition), records)
            });
        let mut unit = unit;
        for (id, value) in facts {
            let mut records = Records::new();
            records.push(&RecordRef::of(now, value))?;
            unit = unit.and_of(FrameKind::State, *id, records);
        }
        let appended = self.log.append(unit).await?;
        let place = |(at, n): &(usize, u64)| MessagePosition {
            partition: partitions.get(*at).copied().unwrap_or_default(),
            offset: appended.offsets.get(*at).copied().unwrap_or_default() + n,
        };
        let places: Vec<MessagePosition> = stored_at.iter().map(place).collect();
        let settings = self.settings_now();
        for (place, (_, message)) in places.iter().zip(&messages) {
            self.note_age(*place, message.life(self.clock.as_ref()), ttl, now);
            self.lives(message, &settings, ttl, now);
        }
        if self.keeps_ids() {
            let mut own: Vec<Vec<(Offset, &NewMessage)>> = vec![Vec::new(); partitions.len()];
            for ((place, (_, message)), (at, _)) in places.iter().zip(&messages).zip(&stored_at) {
                let part = own.get_mut(*at);
                part.into_iter().for_each(|part| part.push((place.offset, message)));
            }
            for (partition, own) in partitions.iter().zip(&own) {
                self.keep_ids(*partition, own.iter().copied(), now);
            }
        }
        Ok(places)
    }

    fn store_in_memory(&self, messages: Vec<(u32, NewMessage)>, ttl: Duration) -> Vec<MessagePosition> {
        let now = self.clock.now();
        let mut places = Vec::with_capacity(messages.len());
        let settings = self.settings_now();
        for (partition, message) in messages {
            if let Some(store) = self.memory(partition) {
                self.lives(&message, &settings, ttl, now);
                let life = message.life(self.clock.as_ref());
                let offset = store.append(message, ttl, now);
                let place = MessagePosition { partition, offset };
                self.note_age(place, life, ttl, now);
                places.push(place);
            }
        }
        for place in places
            .chunk_by(|a, b| a.partition == b.partition)
            .flat_map(<[_]>::first)
        {
            self.groups.call_for(place.partition);
        }
        places
    }

    fn memory(&self, partition: u32) -> Option<&MemoryStore> {
        match self.store(partition).map(Arc::as_ref) {
            Some(MessageStore::Memory(store)) => Some(store),
            _ => None,
        }
    }

    /// Stores a message if that needs no waiting, as in a queue of durability `memory`; otherwise returns it. Takes one
    /// lock for the limits and one for the position, and allocates only the message itself.
    #[allow(
        clippy::result_large_err,
        reason = "the message goes back as it came; a box would be an allocation"
    )]
    pub fn try_produce(&self, message: NewMessage) -> std::result::Result<Result<ProduceResult>, NewMessage> {
        if !self.is_in_memory() || message.dedup_id.is_some() {
            return Err(message);
        }
        let (bytes, now) = (message.bytes() as u64, self.clock.now());
        let mut admission = self.admission.lock();
        // Under the lock, since partitions may be added while nobody holds it.
        let partition = self.partition_for(message.key.as_deref());
        let Some(store) = self.memory(partition) else {
            return Err(message);
        };
        if let Err(error) = self.may_take(message.payload.len() as u64, admission.settings().max_message_size) {
            return Ok(Err(error));
        }
        let wanted = AdmissionRequest { count: 1, bytes };
        if !admission.admit(wanted) {
            return Err(message);
        }
        // Stored under the same lock, so nobody sees it counted but missing.
        admission.done(wanted);
        self.lives(&message, admission.settings(), admission.settings().ttl, now);
        let over = admission.is_over_policy();
        let (life, ttl) = (message.life(self.clock.as_ref()), admission.settings().ttl);
        let offset = store.append(message, ttl, now);
        self.note_age(MessagePosition { partition, offset }, life, ttl, now);
        let groups = admission.groups().iter();
        groups.for_each(|group| group.waiting.call_for(partition));
        drop(admission);
        if over {
            self.maintenance.trim_soon();
        }
        Ok(Ok(ProduceResult {
            partition,
            offset,
            repeated: false,
        }))
    }

    /// Appends a message to a queue in memory regardless of limits. Returns the offset.
    pub(crate) fn append_in_memory(&self, message: NewMessage, now: Micros) -> Offset {
        let store = self.memory(0);
        store.map_or(0, |store| store.append(message, Duration::ZERO, now))
    }
}

/// Maximum bytes of a record beside payload, key and properties.
const RECORD_BYTES: usize = 64;
/// Records of a batch are encoded into a buffer of their size, up to this.
const RECORDS_BYTES: usize = 1 << 20;

/// The id is stored with the message, so that a restart knows it.
fn keep_dedup_id(message: &mut NewMessage) {
    if let Some(id) = message.dedup_id.take() {
        let others = message.properties.as_ref().iter();
        let others = others.filter(|(name, _)| *name != DEDUP_ID);
        message.properties = others.chain([(DEDUP_ID, &*id)]).collect();
    }
}

pub(crate) fn ttl_ms(message: &NewMessage, queue: Duration) -> Option<u64> {
    let ttl = effective_ttl(queue, message.ttl)?;
    Some(
        ttl.as_secs()
            .saturating_mul(1000)
            .saturating_add(ttl.subsec_millis().into()),
    )
}

/// Encoded messages by partition, and for each message the index of its partition and its position there.
type PartitionedRecords = (Vec<(u32, Records)>, Vec<(usize, u64)>);

fn records_of(messages: &[(u32, NewMessage)], ttl: Duration, now: Micros) -> thalweg_log::Result<PartitionedRecords> {
    // One look-up per message, because a batch may have thousands of messages for a thousand partitions.
    let mut known: HashMap<u32, usize> = HashMap::new();
    let mut sizes: Vec<(u32, usize)> = Vec::new();
    for (partition, message) in messages {
        let at = *known.entry(*partition).or_insert(sizes.len());
        if at == sizes.len() {
            sizes.push((*partition, 0));
        }
        if let Some((_, bytes)) = sizes.get_mut(at) {
            *bytes += message.bytes() + RECORD_BYTES;
        }
    }
    let sized = |(partition, bytes): (u32, usize)| (partition, Records::with_capacity(bytes.min(RECORDS_BYTES)));
    let mut parts: Vec<(u32, Records)> = sizes.into_iter().map(sized).collect();
    let mut places = Vec::with_capacity(messages.len());
    for (partition, message) in messages {
        let at = known.get(partition).copied().unwrap_or_default();
        if let Some((_, records)) = parts.get_mut(at) {
            places.push((at, records.len() as u64));
            records.push(&record_of(message, ttl, now))?;
        }
    }
    Ok((parts, places))
}

pub(crate) fn record_of(message: &NewMessage, ttl: Duration, now: Micros) -> RecordRef<'_> {
    RecordRef {
        time: now,
        delta: None,
        key: message.key.as_deref(),
        properties: message.properties.as_ref(),
        ttl_ms: ttl_ms(message, ttl),
        not_before: message.not_before,
        deliver_at: message.deliver_at,
        value: &message.payload,
    }
}
