//! All series that are known, and how the metadata of a message finds its own.
//!
//! Messages of a tag share their metadata by pointer, so a row finds its series by that pointer, and where its texts are in
//! the columns of the rows that grow is looked up once for each series. Metadata that is not shared is recognised by its
//! content. A pointer stays in the table only as long as the table holds the map it points to, so it can never mean another map.
//!
//! A series is worth its memory if it comes again, so it is known from the second time on. What differs from message to message
//! (a number, a time of a broker) makes no series: a row has it besides those of its tag, or it is put together from the message alone.

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

/// Rows of a tag with attributes of their own that are alike are a series by themselves, of so many kinds.
const VARIANTS_MAX: u8 = 2;
/// Messages that might have been known, if there had been room, for each series that is, after which the table begins anew: those
/// that it has may be of tags that nobody sends any more.
const PASSED_FOR_EACH: usize = 32;
/// A place in an index, and its part of those that are free.
const PLACE_BYTES: usize = 2 * (size_of::<u32>() + 1);

/// One way to a slot: by pointer of the shared map, source, and hash of the message's own changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct TagSeriesLookupKey {
    map: usize,
    source: u32,
    /// Its stamps are in columns, whatever the map says of such names.
    stamped: bool,
    changes: u128,
}

struct TagSeriesRef {
    slot: u32,
    /// Keeps the address of the map from being used again.
    _held: Arc<MetaMap>,
}

/// Where a row has its metadata from, until the next message is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tags) enum TagSeriesMatch {
    /// From a series.
    Known(u32),
    /// The same, but for what the message changes.
    Changed(u32),
    /// From the message.
    Passing,
}

/// All series that came again lately, as long as there is room. Where there is none, those that are known stay: of tags that come
/// in turns a table that forgot the oldest ones would know none.
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
    /// For what messages change.
    changing: TagMetadataWriter,
}

impl TagSeriesCache {
    /// It may hold so many bytes from now on.
    pub fn set_room(&mut self, room: usize) {
        let forget = self.passed > PASSED_FOR_EACH * self.slots.len().max(1);
        if forget || self.bytes() > room + room / 4 {
            // What came lately is known again when it comes.
            let sights = std::mem::take(&mut self.sights);
            *self = TagSeriesCache {
                sights: if forget { sights } else { AdmissionFilter::default() },
                ..TagSeriesCache::default()
            };
        }
        self.room = room;
    }

    /// Memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
            + self.aliases.len() * (size_of::<TagSeriesLookupKey>() + size_of::<TagSeriesRef>() + 1)
            + self.sights.bytes()
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.bytes() + bytes <= self.room
    }

    /// Gives a row what its metadata says: that of the message which was looked at last.
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

    /// Where the row of a message with this metadata, which is settled, has it from, and the explicit time in it.
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

    /// The same of what is not known by its pointer.
    #[inline(never)]
    fn meet(&mut self, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> TagSeriesMatch {
        let shared = meta.shared_map();
        // A map that only this message holds will not come again.
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

    /// The slot of what a message makes of a series by its changes, if many do the same.
    fn variant(&mut self, base: u32, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> Option<u32> {
        let slot = self.slots.get(base as usize)?;
        // The table holds the map, so its address says what it is.
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

    /// The slot of a series that came before.
    fn known(&mut self, source: &Arc<str>, meta: &Metadata, alias: TagSeriesLookupKey) -> Option<u32> {
        let hash = sight_hash(source, meta, alias);
        if !self.sights.again(hash, self.room) {
            return None;
        }
        self.keep(describe(source, meta), meta, alias)
    }

    /// The slot of a series from now on, if there is room for it.
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

    /// The number of the names that these attributes have. There are as many as series, at most.
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

    /// How many series, ways to them, and shapes there are.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        (self.slots.len(), self.aliases.len(), self.shapes.len())
    }
}

/// Of what metadata says, and whose it is.
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
