//! Writes one column of a row group into pages, in the order of the file.

use std::cmp::Ordering;

use arrow::buffer::BooleanBuffer;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parquet::basic::Encoding;
use parquet::errors::Result;

use super::bits::{differences, hybrid, run, width_of};
use super::bounds::PageBounds;
use super::pages::{ColumnChunkWriter, put_levels};
use super::{PAGE_BYTES, PAGE_ROWS, PageBreak};
use crate::rows::text::NULL;

/// Texts are written plain if their dictionary would exceed this: readers of a page have all of it in memory. The names
/// of a hundred thousand tags fit.
const DICTIONARY_BYTES_MAX: usize = 8 << 20;
/// The size from which a page may end early at a page break.
const BROKEN_BYTES_MIN: usize = if cfg!(test) { 256 } else { 128 << 10 };
/// The most entries of a dictionary of numbers.
const DICTIONARY_NUMBERS_MAX: usize = 4096;
/// The size of the direct-mapped cache of recent numbers.
const RECENT: usize = 256;

/// Which rows have a value; `None` if all have.
pub type ValidityBitmap = Option<BooleanBuffer>;

/// A number type of Parquet.
pub(super) trait ParquetNumber: Copy + Default + PartialOrd {
    const BYTES: usize;
    fn put(self, out: &mut Vec<u8>);
    /// Decodes little-endian bytes.
    fn of_bytes(bytes: &[u8]) -> Self;
    /// Converts a delta-encoded value; only 64-bit numbers are delta-encoded.
    fn of_long(value: i64) -> Self;
    fn bits(self) -> u64;
    /// `None` if the values have no bounds.
    fn bounds(values: &[Self]) -> Option<PageBounds>;
}

/// The least and the greatest value.
fn ends<T: Copy + PartialOrd>(values: &[T]) -> Option<(T, T)> {
    let first = *values.first()?;
    Some(values.iter().fold((first, first), |(least, greatest), value| {
        (
            if *value < least { *value } else { least },
            if *value > greatest { *value } else { greatest },
        )
    }))
}

impl ParquetNumber for i64 {
    const BYTES: usize = size_of::<i64>();

    fn of_bytes(bytes: &[u8]) -> i64 {
        bytes
            .first_chunk()
            .map_or_else(i64::default, |bytes| i64::from_le_bytes(*bytes))
    }

    fn of_long(value: i64) -> i64 {
        value
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn bits(self) -> u64 {
        self as u64
    }

    fn bounds(values: &[i64]) -> Option<PageBounds> {
        ends(values).map(|(least, greatest)| PageBounds::Longs(least, greatest))
    }
}

impl ParquetNumber for i32 {
    const BYTES: usize = size_of::<i32>();

    fn of_bytes(bytes: &[u8]) -> i32 {
        bytes
            .first_chunk()
            .map_or_else(i32::default, |bytes| i32::from_le_bytes(*bytes))
    }

    fn of_long(value: i64) -> i32 {
        value as i32
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn bits(self) -> u64 {
        self as u64
    }

    fn bounds(values: &[i32]) -> Option<PageBounds> {
        ends(values).map(|(least, greatest)| PageBounds::Integers(least, greatest))
    }
}

impl ParquetNumber for f64 {
    const BYTES: usize = size_of::<f64>();

    fn of_bytes(bytes: &[u8]) -> f64 {
        bytes
            .first_chunk()
            .map_or_else(f64::default, |bytes| f64::from_le_bytes(*bytes))
    }

    fn of_long(value: i64) -> f64 {
        value as f64
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn bits(self) -> u64 {
        self.to_bits()
    }

    /// No bounds if there is a NaN: a reader that sorts NaN above all numbers would skip rows that match.
    fn bounds(values: &[f64]) -> Option<PageBounds> {
        if values.iter().any(|value| value.is_nan()) {
            return None;
        }
        // The zeros compare as equal, and readers may look for either.
        let signed = |end: f64, zero: f64| if end == 0.0 { zero } else { end };
        ends(values).map(|(least, greatest)| PageBounds::Doubles(signed(least, -0.0), signed(greatest, 0.0)))
    }
}

/// A buffer for the values of one page in file order.
struct OrderedValues<T> {
    values: Vec<T>,
    levels: Vec<u32>,
}

impl<T: Copy> OrderedValues<T> {
    fn new() -> OrderedValues<T> {
        OrderedValues {
            values: Vec::with_capacity(PAGE_ROWS),
            levels: Vec::new(),
        }
    }

