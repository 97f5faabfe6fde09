//! Reads columns of files that this program wrote, page by page.
//!
//! A merge takes the rows of a column in order, but in several steps. A column is therefore a resumable stream: it
//! keeps one decompressed page in memory and decodes rows on demand. Going back to earlier rows decompresses their page
//! again.

mod decoded;
mod page;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use parking_lot::Mutex;
use parquet::basic::{Compression, Encoding, Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use zstd::bulk::Decompressor;

use super::bits::{DeltaPackedReader, HybridReader, PADDING};
use super::bounds::PageBounds;
use super::column::ParquetNumber;
use super::level_of;
use super::pages::{PageHeader, PageKind};
use crate::rows::text::NULL;
pub(super) use decoded::{Dictionary, PageTexts, ValidityBuilder};
use page::{PageCursor, PageRows, PageValues, spread, text_at};

/// How the values of a column are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnEncoding {
    /// Delta-encoded.
    Near,
    Numbers,
    NumbersByKey,
    Booleans,
    Texts,
    TextsByKey,
}

impl ColumnEncoding {
    fn encoding(self) -> Encoding {
        match self {
            ColumnEncoding::Near => Encoding::DELTA_BINARY_PACKED,
            ColumnEncoding::Numbers | ColumnEncoding::Booleans | ColumnEncoding::Texts => Encoding::PLAIN,
            ColumnEncoding::NumbersByKey | ColumnEncoding::TextsByKey => Encoding::RLE_DICTIONARY,
        }
    }
}

/// A column of one row group.
pub struct SourceColumn {
    file: Arc<File>,
    pub(super) form: ColumnEncoding,
    /// Whether rows may be null.
    is_nullable: bool,
    /// The size of a number.
    number_bytes: usize,
    level: i32,
    pub(super) pages: Vec<SourcePage>,
    dictionary: Option<(u64, usize)>,
    opened: Mutex<PageCache>,
}

pub(super) struct SourcePage {
    offset: u64,
    pub len: usize,
    /// Its row number in the row group.
    pub first_row: usize,
    pub rows: usize,
    /// `None` if the index does not state it.
    pub nulls: Option<usize>,
    /// Only for texts.
    pub bounds: Option<PageBounds>,
}

impl SourcePage {
    pub fn end(&self) -> usize {
        self.first_row + self.rows
    }
}

/// The cached page and dictionary of a column.
#[derive(Default)]
struct PageCache {
    page: Option<PageCursor>,
    dictionary: Option<Arc<Dictionary>>,
}

/// Decompresses pages and reuses its buffers.
#[derive(Default)]
pub(super) struct PageDecompressor {
    decompressor: Option<Decompressor<'static>>,
    packed: Vec<u8>,
    levels: Vec<u32>,
}

