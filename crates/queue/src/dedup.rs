//! Deduplication: which dedup-ids were stored within the window, and where their messages are.
//!
//! For each id of a batch, a lookup returns that its message is the first in the window, or the position of the first
//! one. Ids of messages about to be stored are reserved, all of a batch at once or none. A batch that finds an id
//! reserved by another batch reserves nothing while it waits, so there is no deadlock. A reservation lasts until its
//! holder reports the outcome, however long that takes. The window begins when the message is stored.
//!
//! Ids are forgotten in the order in which they were stored: when their window has passed, or earlier when a queue
//! exceeds its limits of count or bytes, or when all queues together exceed `queues.dedup_memory`. Ids forgotten early
//! are counted, because a duplicate of them would be stored. Each queue can always keep a few hundred ids.

mod shared;
mod storage;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use smol_str::SmolStr;
use thalweg_log::{Micros, Offset};
use tokio::sync::Semaphore;

use crate::budget::{Allowance, Budget};
use crate::message_times::micros;
pub(crate) use shared::{DedupReservations, SharedDedup};

/// Maximum ids per queue: 12 a second for 24 h.
pub const IDS_MAX: usize = 1 << 20;
/// Maximum bytes of ids per queue.
pub const ID_BYTES_MAX: usize = 64 << 20;

/// Memory per id, beside the bytes of long ids: its entry, the list's spare capacity while it grows, and its slot in a
/// table that is at least half full.
const ENTRY_BYTES: u64 = 112;
/// Longer ids are allocated on the heap, with a header.
const INLINE_BYTES: usize = 23;
const HEAD_BYTES: usize = 24;
/// What each queue may keep whatever other queues use: some hundred ids.
const FLOOR_BYTES: u64 = 32 << 10;
/// Memory is taken from the budget of all queues in pieces of this size.
const PIECE_BYTES: u64 = 64 << 10;
/// A list or table is shrunk when less than one part in this many is used.
const LEFT_EMPTY: usize = 4;
const SMALL: usize = 1024;

/// The position of a message in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessagePosition {
    pub partition: u32,
    pub offset: Offset,
}

/// Identifies the reservation of an id. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupTicket(u64);

/// The lookup result of one id of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupLookup {
    /// Not in the window. It is reserved until [`Dedup::stored`] or [`Dedup::failed`] reports the outcome of its
    /// message.
    First(DedupTicket),
    /// Same as the id at this index of the batch.
    SameAs(usize),
    /// The first message with this id is stored.
    Stored(MessagePosition),
}

/// An id of the batch is reserved by another batch.
#[derive(Clone, Debug)]
pub struct DedupConflict {
    /// Its index in the batch.
    pub at: usize,
    known: Arc<Semaphore>,
}

impl DedupConflict {
    /// Returns when the outcome of the message with that id is known.
    pub async fn is_over(self) {
        // The semaphore never has a permit; closing it is the signal.
        let _ = self.known.acquire().await;
    }
}

/// The ids of one queue. Operations are O(1) per id, amortised over the ids they forget.
#[derive(Debug)]
pub struct Dedup {
    window: Micros,
    ids_max: usize,
    id_bytes_max: usize,
    /// In the order in which they were stored; the front entry has number `first`.
    entries: VecDeque<DedupEntry>,
    first: u64,
    id_bytes: usize,
    /// Bytes of ids that are on the heap.
    heap_bytes: u64,
    memory: Allowance,
    /// Entry numbers by id. The id itself is only in the entry, so it is stored once.
    numbers: HashTable<u64>,
    hasher: DefaultHashBuilder,
    forgotten_early: u64,
    /// Reserved ids, each with the semaphore that other batches wait on. Each batch keeps its messages in memory
    /// meanwhile, which bounds the number of ids.
    reserved: HashMap<SmolStr, Option<Arc<Semaphore>>>,
    tickets: HashMap<u64, SmolStr>,
    next_ticket: u64,
}

#[derive(Debug)]
struct DedupEntry {
    id: SmolStr,
    since: Micros,
    /// `None`: the id was removed, only the slot is left.
    place: Option<MessagePosition>,
}

impl Dedup {
    /// With a window of zero nothing is kept, and every id counts as the first.
    pub(crate) fn new(window: Duration, memory: Arc<Budget>) -> Dedup {
        Dedup::with_limits(window, (IDS_MAX, ID_BYTES_MAX), memory)
    }

