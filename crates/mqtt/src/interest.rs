//! Which messages of the log match which filters: what sessions read that were away or are slow.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use thalweg_mqtt_store::interest::ListRead;
use thalweg_mqtt_store::{FilterId, InterestList, Offset};

/// The interest lists of all filters that a stored session has.
#[derive(Default)]
pub(crate) struct InterestLists {
    inner: Mutex<InterestInner>,
}

#[derive(Default)]
struct InterestInner {
    by_filter: HashMap<FilterId, InterestList>,
    /// All messages before this one are in their lists.
    applied: Offset,
}

/// What there is for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedMessages {
    pub offsets: Vec<Offset>,
    /// Nothing else is for the session before this one.
    pub next: Offset,
    /// There is nothing behind them.
    pub is_end: bool,
}

impl InterestLists {
    pub fn begin(&self, filter: FilterId) {
        self.inner.lock().by_filter.entry(filter).or_default();
    }

    pub fn end(&self, filter: FilterId) {
        self.inner.lock().by_filter.remove(&filter);
    }

    /// A message is stored that matches these filters.
    pub fn push(&self, filters: &[FilterId], offset: Offset) {
        let mut inner = self.inner.lock();
        for filter in filters {
            inner.by_filter.entry(*filter).or_default().push(offset);
        }
        inner.applied = offset + 1;
    }

    /// Starts behind the messages before this one.
    pub fn start_at(&self, applied: Offset) {
        self.inner.lock().applied = applied;
    }

    pub fn applied(&self) -> Offset {
        self.inner.lock().applied
    }

    /// Up to `max` messages from `next` on that match one of these filters, each from a message of its own on.
    pub fn read(&self, filters: &[(FilterId, Offset)], next: Offset, max: usize) -> ListedMessages {
        let inner = self.inner.lock();
        let mut found = BTreeSet::new();
        // Messages from here on may be missing in what was found.
        let mut complete = inner.applied;
        let mut offsets = Vec::new();
        for (filter, since) in filters {
            let Some(list) = inner.by_filter.get(filter) else {
                continue;
            };
            offsets.clear();
            if list.read(next.max(*since), max, &mut offsets) != ListRead::End {
                complete = complete.min(offsets.last().map_or(next, |last| last + 1));
            }
            found.extend(offsets.iter().copied());
        }
        let mut within = found.range(..complete).copied();
        let offsets: Vec<Offset> = within.by_ref().take(max).collect();
        let next = match (within.next(), offsets.last()) {
            (Some(_), Some(last)) => last + 1,
            _ => complete,
        };
        ListedMessages {
            offsets,
            is_end: next == inner.applied,
            next,
        }
    }

    /// Forgets messages that nobody needs.
    pub fn trim(&self, below: Offset) {
        self.inner
            .lock()
            .by_filter
            .values_mut()
            .for_each(|list| list.trim(below));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_reads_the_messages_of_all_its_filters_in_order_and_each_once() {
        let lists = InterestLists::default();
        for offset in 10..100 {
            let filters = [FilterId(1), FilterId(2)];
            lists.push(if offset % 3 == 0 { &filters } else { &filters[..1] }, offset);
        }
        for max in [1, 2, 7, 1000] {
            let filters = [(FilterId(1), 50), (FilterId(2), 0), (FilterId(3), 0)];
            let (mut next, mut all) = (20, Vec::new());
            loop {
                let read = lists.read(&filters, next, max);
                assert!(read.offsets.len() <= max && (read.next > next || read.is_end));
                all.extend(read.offsets);
                next = read.next;
                if read.is_end {
                    break;
                }
            }
            assert_eq!(next, 100);
            let expected: Vec<u64> = (20..100).filter(|offset| *offset >= 50 || offset % 3 == 0).collect();
            assert_eq!(all, expected, "{max}");
        }
    }
}
