//! The cache of series, and the lookup of a message's series by its metadata.
//!
//! Messages of a tag share their metadata by pointer, so a row finds its series by that pointer. The keys of a series'
//! texts in the memtable's columns are looked up once per series. Unshared metadata is matched by content. A cached
//! pointer keeps its map alive, so its address can never belong to another map.
//!
//! A series is cached when it occurs for the second time. Metadata that differs between messages (a number, a time of a
//! broker) creates no series: a row has it beside that of its tag, or is built from the message alone.

use std::collections::HashMap as StdHashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use thalweg_record::{MetaMap, Metadata, Text};
use xxhash_rust::xxh3::Xxh3;

use super::admission_filter::AdmissionFilter;
use super::cached_series::{CachedTagSeries, TagAttributeLayout};
use super::metadata_writer::TagMetadataWriter;
use super::{
    EXPLICIT_TIME, TagAttributes, TagSeries, bytes_of, changes_hash, describe, explicit_time, hash_part, is_plain,
    relevant_changes,
};
use thalweg_columns::rows::chunk::MemtableChunk;

/// How many variants of a series with equal attribute changes become series of their own.
const VARIANTS_MAX: u8 = 2;
/// The misses per cached series, because of the size limit, after which the cache is cleared: its series may be of tags
/// that are not sent any more.
const PASSED_FOR_EACH: usize = 32;
/// The size of an index entry, including unused capacity.
const PLACE_BYTES: usize = 2 * (size_of::<u32>() + 1);

/// A key of a slot: the pointer of the shared map, the source, and the hash of the message's own changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TagSeriesLookupKey {
    map: usize,
    source: u32,
    /// The stamps are in columns, whatever the map has under their names.
    stamped: bool,
    changes: u128,
}

struct TagSeriesRef {
    slot: u32,
    /// Keeps the map's address from being reused.
    _held: Arc<MetaMap>,
}

/// Where a row gets its metadata from. Valid until the next lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tags) enum TagSeriesMatch {
    /// From a series.
    Known(u32),
    /// From a series, except for the message's changes.
    Changed(u32),
    /// From the message.
    Passing,
}

/// All series that recurred recently, within the size limit. A full cache keeps its series: for tags that recur in
/// turns, evicting the oldest would cause only misses.
#[derive(Default)]
pub(in crate::tags) struct TagSeriesCache {
    sources: StdHashMap<Arc<str>, u32>,
    last_source: Option<(Arc<str>, u32)>,
    aliases: HashMap<TagSeriesLookupKey, TagSeriesRef>,
    by_content: HashTable<u32>,
    shapes: Vec<TagAttributeLayout>,
    by_names: HashTable<u32>,
    slots: Vec<CachedTagSeries>,
    bytes: usize,
    room: usize,
    sights: AdmissionFilter,
    passed: usize,
    passing: TagMetadataWriter,
    /// For changes of messages.
    changing: TagMetadataWriter,
}

impl TagSeriesCache {
    /// Sets the size limit in bytes.
    pub fn set_room(&mut self, room: usize) {
        let forget = self.passed > PASSED_FOR_EACH * self.slots.len().max(1);
        if forget || self.bytes() > room + room / 4 {
            // Recent series are admitted at once when they recur.
            let sights = std::mem::take(&mut self.sights);
            *self = TagSeriesCache {
                sights: if forget { sights } else { AdmissionFilter::default() },
                ..TagSeriesCache::default()
            };
        }
        self.room = room;
    }

    /// The memory usage.
    pub fn bytes(&self) -> usize {
        self.bytes
            + self.aliases.len() * (size_of::<TagSeriesLookupKey>() + size_of::<TagSeriesRef>() + 1)
            + self.sights.bytes()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes <= self.room
    }

