//! The pages of one column of a row group, one behind the other, and what readers are told of them.

use bytes::Bytes;
use parquet::basic::{BoundaryOrder, Compression, Encoding, Type};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;

use super::bits::{run, width_of, zigzag};
use super::bounds::Bounds;

/// Types of fields, as Thrift's compact protocol numbers them.
const I32: u8 = 5;
const STRUCT: u8 = 12;
/// Of page headers.
const DATA_PAGE: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;

/// Compresses pages, one after the other, in the same memory.
pub(super) struct Press {
    compressor: Compressor<'static>,
    compression: Compression,
    /// The page that is being made.
    pub body: Vec<u8>,
    packed: Vec<u8>,
}

impl Press {
    pub fn new(compression: Compression, level: i32) -> Result<Press> {
        Ok(Press {
            compressor: Compressor::new(level)?,
            compression,
            body: Vec::new(),
            packed: Vec::new(),
        })
    }
}

/// A column on its way.
pub(super) struct Pages<'p> {
    press: &'p mut Press,
    column: ColumnDescPtr,
    bytes: Vec<u8>,
    index: ColumnIndexBuilder,
    offsets: OffsetIndexBuilder,
    dictionary_offset: Option<i64>,
    data_offset: Option<i64>,
    encodings: Vec<Encoding>,
    uncompressed: usize,
    rows: usize,
    nulls: usize,
    bounds: Option<Bounds>,
    last: Option<Bounds>,
    is_ascending: bool,
}

