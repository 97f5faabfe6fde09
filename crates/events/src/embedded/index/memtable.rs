//! The entries of one namespace since the last table was written, in memory, for lookups and for writing the next
//! table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use smallvec::SmallVec;
use thalweg_log::{Micros, Offset};

use super::keys::{self, CategoryValue, DocumentAt, Family, KeySpace, PositionRun, StreamValue};
use super::merge::NamespaceRemovals;
use super::rows::{self, CHUNK, IndexRow, ListKind, NO_GROUP};
use super::table::TableWriter;
use crate::names;

/// The index entry of a message.
#[derive(Clone, Debug)]
pub(crate) struct IndexedEvent {
    pub offset: Offset,
    pub stream: Arc<str>,
    pub position: u64,
    pub global: u64,
    /// The hash of an id that must be looked up. Ids from the server encode the location of their message.
    pub id: Option<u64>,
    pub time: Micros,
    pub correlation: u16,
    pub kind: u16,
    /// Its stream had no message before.
    pub is_first: bool,
    /// It was imported with its position, so the stream may have messages at larger positions.
    pub is_imported: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Memtable {
    pub space: KeySpace,
    streams: HashMap<Arc<str>, MemStream>,
    /// Sorted.
    names: BTreeSet<Arc<str>>,
    categories: HashMap<Box<str>, MemCategory>,
    ids: HashMap<u64, SmallVec<[Offset; 1]>>,
    segments: Vec<PositionRun>,
    segments_disordered: bool,
    documents: BTreeMap<Box<str>, DocumentAt>,
    bytes: usize,
}

#[derive(Debug)]
struct MemStream {
    rows: MemRows,
    value: StreamValue,
    group: u64,
}

#[derive(Debug, Default)]
struct MemCategory {
    rows: MemRows,
    value: CategoryValue,
}

/// Rows that arrive out of order, as in an import, are sorted when they are read.
#[derive(Debug, Default)]
struct MemRows {
    rows: Vec<IndexRow>,
    disordered: bool,
}

/// Approximate memory of a message without the name of its stream: rows in two lists.
const EVENT_BYTES: usize = 2 * size_of::<IndexRow>() + 16;
/// Approximate memory of a name in the maps.
const NAME_BYTES: usize = 200;

impl Memtable {
    pub fn new(space: KeySpace) -> Memtable {
        Memtable {
            space,
            ..Memtable::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Approximate size in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn stream_mut(&mut self, name: &Arc<str>) -> &mut MemStream {
        if !self.streams.contains_key(name) {
            self.bytes += 2 * name.len() + NAME_BYTES;
            self.names.insert(name.clone());
        }
        self.streams.entry(name.clone()).or_insert_with(|| MemStream {
            rows: MemRows::default(),
            value: StreamValue::default(),
            group: names::group_hash(name).unwrap_or(NO_GROUP),
        })
    }

    fn category_mut(&mut self, name: &str) -> &mut MemCategory {
        if !self.categories.contains_key(name) {
            self.bytes += name.len() + NAME_BYTES;
        }
        self.categories.entry_ref(name).or_default()
    }

    /// Adds a stream without messages.
    pub fn add_version(&mut self, stream: &Arc<str>, version: u64, is_first: bool) {
        self.stream_mut(stream).value.over(StreamValue {
            version,
            ..StreamValue::default()
        });
        self.category_mut(names::category(stream)).value.add(CategoryValue {
            messages: 0,
            streams: i64::from(is_first),
        });
    }

    pub fn add(&mut self, event: &IndexedEvent) {
        self.bytes += EVENT_BYTES;
        let stream = self.stream_mut(&event.stream);
        let row = IndexRow {
            ordinal: event.position,
            global: event.global,
            offset: event.offset,
            kind: event.kind,
            ..IndexRow::default()
        };
        let group = stream.group;
        stream.rows.push(row);
        stream.value.over(StreamValue {
            messages: 1,
            version: event.position,
            is_newest: !event.is_imported || event.is_first,
            last_activity: event.time,
        });
        let row = IndexRow {
            ordinal: event.global,
            correlation: event.correlation,
            group,
            ..row
        };
        let category = self.category_mut(names::category(&event.stream));
        category.rows.push(row);
        category.value.add(CategoryValue {
            messages: 1,
            streams: i64::from(event.is_first),
        });
        self.add_to_segments(event.global, event.offset);
        if let Some(id) = event.id {
            self.bytes += 48;
            self.ids.entry(id).or_default().push(event.offset);
        }
    }

    fn add_to_segments(&mut self, global: u64, offset: Offset) {
        if let Some(last) = self.segments.last_mut() {
            if (last.global + last.len, last.offset + last.len) == (global, offset) {
                last.len += 1;
                return;
            }
            self.segments_disordered |= last.global > global;
        }
        self.bytes += size_of::<PositionRun>();
        self.segments.push(PositionRun { global, offset, len: 1 });
    }

    pub fn add_document(&mut self, name: &str, at: DocumentAt) {
        self.bytes += name.len() + NAME_BYTES;
        self.documents.insert(name.into(), at);
    }

    /// Whether a list must be sorted before it is read.
    pub fn is_disordered(&self, list: ListKind, name: &str) -> bool {
        self.list(list, name).is_some_and(|rows| rows.disordered)
    }

    pub fn are_segments_disordered(&self) -> bool {
        self.segments_disordered
    }

    /// Removes all messages; documents stay.
    pub fn clear(&mut self, space: KeySpace) {
        *self = Memtable {
            documents: std::mem::take(&mut self.documents),
            bytes: self.bytes,
            ..Memtable::new(space)
        };
    }

    /// Removes messages that are no longer in any list. A stream that becomes empty stays, with its version.
    pub fn leave_out(&mut self, gone: &NamespaceRemovals) {
        for (name, less) in &gone.streams {
            if let Some(stream) = self.streams.get_mut(name.as_str()) {
                stream.rows.rows.retain(|row| !gone.has(row.offset));
                stream.value.messages -= less;
            }
        }
        for (name, less) in &gone.categories {
            if let Some(category) = self.categories.get_mut(name.as_str()) {
                category.rows.rows.retain(|row| !gone.has(row.offset));
                category.value.messages -= less.messages;
                category.value.streams -= less.streams;
            }
        }
        self.segments = self
            .segments
            .iter()
            .flat_map(|segment| gone.without(*segment))
            .collect();
        self.ids.retain(|_, offsets| {
            offsets.retain(|offset| !gone.has(*offset));
            !offsets.is_empty()
        });
    }

    pub fn sort(&mut self) {
        for stream in self.streams.values_mut() {
            stream.rows.sort();
        }
        for category in self.categories.values_mut() {
            category.rows.sort();
        }
        if std::mem::take(&mut self.segments_disordered) {
            self.segments.sort_by_key(|segment| segment.global);
        }
    }

    fn list(&self, list: ListKind, name: &str) -> Option<&MemRows> {
        match list {
            ListKind::Stream => self.streams.get(name).map(|stream| &stream.rows),
            ListKind::Category => self.categories.get(name).map(|category| &category.rows),
        }
    }

    /// In order.
    pub fn rows(&self, list: ListKind, name: &str) -> &[IndexRow] {
        self.list(list, name).map_or(&[], |rows| &rows.rows)
    }

    pub fn segments(&self) -> &[PositionRun] {
        &self.segments
    }

    /// The shared name and the value of a stream.
    pub(super) fn stream(&self, name: &str) -> Option<(&Arc<str>, StreamValue)> {
        self.streams
            .get_key_value(name)
            .map(|(name, stream)| (name, stream.value))
    }

    pub(super) fn streams_from<'a>(&'a self, from: &str) -> impl Iterator<Item = (&'a Arc<str>, StreamValue)> {
        let names = self
            .names
            .range::<str, _>((std::ops::Bound::Included(from), std::ops::Bound::Unbounded));
        names.filter_map(|name| self.stream(name))
    }

    pub(super) fn categories(&self) -> impl Iterator<Item = (&str, CategoryValue)> {
        self.categories.iter().map(|(name, category)| (&**name, category.value))
    }

    pub fn id(&self, hash: u64) -> &[Offset] {
        self.ids.get(&hash).map_or(&[], |offsets| offsets)
    }

    pub fn document(&self, name: &str) -> Option<DocumentAt> {
        self.documents.get(name).copied()
    }

    pub fn documents_from<'a>(&'a self, from: &str) -> impl Iterator<Item = (&'a str, DocumentAt)> {
        let names = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        self.documents.range::<str, _>(names).map(|(name, at)| (&**name, *at))
    }

