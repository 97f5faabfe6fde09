//! A snapshot of the frozen memtable and the tables, and iteration over lists in them and in the active memtable.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_log::Offset;

use super::keys::{self, CategoryValue, DocumentAt, Family, HASHED, KeySpace, PositionRun, StreamValue};
use super::memtable::Memtable;
use super::rows::{self, IndexRow, ListKind};
use super::table::{IndexReadError, IndexReadResult, Io, Table, TableCursor};
use super::table_store::{FrozenMemtable, SortedTableSet};
use crate::error::EventsError;
use crate::id::MessageId;
use crate::store::{CategoryInfo, Direction, StreamInfo};

/// The view of one namespace.
#[derive(Clone)]
pub(crate) struct IndexView {
    pub(super) space: KeySpace,
    pub(super) frozen: Option<Arc<FrozenMemtable>>,
    pub(super) tables: Arc<SortedTableSet>,
}

fn damaged(what: &str) -> IndexReadError {
    IndexReadError::Failed(EventsError::Damaged(format!("{what} of an index is damaged")))
}

impl IndexView {
    /// The frozen memtable, unless its messages were cleared since.
    pub(super) fn frozen(&self) -> Option<&Memtable> {
        let frozen = self.frozen.as_ref().filter(|frozen| frozen.mem.space == self.space);
        frozen.map(|frozen| &frozen.mem)
    }

    /// Everything frozen up to this flush is in tables.
    pub fn flushed(&self) -> u64 {
        self.tables.flushed
    }

    /// The version of a stream; -1 without messages.
    pub fn version_in_tables(&self, name: &str, io: Io) -> IndexReadResult<i64> {
        let key = keys::named(self.space, Family::Stream, name);
        let hash = keys::filter_hash(&key).unwrap_or_default();
        let mut version = -1;
        for table in self.tables.list.iter().filter(|table| table.may_have(hash)) {
            let cursor = table.seek(&key, io)?;
            let Some((_, value)) = cursor.entry().filter(|(own, _)| *own == key) else {
                continue;
            };
            let value = StreamValue::decode(value).ok_or_else(|| damaged("a stream"))?;
            version = version.max(value.version as i64);
            if value.is_newest {
                break;
            }
        }
        Ok(version)
    }

    pub fn document_in_tables(&self, name: &str, io: Io) -> IndexReadResult<Option<DocumentAt>> {
        let key = keys::named(self.space.of_documents(), Family::Document, name);
        let hash = keys::filter_hash(&key).unwrap_or_default();
        for table in self.tables.list.iter().filter(|table| table.may_have(hash)) {
            let cursor = table.seek(&key, io)?;
            if let Some((_, value)) = cursor.entry().filter(|(own, _)| *own == key) {
                return DocumentAt::decode(value).map(Some).ok_or_else(|| damaged("a document"));
            }
        }
        Ok(None)
    }

    /// The newest version of a document outside of the active memtable.
    pub fn document(&self, name: &str) -> IndexReadResult<Option<DocumentAt>> {
        match self.frozen.as_ref().and_then(|frozen| frozen.mem.document(name)) {
            Some(at) => Ok(Some(at)),
            None => self.document_in_tables(name, Io::MayBlock),
        }
    }

    /// Offsets of messages that may have this id.
    pub fn id_in_tables(&self, id: &MessageId, io: Io) -> IndexReadResult<Vec<Offset>> {
        self.ids_in_tables(super::id_hash(id), io)
    }

    /// Like `id_in_tables`, by the hash of the id.
    pub fn ids_in_tables(&self, hash: u64, io: Io) -> IndexReadResult<Vec<Offset>> {
        let key = keys::hashed(self.space, Family::Id, hash, 0);
        let prefix = key.get(..HASHED).unwrap_or_default();
        let filter = keys::filter_hash(&key).unwrap_or_default();
        let mut found = Vec::new();
        for table in self.tables.list.iter().filter(|table| table.may_have(filter)) {
            let mut cursor = table.seek(&key, io)?;
            while let Some((own, _)) = cursor.entry().filter(|(own, _)| own.starts_with(prefix)) {
                found.push(keys::number(own));
                cursor.next()?;
            }
        }
        Ok(found)
    }