    fn with_limits(window: Duration, (ids_max, id_bytes_max): (usize, usize), memory: Arc<Budget>) -> Dedup {
        Dedup {
            window: micros(window),
            ids_max,
            id_bytes_max,
            entries: VecDeque::new(),
            first: 0,
            id_bytes: 0,
            heap_bytes: 0,
            memory: Allowance::in_pieces(memory, PIECE_BYTES),
            numbers: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            forgotten_early: 0,
            reserved: HashMap::new(),
            tickets: HashMap::new(),
            next_ticket: 0,
        }
    }

    /// A longer window applies to the ids that are still known. A window of zero forgets all.
    pub fn set_window(&mut self, window: Duration) {
        self.window = micros(window);
        while self.window == 0 && !self.entries.is_empty() {
            self.pop();
        }
    }

    /// Looks up the ids of a batch and reserves the unknown ones, unless one is reserved by another batch. The check
    /// begins at `from`, so a caller that waited for an id continues there instead of checking all ids again after each
    /// conflict.
    pub fn reserve(&mut self, now: Micros, ids: &[&str], from: usize) -> Result<Vec<DedupLookup>, DedupConflict> {
        // Forget only some here: a window of a million ids may have passed while other producers wait. Maintenance does
        // the rest.
        self.forget_some(now, 64 + 2 * ids.len());
        let from = from.min(ids.len());
        for at in (from..ids.len()).chain(0..from) {
            let reserved = ids.get(at).and_then(|id| self.reserved.get_mut(*id));
            if let Some(known) = reserved {
                let known = known.get_or_insert_with(|| Arc::new(Semaphore::new(0))).clone();
                return Err(DedupConflict { at, known });
            }
        }
        let mut own: HashMap<&str, usize> = HashMap::new();
        let mut all = Vec::with_capacity(ids.len());
        for (at, id) in ids.iter().copied().enumerate() {
            let first = *own.entry(id).or_insert(at);
            all.push(match self.place_of(now, id) {
                _ if first != at => DedupLookup::SameAs(first),
                Some(place) => DedupLookup::Stored(place),
                None => DedupLookup::First(self.reserve_one(id)),
            });
        }
        Ok(all)
    }

    fn reserve_one(&mut self, id: &str) -> DedupTicket {
        let (id, ticket) = (SmolStr::new(id), DedupTicket(self.next_ticket));
        self.next_ticket += 1;
        self.tickets.insert(ticket.0, id.clone());
        self.reserved.insert(id, None);
        ticket
    }

    /// Whether an id is reserved under this ticket, so that no other batch stores a message with it.
    #[cfg(test)]
    fn holds(&self, ticket: DedupTicket) -> bool {
        self.tickets.contains_key(&ticket.0)
    }

    /// Reports that the message of a reserved id is committed at `place`.
    pub fn stored(&mut self, now: Micros, ticket: DedupTicket, place: MessagePosition) {
        if let Some(id) = self.free(ticket) {
            self.keep(now, id, place);
        }
    }

    /// Reports that the message of a reserved id was not stored; the next message with this id is the first.
    pub fn failed(&mut self, ticket: DedupTicket) {
        self.free(ticket);
    }

    /// Ends a reservation. Batches that wait for the id check again.
    fn free(&mut self, ticket: DedupTicket) -> Option<SmolStr> {
        let id = self.tickets.remove(&ticket.0)?;
        if let Some(known) = self.reserved.remove(&id).flatten() {
            known.close();
        }
        Some(id)
    }

    /// Adds an id found in the log at a start. Ids within the window must come in time order.
    pub fn restore(&mut self, since: Micros, id: &str, place: MessagePosition) {
        self.forget(since);
        if self.place_of(since, id).is_none() {
            self.keep(since, SmolStr::new(id), place);
        }
    }

    /// When the next id leaves the window. [`Dedup::forget`] at that time only saves memory.
    pub fn next_due(&self) -> Option<Micros> {
        Some(self.entries.front()?.since.saturating_add(self.window))
    }

    /// Forgets ids whose window has passed.
    pub fn forget(&mut self, now: Micros) {
        while self.next_due().is_some_and(|due| due <= now) {
            self.pop();
        }
    }

    /// Like `forget`, for at most `most` ids. Returns whether more are due.
    pub fn forget_some(&mut self, now: Micros, most: usize) -> bool {
        let is_due = |dedup: &Dedup| dedup.next_due().is_some_and(|due| due <= now);
        for _ in 0..most {
            if !is_due(self) {
                return false;
            }
            self.pop();
        }
        is_due(self)
    }

