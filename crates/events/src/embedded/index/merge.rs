//! Merges tables: values of the same key are combined, chunks of a list are joined into larger ones, and dead entries
//! are dropped.

use std::io;
use std::sync::Arc;

use hashbrown::HashMap;
use thalweg_log::Offset;

use super::keys::{self, CategoryValue, Family, HASHED, KeySpace, PositionRun, StreamValue};
use super::rows::{self, CHUNK, IndexRow, ListKind};
use super::table::{IndexReadError, Table, TableCursor, TableWriter};

/// Merges tables, newest first. `lives`: whether a key space is still in use. `gone`: messages to remove, which
/// requires merging all existing tables, so that counts stay correct.
pub(super) fn merge(
    tables: &[Arc<Table>],
    lives: &dyn Fn(KeySpace) -> bool,
    gone: Option<&RemovalSet>,
    writer: &mut TableWriter,
) -> io::Result<()> {
    let mut cursors = Vec::with_capacity(tables.len());
    for table in tables {
        cursors.push(table.walk().map_err(broken)?);
    }
    let mut list = ListMerger::default();
    // The keys of a space are contiguous, so each space is looked up once.
    let mut known: Option<(KeySpace, bool)> = None;
    while let Some(key) = cursors
        .iter()
        .filter_map(|cursor| cursor.entry().map(|(key, _)| key))
        .min()
    {
        let key = key.to_vec();
        let (space, family, _) = keys::parse(&key).ok_or_else(|| damaged("a key"))?;
        let values = take(&mut cursors, &key)?;
        let is_alive = match known {
            Some((own, is_alive)) if own == space => is_alive,
            _ => lives(space),
        };
        known = Some((space, is_alive));
        if !is_alive {
            continue;
        }
        let gone = gone.and_then(|gone| gone.of(space));
        match family {
            Family::StreamRows => list.add(ListKind::Stream, &key, &values, gone, writer)?,
            Family::CategoryRows => list.add(ListKind::Category, &key, &values, gone, writer)?,
            _ => list.end(writer)?,
        }
        match (family, gone) {
            (Family::StreamRows | Family::CategoryRows, _) => {}
            (Family::Segment, Some(gone)) => {
                for value in values {
                    let segment = PositionRun::decode(&key, &value).ok_or_else(|| damaged("a segment"))?;
                    for part in gone.without(segment) {
                        let mut value = Vec::new();
                        part.encode(&mut value);
                        writer.add(&keys::numbered(space, Family::Segment, part.global), &value, None)?;
                    }
                }
            }
            (Family::Id, Some(gone)) if gone.has(keys::number(&key)) => {}
            _ => {
                let value = joined(&key, family, values, gone)?;
                writer.add(&key, &value, keys::filter_hash(&key))?;
            }
        }
    }
    list.end(writer)
}

/// Checks that every entry of a table can be read.
pub(super) fn verify(table: &Arc<Table>) -> io::Result<()> {
    let mut cursor = table.walk().map_err(broken)?;
    while let Some((key, _)) = cursor.entry() {
        keys::parse(key).ok_or_else(|| damaged("a key"))?;
        cursor.next().map_err(broken)?;
    }
    Ok(())
}

fn broken(unread: IndexReadError) -> io::Error {
    match unread {
        IndexReadError::Failed(error) => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        IndexReadError::OnDisk | IndexReadError::Moved => damaged("an entry"),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} of an index is damaged"))
}

/// The values of a key in all tables, newest first.
fn take(cursors: &mut [TableCursor], key: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let mut values = Vec::with_capacity(cursors.len());
    for cursor in cursors {
        while let Some((own, value)) = cursor.entry().filter(|(own, _)| *own == key) {
            debug_assert_eq!(own, key);
            values.push(value.to_vec());
            cursor.next().map_err(broken)?;
        }
    }
    Ok(values)
}

/// Combines the values of a key, newest first.
fn joined(
    key: &[u8],
    family: Family,
    mut values: Vec<Vec<u8>>,
    gone: Option<&NamespaceRemovals>,
) -> io::Result<Vec<u8>> {
    let less = gone.zip(keys::name(key));
    let mut out = Vec::new();
    match family {
        Family::Stream => {
            let mut sum = StreamValue::default();
            for value in &values {
                sum.over(StreamValue::decode(value).ok_or_else(|| damaged("a stream"))?);
            }
            let less = less.map_or(0, |(gone, name)| gone.streams.get(name).copied().unwrap_or(0));
            sum.messages = sum.messages.saturating_sub(less);
            sum.encode(&mut out);
        }
        Family::Category => {
            let mut sum = CategoryValue::default();
            for value in &values {
                sum.add(CategoryValue::decode(value).ok_or_else(|| damaged("a category"))?);
            }
            if let Some((gone, name)) = less {
                let less = gone.categories.get(name).copied().unwrap_or_default();
                sum.messages = sum.messages.saturating_sub(less.messages);
                sum.streams = sum.streams.saturating_sub(less.streams);
            }
            sum.encode(&mut out);
        }
        // For a document, the newest location wins; other keys have one value.
        _ => {
            values.truncate(1);
            out = values.pop().unwrap_or_default();
        }
    }
    Ok(out)
}

