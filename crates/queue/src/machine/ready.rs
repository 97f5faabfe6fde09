//! What can be claimed before the cursor moves: a list of single messages and of lanes, served first come, first
//! served.
//!
//! Invariant: a lane is listed exactly when its first unleased message is ready and passed by the cursor, and its
//! window has room. While it has leases it is in the list of its holder, so that other consumers, which may not take
//! the message, need not scan it.

use hashbrown::HashMap;
use thalweg_log::Offset;

use super::chain::{Chain, NIL};
use super::entry::{EntryList, MessageEntry, MessageState};
use super::lanes::{ActiveMessages, LANE, LaneAvailability, SpreadBuildHasher};

pub struct ReadyList {
    anybody: Chain,
    /// Only for windows over 1.
    holders: HashMap<u32, Chain, SpreadBuildHasher>,
    /// Both lists alternate, so that a lane that never runs dry does not starve the others.
    holder_first: bool,
}

impl Default for ReadyList {
    fn default() -> Self {
        ReadyList {
            anybody: Chain::EMPTY,
            holders: HashMap::default(),
            holder_first: true,
        }
    }
}

impl ReadyList {
    pub fn is_empty(&self) -> bool {
        self.anybody.head == NIL && self.holders.is_empty()
    }

    pub fn has_any(&self, consumer: u32) -> bool {
        self.anybody.head != NIL || (!self.holders.is_empty() && self.holders.contains_key(&consumer))
    }

    /// The entry that this consumer should get next.
    pub fn pick(&self, store: &ActiveMessages, consumer: u32) -> Option<u32> {
        let own = match self.holders.is_empty() {
            true => NIL,
            false => self.holders.get(&consumer).map_or(NIL, |chain| chain.head),
        };
        let node = match (own, self.anybody.head) {
            (NIL, NIL) => return None,
            (NIL, head) => head,
            (own, head) if self.holder_first || head == NIL => own,
            (_, head) => head,
        };
        Some(if node & LANE == 0 {
            node
        } else {
            store.lanes.get(node & !LANE).next
        })
    }

    /// Switches lists after one was served.
    pub fn turn(&mut self) {
        self.holder_first = !self.holder_first;
    }

    pub fn push(&mut self, store: &mut ActiveMessages, entry: u32) {
        self.anybody.push_back(store, entry);
        store.entries.get_mut(entry).place = EntryList::Ready;
    }

    pub fn remove(&mut self, store: &mut ActiveMessages, entry: u32) {
        self.anybody.remove(store, entry);
        store.entries.get_mut(entry).place = EntryList::None;
    }

    /// Puts the lane into the right list after any change to it, and frees it if that was its last message.
    pub fn refresh(&mut self, store: &mut ActiveMessages, lane: u32, window: u16, cursor: Offset) {
        let at = *store.lanes.get(lane);
        let may_go = |entry: &MessageEntry| entry.state == MessageState::Ready && entry.offset <= cursor;
        let room = at.leased < u32::from(window.max(1));
        let open = room && at.next != NIL && may_go(store.entries.get(at.next));
        let listed = match (open, at.leased) {
            (false, _) => LaneAvailability::Nobody,
            (true, 0) => LaneAvailability::Anybody,
            (true, _) => LaneAvailability::Holder,
        };
        if listed != at.listed {
            self.unlist(store, lane);
            match listed {
                LaneAvailability::Nobody => {}
                LaneAvailability::Anybody => self.anybody.push_back(store, lane | LANE),
                LaneAvailability::Holder => {
                    self.holders
                        .entry(at.holder)
                        .or_insert(Chain::EMPTY)
                        .push_back(store, lane | LANE);
                }
            }
            store.lanes.get_mut(lane).listed = listed;
        }
        store.vacate(lane);
    }

    #[cfg(debug_assertions)]
    pub fn nodes(&self, store: &ActiveMessages) -> Vec<u32> {
        let mut nodes = Vec::new();
        for chain in self.holders.values().chain([&self.anybody]) {
            let mut node = chain.head;
            while node != NIL {
                nodes.push(node);
                node = store.links_of(node).next;
            }
        }
        nodes
    }

    fn unlist(&mut self, store: &mut ActiveMessages, lane: u32) {
        let at = *store.lanes.get(lane);
        match at.listed {
            LaneAvailability::Nobody => {}
            LaneAvailability::Anybody => self.anybody.remove(store, lane | LANE),
            LaneAvailability::Holder => {
                if let Some(chain) = self.holders.get_mut(&at.holder) {
                    chain.remove(store, lane | LANE);
                    if chain.head == NIL {
                        self.holders.remove(&at.holder);
                    }
                }
            }
        }
    }
}