    /// Writes all entries in key order. They must have been sorted.
    pub(super) fn write(&self, writer: &mut TableWriter) -> std::io::Result<()> {
        let (space, mut value) = (self.space, Vec::new());
        let mut put = |key: &[u8], encode: &dyn Fn(&mut Vec<u8>)| {
            value.clear();
            encode(&mut value);
            writer.add(key, &value, keys::filter_hash(key))
        };
        for (name, at) in &self.documents {
            put(&keys::named(space.of_documents(), Family::Document, name), &|out| {
                at.encode(out)
            })?;
        }
        for (name, stream) in self.streams_from("") {
            put(&keys::named(space, Family::Stream, name), &|out| stream.encode(out))?;
        }
        let mut categories: Vec<_> = self.categories().collect();
        categories.sort_unstable_by_key(|(name, _)| *name);
        for (name, category) in categories {
            put(&keys::named(space, Family::Category, name), &|out| category.encode(out))?;
        }
        for list in [ListKind::Stream, ListKind::Category] {
            for (hash, all) in self.lists(list) {
                for chunk in all.chunks(CHUNK) {
                    let first = chunk.first().map_or(0, |row| row.ordinal);
                    let key = keys::hashed(space, keys::rows_of(list), hash, first);
                    put(&key, &|out| rows::encode(list, chunk, out))?;
                }
            }
        }
        for segment in &self.segments {
            let key = keys::numbered(space, Family::Segment, segment.global);
            put(&key, &|out| segment.encode(out))?;
        }
        let mut ids: Vec<(u64, Offset)> = Vec::with_capacity(self.ids.len());
        for (hash, offsets) in &self.ids {
            ids.extend(offsets.iter().map(|offset| (*hash, *offset)));
        }
        ids.sort_unstable();
        for (hash, offset) in ids {
            put(&keys::hashed(space, Family::Id, hash, offset), &|_| {})?;
        }
        Ok(())
    }

