//! Verifies the page index: readers skip pages by it, and no checksum covers it.
//!
//! Every page is read separately. The index must have its exact number of rows and nulls and its exact bounds. Only the
//! bounds of truncated long texts and bytes may be wider.

use std::fs::File;
use std::sync::Arc;

use parking_lot::Mutex;
use parquet::basic::BoundaryOrder;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::PageLocation;
use parquet::file::serialized_reader::SerializedPageReader;

type IndexFindings = Vec<(&'static str, String)>;

/// Texts up to this length are not truncated.
const TEXT_BYTES_MAX: usize = 64;
/// The longest character.
const CHARACTER_BYTES_MAX: usize = 4;

/// Checks every chunk that has an index.
pub(super) fn look_at(file: &File, footer: &ParquetMetaData, found: &mut IndexFindings) {
    for (number, group) in footer.row_groups().iter().enumerate() {
        for (at, chunk) in group.columns().iter().enumerate() {
            let locations = footer.offset_index().and_then(|index| index.get(number)?.get(at));
            let Some(locations) = locations else { continue };
            let bounds = footer.column_index().and_then(|index| index.get(number)?.get(at));
            let problem = problem(file, group, at, locations.page_locations(), bounds);
            let problem = problem.unwrap_or_else(|error| Some(format!("its pages cannot be read: {error}")));
            if let Some(problem) = problem {
                let name = chunk.column_path().string();
                found.push(("index", format!("{name} of row group {number}: {problem}")));
            }
        }
    }
}

/// The first problem with the index of a chunk.
fn problem(
    file: &File,
    group: &RowGroupMetaData,
    at: usize,
    locations: &[PageLocation],
    bounds: Option<&ColumnIndexMetaData>,
) -> Result<Option<String>> {
    let chunk = group.column(at);
    let bounds = bounds.unwrap_or(&ColumnIndexMetaData::NONE);
    if !matches!(bounds, ColumnIndexMetaData::NONE) {
        if bounds.num_pages() != locations.len() as u64 {
            let (of_bounds, pages) = (bounds.num_pages(), locations.len());
            return Ok(Some(format!(
                "the index has the values of {of_bounds} pages, and there are {pages}"
            )));
        }
        if bounds.null_counts().is_none() {
            return Ok(Some("the index does not count rows without a value".to_owned()));
        }
    }
    let Some(rows) = rows_of(locations, group.num_rows()) else {
        return Ok(Some("the index gives a page no rows".to_owned()));
    };
    let total = usize::try_from(group.num_rows()).unwrap_or_default();
    let counts = Arc::new(Mutex::new(PageCounts::default()));
    let pages = CountingPageReader {
        pages: SerializedPageReader::new(Arc::new(file.try_clone()?), chunk, total, None)?,
        counts: counts.clone(),
    };
    let said = PageIndexClaims { rows, counts, bounds };
    macro_rules! numbers {
        ($reader:expr, $kind:ident) => {
            said.check($reader, |page, values| match bounds {
                ColumnIndexMetaData::$kind(index) => are_ends(values, index.min_value(page), index.max_value(page)),
                _ => matches!(bounds, ColumnIndexMetaData::NONE),
            })
        };
    }
    let problem = match get_column_reader(chunk.column_descr_ptr(), Box::new(pages)) {
        ColumnReader::BoolColumnReader(reader) => numbers!(reader, BOOLEAN),
        ColumnReader::Int32ColumnReader(reader) => numbers!(reader, INT32),
        ColumnReader::Int64ColumnReader(reader) => numbers!(reader, INT64),
        ColumnReader::FloatColumnReader(reader) => numbers!(reader, FLOAT),
        ColumnReader::DoubleColumnReader(reader) => numbers!(reader, DOUBLE),
        ColumnReader::ByteArrayColumnReader(reader) => said.check(reader, |page, values| match bounds {
            ColumnIndexMetaData::BYTE_ARRAY(index) => are_around(values, index.min_value(page), index.max_value(page)),
            _ => matches!(bounds, ColumnIndexMetaData::NONE),
        }),
        // No table has columns of these types.
        ColumnReader::Int96ColumnReader(reader) => said.check(reader, |_, _| true),
        ColumnReader::FixedLenByteArrayColumnReader(reader) => said.check(reader, |_, _| true),
    };
    Ok(problem?
        .or_else(|| (!is_in_order(bounds)).then(|| "its pages are not in the order that the index says".to_owned())))
}

/// The number of rows of each page, according to the index.
fn rows_of(locations: &[PageLocation], all: i64) -> Option<Vec<usize>> {
    let begins = locations.iter().map(|page| page.first_row_index);
    let ends = begins.clone().skip(1).chain([all]);
    let rows = begins
        .zip(ends)
        .map(|(begin, end)| usize::try_from(end.checked_sub(begin)?).ok());
    rows.map(|rows| rows.filter(|rows| *rows > 0)).collect()
}

/// The index entries for the pages of a chunk.
struct PageIndexClaims<'f> {
    rows: Vec<usize>,
    counts: Arc<Mutex<PageCounts>>,
    bounds: &'f ColumnIndexMetaData,
}

