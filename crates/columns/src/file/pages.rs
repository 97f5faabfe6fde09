//! Writes the pages of one column chunk, and the statistics and indexes for readers.

use bytes::Bytes;
use parquet::basic::{BoundaryOrder, Compression, ConvertedType, Encoding, LogicalType, Type};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::{BoolType, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::ColumnDescPtr;
use thalweg_kit::varint;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use super::bits::{run, take_zigzag, width_of};
use super::bounds::PageBounds;
use super::source::{PageDecompressor, SourceColumn, SourcePage};

/// The type of a 32-bit number in Thrift's compact protocol.
const I32: u8 = 5;
/// The type of a struct in Thrift's compact protocol.
const STRUCT: u8 = 12;

/// A type of page, numbered as in page headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Data = 0,
    Dictionary = 2,
}

impl PageKind {
    /// The id of the field with the details of such a page, relative to the previous field.
    fn field(self) -> u8 {
        match self {
            PageKind::Data => 2,
            PageKind::Dictionary => 4,
        }
    }
}

/// Compresses pages and reuses its buffers.
pub(super) struct PageCompressor {
    compressor: Compressor<'static>,
    compression: Compression,
    level: i32,
    /// The page in progress.
    pub body: Vec<u8>,
    packed: Vec<u8>,
    /// A buffer for the pages of a column.
    pub column: Vec<u8>,
    /// Decompresses pages of other files.
    pub unpacker: PageDecompressor,
}

impl PageCompressor {
    pub fn new(compression: Compression, level: i32) -> Result<PageCompressor> {
        let mut compressor = Compressor::new(level)?;
        // The checksum detects flipped bits on decompression. Nothing else in the file does.
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(PageCompressor {
            compressor,
            compression,
            level,
            body: Vec::new(),
            packed: Vec::new(),
            column: Vec::new(),
            unpacker: PageDecompressor::default(),
        })
    }
}

/// A column chunk in progress.
pub(super) struct ColumnChunkWriter<'p> {
    compressor: &'p mut PageCompressor,
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
    bounds: Option<PageBounds>,
    last: Option<PageBounds>,
    is_ascending: bool,
}