    /// Writes the metadata of the last looked-up message to a row.
    #[inline]
    pub fn put(
        &mut self,
        found: TagSeriesMatch,
        source: &Arc<str>,
        meta: &Metadata,
        row: usize,
        chunk: &mut MemtableChunk,
    ) {
        let (TagSeriesMatch::Known(index) | TagSeriesMatch::Changed(index)) = found else {
            return self.passing.put(source, meta, row, chunk);
        };
        if let Some(slot) = self.slots.get_mut(index as usize)
            && let Some(shape) = self.shapes.get_mut(slot.shape as usize)
        {
            match found {
                TagSeriesMatch::Changed(_) => slot.put_changed(row, chunk, shape, meta, &mut self.changing),
                _ => slot.put(row, chunk, shape),
            }
        }
    }

    /// Looks up a message's settled metadata. Returns where its row gets it from, and its explicit time.
    #[inline]
    pub fn find(&mut self, source: &Arc<str>, meta: &Metadata) -> (TagSeriesMatch, Option<i64>) {
        debug_assert!(!meta.is_marked(), "marks become changes first");
        let alias = TagSeriesLookupKey {
            map: Arc::as_ptr(meta.shared_map()).addr(),
            source: self.source_index(source),
            stamped: meta.stamps().is_some(),
            changes: if meta.is_changed() { changes_hash(meta) } else { 0 },
        };
        let found = match self.aliases.get(&alias) {
            Some(target) => TagSeriesMatch::Known(target.slot),
            None => self.meet(source, meta, alias),
        };
        let asks = match found {
            TagSeriesMatch::Known(index) if !meta.is_changed() => {
                let slot = self.slots.get(index as usize);
                slot.is_some_and(|slot| slot.shared_time)
            }
            _ => true,
        };
        (found, if asks { explicit_time(meta) } else { None })
    }

