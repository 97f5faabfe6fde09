//! Encoding of numbers and texts. Reading never goes beyond the end and reports where it stopped.

use thalweg_kit::varint::{self, VarintError};

use super::CodecError;

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint::put(out, bytes.len() as u64);
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
        match varint::read(self.bytes.get(self.at..).unwrap_or_default()) {
            Ok((n, len)) => {
                self.at += len;
                Ok(n)
            }
            Err(error) => Err(self.no_number(error)),
        }
    }

    /// The error is where reading stopped.
    #[cold]
    fn no_number(&mut self, error: VarintError) -> CodecError {
        match error {
            VarintError::Cut => {
                self.at = self.bytes.len();
                self.damaged("they end too early")
            }
            VarintError::TooLarge => {
                self.at += varint::LEN_MAX;
                self.damaged("a number has more than 64 bits")
            }
        }
    }

    pub fn signed(&mut self) -> Result<i64, CodecError> {
        self.varint().map(varint::unzigzag)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_cannot_be_read_is_reported_where_reading_stopped() {
        let ten_bytes = vec![0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0];
        for (rest, at, what) in [
            (vec![0x80, 0x80], 3, "they end too early"),
            (vec![], 1, "they end too early"),
            (vec![0x80; 20], 11, "a number has more than 64 bits"),
            (ten_bytes, 11, "a number has more than 64 bits"),
        ] {
            let bytes: Vec<u8> = std::iter::once(7).chain(rest).collect();
            let mut take = WireReader::new(&bytes);
            assert_eq!(take.varint(), Ok(7));
            assert_eq!(take.varint(), Err(CodecError::Damaged { at, what }), "{bytes:?}");
        }
        let mut longer = WireReader::new(&[0x87, 0x80, 0, 1]);
        assert_eq!((longer.varint(), longer.signed(), longer.left()), (Ok(7), Ok(-1), 0));
    }
}
