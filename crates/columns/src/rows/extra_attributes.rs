//! Attributes that came when all attribute columns of a chunk were taken, as a list of values.
//!
//! Such a name may still have a column in the table, because other rows created it. Readers can therefore ask for the
//! column of a name; it is built on the first request.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::attribute_columns::{AttributeColumn, AttributeSource, hash};
use super::memory_usage::MemoryUsage;
use super::text::{TextColumn, TextColumnEncoding};

/// An attribute of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraAttribute {
    pub row: u32,
    pub source: AttributeSource,
    pub name: Box<str>,
    pub text: Box<str>,
}

/// See the module. The list must not change after a column was requested, until it is cleared.
#[derive(Debug, Default)]
pub(super) struct ExtraAttributes {
    list: Vec<ExtraAttribute>,
    bytes: usize,
    /// List indexes by the hash of the name.
    index: OnceLock<HashMap<u64, Vec<u32>>>,
    columns: boxcar::Vec<AttributeColumn>,
}

impl ExtraAttributes {
    pub fn all(&self) -> &[ExtraAttribute] {
        &self.list
    }

    pub fn push(&mut self, row: usize, source: AttributeSource, name: &str, text: &str) {
        self.bytes += size_of::<ExtraAttribute>() + name.len() + text.len();
        self.list.push(ExtraAttribute {
            row: u32::try_from(row).unwrap_or(u32::MAX),
            source,
            name: name.into(),
            text: text.into(),
        });
    }

    /// Sorts by row.
    pub fn sort(&mut self) {
        if !self.list.is_sorted_by_key(|extra| extra.row) {
            self.list.sort_by_key(|extra| extra.row);
        }
    }

    /// The values of a name, if there are any.
    pub fn column(&self, source: AttributeSource, name: &str) -> Option<&TextColumn> {
        if self.list.is_empty() {
            return None;
        }
        let is_it = |slot: &&AttributeColumn| slot.source == source && *slot.name == *name;
        let known = self.columns.iter().map(|(_, slot)| slot).find(is_it);
        if let Some(known) = known {
            return Some(&known.column);
        }
        let mut column = TextColumn::new(TextColumnEncoding::Dictionary);
        for place in self.index.get_or_init(|| self.places()).get(&hash(source, name))? {
            let extra = self.list.get(*place as usize);
            if let Some(extra) = extra.filter(|extra| extra.source == source && *extra.name == *name) {
                column.push(extra.row as usize, extra.text.as_bytes());
            }
        }
        if column.keys().is_empty() {
            return None;
        }
        let made = self.columns.push(AttributeColumn {
            source,
            name: name.into(),
            column,
        });
        self.columns.get(made).map(|slot| &slot.column)
    }

    fn places(&self) -> HashMap<u64, Vec<u32>> {
        let mut places: HashMap<u64, Vec<u32>> = HashMap::new();
        for (place, extra) in (0..).zip(&self.list) {
            places.entry(hash(extra.source, &extra.name)).or_default().push(place);
        }
        places
    }

    pub fn space(&self) -> MemoryUsage {
        let columns = self.columns.iter().map(|(_, slot)| slot.column.space());
        MemoryUsage::full(self.bytes) + columns.sum()
    }
}
