//! Active messages: passed by the cursor, not settled, and not simply the next ones. Entries are in a slab with a free
//! list and are referred to by index, so creating and dropping one allocates nothing once the slab has its size.

use thalweg_log::{Micros, Offset};

use super::chain::{Links, NIL};
use super::timer_wheel::{Timer, Timers};
use super::types::{MessageMeta, PendingRemoval, RemovalReason};

/// `expires_at` of a message that never expires.
pub const NEVER: Micros = Micros::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum MessageState {
    Delayed = 0,
    Ready = 1,
    Leased = 2,
    Waiting = 3,
    Ending = 4,
    Free = 5,
}

/// Which list an entry's `links` belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryList {
    None,
    Lane,
    Ready,
    Ending,
}

#[derive(Clone, Copy, Debug)]
pub struct MessageEntry {
    pub offset: Offset,
    /// Lease deadline, retry time or not-before, depending on the state.
    pub due: Micros,
    pub expires_at: Micros,
    /// 0 before the first delivery.
    pub first_delivery: Micros,
    /// When the last lease was made.
    pub claimed_at: Micros,
    /// When the cursor passed it.
    pub passed_at: Micros,
    pub timer: Timer,
    pub links: Links,
    pub lane: u32,
    pub consumer: u32,
    pub deliveries: u32,
    pub hint: u32,
    /// Epoch of the last lease.
    pub epoch: u32,
    pub failures: u16,
    pub state: MessageState,
    pub place: EntryList,
    /// Why it must leave, once it must; stays while a failed move waits.
    pub reason: Option<RemovalReason>,
    /// An earlier message of its lane ended its last lease. `release` may still report that it was never sent.
    pub revoked: bool,
    pub held: bool,
    /// It was woken after a long delay and not delivered since; a restart puts it back to sleep.
    pub roused: bool,
}

impl MessageEntry {
    pub fn new(message: &MessageMeta, now: Micros) -> Self {
        MessageEntry {
            offset: message.offset,
            due: 0,
            expires_at: message.expires_at.unwrap_or(NEVER),
            first_delivery: 0,
            claimed_at: 0,
            passed_at: now,
            timer: Timer::IDLE,
            links: Links::NONE,
            lane: NIL,
            consumer: 0,
            deliveries: 0,
            hint: message.hint,
            epoch: 0,
            failures: 0,
            state: MessageState::Free,
            place: EntryList::None,
            reason: None,
            revoked: false,
            held: false,
            roused: false,
        }
    }

    pub fn ending(&self) -> PendingRemoval {
        PendingRemoval {
            offset: self.offset,
            hint: self.hint,
            reason: self.reason.unwrap_or(RemovalReason::Rejected),
            deliveries: self.deliveries,
            first_attempt: self.first_delivery,
            last_attempt: self.claimed_at,
        }
    }

    /// Whether a restart must know more about it than the log says.
    pub fn is_known_only_here(&self) -> bool {
        let overflow = self.reason == Some(RemovalReason::Overflow);
        (self.held && !self.roused) || self.deliveries > 0 || overflow
    }

    /// Whether it was never delivered and the log says everything about it.
    pub fn may_sleep_again(&self) -> bool {
        self.roused && !self.is_known_only_here()
    }
}

/// The capacity of a vector that grows to this many elements.
pub fn grown(capacity: usize, len: usize) -> usize {
    match len <= capacity {
        true => capacity,
        false => len.max(2 * capacity),
    }
}

#[derive(Default)]
pub struct EntrySlab {
    entries: Vec<MessageEntry>,
    free: Vec<u32>,
    by_state: [u64; 6],
    /// Consumers whose leases have ended since this was last emptied, once per lease.
    lease_ends: Vec<u32>,
}

impl EntrySlab {
    pub fn insert(&mut self, entry: MessageEntry, state: MessageState) -> u32 {
        let index = match self.free.pop() {
            Some(index) => {
                self.entries[index as usize] = entry;
                index
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.by_state[state as usize] += 1;
        self.entries[index as usize].state = state;
        index
    }

    pub fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        debug_assert!(entry.state != MessageState::Free && entry.place == EntryList::None);
        self.by_state[entry.state as usize] -= 1;
        if entry.state == MessageState::Leased {
            self.lease_ends.push(entry.consumer);
        }
        entry.state = MessageState::Free;
        self.free.push(index);
    }

    pub fn get(&self, index: u32) -> &MessageEntry {
        &self.entries[index as usize]
    }

    /// The entry, if it is in use.
    pub fn find(&self, index: u32) -> Option<&MessageEntry> {
        self.entries
            .get(index as usize)
            .filter(|entry| entry.state != MessageState::Free)
    }

    pub fn get_mut(&mut self, index: u32) -> &mut MessageEntry {
        &mut self.entries[index as usize]
    }

    pub fn set_state(&mut self, index: u32, state: MessageState) {
        let entry = &mut self.entries[index as usize];
        self.by_state[entry.state as usize] -= 1;
        self.by_state[state as usize] += 1;
        if entry.state == MessageState::Leased && state != MessageState::Leased {
            self.lease_ends.push(entry.consumer);
        }
        entry.state = state;
    }

    /// Memory at the peak number of entries so far, or with `more` additional entries if that is more.
    pub fn bytes_with(&self, more: usize) -> usize {
        // Each entry may be in the free list, which doubles when it grows.
        grown(self.entries.capacity(), self.len() + more) * (size_of::<MessageEntry>() + 2 * size_of::<u32>())
    }

    /// How many entries can be added without more memory.
    pub fn spare(&self) -> usize {
        self.entries.capacity() - self.len()
    }

    pub fn lease_ends(&mut self) -> &mut Vec<u32> {
        &mut self.lease_ends
    }

    pub fn count(&self, state: MessageState) -> u64 {
        self.by_state[state as usize]
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &MessageEntry)> + '_ {
        (0..)
            .zip(&self.entries)
            .filter(|(_, entry)| entry.state != MessageState::Free)
    }

    /// Releases the memory. Only called when there are no entries.
    pub fn shrink(&mut self) {
        debug_assert_eq!(self.len(), 0);
        (self.entries, self.free) = (Vec::new(), Vec::new());
    }

    pub fn clear(&mut self) {
        let leased = self.entries.iter().filter(|entry| entry.state == MessageState::Leased);
        self.lease_ends.extend(leased.map(|entry| entry.consumer));
        self.entries.clear();
        self.free.clear();
        self.by_state = [0; 6];
    }
}

impl Timers for EntrySlab {
    fn timer(&mut self, handle: u32) -> &mut Timer {
        &mut self.entries[handle as usize].timer
    }
}
