//! Stores many small texts in few large blocks: 8 bytes of overhead per text; no text is moved or freed individually.

/// Position of a text: block and offset in the upper bits, length in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextRef(u64);

impl TextRef {
    pub const EMPTY: TextRef = TextRef(0);
    /// No text is known; reads as an empty one. No arena grows to this offset.
    pub const UNKNOWN: TextRef = TextRef(u64::MAX);
}

const BLOCK_BYTES: usize = 1 << 20;
const LENGTH_BITS: u32 = 20;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

/// Maximum length of a text; longer ones are truncated.
pub(crate) const TEXT_BYTES_MAX: usize = BLOCK_BYTES - 1;

#[derive(Debug, Default)]
pub(crate) struct TextArena {
    blocks: Vec<Vec<u8>>,
}

impl TextArena {
    pub fn add(&mut self, text: &str) -> TextRef {
        let mut length = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        if length == 0 {
            return TextRef::EMPTY;
        }
        let fits = self
            .blocks
            .last()
            .is_some_and(|block| block.len() + length <= BLOCK_BYTES);
        if !fits {
            // The first block grows, so that a small table stays small.
            let capacity = if self.blocks.is_empty() { 0 } else { BLOCK_BYTES };
            self.blocks.push(Vec::with_capacity(capacity));
        }
        let index = self.blocks.len() as u64 - 1;
        let Some(block) = self.blocks.last_mut() else {
            return TextRef::EMPTY;
        };
        let offset = index * BLOCK_BYTES as u64 + block.len() as u64;
        block.extend_from_slice(text.as_bytes().get(..length).unwrap_or_default());
        TextRef(offset << LENGTH_BITS | length as u64)
    }

    pub fn get(&self, text: TextRef) -> &str {
        let length = (text.0 & LENGTH_MASK) as usize;
        let offset = text.0 >> LENGTH_BITS;
        let (block, start) = (offset / BLOCK_BYTES as u64, (offset % BLOCK_BYTES as u64) as usize);
        let block = usize::try_from(block).ok().and_then(|index| self.blocks.get(index));
        let bytes = block
            .and_then(|block| block.get(start..start + length))
            .unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    pub fn heap_bytes(&self) -> usize {
        // All blocks but the first are allocated at full size.
        let first = self.blocks.first().map_or(0, Vec::capacity);
        let others = self.blocks.len().saturating_sub(1) * BLOCK_BYTES;
        first + others + self.blocks.capacity() * size_of::<Vec<u8>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_beyond_the_limit_is_cut_at_a_character() {
        let mut arena = TextArena::default();
        let long = "ä".repeat(BLOCK_BYTES);
        let kept = arena.add(&long);
        assert_eq!(arena.get(kept).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(arena.add(""), TextRef::EMPTY);
        assert_eq!(arena.get(TextRef::UNKNOWN), "");
    }

    proptest! {
        #[test]
        fn every_text_comes_back(texts in prop::collection::vec(".{0,300}", 0..50), filler in 0usize..BLOCK_BYTES) {
            let mut arena = TextArena::default();
            let filled = arena.add(&"x".repeat(filler));
            let refs: Vec<TextRef> = texts.iter().map(|text| arena.add(text)).collect();
            prop_assert_eq!(arena.get(filled).len(), filler);
            for (text, reference) in texts.iter().zip(refs) {
                prop_assert_eq!(arena.get(reference), text);
            }
        }
    }
}