    /// Visits the names of a family from a name on, in order, until `take` returns false. A name occurs once for each
    /// table that has it, newest first.
    fn names(
        &self,
        space: KeySpace,
        family: Family,
        from: &str,
        take: &mut dyn FnMut(&str, &[u8]) -> IndexReadResult<bool>,
    ) -> IndexReadResult<()> {
        let start = keys::named(space, family, from);
        let head = keys::named(space, family, "");
        let mut cursors = Vec::with_capacity(self.tables.list.len());
        for table in &self.tables.list {
            cursors.push(table.seek(&start, Io::MayBlock)?);
        }
        loop {
            let own = cursors.iter().filter_map(|cursor| cursor.entry().map(|(key, _)| key));
            let Some(key) = own.filter(|key| key.starts_with(&head)).min().map(<[u8]>::to_vec) else {
                return Ok(());
            };
            let name = key.get(head.len()..).and_then(|name| std::str::from_utf8(name).ok());
            let name = name.ok_or_else(|| damaged("a name"))?;
            for cursor in &mut cursors {
                if let Some((_, value)) = cursor.entry().filter(|(own, _)| *own == key) {
                    if !take(name, value)? {
                        return Ok(());
                    }
                    cursor.next()?;
                }
            }
        }
    }

    /// Adds the streams outside of the active memtable to `found`, and returns them in byte order. May block.
    pub fn streams(
        &self,
        mut found: StreamListing,
        prefix: &str,
        cursor: &str,
        max: usize,
    ) -> IndexReadResult<Vec<StreamInfo>> {
        let from = if cursor > prefix { cursor } else { prefix };
        if let Some(mem) = self.frozen() {
            found.take_from(mem, from, prefix, max + 1);
        }
        let mut names = 0;
        let mut last = String::new();
        self.names(self.space, Family::Stream, from, &mut |name, value| {
            if name != last {
                names += 1;
                name.clone_into(&mut last);
            }
            // One more than wanted, because the cursor itself may be among them.
            if names > max + 1 || !name.starts_with(prefix) {
                return Ok(false);
            }
            found.add(
                name.into(),
                StreamValue::decode(value).ok_or_else(|| damaged("a stream"))?,
            );
            Ok(true)
        })?;
        let wanted = found
            .found
            .into_iter()
            .filter(|(name, _)| cursor.is_empty() || **name != *cursor);
        let infos = wanted.take(max).map(|(name, value)| StreamInfo {
            stream: name.to_string(),
            version: value.version,
            last_activity: value.last_activity,
        });
        Ok(infos.collect())
    }

    /// Like `streams`, for all categories.
    pub fn categories(&self, mut found: BTreeMap<String, CategoryValue>) -> IndexReadResult<Vec<CategoryInfo>> {
        let mut add = |name: &str, value| found.entry(name.to_owned()).or_default().add(value);
        if let Some(mem) = self.frozen() {
            mem.categories().for_each(|(name, value)| add(name, value));
        }
        self.names(self.space, Family::Category, "", &mut |name, value| {
            add(name, CategoryValue::decode(value).ok_or_else(|| damaged("a category"))?);
            Ok(true)
        })?;
        let infos = found.into_iter().map(|(category, value)| CategoryInfo {
            category,
            messages: value.messages.unsigned_abs(),
            streams: value.streams.unsigned_abs(),
        });
        Ok(infos.collect())
    }

