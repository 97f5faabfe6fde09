//! Writes the metadata of messages without a cached series, text by text.
//!
//! The cost depends on the size of the message. Most messages have the same names as the previous one, so their columns
//! are found without a search.

use std::sync::Arc;

use thalweg_record::Metadata;

use super::{FixedMetadata, LIGHT_BYTES, UNIT, entries, tag_id, tag_of};
use thalweg_columns::rows::attribute_columns::{AttributeColumnHint, AttributeSource};
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::tables::tags as table;

#[derive(Debug, Default)]
pub(super) struct TagMetadataWriter {
    guess: AttributeColumnHint,
}

impl TagMetadataWriter {
    /// Writes all metadata of a message to a row.
    #[inline(never)]
    pub fn put(&mut self, source: &Arc<str>, meta: &Metadata, row: usize, chunk: &mut MemtableChunk) {
        let (tag, tag_key) = tag_of(meta);
        let fixed = FixedMetadata::of(meta, tag_key);
        chunk.longs(table::TAG_ID).push(row, tag_id(source, tag.as_deref()));
        chunk.texts(table::SOURCE).push(row, source.as_bytes());
        if let Some(tag) = tag {
            chunk.texts(table::TAG).push(row, tag.as_bytes());
        }
        if let Some(unit) = meta.get(UNIT) {
            chunk.texts(table::UNIT).push(row, unit.as_bytes());
        }
        let mut bytes = 0;
        self.begin();
        for (name, text) in entries(meta).filter(|(name, _)| !fixed.has(name)) {
            bytes += name.len() + text.len();
            self.attribute(row, name, text, chunk);
        }
        chunk.add_weight(bytes.saturating_sub(LIGHT_BYTES));
    }

    /// Begins the attributes of another row.
    pub fn begin(&mut self) {
        self.guess.begin();
    }

    #[inline]
    pub fn attribute(&mut self, row: usize, name: &str, text: &str, chunk: &mut MemtableChunk) {
        match chunk.slots.next(AttributeSource::Attr, name, &mut self.guess) {
            Some(column) => {
                column.push(row, text.as_bytes());
            }
            None => chunk.push_extra(row, AttributeSource::Attr, name, text),
        }
    }
}
