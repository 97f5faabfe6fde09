//! Caches results that stages compute from shared metadata, keyed by the address of the shared map.
//!
//! An entry has a weak reference to its map. The reference reserves the address, so no other map can be mistaken for
//! it, while the map can be dropped when nothing else refers to it. Then its entry cannot be looked up any more and is
//! removed at the next sweep, so a source whose messages have a map each does not fill the table.
//!
//! [`Remembered`] limits entries and bytes; the bytes are those of live maps. So a look-up stays one probe, which
//! writes no order of use.

use std::hash::Hash;
use std::sync::{Arc, Weak};

use crate::{CacheLimits, MetaMap, Remembered};

/// The fewest insertions between two sweeps.
const SWEPT_AFTER: usize = 1024;

/// Values by shared map, and by `K` if a map has several values.
#[derive(Debug)]
pub struct PerMapCache<V, K = ()> {
    entries: Remembered<(usize, K), PerMapEntry<V>>,
    /// Insertions until the next sweep.
    until_sweep: usize,
}

#[derive(Debug)]
struct PerMapEntry<V> {
    /// A weak reference, which reserves the address.
    map: Weak<MetaMap>,
    value: V,
}

/// A map derived from another one, possibly identical to it: an entry with a strong reference to its own map would keep
/// it alive for ever.
#[derive(Clone, Debug)]
pub struct DerivedMap(Option<Arc<MetaMap>>);

impl DerivedMap {
    pub fn new(map: &Arc<MetaMap>, made: Arc<MetaMap>) -> DerivedMap {
        DerivedMap((!Arc::ptr_eq(map, &made)).then_some(made))
    }

    /// `map`: the map that it was derived from.
    pub fn get<'a>(&'a self, map: &'a Arc<MetaMap>) -> &'a Arc<MetaMap> {
        self.0.as_ref().unwrap_or(map)
    }
}

impl<V, K> Default for PerMapCache<V, K> {
    fn default() -> PerMapCache<V, K> {
        PerMapCache::within(CacheLimits::default())
    }
}

impl<V, K> PerMapCache<V, K> {
    pub fn within(limits: CacheLimits) -> PerMapCache<V, K> {
        PerMapCache {
            entries: Remembered::within(limits),
            until_sweep: SWEPT_AFTER,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.until_sweep = SWEPT_AFTER;
    }
}

impl<V, K: Copy + Eq + Hash> PerMapCache<V, K> {
    pub fn get(&self, map: &Arc<MetaMap>, part: K) -> Option<&V> {
        self.entries.get(&place(map, part)).map(|entry| &entry.value)
    }

    /// Stores a value, counted as `bytes`, replacing an earlier one. A value that exceeds the limit alone is not
    /// stored.
    pub fn insert(&mut self, map: &Arc<MetaMap>, part: K, value: V, bytes: usize) {
        match self.until_sweep.checked_sub(1) {
            Some(rest) => self.until_sweep = rest,
            None => self.sweep(),
        }
        let entry = PerMapEntry {
            map: Arc::downgrade(map),
            value,
        };
        self.entries.insert(place(map, part), entry, bytes + map.memory_bytes());
    }

    /// The value of a map, to which `bytes` are added; an empty one if none is stored, or none that could grow. `None`
    /// if it would exceed the limit.
    pub fn extend(&mut self, map: &Arc<MetaMap>, part: K, bytes: usize) -> Option<&mut V>
    where
        V: Default,
    {
        let place = place(map, part);
        if self.entries.grow(&place, bytes).is_none() {
            self.insert(map, part, V::default(), bytes);
        }
        self.entries.get_mut(&place).map(|entry| &mut entry.value)
    }

    /// Removes entries of dropped maps. Half as many insertions as there are entries lie between two sweeps, so that
    /// the amortised cost is small.
    fn sweep(&mut self) {
        self.entries.retain(|_, entry| entry.map.strong_count() > 0);
        self.until_sweep = SWEPT_AFTER.max(self.entries.len() / 2);
    }
}

fn place<K>(map: &Arc<MetaMap>, part: K) -> (usize, K) {
    (Arc::as_ptr(map).addr(), part)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const MAPS: usize = 8;

    fn maps() -> Vec<Arc<MetaMap>> {
        let map = |n: usize| {
            let entries = (0..n).map(|i| (format!("k{i}").into(), "x".repeat(n * 40).into()));
            Arc::new(MetaMap::new(entries, Some(n as u64)))
        };
        (0..MAPS).map(map).collect()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize, u8, usize),
        Extend(usize, u8, usize),
        /// The map is replaced by an equal one, at another address or, if nothing refers to the old one, at the same.
        Renew(usize),
        Clear,
    }