/// Messages that are no longer in any list.
#[derive(Debug, Default)]
pub(crate) struct RemovalSet(pub HashMap<u32, NamespaceRemovals>);

/// The removed messages of one namespace.
#[derive(Debug, Default)]
pub(crate) struct NamespaceRemovals {
    /// The key space of the messages, which excludes those after a later clearing.
    pub space: KeySpace,
    /// Ascending.
    pub offsets: Vec<Offset>,
    /// Number of removed messages for each stream.
    pub streams: HashMap<String, i64>,
    /// Changes for each category, including streams without remaining messages.
    pub categories: HashMap<String, CategoryValue>,
    /// The offset after the marks that record the removal.
    pub marked_to: Offset,
}

impl RemovalSet {
    fn of(&self, space: KeySpace) -> Option<&NamespaceRemovals> {
        self.0.get(&space.namespace).filter(|gone| gone.space == space)
    }
}

impl NamespaceRemovals {
    pub fn has(&self, offset: Offset) -> bool {
        self.offsets.binary_search(&offset).is_ok()
    }

    /// The remaining parts of a segment.
    pub fn without(&self, segment: PositionRun) -> Vec<PositionRun> {
        let (mut parts, mut from) = (Vec::new(), segment.offset);
        let end = segment.offset + segment.len;
        let first = self.offsets.partition_point(|offset| *offset < segment.offset);
        let inside = self
            .offsets
            .iter()
            .skip(first)
            .copied()
            .take_while(|offset| *offset < end);
        for stop in inside.chain([end]) {
            if stop > from {
                parts.push(PositionRun {
                    global: segment.global + (from - segment.offset),
                    offset: from,
                    len: stop - from,
                });
            }
            from = stop + 1;
        }
        parts
    }
}

/// The list that is being merged.
#[derive(Default)]
struct ListMerger {
    list: Option<ListKind>,
    /// The key without the ordinal.
    prefix: Vec<u8>,
    /// Sorted rows that are not written yet.
    rows: Vec<IndexRow>,
    chunk: Vec<IndexRow>,
    value: Vec<u8>,
}

impl ListMerger {
    fn add(
        &mut self,
        list: ListKind,
        key: &[u8],
        values: &[Vec<u8>],
        gone: Option<&NamespaceRemovals>,
        writer: &mut TableWriter,
    ) -> io::Result<()> {
        let prefix = key.get(..HASHED).unwrap_or_default();
        if self.prefix != prefix {
            self.end(writer)?;
            self.prefix = prefix.to_vec();
        }
        self.list = Some(list);
        // Later rows do not precede this chunk, so everything before it is final.
        let settled = self.rows.partition_point(|row| row.ordinal < keys::number(key));
        self.write(settled - settled % CHUNK, writer)?;
        for value in values {
            rows::decode(list, value, &mut self.chunk).ok_or_else(|| damaged("a list"))?;
            if let Some(gone) = gone {
                self.chunk.retain(|row| !gone.has(row.offset));
            }
            let follows = self
                .rows
                .last()
                .zip(self.chunk.first())
                .is_none_or(|(last, first)| last.ordinal <= first.ordinal);
            self.rows.append(&mut self.chunk);
            if !follows {
                self.rows.sort_by_key(|row| row.ordinal);
            }
        }
        Ok(())
    }

    fn write(&mut self, count: usize, writer: &mut TableWriter) -> io::Result<()> {
        let Some(list) = self.list else { return Ok(()) };
        for chunk in self.rows.get(..count).unwrap_or_default().chunks(CHUNK) {
            let first = chunk.first().map_or(0, |row| row.ordinal);
            let mut key = self.prefix.clone();
            key.extend_from_slice(&first.to_be_bytes());
            self.value.clear();
            rows::encode(list, chunk, &mut self.value);
            writer.add(&key, &self.value, keys::filter_hash(&key))?;
        }
        self.rows.drain(..count);
        Ok(())
    }

    fn end(&mut self, writer: &mut TableWriter) -> io::Result<()> {
        self.write(self.rows.len(), writer)?;
        self.prefix.clear();
        Ok(())
    }
}
