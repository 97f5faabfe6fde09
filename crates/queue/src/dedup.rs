//! Which `dedup-id`s came lately, and where their message is.
//!
//! The ids of a batch go in; for each comes out whether its message is the first in a window, or where the first one lies. Ids
//! whose messages are about to be stored are reserved, all of a batch at once or none: whoever finds one that is reserved for
//! another batch holds nothing while it waits, so no two wait for each other. A reservation lasts until its holder says what
//! became of the message, however long that takes; the window begins when it is stored. Ids are forgotten in the order in which
//! they were stored: when their window has passed, or earlier when there are more of them, in number or in bytes, than may be
//! kept, or when all queues together have no more memory for them (`queues.dedup_memory`). What is forgotten early is counted,
//! since a repetition of it would be stored again. Each queue keeps a few whatever the others keep.

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
use crate::times::micros;

/// Ids of one queue at once: 12 a second for 24 h.
pub const IDS_MAX: usize = 1 << 20;
/// Bytes of ids of one queue at once.
pub const ID_BYTES_MAX: usize = 64 << 20;

/// Of an id, beside its bytes where they are many: its entry, with what the list has more of while it grows, and its place in the
/// table, which is at least half full.
const ENTRY_BYTES: u64 = 112;
/// Longer ids have memory of their own, with a head.
const INLINE_BYTES: usize = 23;
const HEAD_BYTES: usize = 24;
/// What each queue may keep whatever the others keep: some hundred ids.
const FLOOR_BYTES: u64 = 32 << 10;
/// Memory is taken from the share of all queues in pieces of so much.
const PIECE_BYTES: u64 = 64 << 10;
/// A list or table that is used to less than a part in so many is made smaller.
const LEFT_EMPTY: usize = 4;
const SMALL: usize = 1024;

/// Where a message lies in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessagePosition {
    pub partition: u32,
    pub offset: Offset,
}

/// Names the reservation of an id. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DedupTicket(u64);

/// What is known of an id of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DedupLookup {
    /// Not in the window. It is reserved until [`Dedup::stored`] or [`Dedup::failed`] says what became of its message.
    First(DedupTicket),
    /// As the id at this place of the same batch.
    SameAs(usize),
    /// The first message with it is there.
    Stored(MessagePosition),
}

/// An id of a batch is reserved for another one.
#[derive(Clone, Debug)]
pub struct DedupConflict {
    /// Its place in the batch.
    pub at: usize,
    known: Arc<Semaphore>,
}

impl DedupConflict {
    /// Returns when it is known what became of the message with that id.
    pub async fn is_over(self) {
        // Nobody ever gets a permit; closing it is the sign.
        let _ = self.known.acquire().await;
    }
}

/// One queue's ids. What it costs is O(1) for each id, amortised over those that it forgets.
#[derive(Debug)]
pub struct Dedup {
    window: Micros,
    ids_max: usize,
    id_bytes_max: usize,
    /// In the order in which they were stored; the front one has number `first`.
    entries: VecDeque<DedupEntry>,
    first: u64,
    id_bytes: usize,
    /// Of those ids that have memory of their own.
    heap_bytes: u64,
    memory: Allowance,
    /// Numbers of entries by id. The id itself is only in the entry, so it is kept once.
    numbers: HashTable<u64>,
    hasher: DefaultHashBuilder,
    forgotten_early: u64,
    /// Ids that are reserved, with what those wait for who want them, too. Each batch holds its messages meanwhile, which bounds
    /// the number of ids.
    reserved: HashMap<SmolStr, Option<Arc<Semaphore>>>,
    tickets: HashMap<u64, SmolStr>,
    next_ticket: u64,
}

#[derive(Debug)]
struct DedupEntry {
    id: SmolStr,
    since: Micros,
    /// `None`: the id is not this entry's any more, only the slot is left.
    place: Option<MessagePosition>,
}

impl Dedup {
    /// With a window of zero nothing is kept and every id is the first.
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

    /// A longer window holds for what is still known; without one nothing is.
    pub fn set_window(&mut self, window: Duration) {
        self.window = micros(window);
        while self.window == 0 && !self.entries.is_empty() {
            self.pop();
        }
    }

    /// Looks the ids of a batch up and reserves those that are not known, unless one is reserved for another batch. The look
    /// begins at `from`: who has waited for an id goes on there, and need not look at all of them for each that was busy.
    pub fn reserve(&mut self, now: Micros, ids: &[&str], from: usize) -> Result<Vec<DedupLookup>, DedupConflict> {
        // Here only some: a window of a million ids may have passed, and others wait. Maintenance does the rest.
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

    /// Whether an id is reserved under a ticket: nobody else stores a message with it.
    #[cfg(test)]
    fn holds(&self, ticket: DedupTicket) -> bool {
        self.tickets.contains_key(&ticket.0)
    }

    /// The message of the first with an id is committed there.
    pub fn stored(&mut self, now: Micros, ticket: DedupTicket, place: MessagePosition) {
        if let Some(id) = self.free(ticket) {
            self.keep(now, id, place);
        }
    }

    /// The message of the first with an id was not stored: the next with it is the first.
    pub fn failed(&mut self, ticket: DedupTicket) {
        self.free(ticket);
    }

    /// Ends a reservation. Whoever waits for the id looks again.
    fn free(&mut self, ticket: DedupTicket) -> Option<SmolStr> {
        let id = self.tickets.remove(&ticket.0)?;
        if let Some(known) = self.reserved.remove(&id).flatten() {
            known.close();
        }
        Some(id)
    }

    /// An id found in the log at a start. Those of a window are to come in the order of their times.
    pub fn restore(&mut self, since: Micros, id: &str, place: MessagePosition) {
        self.forget(since);
        if self.place_of(since, id).is_none() {
            self.keep(since, SmolStr::new(id), place);
        }
    }

    /// When the next id leaves the window; nothing depends on [`Dedup::forget`] being called then, but memory.
    pub fn next_due(&self) -> Option<Micros> {
        Some(self.entries.front()?.since.saturating_add(self.window))
    }

    /// Lets go of ids whose window has passed.
    pub fn forget(&mut self, now: Micros) {
        while self.next_due().is_some_and(|due| due <= now) {
            self.pop();
        }
    }

    /// The same of so many at most. Whether there are more.
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

    /// Ids of stored messages in memory, with those that were stored again before their window ended.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ids that were forgotten inside of their window, to make room.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }

    /// Memory that they take, about; not less.
    pub fn bytes(&self) -> u64 {
        self.entries.len() as u64 * ENTRY_BYTES + self.heap_bytes
    }

    /// So many bytes may be kept at most, whatever others keep.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.memory.limit().saturating_add(FLOOR_BYTES)
    }

    /// Of the first message with an id, if that is in the window.
    fn place_of(&mut self, now: Micros, id: &str) -> Option<MessagePosition> {
        let number = self.find(self.hasher.hash_one(id), id)?;
        let entry = entry_of(&self.entries, self.first, number)?;
        // A clock that was set back leaves old ids behind younger ones, where `forget` does not see them.
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
            // By a quarter, where it would double by itself.
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

    /// After a burst the lists are not kept as long as it made them.
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

    /// Lets go of the oldest; whether it was known.
    fn pop(&mut self) -> bool {
        let known = self.make_void(self.first);
        if self.entries.pop_front().is_some() {
            self.first += 1;
        }
        self.shrink();
        known
    }

    /// Takes an id out of the table; whether it was in there.
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
