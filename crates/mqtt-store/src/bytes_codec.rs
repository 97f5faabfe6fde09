//! Fields in records: numbers as varints, texts and bytes behind their length. What is read is checked; damage is `None`.

use thalweg_kit::varint;

/// Appends bytes with their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A position in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordFields<'a> {
    whole: &'a [u8],
    rest: &'a [u8],
}

impl<'a> RecordFields<'a> {
    pub fn new(whole: &'a [u8]) -> RecordFields<'a> {
        RecordFields { whole, rest: whole }
    }

    pub fn position(&self) -> usize {
        self.whole.len() - self.rest.len()
    }

    pub fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// A byte that is 0 or 1.
    pub fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub fn number(&mut self) -> Option<u64> {
        let (value, rest) = varint::take(self.rest)?;
        self.rest = rest;
        Some(value)
    }

    /// A number that fits its type.
    pub fn small<T: TryFrom<u64>>(&mut self) -> Option<T> {
        T::try_from(self.number()?).ok()
    }

    /// Eight bytes, for times.
    pub fn time(&mut self) -> Option<i64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i64::from_be_bytes(*bytes))
    }

    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len: usize = self.small()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    pub fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
}
