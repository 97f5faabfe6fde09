//! Lanes: the unsettled messages of one key that the cursor has passed, leased ones first, the others behind them in
//! offset order. A lane exists while a message refers to it, including a delayed one.
//!
//! `ActiveMessages` owns entries and lanes, because lists run through both: the ready list contains single messages and
//! whole lanes. The highest bit of a node marks a lane.

use hashbrown::HashMap;

use super::chain::{Chain, Links, NIL, Nodes};
use super::entry::{EntryList, EntrySlab, grown};

/// Marks a lane in a list of nodes.
pub const LANE: u32 = 1 << 31;

/// Who can claim from a lane in the ready list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneAvailability {
    Nobody,
    /// Any consumer may take the first unleased message.
    Anybody,
    /// Only the holder.
    Holder,
}

#[derive(Clone, Copy, Debug)]
pub struct Lane {
    pub hash: u64,
    pub chain: Chain,
    /// The first message that is not leased.
    pub next: u32,
    pub leased: u32,
    pub holder: u32,
    pub listed: LaneAvailability,
    refs: u32,
    links: Links,
}

/// Keys are already hashes; one multiplication spreads those that have only 32 bits.
#[derive(Clone, Copy, Default)]
pub struct SpreadHasher(u64);

impl std::hash::Hasher for SpreadHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(u64::from(key));
    }

    fn write_u64(&mut self, key: u64) {
        let wide = u128::from(key ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}

pub type SpreadBuildHasher = std::hash::BuildHasherDefault<SpreadHasher>;

#[derive(Default)]
pub struct Lanes {
    slots: Vec<Lane>,
    free: Vec<u32>,
    by_hash: HashMap<u64, u32, SpreadBuildHasher>,
}

impl Lanes {
    pub fn get(&self, lane: u32) -> &Lane {
        &self.slots[lane as usize]
    }

    pub fn get_mut(&mut self, lane: u32) -> &mut Lane {
        &mut self.slots[lane as usize]
    }

    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Ordered by hash, so that equal states give equal orders.
    pub fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        let mut lanes: Vec<(u64, u32)> = self.by_hash.iter().map(|(hash, lane)| (*hash, *lane)).collect();
        lanes.sort_unstable();
        lanes.into_iter().map(|(_, lane)| lane)
    }

    /// Memory at the peak number of lanes so far, or with `more` additional lanes if that is more.
    pub fn bytes_with(&self, more: usize) -> usize {
        let lane = size_of::<Lane>() + size_of::<u32>() + size_of::<(u64, u32)>();
        match self.slots.is_empty() {
            // Without keys there are no lanes, and none are expected.
            true => 0,
            false => grown(self.slots.capacity(), self.len() + more) * lane,
        }
    }

    /// Releases the memory if there are no lanes.
    pub fn shrink(&mut self) {
        if self.by_hash.is_empty() {
            *self = Lanes::default();
        }
    }

    pub fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.by_hash.clear();
    }

    /// The lane of a key. An empty lane must be joined, or freed with `vacate`.
    pub fn find_or_make(&mut self, hash: u64) -> u32 {
        let (slots, free) = (&mut self.slots, &mut self.free);
        *self.by_hash.entry(hash).or_insert_with(|| {
            let lane = Lane {
                hash,
                chain: Chain::EMPTY,
                next: NIL,
                leased: 0,
                holder: 0,
                listed: LaneAvailability::Nobody,
                refs: 0,
                links: Links::NONE,
            };
            match free.pop() {
                Some(index) => {
                    slots[index as usize] = lane;
                    index
                }
                None => {
                    slots.push(lane);
                    slots.len() as u32 - 1
                }
            }
        })
    }
}

#[derive(Default)]
pub struct ActiveMessages {
    pub entries: EntrySlab,
    pub lanes: Lanes,
}

impl Nodes for ActiveMessages {
    fn links(&mut self, node: u32) -> &mut Links {
        match node & LANE {
            0 => &mut self.entries.get_mut(node).links,
            _ => &mut self.lanes.get_mut(node & !LANE).links,
        }
    }
}