impl PageIndexClaims<'_> {
    /// `are_right` checks the bounds of a page against its values.
    fn check<T: DataType>(
        &self,
        mut reader: ColumnReaderImpl<T>,
        are_right: impl Fn(usize, &[T::T]) -> bool,
    ) -> Result<Option<String>, ParquetError> {
        let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (page, rows) in self.rows.iter().enumerate() {
            definitions.clear();
            repetitions.clear();
            values.clear();
            let read = reader.read_records(*rows, Some(&mut definitions), Some(&mut repetitions), &mut values)?;
            let (records, present, levels) = read;
            let counts = *self.counts.lock();
            if records != *rows || counts.pages != page + 1 || counts.of_last != levels {
                return Ok(Some(format!(
                    "page {page} does not have the {rows} rows that the index says"
                )));
            }
            if matches!(self.bounds, ColumnIndexMetaData::NONE) {
                continue;
            }
            let nulls = levels - present;
            let said = self.bounds.null_count(page);
            if said.is_some_and(|said| usize::try_from(said) != Ok(nulls)) {
                let said = said.unwrap_or_default();
                return Ok(Some(format!(
                    "page {page} has {nulls} rows without a value, the index says {said}"
                )));
            }
            if self.bounds.is_null_page(page) != (present == 0) || !are_right(page, &values) {
                return Ok(Some(format!(
                    "the values of page {page} are not those that the index says"
                )));
            }
        }
        Ok(None)
    }
}

/// Whether these are the least and the greatest value. NaN fails the check.
fn are_ends<T: PartialOrd>(values: &[T], least: Option<&T>, greatest: Option<&T>) -> bool {
    let (Some(least), Some(greatest)) = (least, greatest) else {
        return values.is_empty();
    };
    let are_within = values.iter().all(|value| least <= value && value <= greatest);
    are_within && values.contains(least) && values.contains(greatest)
}

/// Whether these are the bounds of the texts or bytes, exactly or after truncation. How far bounds are truncated is the
/// writer's choice: at a character or at any byte, and earlier versions cut bytes as if they were texts.
fn are_around(values: &[ByteArray], least: Option<&[u8]>, greatest: Option<&[u8]>) -> bool {
    let texts = || values.iter().map(ByteArray::data);
    let (Some(first), Some(last)) = (texts().min(), texts().max()) else {
        return least.is_none() && greatest.is_none();
    };
    let is_least = least.is_some_and(|least| {
        let is_cut = first.len() > TEXT_BYTES_MAX && first.starts_with(least);
        least == first || is_cut
    });
    let is_greatest = greatest.is_some_and(|greatest| {
        let is_cut = last.len() > TEXT_BYTES_MAX && greatest > last && is_raised_prefix(greatest, last);
        greatest == last || is_cut
    });
    is_least && is_greatest
}

/// Whether a bound is the beginning of a text, with its last character or byte raised.
fn is_raised_prefix(bound: &[u8], text: &[u8]) -> bool {
    let shared = bound.iter().zip(text).take_while(|(a, b)| a == b).count();
    bound.len().saturating_sub(shared) <= CHARACTER_BYTES_MAX
}

fn is_in_order(bounds: &ColumnIndexMetaData) -> bool {
    macro_rules! both {
        ($index:expr) => {{
            let order = bounds.get_boundary_order().unwrap_or(BoundaryOrder::UNORDERED);
            follow(order, $index.min_values_iter()) && follow(order, $index.max_values_iter())
        }};
    }
    match bounds {
        ColumnIndexMetaData::BOOLEAN(index) => both!(index),
        ColumnIndexMetaData::INT32(index) => both!(index),
        ColumnIndexMetaData::INT64(index) => both!(index),
        ColumnIndexMetaData::FLOAT(index) => both!(index),
        ColumnIndexMetaData::DOUBLE(index) => both!(index),
        ColumnIndexMetaData::BYTE_ARRAY(index) => both!(index),
        _ => true,
    }
}

