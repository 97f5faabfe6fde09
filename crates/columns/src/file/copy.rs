//! Builds columns from columns of other files.
//!
//! A merge moves rows from sorted files to another one. Numbers and keys are decoded and encoded again. The
//! dictionaries, which are sorted, are merged into one by sorting. For plain texts, a page whose rows stay together is
//! the same in both files, so its bytes are copied without decompression. Only pages at the ends of a run are decoded.

use std::ops::Range;
use std::sync::Arc;

use parquet::basic::Type;
use parquet::errors::Result;

use super::PageBreak;
use super::column::{self, ParquetNumber, TextPrefix, ValidityBitmap, is_poor, put_ranks, put_texts, shared};
use super::pages::ColumnChunkWriter;
use super::source::{ColumnEncoding, Dictionary, PageTexts, SourceColumn, ValidityBuilder};
use crate::rows::text::NULL;

/// Smaller pages are not copied, because small pages are inefficient.
const COPIED_BYTES_MIN: usize = if cfg!(test) { 64 } else { 4096 };

/// Consecutive rows of a source, or rows without a value.
pub enum SourceSegment {
    Rows {
        source: Arc<SourceColumn>,
        rows: Range<usize>,
    },
    Nulls(usize),
}

impl SourceSegment {
    fn len(&self) -> usize {
        match self {
            SourceSegment::Rows { rows, .. } => rows.len(),
            SourceSegment::Nulls(rows) => *rows,
        }
    }
}

/// Writes the rows of all segments. `order` has each row once, numbered across the segments.
pub(super) fn copy(
    pages: &mut ColumnChunkWriter<'_>,
    segments: &[SourceSegment],
    order: &[u32],
    breaks: &[PageBreak],
    is_near: bool,
) -> Result<()> {
    if segments
        .iter()
        .all(|segment| matches!(segment, SourceSegment::Nulls(_)))
    {
        return pages.nulls(order.len());
    }
    match pages.kind() {
        Type::INT64 => {
            let (values, present) = numbers::<i64>(pages, segments)?;
            match is_near {
                true => column::near(pages, order, &values, &present),
                false => column::numbers(pages, order, &values, &present),
            }
        }
        Type::INT32 => {
            let (values, present) = numbers::<i32>(pages, segments)?;
            column::numbers(pages, order, &values, &present)
        }
        Type::DOUBLE => {
            let (values, present) = numbers::<f64>(pages, segments)?;
            column::numbers(pages, order, &values, &present)
        }
        Type::BOOLEAN => {
            let (mut values, mut presence) = (Vec::new(), ValidityBuilder::default());
            for segment in segments {
                match segment {
                    SourceSegment::Rows { source, rows } => {
                        source.booleans(pages.unpacker(), rows.clone(), &mut values, &mut presence)?;
                    }
                    SourceSegment::Nulls(rows) => {
                        values.resize(values.len() + rows, false);
                        presence.append(*rows, false);
                    }
                }
            }
            column::booleans(pages, order, &values, &presence.finish())
        }
        _ => texts(pages, segments, order, breaks),
    }
}

fn numbers<T: ParquetNumber>(
    pages: &mut ColumnChunkWriter<'_>,
    segments: &[SourceSegment],
) -> Result<(Vec<T>, ValidityBitmap)> {
    let (mut values, mut presence) = (Vec::with_capacity(rows_of(segments)), ValidityBuilder::default());
    for segment in segments {
        match segment {
            SourceSegment::Rows { source, rows } => {
                source.numbers(pages.unpacker(), rows.clone(), &mut values, &mut presence)?;
            }
            SourceSegment::Nulls(rows) => {
                values.resize(values.len() + rows, T::default());
                presence.append(*rows, false);
            }
        }
    }
    Ok((values, presence.finish()))
}

fn rows_of(segments: &[SourceSegment]) -> usize {
    segments.iter().map(SourceSegment::len).sum()
}

fn texts(
    pages: &mut ColumnChunkWriter<'_>,
    segments: &[SourceSegment],
    order: &[u32],
    breaks: &[PageBreak],
) -> Result<()> {
    let rows_of = |form: ColumnEncoding| -> usize {
        let is_of =
            |segment: &&SourceSegment| matches!(segment, SourceSegment::Rows { source, .. } if source.form == form);
        segments.iter().filter(is_of).map(SourceSegment::len).sum()
    };
    match rows_of(ColumnEncoding::Texts) > rows_of(ColumnEncoding::TextsByKey) {
        true => TextCopier::new(pages, segments, breaks).run(order),
        false => by_key(pages, segments, order, breaks),
    }
}