#[cfg(debug_assertions)]
impl ActiveMessages {
    pub fn links_of(&self, node: u32) -> Links {
        match node & LANE {
            0 => self.entries.get(node).links,
            _ => self.lanes.get(node & !LANE).links,
        }
    }
}

#[cfg(debug_assertions)]
impl Lane {
    pub fn is_listed(&self) -> bool {
        self.listed != LaneAvailability::Nobody
    }
}

impl ActiveMessages {
    /// Assigns the entry to the lane; `enter` queues it.
    pub fn join(&mut self, entry: u32, lane: u32) {
        self.lanes.get_mut(lane).refs += 1;
        self.entries.get_mut(entry).lane = lane;
    }

    /// Queues the entry among the unleased ones, in offset order.
    pub fn enter(&mut self, entry: u32) {
        let at = *self.entries.get(entry);
        let Lane { mut chain, next, .. } = *self.lanes.get(at.lane);
        let before = match next {
            NIL => NIL,
            _ if self.entries.get(chain.tail).offset < at.offset => NIL,
            _ => self.first_after(next, chain.tail, at.offset),
        };
        chain.insert_before(self, entry, before);
        self.entries.get_mut(entry).place = EntryList::Lane;
        let lane = self.lanes.get_mut(at.lane);
        lane.chain = chain;
        if before == next {
            lane.next = entry;
        }
    }

    /// Marks the next entry of the lane as leased.
    pub fn lease_next(&mut self, lane: u32, consumer: u32) {
        let lane = self.lanes.get_mut(lane);
        lane.leased += 1;
        lane.holder = consumer;
        lane.next = self.entries.get(lane.next).links.next;
    }

    /// Puts a leased message back among the unleased ones.
    pub fn unlease(&mut self, entry: u32) {
        let lane = self.entries.get(entry).lane;
        self.unlink(entry);
        self.lanes.get_mut(lane).leased -= 1;
        self.enter(entry);
    }

    /// Removes the entry from its lane. The caller frees the lane with `vacate` once it is in no list.
    pub fn leave(&mut self, entry: u32, leased: bool) {
        let lane = std::mem::replace(&mut self.entries.get_mut(entry).lane, NIL);
        if self.entries.get(entry).place == EntryList::Lane {
            self.unlink_from(entry, lane);
        }
        let lane = self.lanes.get_mut(lane);
        lane.refs -= 1;
        lane.leased -= u32::from(leased);
    }

    /// Frees the lane if no message refers to it.
    pub fn vacate(&mut self, lane: u32) {
        let Lane { refs, hash, .. } = *self.lanes.get(lane);
        if refs == 0 {
            self.lanes.by_hash.remove(&hash);
            self.lanes.free.push(lane);
        }
    }

    fn unlink(&mut self, entry: u32) {
        self.unlink_from(entry, self.entries.get(entry).lane);
    }

    fn unlink_from(&mut self, entry: u32, lane: u32) {
        let Lane { mut chain, next, .. } = *self.lanes.get(lane);
        let after = self.entries.get(entry).links.next;
        chain.remove(self, entry);
        self.entries.get_mut(entry).place = EntryList::None;
        let lane = self.lanes.get_mut(lane);
        lane.chain = chain;
        if next == entry {
            lane.next = after;
        }
    }

    /// The first entry from `front` to `back` after `offset`; there is one. The search alternates between both ends,
    /// because a returned message is nearly always the oldest or the newest of its lane.
    fn first_after(&self, front: u32, back: u32, offset: u64) -> u32 {
        let (mut front, mut back) = (front, back);
        loop {
            let first = self.entries.get(front);
            if first.offset > offset {
                return front;
            }
            front = first.links.next;
            let previous = self.entries.get(back).links.prev;
            if previous == NIL || self.entries.get(previous).offset < offset {
                return back;
            }
            back = previous;
        }
    }
}
