//! A page in memory with a read position.

use super::decoded::{Dictionary, ValidityBuilder};
use crate::file::bits::{DeltaPackedReader, HybridReader};

/// A decompressed page and its read position.
pub struct PageCursor {
    pub number: usize,
    /// The next row, numbered within the row group.
    pub row: usize,
    pub body: Vec<u8>,
    /// Which rows have a value; `None` if all have.
    pub levels: Option<HybridReader>,
    pub values: PageValues,
}

/// The position of the next value.
pub enum PageValues {
    Near(DeltaPackedReader),
    /// The byte position, and the size of a value.
    Fixed(usize, usize),
    /// The bit position.
    Bits(usize),
    Texts(usize),
    Keys(HybridReader),
}

/// Rows of one page.
pub enum PageRows<'p> {
    Nulls(usize),
    Page {
        page: &'p mut PageCursor,
        dictionary: Option<&'p Dictionary>,
        /// One level per row; `None` if no row is null.
        levels: Option<&'p [u32]>,
        /// The number of values.
        count: usize,
    },
}

impl PageRows<'_> {
    pub fn rows(&self) -> usize {
        match self {
            PageRows::Nulls(rows) => *rows,
            PageRows::Page { levels, count, .. } => levels.map_or(*count, <[u32]>::len),
        }
    }
}

impl PageCursor {
    /// Reads the levels of the next rows. Returns how many have a value, or `None` if all have.
    pub fn levels(&mut self, rows: usize, levels: &mut Vec<u32>) -> Option<Option<usize>> {
        self.row += rows;
        let Some(reader) = &mut self.levels else {
            return Some(None);
        };
        levels.clear();
        reader.read(&self.body, rows, levels)?;
        Some(Some(levels.iter().filter(|level| **level != 0).count()))
    }

    pub fn skip(&mut self, rows: usize, levels: &mut Vec<u32>) -> Option<()> {
        if rows == 0 {
            return Some(());
        }
        let count = self.levels(rows, levels)?.unwrap_or(rows);
        match &mut self.values {
            PageValues::Near(reader) => reader.read(&self.body, count, |_| {}),
            PageValues::Keys(reader) => reader.skip(&self.body, count),
            PageValues::Fixed(at, len) => {
                *at += count.checked_mul(*len)?;
                Some(())
            }
            PageValues::Bits(at) => {
                *at += count;
                Some(())
            }
            PageValues::Texts(at) => {
                for _ in 0..count {
                    *at = text_at(&self.body, *at)?.1;
                }
                Some(())
            }
        }
    }
}

/// Reads a text with a length prefix. Returns it and its end.
pub fn text_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let len = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize;
    let end = at + 4 + len;
    Some((bytes.get(at + 4..end)?, end))
}

/// Distributes dense values to the rows that have one.
pub fn spread<T: Copy + Default>(
    levels: Option<&[u32]>,
    dense: &[T],
    out: &mut Vec<T>,
    presence: &mut ValidityBuilder,
    count: usize,
) {
    let Some(levels) = levels else {
        return presence.append(count, true);
    };
    let mut dense = dense.iter();
    for level in levels {
        let is_present = *level != 0;
        presence.append(1, is_present);
        out.push(if is_present {
            dense.next().copied().unwrap_or_default()
        } else {
            T::default()
        });
    }
}
