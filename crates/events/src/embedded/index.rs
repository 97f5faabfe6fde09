//! The index of a namespace: the log offsets of messages by stream, category, global position and id, and of documents.
//! It is derived from the log in log order. New entries are in memory, older ones in tables.

mod block;
mod bloom;
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod memtable;
mod merge;
mod rows;
mod table;
mod table_store;
mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use thalweg_log::Offset;

use crate::event::{EventRef, IdRef};
use crate::id::MessageId;
use crate::names;
use crate::store::Direction;

use memtable::Memtable;
use view::{Origin, RowSource};

pub(crate) use keys::{CategoryValue, DocumentAt, KeySpace, hash};
pub(crate) use memtable::IndexedEvent;
pub(crate) use merge::{NamespaceRemovals, RemovalSet};
pub(crate) use rows::{IndexRow, ListKind, NO_GROUP};
pub(crate) use table::{IndexReadError, IndexReadResult, Io};
pub use table_store::IndexSizes;
pub(crate) use table_store::{FrozenMemtable, IndexState, MemtableReservation, TableStore};
pub(crate) use view::{IndexView, ListId, StreamListing};

/// An index entry, prepared before its record is stored.
#[derive(Clone, Debug)]
pub(crate) enum IndexEntry {
    Event(IndexedEvent),
    Document {
        name: Arc<str>,
        at: DocumentAt,
    },
    /// Everything before it is removed, except for documents.
    Cleared {
        offset: Offset,
    },
}

impl IndexEntry {
    pub fn of(event: &EventRef<'_>, stream: Arc<str>, offset: Offset) -> IndexEntry {
        IndexEntry::Event(IndexedEvent {
            offset,
            stream,
            position: event.position,
            global: event.global,
            id: (!event.own_id).then(|| id_hash(&event.id.into())),
            time: event.time,
            correlation: names::correlation(event.metadata).map_or(0, |category| short_hash(&category)),
            kind: short_hash(event.kind),
            is_first: event.is_first,
            is_imported: event.is_imported,
        })
    }

    pub fn offset(&self) -> Offset {
        match self {
            IndexEntry::Event(event) => event.offset,
            IndexEntry::Document { at, .. } => at.offset,
            IndexEntry::Cleared { offset } => *offset,
        }
    }
}

/// A short hash for filters in the index. A mismatch is certain; a match must be verified in the message.
pub(super) fn short_hash(text: &str) -> u16 {
    // Zero means that there is no text.
    (keys::hash(text.as_bytes()) as u16).max(1)
}

pub(super) fn id_hash(id: &MessageId) -> u64 {
    match IdRef::from(id) {
        IdRef::Uuid(uuid) => keys::hash(&uuid.0),
        IdRef::Text(text) => keys::hash(text.as_bytes()),
    }
}

/// The index of one namespace.
pub(crate) struct NamespaceIndex {
    table_store: Arc<TableStore>,
    active: Memtable,
    frozen: Option<Arc<FrozenMemtable>>,
    pub state: IndexState,
    /// The clearing generation that the tables know.
    clears_written: u32,
    /// The memory reservation for the active memtable.
    share: MemtableReservation,
    /// Incremented when it is frozen or cleared. Readers that see a change start again.
    moves: u64,
    /// Incremented when messages are removed.
    removals: u64,
    /// Entries before this log offset are no longer in the active memtable.
    active_from: Offset,
}

impl NamespaceIndex {
    /// The index with the content of its tables.
    pub fn new(table_store: &Arc<TableStore>, namespace: u32) -> NamespaceIndex {
        NamespaceIndex::with(table_store, namespace, table_store.state(namespace).unwrap_or_default())
    }

    fn with(table_store: &Arc<TableStore>, namespace: u32, mut state: IndexState) -> NamespaceIndex {
        state.cleared = state.cleared.max(1);
        NamespaceIndex {
            table_store: table_store.clone(),
            active: Memtable::new(space_of(namespace, &state)),
            frozen: None,
            state,
            clears_written: state.cleared,
            share: MemtableReservation::new(table_store),
            moves: 0,
            removals: 0,
            active_from: state.next_offset,
        }
    }

