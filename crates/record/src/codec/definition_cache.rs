//! How maps were defined in earlier parcels: tags come in the same order again and again, so that a map after the same one is
//! written with the same bytes, which are copied instead of found by walking both maps.
//!
//! Maps are told by their numbers, which no two maps ever share, so none is held. What came once is only noted; its bytes
//! are kept when it comes again. When there is no more room what is known stays: of tags that come in turns one that forgot the
//! oldest would know none. After some rounds everything is learned anew, so that nothing stays of tags that are gone.

use hashbrown::HashMap;

/// Of 250,000 tags in one order, or of fewer in several. With their index they take 20 MiB; those of 50,000 tags take 8 MiB, bytes
/// included.
const DEFINITIONS_MAX: usize = 1 << 18;
/// More may have come once only if as many came again: what never does takes 3 MiB, and looking for it does not leave the cache. Of
/// more tags than this twice as many are noted in each round.
const NOTED_MAX: usize = 1 << 15;
/// A vector that grows may have twice as much reserved.
const BYTES_MAX: usize = 32 << 20;
/// Of one definition. There is little to gain in longer ones.
const DEFINITION_BYTES_MAX: usize = 16 << 10;
/// How often each definition was asked for on average when all are forgotten.
const ROUNDS: usize = 64;

/// A map by its number, behind the one that was defined before it, or zero.
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
    /// None as long as it came once.
    len: u32,
    copied: u32,
}

/// What is known of a definition.
pub(super) enum DefinitionLookup<'a> {
    /// Its bytes, and how many more of texts they refer to.
    Known(&'a [u8], usize),
    /// It came before.
    Seen,
    New,
}

/// What was defined, in the order in which it came first.
#[derive(Default)]
pub(super) struct DefinitionCache {
    definitions: Vec<Definition>,
    by_place: HashMap<DefinitionKey, u32>,
    bytes: Vec<u8>,
    /// Definitions that have bytes.
    kept: usize,
    /// The one that is likely to be asked for next, or was just found.
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

    /// Notes one that is new.
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

    /// Keeps the bytes of the one that was just found to have come before.
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

    /// As the encoder does. Whether the bytes were known.
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
        // The same maps behind others.
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
