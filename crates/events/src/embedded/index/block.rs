//! Blocks of a table: sorted keys with their values. Each key omits the prefix that it shares with the key before. A
//! block is verified and decoded once when it is read, so that it supports binary search and iteration in both
//! directions.

use thalweg_kit::varint;

/// A block is closed at this size.
pub(super) const BLOCK_BYTES: usize = 8 << 10;
/// Maximum total length of the keys of a block. Decoded keys can be many times their encoded length: a few megabytes
/// for the name of a stream and its neighbours.
const KEYS_BYTES_MAX: usize = 16 << 20;
/// The xxh3 checksum after the entries, little-endian.
const CHECKSUM: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    bytes: Vec<u8>,
    last: Vec<u8>,
    pub first: Vec<u8>,
}

impl BlockBuilder {
    /// Adds an entry. Keys must be in order.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = match self.bytes.is_empty() {
            true => {
                self.first.clear();
                self.first.extend_from_slice(key);
                0
            }
            false => self
                .last
                .iter()
                .zip(key)
                .take_while(|(one, other)| one == other)
                .count(),
        };
        let own = key.get(shared..).unwrap_or_default();
        varint::put(&mut self.bytes, shared as u64);
        varint::put(&mut self.bytes, own.len() as u64);
        varint::put(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(own);
        self.bytes.extend_from_slice(value);
        self.last.clear();
        self.last.extend_from_slice(key);
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK_BYTES
    }

    /// The encoded block. The builder is empty afterwards.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }
}

#[derive(Debug)]
pub(crate) struct Block {
    /// Whole keys, concatenated.
    keys: Vec<u8>,
    values: Vec<u8>,
    /// The ends of the key and the value of each entry.
    ends: Vec<(u32, u32)>,
}

/// The bytes before the checksum, if it is correct.
pub(super) fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
    (xxhash_rust::xxh3::xxh3_64(body).to_le_bytes() == *sum).then_some(body)
}

impl Block {
    /// `None` if the bytes are not a whole block.
    pub fn parse(bytes: &[u8]) -> Option<Block> {
        let mut rest = checked(bytes)?;
        let mut block = Block {
            keys: Vec::with_capacity(2 * rest.len()),
            values: Vec::with_capacity(rest.len()),
            ends: Vec::new(),
        };
        while !rest.is_empty() {
            let (shared, after) = varint::take(rest)?;
            let (own, after) = varint::take(after)?;
            let (value, after) = varint::take(after)?;
            let (own, after) = after.split_at_checked(usize::try_from(own).ok()?)?;
            let (value, after) = after.split_at_checked(usize::try_from(value).ok()?)?;
            let last = block.ends.len().checked_sub(1).map_or(0..0, |last| block.range(last).0);
            let shared = last.start..last.start.checked_add(usize::try_from(shared).ok()?)?;
            if shared.end > last.end || block.keys.len() + shared.len() + own.len() > KEYS_BYTES_MAX {
                return None;
            }
            block.keys.extend_from_within(shared);
            block.keys.extend_from_slice(own);
            block.values.extend_from_slice(value);
            let ends = (
                u32::try_from(block.keys.len()).ok()?,
                u32::try_from(block.values.len()).ok()?,
            );
            block.ends.push(ends);
            rest = after;
        }
        // The block may be cached for long and is charged for its capacity.
        block.keys.shrink_to_fit();
        block.values.shrink_to_fit();
        block.ends.shrink_to_fit();
        Some(block)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Size in memory.
    pub fn bytes(&self) -> usize {
        self.keys.capacity() + self.values.capacity() + 8 * self.ends.capacity() + size_of::<Block>()
    }

    fn range(&self, n: usize) -> (std::ops::Range<usize>, std::ops::Range<usize>) {
        let end = |n: usize| self.ends.get(n).copied().unwrap_or_default();
        let (start, end) = (n.checked_sub(1).map_or((0, 0), end), end(n));
        (start.0 as usize..end.0 as usize, start.1 as usize..end.1 as usize)
    }

    pub fn key(&self, n: usize) -> &[u8] {
        self.keys.get(self.range(n).0).unwrap_or_default()
    }

    pub fn value(&self, n: usize) -> &[u8] {
        self.values.get(self.range(n).1).unwrap_or_default()
    }

    /// The index of the first entry whose key is not less.
    pub fn at_least(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle) < key {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_block_gives_back_what_was_put_in(
            entries in proptest::collection::btree_map(
                proptest::collection::vec(0_u8..4, 0..9), any::<Vec<u8>>(), 1..40),
            asked in proptest::collection::vec(0_u8..4, 0..9),
        ) {
            let mut builder = BlockBuilder::default();
            entries.iter().for_each(|(key, value)| builder.add(key, value));
            let first = builder.first.clone();
            prop_assert_eq!(Some(&first), entries.keys().next());
            let bytes = builder.finish();
            let block = Block::parse(&bytes).unwrap();
            let found: BTreeMap<Vec<u8>, Vec<u8>> =
                (0..block.len()).map(|n| (block.key(n).to_vec(), block.value(n).to_vec())).collect();
            prop_assert_eq!(block.at_least(&asked), entries.range(..asked.clone()).count());
            prop_assert_eq!(found, entries);
            // The cache charges the block's exact size.
            let used = block.keys.len() + block.values.len() + 8 * block.ends.len() + size_of::<Block>();
            prop_assert_eq!(block.bytes(), used);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                prop_assert!(Block::parse(&damaged).is_none());
                prop_assert!(Block::parse(&bytes[..at]).is_none());
            }
        }

        #[test]
        fn no_bytes_break_it(bytes in any::<Vec<u8>>()) {
            // With a valid checksum.
            let mut whole = bytes.clone();
            whole.extend_from_slice(&xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
            let _ = Block::parse(&whole);
        }
    }
}