    /// Lists by hash. Lists with the same hash are joined.
    fn lists(&self, list: ListKind) -> Vec<(u64, std::borrow::Cow<'_, [IndexRow]>)> {
        let mut all: Vec<(u64, &[IndexRow])> = match list {
            ListKind::Stream => {
                let lists = self.streams.iter();
                lists
                    .map(|(name, stream)| (keys::hash(name.as_bytes()), &*stream.rows.rows))
                    .collect()
            }
            ListKind::Category => {
                let lists = self.categories.iter();
                lists
                    .map(|(name, category)| (keys::hash(name.as_bytes()), &*category.rows.rows))
                    .collect()
            }
        };
        all.sort_unstable_by_key(|(hash, _)| *hash);
        let mut joined: Vec<(u64, std::borrow::Cow<'_, [IndexRow]>)> = Vec::with_capacity(all.len());
        for (hash, rows) in all {
            match joined.last_mut().filter(|(last, _)| *last == hash) {
                Some((_, own)) => {
                    let own = own.to_mut();
                    own.extend_from_slice(rows);
                    own.sort_by_key(|row| row.ordinal);
                }
                None => joined.push((hash, rows.into())),
            }
        }
        joined
    }
}

impl MemRows {
    fn push(&mut self, row: IndexRow) {
        self.disordered |= self.rows.last().is_some_and(|last| last.ordinal > row.ordinal);
        self.rows.push(row);
    }

    fn sort(&mut self) {
        if std::mem::take(&mut self.disordered) {
            self.rows.sort_by_key(|row| row.ordinal);
        }
    }
}