    /// Names of existing documents after the cursor. `found` has all those in the active memtable.
    pub fn documents(
        &self,
        mut found: BTreeMap<String, DocumentAt>,
        prefix: &str,
        cursor: &str,
        max: usize,
    ) -> IndexReadResult<Vec<String>> {
        let from = if cursor > prefix { cursor } else { prefix };
        // The newest location of each name wins, so existing entries are kept.
        if let Some(frozen) = &self.frozen {
            for (name, at) in frozen
                .mem
                .documents_from(from)
                .take_while(|(name, _)| name.starts_with(prefix))
            {
                found.entry(name.to_owned()).or_insert(at);
            }
        }
        let is_after = |name: &str| cursor.is_empty() || name > cursor;
        let mut names = 0;
        let mut last = String::new();
        self.names(self.space.of_documents(), Family::Document, from, &mut |name, value| {
            if names > max || !name.starts_with(prefix) {
                return Ok(false);
            }
            let at = DocumentAt::decode(value).ok_or_else(|| damaged("a document"))?;
            let at = *found.entry(name.to_owned()).or_insert(at);
            if name != last {
                names += usize::from(!at.removed && is_after(name));
                name.clone_into(&mut last);
            }
            Ok(true)
        })?;
        let names = found.into_iter().filter(|(name, at)| !at.removed && is_after(name));
        Ok(names.map(|(name, _)| name).take(max).collect())
    }

    /// One source for each place that has a part of a list.
    pub(super) fn sources(&self, of: &ListId, from: Option<u64>, direction: Direction, io: Io) -> Vec<RowSource> {
        let mut sources = Vec::new();
        let source = |origin| RowSource::new(origin, from, direction);
        if let Some(frozen) = self.frozen.as_ref().filter(|frozen| frozen.mem.space == self.space) {
            sources.push(source(Origin::Frozen(frozen.clone())));
        }
        let key = of.key(self.space, 0);
        let filter = keys::filter_hash(&key);
        for table in &self.tables.list {
            if filter.is_none_or(|hash| table.may_have(hash)) {
                sources.push(source(Origin::Table(TableListCursor {
                    table: table.clone(),
                    io,
                    cursor: None,
                    segment: None,
                })));
            }
        }
        sources
    }
}

/// Streams by name.
#[derive(Debug, Default)]
pub(crate) struct StreamListing {
    found: BTreeMap<Arc<str>, StreamValue>,
}

impl StreamListing {
    pub(super) fn take_from(&mut self, mem: &Memtable, from: &str, prefix: &str, max: usize) {
        let own = mem.streams_from(from).take_while(|(name, _)| name.starts_with(prefix));
        own.take(max).for_each(|(name, value)| self.add(name.clone(), value));
    }

    fn add(&mut self, name: Arc<str>, value: StreamValue) {
        self.found.entry(name).or_default().over(value);
    }
}

/// A list of messages.
#[derive(Clone, Debug)]
pub(crate) enum ListId {
    Of(ListKind, String),
    /// All messages of the namespace, by global position.
    All,
}

impl ListId {
    fn key(&self, space: KeySpace, ordinal: u64) -> Vec<u8> {
        match self {
            ListId::Of(list, name) => keys::hashed(space, keys::rows_of(*list), keys::hash(name.as_bytes()), ordinal),
            ListId::All => keys::numbered(space, Family::Segment, ordinal),
        }
    }

    /// Length of a key before the ordinal.
    fn prefix(&self) -> usize {
        match self {
            ListId::Of(..) => HASHED,
            ListId::All => keys::HEAD,
        }
    }

