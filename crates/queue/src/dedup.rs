//! Which `dedup-id`s came lately, and where their message is.
//!
//! An id goes in; the place of the first message with it comes out if that came less than a window ago. The first is taken
//! down before its message is stored, so of two that come together one waits for the other and never both are stored.
//! Ids are forgotten in the order in which they came: when their window has passed, or earlier when there are more of
//! them, in number or in bytes, than may be kept. What is forgotten early is counted, since a repetition of it would be
//! stored again.

mod kept;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashTable};
use smol_str::SmolStr;
use thalweg_log::{Micros, Offset};

use crate::times::micros;

/// Ids of one queue at once: 200 a second for 24 h, in about 100 MiB with ids of 36 bytes.
pub const IDS_MAX: usize = 1 << 20;
/// Bytes of ids of one queue at once.
pub const ID_BYTES_MAX: usize = 64 << 20;

/// Where a message lies in its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub partition: u32,
    pub offset: Offset,
}

/// Names an id that was taken down, until its window has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl Ticket {
    /// Of an id that is not kept.
    const OF_NOTHING: Ticket = Ticket(u64::MAX);
}

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Not in the window; it is now, until [`Dedup::stored`] or [`Dedup::failed`] says what became of its message.
    First(Ticket),
    /// The first message with it is being stored.
    Pending(Ticket),
    /// The first message with it is there.
    Stored(Place),
}

/// One queue's ids. Every call is O(1), amortised over the ids that it forgets.
#[derive(Debug)]
pub struct Dedup {
    window: Micros,
    ids_max: usize,
    id_bytes_max: usize,
    /// In the order in which they came; the ticket of the front one is `first`.
    entries: VecDeque<Entry>,
    first: u64,
    id_bytes: usize,
    /// Tickets by id. The id itself is only in the entry, so it is kept once.
    tickets: HashTable<u64>,
    hasher: DefaultHashBuilder,
    forgotten_early: u64,
}

#[derive(Debug)]
struct Entry {
    id: SmolStr,
    since: Micros,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Pending,
    Stored(Place),
    /// Its message was not stored: only the slot is left.
    Void,
}

impl Dedup {
    /// With a window of zero nothing is kept and every id is the first.
    pub fn new(window: Duration) -> Dedup {
        Dedup::with_limits(window, IDS_MAX, ID_BYTES_MAX)
    }

    fn with_limits(window: Duration, ids_max: usize, id_bytes_max: usize) -> Dedup {
        Dedup {
            window: micros(window),
            ids_max,
            id_bytes_max,
            entries: VecDeque::new(),
            first: 0,
            id_bytes: 0,
            tickets: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            forgotten_early: 0,
        }
    }

    /// A longer window holds for what is still known; without one nothing is.
    pub fn set_window(&mut self, window: Duration) {
        self.window = micros(window);
        while self.window == 0 && !self.entries.is_empty() {
            self.pop();
        }
    }

    /// Looks an id up, and takes it down if it is not known.
    pub fn see(&mut self, now: Micros, id: &str) -> Seen {
        self.forget(now);
        let hash = self.hasher.hash_one(id);
        if let Some(ticket) = self.find(hash, id)
            && let Some(entry) = self.entry(ticket)
        {
            // A clock that was set back leaves old ids behind younger ones, where `forget` does not see them.
            if now.saturating_sub(entry.since) < self.window {
                return match entry.state {
                    State::Stored(place) => Seen::Stored(place),
                    State::Pending | State::Void => Seen::Pending(Ticket(ticket)),
                };
            }
            self.make_void(ticket);
        }
        Seen::First(self.take_down(now, hash, id))
    }

    /// Whether the first message with an id is being stored.
    pub fn is_pending(&self, now: Micros, id: &str) -> bool {
        let found = self
            .find(self.hasher.hash_one(id), id)
            .and_then(|ticket| self.entry(ticket));
        found
            .is_some_and(|entry| matches!(entry.state, State::Pending) && now.saturating_sub(entry.since) < self.window)
    }