impl SourceColumn {
    /// `None` for list and struct columns, and for files of other writers.
    pub fn of(file: &Arc<File>, metadata: &ParquetMetaData, group: usize, leaf: usize) -> Option<SourceColumn> {
        let level = level_of(metadata)?;
        let of_group = metadata.row_groups().get(group)?;
        let chunk = of_group.columns().get(leaf)?;
        let column = chunk.column_descr();
        let is_flat = column.max_rep_level() == 0 && column.max_def_level() <= 1;
        (is_flat && matches!(chunk.compression(), Compression::ZSTD(_))).then_some(())?;
        let rows = usize::try_from(of_group.num_rows()).ok()?;
        let locations = &metadata.offset_index()?.get(group)?.get(leaf)?.page_locations;
        let index = metadata.column_index().and_then(|index| index.get(group)?.get(leaf));
        let page = |number: usize| {
            let location = locations.get(number)?;
            let first_row = usize::try_from(location.first_row_index).ok()?;
            let next = locations.get(number + 1).map(|next| next.first_row_index);
            let end = next.map_or(Some(rows), |next| usize::try_from(next).ok())?;
            let nulls = index.and_then(|index| index.null_counts()?.get(number).copied());
            Some(SourcePage {
                offset: u64::try_from(location.offset).ok()?,
                len: usize::try_from(location.compressed_page_size).ok()?,
                first_row,
                rows: end.checked_sub(first_row)?,
                nulls: nulls.and_then(|nulls| usize::try_from(nulls).ok()),
                bounds: index.and_then(|index| bounds(index, number)),
            })
        };
        let pages: Vec<SourcePage> = (0..locations.len()).map(page).collect::<Option<_>>()?;
        let dictionary = match chunk.dictionary_page_offset() {
            None => None,
            Some(offset) => {
                let (offset, end) = (u64::try_from(offset).ok()?, pages.first()?.offset);
                Some((offset, usize::try_from(end.checked_sub(offset)?).ok()?))
            }
        };
        let is_near = chunk
            .encodings()
            .any(|encoding| encoding == Encoding::DELTA_BINARY_PACKED);
        let form = match (column.physical_type(), dictionary.is_some()) {
            (Type::BYTE_ARRAY, true) => ColumnEncoding::TextsByKey,
            (Type::BYTE_ARRAY, false) => ColumnEncoding::Texts,
            (Type::BOOLEAN, false) => ColumnEncoding::Booleans,
            (Type::INT64, false) if is_near => ColumnEncoding::Near,
            (Type::INT32 | Type::INT64 | Type::DOUBLE, true) => ColumnEncoding::NumbersByKey,
            (Type::INT32 | Type::INT64 | Type::DOUBLE, false) => ColumnEncoding::Numbers,
            _ => return None,
        };
        Some(SourceColumn {
            file: file.clone(),
            form,
            is_nullable: column.max_def_level() > 0,
            number_bytes: if column.physical_type() == Type::INT32 { 4 } else { 8 },
            level,
            pages,
            dictionary,
            opened: Mutex::default(),
        })
    }

    /// Whether all rows are null.
    pub fn is_empty(&self) -> bool {
        self.pages.iter().all(|page| page.nulls == Some(page.rows))
    }

    /// Whether pages may be copied into a file of this compression level.
    pub(super) fn is_packed_as(&self, level: i32) -> bool {
        self.level >= level
    }

    /// The number of the page with this row.
    pub(super) fn first_page_of(&self, row: usize) -> usize {
        self.pages.partition_point(|page| page.end() <= row)
    }

    /// Appends the compressed bytes of a page to `out`.
    pub(super) fn read_packed(&self, page: &SourcePage, out: &mut Vec<u8>) -> Result<()> {
        let at = out.len();
        out.resize(at + page.len, 0);
        let place = out.get_mut(at..).unwrap_or_default();
        Ok(self.file.read_exact_at(place, page.offset)?)
    }

    /// Reads the numbers of some rows and their validity.
    pub(super) fn numbers<T: ParquetNumber>(
        &self,
        unpacker: &mut PageDecompressor,
        rows: Range<usize>,
        out: &mut Vec<T>,
        presence: &mut ValidityBuilder,
    ) -> Result<()> {
        let (mut keys, mut dense) = (Vec::new(), Vec::new());
        self.each_page(unpacker, rows, |part| {
            let PageRows::Page {
                page,
                dictionary,
                levels,
                count,
            } = part
            else {
                presence.append(part.rows(), false);
                out.resize(out.len() + part.rows(), T::default());
                return Some(());
            };
            let PageCursor { body, values, .. } = page;
            let into = match levels {
                None => &mut *out,
                Some(_) => {
                    dense.clear();
                    &mut dense
                }
            };
            match values {
                PageValues::Near(reader) => reader.read(body, count, |value| into.push(T::of_long(value)))?,
                PageValues::Fixed(at, len) => {
                    (*len == T::BYTES).then_some(())?;
                    let end = *at + count.checked_mul(T::BYTES)?;
                    into.extend(body.get(*at..end)?.chunks_exact(T::BYTES).map(T::of_bytes));
                    *at = end;
                }
                PageValues::Keys(reader) => {
                    keys.clear();
                    reader.read(body, count, &mut keys)?;
                    let dictionary = dictionary?;
                    let number = |key: &u32| {
                        dictionary
                            .number(*key as usize, T::BYTES)
                            .map_or(T::default(), T::of_bytes)
                    };
                    into.extend(keys.iter().map(number));
                }
                PageValues::Bits(_) | PageValues::Texts(_) => return None,
            }
            spread(levels, &dense, out, presence, count);
            Some(())
        })
    }