    /// Ids in memory, including ids that were stored again before their window ended.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ids that were forgotten within their window to make room.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }

    /// Approximate memory use, never too low.
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * ENTRY_BYTES + self.heap_bytes
    }

    /// The most bytes that this queue can keep, whatever other queues use.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.memory.limit().saturating_add(FLOOR_BYTES)
    }

    /// The position of the first message with an id, if it is in the window.
    fn place_of(&mut self, now: Micros, id: &str) -> Option<MessagePosition> {
        let number = self.find(self.hasher.hash_one(id), id)?;
        let entry = entry_of(&self.entries, self.first, number)?;
        // After a clock step backwards, old ids may follow younger ones, where `forget` does not find them.
        if now.saturating_sub(entry.since) < self.window {
            return entry.place;
        }
        self.make_void(number);
        None
    }

    fn keep(&mut self, now: Micros, id: SmolStr, place: MessagePosition) {
        if self.window == 0 {
            return;
        }
        let hash = self.hasher.hash_one(id.as_str());
        if let Some(older) = self.find(hash, &id) {
            self.make_void(older);
        }
        let number = self.first + self.entries.len() as u64;
        self.id_bytes += id.len();
        self.heap_bytes += heap_bytes(&id);
        if self.entries.len() == self.entries.capacity() {
            // Grow by a quarter; by default it would double.
            self.entries.reserve_exact(self.entries.len() / 4 + 16);
        }
        self.entries.push_back(DedupEntry {
            id,
            since: now,
            place: Some(place),
        });
        let (hasher, entries, first) = (&self.hasher, &self.entries, self.first);
        self.numbers.insert_unique(hash, number, |number| {
            entry_of(entries, first, *number).map_or(0, |entry| hasher.hash_one(entry.id.as_str()))
        });
        while self.entries.len() > self.ids_max || self.id_bytes > self.id_bytes_max || !self.has_memory() {
            self.forgotten_early += u64::from(self.pop());
        }
    }

    fn has_memory(&mut self) -> bool {
        let beyond = self.bytes().saturating_sub(FLOOR_BYTES);
        self.memory.reaches(beyond)
    }

    /// Shrinks the collections after a burst.
    fn shrink(&mut self) {
        match self.bytes().saturating_sub(FLOOR_BYTES) {
            0 => self.memory.is_not_needed(),
            beyond => self.memory.shrinks(beyond),
        }
        let len = self.entries.len();
        if self.entries.capacity() <= SMALL.max(len * LEFT_EMPTY) {
            return;
        }
        self.entries.shrink_to(len * 2);
        let (hasher, entries, first) = (&self.hasher, &self.entries, self.first);
        self.numbers.shrink_to(len * 2, |number| {
            entry_of(entries, first, *number).map_or(0, |entry| hasher.hash_one(entry.id.as_str()))
        });
    }

    /// Removes the oldest entry. Returns whether its id was known.
    fn pop(&mut self) -> bool {
        let known = self.make_void(self.first);
        if self.entries.pop_front().is_some() {
            self.first += 1;
        }
        self.shrink();
        known
    }

    /// Removes an id from the table. Returns whether it was there.
    fn make_void(&mut self, number: u64) -> bool {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(entry) = at.and_then(|at| self.entries.get_mut(at)) else {
            return false;
        };
        if entry.place.take().is_none() {
            return false;
        }
        let id = std::mem::take(&mut entry.id);
        self.id_bytes -= id.len();
        self.heap_bytes -= heap_bytes(&id);
        let hash = self.hasher.hash_one(id.as_str());
        if let Ok(found) = self.numbers.find_entry(hash, |other| *other == number) {
            found.remove();
        }
        true
    }

    fn find(&self, hash: u64, id: &str) -> Option<u64> {
        let same = |number: &u64| entry_of(&self.entries, self.first, *number).is_some_and(|entry| entry.id == id);
        self.numbers.find(hash, same).copied()
    }
}

fn heap_bytes(id: &SmolStr) -> u64 {
    match id.len() {
        0..=INLINE_BYTES => 0,
        len => (len + HEAD_BYTES) as u64,
    }
}

fn entry_of(entries: &VecDeque<DedupEntry>, first: u64, number: u64) -> Option<&DedupEntry> {
    entries.get(usize::try_from(number.checked_sub(first)?).ok()?)
}

#[cfg(test)]
mod tests;
