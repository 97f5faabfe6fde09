//! When something is due: keep alives, session expiries, wills. All of a broker's deadlines are in one queue, so nothing runs for a
//! session while nothing is due.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// Keys with the time at which each is due, one per key.
#[derive(Clone, Debug)]
pub struct DeadlineQueue<K> {
    by_time: BTreeSet<(i64, K)>,
    by_key: HashMap<K, i64>,
}

impl<K> Default for DeadlineQueue<K> {
    fn default() -> DeadlineQueue<K> {
        DeadlineQueue {
            by_time: BTreeSet::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Copy + Ord + Hash> DeadlineQueue<K> {
    /// Sets when a key is due, in the place of what was set before.
    pub fn set(&mut self, key: K, at: i64) {
        self.cancel(key);
        self.by_time.insert((at, key));
        self.by_key.insert(key, at);
    }

    /// Returns whether it was set.
    pub fn cancel(&mut self, key: K) -> bool {
        match self.by_key.remove(&key) {
            Some(at) => self.by_time.remove(&(at, key)),
            None => false,
        }
    }

    /// When the first key is due.
    pub fn next(&self) -> Option<i64> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes the first key that is due at `now`.
    pub fn take_due(&mut self, now: i64) -> Option<K> {
        let (at, key) = *self.by_time.first()?;
        if at > now {
            return None;
        }
        self.by_time.pop_first();
        self.by_key.remove(&key);
        Some(key)
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_when_they_are_due_and_once() {
        let mut queue = DeadlineQueue::default();
        queue.set(1, 30);
        queue.set(2, 10);
        queue.set(3, 20);
        queue.set(1, 15);
        assert!(queue.cancel(3) && !queue.cancel(3));
        assert_eq!((queue.next(), queue.len()), (Some(10), 2));
        assert_eq!(queue.take_due(9), None);
        assert_eq!(queue.take_due(40), Some(2));
        assert_eq!(queue.take_due(40), Some(1));
        assert_eq!((queue.take_due(40), queue.is_empty()), (None, true));
    }
}
