//! A Bloom filter with ten bits and seven probes per key. It excludes most keys that a table does not have without
//! reading the table, and is wrong for about one key in a hundred.

const BITS_PER_KEY: u64 = 10;
const PROBES: u64 = 7;

#[derive(Debug, Default)]
pub(super) struct Bloom {
    words: Vec<u64>,
}

impl Bloom {
    /// Builds a filter from the hashes of keys.
    pub fn of(hashes: &[u64]) -> Bloom {
        let bits = (hashes.len() as u64 * BITS_PER_KEY).max(64);
        let mut words = vec![0_u64; bits.div_ceil(64) as usize];
        let bits = words.len() as u64 * 64;
        for hash in hashes {
            for bit in probes(*hash, bits) {
                if let Some(word) = words.get_mut((bit / 64) as usize) {
                    *word |= 1 << (bit % 64);
                }
            }
        }
        Bloom { words }
    }

    /// False if the key is certainly missing.
    pub fn may_have(&self, hash: u64) -> bool {
        let bits = self.words.len() as u64 * 64;
        let is_set = |bit: u64| {
            self.words
                .get((bit / 64) as usize)
                .is_some_and(|word| word >> (bit % 64) & 1 == 1)
        };
        bits > 0 && probes(hash, bits).all(is_set)
    }

    pub fn bytes(&self) -> usize {
        8 * self.words.len()
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        self.words
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    pub fn decode(bytes: &[u8]) -> Bloom {
        let words = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        Bloom { words: words.collect() }
    }
}

/// Derives all probes from two halves of one hash (Kirsch and Mitzenmacher, 2006).
fn probes(hash: u64, bits: u64) -> impl Iterator<Item = u64> {
    let step = hash.rotate_left(32) | 1;
    (0..PROBES).map(move |n| hash.wrapping_add(step.wrapping_mul(n)) % bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> u64 {
        xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())
    }

    #[test]
    fn it_has_what_was_put_in_and_little_else() {
        let own: Vec<u64> = (0..10_000).map(hash).collect();
        let mut bytes = Vec::new();
        Bloom::of(&own).encode(&mut bytes);
        let bloom = Bloom::decode(&bytes);
        assert!(own.iter().all(|hash| bloom.may_have(*hash)));
        let wrong = (10_000..20_000).filter(|n| bloom.may_have(hash(*n))).count();
        assert!(wrong < 200, "{wrong} of 10,000");
        assert!(!Bloom::of(&[]).may_have(1) && !Bloom::default().may_have(1));
    }
}