    pub(super) fn booleans(
        &self,
        unpacker: &mut PageDecompressor,
        rows: Range<usize>,
        out: &mut Vec<bool>,
        presence: &mut ValidityBuilder,
    ) -> Result<()> {
        let mut dense = Vec::new();
        self.each_page(unpacker, rows, |part| {
            let PageRows::Page {
                page, levels, count, ..
            } = part
            else {
                presence.append(part.rows(), false);
                out.resize(out.len() + part.rows(), false);
                return Some(());
            };
            let PageValues::Bits(at) = &mut page.values else {
                return None;
            };
            let bits = &page.body;
            let bit = |at: usize| bits.get(at / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1);
            let values = (*at..*at + count).map(bit);
            match levels {
                None => out.extend(values),
                Some(_) => {
                    dense.clear();
                    dense.extend(values);
                }
            }
            *at += count;
            spread(levels, &dense, out, presence, count);
            Some(())
        })
    }

    /// Reads the dictionary index of each row, [`NULL`] for none.
    pub(super) fn keys(&self, unpacker: &mut PageDecompressor, rows: Range<usize>, out: &mut Vec<u32>) -> Result<()> {
        let mut dense = Vec::new();
        self.each_page(unpacker, rows, |part| {
            let PageRows::Page {
                page, levels, count, ..
            } = part
            else {
                out.resize(out.len() + part.rows(), NULL);
                return Some(());
            };
            let PageValues::Keys(reader) = &mut page.values else {
                return None;
            };
            let Some(levels) = levels else {
                return reader.read(&page.body, count, out);
            };
            dense.clear();
            reader.read(&page.body, count, &mut dense)?;
            let mut dense = dense.iter();
            let key = |level: &u32| {
                if *level == 0 {
                    NULL
                } else {
                    dense.next().copied().unwrap_or(NULL)
                }
            };
            out.extend(levels.iter().map(key));
            Some(())
        })
    }

    /// Appends the texts of some rows to `out`.
    pub(super) fn texts(&self, unpacker: &mut PageDecompressor, rows: Range<usize>, out: &mut PageTexts) -> Result<()> {
        self.each_page(unpacker, rows, |part| {
            let PageRows::Page {
                page, levels, count, ..
            } = part
            else {
                out.push_nulls(part.rows());
                return Some(());
            };
            let PageValues::Texts(at) = &mut page.values else {
                return None;
            };
            for row in 0..levels.map_or(count, <[u32]>::len) {
                if levels.is_some_and(|levels| levels.get(row) == Some(&0)) {
                    out.push(None);
                    continue;
                }
                let (text, end) = text_at(&page.body, *at)?;
                *at = end;
                out.push(Some(text));
            }
            Some(())
        })
    }

    /// The dictionary of texts or numbers.
    pub(super) fn dictionary(&self, unpacker: &mut PageDecompressor) -> Result<Arc<Dictionary>> {
        let mut opened = self.opened.lock();
        if opened.dictionary.is_none() {
            opened.dictionary = Some(Arc::new(self.read_dictionary(unpacker)?));
        }
        opened.dictionary.clone().ok_or_else(torn)
    }

    fn read_dictionary(&self, unpacker: &mut PageDecompressor) -> Result<Dictionary> {
        let (offset, len) = self.dictionary.ok_or_else(torn)?;
        let page = SourcePage {
            offset,
            len,
            first_row: 0,
            rows: 0,
            nulls: None,
            bounds: None,
        };
        let (head, body) = self.unpacked(&page, PageKind::Dictionary, unpacker)?;
        match self.form {
            ColumnEncoding::TextsByKey => Dictionary::of_texts(body, head.values).ok_or_else(torn),
            _ => Ok(Dictionary::of_numbers(body)),
        }
    }

