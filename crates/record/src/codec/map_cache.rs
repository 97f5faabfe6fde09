//! Cache of constant maps, so that all messages of a tag share one across parcels: stages cache their results by the
//! address of the map.
//!
//! It has two generations, each of half the allowed size; when the younger is full the older is dropped. A map that is
//! still used moves to the younger, so the maps unused for a while are dropped.

use std::collections::HashMap;
use std::sync::Arc;

use crate::MetaMap;

pub(super) struct MapCache {
    young: HashMap<u64, Arc<MetaMap>>,
    old: HashMap<u64, Arc<MetaMap>>,
    young_bytes: usize,
    old_bytes: usize,
    bytes_max: usize,
}

impl MapCache {
    pub fn new(bytes_max: usize) -> MapCache {
        MapCache {
            young: HashMap::new(),
            old: HashMap::new(),
            young_bytes: 0,
            old_bytes: 0,
            bytes_max: bytes_max / 2,
        }
    }

    pub fn bytes(&self) -> usize {
        self.young_bytes + self.old_bytes
    }

    /// The map with this hash if it is `the_one`; two maps with the same hash are never cached together.
    pub fn find(&mut self, hash: u64, the_one: impl Fn(&MetaMap) -> bool) -> Option<Arc<MetaMap>> {
        if let Some(known) = self.young.get(&hash) {
            return Some(known).filter(|known| the_one(known)).cloned();
        }
        let known = self.old.get(&hash).filter(|known| the_one(known)).cloned()?;
        self.keep(hash, known.clone());
        Some(known)
    }

    pub fn keep(&mut self, hash: u64, map: Arc<MetaMap>) {
        self.young_bytes += bytes_of(&map);
        self.young.insert(hash, map);
        if self.young_bytes > self.bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.old_bytes = std::mem::take(&mut self.young_bytes);
        }
    }
}

fn bytes_of(map: &MetaMap) -> usize {
    size_of::<MetaMap>() + map.memory_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_is_met_again_stays_and_others_go_when_it_is_full() {
        let map = |n: u64| Arc::new(MetaMap::new([("k".into(), n.to_string().into())], Some(n)));
        let mut cache = MapCache::new(10 * bytes_of(&map(0)));
        let first = map(0);
        cache.keep(0, first.clone());
        for n in 1..1000 {
            cache.keep(n, map(n));
            let found = cache.find(0, |map| map.series() == Some(0));
            assert!(Arc::ptr_eq(&found.unwrap(), &first), "after {n}");
        }
        assert!(cache.find(500, |_| true).is_none());
        assert!(cache.young.len() + cache.old.len() <= 12);
        assert!(
            cache.find(0, |_| false).is_none(),
            "another map of the same hash is not it"
        );
    }
}