    /// The index of a new namespace, whose number was never used.
    pub fn of_new(table_store: &Arc<TableStore>, namespace: u32) -> NamespaceIndex {
        NamespaceIndex::with(table_store, namespace, IndexState::default())
    }

    pub fn space(&self) -> KeySpace {
        self.active.space
    }

    /// Adds an entry, in the order of the log. `log_bytes` is its size in the log.
    pub fn add(&mut self, entry: &IndexEntry, log_bytes: u64) {
        let before = self.active.bytes();
        match entry {
            IndexEntry::Event(event) => {
                self.active.add(event);
                self.state.messages += 1;
                self.state.has_imports |= event.is_imported;
                self.state.streams += u64::from(event.is_first);
                self.state.last_activity = self.state.last_activity.max(Some(event.time));
                self.state.last_global = self.state.last_global.max(event.global);
            }
            IndexEntry::Document { name, at } => self.active.add_document(name, *at),
            IndexEntry::Cleared { offset } => {
                self.table_store.cleared(self.state.messages);
                self.state = IndexState {
                    cleared: self.state.cleared + 1,
                    cleared_at: *offset,
                    marks_followed: self.state.marks_followed,
                    ..IndexState::default()
                };
                self.active.clear(space_of(self.active.space.namespace, &self.state));
                // If a clearing is found late, what followed it is indexed again.
                self.active_from = self.active_from.min(offset + 1);
                self.moves += 1;
                self.removals += 1;
            }
        }
        self.state.next_offset = self.state.next_offset.max(entry.offset() + 1);
        self.share.grow(self.active.bytes() - before, log_bytes);
    }

    /// Records that a stream whose messages were all deleted and scavenged continues after a version. `is_first`: the
    /// index has nothing of the stream.
    pub fn add_version(&mut self, stream: &Arc<str>, version: u64, is_first: bool) {
        let before = self.active.bytes();
        self.active.add_version(stream, version, is_first);
        self.state.streams += u64::from(is_first);
        self.share.grow(self.active.bytes() - before, 0);
    }

    /// Freezes the active memtable to be written as a table. Returns `None` if there is nothing to write.
    pub fn freeze(&mut self) -> Option<Arc<FrozenMemtable>> {
        // The writer may not have released it yet. In two tables it would count twice.
        self.thaw();
        // A failed attempt is repeated first; newer entries wait for the next one.
        if self.frozen.is_some() {
            return self.frozen.clone();
        }
        if self.active.is_empty() && self.state.cleared == self.clears_written {
            return None;
        }
        self.active.sort();
        let next = Memtable::new(self.active.space);
        let frozen = Arc::new(FrozenMemtable {
            mem: std::mem::replace(&mut self.active, next),
            state: Mutex::new(self.state),
            flush: AtomicU64::new(FrozenMemtable::WAITING),
            share: std::mem::replace(&mut self.share, MemtableReservation::new(&self.table_store)),
        });
        self.frozen = Some(frozen.clone());
        self.active_from = self.state.next_offset;
        self.moves += 1;
        Some(frozen)
    }

    /// Releases the frozen memtable once it is in a table.
    pub fn thaw(&mut self) {
        let tables = self.table_store.tables();
        if let Some(frozen) = self.frozen.take_if(|frozen| frozen.is_in(&tables)) {
            self.clears_written = self.clears_written.max(frozen.state.lock().cleared);
        }
    }

    /// Whether tables keep what they have of a key space of this namespace. Cleared messages are dropped only once the
    /// tables know of the clearing, because until then a power cut or damage may undo it.
    pub fn keeps(&self, space: KeySpace) -> bool {
        space.cleared >= self.clears_written
    }

