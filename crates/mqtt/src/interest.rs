//! Which messages of the log match which filters: what sessions read that were away or are slow.

use std::collections::{BTreeSet, HashMap, VecDeque};

use parking_lot::Mutex;
use thalweg_mqtt_store::interest::ListRead;
use thalweg_mqtt_store::{FilterId, InterestList, Message, Offset};

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
    /// All messages before this one are gone, although their list may name them.
    trimmed: Offset,
    /// The newest messages, without gaps, for sessions that are a little slow.
    recent: VecDeque<Message>,
    recent_bytes: usize,
}

/// Bytes of the newest messages that are kept.
const RECENT_BYTES: usize = 8 << 20;

impl InterestInner {
    fn recent(&self, offset: Offset) -> Option<&Message> {
        let back = self.applied.checked_sub(offset + 1)?;
        let index = (self.recent.len() as u64).checked_sub(back + 1)?;
        self.recent.get(index as usize)
    }

    fn keep(&mut self, message: &Message) {
        self.recent_bytes += message.bytes();
        self.recent.push_back(message.clone());
        while self.recent_bytes > RECENT_BYTES
            && let Some(oldest) = self.recent.pop_front()
        {
            self.recent_bytes -= oldest.bytes();
        }
    }
}

/// What there is for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedMessages {
    /// Those that are not in memory are without a body.
    pub messages: Vec<(Offset, Option<Message>)>,
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
    pub fn push(&self, filters: &[FilterId], offset: Offset, message: &Message) {
        let mut inner = self.inner.lock();
        for filter in filters {
            inner.by_filter.entry(*filter).or_default().push(offset);
        }
        if offset != inner.applied {
            inner.recent.clear();
            inner.recent_bytes = 0;
        }
        inner.applied = offset + 1;
        inner.keep(message);
    }

    /// A message that a start has found matches these filters.
    pub fn push_found(&self, filters: &[FilterId], offset: Offset) {
        let mut inner = self.inner.lock();
        for filter in filters {
            inner.by_filter.entry(*filter).or_default().push(offset);
        }
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
        let next = next.max(inner.trimmed);
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
        let messages: Vec<_> = within
            .by_ref()
            .take(max)
            .map(|offset| (offset, inner.recent(offset).cloned()))
            .collect();
        let next = match (within.next(), messages.last()) {
            (Some(_), Some((last, _))) => last + 1,
            _ => complete,
        };
        ListedMessages {
            messages,
            is_end: next == inner.applied,
            next,
        }
    }

    /// How many messages from `next` on match these filters; those that match several count for each.
    pub fn count(&self, filters: &[(FilterId, Offset)], next: Offset) -> u64 {
        let inner = self.inner.lock();
        let next = next.max(inner.trimmed);
        let lists = filters
            .iter()
            .filter_map(|(filter, since)| Some((inner.by_filter.get(filter)?, *since)));
        lists.map(|(list, since)| list.count_from(next.max(since))).sum()
    }

    /// Where so many messages from `next` on are passed.
    pub fn skip(&self, filters: &[(FilterId, Offset)], next: Offset, count: u64) -> Offset {
        let (mut low, mut high) = (next, self.applied());
        let all = self.count(filters, next);
        while low < high {
            let middle = low + (high - low) / 2;
            match all - self.count(filters, middle).min(all) < count {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }

    /// Those of these messages that are in memory.
    pub fn recent(&self, offsets: &[Offset]) -> HashMap<Offset, Message> {
        let inner = self.inner.lock();
        offsets
            .iter()
            .filter_map(|offset| Some((*offset, inner.recent(*offset)?.clone())))
            .collect()
    }

    /// Forgets messages that nobody needs.
    pub fn trim(&self, below: Offset) {
        let mut inner = self.inner.lock();
        inner.trimmed = inner.trimmed.max(below);
        inner.by_filter.values_mut().for_each(|list| list.trim(below));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_mqtt_store::MessageParts;

    use super::*;

    #[test]
    fn a_session_reads_the_messages_of_all_its_filters_in_order_and_each_once() {
        let lists = InterestLists::default();
        for offset in 10..100 {
            let filters = [FilterId(1), FilterId(2)];
            let filters = if offset % 3 == 0 { &filters } else { &filters[..1] };
            match offset < 40 {
                true => lists.push_found(filters, offset),
                false => {
                    let topic = offset.to_string();
                    let message = Message::new(&MessageParts {
                        topic: &topic,
                        ..MessageParts::default()
                    });
                    lists.push(filters, offset, &message);
                }
            }
        }
        for max in [1, 2, 7, 1000] {
            let filters = [(FilterId(1), 50), (FilterId(2), 0), (FilterId(3), 0)];
            let (mut next, mut all) = (20, Vec::new());
            loop {
                let read = lists.read(&filters, next, max);
                assert!(read.messages.len() <= max && (read.next > next || read.is_end));
                all.extend(read.messages);
                next = read.next;
                if read.is_end {
                    break;
                }
            }
            assert_eq!(next, 100);
            let offsets: Vec<u64> = all.iter().map(|(offset, _)| *offset).collect();
            let expected: Vec<u64> = (20..100).filter(|offset| *offset >= 50 || offset % 3 == 0).collect();
            assert_eq!(offsets, expected, "{max}");
            for (offset, message) in all {
                // What a start has found is in the log alone.
                assert_eq!(
                    message.map(|message| message.topic().to_owned()),
                    (offset >= 40).then(|| offset.to_string())
                );
            }
        }
    }
}
