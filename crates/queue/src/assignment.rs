//! Assigns partitions to the members of a group.
//!
//! The input is the members' ids, the output one range of partitions per member. The result depends only on the set of
//! ids: the order of joining, the run and the node make no difference.

use std::ops::Range;

/// The partitions of the member whose id ranks `rank`-th by its bytes. Ranges are contiguous and ascend with the rank.
/// The first `partitions mod members` ranges are larger by one.
pub fn range_of(rank: u32, members: u32, partitions: u32) -> Range<u32> {
    if rank >= members {
        return partitions..partitions;
    }
    let (each, larger) = (partitions / members, partitions % members);
    let start = rank * each + rank.min(larger);
    start..start + each + u32::from(rank < larger)
}

/// The members' ranges, in the order of `ids`. Ids must be unique.
pub fn assign(ids: &[impl AsRef<str>], partitions: u32) -> Vec<Range<u32>> {
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|&at| ids.get(at).map(AsRef::as_ref));
    let members = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    let mut ranges = vec![0..0; ids.len()];
    for (rank, at) in (0..).zip(order) {
        if let Some(range) = ranges.get_mut(at) {
            *range = range_of(rank, members, partitions);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_members_get_one_more() {
        assert_eq!(assign(&["a", "b", "c"], 10), [0..4, 4..7, 7..10]);
        assert_eq!(assign(&["a", "b"], 10), [0..5, 5..10]);
        assert_eq!(assign(&[] as &[&str], 10), []);
    }

    #[test]
    fn ids_are_sorted_by_their_bytes() {
        // Not as numbers, not by locale, and not ignoring case.
        assert_eq!(assign(&["c-10", "c-9", "C-1", "ä"], 4), [1..2, 2..3, 0..1, 3..4]);
    }

    #[test]
    fn with_one_partition_the_first_is_active_and_the_others_stand_by() {
        assert_eq!(assign(&["c", "a", "b"], 1), [1..1, 0..1, 1..1]);
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        assert_eq!(range_of(u32::MAX - 1, u32::MAX, u32::MAX), u32::MAX - 1..u32::MAX);
        assert_eq!(range_of(7, 7, 1000), 1000..1000);
    }

    proptest! {
        #[test]
        fn every_partition_has_one_owner_and_the_shares_are_equal(
            ids in proptest::collection::btree_set("[a-zA-Z0-9ü-]{1,6}", 1..40),
            partitions in 1..=1000_u32,
        ) {
            let ids: Vec<String> = ids.into_iter().collect();
            let mut next = 0;
            let mut sizes = BTreeSet::new();
            let mut last = usize::MAX;
            for range in assign(&ids, partitions) {
                prop_assert_eq!(range.start, next, "contiguous and ascending");
                next = range.end;
                prop_assert!(range.len() <= last, "the larger ones come first");
                last = range.len();
                sizes.insert(range.len());
            }
            prop_assert_eq!(next, partitions);
            let (least, most) = (sizes.first().copied().unwrap_or(0), sizes.last().copied().unwrap_or(0));
            prop_assert!(most - least <= 1);
        }

        #[test]
        fn the_order_of_joining_does_not_matter(
            ids in proptest::collection::hash_set("[a-c]{1,4}", 1..20),
            partitions in 1..=100_u32,
            seed in any::<u64>(),
        ) {
            let ids: Vec<String> = ids.into_iter().collect();
            let mut shuffled = ids.clone();
            shuffled.sort_by_key(|id| crate::hash::lane_hash(format!("{seed}{id}").as_bytes()));
            let of = |ids: &[String]| {
                let mut pairs: Vec<_> = ids.iter().cloned().zip(assign(ids, partitions)).collect();
                pairs.sort_by(|a, b| a.0.cmp(&b.0));
                pairs
            };
            prop_assert_eq!(of(&ids), of(&shuffled));
        }
    }
}
