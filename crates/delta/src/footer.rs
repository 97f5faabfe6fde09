//! Reads the footer of a Parquet file of any writer, also one in which only some row groups have an ordinal: files of
//! tables, checkpoints, and files that are imported.
//!
//! An ordinal repeats the position of its row group. Writers that leave out zeros, such as parquet-go 0.25, omit that
//! of the first row group. The parquet crate (59, `OrdinalAssigner`) refuses such footers as inconsistent, so the
//! missing ordinals are added to the bytes before they are decoded. Nothing else is changed.

use std::sync::Arc;

use bytes::Bytes;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{FooterTail, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::ChunkReader;
use thalweg_kit::varint;

/// The length and the magic number at the end of a file.
pub const TAIL_BYTES: usize = 8;
/// Footers do not nest types more deeply.
const NESTING_MAX: usize = 16;

/// The numbers of fields in the format.
const ROW_GROUPS: i64 = 4;
const ORDINAL: i64 = 7;

/// Types in Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// Reads the footer, and the page index that `options` ask for.
pub fn load<R: ChunkReader>(file: &R, options: ArrowReaderOptions) -> Result<ArrowReaderMetadata> {
    let refused = match ArrowReaderMetadata::load(file, options.clone()) {
        Ok(metadata) => return Ok(metadata),
        Err(error) => error,
    };
    let Some(footer) = footer_of(file) else {
        return Err(refused);
    };
    let Some(metadata) = decode_without_ordinals(&footer) else {
        return Err(refused);
    };
    let mut reader = ParquetMetaDataReader::new_with_metadata(metadata?)
        .with_column_index_policy(options.column_index_policy())
        .with_offset_index_policy(options.offset_index_policy());
    reader.read_page_indexes(file)?;
    ArrowReaderMetadata::try_new(Arc::new(reader.finish()?), options)
}

/// Decodes a footer in which only some row groups have an ordinal; `None` if this is none.
pub fn decode_without_ordinals(footer: &[u8]) -> Option<Result<ParquetMetaData>> {
    let positions = missing_ordinals(footer)?;
    let mut whole = Vec::with_capacity(footer.len() + positions.len() * 4);
    let mut copied = 0;
    for MissingOrdinal { end, group } in positions {
        whole.extend_from_slice(footer.get(copied..end)?);
        copied = end;
        // A header with the whole number of the field does not depend on the field before it.
        whole.push(I16);
        varint::put_signed(&mut whole, ORDINAL);
        varint::put_signed(&mut whole, group);
    }
    whole.extend_from_slice(footer.get(copied..)?);
    Some(ParquetMetaDataReader::decode_metadata(&whole))
}

/// The length of the footer, from the last [`TAIL_BYTES`] of a file.
pub fn footer_bytes(tail: &[u8]) -> Result<usize> {
    let tail = tail
        .first_chunk::<TAIL_BYTES>()
        .ok_or_else(|| ParquetError::General("the file is too short for a footer".to_owned()))?;
    Ok(FooterTail::try_new(tail)?.metadata_length())
}

fn footer_of<R: ChunkReader>(file: &R) -> Option<Bytes> {
    let tail_at = file.len().checked_sub(TAIL_BYTES as u64)?;
    let len = footer_bytes(&file.get_bytes(tail_at, TAIL_BYTES).ok()?).ok()?;
    let begin = tail_at.checked_sub(len as u64)?;
    file.get_bytes(begin, len).ok()
}

/// A row group without an ordinal.
struct MissingOrdinal {
    /// The position of the byte that ends the row group.
    end: usize,
    group: i64,
}

/// The row groups without an ordinal, if others have one; `None` if all or none have one, or the bytes are no footer.
fn missing_ordinals(footer: &[u8]) -> Option<Vec<MissingOrdinal>> {
    let mut at = CompactCursor { bytes: footer, at: 0 };
    let (mut missing, mut known, mut last) = (Vec::new(), false, 0);
    while let Some((field, kind)) = at.field(&mut last)? {
        if field != ROW_GROUPS || kind != LIST {
            at.skip(kind, NESTING_MAX)?;
            continue;
        }
        let (groups, element) = at.list()?;
        (element == STRUCT).then_some(())?;
        for group in 0..groups {
            let (mut has_ordinal, mut last) = (false, 0);
            while let Some((field, kind)) = at.field(&mut last)? {
                has_ordinal |= field == ORDINAL;
                at.skip(kind, NESTING_MAX)?;
            }
            known |= has_ordinal;
            if !has_ordinal {
                missing.push(MissingOrdinal {
                    end: at.at - 1,
                    group: i64::try_from(group).ok()?,
                });
            }
        }
    }
    (known && !missing.is_empty()).then_some(missing)
}

/// Walks over bytes in Thrift's compact protocol. `None` means that they end or contradict themselves.
struct CompactCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl CompactCursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let (value, len) = varint::read(self.bytes.get(self.at..)?).ok()?;
        self.at += len;
        Some(value)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        (end <= self.bytes.len()).then_some(())?;
        self.at = end;
        Some(())
    }

    /// The next field's number and type; `Some(None)` at the end of the struct. `last` is the field before it.
    fn field(&mut self, last: &mut i64) -> Option<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => varint::unzigzag(self.number()?),
            further => last.checked_add(further.into())?,
        };
        Some(Some((*last, head & 0xf)))
    }

    /// The length of a list or set, and the type of its elements.
    fn list(&mut self) -> Option<(u64, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            0xf => self.number()?,
            short => short.into(),
        };
        Some((len, head & 0xf))
    }

    fn skip(&mut self, kind: u8, nesting: usize) -> Option<()> {
        let nesting = nesting.checked_sub(1)?;
        match kind {
            // The type of a field is the value.
            TRUE | FALSE => {}
            BYTE => self.pass(1)?,
            I16..=I64 => {
                self.number()?;
            }
            DOUBLE => self.pass(8)?,
            UUID => self.pass(16)?,
            BINARY => {
                let len = self.number()?;
                self.pass(len)?;
            }
            LIST | SET => {
                let (len, element) = self.list()?;
                for _ in 0..len {
                    self.skip_element(element, nesting)?;
                }
            }
            MAP => {
                let len = self.number()?;
                let kinds = if len > 0 { self.byte()? } else { 0 };
                for _ in 0..len {
                    self.skip_element(kinds >> 4, nesting)?;
                    self.skip_element(kinds & 0xf, nesting)?;
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, nesting)?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// Every element takes at least a byte, so a long list ends with the bytes.
    fn skip_element(&mut self, kind: u8, nesting: usize) -> Option<()> {
        match kind {
            TRUE | FALSE => self.pass(1),
            kind => self.skip(kind, nesting),
        }
    }
}

/// Removes the ordinal of the first row group from a file, as some writers do, or sets all of them to zero.
#[doc(hidden)]
pub fn with_odd_ordinals(file: &[u8], is_first_absent: bool) -> Option<Vec<u8>> {
    let tail_at = file.len().checked_sub(TAIL_BYTES)?;
    let len = footer_bytes(file.get(tail_at..)?).ok()?;
    let begin = tail_at.checked_sub(len)?;
    let footer = file.get(begin..tail_at)?;
    let mut at = CompactCursor { bytes: footer, at: 0 };
    let (mut made, mut copied, mut last) = (file.get(..begin)?.to_vec(), 0, 0);
    while let Some((field, kind)) = at.field(&mut last)? {
        if field != ROW_GROUPS {
            at.skip(kind, NESTING_MAX)?;
            continue;
        }
        for group in 0..at.list()?.0 {
            let (mut last, mut field_at) = (0, at.at);
            while let Some((field, kind)) = at.field(&mut last)? {
                let value_at = at.at;
                at.skip(kind, NESTING_MAX)?;
                // It is the last field, so no other field refers to it.
                if field == ORDINAL && is_first_absent && group == 0 {
                    made.extend_from_slice(footer.get(copied..field_at)?);
                    copied = at.at;
                } else if field == ORDINAL && !is_first_absent {
                    made.extend_from_slice(footer.get(copied..value_at)?);
                    made.push(0);
                    copied = at.at;
                }
                field_at = at.at;
            }
        }
    }
    made.extend_from_slice(footer.get(copied..)?);
    let footer_len = u32::try_from(made.len() - begin).ok()?;
    made.extend_from_slice(&footer_len.to_le_bytes());
    made.extend_from_slice(file.get(file.len() - 4..)?);
    Some(made)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::file::metadata::PageIndexPolicy;
    use parquet::file::properties::WriterProperties;

    use super::*;

    /// A file with ten rows in each row group.
    fn written(groups: usize) -> Vec<u8> {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let numbers = Arc::new(Int64Array::from_iter_values(0..groups as i64 * 10));
        let rows = RecordBatch::try_new(schema.clone(), vec![numbers]).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(10))
            .build();
        let mut writer = ArrowWriter::try_new(Vec::new(), schema, Some(properties)).unwrap();
        writer.write(&rows).unwrap();
        writer.into_inner().unwrap()
    }

    fn options() -> ArrowReaderOptions {
        ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required)
    }

    fn rows_of(file: &Bytes, metadata: ArrowReaderMetadata) -> usize {
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file.clone(), metadata);
        reader.build().unwrap().map(|rows| rows.unwrap().num_rows()).sum()
    }

    #[test]
    fn a_file_whose_row_groups_have_odd_ordinals_is_read() {
        for groups in [2, 3, 40] {
            let usual = written(groups);
            let first_absent = Bytes::from(with_odd_ordinals(&usual, true).unwrap());
            let all_zero = Bytes::from(with_odd_ordinals(&usual, false).unwrap());
            assert!(ArrowReaderMetadata::load(&first_absent, options()).is_err());
            for file in [Bytes::from(usual), first_absent, all_zero] {
                let metadata = load(&file, options()).unwrap();
                let footer = metadata.metadata();
                assert_eq!(footer.num_row_groups(), groups);
                assert!(footer.offset_index().is_some() && footer.column_index().is_some());
                assert_eq!(rows_of(&file, metadata), groups * 10);
            }
        }
    }

    #[test]
    fn ordinals_are_positions() {
        let file = Bytes::from(with_odd_ordinals(&written(20), true).unwrap());
        let metadata = load(&file, options()).unwrap();
        let ordinals = metadata.metadata().row_groups().iter().map(|group| group.ordinal());
        assert!(ordinals.eq((0..20).map(Some)));
    }

    #[test]
    fn what_is_no_file_keeps_its_error() {
        let error = |file: Vec<u8>| load(&Bytes::from(file), options()).unwrap_err().to_string();
        assert!(!error(Vec::new()).is_empty());
        assert!(error(b"no parquet at all".to_vec()).contains("arquet"));
        let mut torn = with_odd_ordinals(&written(3), true).unwrap();
        let footer = torn.len() - 40;
        torn.drain(..footer);
        assert!(!error(torn).is_empty());
    }

    #[test]
    fn any_footer_is_read_or_refused() {
        const BYTES: usize = 400;
        let usual = with_odd_ordinals(&written(5), true).unwrap();
        let begin = usual.len() - TAIL_BYTES - BYTES;
        for at in 0..BYTES {
            for flip in [1, 0x0f, 0x80, 0xff] {
                let mut file = usual.clone();
                file[begin + at] ^= flip;
                let _ = footer_of(&Bytes::from(file)).map(|footer| missing_ordinals(&footer).is_some());
            }
            let _ = missing_ordinals(&usual[begin + at..usual.len() - TAIL_BYTES]);
        }
    }
}
