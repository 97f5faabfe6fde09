//! Encoding of numbers and texts. Reading never goes beyond the end and reports where it stopped.

use super::CodecError;

pub(super) fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Small for numbers near zero, whatever their sign.
pub(super) fn put_signed(out: &mut Vec<u8>, n: i64) {
    put_varint(out, (n << 1 ^ n >> 63) as u64);
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The unread rest.
pub(super) struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireReader<'a> {
    pub fn new(bytes: &'a [u8]) -> WireReader<'a> {
        WireReader { bytes, at: 0 }
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn damaged(&self, what: &'static str) -> CodecError {
        CodecError::Damaged { at: self.at, what }
    }

    pub fn byte(&mut self) -> Result<u8, CodecError> {
        let byte = self.bytes.get(self.at).copied();
        let byte = byte.ok_or_else(|| self.damaged("they end too early"))?;
        self.at += 1;
        Ok(byte)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        let found = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk());
        let found = *found.ok_or_else(|| self.damaged("they end too early"))?;
        self.at += N;
        Ok(found)
    }

    pub fn varint(&mut self) -> Result<u64, CodecError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(self.damaged("a number has more than 64 bits"))
    }

    pub fn signed(&mut self) -> Result<i64, CodecError> {
        let n = self.varint()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// A number of at most 32 bits.
    pub fn u32(&mut self) -> Result<u32, CodecError> {
        let n = self.varint()?;
        u32::try_from(n).map_err(|_| self.damaged("a number has more than 32 bits"))
    }

    pub fn u16(&mut self) -> Result<u16, CodecError> {
        let n = self.varint()?;
        u16::try_from(n).map_err(|_| self.damaged("a number has more than 16 bits"))
    }

    /// The number of following items, each of which takes at least a byte.
    pub fn count(&mut self) -> Result<usize, CodecError> {
        let n = self.varint()?;
        let fits = usize::try_from(n).ok().filter(|n| *n <= self.left());
        fits.ok_or_else(|| self.damaged("a count exceeds the bytes that follow"))
    }

    /// The range of the next `n` bytes, which are consumed.
    pub fn range(&mut self, n: usize) -> Result<std::ops::Range<usize>, CodecError> {
        if n > self.left() {
            return Err(self.damaged("they end too early"));
        }
        let start = self.at;
        self.at += n;
        Ok(start..self.at)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let n = self.count()?;
        let range = self.range(n)?;
        Ok(self.bytes.get(range).unwrap_or_default())
    }

    pub fn text(&mut self) -> Result<&'a str, CodecError> {
        let bytes = self.bytes()?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged("the text before it is not UTF-8"))
    }
}