    /// Decompresses a page and appends padding.
    fn unpacked(
        &self,
        page: &SourcePage,
        kind: PageKind,
        unpacker: &mut PageDecompressor,
    ) -> Result<(PageHeader, Vec<u8>)> {
        let PageDecompressor {
            decompressor, packed, ..
        } = unpacker;
        packed.clear();
        self.read_packed(page, packed)?;
        let head = PageHeader::parse(packed, kind).ok_or_else(torn)?;
        let decompressor = match decompressor {
            Some(known) => known,
            none => none.insert(Decompressor::new()?),
        };
        let mut body = Vec::with_capacity(head.uncompressed + PADDING);
        decompressor.decompress_to_buffer(packed.get(head.len..).ok_or_else(torn)?, &mut body)?;
        (body.len() == head.uncompressed).then_some(()).ok_or_else(torn)?;
        body.resize(head.uncompressed + PADDING, 0);
        Ok((head, body))
    }

    fn each_page(
        &self,
        unpacker: &mut PageDecompressor,
        rows: Range<usize>,
        mut take: impl FnMut(PageRows<'_>) -> Option<()>,
    ) -> Result<()> {
        let needs_dictionary = self.form == ColumnEncoding::NumbersByKey && !self.is_empty();
        let dictionary = match needs_dictionary {
            true => Some(self.dictionary(unpacker)?),
            false => None,
        };
        let mut opened = self.opened.lock();
        let (mut at, mut number) = (rows.start, self.first_page_of(rows.start));
        while at < rows.end {
            let page = self.pages.get(number).ok_or_else(torn)?;
            let count = rows.end.min(page.end()) - at;
            if page.nulls == Some(page.rows) {
                take(PageRows::Nulls(count)).ok_or_else(torn)?;
            } else {
                let is_there = |known: &PageCursor| known.number == number && known.row <= at;
                if !opened.page.as_ref().is_some_and(is_there) {
                    opened.page = Some(self.open(number, page, unpacker)?);
                }
                let open = opened.page.as_mut().ok_or_else(torn)?;
                let levels = &mut unpacker.levels;
                open.skip(at - open.row, levels).ok_or_else(torn)?;
                let there = open.levels(count, levels).ok_or_else(torn)?;
                let part = PageRows::Page {
                    page: open,
                    dictionary: dictionary.as_deref(),
                    levels: there.map(|_| levels.as_slice()),
                    count: there.unwrap_or(count),
                };
                take(part).ok_or_else(torn)?;
            }
            at += count;
            number += 1;
        }
        Ok(())
    }

    fn open(&self, number: usize, page: &SourcePage, unpacker: &mut PageDecompressor) -> Result<PageCursor> {
        let (head, body) = self.unpacked(page, PageKind::Data, unpacker)?;
        let is_right = head.values == page.rows && head.encoding == self.form.encoding();
        is_right.then_some(()).ok_or_else(torn)?;
        let mut at = 0;
        let mut levels = None;
        if self.is_nullable {
            let len = body.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
            at = 4 + len;
            if page.nulls != Some(0) {
                levels = HybridReader::new(4, 1);
            }
        }
        let values = match self.form {
            ColumnEncoding::Near => PageValues::Near(DeltaPackedReader::new(&body, at).ok_or_else(torn)?),
            ColumnEncoding::Numbers => PageValues::Fixed(at, self.number_bytes),
            ColumnEncoding::Booleans => PageValues::Bits(at * 8),
            ColumnEncoding::Texts => PageValues::Texts(at),
            ColumnEncoding::NumbersByKey | ColumnEncoding::TextsByKey => {
                let width = *body.get(at).ok_or_else(torn)?;
                PageValues::Keys(HybridReader::new(at + 1, u32::from(width)).ok_or_else(torn)?)
            }
        };
        Ok(PageCursor {
            number,
            row: page.first_row,
            body,
            levels,
            values,
        })
    }
}

fn bounds(index: &ColumnIndexMetaData, page: usize) -> Option<PageBounds> {
    let ColumnIndexMetaData::BYTE_ARRAY(index) = index else {
        return None;
    };
    (page < usize::try_from(index.num_pages()).ok()?).then_some(())?;
    let (least, greatest) = index.min_value(page).zip(index.max_value(page))?;
    Some(PageBounds::of_cut_texts(least, greatest))
}

fn torn() -> ParquetError {
    ParquetError::General("a page does not match its metadata".to_owned())
}
