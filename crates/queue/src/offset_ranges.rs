//! A set of offsets stored as ranges: adjacent offsets share one entry.

use std::collections::BTreeMap;

use thalweg_kit::varint;
use thalweg_log::Offset;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OffsetRanges {
    /// Start to exclusive end. Ranges never touch.
    ranges: BTreeMap<Offset, Offset>,
}

impl OffsetRanges {
    pub fn contains(&self, offset: Offset) -> bool {
        let before = self.ranges.range(..=offset).next_back();
        before.is_some_and(|(_, end)| offset < *end)
    }

    /// False if it was already in the set.
    pub fn insert(&mut self, offset: Offset) -> bool {
        if self.contains(offset) {
            return false;
        }
        let before = self
            .ranges
            .range(..offset)
            .next_back()
            .map(|(start, end)| (*start, *end));
        let start = before
            .filter(|(_, end)| *end == offset)
            .map_or(offset, |(start, _)| start);
        let end = self.ranges.remove(&(offset + 1)).unwrap_or(offset + 1);
        self.ranges.insert(start, end);
        true
    }

    /// Removes offsets before `first`. Returns how many.
    pub fn trim(&mut self, first: Offset) -> u64 {
        let mut count = 0;
        while let Some((start, end)) = self.ranges.first_key_value().map(|(start, end)| (*start, *end)) {
            if start >= first {
                break;
            }
            self.ranges.remove(&start);
            count += end.min(first) - start;
            if end > first {
                self.ranges.insert(first, end);
            }
        }
        count
    }

    pub fn iter(&self) -> impl Iterator<Item = Offset> + '_ {
        self.ranges.iter().flat_map(|(start, end)| *start..*end)
    }

    pub fn len(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| end - start).sum()
    }

    /// The end of the range that contains `first`, or `first`.
    pub fn end_from(&self, first: Offset) -> Offset {
        let before = self.ranges.range(..=first).next_back();
        before.map_or(first, |(_, end)| first.max(*end))
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for (start, end) in &self.ranges {
            varint::put(out, *start);
            varint::put(out, end - start);
        }
    }

    /// Adds encoded ranges; `None` for invalid bytes.
    pub fn decode_into(&mut self, mut bytes: &[u8]) -> Option<()> {
        while !bytes.is_empty() {
            let (start, rest) = varint::take(bytes)?;
            let (count, rest) = varint::take(rest)?;
            let end = start.checked_add(count)?;
            self.add(start, end);
            bytes = rest;
        }
        Some(())
    }

    pub fn add_all(&mut self, others: &OffsetRanges) {
        others.ranges.iter().for_each(|(start, end)| self.add(*start, *end));
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn add(&mut self, mut start: Offset, mut end: Offset) {
        if start >= end {
            return;
        }
        let touching: Vec<Offset> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(_, other)| **other >= start)
            .map(|(at, _)| *at)
            .collect();
        for at in touching {
            if let Some(other) = self.ranges.remove(&at) {
                (start, end) = (start.min(at), end.max(other));
            }
        }
        self.ranges.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_hold_what_was_put_in(offsets in prop::collection::vec(0..60u64, 0..80), first in 0..60u64) {
            let (mut ranges, mut known) = (OffsetRanges::default(), BTreeSet::new());
            for offset in offsets {
                prop_assert_eq!(ranges.insert(offset), known.insert(offset));
            }
            let mut bytes = Vec::new();
            ranges.encode(&mut bytes);
            let mut again = OffsetRanges::default();
            prop_assert_eq!(again.decode_into(&bytes), Some(()));
            prop_assert_eq!(&again, &ranges);
            prop_assert_eq!(again.decode_into(&bytes), Some(()));
            prop_assert_eq!(&again, &ranges, "twice is once");
            prop_assert_eq!(ranges.len(), known.len() as u64);
            prop_assert_eq!(ranges.trim(first), known.range(..first).count() as u64);
            for offset in 0..70 {
                prop_assert_eq!(ranges.contains(offset), offset >= first && known.contains(&offset));
            }
            let end = ranges.end_from(first);
            prop_assert!((first..end).all(|offset| known.contains(&offset)) && !known.contains(&end));
        }

        #[test]
        fn any_bytes_are_ranges_or_none(bytes: Vec<u8>) {
            let _ = OffsetRanges::default().decode_into(&bytes);
        }
    }
}
