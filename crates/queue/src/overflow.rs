//! Overflow `drop-oldest`: room is made by what nobody has, the oldest first.

use std::sync::atomic::Ordering;

use thalweg_log::Offset;

use crate::group::Group;
use crate::machine::{Passed, Reason};
use crate::part::{Inner, State};
use crate::queue::Queue;
use crate::store::Next;

impl Queue {
    /// Makes room by dropping the oldest messages that nobody has. False if that is not enough.
    pub(crate) fn drop_oldest(&self, count: u64, bytes: u64) -> bool {
        let settings = self.settings();
        let to_dlq = settings.dlq.enabled && settings.dlq.on_overflow;
        let mut groups = self.groups();
        groups.retain(|group| group.is_work());
        let over_depth = |group: &Group| settings.max_depth > 0 && group.backlog() + count > settings.max_depth;
        let limit = self.admission.lock().limit(count, bytes);
        let over_bytes = limit.is_some_and(|(key, _)| key != "max_depth");
        let mut dropped = false;
        for group in &groups {
            let mut tries = count.max(1) + if over_bytes { 64 } else { 0 };
            while tries > 0 && (over_depth(group) || over_bytes) && self.drop_oldest_of(group, to_dlq) {
                (dropped, tries) = (true, tries - 1);
            }
        }
        if dropped {
            self.let_go();
        }
        dropped
    }
}

impl Queue {
    /// Drops the oldest message that no consumer of the group has, of the partition that has the oldest.
    fn drop_oldest_of(&self, group: &Group, to_dlq: bool) -> bool {
        let now = self.clock.now();
        let mut order: Vec<(Offset, u32)> = group.parts().map(|(n, part)| (part.wants(), n)).collect();
        order.sort_unstable();
        for (_, partition) in order {
            let (Some(part), Some(store)) = (group.part(partition), self.store(partition)) else {
                continue;
            };
            let mut inner = part.inner.lock();
            let Inner { state, cursor, .. } = &mut *inner;
            let State::Work(machine) = state else {
                continue;
            };
            let mut done = machine.drop_oldest(to_dlq, now).is_some();
            if !done && let Ok(Next::Message(message, hint)) = store.at(cursor, machine.cursor()) {
                let passing = message.passing(group.name(), group.settings.filter.as_deref(), hint);
                done = matches!(machine.discard(&passing, to_dlq, now), Passed::Taken);
            }
            let _ = self.after(group, partition, part, &mut inner, now);
            if done {
                if !to_dlq {
                    group.counters.dropped.fetch_add(1, Ordering::Relaxed);
                    self.counters.dropped.count(Reason::Overflow);
                }
                return true;
            }
        }
        false
    }
}
