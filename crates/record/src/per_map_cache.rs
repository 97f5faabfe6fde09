//! Caches results that stages compute from shared metadata, keyed by the address of the shared map.
//!
//! An entry has a weak reference to its map. The reference reserves the address, so no other map can be mistaken for
//! it, while the map can be dropped when nothing else refers to it. Then its entry cannot be looked up any more and is
//! removed at the next sweep, so a source whose messages have a map each does not fill the table.
//!
//! Beside the limit of entries there is one of bytes, for live maps. At either limit the cache is cleared: what is in
//! use returns with the next message of each tag. So a look-up stays one probe without a write, which tracking the last
//! use would require.

use std::hash::Hash;
use std::sync::{Arc, Weak};

use hashbrown::HashMap;

use crate::MetaMap;

/// Limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    pub entries_max: usize,
    /// Approximate bytes of maps and results; a map that is also used elsewhere counts in full.
    pub bytes_max: usize,
}

impl Default for CacheLimits {
    /// The expected maximum of tags per thread, with 2 KiB for each: metadata of some twenty keys, before and after.
    fn default() -> CacheLimits {
        CacheLimits {
            entries_max: 1 << 17,
            bytes_max: 256 << 20,
        }
    }
}

/// Number of entries from which on sweeps are worth it.
const SWEPT_FROM: usize = 1024;

/// Values by shared map, and by `K` if a map has several values.
#[derive(Debug)]
pub struct PerMapCache<V, K = ()> {
    entries: HashMap<(usize, K), CacheEntry<V>>,
    bytes: usize,
    bounds: CacheLimits,
    /// The number of entries that triggers the next sweep.
    swept_at: usize,
}

#[derive(Debug)]
struct CacheEntry<V> {
    /// A weak reference, which reserves the address.
    map: Weak<MetaMap>,
    value: V,
    bytes: usize,
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
    pub fn within(bounds: CacheLimits) -> PerMapCache<V, K> {
        PerMapCache {
            entries: HashMap::new(),
            bytes: 0,
            bounds,
            swept_at: SWEPT_FROM,
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
        self.bytes = 0;
        self.swept_at = SWEPT_FROM;
    }

    /// Removes entries of dropped maps. Runs each time that the entries have doubled, so that the amortised cost is
    /// small.
    fn sweep(&mut self) {
        let mut bytes = self.bytes;
        self.entries.retain(|_, entry| {
            let is_alive = entry.map.strong_count() > 0;
            bytes -= if is_alive { 0 } else { entry.bytes };
            is_alive
        });
        self.bytes = bytes;
        self.swept_at = SWEPT_FROM.max(2 * self.entries.len());
    }
}

impl<V, K: Copy + Eq + Hash> PerMapCache<V, K> {
    pub fn get(&self, map: &Arc<MetaMap>, part: K) -> Option<&V> {
        self.entries.get(&place(map, part)).map(|entry| &entry.value)
    }

    /// Stores a value, counted as `bytes`, replacing an earlier one. A value that exceeds the limit alone is not
    /// stored.
    pub fn insert(&mut self, map: &Arc<MetaMap>, part: K, value: V, bytes: usize) {
        let place = place(map, part);
        self.forget(&place);
        let bytes = bytes + Self::bytes_beside(map);
        if !self.make_room(bytes) {
            return;
        }
        self.bytes += bytes;
        let entry = CacheEntry {
            map: Arc::downgrade(map),
            value,
            bytes,
        };
        self.entries.insert(place, entry);
    }

    /// The value of a map, to which `bytes` are added; an empty one if none is stored. `None` if it would exceed the
    /// limit.
    pub fn extend(&mut self, map: &Arc<MetaMap>, part: K, bytes: usize) -> Option<&mut V>
    where
        V: Default,
    {
        let place = place(map, part);
        let is_known = self.entries.contains_key(&place);
        if is_known && self.bytes + bytes <= self.bounds.bytes_max {
            let entry = self.entries.get_mut(&place)?;
            entry.bytes += bytes;
            self.bytes += bytes;
            return Some(&mut entry.value);
        }
        self.insert(map, part, V::default(), bytes);
        self.entries.get_mut(&place).map(|entry| &mut entry.value)
    }

    fn forget(&mut self, place: &(usize, K)) {
        if let Some(entry) = self.entries.remove(place) {
            self.bytes -= entry.bytes;
        }
    }