    /// The message of the first with an id is committed there.
    pub fn stored(&mut self, ticket: Ticket, place: Place) {
        if let Some(entry) = self.entry_mut(ticket.0)
            && matches!(entry.state, State::Pending)
        {
            entry.state = State::Stored(place);
        }
    }

    /// The message of the first with an id was not stored: the next with it is the first.
    pub fn failed(&mut self, ticket: Ticket) {
        if self
            .entry(ticket.0)
            .is_some_and(|entry| matches!(entry.state, State::Pending))
        {
            self.make_void(ticket.0);
        }
    }

    /// What has become of the message that somebody waits for; `None` if it was not stored or is forgotten.
    pub fn outcome(&self, ticket: Ticket) -> Option<Seen> {
        match self.entry(ticket.0)?.state {
            State::Pending => Some(Seen::Pending(ticket)),
            State::Stored(place) => Some(Seen::Stored(place)),
            State::Void => None,
        }
    }

    /// An id found in the log at a start. Those of a window are to come in the order of their times.
    pub fn restore(&mut self, since: Micros, id: &str, place: Place) {
        if let Seen::First(ticket) = self.see(since, id) {
            self.stored(ticket, place);
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

    /// Ids in memory, with those that were void before their window ended.
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

    fn take_down(&mut self, now: Micros, hash: u64, id: &str) -> Ticket {
        if self.window == 0 {
            return Ticket::OF_NOTHING;
        }
        let ticket = self.first + self.entries.len() as u64;
        self.id_bytes += id.len();
        self.entries.push_back(Entry {
            id: SmolStr::new(id),
            since: now,
            state: State::Pending,
        });
        let (hasher, entries, first) = (&self.hasher, &self.entries, self.first);
        self.tickets.insert_unique(hash, ticket, |ticket| {
            entry_of(entries, first, *ticket).map_or(0, |entry| hasher.hash_one(entry.id.as_str()))
        });
        while self.entries.len() > self.ids_max || self.id_bytes > self.id_bytes_max {
            self.forgotten_early += u64::from(self.pop());
        }
        Ticket(ticket)
    }

    /// Lets go of the oldest; whether it was known.
    fn pop(&mut self) -> bool {
        let known = self.make_void(self.first);
        if self.entries.pop_front().is_some() {
            self.first += 1;
        }
        known
    }

    /// Takes an id out of the table; whether it was in there.
    fn make_void(&mut self, ticket: u64) -> bool {
        let Some(entry) = entry_of_mut(&mut self.entries, self.first, ticket) else {
            return false;
        };
        if matches!(entry.state, State::Void) {
            return false;
        }
        entry.state = State::Void;
        let id = std::mem::take(&mut entry.id);
        self.id_bytes -= id.len();
        let hash = self.hasher.hash_one(id.as_str());
        if let Ok(found) = self.tickets.find_entry(hash, |other| *other == ticket) {
            found.remove();
        }
        true
    }

    fn find(&self, hash: u64, id: &str) -> Option<u64> {
        let same = |ticket: &u64| self.entry(*ticket).is_some_and(|entry| entry.id == id);
        self.tickets.find(hash, same).copied()
    }

    fn entry(&self, ticket: u64) -> Option<&Entry> {
        entry_of(&self.entries, self.first, ticket)
    }

    fn entry_mut(&mut self, ticket: u64) -> Option<&mut Entry> {
        entry_of_mut(&mut self.entries, self.first, ticket)
    }
}

fn entry_of(entries: &VecDeque<Entry>, first: u64, ticket: u64) -> Option<&Entry> {
    entries.get(usize::try_from(ticket.checked_sub(first)?).ok()?)
}

fn entry_of_mut(entries: &mut VecDeque<Entry>, first: u64, ticket: u64) -> Option<&mut Entry> {
    entries.get_mut(usize::try_from(ticket.checked_sub(first)?).ok()?)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_micros(100);

    fn place(offset: Offset) -> Place {
        Place { partition: 3, offset }
    }

    fn first(dedup: &mut Dedup, now: Micros, id: &str) -> Ticket {
        match dedup.see(now, id) {
            Seen::First(ticket) => ticket,
            seen => panic!("{id} at {now} is {seen:?}"),
        }
    }

    #[test]
    fn a_repetition_inside_the_window_gets_the_first_place() {
        let mut dedup = Dedup::new(WINDOW);
        let ticket = first(&mut dedup, 0, "a");
        dedup.stored(ticket, place(7));
        assert_eq!(dedup.see(99, "a"), Seen::Stored(place(7)));
        assert!(
            matches!(dedup.see(100, "a"), Seen::First(_)),
            "a repetition does not lengthen the window"
        );
    }

    #[test]
    fn of_two_that_come_together_the_second_waits_for_the_first() {
        let mut dedup = Dedup::new(WINDOW);
        let ticket = first(&mut dedup, 0, "a");
        assert_eq!(dedup.see(1, "a"), Seen::Pending(ticket));
        assert_eq!(dedup.outcome(ticket), Some(Seen::Pending(ticket)));
        dedup.stored(ticket, place(7));
        assert_eq!(dedup.outcome(ticket), Some(Seen::Stored(place(7))));
    }

    #[test]
    fn a_message_that_was_not_stored_leaves_its_id_free() {
        let mut dedup = Dedup::new(WINDOW);
        let ticket = first(&mut dedup, 0, "a");
        dedup.failed(ticket);
        assert_eq!(dedup.outcome(ticket), None);
        let again = first(&mut dedup, 1, "a");
        dedup.failed(ticket);
        assert_eq!(
            dedup.see(2, "a"),
            Seen::Pending(again),
            "the old ticket says nothing about the new message"
        );
    }

    #[test]
    fn a_stored_message_cannot_fail_later() {
        let mut dedup = Dedup::new(WINDOW);
        let ticket = first(&mut dedup, 0, "a");
        dedup.stored(ticket, place(7));
        dedup.failed(ticket);
        dedup.stored(ticket, place(8));
        assert_eq!(dedup.see(1, "a"), Seen::Stored(place(7)));
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_counted_when_there_are_too_many() {
        let mut dedup = Dedup::with_limits(WINDOW, 3, 1000);
        for id in ["a", "b", "c", "d"] {
            first(&mut dedup, 0, id);
        }
        assert_eq!((dedup.len(), dedup.forgotten_early()), (3, 1));
        assert!(matches!(dedup.see(1, "b"), Seen::Pending(_)));
        first(&mut dedup, 1, "a");
        assert_eq!(dedup.forgotten_early(), 2);
        dedup.forget(1000);
        assert!(dedup.is_empty());
        assert_eq!(dedup.forgotten_early(), 2, "what leaves with its window is not early");
    }

    #[test]
    fn long_ids_are_bounded_in_bytes() {
        let mut dedup = Dedup::with_limits(WINDOW, 1000, 100);
        let long = "x".repeat(60);
        let ticket = first(&mut dedup, 0, &long);
        first(&mut dedup, 0, &"y".repeat(60));
        assert_eq!((dedup.len(), dedup.forgotten_early()), (1, 1));
        dedup.stored(ticket, place(1));
        assert_eq!(dedup.outcome(ticket), None);
        first(&mut dedup, 0, &"z".repeat(200));
        assert_eq!(dedup.len(), 0, "one that does not fit at all is not kept");
    }

    #[test]
    fn without_a_window_every_message_is_the_first() {
        let mut dedup = Dedup::new(Duration::ZERO);
        let ticket = first(&mut dedup, 0, "a");
        dedup.stored(ticket, place(1));
        first(&mut dedup, 0, "a");
        assert!(dedup.is_empty());
    }

    #[test]
    fn a_clock_that_is_set_back_keeps_no_id_longer_than_the_window() {
        let mut dedup = Dedup::new(WINDOW);
        first(&mut dedup, 1000, "young");
        let old = first(&mut dedup, 10, "old");
        dedup.stored(old, place(1));
        assert_eq!(dedup.see(50, "old"), Seen::Stored(place(1)));
        assert_eq!(dedup.next_due(), Some(1100));
        assert!(matches!(dedup.see(110, "old"), Seen::First(_)));
    }

    #[test]
    fn ids_come_back_from_the_log() {
        let mut dedup = Dedup::new(WINDOW);
        dedup.restore(0, "a", place(1));
        dedup.restore(50, "b", place(2));
        dedup.restore(60, "b", place(3));
        dedup.restore(110, "c", place(4));
        assert!(matches!(dedup.see(120, "a"), Seen::First(_)));
        assert_eq!(dedup.see(120, "b"), Seen::Stored(place(2)));
        assert_eq!(dedup.see(120, "c"), Seen::Stored(place(4)));
    }

    #[derive(Clone, Debug)]
    enum Op {
        See(u8),
        Stored(usize),
        Failed(usize),
        Pass(i64),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => (0..8_u8).prop_map(Op::See),
            2 => any::<usize>().prop_map(Op::Stored),
            1 => any::<usize>().prop_map(Op::Failed),
            2 => (0..60_i64).prop_map(Op::Pass),
        ];
        proptest::collection::vec(op, 0..200)
    }

    proptest! {
        /// Against a plain map that forgets nothing early.
        #[test]
        fn an_id_is_first_exactly_when_no_message_with_it_is_in_the_window(ops in ops()) {
            let mut dedup = Dedup::new(WINDOW);
            let mut model: HashMap<u8, (Micros, Ticket, Option<Place>)> = HashMap::new();
            let mut tickets: Vec<(u8, Ticket)> = Vec::new();
            let (mut now, mut offset) = (0, 0);
            for op in ops {
                match op {
                    Op::Pass(time) => now += time,
                    Op::See(id) => {
                        let known = model.get(&id).copied().filter(|(since, ..)| now - since < 100);
                        let seen = dedup.see(now, &format!("id-{id}"));
                        match known {
                            Some((_, _, Some(place))) => prop_assert_eq!(seen, Seen::Stored(place)),
                            Some((_, ticket, None)) => prop_assert_eq!(seen, Seen::Pending(ticket)),
                            None => {
                                let Seen::First(ticket) = seen else {
                                    return Err(TestCaseError::fail(format!("{seen:?} is not the first")));
                                };
                                model.insert(id, (now, ticket, None));
                                tickets.push((id, ticket));
                            }
                        }
                    }
                    Op::Stored(at) if !tickets.is_empty() => {
                        let (id, ticket) = tickets[at % tickets.len()];
                        offset += 1;
                        dedup.stored(ticket, place(offset));
                        if let Some((_, current, stored)) = model.get_mut(&id) && *current == ticket {
                            stored.get_or_insert(place(offset));
                        }
                    }
                    Op::Failed(at) if !tickets.is_empty() => {
                        let (id, ticket) = tickets[at % tickets.len()];
                        dedup.failed(ticket);
                        if model.get(&id).is_some_and(|(_, current, stored)| *current == ticket && stored.is_none()) {
                            model.remove(&id);
                        }
                    }
                    Op::Stored(_) | Op::Failed(_) => {}
                }
                let known = dedup.entries.iter().filter(|entry| !matches!(entry.state, State::Void)).count();
                prop_assert_eq!(dedup.tickets.len(), known);
                let bytes: usize = dedup.entries.iter().map(|entry| entry.id.len()).sum();
                prop_assert_eq!(dedup.id_bytes, bytes);
            }
        }

        #[test]
        fn neither_number_nor_bytes_pass_their_limits(ids in proptest::collection::vec("[a-d]{1,30}", 0..100)) {
            let mut dedup = Dedup::with_limits(WINDOW, 10, 80);
            for id in ids {
                dedup.see(0, &id);
                prop_assert!(dedup.len() <= 10 && dedup.id_bytes <= 80);
            }
        }
    }
}
