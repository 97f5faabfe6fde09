//! Several tables become one: what they say of the same thing is put together, parts of a list are joined into larger ones,
//! and what is dead is left out.

use std::io;
use std::sync::Arc;

use super::keys::{self, CategoryValue, Family, HASHED, Space, StreamValue};
use super::rows::{self, CHUNK, List, Row};
use super::table::{Cursor, Table, TableWriter, Unread};

/// Of tables, the newest first. `lives`: whether a space is still somebody's.
pub(super) fn merge(tables: &[Arc<Table>], lives: &dyn Fn(Space) -> bool, writer: &mut TableWriter) -> io::Result<()> {
    let mut cursors = Vec::with_capacity(tables.len());
    for table in tables {
        cursors.push(table.walk().map_err(broken)?);
    }
    let mut list = Joined::default();
    while let Some(key) = cursors.iter().filter_map(|cursor| cursor.entry().map(|(key, _)| key)).min() {
        let key = key.to_vec();
        let (space, family, _) = keys::parse(&key).ok_or_else(|| damaged("a key"))?;
        let values = take(&mut cursors, &key)?;
        if !lives(space) {
            continue;
        }
        match family {
            Family::StreamRows => list.add(List::Stream, &key, &values, writer)?,
            Family::CategoryRows => list.add(List::Category, &key, &values, writer)?,
            _ => {
                list.end(writer)?;
                writer.add(&key, &joined(family, values)?, keys::filter_hash(&key))?;
            }
        }
    }
    list.end(writer)
}

fn broken(unread: Unread) -> io::Error {
    match unread {
        Unread::Failed(error) => io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        Unread::OnDisk | Unread::Moved => damaged("an entry"),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} of an index is damaged"))
}

/// What the tables have of a key, the newest first.
fn take(cursors: &mut [Cursor], key: &[u8]) -> io::Result<Vec<Vec<u8>>> {
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

/// Values of the same key, the newest first.
fn joined(family: Family, mut values: Vec<Vec<u8>>) -> io::Result<Vec<u8>> {
    if values.len() > 1 && matches!(family, Family::Stream | Family::Category) {
        let mut out = Vec::new();
        match family {
            Family::Stream => {
                let mut sum = StreamValue::default();
                for value in &values {
                    sum.over(StreamValue::decode(value).ok_or_else(|| damaged("a stream"))?);
                }
                sum.encode(&mut out);
            }
            _ => {
                let mut sum = CategoryValue::default();
                for value in &values {
                    sum.add(CategoryValue::decode(value).ok_or_else(|| damaged("a category"))?);
                }
                sum.encode(&mut out);
            }
        }
        return Ok(out);
    }
    // Of a document the newest place stands; of the others there is one.
    values.truncate(1);
    Ok(values.pop().unwrap_or_default())
}

/// The list that is being put together.
#[derive(Default)]
struct Joined {
    list: Option<List>,
    /// Without the ordinal.
    prefix: Vec<u8>,
    /// In their order, not written yet.
    rows: Vec<Row>,
    chunk: Vec<Row>,
    value: Vec<u8>,
}

impl Joined {
    fn add(&mut self, list: List, key: &[u8], values: &[Vec<u8>], writer: &mut TableWriter) -> io::Result<()> {
        let prefix = key.get(..HASHED).unwrap_or_default();
        if self.prefix != prefix {
            self.end(writer)?;
            self.prefix = prefix.to_vec();
        }
        self.list = Some(list);
        // What comes from here on is not before this chunk.
        let settled = self.rows.partition_point(|row| row.ordinal < keys::number(key));
        self.write(settled - settled % CHUNK, writer)?;
        for value in values {
            rows::decode(list, value, &mut self.chunk).ok_or_else(|| damaged("a list"))?;
            let follows = self.rows.last().zip(self.chunk.first()).is_none_or(|(last, first)| last.ordinal <= first.ordinal);
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