    /// Makes room for an entry. `false` if it exceeds the limit alone.
    fn make_room(&mut self, bytes: usize) -> bool {
        let CacheLimits { entries_max, bytes_max } = self.bounds;
        if entries_max == 0 || bytes > bytes_max {
            return false;
        }
        let is_full = self.entries.len() >= entries_max || self.bytes + bytes > bytes_max;
        if is_full || self.entries.len() >= self.swept_at {
            self.sweep();
        }
        // After a sweep that frees little, another one would soon be needed.
        let is_used = self.entries.len() > entries_max / 4 * 3 || self.bytes > bytes_max / 4 * 3;
        if is_full && (is_used || self.bytes + bytes > bytes_max) {
            self.clear();
        }
        true
    }

    /// The size of an entry without its value's own memory.
    fn bytes_beside(map: &MetaMap) -> usize {
        size_of::<((usize, K), CacheEntry<V>)>() + map.memory_bytes()
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

    /// The values by map, generation and part, with all that is counted.
    type Model = BTreeMap<(usize, usize, u8), (Vec<usize>, usize)>;

    fn taken(model: &Model) -> usize {
        model.values().map(|(_, bytes)| bytes).sum()
    }

    /// `generations`: those of the live maps.
    fn put(
        model: &mut Model,
        generations: &[usize],
        place: (usize, usize, u8),
        bytes: usize,
        all: usize,
        bounds: CacheLimits,
    ) {
        model.remove(&place);
        let CacheLimits { entries_max, bytes_max } = bounds;
        if all > bytes_max || entries_max == 0 {
            return;
        }
        if model.len() >= entries_max || taken(model) + all > bytes_max {
            model.retain(|(generation, map, _), _| generations[*map] == *generation);
            let bytes = taken(model);
            if model.len() > entries_max / 4 * 3 || bytes > bytes_max / 4 * 3 || bytes + all > bytes_max {
                model.clear();
            }
        }
        model.insert(place, (vec![bytes], all));
    }

    proptest! {
        #[test]
        fn it_keeps_what_a_model_keeps_within_both_bounds(
            steps in prop::collection::vec(step(), 0..80),
            entries_max in 0usize..10,
            bytes_max in 0usize..40_000,
        ) {
            let bounds = CacheLimits { entries_max, bytes_max };
            let mut known: PerMapCache<Vec<usize>, u8> = PerMapCache::within(bounds);
            let (mut maps, mut generations) = (maps(), [0; MAPS]);
            let mut model = Model::new();
            for step in steps {
                match step {
                    Step::Insert(map, part, bytes) => {
                        known.insert(&maps[map], part, vec![bytes], bytes);
                        let all = bytes + PerMapCache::<Vec<usize>, u8>::bytes_beside(&maps[map]);
                        put(&mut model, &generations, (generations[map], map, part), bytes, all, bounds);
                    }
                    Step::Extend(map, part, bytes) => {
                        if let Some(value) = known.extend(&maps[map], part, bytes) {
                            value.push(bytes);
                        }
                        let place = (generations[map], map, part);
                        let fits = taken(&model) + bytes <= bytes_max;
                        match model.get_mut(&place).filter(|_| fits) {
                            Some((value, all)) => {
                                value.push(bytes);
                                *all += bytes;
                            }
                            None => {
                                let all = bytes + PerMapCache::<Vec<usize>, u8>::bytes_beside(&maps[map]);
                                put(&mut model, &generations, place, bytes, all, bounds);
                            }
                        }
                    }
                    Step::Renew(map) => {
                        let series = maps[map].series();
                        let entries: Vec<_> = maps[map].iter().map(|(k, v)| (k.clone(), v.clone())).collect();
                        maps[map] = Arc::new(MetaMap::default());
                        maps[map] = Arc::new(MetaMap::new(entries, series));
                        generations[map] += 1;
                    }
                    Step::Clear => {
                        known.clear();
                        model.clear();
                    }
                }
                prop_assert!(known.len() <= entries_max && known.bytes <= bytes_max);
                prop_assert_eq!((known.len(), known.bytes), (model.len(), taken(&model)));
                for (map, generation) in generations.iter().enumerate() {
                    for part in 0..2 {
                        let expected = model.get(&(*generation, map, part)).map(|(value, _)| value);
                        prop_assert_eq!(known.get(&maps[map], part), expected);
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
            assert!(known.len() <= SWEPT_FROM);
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
