//! Long-delayed messages that were never delivered. Each takes one bit, because the log has the rest.
//!
//! They are grouped in spans of 256 offsets, each with the earliest time at which one of its messages is due. Shortly
//! before that time the caller reads the span from the log again, and the messages that are due get an entry. So ten
//! million messages delayed until tomorrow take a few megabytes, and each is read twice. (One entry each, as for leased
//! messages, would take a gigabyte.)

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thalweg_log::{Micros, Offset};

/// Offsets per span: as many as are worth one read.
pub const SPAN: u64 = 256;
const WORDS: usize = (SPAN / 64) as usize;

#[derive(Clone, Default)]
pub struct DelayedMessageSet {
    spans: BTreeMap<u64, DelayedSpan>,
    /// Spans by the time at which they must be read.
    by_wake: BTreeSet<(Micros, u64)>,
    len: u64,
}

/// Memory of a span with its nodes in both trees.
const SPAN_BYTES: usize = 2 * size_of::<(u64, DelayedSpan)>();

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayedSpan {
    pub bits: [u64; WORDS],
    /// Not after the first of them is due.
    pub wake: Micros,
}

fn place(offset: Offset) -> (u64, usize, u64) {
    let within = offset % SPAN;
    (offset / SPAN, (within / 64) as usize, 1 << (within % 64))
}

impl DelayedSpan {
    fn offsets(self, span: u64) -> impl Iterator<Item = Offset> {
        (0u64..).zip(self.bits).flat_map(move |(word, bits)| {
            let rest = std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)));
            let set = rest.take_while(|bits| *bits != 0);
            set.map(move |bits| span * SPAN + word * 64 + u64::from(bits.trailing_zeros()))
        })
    }

    fn is_empty(&self) -> bool {
        self.bits == [0; WORDS]
    }
}

impl DelayedMessageSet {
    /// Approximate memory use.
    pub fn bytes(&self) -> usize {
        self.spans.len() * SPAN_BYTES
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn contains(&self, offset: Offset) -> bool {
        let (span, word, bit) = place(offset);
        self.spans.get(&span).is_some_and(|span| span.bits[word] & bit != 0)
    }

    pub fn first(&self) -> Option<Offset> {
        let (span, at) = self.spans.first_key_value()?;
        at.offsets(*span).next()
    }

    pub fn insert(&mut self, offset: Offset, wake: Micros) {
        let (span, word, bit) = place(offset);
        let nothing = DelayedSpan {
            bits: [0; WORDS],
            wake: Micros::MAX,
        };
        let at = self.spans.entry(span).or_insert(nothing);
        self.len += u64::from(at.bits[word] & bit == 0);
        at.bits[word] |= bit;
        if wake < at.wake || at.wake == Micros::MAX {
            self.by_wake.remove(&(at.wake, span));
            self.by_wake.insert((wake, span));
            at.wake = wake;
        }
    }

    /// Returns whether it was in the set.
    pub fn remove(&mut self, offset: Offset) -> bool {
        let (span, word, bit) = place(offset);
        let Some(at) = self.spans.get_mut(&span).filter(|at| at.bits[word] & bit != 0) else {
            return false;
        };
        at.bits[word] &= !bit;
        self.len -= 1;
        if at.is_empty() {
            self.by_wake.remove(&(at.wake, span));
            self.spans.remove(&span);
        }
        true
    }

    pub fn remove_range(&mut self, range: Range<Offset>) {
        if self.len == 0 || range.is_empty() {
            return;
        }
        let spans = self.spans.range(range.start / SPAN..=(range.end - 1) / SPAN);
        let asleep: Vec<Offset> = spans.flat_map(|(span, at)| at.offsets(*span)).collect();
        for offset in asleep.into_iter().filter(|offset| range.contains(offset)) {
            self.remove(offset);
        }
    }

    pub fn clear(&mut self) {
        *self = DelayedMessageSet::default();
    }

    /// The span to read next, and when.
    pub fn next(&self) -> Option<(Micros, Range<Offset>)> {
        let (wake, span) = self.by_wake.first()?;
        Some((*wake, span * SPAN..(span + 1).saturating_mul(SPAN)))
    }

    pub fn within(&self, range: &Range<Offset>) -> Vec<Offset> {
        let span = range.start / SPAN;
        let found = self.spans.get(&span).map(|at| at.offsets(span));
        found.into_iter().flatten().collect()
    }

    /// Sets when the span is read, if it still exists.
    pub fn again_at(&mut self, range: &Range<Offset>, wake: Micros) {
        let span = range.start / SPAN;
        if let Some(at) = self.spans.get_mut(&span) {
            self.by_wake.remove(&(at.wake, span));
            self.by_wake.insert((wake, span));
            at.wake = wake;
        }
    }

    /// Sets when all spans are read, because their due times have changed.
    pub fn all_at(&mut self, wake: Micros) {
        for span in self.spans.values_mut() {
            span.wake = wake;
        }
        self.by_wake = self.spans.keys().map(|span| (wake, *span)).collect();
    }

    pub fn spans(&self) -> impl ExactSizeIterator<Item = (u64, &DelayedSpan)> {
        self.spans.iter().map(|(span, at)| (*span, at))
    }

    #[cfg(any(test, debug_assertions))]
    pub fn iter(&self) -> impl Iterator<Item = Offset> + '_ {
        self.spans.iter().flat_map(|(span, at)| at.offsets(*span))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn delayed_messages_are_a_set_of_offsets_whose_spans_are_read_in_time(
            steps in prop::collection::vec((0u64..1100, 0i64..50, 0u8..10), 0..300),
        ) {
            let (mut delayed, mut model) = (DelayedMessageSet::default(), BTreeMap::new());
            for (offset, wake, what) in steps {
                match what {
                    0..6 => {
                        delayed.insert(offset, wake);
                        let due = model.entry(offset).or_insert(wake);
                        *due = wake.min(*due);
                    }
                    6..9 => prop_assert_eq!(delayed.remove(offset), model.remove(&offset).is_some()),
                    _ => {
                        delayed.remove_range(offset..offset + 300);
                        model.retain(|other, _| !(offset..offset + 300).contains(other));
                    }
                }
                prop_assert_eq!(delayed.len(), model.len() as u64);
                prop_assert!(delayed.iter().eq(model.keys().copied()));
                prop_assert_eq!(delayed.first(), model.keys().next().copied());
                prop_assert_eq!(delayed.next().is_some(), !model.is_empty());
                let first = model.values().min();
                prop_assert!(delayed.next().is_none_or(|(wake, _)| Some(&wake) <= first));
            }
        }
    }
}
