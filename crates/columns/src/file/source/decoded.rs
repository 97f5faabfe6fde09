//! Decoded parts of pages: dictionaries, texts, and validity.

use arrow::array::BooleanBufferBuilder;

use super::page::text_at;
use crate::file::column::ValidityBitmap;

/// The dictionary of a column.
pub struct Dictionary {
    /// Texts with length prefixes, or numbers.
    body: Vec<u8>,
    /// Ends of the texts.
    ends: Vec<u32>,
}

impl Dictionary {
    /// Reads `count` texts with length prefixes; `None` if the bytes are malformed.
    pub fn of_texts(body: Vec<u8>, count: usize) -> Option<Dictionary> {
        let (mut ends, mut at) = (Vec::with_capacity(count.min(body.len() / 4)), 0);
        for _ in 0..count {
            (_, at) = text_at(&body, at)?;
            ends.push(u32::try_from(at).ok()?);
        }
        Some(Dictionary { body, ends })
    }

    /// Consecutive numbers.
    pub fn of_numbers(body: Vec<u8>) -> Dictionary {
        Dictionary { body, ends: Vec::new() }
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn text(&self, key: usize) -> &[u8] {
        let before = key
            .checked_sub(1)
            .map_or(Some(0), |before| self.ends.get(before).copied());
        let (Some(before), Some(end)) = (before, self.ends.get(key)) else {
            return &[];
        };
        self.body.get(before as usize + 4..*end as usize).unwrap_or_default()
    }

    pub fn number(&self, key: usize, len: usize) -> Option<&[u8]> {
        self.body.get(key.checked_mul(len)?..)?.get(..len)
    }
}

/// Texts decoded from pages.
#[derive(Default)]
pub struct PageTexts {
    bytes: Vec<u8>,
    /// The range of each text; `NOWHERE` for null.
    places: Vec<(usize, usize)>,
}

const NOWHERE: (usize, usize) = (usize::MAX, 0);

impl PageTexts {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn push(&mut self, text: Option<&[u8]>) {
        self.places.push(match text {
            Some(text) => {
                let begin = self.bytes.len();
                self.bytes.extend_from_slice(text);
                (begin, self.bytes.len())
            }
            None => NOWHERE,
        });
    }

    pub fn push_nulls(&mut self, rows: usize) {
        self.places.resize(self.places.len() + rows, NOWHERE);
    }

    pub fn text(&self, at: usize) -> Option<&[u8]> {
        let (begin, end) = *self.places.get(at)?;
        self.bytes.get(begin..end)
    }

    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.places.iter().map(|(begin, end)| self.bytes.get(*begin..*end))
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
    }
}

/// Builds the validity bitmap of rows.
#[derive(Default)]
pub struct ValidityBuilder {
    rows: usize,
    /// Set once a row is null.
    bits: Option<BooleanBufferBuilder>,
}

impl ValidityBuilder {
    pub fn append(&mut self, rows: usize, is_present: bool) {
        if !is_present && rows > 0 && self.bits.is_none() {
            let mut bits = BooleanBufferBuilder::new(self.rows + rows);
            bits.append_n(self.rows, true);
            self.bits = Some(bits);
        }
        self.rows += rows;
        if let Some(bits) = &mut self.bits {
            bits.append_n(rows, is_present);
        }
    }

    pub fn finish(self) -> ValidityBitmap {
        self.bits.map(|mut bits| bits.finish())
    }
}
