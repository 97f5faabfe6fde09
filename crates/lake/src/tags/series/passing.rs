//! Rows of messages whose series is not known: their metadata goes into the columns text by text, and nothing of it is kept.
//!
//! It costs what the message has. Most messages have the names of the one before, so the columns are found without a search.

use std::sync::Arc;

use thalweg_record::Metadata;

use super::{Fixed, LIGHT_BYTES, UNIT, entries, tag_id, tag_of};
use crate::rows::chunk::Chunk;
use crate::rows::slots::{Guess, Source};
use crate::tables::tags as table;

#[derive(Debug, Default)]
pub(super) struct Passing {
    guess: Guess,
}

impl Passing {
    /// Gives a row all that the metadata of its message says.
    #[inline(never)]
    pub fn put(&mut self, source: &Arc<str>, meta: &Metadata, row: usize, chunk: &mut Chunk) {
        let (tag, tag_key) = tag_of(meta);
        let fixed = Fixed::of(meta, tag_key);
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

    /// The attributes of another row begin.
    pub fn begin(&mut self) {
        self.guess.begin();
    }

    #[inline]
    pub fn attribute(&mut self, row: usize, name: &str, text: &str, chunk: &mut Chunk) {
        match chunk.slots.next(Source::Attr, name, &mut self.guess) {
            Some(column) => {
                column.push(row, text.as_bytes());
            }
            None => chunk.push_extra(row, Source::Attr, name, text),
        }
    }
}
