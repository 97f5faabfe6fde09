//! Caches how maps were encoded in earlier parcels. Tags repeat in the same order, so a map after the same previous map
//! has the same bytes, which are copied instead of computed by walking both maps.
//!
//! The key is the pair of map numbers. Numbers are never reused, so no reference to a map is needed. The first
//! occurrence is only noted; its bytes are stored on the second. A full cache keeps its entries: with tags that come in
//! turns, evicting the oldest would leave no hit at all. After some rounds the cache is cleared, so that nothing stays
//! of removed tags.

use hashbrown::HashMap;

/// Enough for 250,000 tags in one order, or fewer in several. With their index they take 20 MiB; those of 50,000 tags
/// take 8 MiB, bytes included.
const DEFINITIONS_MAX: usize = 1 << 18;
/// Single occurrences are limited to this number plus that of repeated ones. Those that never repeat take 3 MiB, and
/// look-ups stay in the CPU cache. With more tags than this, twice as many are noted in each round.
const NOTED_MAX: usize = 1 << 15;
/// A growing vector may reserve twice as much.
const BYTES_MAX: usize = 32 << 20;
/// Maximum size of one definition. Caching longer ones saves little.
const DEFINITION_BYTES_MAX: usize = 16 << 10;
/// Average number of look-ups per definition after which all are forgotten.
const ROUNDS: usize = 64;

/// The number of a map, and that of the map defined before it, or zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DefinitionKey {
    pub before: u64,
    pub map: u64,
}

#[derive(Clone, Copy)]
struct Definition {
    place: DefinitionKey,
    /// Where its bytes are.
    start: u32,
    /// Zero as long as it occurred once.
    len: u32,
    copied: u32,
}

/// The cached state of a definition.
pub(super) enum DefinitionLookup<'a> {
    /// Its bytes, and how many bytes of earlier texts they copy.
    Known(&'a [u8], usize),
    /// It occurred once before.
    Seen,
    New,
}

/// Definitions, ordered by first occurrence.
#[derive(Default)]
pub(super) struct DefinitionCache {
    definitions: Vec<Definition>,
    by_place: HashMap<DefinitionKey, u32>,
    bytes: Vec<u8>,
    /// Number of definitions with bytes.
    kept: usize,
    /// Index of the definition that is probably looked up next, or was just found.
    at: usize,
    asked: usize,
}

impl DefinitionCache {
    #[inline]
    pub fn find(&mut self, place: DefinitionKey) -> DefinitionLookup<'_> {
        if self.asked > ROUNDS * self.definitions.len() {
            *self = DefinitionCache::default();
        }
        self.asked += 1;
        let next = self.at + 1;
        let is_next = |definition: &Definition| definition.place == place;
        if self.definitions.get(next).is_some_and(is_next) {
            self.at = next;
        } else if let Some(at) = self.by_place.get(&place) {
            self.at = *at as usize;
        } else {
            return DefinitionLookup::New;
        }
        let Some(known) = self.definitions.get(self.at).filter(|known| known.len > 0) else {
            return DefinitionLookup::Seen;
        };
        let (start, len) = (known.start as usize, known.len as usize);
        match self.bytes.get(start..start + len) {
            Some(bytes) => DefinitionLookup::Known(bytes, known.copied as usize),
            None => DefinitionLookup::Seen,
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.definitions.is_empty()
    }

    /// Notes a new definition.
    pub fn note(&mut self, place: DefinitionKey) {
        let at = self.definitions.len();
        if at >= DEFINITIONS_MAX || at - self.kept >= NOTED_MAX + self.kept {
            return;
        }
        self.definitions.push(Definition {
            place,
            start: 0,
            len: 0,
            copied: 0,
        });
        self.by_place.insert(place, at as u32);
        self.at = at;
    }

