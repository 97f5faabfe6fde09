//! Pages of files that were written here, which other files take over as they are.
//!
//! A merge moves long runs of rows from one file to another. Where such a run has all rows of a page of texts, the page is the same
//! in both, so its bytes are copied, and nothing is decompressed, looked at or compressed again. Of the pages at the ends of a
//! run the texts are taken.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use hashbrown::HashMap;
use parquet::basic::{Compression, Encoding, Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use zstd::bulk::Decompressor;

use super::bounds::Bounds;
use super::column::put_texts;
use super::pages::{Head, Pages};

/// Smaller pages are not worth being pages of their own.
const COPIED_BYTES_MIN: usize = if cfg!(test) { 64 } else { 4096 };

/// The pages of a column of texts in one row group of a file.
pub(crate) struct SourcePages {
    file: Arc<File>,
    pages: Vec<SourcePage>,
}

struct SourcePage {
    offset: u64,
    len: usize,
    /// Of the row group.
    first_row: usize,
    rows: usize,
    nulls: usize,
    bounds: Option<Bounds>,
}

/// Rows of a source that lie behind each other, or rows without a value.
pub(crate) enum Segment {
    Rows {
        source: Arc<SourcePages>,
        begin: usize,
        len: usize,
    },
    Nulls(usize),
}

impl SourcePages {
    /// `None` for a column that others, or other versions, have written in another form.
    pub fn of(file: &Arc<File>, metadata: &ParquetMetaData, group: usize, leaf: usize) -> Option<SourcePages> {
        let of_group = metadata.row_group(group);
        let chunk = of_group.column(leaf);
        let column = chunk.column_descr();
        let is_ours = column.physical_type() == Type::BYTE_ARRAY
            && (column.max_def_level(), column.max_rep_level()) == (1, 0)
            && matches!(chunk.compression(), Compression::ZSTD(_))
            && chunk.dictionary_page_offset().is_none();
        if !is_ours {
            return None;
        }
        let locations = &metadata.offset_index()?.get(group)?.get(leaf)?.page_locations;
        let ColumnIndexMetaData::BYTE_ARRAY(index) = metadata.column_index()?.get(group)?.get(leaf)? else {
            return None;
        };
        let rows = usize::try_from(of_group.num_rows()).ok()?;
        let page = |number: usize| {
            let location = locations.get(number)?;
            let first_row = usize::try_from(location.first_row_index).ok()?;
            let end = locations
                .get(number + 1)
                .map_or(Some(rows), |next| usize::try_from(next.first_row_index).ok())?;
            let ends = index.min_value(number).zip(index.max_value(number));
            Some(SourcePage {
                offset: u64::try_from(location.offset).ok()?,
                len: usize::try_from(location.compressed_page_size).ok()?,
                first_row,
                rows: end.checked_sub(first_row)?,
                nulls: usize::try_from(index.null_count(number)?).ok()?,
                bounds: ends.map(|(least, greatest)| Bounds::of_cut_texts(least, greatest)),
            })
        };
        let pages: Vec<SourcePage> = (0..locations.len()).map(page).collect::<Option<_>>()?;
        let source = SourcePages {
            file: file.clone(),
            pages,
        };
        let first = source.pages.first()?;
        let head = Head::parse(&source.read(first).ok()?)?;
        (head.encoding == Encoding::PLAIN && head.values == first.rows).then_some(source)
    }

    fn read(&self, page: &SourcePage) -> Result<Vec<u8>> {
        let mut bytes = vec![0; page.len];
        self.file.read_exact_at(&mut bytes, page.offset)?;
        Ok(bytes)
    }
}

/// A page whose texts were taken out of it.
struct Decoded {
    page: usize,
    bytes: Vec<u8>,
    /// Where the text of each row lies.
    texts: Vec<Option<(usize, usize)>>,
}

/// Takes texts out of pages, and remembers the last page of each source: a run begins where the one before it ended.
#[derive(Default)]
struct Decoder {
    decompressor: Option<Decompressor<'static>>,
    last: HashMap<*const SourcePages, Decoded>,
}

impl Decoder {
    fn texts(&mut self, source: &Arc<SourcePages>, number: usize) -> Result<&Decoded> {
        let key = Arc::as_ptr(source);
        if self.last.get(&key).is_none_or(|known| known.page != number) {
            let decoded = self.decode(source, number)?;
            self.last.insert(key, decoded);
        }
        self.last.get(&key).ok_or_else(torn)
    }

    fn decode(&mut self, source: &SourcePages, number: usize) -> Result<Decoded> {
        let page = source.pages.get(number).ok_or_else(torn)?;
        let packed = source.read(page)?;
        let head = Head::parse(&packed).ok_or_else(torn)?;
        let decompressor = match &mut self.decompressor {
            Some(known) => known,
            none => none.insert(Decompressor::new()?),
        };
        let body = packed.get(head.len..).ok_or_else(torn)?;
        let bytes = decompressor.decompress(body, head.uncompressed)?;
        let texts = texts_of(&bytes, page.rows).ok_or_else(torn)?;
        Ok(Decoded {
            page: number,
            bytes,
            texts,
        })
    }
}

/// Where the texts of a page lie: behind the levels, each behind its length.
fn texts_of(page: &[u8], rows: usize) -> Option<Vec<Option<(usize, usize)>>> {
    let number = |at: usize| Some(u32::from_le_bytes(*page.get(at..at + 4)?.as_array()?) as usize);
    let levels_end = 4 + number(0)?;
    let is_present = levels(page.get(4..levels_end)?, rows)?;
    let (mut at, mut texts) = (levels_end, Vec::with_capacity(rows));
    for is_present in is_present {
        texts.push(match is_present {
            true => {
                let (begin, end) = (at + 4, at + 4 + number(at)?);
                at = end;
                (end <= page.len()).then_some(Some((begin, end)))?
            }
            false => None,
        });
    }
    Some(texts)
}

/// Runs and packed bits of width one.
fn levels(mut bytes: &[u8], rows: usize) -> Option<Vec<bool>> {
    let mut levels = Vec::with_capacity(rows);
    while levels.len() < rows {
        let (mut head, mut shift) = (0_usize, 0);
        loop {
            let (byte, rest) = bytes.split_first()?;
            bytes = rest;
            head |= usize::from(byte & 0x7f).checked_shl(shift)?;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let count = head >> 1;
        if head & 1 == 0 {
            let (value, rest) = bytes.split_first()?;
            bytes = rest;
            levels.resize(levels.len() + count.min(rows - levels.len()), *value != 0);
            continue;
        }
        let (packed, rest) = bytes.split_at_checked(count)?;
        bytes = rest;
        let bits = packed
            .iter()
            .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1));
        levels.extend(bits.take(rows - levels.len()));
    }
    Some(levels)
}