    /// Gathers the values of the rows that have one, and definition levels if rows may be null.
    fn gather(&mut self, order: &[u32], values: &[T], present: &ValidityBitmap) {
        self.values.clear();
        self.levels.clear();
        match present {
            None => self.values.extend(order.iter().map(|row| values[*row as usize])),
            Some(present) => {
                for row in order {
                    let is_present = present.value(*row as usize);
                    self.levels.push(u32::from(is_present));
                    if is_present {
                        self.values.push(values[*row as usize]);
                    }
                }
            }
        }
    }

    fn nulls(&self, rows: usize) -> usize {
        rows - self.values.len()
    }
}

/// Begins a page with its definition levels.
fn begin(pages: &mut ColumnChunkWriter<'_>, rows: usize, levels: &[u32]) {
    let is_nullable = pages.is_nullable();
    let body = pages.body();
    body.clear();
    if is_nullable {
        put_levels(body, |out| match levels {
            [] => run(1, rows, 1, out),
            levels => hybrid(levels, 1, out),
        });
    }
}

/// Writes times and positions delta-encoded: each is close to the previous one.
pub(super) fn near(
    pages: &mut ColumnChunkWriter<'_>,
    order: &[u32],
    values: &[i64],
    present: &ValidityBitmap,
) -> Result<()> {
    let mut gathered = OrderedValues::new();
    for rows in order.chunks(PAGE_ROWS) {
        gathered.gather(rows, values, present);
        begin(pages, rows.len(), &gathered.levels);
        differences(&gathered.values, pages.body());
        let bounds = i64::bounds(&gathered.values);
        pages.page(
            rows.len(),
            gathered.nulls(rows.len()),
            Encoding::DELTA_BINARY_PACKED,
            bounds,
        )?;
    }
    Ok(())
}

/// Writes numbers with a dictionary if few are distinct, else plain.
pub(super) fn numbers<T: ParquetNumber>(
    pages: &mut ColumnChunkWriter<'_>,
    order: &[u32],
    values: &[T],
    present: &ValidityBitmap,
) -> Result<()> {
    let mut gathered = OrderedValues::new();
    let Some((numbers, ids)) = few(order, values, present) else {
        for rows in order.chunks(PAGE_ROWS) {
            gathered.gather(rows, values, present);
            begin(pages, rows.len(), &gathered.levels);
            gathered.values.iter().for_each(|value| value.put(pages.body()));
            let bounds = T::bounds(&gathered.values);
            pages.page(rows.len(), gathered.nulls(rows.len()), Encoding::PLAIN, bounds)?;
        }
        return Ok(());
    };
    pages.body().clear();
    numbers.iter().for_each(|value| value.put(pages.body()));
    pages.dictionary(numbers.len())?;
    let (width, mut at) = (width_of(numbers.len()), 0);
    for rows in order.chunks(PAGE_ROWS) {
        gathered.gather(rows, values, present);
        begin(pages, rows.len(), &gathered.levels);
        let ids = ids.get(at..at + gathered.values.len()).unwrap_or_default();
        at += gathered.values.len();
        put_ids(pages.body(), ids, width);
        let bounds = T::bounds(&gathered.values);
        pages.page(rows.len(), gathered.nulls(rows.len()), Encoding::RLE_DICTIONARY, bounds)?;
    }
    Ok(())
}

fn put_ids(out: &mut Vec<u8>, ids: &[u32], width: u32) {
    out.push(width as u8);
    hybrid(ids, width, out);
}

/// The distinct numbers of a column, and the dictionary index of each non-null row; `None` if there are too many.
fn few<T: ParquetNumber>(order: &[u32], values: &[T], present: &ValidityBitmap) -> Option<(Vec<T>, Vec<u32>)> {
    let limit = DICTIONARY_NUMBERS_MAX.min(order.len() / 2);
    let (mut numbers, mut ids): (Vec<T>, Vec<u32>) = (Vec::new(), Vec::with_capacity(order.len()));
    let mut index: HashTable<u32> = HashTable::new();
    let hash = |bits: u64| (bits ^ bits >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // A cache of the latest numbers by hash: it hits for most rows of columns with few distinct numbers.
    let mut recent: Vec<Option<(u64, u32)>> = vec![None; RECENT];
    for row in order {
        if present.as_ref().is_some_and(|present| !present.value(*row as usize)) {
            continue;
        }
        let value = values[*row as usize];
        let bits = value.bits();
        let place = (hash(bits) >> 32) as usize % RECENT;
        if let Some((known, id)) = recent[place]
            && known == bits
        {
            ids.push(id);
            continue;
        }
        let same = |id: &u32| numbers.get(*id as usize).is_some_and(|number| number.bits() == bits);
        let hash_of = |id: &u32| hash(numbers.get(*id as usize).map_or(0, |number| number.bits()));
        let id = match index.entry(hash(bits), same, hash_of) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(_) if numbers.len() >= limit => return None,
            Entry::Vacant(new) => {
                let id = numbers.len() as u32;
                new.insert(id);
                numbers.push(value);
                id
            }
        };
        recent[place] = Some((bits, id));
        ids.push(id);
    }
    Some((numbers, ids))
}

pub(super) fn booleans(
    pages: &mut ColumnChunkWriter<'_>,
    order: &[u32],
    values: &[bool],
    present: &ValidityBitmap,
) -> Result<()> {
    let mut gathered = OrderedValues::new();
    for rows in order.chunks(PAGE_ROWS) {
        gathered.gather(rows, values, present);
        begin(pages, rows.len(), &gathered.levels);
        for eight in gathered.values.chunks(8) {
            let bits = eight.iter().rev().fold(0, |bits, value| bits << 1 | u8::from(*value));
            pages.body().push(bits);
        }
        let bounds = ends(&gathered.values).map(|(least, greatest)| PageBounds::Booleans(least, greatest));
        pages.page(rows.len(), gathered.nulls(rows.len()), Encoding::PLAIN, bounds)?;
    }
    Ok(())
}

/// Writes a dictionary column: distinct texts, and the index of each row.
pub(super) fn dictionary(
    pages: &mut ColumnChunkWriter<'_>,
    order: &[u32],
    breaks: &[PageBreak],
    texts: &[&[u8]],
    ids: &[u32],
) -> Result<()> {
    // Brings the indices into file order once, since each access is a random one.
    let mut ids: Vec<u32> = order.iter().map(|row| ids[*row as usize]).collect();
    // Other row groups of the file may use texts that these rows do not.
    let mut is_used = vec![false; texts.len()];
    let mut present = 0;
    for id in ids.iter().filter(|id| **id != NULL) {
        is_used[*id as usize] = true;
        present += 1;
    }
    let used = (0..texts.len() as u32).filter(|id| is_used[*id as usize]);
    let mut used: Vec<(TextPrefix, u32)> = used.map(|id| (TextPrefix::default(), id)).collect();
    let bytes = used.iter().map(|(_, id)| texts[*id as usize].len()).sum();
    if is_poor(used.len(), bytes, present) {
        let rows: Vec<Option<&[u8]>> = ids.iter().map(|id| texts.get(*id as usize).copied()).collect();
        return put_texts(pages, &rows, 0, breaks);
    }
    // Sorts the texts, so that the bounds of rows follow from those of their indices.
    let skipped = shared(used.iter().map(|(_, id)| texts[*id as usize]));
    for (of_text, id) in &mut used {
        *of_text = TextPrefix::of(&texts[*id as usize][skipped..]);
    }
    used.sort_unstable_by(|a, b| a.0.compare(b.0, || texts[a.1 as usize].cmp(texts[b.1 as usize])));
    let mut ranks = vec![NULL; texts.len()];
    let mut ranked = Vec::with_capacity(used.len());
    for (rank, (_, id)) in (0..).zip(&used) {
        ranks[*id as usize] = rank;
        ranked.push(texts[*id as usize]);
    }
    for id in &mut ids {
        *id = ranks.get(*id as usize).copied().unwrap_or(NULL);
    }
    put_ranks(pages, &ids, &ranked)
}

/// The length of the common prefix: names of tags and nodes, and paths, often share one.
pub(super) fn shared<'t>(mut texts: impl Iterator<Item = &'t [u8]>) -> usize {
    let Some(first) = texts.next() else { return 0 };
    let still_alike = |known: usize, text: &[u8]| match text.starts_with(&first[..known]) {
        true => known,
        false => first.iter().zip(text).take_while(|(a, b)| a == b).count(),
    };
    texts.fold(first.len(), still_alike)
}

/// The first bytes of a text as a number, with its length if they are all of it. After the common prefix is removed, it
/// decides most comparisons without access to the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TextPrefix(u128);

impl TextPrefix {
    const BYTES: usize = size_of::<u128>() - 1;
    /// The length byte of a longer text, greater than any length.
    const LONGER: u8 = u8::MAX;

