//! A page that is in memory, and where in it the next row is.

use super::decoded::{Dictionary, ValidityBuilder};
use crate::file::bits::{DeltaPackedReader, HybridReader};

/// A page that is read, and how far.
pub struct PageCursor {
    pub number: usize,
    /// The next one, of the row group.
    pub row: usize,
    pub body: Vec<u8>,
    /// Which rows have a value; `None` if all have.
    pub levels: Option<HybridReader>,
    pub values: PageValues,
}

/// Where the next value is.
pub enum PageValues {
    Near(DeltaPackedReader),
    /// And how long each is.
    Fixed(usize, usize),
    /// In bits.
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
        /// Of each row, if some may be without a value.
        levels: Option<&'p [u32]>,
        /// Values.
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
    /// The levels of the next rows; returns how many have a value, `None` if all have.
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

/// A text behind its length, and where it ends.
pub fn text_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let len = u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize;
    let end = at + 4 + len;
    Some((bytes.get(at + 4..end)?, end))
}

/// Puts values to their rows.
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
