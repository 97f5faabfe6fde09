//! Expiry times of messages that expire before one that was stored earlier, mostly because of their own `ttl`. Where no
//! consumer claims, a group's cursor stays at the oldest live message, and these messages are somewhere after it.
//!
//! The index keeps the earliest time of each span of offsets. There are at most [`SPANS_MAX`] spans, which widen
//! instead of growing in number, so memory is bounded. Recording a time and finding the first one after an offset are
//! O(log of the spans). A partition whose messages expire in order stores nothing.

use std::sync::atomic::{AtomicI64, Ordering};

use parking_lot::Mutex;
use thalweg_log::{Micros, Offset};

use super::GATHER;
use crate::group_partition::NEVER;

const SPANS_MIN: usize = 64;
const SPANS_MAX: usize = 4096;

/// The index of one partition.
#[derive(Debug)]
pub(crate) struct EarlyExpiryIndex {
    /// No recorded message expires later.
    latest: AtomicI64,
    spans: Mutex<EarliestTimeTree>,
}

impl Default for EarlyExpiryIndex {
    fn default() -> EarlyExpiryIndex {
        EarlyExpiryIndex {
            latest: AtomicI64::new(Micros::MIN),
            spans: Mutex::default(),
        }
    }
}

impl EarlyExpiryIndex {
    /// Records a stored message. Returns whether it may expire before one that was stored earlier. `has_own` means that
    /// its lifetime is not the queue's: concurrent appends are recorded in any order, so their times alone do not tell.
    pub fn note(&self, offset: Offset, expires_at: Micros, has_own: bool) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        // Skip the update for small differences, to save an atomic write per message.
        if expires_at.saturating_sub(GATHER) > latest {
            self.latest.fetch_max(expires_at, Ordering::Relaxed);
        }
        let is_early = has_own || expires_at < latest;
        if is_early {
            self.spans.lock().note(offset, expires_at);
        }
        is_early
    }

    /// The earliest expiry time at or after an offset, and the end of the span that contains it.
    pub fn first(&self, from: Offset) -> Option<(Micros, Offset)> {
        self.spans.lock().first(from)
    }

    /// Whether a message at or after an offset may have expired.
    pub fn is_due(&self, from: Offset, now: Micros) -> bool {
        self.first(from).is_some_and(|(at, _)| at <= now)
    }

    /// Forgets messages before an offset.
    pub fn forget_before(&self, offset: Offset) {
        self.spans.lock().forget_before(offset);
    }
}

/// The earliest time of each span, as a binary tree. The leaves are the spans; each node has the minimum of its
/// subtree.
#[derive(Debug, Default)]
struct EarliestTimeTree {
    /// The number of leaves is a power of two. Node 1 is the root; the children of node n are 2n and 2n + 1.
    tree: Vec<Micros>,
    /// The first offset of the first leaf.
    begins: Offset,
    /// Offsets per span, a power of two.
    width: u64,
}

impl EarliestTimeTree {
    fn leaves(&self) -> usize {
        self.tree.len() / 2
    }

    fn note(&mut self, offset: Offset, at: Micros) {
        if self.tree.is_empty() {
            self.tree = vec![NEVER; 2 * SPANS_MIN];
            (self.begins, self.width) = (offset, 1);
        }
        if offset < self.begins {
            self.rebuild(offset, self.width);
        }
        while (offset - self.begins) / self.width >= self.leaves() as u64 {
            match self.leaves() < SPANS_MAX {
                true => self.grow(),
                false => self.rebuild(self.begins, self.width * 2),
            }
        }
        self.lower(((offset - self.begins) / self.width) as usize, at);
    }

    fn lower(&mut self, leaf: usize, at: Micros) {
        let mut node = self.leaves() + leaf;
        while node > 0 {
            match self.tree.get_mut(node) {
                Some(known) if *known > at => *known = at,
                _ => return,
            }
            node /= 2;
        }
    }

    /// Doubles the number of leaves.
    fn grow(&mut self) {
        let leaves = self.leaves();
        let mut grown = EarliestTimeTree {
            tree: vec![NEVER; 4 * leaves],
            ..*self
        };
        for (leaf, at) in self.tree.iter().skip(leaves).enumerate() {
            grown.lower(leaf, *at);
        }
        *self = grown;
    }

    /// Rebuilds with other spans, in at most [`SPANS_MAX`] leaves. Times before the new beginning go to the first leaf.
    fn rebuild(&mut self, begins: Offset, width: u64) {
        let mut width = width;
        let last = self.begins + self.width * self.leaves() as u64;
        while (last - begins).div_ceil(width) > SPANS_MAX as u64 {
            width *= 2;
        }
        let leaves = ((last - begins).div_ceil(width) as usize)
            .next_power_of_two()
            .max(SPANS_MIN);
        let mut rebuilt = EarliestTimeTree {
            tree: vec![NEVER; 2 * leaves],
            begins,
            width,
        };
        let known = self.tree.iter().skip(self.leaves()).enumerate();
        for (leaf, at) in known.filter(|(_, at)| **at != NEVER) {
            // The new spans may not align with the old ones, so the time is recorded in every span that it may belong
            // to.
            let first = self.begins + leaf as u64 * self.width;
            for offset in [first, first + self.width - 1] {
                rebuilt.lower((offset.saturating_sub(begins) / width) as usize, *at);
            }
        }
        *self = rebuilt;
    }