    /// The same if the pointer is not cached.
    #[inline(never)]
    fn meet(&mut self, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> TagSeriesMatch {
        let shared = meta.shared_map();
        // A map that only this message has will not recur.
        if Arc::strong_count(shared) == 1 {
            return TagSeriesMatch::Passing;
        }
        let unchanged = TagSeriesLookupKey { changes: 0, ..alias };
        let is_plain = alias.changes != 0 && relevant_changes(meta).all(|(name, _)| is_plain(name));
        let base = self.aliases.get(&unchanged).map(|base| base.slot);
        if let Some(base) = base.filter(|_| is_plain) {
            let variant = self.variant(base, source, meta, alias);
            return variant.map_or(TagSeriesMatch::Changed(base), TagSeriesMatch::Known);
        }
        let (meta, alias) = match is_plain || alias.changes == 0 {
            true => (meta.with_shared(shared.clone()), unchanged),
            false => (meta.clone(), alias),
        };
        match self.known(source, &meta, alias) {
            Some(index) if is_plain => TagSeriesMatch::Changed(index),
            Some(index) => TagSeriesMatch::Known(index),
            None => TagSeriesMatch::Passing,
        }
    }

    /// The slot for the variant of a series with these changes, if they recur.
    fn variant(&mut self, base: u32, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> Option<u32> {
        let slot = self.slots.get(base as usize)?;
        // The cache keeps the map alive, so its address identifies it.
        let hash = self.aliases.hasher().hash_one(alias);
        if slot.variants >= VARIANTS_MAX || !self.sights.again(hash, self.room) {
            return None;
        }
        let index = self.keep(describe(source, meta), meta, alias)?;
        if let Some(slot) = self.slots.get_mut(base as usize) {
            slot.variants += 1;
        }
        Some(index)
    }

    /// The slot of a series that recurs.
    fn known(&mut self, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> Option<u32> {
        let hash = sight_hash(source, meta, alias);
        if !self.sights.again(hash, self.room) {
            return None;
        }
        self.keep(describe(source, meta), meta, alias)
    }

    /// Caches a series and returns its slot, if there is room.
    fn keep(&mut self, series: TagSeries, meta: &Metadata, alias: TagSeriesLookupKey) -> Option<u32> {
        let shared = meta.shared_map();
        let index = self.intern(series, shared.get(EXPLICIT_TIME).is_some())?;
        if !self.has_room(0) {
            self.passed += 1;
            return Some(index);
        }
        let slot = self.slots.get(index as usize)?;
        let is_counted = match &slot.series.attributes {
            TagAttributes::Shared { map, .. } => Arc::ptr_eq(map, shared),
            TagAttributes::Own(_) => self.aliases.contains_key(&TagSeriesLookupKey { changes: 0, ..alias }),
        };
        if !is_counted {
            self.bytes += bytes_of(shared);
        }
        let target = TagSeriesRef {
            slot: index,
            _held: shared.clone(),
        };
        self.aliases.insert(alias, target);
        Some(index)
    }

    fn source_index(&mut self, source: &Arc<str>) -> u32 {
        if let Some((last, index)) = &self.last_source
            && Arc::ptr_eq(last, source)
        {
            return *index;
        }
        let next = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        let index = match self.sources.get(source) {
            Some(known) => *known,
            None => {
                self.bytes += size_of::<(Arc<str>, u32)>() + source.len();
                self.sources.insert(source.clone(), next);
                next
            }
        };
        self.last_source = Some((source.clone(), index));
        index
    }

    fn intern(&mut self, series: TagSeries, shared_time: bool) -> Option<u32> {
        let hash = series.content_hash();
        let same = |index: &u32| {
            let slot = self.slots.get(*index as usize);
            slot.is_some_and(|slot| slot.series.is_same(&series) && slot.shared_time == shared_time)
        };
        if let Some(index) = self.by_content.find(hash, same) {
            return Some(*index);
        }
        let mut slot = CachedTagSeries::new(Arc::new(series), hash, shared_time, 0);
        let bytes = slot.bytes() + PLACE_BYTES;
        if !self.has_room(bytes) {
            self.passed += 1;
            return None;
        }
        let index = u32::try_from(self.slots.len()).ok()?;
        slot.shape = self.shape(&slot.series.attributes);
        self.slots.push(slot);
        self.bytes += bytes;
        let hash_of = |at: &u32| self.slots.get(*at as usize).map_or(0, |slot| slot.hash);
        self.by_content.insert_unique(hash, index, hash_of);
        Some(index)
    }

    /// The number of the layout with these attribute names. There are at most as many as series.
    fn shape(&mut self, attributes: &TagAttributes) -> u32 {
        let mut hash = Xxh3::new();
        attributes.iter().for_each(|(name, _)| hash_part(&mut hash, name));
        let hash = hash.digest();
        let same = |index: &u32| {
            let shape = self.shapes.get(*index as usize);
            shape.is_some_and(|shape| shape.names.iter().eq(attributes.iter().map(|(name, _)| name)))
        };
        if let Some(known) = self.by_names.find(hash, same) {
            return *known;
        }
        let index = u32::try_from(self.shapes.len()).unwrap_or(u32::MAX);
        let names: Box<[Text]> = attributes.iter().map(|(name, _)| name.clone()).collect();
        let shape = TagAttributeLayout::new(names, hash);
        self.bytes += shape.bytes() + PLACE_BYTES;
        self.shapes.push(shape);
        let hash_of = |at: &u32| self.shapes.get(*at as usize).map_or(0, |shape| shape.hash);
        self.by_names.insert_unique(hash, index, hash_of);
        index
    }

    #[cfg(test)]
    pub(super) fn series(&self, found: TagSeriesMatch) -> Option<&Arc<TagSeries>> {
        match found {
            TagSeriesMatch::Known(index) | TagSeriesMatch::Changed(index) => {
                self.slots.get(index as usize).map(|slot| &slot.series)
            }
            TagSeriesMatch::Passing => None,
        }
    }

    /// The number of series, keys, and layouts.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.slots.len(), self.aliases.len(), self.shapes.len())
    }
}

/// A hash of metadata and source.
fn sight_hash(source: &str, meta: &Metadata, alias: TagSeriesLookupKey) -> u64 {
    let mut hash = Xxh3::new();
    hash_part(&mut hash, source);
    for (name, text) in meta.shared_map().iter() {
        hash_part(&mut hash, name);
        hash_part(&mut hash, text);
    }
    hash.update(&[u8::from(alias.stamped)]);
    hash.update(&alias.changes.to_le_bytes());
    hash.digest()
}