/// The texts that the keys of some rows refer to.
enum SourceTexts {
    Dictionary(Arc<Dictionary>),
    /// One text per row.
    Own(PageTexts),
}

impl SourceTexts {
    fn len(&self) -> usize {
        match self {
            SourceTexts::Dictionary(texts) => texts.len(),
            SourceTexts::Own(texts) => texts.len(),
        }
    }

    fn text(&self, key: u32) -> &[u8] {
        match self {
            SourceTexts::Dictionary(texts) => texts.text(key as usize),
            SourceTexts::Own(texts) => texts.text(key as usize).unwrap_or_default(),
        }
    }
}

/// Merges all texts into one dictionary.
fn by_key(
    pages: &mut ColumnChunkWriter<'_>,
    segments: &[SourceSegment],
    order: &[u32],
    breaks: &[PageBreak],
) -> Result<()> {
    let (mut keys, mut all, mut parts) = (Vec::with_capacity(order.len()), Vec::new(), Vec::new());
    for segment in segments {
        let (source, rows) = match segment {
            SourceSegment::Rows { source, rows } => (source, rows.clone()),
            SourceSegment::Nulls(rows) => {
                keys.resize(keys.len() + rows, NULL);
                continue;
            }
        };
        let begin = keys.len();
        match source.form {
            ColumnEncoding::TextsByKey => {
                all.push(SourceTexts::Dictionary(source.dictionary(pages.unpacker())?));
                source.keys(pages.unpacker(), rows, &mut keys)?;
            }
            _ => {
                let mut texts = PageTexts::default();
                source.texts(pages.unpacker(), rows, &mut texts)?;
                keys.extend((0..).zip(texts.iter()).map(|(key, text)| text.map_or(NULL, |_| key)));
                all.push(SourceTexts::Own(texts));
            }
        }
        parts.push(begin..keys.len());
    }
    let (ranked, present) = ranked(&all, &parts, &mut keys);
    let bytes = ranked.iter().map(|text| text.len()).sum();
    if is_poor(ranked.len(), bytes, present) {
        let text = |row: &u32| ranked.get(*keys.get(*row as usize)? as usize).copied();
        let rows: Vec<Option<&[u8]>> = order.iter().map(text).collect();
        return put_texts(pages, &rows, 0, breaks);
    }
    let rank_of = |row: &u32| keys.get(*row as usize).copied().unwrap_or(NULL);
    let ranks: Vec<u32> = order.iter().map(rank_of).collect();
    put_ranks(pages, &ranks, &ranked)
}

/// Returns the used texts in ascending order and the number of non-null rows. Replaces each key by the rank of its
/// text.
fn ranked<'t>(all: &'t [SourceTexts], parts: &[Range<usize>], keys: &mut [u32]) -> (Vec<&'t [u8]>, usize) {
    const UNUSED: u32 = NULL;
    const USED: u32 = 0;
    let (mut present, mut entries) = (0, Vec::new());
    let mut ranks: Vec<Vec<u32>> = Vec::with_capacity(all.len());
    for (number, (of, part)) in (0_u32..).zip(all.iter().zip(parts)) {
        let mut of_key = vec![UNUSED; of.len()];
        for key in keys.get(part.clone()).unwrap_or_default() {
            if let Some(place) = of_key.get_mut(*key as usize) {
                *place = USED;
                present += 1;
            }
        }
        let used = (0_u32..).zip(&of_key).filter(|(_, place)| **place == USED);
        entries.extend(used.map(|(key, _)| (TextPrefix::default(), number, key)));
        ranks.push(of_key);
    }
    let text = |of: u32, key: u32| all.get(of as usize).map_or(&[][..], |of| of.text(key));
    let skipped = shared(entries.iter().map(|(_, of, key)| text(*of, *key)));
    for (of_text, of, key) in &mut entries {
        *of_text = TextPrefix::of(text(*of, *key).get(skipped..).unwrap_or_default());
    }
    // The dictionaries are sorted, and the stable sort merges sorted runs.
    entries.sort_by(|a, b| a.0.compare(b.0, || text(a.1, a.2).cmp(text(b.1, b.2))));
    let mut texts: Vec<&[u8]> = Vec::new();
    let mut last = None;
    for (head, of, key) in entries {
        let same =
            |(last_head, last): (TextPrefix, &[u8])| last_head == head && (head.is_whole() || last == text(of, key));
        if !last.is_some_and(same) {
            texts.push(text(of, key));
            last = texts.last().map(|text| (head, *text));
        }
        if let Some(rank) = ranks.get_mut(of as usize).and_then(|ranks| ranks.get_mut(key as usize)) {
            *rank = texts.len() as u32 - 1;
        }
    }
    for (ranks, part) in ranks.iter().zip(parts) {
        for key in keys.get_mut(part.clone()).unwrap_or_default() {
            *key = ranks.get(*key as usize).copied().unwrap_or(NULL);
        }
    }
    (texts, present)
}