    fn first(&self, from: Offset) -> Option<(Micros, Offset)> {
        let leaves = self.leaves();
        if leaves == 0 {
            return None;
        }
        let at = (from.saturating_sub(self.begins) / self.width) as usize;
        if at >= leaves {
            return None;
        }
        // Visits the nodes that cover all leaves from `from` on, from left to right.
        let mut node = leaves + at;
        let mut earliest = (NEVER, node);
        loop {
            let time = self.tree.get(node).copied().unwrap_or(NEVER);
            if time < earliest.0 {
                earliest = (time, node);
            }
            // Go up to where there is a subtree on the right.
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                break;
            }
            node += 1;
        }
        let (time, mut node) = earliest;
        if time == NEVER {
            return None;
        }
        while node < leaves {
            node *= 2;
            if self.tree.get(node) != Some(&time) {
                node += 1;
            }
        }
        Some((time, self.begins + (node - leaves + 1) as u64 * self.width))
    }

    fn forget_before(&mut self, offset: Offset) {
        let last = self.begins + self.width * self.leaves() as u64;
        if self.tree.is_empty() || offset.saturating_sub(self.begins) < (last - self.begins) / 2 {
            return;
        }
        if offset >= last {
            *self = EarliestTimeTree::default();
            return;
        }
        // Half of the range is gone, so this is rare.
        let begins = offset - offset.saturating_sub(self.begins) % self.width;
        let mut rest = EarliestTimeTree {
            tree: vec![NEVER; 2 * SPANS_MIN],
            begins,
            width: self.width,
        };
        let gone = ((begins - self.begins) / self.width) as usize;
        for (leaf, at) in self.tree.iter().skip(self.leaves() + gone).enumerate() {
            if *at != NEVER {
                while leaf >= rest.leaves() {
                    rest.grow();
                }
                rest.lower(leaf, *at);
            }
        }
        *self = rest;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Note(Offset, Micros),
        Forget(Offset),
        First(Offset),
    }

    fn op() -> impl Strategy<Value = Op> {
        let offset = prop_oneof![0..200_u64, 0..100_000_u64];
        prop_oneof![
            5 => (offset.clone(), 0..1000_i64).prop_map(|(offset, at)| Op::Note(offset, at)),
            1 => offset.clone().prop_map(Op::Forget),
            4 => offset.prop_map(Op::First),
        ]
    }

    proptest! {
        /// The reported time may be too early by the width of a span, but never too late; and the reported end is
        /// after a message with that time.
        #[test]
        fn nothing_that_expires_is_missed(ops in prop::collection::vec(op(), 1..300), base in 0..1_u64 << 50) {
            let (mut spans, mut known, mut gone) = (EarliestTimeTree::default(), Vec::<(Offset, Micros)>::new(), 0);
            for op in ops {
                match op {
                    Op::Note(offset, at) => {
                        spans.note(base + offset, at);
                        known.push((offset, at));
                    }
                    Op::Forget(offset) => {
                        gone = gone.max(offset);
                        spans.forget_before(base + offset);
                        known.retain(|(known, _)| *known >= offset);
                    }
                    Op::First(from) if from >= gone => {
                        let first = known.iter().filter(|(offset, _)| *offset >= from).map(|(_, at)| *at).min();
                        let found = spans.first(base + from);
                        match (first, found) {
                            (Some(first), None) => return Err(TestCaseError::fail(format!("{first} is missed"))),
                            (Some(first), Some((found, _))) => prop_assert!(found <= first),
                            (None, _) => {}
                        }
                        if let Some((_, end)) = found {
                            prop_assert!(end > base + from, "who walks up to the end goes on");
                        }
                    }
                    Op::First(_) => {}
                }
                prop_assert!(spans.leaves() <= SPANS_MAX);
            }
        }

        #[test]
        fn with_narrow_spans_the_first_is_exact(times in prop::collection::vec(0..1000_i64, 1..60), from in 0..60_u64) {
            let mut spans = EarliestTimeTree::default();
            for (offset, at) in (0..).zip(&times) {
                spans.note(offset, *at);
            }
            let after = (0..).zip(&times).filter(|(offset, _)| *offset >= from);
            let first = after.min_by_key(|(offset, at)| (**at, *offset)).map(|(offset, at)| (*at, offset + 1));
            prop_assert_eq!(spans.first(from), first);
        }
    }
}