    pub fn of(text: &[u8]) -> TextPrefix {
        if let Some(first) = text.first_chunk() {
            return TextPrefix(u128::from_be_bytes(*first) | u128::from(TextPrefix::LONGER));
        }
        let mut head = [0; TextPrefix::BYTES + 1];
        head[..text.len()].copy_from_slice(text);
        head[TextPrefix::BYTES] = text.len() as u8;
        TextPrefix(u128::from_be_bytes(head))
    }

    /// Whether equal prefixes mean equal texts.
    pub fn is_whole(self) -> bool {
        self.0 as u8 != TextPrefix::LONGER
    }

    /// Compares as the texts do; `texts` compares the full texts if the prefixes do not decide.
    pub fn compare(self, other: TextPrefix, texts: impl FnOnce() -> Ordering) -> Ordering {
        let by_text = || if self.is_whole() { Ordering::Equal } else { texts() };
        self.cmp(&other).then_with(by_text)
    }
}

/// Whether texts are better written plain, given the distinct texts, their total size and the number of rows.
pub(super) fn is_poor(texts: usize, bytes: usize, rows: usize) -> bool {
    bytes > DICTIONARY_BYTES_MAX || (texts > rows / 2 && rows > PAGE_ROWS / 16)
}

/// Writes a dictionary of sorted texts, all of them used, and the rank of each row's text.
pub(super) fn put_ranks(pages: &mut ColumnChunkWriter<'_>, ranks: &[u32], texts: &[&[u8]]) -> Result<()> {
    if texts.is_empty() {
        return pages.nulls(ranks.len());
    }
    pages.body().clear();
    texts.iter().for_each(|text| put_text(pages.body(), text));
    pages.dictionary(texts.len())?;
    let width = width_of(texts.len());
    let (mut levels, mut gathered): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
    for rows in ranks.chunks(PAGE_ROWS) {
        levels.clear();
        let present = match rows.contains(&NULL) {
            false => rows,
            true => {
                levels.extend(rows.iter().map(|rank| u32::from(*rank != NULL)));
                gathered.clear();
                gathered.extend(rows.iter().filter(|rank| **rank != NULL));
                &gathered
            }
        };
        begin(pages, rows.len(), &levels);
        put_ids(pages.body(), present, width);
        let text = |rank: u32| texts.get(rank as usize).copied().unwrap_or_default();
        let is_text = pages.is_text();
        let bounds = ends(present).map(|(least, greatest)| PageBounds::of_texts(text(least), text(greatest), is_text));
        let nulls = rows.len() - present.len();
        pages.page(rows.len(), nulls, Encoding::RLE_DICTIONARY, bounds)?;
    }
    Ok(())
}

/// Writes texts without a dictionary.
pub(super) fn plain(
    pages: &mut ColumnChunkWriter<'_>,
    order: &[u32],
    breaks: &[PageBreak],
    rows: &[Option<&[u8]>],
) -> Result<()> {
    let ordered: Vec<Option<&[u8]>> = order.iter().map(|row| rows[*row as usize]).collect();
    put_texts(pages, &ordered, 0, breaks)
}

/// Writes the texts of rows from `begin_row` on. `breaks` are rows at which a page should begin, because a merge copies
/// whole pages.
pub(super) fn put_texts(
    pages: &mut ColumnChunkWriter<'_>,
    mut rows: &[Option<&[u8]>],
    mut begin_row: usize,
    breaks: &[PageBreak],
) -> Result<()> {
    let mut levels = Vec::with_capacity(PAGE_ROWS);
    let passed = breaks.partition_point(|at| at.row < begin_row);
    let mut breaks = breaks.iter().copied().skip(passed).peekable();
    while !rows.is_empty() {
        let (mut count, mut bytes) = (0, 0);
        while let Some(row) = rows.get(count)
            && count < PAGE_ROWS
            && bytes < PAGE_BYTES
        {
            while breaks.next_if(|at| at.row < begin_row + count).is_some() {}
            if let Some(at) = breaks.peek().filter(|at| at.row == begin_row + count)
                && (bytes >= BROKEN_BYTES_MIN || (at.is_due && count > 0))
            {
                break;
            }
            bytes += row.map_or(0, |text| text.len() + 4);
            count += 1;
        }
        begin_row += count;
        let (page, rest) = rows.split_at(count);
        rows = rest;
        levels.clear();
        levels.extend(page.iter().map(|row| u32::from(row.is_some())));
        let present = levels.iter().filter(|level| **level == 1).count();
        begin(pages, count, if present == count { &[] } else { &levels });
        let (mut least, mut greatest) = (TextExtreme::default(), TextExtreme::default());
        for text in page.iter().flatten() {
            put_text(pages.body(), text);
            let head = TextPrefix::of(text);
            if least.text.is_none_or(|known| (head, *text) < (least.head, known)) {
                least = TextExtreme { head, text: Some(text) };
            }
            if greatest.text.is_none_or(|known| (head, *text) > (greatest.head, known)) {
                greatest = TextExtreme { head, text: Some(text) };
            }
        }
        let bounds = least.text.zip(greatest.text);
        let is_text = pages.is_text();
        let bounds = bounds.map(|(least, greatest)| PageBounds::of_texts(least, greatest, is_text));
        pages.page(count, count - present, Encoding::PLAIN, bounds)?;
    }
    Ok(())
}

/// The least or the greatest text so far.
#[derive(Default)]
struct TextExtreme<'t> {
    head: TextPrefix,
    text: Option<&'t [u8]>,
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_compare_as_their_texts(texts in proptest::collection::vec("[ab\\x00]{0,18}", 2..20)) {
            let skipped = shared(texts.iter().map(String::as_bytes));
            prop_assert!(texts.iter().all(|text| text.as_bytes().starts_with(&texts[0].as_bytes()[..skipped])));
            for (a, b) in texts.iter().flat_map(|a| texts.iter().map(move |b| (a.as_bytes(), b.as_bytes()))) {
                let [head, other] = [a, b].map(|text| TextPrefix::of(&text[skipped..]));
                prop_assert_eq!(head.compare(other, || a.cmp(b)), a.cmp(b));
                prop_assert_eq!(head == other && head.is_whole(), a == b && a.len() - skipped <= TextPrefix::BYTES);
            }
        }
    }

    #[test]
    fn what_all_texts_begin_with_is_found() {
        let of = |texts: &[&str]| shared(texts.iter().map(|text| text.as_bytes()));
        assert_eq!((of(&[]), of(&["ab"]), of(&["", "ab"])), (0, 2, 0));
        assert_eq!(of(&["line.one", "line.two", "line"]), 4);
    }
}