/// Texts between two pages that are copied.
#[derive(Default)]
struct Between {
    bytes: Vec<u8>,
    texts: Vec<Option<(usize, usize)>>,
}

impl Between {
    fn push(&mut self, decoded: &Decoded, rows: std::ops::Range<usize>) {
        for text in decoded.texts.get(rows).unwrap_or_default() {
            self.texts.push(text.map(|(begin, end)| {
                let at = self.bytes.len();
                self.bytes
                    .extend_from_slice(decoded.bytes.get(begin..end).unwrap_or_default());
                (at, self.bytes.len())
            }));
        }
    }

    fn write(&mut self, pages: &mut Pages<'_>) -> Result<()> {
        if self.texts.is_empty() {
            return Ok(());
        }
        let text = |text: &Option<(usize, usize)>| text.and_then(|(begin, end)| self.bytes.get(begin..end));
        let rows: Vec<Option<&[u8]>> = self.texts.iter().map(text).collect();
        put_texts(pages, &rows, &[])?;
        self.bytes.clear();
        self.texts.clear();
        Ok(())
    }
}

/// The rows of all segments.
pub(super) fn copy(pages: &mut Pages<'_>, segments: &[Segment]) -> Result<()> {
    let (mut decoder, mut between) = (Decoder::default(), Between::default());
    for segment in segments {
        let (source, begin, end) = match segment {
            Segment::Rows { source, begin, len } => (source, *begin, begin + len),
            Segment::Nulls(rows) => {
                between.texts.resize(between.texts.len() + rows, None);
                continue;
            }
        };
        let first = source.pages.partition_point(|page| page.first_row + page.rows <= begin);
        for (number, page) in source.pages.iter().enumerate().skip(first) {
            let page_end = page.first_row + page.rows;
            if page.first_row >= end {
                break;
            }
            let is_whole = begin <= page.first_row && page_end <= end;
            if is_whole && page.len >= COPIED_BYTES_MIN {
                between.write(pages)?;
                let bytes = source.read(page)?;
                pages.copy(&bytes, page.rows, page.nulls, page.bounds.clone())?;
                continue;
            }
            let rows = begin.max(page.first_row) - page.first_row..end.min(page_end) - page.first_row;
            between.push(decoder.texts(source, number)?, rows);
        }
    }
    between.write(pages)
}

fn torn() -> ParquetError {
    ParquetError::General("a page is not what its file says of it".to_owned())
}
