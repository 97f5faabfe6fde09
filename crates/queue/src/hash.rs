//! Maps a key to its partition, and to its lane inside the partition.
//!
//! Both results must never change: messages are stored by the partition and checkpoints name the lane. So they are the
//! same after a restart, on every machine and in every later version.

use std::num::NonZeroU64;

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// FNV-1a, 32 bits: the hash by which the reference system chooses partitions.
pub fn fnv1a32(bytes: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME);
    bytes.iter().fold(FNV_OFFSET, step)
}

/// The partition of a key. Zero partitions are treated as one.
pub fn partition_of(key: &[u8], partitions: u32) -> u32 {
    fnv1a32(key) % partitions.max(1)
}

/// Constants without a pattern: the fractional binary digits of the square roots of 2, 3 and 5, made odd.
const SEED: u64 = 0x6a09_e667_f3bc_c909;
const STEP: u64 = 0xbb67_ae85_84ca_a73b;
const LAST: u64 = 0x3c6e_f372_fe94_f82b;

/// The lane of a key. Never zero, so that stored state can use zero for "no lane".
///
/// Each step folds eight bytes through both halves of a 128-bit product. `hashbrown`'s own hash is unsuitable because
/// every process uses a new seed. FNV is too slow because it goes byte by byte and every message needs its lane. The
/// hash is not keyed: keys that are made to collide share a lane, so they wait for each other but lose nothing.
pub fn lane_hash(key: &[u8]) -> NonZeroU64 {
    let (words, rest) = key.as_chunks::<8>();
    // The length distinguishes a short word from one that ends in zeros.
    let mut hash = SEED ^ key.len() as u64;
    for word in words {
        hash = fold(hash ^ u64::from_le_bytes(*word), STEP);
    }
    let last = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    hash = fold(fold(hash ^ last, STEP) ^ SEED, LAST);
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fnv_gives_its_published_values() {
        // From the test vectors in the authors' code and in their draft (draft-eastlake-fnv, appendix C).
        for (text, hash) in [
            ("", 0x811c_9dc5),
            ("a", 0xe40c_292c),
            ("b", 0xe70c_2de5),
            ("c", 0xe60c_2c52),
            ("d", 0xe10c_2473),
            ("e", 0xe00c_22e0),
            ("f", 0xe30c_2799),
            ("fo", 0x6222_e842),
            ("foo", 0xa9f3_7ed7),
            ("foob", 0x3f50_76ef),
            ("fooba", 0x39aa_a18a),
            ("foobar", 0xbf9c_f968),
        ] {
            assert_eq!(fnv1a32(text.as_bytes()), hash, "{text}");
        }
    }

    #[test]
    fn a_partition_is_the_unsigned_remainder() {
        // As a signed number, 0xbf9cf968 is negative and would give another partition.
        assert_eq!(partition_of(b"foobar", 10), 0xbf9c_f968 % 10);
        assert_eq!(partition_of(b"foobar", 1), 0);
        assert_eq!(partition_of(b"foobar", 0), 0);
    }

    /// Computed by another program from the description above.
    #[test]
    fn a_lane_is_the_same_in_every_version() {
        for (key, hash) in [
            ("", 0x7d1d_bbf2_0ee2_ffa8),
            ("a", 0x8672_5bdf_173e_a0c6),
            ("user-123", 0xc2f4_0878_1fe3_636a),
            ("plant/7/pump/12", 0x18cb_6678_2aa1_dadf),
        ] {
            assert_eq!(
                lane_hash(key.as_bytes()).get(),
                hash,
                "{key}: {:#x}",
                lane_hash(key.as_bytes())
            );
        }
    }

    #[test]
    fn a_million_keys_as_plants_have_them_get_a_million_lanes_evenly_spread() {
        let mut lanes = HashSet::new();
        let mut low = [0_u32; 64];
        let mut high = [0_u32; 64];
        for plant in 0..100 {
            for pump in 0..10_000 {
                let lane = lane_hash(format!("plant-{plant}/pump-{pump}").as_bytes()).get();
                lanes.insert(lane);
                low[lane as usize % 64] += 1;
                high[(lane >> 58) as usize] += 1;
            }
        }
        assert_eq!(lanes.len(), 1_000_000);
        // A random function deviates from the mean of 15 625 by 125 (one sigma).
        for count in low.into_iter().chain(high) {
            assert!((14_900..16_400).contains(&count), "{count}");
        }
    }

    #[test]
    fn zeros_at_the_end_make_another_key() {
        let lanes: HashSet<_> = (0..40).map(|length| lane_hash(&vec![0; length])).collect();
        assert_eq!(lanes.len(), 40);
    }

    proptest! {
        #[test]
        fn one_bit_of_a_key_changes_about_half_of_its_lane(key in proptest::collection::vec(any::<u8>(), 1..40), bit in any::<usize>()) {
            let bit = bit % (key.len() * 8);
            let mut other = key.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let changed = (lane_hash(&key).get() ^ lane_hash(&other).get()).count_ones();
            prop_assert!((8..=56).contains(&changed), "{}", changed);
        }

        #[test]
        fn a_key_has_one_of_the_partitions(key in proptest::collection::vec(any::<u8>(), 0..40), partitions in 1..=1000_u32) {
            prop_assert!(partition_of(&key, partitions) < partitions);
        }
    }
}
