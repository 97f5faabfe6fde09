//! A protobuf wire format reader that works in place, without copies or allocations, and a writer of small messages.
//!
//! Some input that a general decoder accepts is malformed here, so that nothing is lost silently. No sender writes it:
//! groups, a known field of another type, and a message or oneof that appears twice where once is allowed. As usual,
//! the last value of a scalar field counts and unknown fields are skipped.

mod writer;

use std::fmt;

pub use writer::WireWriter;

use crate::varint::{self, VarintError};

/// The key of a field: its number and its wire type.
pub type FieldKey = u32;

/// The key that stands for the end of a message.
pub const END: FieldKey = 0;

pub const fn number(field: u32) -> FieldKey {
    field << 3
}

pub const fn fixed64(field: u32) -> FieldKey {
    field << 3 | 1
}

/// A string, bytes, a message, or packed numbers.
pub const fn bytes(field: u32) -> FieldKey {
    field << 3 | 2
}

pub const fn fixed32(field: u32) -> FieldKey {
    field << 3 | 5
}

/// The field numbers of a message as a bit set, whatever their types.
pub const fn fields(keys: &[FieldKey]) -> u64 {
    let (mut all, mut at) = (0, 0);
    while at < keys.len() {
        all |= 1 << (keys[at] >> 3);
        at += 1;
    }
    all
}

/// A wire format error and its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireError {
    /// Byte offset from the beginning of the request.
    pub offset: usize,
    pub what: &'static str,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}

impl std::error::Error for WireError {}

pub type WireResult<T> = std::result::Result<T, WireError>;

/// A position in a message, bounded by the end of the message.
#[derive(Clone, Copy, Debug)]
pub struct WireCursor<'a> {
    /// The request up to the end of the message.
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireCursor<'a> {
    #[inline]
    pub fn new(request: &'a [u8]) -> WireCursor<'a> {
        WireCursor { bytes: request, at: 0 }
    }

    /// The number of remaining bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The remaining bytes.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    #[cold]
    pub fn malformed(&self, what: &'static str) -> WireError {
        WireError { offset: self.at, what }
    }

    /// The key of the next field, or [`END`].
    #[inline(always)]
    pub fn key(&mut self) -> WireResult<FieldKey> {
        match self.bytes.get(self.at) {
            Some(&byte) if (8..0x80).contains(&byte) => {
                self.at += 1;
                Ok(FieldKey::from(byte))
            }
            Some(_) => self.long_key(),
            None => Ok(END),
        }
    }

    #[cold]
    fn long_key(&mut self) -> WireResult<FieldKey> {
        let begin = *self;
        match FieldKey::try_from(self.number()?) {
            Ok(key) if key >= 8 => Ok(key),
            _ => Err(begin.malformed("a field number is invalid")),
        }
    }

    /// Skips an unknown field. Fails if the message has a field of this number in `known`.
    #[inline]
    pub fn skip(&mut self, key: FieldKey, known: u64) -> WireResult<()> {
        if key >> 3 < 64 && known >> (key >> 3) & 1 == 1 {
            return Err(self.malformed("a field has another type than OTLP gives it"));
        }
        match key & 7 {
            0 => self.number().map(drop),
            1 => self.fixed64().map(drop),
            2 => self.message().map(drop),
            5 => self.fixed32().map(drop),
            3 | 4 => Err(self.malformed("a field is a group, which OTLP does not have")),
            _ => Err(self.malformed("a field has a type that does not exist")),
        }
    }

    #[inline(always)]
    pub fn number(&mut self) -> WireResult<u64> {
        match varint::read_short(self.rest()) {
            Some((number, len)) => {
                self.at += len;
                Ok(number)
            }
            None => self.long_number(),
        }
    }

    #[inline(never)]
    fn long_number(&mut self) -> WireResult<u64> {
        match varint::read(self.rest()) {
            Ok((number, len)) => {
                self.at += len;
                Ok(number)
            }
            Err(VarintError::Cut) => Err(self.malformed("it ends within a number")),
            Err(VarintError::TooLarge) => Err(self.malformed("a number has more than 64 bits")),
        }
    }

    #[inline(always)]
    pub fn fixed64(&mut self) -> WireResult<u64> {
        match self.rest().first_chunk::<8>() {
            Some(bytes) => {
                self.at += 8;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => Err(self.malformed("it ends within a field")),
        }
    }

    #[inline(always)]
    pub fn fixed32(&mut self) -> WireResult<u32> {
        match self.rest().first_chunk::<4>() {
            Some(bytes) => {
                self.at += 4;
                Ok(u32::from_le_bytes(*bytes))
            }
            None => Err(self.malformed("it ends within a field")),
        }
    }

    /// A string, or bytes.
    #[inline(always)]
    pub fn bytes(&mut self) -> WireResult<&'a [u8]> {
        self.message().map(|message| message.rest())
    }

    /// A cursor over an embedded message.
    #[inline(always)]
    pub fn message(&mut self) -> WireResult<WireCursor<'a>> {
        let len = self.number()?;
        // A length that overflows is beyond the bytes.
        let end = usize::try_from(len).ok().and_then(|len| self.at.checked_add(len));
        match end.and_then(|end| self.bytes.get(..end)) {
            Some(bytes) => {
                let message = WireCursor { bytes, at: self.at };
                self.at = bytes.len();
                Ok(message)
            }
            None => Err(self.malformed("a field is longer than its message")),
        }
    }

    /// Calls `show` with each packed 8-byte number.
    #[inline(always)]
    pub fn packed_fixed64(&mut self, mut show: impl FnMut(u64)) -> WireResult<()> {
        let packed = self.message()?;
        let (numbers, rest) = packed.rest().as_chunks::<8>();
        if !rest.is_empty() {
            return Err(packed.malformed("packed numbers end within a number"));
        }
        numbers.iter().for_each(|bytes| show(u64::from_le_bytes(*bytes)));
        Ok(())
    }

    /// Calls `show` with each packed varint.
    #[inline(always)]
    pub fn packed_numbers(&mut self, mut show: impl FnMut(u64)) -> WireResult<()> {
        let mut packed = self.message()?;
        while !packed.is_empty() {
            show(packed.number()?);
        }
        Ok(())
    }
}

