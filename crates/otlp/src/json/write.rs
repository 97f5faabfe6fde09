//! Writes protobuf front to back. A message reserves bytes for its length, which is filled in when the message ends.

use thalweg_kit::varint;
use thalweg_kit::wire::FieldKey;

/// Bytes reserved for a length that is not guessed; every length fits.
pub const WIDE: usize = 5;

pub struct ProtoWriter<'o> {
    bytes: &'o mut Vec<u8>,
    /// The length of the buffer before this writer.
    begin: usize,
}

/// A message that has not ended yet.
#[derive(Clone, Copy, Debug)]
pub struct OpenMessage {
    /// The offset of its length.
    at: usize,
    /// The bytes reserved for its length.
    width: usize,
}

impl ProtoWriter<'_> {
    pub fn new(bytes: &mut Vec<u8>) -> ProtoWriter<'_> {
        let begin = bytes.len();
        ProtoWriter { bytes, begin }
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.begin
    }

    /// The buffer, for functions that append by themselves.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        self.bytes
    }

    #[inline(always)]
    pub fn key(&mut self, key: FieldKey) {
        self.varint(u64::from(key));
    }

    #[inline(always)]
    pub fn varint(&mut self, number: u64) {
        varint::put(self.bytes, number);
    }

    #[inline(always)]
    pub fn fixed64(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    #[inline(always)]
    pub fn fixed32(&mut self, number: u32) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Writes the length, then the bytes.
    #[inline(always)]
    pub fn text(&mut self, text: &[u8]) {
        self.varint(text.len() as u64);
        self.bytes.extend_from_slice(text);
    }

    /// Begins a message and reserves `width` bytes for its length.
    #[inline(always)]
    pub fn open(&mut self, width: usize) -> OpenMessage {
        let at = self.bytes.len();
        self.bytes.resize(at + width, 0);
        OpenMessage { at, width }
    }

    /// Ends a message. Its bytes move if the reserved width does not fit the length.
    #[inline(always)]
    pub fn close(&mut self, open: OpenMessage) {
        let len = self.bytes.len() - (open.at + open.width);
        match (open.width, len < 0x80) {
            (1, true) => {
                if let Some(place) = self.bytes.get_mut(open.at) {
                    *place = len as u8;
                }
            }
            _ => self.close_long(open, len),
        }
    }

    fn close_long(&mut self, open: OpenMessage, len: usize) {
        let width = match open.width {
            WIDE => WIDE,
            _ => width_of(len),
        };
        let (from, to) = (open.at + open.width, open.at + width);
        if width > open.width {
            self.bytes.resize(to + len, 0);
        }
        self.bytes.copy_within(from..from + len, to);
        self.bytes.truncate(to + len);
        let mut left = len;
        for (index, byte) in self.bytes.iter_mut().skip(open.at).take(width).enumerate() {
            let is_last = index + 1 == width;
            *byte = (left & 0x7f) as u8 | if is_last { 0 } else { 0x80 };
            left >>= 7;
        }
    }
}

/// How many bytes the encoded length takes.
pub fn width_of(len: usize) -> usize {
    (1..WIDE).find(|width| len >> (7 * width) == 0).unwrap_or(WIDE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_kit::wire::WireCursor;

    #[test]
    fn a_message_has_its_length_before_it_whatever_room_was_left() {
        for len in [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152] {
            for width in 1..=WIDE {
                let mut bytes = vec![9];
                let mut out = ProtoWriter::new(&mut bytes);
                let open = out.open(width);
                out.bytes().extend((0..len).map(|at: usize| at as u8));
                out.close(open);
                let expected: Vec<u8> = (0..len).map(|at| at as u8).collect();
                assert_eq!(
                    out.len(),
                    expected.len() + if width == WIDE { WIDE } else { width_of(len) }
                );
                let mut at = WireCursor::new(&bytes[1..]);
                assert_eq!(
                    (at.bytes(), at.len(), bytes[0]),
                    (Ok(&expected[..]), 0, 9),
                    "{len} {width}"
                );
            }
        }
    }

    #[test]
    fn numbers_are_read_as_they_were_written() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            ProtoWriter::new(&mut bytes).varint(number);
            assert_eq!(WireCursor::new(&bytes).number(), Ok(number));
        }
    }
}