    /// Removes messages that are no longer in any table. `in_memory`: there are no tables.
    pub fn leave_out(&mut self, gone: &NamespaceRemovals, in_memory: bool) {
        if let Some(frozen) = self.frozen.as_ref().filter(|frozen| frozen.mem.space == gone.space) {
            frozen.state.lock().leave_out(gone);
        }
        // Unless everything was cleared meanwhile.
        if self.space() == gone.space {
            if in_memory {
                self.active.leave_out(gone);
            }
            self.state.leave_out(gone);
        }
        self.moves += 1;
        self.removals += 1;
    }

    /// The frozen memtable and the tables.
    pub fn view(&self) -> IndexView {
        // Before the tables: whatever is in none of the tables is then still in the frozen memtable.
        let frozen = self.frozen.clone();
        let tables = self.table_store.tables();
        IndexView {
            space: self.active.space,
            frozen: frozen.filter(|frozen| !frozen.is_in(&tables)),
            tables,
        }
    }

    /// Releases its memory reservation after the namespace was deleted.
    pub fn forsake(&self) {
        self.share.give_back();
        if let Some(frozen) = &self.frozen {
            frozen.share.give_back();
        }
    }

    /// Whether everything up to an offset is in tables.
    pub fn is_written(&self, offset: Offset) -> bool {
        self.frozen.is_none() && (self.active.is_empty() || self.active_from > offset)
    }

    pub fn moves(&self) -> u64 {
        self.moves
    }

    pub fn removals(&self) -> u64 {
        self.removals
    }

    /// A message before this log offset that is in no list of the [`view`](NamespaceIndex::view) was scavenged.
    pub fn active_from(&self) -> Offset {
        self.active_from
    }

    /// The version in memory, -1 if there is none, and whether no table can have a larger one. Entries that are in no
    /// table of `view` are in memory. Tables are written concurrently, so a caller must use one view for both.
    pub fn version_here(&self, view: &IndexView, stream: &str) -> (i64, bool) {
        let own = self.active.stream(stream).map(|(_, value)| value);
        if let Some(own) = own.filter(|own| own.is_newest) {
            return (own.version as i64, true);
        }
        let frozen = view.frozen().and_then(|mem| mem.stream(stream)).map(|(_, value)| value);
        let is_newest = frozen.is_some_and(|frozen| frozen.is_newest);
        let versions = [own, frozen].into_iter().flatten().map(|value| value.version as i64);
        (versions.max().unwrap_or(-1), is_newest)
    }

    /// The version of a stream; -1 without messages.
    pub fn version(&self, view: &IndexView, stream: &str, io: Io) -> IndexReadResult<i64> {
        match self.version_here(view, stream) {
            (here, true) => Ok(here),
            (here, false) => Ok(here.max(view.version_in_tables(stream, io)?)),
        }
    }

    /// The name of a stream that has messages in memory.
    pub fn name(&self, stream: &str) -> Option<Arc<str>> {
        self.active.stream(stream).map(|(name, _)| name.clone())
    }

    /// Offsets of messages that may have this id, according to the id itself and to the entries in memory that are in
    /// no table of `view`.
    pub fn id_here(&self, view: &IndexView, id: &MessageId) -> Vec<Offset> {
        let mut found = self.ids_here(view, id_hash(id));
        if let MessageId::Uuid(uuid) = id
            && let Some(offset) = uuid.made_for()
            && (self.state.cleared_at..self.state.next_offset).contains(&offset)
        {
            found.push(offset);
        }
        found
    }

    /// Like `id_here`, by the hash of the id.
    pub fn ids_here(&self, view: &IndexView, hash: u64) -> Vec<Offset> {
        let mut found = self.active.id(hash).to_vec();
        found.extend(view.frozen().map_or(&[][..], |mem| mem.id(hash)));
        found
    }