/// Writes texts without a dictionary.
struct TextCopier<'c, 'p> {
    pages: &'c mut ColumnChunkWriter<'p>,
    segments: &'c [SourceSegment],
    /// The first row of each segment.
    begins: Vec<usize>,
    breaks: &'c [PageBreak],
    /// Texts between two copied pages.
    between: PageTexts,
    written: usize,
    keys: Vec<u32>,
}

impl<'c, 'p> TextCopier<'c, 'p> {
    fn new(
        pages: &'c mut ColumnChunkWriter<'p>,
        segments: &'c [SourceSegment],
        breaks: &'c [PageBreak],
    ) -> TextCopier<'c, 'p> {
        let mut end = 0;
        let begin = |segment: &SourceSegment| {
            end += segment.len();
            end - segment.len()
        };
        TextCopier {
            begins: segments.iter().map(begin).collect(),
            pages,
            segments,
            breaks,
            between: PageTexts::default(),
            written: 0,
            keys: Vec::new(),
        }
    }

    fn run(mut self, order: &[u32]) -> Result<()> {
        for together in order.chunk_by(|row, next| row + 1 == *next) {
            let Some(first) = together.first() else { continue };
            let (mut at, end) = (*first as usize, *first as usize + together.len());
            let mut number = self.begins.partition_point(|begin| *begin <= at) - 1;
            while at < end
                && let Some((segment, begin)) = self.segments.get(number).zip(self.begins.get(number))
            {
                let last = end.min(begin + segment.len());
                self.take(segment, at - begin..last - begin)?;
                at = last;
                number += 1;
            }
        }
        self.write_between()
    }

    /// Writes some rows of a segment.
    fn take(&mut self, segment: &SourceSegment, of: Range<usize>) -> Result<()> {
        let (source, begin, end) = match segment {
            SourceSegment::Nulls(_) => {
                self.between.push_nulls(of.len());
                return Ok(());
            }
            SourceSegment::Rows { source, rows } => (source, rows.start + of.start, rows.start + of.end),
        };
        if source.form == ColumnEncoding::TextsByKey {
            self.keys.clear();
            source.keys(self.pages.unpacker(), begin..end, &mut self.keys)?;
            let dictionary = source.dictionary(self.pages.unpacker())?;
            let text = |key: &u32| (*key != NULL).then(|| dictionary.text(*key as usize));
            self.keys.iter().for_each(|key| self.between.push(text(key)));
            return Ok(());
        }
        let is_copied = source.is_packed_as(self.pages.level());
        for page in source.pages.iter().skip(source.first_page_of(begin)) {
            if page.first_row >= end {
                break;
            }
            let is_whole = begin <= page.first_row && page.end() <= end;
            if is_whole
                && is_copied
                && page.len >= COPIED_BYTES_MIN
                && let Some(nulls) = page.nulls
            {
                self.write_between()?;
                self.pages.copy(source, page, nulls)?;
                self.written += page.rows;
                continue;
            }
            let rows = begin.max(page.first_row)..end.min(page.end());
            source.texts(self.pages.unpacker(), rows, &mut self.between)?;
        }
        Ok(())
    }

    fn write_between(&mut self) -> Result<()> {
        if self.between.len() == 0 {
            return Ok(());
        }
        let rows: Vec<Option<&[u8]>> = self.between.iter().collect();
        put_texts(self.pages, &rows, self.written, self.breaks)?;
        self.written += rows.len();
        self.between.clear();
        Ok(())
    }
}
