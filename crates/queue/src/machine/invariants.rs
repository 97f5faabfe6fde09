//! Invariants that hold between any two calls, checked in debug builds: every entry is in the place that its state
//! implies, every list is complete, and counts add up.

use super::WorkMachine;

#[cfg(not(debug_assertions))]
impl WorkMachine {
    pub(super) fn check(&self) {}
}

#[cfg(debug_assertions)]
impl WorkMachine {
    /// A full check costs O(unsettled), so large machines are skipped.
    pub(super) fn check(&self) {
        if self.store.entries.len() <= 1000 {
            self.check_all();
        }
    }

    fn check_all(&self) {
        use super::WindowSlot;
        assert!(self.floor() <= self.cursor, "the floor is beyond the cursor");
        assert_eq!(
            self.window.get(self.cursor),
            WindowSlot::Empty,
            "the cursor stands on something known"
        );
        let slots = || (self.floor()..self.window.end()).map(|offset| (offset, self.window.get(offset)));
        let ahead = slots()
            .filter(|(offset, slot)| *offset >= self.cursor && *slot != WindowSlot::Empty)
            .count();
        assert_eq!(ahead as u64, self.ahead);
        assert!(
            !matches!(
                self.window.get(self.floor()),
                WindowSlot::Settled(_) | WindowSlot::Asleep
            ),
            "the floor is not as high as it can be"
        );
        let active = slots()
            .filter(|(_, slot)| matches!(slot, WindowSlot::Active(_)))
            .count();
        assert_eq!(
            active + self.held.len(),
            self.store.entries.len(),
            "an entry is nowhere"
        );
        let mut asleep = slots()
            .filter(|(_, slot)| *slot == WindowSlot::Asleep)
            .map(|(offset, _)| offset);
        let above = self.delayed_set.iter().filter(|offset| *offset >= self.floor());
        assert!(above.eq(asleep.by_ref()), "who sleeps has no slot");
        for (entry, at) in self.store.entries.iter() {
            assert!(!self.delayed_set.contains(at.offset), "it sleeps and has an entry");
            assert_eq!(at.held, at.offset < self.floor());
            match at.held {
                true => assert_eq!(self.held.get(&at.offset), Some(&entry)),
                false => assert_eq!(self.window.get(at.offset), WindowSlot::Active(entry)),
            }
            self.check_entry(entry);
        }
        for lane in self.store.lanes.indices() {
            self.check_lane(lane);
        }
        self.check_ready();
    }

    fn check_entry(&self, entry: u32) {
        use super::{EntryList, MessageState, NIL};
        let at = self.store.entries.get(entry);
        let armed = match at.state {
            MessageState::Delayed | MessageState::Leased | MessageState::Waiting => true,
            MessageState::Ready => at.expires_at != super::entry::NEVER,
            MessageState::Ending | MessageState::Free => false,
        };
        assert_eq!(at.timer.is_armed(), armed, "{at:?}");
        let place = match at.state {
            MessageState::Delayed => EntryList::None,
            MessageState::Waiting | MessageState::Leased if at.lane == NIL => EntryList::None,
            MessageState::Ready if at.lane == NIL => EntryList::Ready,
            MessageState::Ending => EntryList::Ending,
            _ => EntryList::Lane,
        };
        let taken = at.state == MessageState::Ending && at.place == EntryList::None;
        assert!(at.place == place || taken, "{at:?}");
        assert!(
            at.reason.is_none() || at.lane == NIL,
            "what leaves has left its lane: {at:?}"
        );
    }

    fn check_lane(&self, lane: u32) {
        use super::lanes::LaneAvailability;
        use super::{MessageState, NIL};
        let at = self.store.lanes.get(lane);
        let (mut entry, mut prev, mut last, mut leased) = (at.chain.head, NIL, None, 0);
        let mut before_next = true;
        while entry != NIL {
            let other = self.store.entries.get(entry);
            assert_eq!((other.lane, other.links.prev), (lane, prev));
            before_next &= entry != at.next;
            assert_eq!(
                before_next,
                other.state == MessageState::Leased,
                "leased ones stand in front: {other:?}"
            );
            if before_next {
                leased += 1;
                assert_eq!(other.consumer, at.holder);
            } else {
                assert!(last < Some(other.offset), "offset order");
                last = Some(other.offset);
            }
            prev = entry;
            entry = other.links.next;
        }
        assert_eq!((leased, prev), (at.leased, at.chain.tail));
        let open = at.next != NIL
            && self.store.entries.get(at.next).state == MessageState::Ready
            && self.store.entries.get(at.next).offset <= self.cursor
            && leased < u32::from(self.policy.lane_window);
        let listed = match (open, leased) {
            (false, _) => LaneAvailability::Nobody,
            (true, 0) => LaneAvailability::Anybody,
            (true, _) => LaneAvailability::Holder,
        };
        assert_eq!(at.listed, listed);
    }

    fn check_ready(&self) {
        use super::{MessageState, NIL};
        let listed = self.ready.nodes(&self.store);
        let singles = self
            .store
            .entries
            .iter()
            .filter(|(_, at)| at.state == MessageState::Ready && at.lane == NIL)
            .count();
        let lanes = self
            .store
            .lanes
            .indices()
            .filter(|lane| self.store.lanes.get(*lane).is_listed())
            .count();
        assert_eq!(
            listed.iter().filter(|node| **node & super::lanes::LANE == 0).count(),
            singles
        );
        assert_eq!(listed.len(), singles + lanes);
    }
}
