//! An admission filter: whether something was seen recently, without storing it. Things that occur once are not worth
//! caching.
//!
//! A mark of 32 bits represents each thing, in a set selected by its hash. A full set loses an arbitrary mark, not the
//! oldest: for things that recur in turns, the oldest is the next to recur.

/// The marks of a set.
const WAYS: usize = 8;
/// All sets together take this fraction of the cache size.
const PART: usize = 64;
const SETS_MIN: usize = 16;

type AdmissionFilterSet = [u32; WAYS];

#[derive(Debug, Default)]
pub(super) struct AdmissionFilter {
    /// 0 is no mark.
    sets: Vec<AdmissionFilterSet>,
    lost: usize,
}

impl AdmissionFilter {
    /// Whether a thing with this hash was seen before; it counts as seen from now on. `room` is the size of the whole
    /// cache.
    pub fn again(&mut self, hash: u64, room: usize) -> bool {
        if room == 0 {
            return false;
        }
        if self.sets.is_empty() {
            let sets = room / PART / size_of::<AdmissionFilterSet>();
            self.sets = vec![AdmissionFilterSet::default(); sets.max(SETS_MIN)];
        }
        let at = hash % self.sets.len() as u64;
        let mark = ((hash >> 32) as u32).max(1);
        let Some(set) = self.sets.get_mut(at as usize) else {
            return false;
        };
        if set.contains(&mark) {
            return true;
        }
        let free = set.iter().position(|known| *known == 0);
        self.lost += usize::from(free.is_none());
        if let Some(known) = set.get_mut(free.unwrap_or(self.lost % WAYS)) {
            *known = mark;
        }
        false
    }

    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<AdmissionFilterSet>()
    }
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_64;

    use super::*;

    fn hash(n: u64) -> u64 {
        xxh3_64(&n.to_le_bytes())
    }

    #[test]
    fn what_comes_again_is_known_and_what_does_not_is_forgotten() {
        let room = 1 << 20;
        let mut sights = AdmissionFilter::default();
        assert!(!sights.again(hash(1), room) && sights.again(hash(1), room));
        let bytes = sights.bytes();
        assert_eq!(bytes, room / PART);
        let known = (2..1_000_000).filter(|n| sights.again(hash(*n), room)).count();
        assert!(known < 100, "{known} of things that came once are said to be known");
        assert_eq!(sights.bytes(), bytes, "it has an end");
        assert!(!sights.again(hash(1), room), "too many came since");
        assert!(!sights.again(hash(2), 0) && !AdmissionFilter::default().again(hash(2), 0));
    }

    #[test]
    fn of_things_that_come_in_turns_most_are_known_after_a_few() {
        let room = 1 << 20;
        let mut sights = AdmissionFilter::default();
        // As many as there are marks, so some sets do not have enough.
        let mut unknown: Vec<u64> = (0..(room / PART / size_of::<u32>()) as u64).collect();
        let all = unknown.len();
        for _ in 0..6 {
            unknown.retain(|n| !sights.again(hash(*n), room));
        }
        assert!(unknown.len() * 50 < all, "{} of {all} are never known", unknown.len());
    }
}