    /// Copies the next rows from an ordinal on, at most `max`.
    pub(super) fn copy(
        &self,
        mem: &Memtable,
        from: Option<u64>,
        direction: Direction,
        max: usize,
        out: &mut Vec<IndexRow>,
    ) {
        match self {
            ListId::Of(list, name) => {
                let all = mem.rows(*list, name);
                let ordinal = |row: &IndexRow| row.ordinal;
                match direction {
                    Direction::Forward => {
                        let start = from.map_or(0, |from| all.partition_point(|row| ordinal(row) < from));
                        out.extend(all.iter().skip(start).take(max));
                    }
                    Direction::Backward => {
                        let end = from.map_or(all.len(), |from| all.partition_point(|row| ordinal(row) <= from));
                        out.extend(all.iter().take(end).rev().take(max));
                    }
                }
            }
            ListId::All => {
                let all = mem.segments();
                match direction {
                    Direction::Forward => {
                        let from = from.unwrap_or(0);
                        let start = all.partition_point(|segment| segment.global + segment.len <= from);
                        let rows = all.iter().skip(start).flat_map(|segment| rows_from(segment, from));
                        out.extend(rows.take(max));
                    }
                    Direction::Backward => {
                        let from = from.unwrap_or(u64::MAX);
                        let end = all.partition_point(|segment| segment.global <= from);
                        let rows = all.iter().take(end).rev().flat_map(|segment| rows_to(segment, from));
                        out.extend(rows.take(max));
                    }
                }
            }
        }
    }
}

fn row_of(segment: &PositionRun, n: u64) -> IndexRow {
    IndexRow {
        ordinal: segment.global + n,
        global: segment.global + n,
        offset: segment.offset + n,
        ..IndexRow::default()
    }
}

fn rows_from(segment: &PositionRun, from: u64) -> impl Iterator<Item = IndexRow> {
    let segment = *segment;
    (from.saturating_sub(segment.global)..segment.len).map(move |n| row_of(&segment, n))
}

/// Rows in backward order.
fn rows_to(segment: &PositionRun, to: u64) -> impl Iterator<Item = IndexRow> {
    let segment = *segment;
    let len = to
        .checked_sub(segment.global)
        .map_or(0, |last| segment.len.min(last.saturating_add(1)));
    (0..len).rev().map(move |n| row_of(&segment, n))
}

/// Number of rows copied at once: few at first, because most readers need few.
const COPIED_FIRST: usize = 16;
const COPIED: usize = 256;

/// Iterates over the part of a list in one place.
pub(super) struct RowSource {
    origin: Origin,
    direction: Direction,
    /// The inclusive ordinal from which rows must be fetched. `None`: from the start in this direction.
    from: Option<u64>,
    rows: Vec<IndexRow>,
    at: usize,
    /// Number of rows in the next copy.
    copied: usize,
    ended: bool,
}

pub(super) enum Origin {
    /// The active memtable changes, so it is accessed through a function.
    Active,
    Frozen(Arc<FrozenMemtable>),
    Table(TableListCursor),
}

/// Iterates over a list in a table.
pub(super) struct TableListCursor {
    table: Arc<Table>,
    io: Io,
    cursor: Option<TableCursor>,
    /// A segment that has not been returned completely.
    segment: Option<PositionRun>,
}

/// Copies rows of the active memtable.
pub(super) type ActiveRowsFn<'a> =
    &'a dyn Fn(&ListId, Option<u64>, Direction, usize, &mut Vec<IndexRow>) -> IndexReadResult<()>;

impl RowSource {
    pub fn new(origin: Origin, from: Option<u64>, direction: Direction) -> RowSource {
        RowSource {
            origin,
            direction,
            from,
            rows: Vec::new(),
            at: 0,
            copied: COPIED_FIRST,
            ended: false,
        }
    }

    pub fn peek(
        &mut self,
        of: &ListId,
        space: KeySpace,
        active: ActiveRowsFn<'_>,
    ) -> IndexReadResult<Option<IndexRow>> {
        while self.at >= self.rows.len() {
            if self.ended {
                return Ok(None);
            }
            self.fill(of, space, active)?;
        }
        Ok(self.rows.get(self.at).copied())
    }

    pub fn advance(&mut self) {
        self.at += 1;
    }