impl<'p> Pages<'p> {
    pub fn new(press: &'p mut Press, column: ColumnDescPtr) -> Pages<'p> {
        Pages {
            index: ColumnIndexBuilder::new(column.physical_type()),
            press,
            column,
            bytes: Vec::new(),
            offsets: OffsetIndexBuilder::new(),
            dictionary_offset: None,
            data_offset: None,
            encodings: Vec::new(),
            uncompressed: 0,
            rows: 0,
            nulls: 0,
            bounds: None,
            last: None,
            is_ascending: true,
        }
    }

    /// Where the next page is made.
    pub fn body(&mut self) -> &mut Vec<u8> {
        &mut self.press.body
    }

    /// Whether rows may be without a value.
    pub fn is_nullable(&self) -> bool {
        self.column.max_def_level() > 0
    }

    /// The texts of a dictionary are in the body.
    pub fn dictionary(&mut self, texts: usize) -> Result<()> {
        self.dictionary_offset = Some(self.bytes.len() as i64);
        self.encodings.push(Encoding::PLAIN);
        self.put(DICTIONARY_PAGE, texts, Encoding::PLAIN)?;
        Ok(())
    }

    /// Levels and values of so many rows are in the body. Without bounds of a page that has values the column has none.
    pub fn page(&mut self, rows: usize, nulls: usize, encoding: Encoding, bounds: Option<Bounds>) -> Result<()> {
        let offset = self.bytes.len() as i64;
        self.data_offset.get_or_insert(offset);
        if !self.encodings.contains(&encoding) {
            self.encodings.push(encoding);
        }
        let len = self.put(DATA_PAGE, rows, encoding)?;
        let len = i32::try_from(len).map_err(|_| too_large())?;
        self.offsets.append_row_count(rows as i64);
        self.offsets.append_offset_and_size(offset, len);
        self.rows += rows;
        self.nulls += nulls;
        self.tell(rows, nulls, bounds);
        Ok(())
    }

    /// A page of texts of another file, with its header.
    pub fn copy(&mut self, page: &[u8], rows: usize, nulls: usize, bounds: Option<Bounds>) -> Result<()> {
        let head = Head::parse(page).filter(|head| head.values == rows && head.len + head.compressed == page.len());
        let head = head.ok_or_else(|| ParquetError::General("a page is not what its file says of it".to_owned()))?;
        let offset = self.bytes.len() as i64;
        self.data_offset.get_or_insert(offset);
        if !self.encodings.contains(&head.encoding) {
            self.encodings.push(head.encoding);
        }
        self.bytes.extend_from_slice(page);
        self.uncompressed += head.len + head.uncompressed;
        self.offsets.append_row_count(rows as i64);
        self.offsets
            .append_offset_and_size(offset, i32::try_from(page.len()).map_err(|_| too_large())?);
        self.rows += rows;
        self.nulls += nulls;
        self.tell(rows, nulls, bounds);
        Ok(())
    }

    fn tell(&mut self, rows: usize, nulls: usize, bounds: Option<Bounds>) {
        if rows == nulls {
            self.index.append(true, Vec::new(), Vec::new(), nulls as i64);
            return;
        }
        let Some((bounds, (least, greatest))) = bounds.and_then(|bounds| bounds.bytes().map(|ends| (bounds, ends)))
        else {
            self.index.to_invalid();
            return;
        };
        self.index.append(false, least, greatest, nulls as i64);
        self.is_ascending &= self.last.as_ref().is_none_or(|last| bounds.follows(last));
        self.bounds = Some(match self.bounds.take() {
            Some(known) => known.and(bounds.clone()),
            None => bounds.clone(),
        });
        self.last = Some(bounds);
    }

    /// All rows are without a value.
    pub fn nulls(&mut self, rows: usize) -> Result<()> {
        self.press.body.clear();
        for level in [self.column.max_rep_level(), self.column.max_def_level()] {
            if level > 0 {
                put_levels(&mut self.press.body, |out| {
                    run(0, rows, width_of(level as usize + 1), out)
                });
            }
        }
        self.page(rows, rows, Encoding::PLAIN, None)
    }

    /// Returns the bytes of the page with its header.
    fn put(&mut self, kind: i64, values: usize, encoding: Encoding) -> Result<usize> {
        let Press {
            compressor,
            body,
            packed,
            ..
        } = &mut *self.press;
        packed.clear();
        packed.reserve(zstd::zstd_safe::compress_bound(body.len()));
        compressor.compress_to_buffer(body.as_slice(), packed)?;
        let begin = self.bytes.len();
        put_header(&mut self.bytes, kind, [body.len(), packed.len(), values], encoding)?;
        self.uncompressed += self.bytes.len() - begin + body.len();
        self.bytes.extend_from_slice(packed);
        Ok(self.bytes.len() - begin)
    }

    pub fn close(self) -> Result<(Bytes, ColumnCloseResult)> {
        let Pages { mut index, bounds, .. } = self;
        let has_all = index.valid();
        if self.is_ascending && has_all {
            index.set_boundary_order(BoundaryOrder::ASCENDING);
        }
        let (kind, nulls) = (self.column.physical_type(), self.nulls as u64);
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(self.press.compression)
            .set_encodings(self.encodings)
            .set_total_compressed_size(self.bytes.len() as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(self.rows as i64)
            .set_data_page_offset(self.data_offset.unwrap_or_default())
            .set_dictionary_page_offset(self.dictionary_offset);
        let metadata = match bounds {
            Some(bounds) if has_all => metadata.set_statistics(bounds.statistics(nulls)),
            None if has_all => metadata.set_statistics(only_nulls(kind, nulls)),
            _ => metadata,
        };
        let closed = ColumnCloseResult {
            bytes_written: self.bytes.len() as u64,
            rows_written: self.rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: has_all.then(|| index.build()).transpose()?,
            offset_index: Some(self.offsets.build()),
        };
        Ok((self.bytes.into(), closed))
    }
}

/// Of a column without a value.
fn only_nulls(kind: Type, nulls: u64) -> Statistics {
    fn of<D: DataType>(nulls: u64) -> ValueStatistics<D::T> {
        ValueStatistics::new(None, None, None, Some(nulls), false)
    }
    match kind {
        Type::INT32 => of::<Int32Type>(nulls).into(),
        Type::INT64 => of::<Int64Type>(nulls).into(),
        Type::DOUBLE => of::<DoubleType>(nulls).into(),
        Type::BOOLEAN => of::<BoolType>(nulls).into(),
        _ => of::<ByteArrayType>(nulls).into(),
    }
}

/// Levels with their length before them.
pub(super) fn put_levels(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let len = (out.len() - at - 4) as u32;
    if let Some(head) = out.get_mut(at..at + 4) {
        head.copy_from_slice(&len.to_le_bytes());
    }
}

/// A page header in Thrift's compact protocol.
fn put_header(out: &mut Vec<u8>, kind: i64, [plain, packed, values]: [usize; 3], encoding: Encoding) -> Result<()> {
    let number = |out: &mut Vec<u8>, skipped: u8, value: i64| {
        out.push(skipped << 4 | I32);
        zigzag(value, out);
    };
    let size = |len: usize| i32::try_from(len).map(i64::from).map_err(|_| too_large());
    number(out, 1, kind);
    number(out, 1, size(plain)?);
    number(out, 1, size(packed)?);
    // The field of a data page is the fifth, that of a dictionary the seventh.
    out.push((if kind == DATA_PAGE { 2 } else { 4 }) << 4 | STRUCT);
    number(out, 1, size(values)?);
    number(out, 1, number_of(encoding));
    if kind == DATA_PAGE {
        number(out, 1, number_of(Encoding::RLE));
        number(out, 1, number_of(Encoding::RLE));
    }
    out.extend_from_slice(&[0, 0]);
    Ok(())
}

/// What the header of a data page says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Of the header itself.
    pub len: usize,
    pub uncompressed: usize,
    pub compressed: usize,
    /// Rows, with those that have no value.
    pub values: usize,
    pub encoding: Encoding,
}

impl Head {
    /// `None` for a header of another form than ours.
    pub fn parse(page: &[u8]) -> Option<Head> {
        let mut at = 0;
        let byte = |at: &mut usize| {
            let found = page.get(*at).copied();
            *at += 1;
            found
        };
        let field = |at: &mut usize, head: u8| -> Option<i64> {
            (byte(at)? == head).then_some(())?;
            let (mut value, mut shift) = (0_u64, 0);
            loop {
                let next = byte(at)?;
                value |= u64::from(next & 0x7f).checked_shl(shift)?;
                shift += 7;
                if next & 0x80 == 0 {
                    return Some((value >> 1) as i64 ^ -((value & 1) as i64));
                }
            }
        };
        const NUMBER: u8 = 1 << 4 | I32;
        let kind = field(&mut at, NUMBER)?;
        let (uncompressed, compressed) = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
        (kind == DATA_PAGE && *page.get(at)? == 2 << 4 | STRUCT).then_some(())?;
        at += 1;
        let (values, encoding) = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
        let levels = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
        let encodings = [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::RLE_DICTIONARY];
        let rle = number_of(Encoding::RLE);
        (levels == (rle, rle) && page.get(at..at + 2)? == [0, 0]).then_some(())?;
        Some(Head {
            len: at + 2,
            uncompressed: usize::try_from(uncompressed).ok()?,
            compressed: usize::try_from(compressed).ok()?,
            values: usize::try_from(values).ok()?,
            encoding: encodings.into_iter().find(|known| number_of(*known) == encoding)?,
        })
    }
}

/// As the format numbers it.
fn number_of(encoding: Encoding) -> i64 {
    match encoding {
        Encoding::RLE => 3,
        Encoding::DELTA_BINARY_PACKED => 5,
        Encoding::RLE_DICTIONARY => 8,
        _ => 0,
    }
}

fn too_large() -> ParquetError {
    ParquetError::General("a page is larger than a file can tell".to_owned())
}