    /// Stores the bytes of the definition that was just found as `Seen`.
    pub fn keep(&mut self, bytes: &[u8], copied: usize) {
        let start = self.bytes.len();
        if bytes.len() > DEFINITION_BYTES_MAX || start + bytes.len() > BYTES_MAX {
            return;
        }
        let sizes = (u32::try_from(start), u32::try_from(bytes.len()), u32::try_from(copied));
        if let (Ok(start), Ok(len), Ok(copied)) = sizes
            && let Some(definition) = self.definitions.get_mut(self.at)
        {
            self.bytes.extend_from_slice(bytes);
            self.kept += 1;
            *definition = Definition {
                start,
                len,
                copied,
                ..*definition
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(map: u64) -> DefinitionKey {
        DefinitionKey { before: map - 1, map }
    }

    /// As the encoder does. Returns whether the bytes were cached.
    fn define(known: &mut DefinitionCache, place: DefinitionKey, bytes: &[u8]) -> bool {
        match known.find(place) {
            DefinitionLookup::Known(found, copied) => {
                assert_eq!((found, copied), (bytes, 7));
                return true;
            }
            DefinitionLookup::Seen => known.keep(bytes, 7),
            DefinitionLookup::New => known.note(place),
        }
        false
    }

    fn bytes_of(map: u64) -> Vec<u8> {
        map.to_le_bytes().repeat(1 + map as usize % 3)
    }

    #[test]
    fn what_came_twice_is_known_in_any_order() {
        let mut known = DefinitionCache::default();
        let mut round = |maps: &mut dyn Iterator<Item = u64>| {
            maps.filter(|map| define(&mut known, place(*map), &bytes_of(*map)))
                .count()
        };
        assert_eq!([round(&mut (1..100)), round(&mut (1..100))], [0, 0]);
        assert_eq!(round(&mut (1..100)), 99);
        assert_eq!(round(&mut (1..100).rev()), 99);
        assert_eq!(round(&mut (50..150)), 50);
        // The same maps after others.
        let other = DefinitionKey { before: 9, map: 3 };
        assert!(
            !define(&mut known, other, b"x") && !define(&mut known, other, b"x") && define(&mut known, other, b"x")
        );
        assert!(define(&mut known, place(3), &bytes_of(3)));
    }

    #[test]
    fn what_does_not_come_again_has_no_bytes_and_what_it_has_ends() {
        let mut known = DefinitionCache::default();
        for map in 1..10 * NOTED_MAX as u64 {
            assert!(!define(&mut known, place(map), b"long"));
        }
        assert_eq!((known.definitions.len(), known.bytes.len()), (NOTED_MAX, 0));
        assert_eq!(known.by_place.len(), NOTED_MAX);
    }

    #[test]
    fn more_tags_than_there_is_room_for_are_known_as_far_as_it_goes() {
        let mut known = DefinitionCache::default();
        let tags = DEFINITIONS_MAX as u64 + 5000;
        let mut round = || {
            let maps = (1..=tags).filter(|map| define(&mut known, place(*map), &bytes_of(*map)));
            maps.count()
        };
        assert_eq!([round(), round(), round()], [0, 0, NOTED_MAX]);
        let last = (0..5).map(|_| round()).max();
        assert_eq!(last, Some(DEFINITIONS_MAX));
        assert_eq!(
            (known.definitions.len(), known.kept),
            (DEFINITIONS_MAX, DEFINITIONS_MAX)
        );
    }

    #[test]
    fn bytes_are_bounded_and_those_that_are_kept_stay() {
        let mut known = DefinitionCache::default();
        let long = vec![1; DEFINITION_BYTES_MAX];
        let tags = 3 * (BYTES_MAX / DEFINITION_BYTES_MAX) as u64;
        let mut round = || (1..=tags).filter(|map| define(&mut known, place(*map), &long)).count();
        assert_eq!([round(), round()], [0, 0]);
        assert_eq!([round(), round()], [BYTES_MAX / DEFINITION_BYTES_MAX; 2]);
        assert_eq!(known.bytes.len(), BYTES_MAX);
        let longer = vec![1; DEFINITION_BYTES_MAX + 1];
        let mut known = DefinitionCache::default();
        assert!((0..5).all(|_| !define(&mut known, place(1), &longer)));
    }

    #[test]
    fn nothing_stays_of_tags_that_are_gone() {
        let mut known = DefinitionCache::default();
        for map in (1..1000).cycle().take(5000) {
            define(&mut known, place(map), &bytes_of(map));
        }
        let mut rounds = 0;
        while known.by_place.contains_key(&place(999)) {
            for map in 1..100 {
                define(&mut known, place(map), &bytes_of(map));
            }
            rounds += 1;
        }
        assert!((500..1000).contains(&rounds), "{rounds}");
        assert!(known.definitions.len() < 100 && known.definitions.capacity() < 1000);
        let mut again = || define(&mut known, place(50), &bytes_of(50));
        assert!((0..3).any(|_| again()));
    }
}
