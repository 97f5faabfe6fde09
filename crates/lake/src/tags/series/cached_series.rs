//! Cached series, and the keys of their texts in the memtable.

use std::sync::Arc;

use thalweg_record::{Metadata, Text};

use super::metadata_writer::TagMetadataWriter;
use super::{LIGHT_BYTES, TagSeries, relevant_changes};
use thalweg_columns::rows::attribute_columns::AttributeSource;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::text::NULL;
use thalweg_columns::tables::tags as table;

/// Attribute names that many series share in the same order, and their columns.
#[derive(Debug)]
pub(super) struct TagAttributeLayout {
    pub names: Box<[Text]>,
    /// The hash of the names.
    pub hash: u64,
    /// The line of the chunks for which it is valid.
    line: u64,
    /// The column index of each name; `NULL` if there is none.
    columns: Box<[u32]>,
    has_all_columns: bool,
}

impl TagAttributeLayout {
    pub fn new(names: Box<[Text]>, hash: u64) -> TagAttributeLayout {
        TagAttributeLayout {
            columns: vec![NULL; names.len()].into(),
            has_all_columns: false,
            line: 0,
            names,
            hash,
        }
    }

    pub fn bytes(&self) -> usize {
        let names = self.names.iter().map(|name| size_of::<Text>() + name.len());
        size_of::<TagAttributeLayout>() + size_of_val(&*self.columns) + names.sum::<usize>()
    }

    fn look_up(&mut self, chunk: &mut MemtableChunk) {
        self.line = chunk.line();
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            *column = chunk.slots.place(AttributeSource::Attr, name).unwrap_or(NULL);
        }
        self.has_all_columns = !self.columns.contains(&NULL);
    }
}

/// The keys of a series' texts in some rows.
#[derive(Debug, Default)]
struct TagSeriesKeys {
    /// The line of the chunks for which they are valid.
    line: u64,
    source: u32,
    tag: u32,
    unit: u32,
    /// For each attribute that has a column.
    keys: Box<[u32]>,
}

/// A cached series.
#[derive(Debug)]
pub(super) struct CachedTagSeries {
    pub series: Arc<TagSeries>,
    /// The hash of its content.
    pub hash: u64,
    /// The shared map has `timestamp_ms`.
    pub shared_time: bool,
    /// The number of its layout.
    pub shape: u32,
    /// How many variants with attribute changes are series of their own.
    pub variants: u8,
    placed: TagSeriesKeys,
}

impl CachedTagSeries {
    pub fn new(series: Arc<TagSeries>, hash: u64, shared_time: bool, shape: u32) -> CachedTagSeries {
        CachedTagSeries {
            series,
            hash,
            shared_time,
            shape,
            variants: 0,
            placed: TagSeriesKeys::default(),
        }
    }

    pub fn bytes(&self) -> usize {
        /// The reference counts of an `Arc`.
        const COUNTS: usize = 2 * size_of::<usize>();
        let keys = self.series.attributes.len() * size_of::<u32>();
        size_of::<CachedTagSeries>() + COUNTS + self.series.bytes() + keys
    }

    /// Writes the shared metadata of the series to a row.
    #[inline]
    pub fn put(&mut self, row: usize, chunk: &mut MemtableChunk, shape: &mut TagAttributeLayout) {
        self.put_fixed(row, chunk, shape);
        for (column, key) in shape.columns.iter().zip(&self.placed.keys) {
            if let Some(column) = chunk.slots.column_mut(*column) {
                column.push_key(row, *key);
            }
        }
        if !shape.has_all_columns {
            self.put_extras(row, chunk, shape);
        }
    }

    /// Writes the attributes that have no column.
    #[inline(never)]
    fn put_extras(&self, row: usize, chunk: &mut MemtableChunk, shape: &TagAttributeLayout) {
        for (column, (name, text)) in shape.columns.iter().zip(self.series.attributes.iter()) {
            if *column == NULL {
                chunk.push_extra(row, AttributeSource::Attr, name, text);
            }
        }
    }

    /// Writes the shared metadata to a row, with the attribute changes of the message.
    #[inline(never)]
    pub fn put_changed(
        &mut self,
        row: usize,
        chunk: &mut MemtableChunk,
        shape: &mut TagAttributeLayout,
        meta: &Metadata,
        passing: &mut TagMetadataWriter,
    ) {
        self.put_fixed(row, chunk, shape);
        passing.begin();
        let mut bytes = 0;
        let mut put_own = |name: &Text, text: Option<&Text>, chunk: &mut MemtableChunk| {
            if let Some(text) = text {
                bytes += name.len() + text.len();
                passing.attribute(row, name, text, chunk);
            }
        };
        let mut own = relevant_changes(meta).peekable();
        let places = shape.columns.iter().zip(&self.placed.keys);
        for ((name, text), (column, key)) in self.series.attributes.iter().zip(places) {
            while let Some((own, text)) = own.next_if(|(own, _)| *own < name) {
                put_own(own, text, chunk);
            }
            if let Some((own, text)) = own.next_if(|(own, _)| *own == name) {
                put_own(own, text, chunk);
            } else if let Some(column) = chunk.slots.column_mut(*column) {
                column.push_key(row, *key);
            } else {
                chunk.push_extra(row, AttributeSource::Attr, name, text);
            }
        }
        own.for_each(|(name, text)| put_own(name, text, chunk));
        chunk.add_weight(bytes.saturating_sub(LIGHT_BYTES));
    }

    #[inline]
    fn put_fixed(&mut self, row: usize, chunk: &mut MemtableChunk, shape: &mut TagAttributeLayout) {
        if self.placed.line != chunk.line() {
            if shape.line != chunk.line() {
                shape.look_up(chunk);
            }
            self.place(chunk, shape);
        }
        let CachedTagSeries { series, placed, .. } = self;
        chunk.longs(table::TAG_ID).push(row, series.tag_id);
        chunk.add_weight(series.weight);
        chunk.texts(table::SOURCE).push_key(row, placed.source);
        if placed.tag != NULL {
            chunk.texts(table::TAG).push_key(row, placed.tag);
        }
        if placed.unit != NULL {
            chunk.texts(table::UNIT).push_key(row, placed.unit);
        }
    }

    #[inline(never)]
    fn place(&mut self, chunk: &mut MemtableChunk, shape: &TagAttributeLayout) {
        let CachedTagSeries { series, placed, .. } = self;
        let text = |text: &Option<Text>, chunk: &mut MemtableChunk, column| match text {
            Some(text) => chunk.texts(column).intern(text.as_bytes()),
            None => NULL,
        };
        placed.line = chunk.line();
        placed.source = chunk.texts(table::SOURCE).intern(series.source.as_bytes());
        placed.tag = text(&series.tag, chunk, table::TAG);
        placed.unit = text(&series.unit, chunk, table::UNIT);
        if placed.keys.len() != series.attributes.len() {
            placed.keys = vec![NULL; series.attributes.len()].into();
        }
        let of_columns = shape.columns.iter().zip(&mut placed.keys);
        for ((_, text), (column, key)) in series.attributes.iter().zip(of_columns) {
            if let Some(column) = chunk.slots.column_mut(*column) {
                *key = column.intern(text.as_bytes());
            }
        }
    }
}