    fn step() -> impl Strategy<Value = Step> {
        let place = || (0..MAPS, 0u8..2, 0usize..6000);
        prop_oneof![
            8 => place().prop_map(|(map, part, bytes)| Step::Insert(map, part, bytes)),
            4 => place().prop_map(|(map, part, bytes)| Step::Extend(map, part, bytes)),
            4 => (0..MAPS).prop_map(Step::Renew),
            1 => Just(Step::Clear),
        ]
    }

    proptest! {
        #[test]
        fn a_value_is_the_newest_of_its_own_map(
            steps in prop::collection::vec(step(), 0..80),
            entries_max in 0usize..10,
            bytes_max in 0usize..40_000,
        ) {
            let mut known: PerMapCache<Vec<usize>, u8> = PerMapCache::within(CacheLimits { entries_max, bytes_max });
            let mut maps = maps();
            // The values that live maps have, as far as they are remembered.
            let mut model: BTreeMap<(usize, u8), Vec<usize>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(map, part, bytes) => {
                        known.insert(&maps[map], part, vec![bytes], bytes);
                        model.insert((map, part), vec![bytes]);
                    }
                    Step::Extend(map, part, bytes) => {
                        if let Some(value) = known.extend(&maps[map], part, bytes) {
                            value.push(bytes);
                            let expected = model.entry((map, part)).or_default();
                            // It begins anew where it could not grow.
                            if value.len() == 1 {
                                expected.clear();
                            }
                            expected.push(bytes);
                        }
                    }
                    Step::Renew(map) => {
                        let series = maps[map].series();
                        let entries: Vec<_> = maps[map].iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                        maps[map] = Arc::new(MetaMap::default());
                        maps[map] = Arc::new(MetaMap::new(entries, series));
                        model.retain(|(of, _), _| *of != map);
                    }
                    Step::Clear => {
                        known.clear();
                        model.clear();
                    }
                }
                prop_assert!(known.len() <= entries_max);
                for (map, part) in (0..MAPS).flat_map(|map| [(map, 0), (map, 1)]) {
                    match known.get(&maps[map], part) {
                        Some(value) => {
                            prop_assert_eq!(Some(value), model.get(&(map, part)));
                        }
                        None => {
                            model.remove(&(map, part));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn maps_that_are_no_more_take_no_place() {
        let mut known: PerMapCache<usize> = PerMapCache::default();
        let map = |n: u64| Arc::new(MetaMap::new([("k".into(), "x".repeat(1000).into())], Some(n)));
        let living: Vec<_> = (0..10).map(map).collect();
        for (n, map) in living.iter().enumerate() {
            known.insert(map, (), n, 0);
        }
        for n in 0..100_000 {
            let map = map(n);
            assert_eq!(known.get(&map, ()), None, "its address is one of a map that is no more");
            known.insert(&map, (), 11, 0);
            assert!(known.len() <= living.len() + SWEPT_AFTER + 1);
        }
        for (n, map) in living.iter().enumerate() {
            assert_eq!(known.get(map, ()), Some(&n));
        }
    }

    #[test]
    fn large_maps_are_not_kept_alive_by_their_number_alone() {
        let mut known: PerMapCache<u8> = PerMapCache::within(CacheLimits {
            entries_max: 1000,
            bytes_max: 1 << 20,
        });
        let map = || Arc::new(MetaMap::new([("k".into(), "x".repeat(100_000).into())], None));
        let maps: Vec<_> = (0..100).map(|_| map()).collect();
        for map in &maps {
            known.insert(map, (), 0, 0);
            assert_eq!(known.get(map, ()), Some(&0));
        }
        let held = maps.iter().filter(|map| Arc::weak_count(map) > 0).count();
        assert!((1..=10).contains(&held), "{held}");
    }
}