/// Stores a message or oneof that may appear only once.
#[inline(always)]
pub fn once<'a>(kept: &mut Option<WireCursor<'a>>, given: WireCursor<'a>) -> WireResult<()> {
    match kept.replace(given) {
        None => Ok(()),
        Some(_) => Err(given.malformed("a field that may be given once is given twice")),
    }
}

/// Decodes a zigzag number, which has its sign in the lowest bit.
#[inline]
pub fn zigzag(number: u64) -> i64 {
    varint::unzigzag(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_with_their_types() {
        let first = |bytes: &[u8]| WireCursor::new(bytes).key();
        for (given, expected) in [
            (&[0x08, 1][..], number(1)),
            (&[0x11], fixed64(2)),
            (&[0x1a], bytes(3)),
            (&[0x85, 0x01], fixed32(16)),
            (&[0xff, 0xff, 0xff, 0xff, 0x0f], u32::MAX),
            (&[], END),
        ] {
            assert_eq!(first(given), Ok(expected), "{given:?}");
        }
        for given in [
            &[0x00][..],
            &[0x02],
            &[0x80],
            &[0xff; 11],
            &[0xff, 0xff, 0xff, 0xff, 0x1f],
        ] {
            assert!(first(given).is_err(), "{given:?}");
        }
    }

    #[test]
    fn unknown_fields_are_passed_over_and_known_ones_of_another_type_are_not() {
        let known = fields(&[number(1), bytes(63)]);
        let skip = |key, given: &[u8]| {
            let mut at = WireCursor::new(given);
            at.skip(key, known).map(|()| at.len())
        };
        assert_eq!(skip(number(2), &[0x80, 0x01, 9]), Ok(1));
        assert_eq!(skip(fixed64(2), &[0; 9]), Ok(1));
        assert_eq!(skip(bytes(2), &[2, 0, 0, 9]), Ok(1));
        assert_eq!(skip(fixed32(2), &[0; 5]), Ok(1));
        assert_eq!(skip(number(64), &[1]), Ok(0));
        for key in [fixed64(1), number(63), 2 << 3 | 3, 2 << 3 | 4, 2 << 3 | 6, 2 << 3 | 7] {
            assert!(skip(key, &[0; 20]).is_err(), "{key}");
        }
        for (key, cut) in [(fixed64(2), 7), (fixed32(2), 3), (bytes(2), 0)] {
            assert!(skip(key, &vec![0; cut]).is_err(), "{key}");
        }
    }

    #[test]
    fn numbers_have_up_to_64_bits() {
        let number = |bytes: &[u8]| WireCursor::new(bytes).number();
        for (bytes, expected) in [
            (&[0][..], 0),
            (&[0x7f], 127),
            (&[0x80, 0x01], 128),
            (&[0xff, 0x7f], 16383),
            (&[0x80, 0x80, 0x01], 16384),
            (&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], u64::MAX),
            (&[0x80, 0x80, 0x00], 0),
        ] {
            assert_eq!(number(bytes), Ok(expected), "{bytes:?}");
        }
        let cut = number(&[0x80, 0x80]).unwrap_err();
        assert_eq!((cut.offset, cut.what), (0, "it ends within a number"));
        for bytes in [[0xff; 10], [0x80; 10]] {
            assert_eq!(number(&bytes).unwrap_err().what, "a number has more than 64 bits");
        }
        let two = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(number(&two).is_err());
    }

    #[test]
    fn a_message_lies_within_what_it_is_in_and_places_are_those_of_the_request() {
        // Field 1 of three bytes, whose field 2 claims five.
        let given = [0x0a, 3, 0x12, 5, 0];
        let mut outer = WireCursor::new(&given);
        assert_eq!(outer.key(), Ok(bytes(1)));
        let mut inner = outer.message().unwrap();
        assert_eq!((inner.len(), inner.key()), (3, Ok(bytes(2))));
        let error = inner.message().unwrap_err();
        assert_eq!(error.to_string(), "byte 4: a field is longer than its message");
        assert_eq!(outer.key(), Ok(END));
        let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(WireCursor::new(&huge).message().is_err());
        let twice = WireCursor::new(&given);
        let mut kept = None;
        assert!(once(&mut kept, twice).is_ok() && once(&mut kept, twice).is_err());
    }

    #[test]
    fn packed_numbers_are_shown_one_by_one() {
        let mut found = Vec::new();
        let packed = [16, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        WireCursor::new(&packed)
            .packed_fixed64(|number| found.push(number))
            .unwrap();
        assert_eq!(found, [1, 2]);
        assert!(WireCursor::new(&[3, 1, 2, 3]).packed_fixed64(|_| {}).is_err());
        let mut found = Vec::new();
        let mut show = |number| found.push(zigzag(number));
        WireCursor::new(&[4, 1, 2, 0x80, 0x01])
            .packed_numbers(&mut show)
            .unwrap();
        assert!(WireCursor::new(&[1, 0x80]).packed_numbers(&mut show).is_err());
        assert_eq!(found, [-1, 1, 64]);
    }
}