/// Whether the non-null bounds are in the claimed order.
fn follow<'a, T: PartialOrd + ?Sized + 'a>(order: BoundaryOrder, bounds: impl Iterator<Item = Option<&'a T>>) -> bool {
    let bounds = bounds.flatten();
    match order {
        BoundaryOrder::ASCENDING => bounds.is_sorted(),
        BoundaryOrder::DESCENDING => bounds.is_sorted_by(|a, b| a >= b),
        BoundaryOrder::UNORDERED => true,
    }
}

/// The pages read so far.
#[derive(Clone, Copy, Default)]
struct PageCounts {
    pages: usize,
    /// The number of values of the last page, including nulls.
    of_last: usize,
}

/// Counts the pages of a chunk. Each page begins with a new row.
struct CountingPageReader {
    pages: SerializedPageReader<File>,
    counts: Arc<Mutex<PageCounts>>,
}

impl Iterator for CountingPageReader {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CountingPageReader {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = page.as_ref().filter(|page| page.is_data_page()) {
            let mut counts = self.counts.lock();
            counts.pages += 1;
            counts.of_last = page.num_values() as usize;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(texts: &[&str], least: &str, greatest: &str) -> bool {
        let texts: Vec<ByteArray> = texts.iter().map(|text| ByteArray::from(*text)).collect();
        are_around(&texts, Some(least.as_bytes()), Some(greatest.as_bytes()))
    }

    #[test]
    fn bounds_are_values_unless_a_long_text_was_cut() {
        assert!(are_ends(&[3, 1, 2], Some(&1), Some(&3)));
        assert!(!are_ends(&[3, 1, 2], Some(&0), Some(&3)), "no value is the least");
        assert!(!are_ends(&[3, 1, 2], Some(&1), Some(&2)));
        assert!(are_ends(&[0.0, -1.0], Some(&-1.0), Some(&-0.0)), "zeros are equal");
        assert!(!are_ends(&[f64::NAN], Some(&0.0), Some(&1.0)));
        assert!(are_ends::<i64>(&[], None, None) && !are_ends(&[1], None, None));

        assert!(around(&["b", "a"], "a", "b"));
        assert!(!around(&["b", "a"], "A", "b") && !around(&["b", "a"], "a", "c"));
        let long = "x".repeat(80);
        let (cut, above) = ("x".repeat(64), "x".repeat(63) + "y");
        assert!(around(&[&long], &cut, &above));
        assert!(!around(&[&long], &cut, &cut), "it is not above");
        assert!(!around(&[&long], &("x".repeat(62) + "w"), &above), "it is no prefix");
        assert!(!around(&[&long], &cut, "y01234"), "more than a character differs");
        assert!(!around(&["xxx"], "xx", "xxx"), "a short text is not cut");
    }

    #[test]
    fn bytes_may_be_cut_anywhere() {
        // A sketch begins with its mapping, whose fourth byte is no UTF-8.
        let sketch = [&[0x0a, 0x09, 0x09, 0xfd, 0x4a][..], &[0xff; 75]].concat();
        let values = [ByteArray::from(sketch.clone())];
        let around = |least: &[u8], greatest: &[u8]| are_around(&values, Some(least), Some(greatest));
        assert!(around(&sketch[..3], &[0x0a, 0x09, 0x0a]), "cut as a text");
        assert!(around(&sketch[..64], &[0x0a, 0x09, 0x09, 0xfd, 0x4b]), "cut as bytes");
        assert!(around(&[], &sketch), "a bound may be empty or whole");
        assert!(!around(&sketch[..3], &[0x0a, 0x09, 0x09, 0xfd]), "it is not above");
        assert!(!around(&[0x0a, 0x09, 0x08], &[0x0a, 0x09, 0x0a]), "it is no prefix");
    }

    #[test]
    fn an_order_that_is_said_is_one_of_the_bounds_that_there_are() {
        let ascending = [Some(&1), None, Some(&1), Some(&2)];
        let is = |order| follow(order, ascending.into_iter());
        assert!(is(BoundaryOrder::ASCENDING) && is(BoundaryOrder::UNORDERED) && !is(BoundaryOrder::DESCENDING));
    }

    #[test]
    fn pages_end_where_the_next_one_begins() {
        let pages = |firsts: &[i64]| -> Vec<PageLocation> {
            let page = |first: &i64| PageLocation {
                offset: 4,
                compressed_page_size: 1,
                first_row_index: *first,
            };
            firsts.iter().map(page).collect()
        };
        assert_eq!(rows_of(&pages(&[0, 10, 15]), 20), Some(vec![10, 5, 5]));
        assert_eq!(rows_of(&pages(&[0, 10, 10]), 20), None);
        assert_eq!(rows_of(&pages(&[0, 30]), 20), None);
    }
}