impl<'p> ColumnChunkWriter<'p> {
    pub fn new(compressor: &'p mut PageCompressor, column: ColumnDescPtr) -> ColumnChunkWriter<'p> {
        let mut bytes = std::mem::take(&mut compressor.column);
        bytes.clear();
        ColumnChunkWriter {
            index: ColumnIndexBuilder::new(column.physical_type()),
            compressor,
            column,
            bytes,
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

    /// The buffer for the next page.
    pub fn body(&mut self) -> &mut Vec<u8> {
        &mut self.compressor.body
    }

    /// The compression level.
    pub fn level(&self) -> i32 {
        self.compressor.level
    }

    pub fn unpacker(&mut self) -> &mut PageDecompressor {
        &mut self.compressor.unpacker
    }

    pub fn kind(&self) -> Type {
        self.column.physical_type()
    }

    /// Whether byte arrays are UTF-8.
    pub fn is_text(&self) -> bool {
        self.column.converted_type() == ConvertedType::UTF8
            || matches!(self.column.logical_type_ref(), Some(LogicalType::String))
    }

    /// Whether rows may be null.
    pub fn is_nullable(&self) -> bool {
        self.column.max_def_level() > 0
    }

    /// Writes the body as the dictionary page.
    pub fn dictionary(&mut self, texts: usize) -> Result<()> {
        self.dictionary_offset = Some(self.bytes.len() as i64);
        self.encodings.push(Encoding::PLAIN);
        self.put(PageKind::Dictionary, texts, Encoding::PLAIN)?;
        Ok(())
    }

    /// Writes the body, with levels and values, as a data page. If a page with values has no bounds, the column has
    /// none.
    pub fn page(&mut self, rows: usize, nulls: usize, encoding: Encoding, bounds: Option<PageBounds>) -> Result<()> {
        let offset = self.bytes.len() as i64;
        self.data_offset.get_or_insert(offset);
        if !self.encodings.contains(&encoding) {
            self.encodings.push(encoding);
        }
        let len = self.put(PageKind::Data, rows, encoding)?;
        let len = i32::try_from(len).map_err(|_| too_large())?;
        self.offsets.append_row_count(rows as i64);
        self.offsets.append_offset_and_size(offset, len);
        self.rows += rows;
        self.nulls += nulls;
        self.note_bounds(rows, nulls, bounds);
        Ok(())
    }

    /// Copies a page of another file unchanged.
    pub fn copy(&mut self, source: &SourceColumn, page: &SourcePage, nulls: usize) -> Result<()> {
        let offset = self.bytes.len();
        source.read_packed(page, &mut self.bytes)?;
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        let head = PageHeader::parse(bytes, PageKind::Data)
            .filter(|head| head.values == page.rows && head.len + head.compressed == bytes.len());
        let head = head.ok_or_else(|| ParquetError::General("a page does not match its metadata".to_owned()))?;
        self.data_offset.get_or_insert(offset as i64);
        if !self.encodings.contains(&head.encoding) {
            self.encodings.push(head.encoding);
        }
        let len = i32::try_from(bytes.len()).map_err(|_| too_large())?;
        self.uncompressed += head.len + head.uncompressed;
        self.offsets.append_row_count(page.rows as i64);
        self.offsets.append_offset_and_size(offset as i64, len);
        self.rows += page.rows;
        self.nulls += nulls;
        self.note_bounds(page.rows, nulls, page.bounds.clone());
        Ok(())
    }

    /// Adds a page to the column index and to the bounds of the column.
    fn note_bounds(&mut self, rows: usize, nulls: usize, bounds: Option<PageBounds>) {
        if rows == nulls {
            self.index.append(true, Vec::new(), Vec::new(), nulls as i64);
            return;
        }
        let Some(bounds) = bounds else {
            self.index.to_invalid();
            return;
        };
        let (least, greatest) = bounds.bytes();
        self.index.append(false, least, greatest, nulls as i64);
        self.is_ascending &= self.last.as_ref().is_none_or(|last| bounds.follows(last));
        self.bounds = Some(match self.bounds.take() {
            Some(known) => known.and(bounds.clone()),
            None => bounds.clone(),
        });
        self.last = Some(bounds);
    }

    /// Writes a page of nulls.
    pub fn nulls(&mut self, rows: usize) -> Result<()> {
        self.compressor.body.clear();
        for level in [self.column.max_rep_level(), self.column.max_def_level()] {
            if level > 0 {
                put_levels(&mut self.compressor.body, |out| {
                    run(0, rows, width_of(level as usize + 1), out)
                });
            }
        }
        self.page(rows, rows, Encoding::PLAIN, None)
    }

    /// Returns the length of the page with its header.
    fn put(&mut self, kind: PageKind, values: usize, encoding: Encoding) -> Result<usize> {
        let PageCompressor {
            compressor,
            body,
            packed,
            ..
        } = &mut *self.compressor;
        packed.clear();
        packed.reserve(zstd::zstd_safe::compress_bound(body.len()));
        compressor.compress_to_buffer(body.as_slice(), packed)?;
        let begin = self.bytes.len();
        put_header(&mut self.bytes, kind, [body.len(), packed.len(), values], encoding)?;
        self.uncompressed += self.bytes.len() - begin + body.len();
        self.bytes.extend_from_slice(packed);
        Ok(self.bytes.len() - begin)
    }

    /// Finishes the column. The returned buffer can be reused for the next one.
    pub fn close(self) -> Result<(PackedColumn, ColumnCloseResult)> {
        let ColumnChunkWriter { mut index, bounds, .. } = self;
        let has_all = index.valid();
        if self.is_ascending && has_all {
            index.set_boundary_order(BoundaryOrder::ASCENDING);
        }
        let (kind, nulls) = (self.column.physical_type(), self.nulls as u64);
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(self.compressor.compression)
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
        Ok((PackedColumn(self.bytes), closed))
    }
}

/// The pages of a finished column, which the file writer copies.
pub(super) struct PackedColumn(pub Vec<u8>);

impl Length for &PackedColumn {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl<'a> ChunkReader for &'a PackedColumn {
    type T = &'a [u8];

    fn get_read(&self, start: u64) -> Result<&'a [u8]> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        Ok(self.0.get(start..).unwrap_or_default())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let found = self.get_read(start)?.get(..length);
        found.map(Bytes::copy_from_slice).ok_or_else(too_large)
    }
}

/// Statistics of a column without values.
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

/// Writes levels preceded by their length.
pub(super) fn put_levels(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let len = (out.len() - at - 4) as u32;
    if let Some(head) = out.get_mut(at..at + 4) {
        head.copy_from_slice(&len.to_le_bytes());
    }
}

/// Writes a page header in Thrift's compact protocol.
fn put_header(
    out: &mut Vec<u8>,
    kind: PageKind,
    [plain, packed, values]: [usize; 3],
    encoding: Encoding,
) -> Result<()> {
    let number = |out: &mut Vec<u8>, skipped: u8, value: i64| {
        out.push(skipped << 4 | I32);
        varint::put_signed(out, value);
    };
    let size = |len: usize| i32::try_from(len).map(i64::from).map_err(|_| too_large());
    number(out, 1, kind as i64);
    number(out, 1, size(plain)?);
    number(out, 1, size(packed)?);
    out.push(kind.field() << 4 | STRUCT);
    number(out, 1, size(values)?);
    number(out, 1, number_of(encoding));
    if kind == PageKind::Data {
        number(out, 1, number_of(Encoding::RLE));
        number(out, 1, number_of(Encoding::RLE));
    }
    out.extend_from_slice(&[0, 0]);
    Ok(())
}

/// The content of a page header.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// The length of the header itself.
    pub len: usize,
    pub uncompressed: usize,
    pub compressed: usize,
    /// Rows including nulls; for a dictionary, its entries.
    pub values: usize,
    pub encoding: Encoding,
}

impl PageHeader {
    /// `None` for a header that this program would not write.
    pub fn parse(page: &[u8], kind: PageKind) -> Option<PageHeader> {
        let mut at = 0;
        let byte = |at: &mut usize| {
            let found = page.get(*at).copied();
            *at += 1;
            found
        };
        let field = |at: &mut usize, head: u8| -> Option<i64> {
            (byte(at)? == head).then_some(())?;
            take_zigzag(page, at)
        };
        const NUMBER: u8 = 1 << 4 | I32;
        let is_right = field(&mut at, NUMBER)? == kind as i64;
        let (uncompressed, compressed) = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
        (is_right && *page.get(at)? == kind.field() << 4 | STRUCT).then_some(())?;
        at += 1;
        let (values, encoding) = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
        if kind == PageKind::Data {
            let levels = (field(&mut at, NUMBER)?, field(&mut at, NUMBER)?);
            let rle = number_of(Encoding::RLE);
            (levels == (rle, rle)).then_some(())?;
        }
        let encodings = [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::RLE_DICTIONARY];
        (page.get(at..at + 2)? == [0, 0]).then_some(())?;
        Some(PageHeader {
            len: at + 2,
            uncompressed: usize::try_from(uncompressed).ok()?,
            compressed: usize::try_from(compressed).ok()?,
            values: usize::try_from(values).ok()?,
            encoding: encodings.into_iter().find(|known| number_of(*known) == encoding)?,
        })
    }
}

/// The encoding's number in the format.
fn number_of(encoding: Encoding) -> i64 {
    match encoding {
        Encoding::RLE => 3,
        Encoding::DELTA_BINARY_PACKED => 5,
        Encoding::RLE_DICTIONARY => 8,
        _ => 0,
    }
}

fn too_large() -> ParquetError {
    ParquetError::General("a page is too large for the file format".to_owned())
}
