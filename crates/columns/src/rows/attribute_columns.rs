//! The attributes of rows, one column per name. Similar rows find their columns without a search.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use xxhash_rust::xxh3::xxh3_64;

use super::memory_usage::MemoryUsage;
use super::text::{TextColumn, TextColumnEncoding};

/// The most attribute columns of a chunk. Attributes of further names are stored without a column.
const SLOTS_MAX: usize = 1024;

/// What an attribute belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AttributeSource {
    Attr,
    Resource,
    Scope,
}

/// The column of an attribute name.
#[derive(Debug)]
pub struct AttributeColumn {
    pub source: AttributeSource,
    /// As sent.
    pub name: Box<str>,
    pub column: TextColumn,
}

/// The attribute columns of some rows.
#[derive(Debug, Default)]
pub struct AttributeColumns {
    slots: Vec<AttributeColumn>,
    index: HashTable<u32>,
}

/// The columns of the previous record in order; the next record mostly has the same.
#[derive(Debug, Default)]
pub struct AttributeColumnHint {
    slots: Vec<u32>,
    at: usize,
}

impl AttributeColumnHint {
    /// Begins the next record.
    #[inline]
    pub fn begin(&mut self) {
        self.at = 0;
    }
}

impl AttributeColumns {
    pub fn all(&self) -> &[AttributeColumn] {
        &self.slots
    }

    /// The column of the record's next attribute; `None` if there are too many columns.
    #[inline]
    pub fn next(
        &mut self,
        source: AttributeSource,
        name: &str,
        guess: &mut AttributeColumnHint,
    ) -> Option<&mut TextColumn> {
        let at = guess.at;
        guess.at += 1;
        let guessed = guess.slots.get(at).copied().unwrap_or(u32::MAX) as usize;
        let is_right = |slot: &AttributeColumn| *slot.name == *name && slot.source == source;
        if self.slots.get(guessed).is_some_and(is_right) {
            return Some(&mut self.slots[guessed].column);
        }
        let found = self.find(source, name)?;
        if guess.slots.len() <= at {
            guess.slots.resize(at + 1, u32::MAX);
        }
        guess.slots[at] = found;
        Some(&mut self.slots[found as usize].column)
    }

    /// The index of a name's column; `None` if there are too many columns.
    pub fn place(&mut self, source: AttributeSource, name: &str) -> Option<u32> {
        self.find(source, name)
    }

    #[inline]
    pub fn column_mut(&mut self, place: u32) -> Option<&mut TextColumn> {
        self.slots.get_mut(place as usize).map(|slot| &mut slot.column)
    }

    /// The column of a name, if it exists.
    pub fn get(&self, source: AttributeSource, name: &str) -> Option<&AttributeColumn> {
        let hash = hash(source, name);
        let same = |at: &u32| {
            let slot = self.slots.get(*at as usize);
            slot.is_some_and(|slot| slot.source == source && *slot.name == *name)
        };
        let at = self.index.find(hash, same)?;
        self.slots.get(*at as usize)
    }

    pub fn space(&self) -> MemoryUsage {
        let of = |slot: &AttributeColumn| {
            slot.column.space() + MemoryUsage::full(slot.name.len() + size_of::<AttributeColumn>())
        };
        self.slots.iter().map(of).sum::<MemoryUsage>() + MemoryUsage::of_index(&self.index)
    }

    #[inline(never)]
    fn find(&mut self, source: AttributeSource, name: &str) -> Option<u32> {
        let AttributeColumns { slots, index } = self;
        let same = |at: &u32| {
            let slot = &slots[*at as usize];
            *slot.name == *name && slot.source == source
        };
        let hash_of = |at: &u32| hash(slots[*at as usize].source, &slots[*at as usize].name);
        let is_full = slots.len() >= SLOTS_MAX;
        match index.entry(hash(source, name), same, hash_of) {
            Entry::Occupied(known) => Some(*known.get()),
            Entry::Vacant(_) if is_full => None,
            Entry::Vacant(new) => {
                let at = slots.len() as u32;
                new.insert(at);
                slots.push(AttributeColumn {
                    source,
                    name: name.into(),
                    column: TextColumn::new(TextColumnEncoding::Dictionary),
                });
                Some(at)
            }
        }
    }

    /// Whether the next chunk should not inherit these columns and texts.
    pub(super) fn are_stale(&self) -> bool {
        let idle = self.slots.iter().filter(|slot| slot.column.is_idle()).count();
        // Names that occurred once would stay for ever.
        self.slots.len() > SLOTS_MAX / 2
            || idle > self.slots.len() / 2
            || self.slots.iter().any(|slot| slot.column.is_stale())
    }

    /// Copies the names at the same indexes, with the texts whose keys are in use.
    pub(super) fn heirs(&self) -> AttributeColumns {
        let heir = |slot: &AttributeColumn| AttributeColumn {
            source: slot.source,
            name: slot.name.clone(),
            column: slot
                .column
                .heir()
                .unwrap_or_else(|| TextColumn::new(TextColumnEncoding::Dictionary)),
        };
        AttributeColumns {
            slots: self.slots.iter().map(heir).collect(),
            index: self.index.clone(),
        }
    }

    /// Begins with the names and texts of heirs. The columns must be empty.
    pub fn take_over(&mut self, heirs: AttributeColumns) {
        let emptied = std::mem::replace(self, heirs);
        // Buffers can be reused for any name.
        for (slot, emptied) in self.slots.iter_mut().zip(emptied.slots) {
            let heir = std::mem::replace(&mut slot.column, emptied.column);
            slot.column.take_over(heir);
        }
    }

    /// Removes all rows and keeps the columns.
    pub fn clear(&mut self) {
        // Names that occurred once would stay for ever.
        if self.slots.len() > SLOTS_MAX / 2 {
            *self = AttributeColumns::default();
        }
        for slot in &mut self.slots {
            slot.column.clear(TextColumnEncoding::Dictionary);
        }
    }
}

pub(super) fn hash(source: AttributeSource, name: &str) -> u64 {
    xxh3_64(name.as_bytes()) ^ source as u64
}