    fn fill(&mut self, of: &ListId, space: KeySpace, active: ActiveRowsFn<'_>) -> IndexReadResult<()> {
        self.rows.clear();
        self.at = 0;
        let copied = std::mem::replace(&mut self.copied, COPIED);
        match &mut self.origin {
            Origin::Active => {
                active(of, self.from, self.direction, copied, &mut self.rows)?;
                self.ended = self.rows.len() < copied;
            }
            Origin::Frozen(frozen) => {
                of.copy(&frozen.mem, self.from, self.direction, copied, &mut self.rows);
                self.ended = self.rows.len() < copied;
            }
            Origin::Table(table) => {
                self.ended = !table.part(of, space, self.from, self.direction, &mut self.rows)?;
            }
        }
        if let Some(last) = self.rows.last() {
            let next = match self.direction {
                Direction::Forward => last.ordinal.checked_add(1),
                Direction::Backward => last.ordinal.checked_sub(1),
            };
            match next {
                Some(next) => self.from = Some(next),
                None => self.ended = true,
            }
        }
        Ok(())
    }
}

impl TableListCursor {
    /// Fetches the rows of the next part that has some. Returns `false` after the last part.
    fn part(
        &mut self,
        of: &ListId,
        space: KeySpace,
        from: Option<u64>,
        direction: Direction,
        out: &mut Vec<IndexRow>,
    ) -> IndexReadResult<bool> {
        if self.segment.is_none() {
            self.go_on(of, space, from, direction)?;
            let own = of.key(space, 0);
            let prefix = own.get(..of.prefix()).unwrap_or_default();
            let entry = self.cursor.as_ref().and_then(TableCursor::entry);
            let Some((key, value)) = entry.filter(|(key, _)| key.starts_with(prefix)) else {
                return Ok(false);
            };
            match of {
                ListId::Of(list, _) => rows::decode(*list, value, out).ok_or_else(|| damaged("a list"))?,
                ListId::All => {
                    let segment = PositionRun::decode(key, value).ok_or_else(|| damaged("a segment"))?;
                    self.segment = Some(segment);
                }
            }
        }
        if let Some(segment) = self.segment {
            match direction {
                Direction::Forward => out.extend(rows_from(&segment, from.unwrap_or(0)).take(COPIED)),
                Direction::Backward => out.extend(rows_to(&segment, from.unwrap_or(u64::MAX)).take(COPIED)),
            }
            if out.len() < COPIED {
                self.segment = None;
            }
            return Ok(true);
        }
        match direction {
            Direction::Forward => out.retain(|row| from.is_none_or(|from| row.ordinal >= from)),
            Direction::Backward => {
                out.retain(|row| from.is_none_or(|from| row.ordinal <= from));
                out.reverse();
            }
        }
        Ok(true)
    }

    /// Moves to the next part, or to the first part that may have rows from an ordinal on.
    fn go_on(&mut self, of: &ListId, space: KeySpace, from: Option<u64>, direction: Direction) -> IndexReadResult<()> {
        let forward = direction == Direction::Forward;
        if let Some(cursor) = &mut self.cursor {
            return match forward {
                true => cursor.next(),
                false => cursor.back().map(|moved| {
                    if !moved {
                        cursor.leave();
                    }
                }),
            };
        }
        let ordinal = from.unwrap_or(if forward { 0 } else { u64::MAX });
        let key = of.key(space, ordinal);
        let cursor = self.cursor.insert(self.table.seek(&key, self.io)?);
        if cursor.entry().is_some_and(|(own, _)| own == key) || forward && from.is_none() {
            return Ok(());
        }
        // The part before begins before the ordinal and may reach it.
        let moved = cursor.back()?;
        if !moved && !forward {
            cursor.leave();
        }
        let prefix = key.get(..of.prefix()).unwrap_or_default();
        if moved && forward && cursor.entry().is_none_or(|(own, _)| !own.starts_with(prefix)) {
            cursor.next()?;
        }
        Ok(())
    }
}
