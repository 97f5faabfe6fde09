//! The order of writes: a write that the broker has is not finished before every older one that shares a topic with it.
//! Until then the older one may have to be resent, and with it the records that overtook it.
//!
//! The order is kept by topic. By key, the bookkeeping per record would cost more than it saves. For all writes
//! together, one topic without a leader would delay all others.

use std::collections::{BTreeSet, HashMap};

use thalweg_record::Text;

#[derive(Default)]
pub struct WriteOrder {
    /// The places of the unfinished writes.
    topics: HashMap<Text, BTreeSet<u64>>,
}

impl WriteOrder {
    /// Adds a write with records of these topics. Repeated calls are allowed.
    pub fn enter(&mut self, place: u64, topics: &BTreeSet<Text>) {
        for topic in topics {
            if let Some(places) = self.topics.get_mut(topic) {
                places.insert(place);
            } else {
                self.topics.insert(topic.clone(), BTreeSet::from([place]));
            }
        }
    }

    /// Whether no older write shares a topic.
    pub fn is_first(&self, place: u64, topics: &BTreeSet<Text>) -> bool {
        let first_of = |topic: &Text| self.topics.get(topic).and_then(BTreeSet::first).copied();
        topics.iter().filter_map(first_of).all(|first| first >= place)
    }

    /// Removes a finished write; returns the writes that may be first now.
    pub fn leave(&mut self, place: u64, topics: &BTreeSet<Text>) -> Vec<u64> {
        let mut next = Vec::new();
        for topic in topics {
            let Some(places) = self.topics.get_mut(topic) else {
                continue;
            };
            places.remove(&place);
            match places.first() {
                Some(first) => next.push(*first),
                None => {
                    self.topics.remove(topic);
                }
            }
        }
        next.sort_unstable();
        next.dedup();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_is_after_each_older_one_that_shares_a_topic() {
        let topics = |names: &[&'static str]| names.iter().map(|name| Text::new_static(name)).collect();
        let (both, one, other): (BTreeSet<Text>, _, _) = (topics(&["t", "u"]), topics(&["t"]), topics(&["u"]));
        let mut order = WriteOrder::default();
        order.enter(1, &one);
        order.enter(2, &other);
        order.enter(3, &both);
        order.enter(3, &both);
        assert!(
            order.is_first(1, &one) && order.is_first(2, &other),
            "they share nothing"
        );
        assert_eq!(order.leave(2, &other), [3]);
        assert!(!order.is_first(3, &both));
        assert_eq!(order.leave(1, &one), [3]);
        assert!(order.is_first(3, &both));
        assert!(order.leave(3, &both).is_empty());
        assert!(order.topics.is_empty(), "topics that nothing is sent to cost nothing");
    }
}