    pub fn document_here(&self, name: &str) -> Option<DocumentAt> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.mem.document(name));
        self.active.document(name).or_else(frozen)
    }

    /// Whether a document changed at or after an offset and the change is still in memory.
    pub fn document_since(&self, name: &str, offset: Offset) -> bool {
        self.document_here(name).is_some_and(|at| at.offset >= offset)
    }

    /// Whether a list must be sorted before it is read.
    pub fn is_disordered(&self, of: &ListId) -> bool {
        match of {
            ListId::Of(list, name) => self.active.is_disordered(*list, name),
            ListId::All => self.active.are_segments_disordered(),
        }
    }

    pub fn sort(&mut self) {
        self.active.sort();
    }

    /// Copies rows of the active memtable.
    pub fn copy(&self, of: &ListId, from: Option<u64>, direction: Direction, max: usize, out: &mut Vec<IndexRow>) {
        of.copy(&self.active, from, direction, max, out);
    }

    /// Streams in the active memtable with a prefix, starting from a name.
    pub fn streams_here(&self, from: &str, prefix: &str, max: usize) -> StreamListing {
        let mut found = StreamListing::default();
        found.take_from(&self.active, from, prefix, max);
        found
    }

    pub fn categories_here(&self) -> BTreeMap<String, CategoryValue> {
        self.active
            .categories()
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }

    pub fn documents_here(&self, from: &str, prefix: &str) -> BTreeMap<String, DocumentAt> {
        let own = self
            .active
            .documents_from(from)
            .take_while(|(name, _)| name.starts_with(prefix));
        own.map(|(name, at)| (name.to_owned(), at)).collect()
    }
}

impl IndexView {
    /// Visits the rows of a list outside of the active memtable, until `show` returns false.
    pub fn rows(&self, of: &ListId, from: u64, show: &mut dyn FnMut(IndexRow) -> bool) -> IndexReadResult<()> {
        let nothing = |_: &ListId, _, _, _, _: &mut Vec<IndexRow>| IndexReadResult::Ok(());
        let mut walk = MergingIterator::new(self, of, Some(from), Direction::Forward, Io::MayBlock, &nothing);
        while let Some(row) = walk.next()? {
            if !show(row) {
                break;
            }
        }
        Ok(())
    }
}

fn space_of(namespace: u32, state: &IndexState) -> KeySpace {
    KeySpace {
        namespace,
        cleared: state.cleared.max(1),
    }
}

/// Merges a list from all places that have parts of it, in one direction.
pub(super) struct MergingIterator<'a> {
    of: &'a ListId,
    space: KeySpace,
    direction: Direction,
    sources: Vec<RowSource>,
    active: view::ActiveRowsFn<'a>,
}

impl<'a> MergingIterator<'a> {
    /// `active` copies rows of the active memtable and reports when it was frozen or cleared.
    pub fn new(
        view: &IndexView,
        of: &'a ListId,
        from: Option<u64>,
        direction: Direction,
        io: Io,
        active: view::ActiveRowsFn<'a>,
    ) -> MergingIterator<'a> {
        let mut sources = view.sources(of, from, direction, io);
        sources.push(RowSource::new(Origin::Active, from, direction));
        MergingIterator {
            of,
            space: view.space,
            direction,
            sources,
            active,
        }
    }

    pub fn next(&mut self) -> IndexReadResult<Option<IndexRow>> {
        let mut best: Option<(usize, IndexRow)> = None;
        for (n, source) in self.sources.iter_mut().enumerate() {
            let Some(row) = source.peek(self.of, self.space, self.active)? else {
                continue;
            };
            let is_nearer = best.is_none_or(|(_, best)| match self.direction {
                Direction::Forward => row.ordinal < best.ordinal,
                Direction::Backward => row.ordinal > best.ordinal,
            });
            if is_nearer {
                best = Some((n, row));
            }
        }
        Ok(best.map(|(n, row)| {
            if let Some(source) = self.sources.get_mut(n) {
                source.advance();
            }
            row
        }))
    }
}
