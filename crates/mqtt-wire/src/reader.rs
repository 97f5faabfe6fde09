//! Reads the data types of the standard (section 1.5) from the body of a packet.

use std::fmt;

use crate::ReasonCode;
use crate::utf8;

/// Why a packet is refused: the reason code to answer with, and what is wrong in one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError {
    pub code: ReasonCode,
    pub what: &'static str,
}

pub type WireResult<T> = Result<T, DecodeError>;

impl DecodeError {
    #[cold]
    pub fn malformed(what: &'static str) -> DecodeError {
        DecodeError {
            code: ReasonCode::MalformedPacket,
            what,
        }
    }

    #[cold]
    pub fn protocol(what: &'static str) -> DecodeError {
        DecodeError {
            code: ReasonCode::ProtocolError,
            what,
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.what)
    }
}

impl std::error::Error for DecodeError {}

/// A variable byte integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VariableInteger {
    pub value: u32,
    /// How many bytes it takes.
    pub len: usize,
    /// It takes more bytes than needed.
    pub is_padded: bool,
}

impl VariableInteger {
    /// The largest value, in four bytes.
    pub const MAX: u32 = 268_435_455;

    /// Reads the number at the front of the bytes. `None`: it goes on behind their end.
    #[inline]
    pub fn read(bytes: &[u8]) -> WireResult<Option<VariableInteger>> {
        let mut value = 0;
        for (index, byte) in bytes.iter().take(4).enumerate() {
            value |= u32::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(Some(VariableInteger {
                    value,
                    len: index + 1,
                    is_padded: *byte == 0 && index > 0,
                }));
            }
        }
        match bytes.len() {
            0..4 => Ok(None),
            _ => Err(DecodeError::malformed(
                "a variable byte integer has more than four bytes",
            )),
        }
    }

    /// The number of bytes that a value takes.
    #[inline]
    pub fn len_of(value: usize) -> usize {
        match value {
            0..0x80 => 1,
            0x80..0x4000 => 2,
            0x4000..0x20_0000 => 3,
            _ => 4,
        }
    }
}

/// A position in the body of a packet.
#[derive(Clone, Debug)]
pub struct WireReader<'a> {
    bytes: &'a [u8],
    at: usize,
    strict: bool,
}

impl<'a> WireReader<'a> {
    /// Reads from `at` on; `strict` is for strings.
    #[inline]
    pub fn new(bytes: &'a [u8], at: usize, strict: bool) -> WireReader<'a> {
        WireReader { bytes, at, strict }
    }

    /// Bytes from the front to the next one to read.
    #[inline]
    pub fn position(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    #[inline]
    pub fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Fails unless all was read.
    #[inline]
    pub fn end(&self) -> WireResult<()> {
        match self.is_at_end() {
            true => Ok(()),
            false => Err(DecodeError::malformed("bytes follow the last field")),
        }
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> WireResult<&'a [u8]> {
        let Some(taken) = self.rest().get(..len) else {
            return Err(DecodeError::malformed("the packet ends within a field"));
        };
        self.at += len;
        Ok(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> WireResult<[u8; N]> {
        let Some(taken) = self.rest().first_chunk::<N>() else {
            return Err(DecodeError::malformed("the packet ends within a field"));
        };
        self.at += N;
        Ok(*taken)
    }

    #[inline]
    pub fn byte(&mut self) -> WireResult<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    #[inline]
    pub fn two(&mut self) -> WireResult<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub fn four(&mut self) -> WireResult<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A variable byte integer in the fewest bytes [MQTT-1.5.5-1].
    #[inline]
    pub fn variable(&mut self) -> WireResult<u32> {
        match VariableInteger::read(self.rest())? {
            Some(number) if number.is_padded => {
                Err(DecodeError::malformed("a variable byte integer is longer than needed"))
            }
            Some(number) => {
                self.at += number.len;
                Ok(number.value)
            }
            None => Err(DecodeError::malformed("the packet ends within a variable byte integer")),
        }
    }

    /// Bytes behind their length.
    #[inline]
    pub fn binary(&mut self) -> WireResult<&'a [u8]> {
        let len = self.two()?;
        self.take(usize::from(len))
    }

    #[inline]
    pub fn string(&mut self) -> WireResult<&'a str> {
        let strict = self.strict;
        utf8::checked(self.binary()?, strict)
    }

    /// A packet identifier.
    #[inline]
    pub fn packet_id(&mut self) -> WireResult<u16> {
        match self.two()? {
            0 => Err(DecodeError::protocol("the packet identifier is 0")),
            id => Ok(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_integers_have_up_to_four_bytes() {
        for (bytes, value) in [
            (&[0][..], 0),
            (&[0x7f], 127),
            (&[0x80, 1], 128),
            (&[0xff, 0x7f], 16_383),
            (&[0x80, 0x80, 1], 16_384),
            (&[0xff, 0xff, 0x7f], 2_097_151),
            (&[0x80, 0x80, 0x80, 1], 2_097_152),
            (&[0xff, 0xff, 0xff, 0x7f], VariableInteger::MAX),
        ] {
            let number = VariableInteger::read(bytes).unwrap().unwrap();
            assert_eq!(
                (number.value, number.len, number.is_padded),
                (value, bytes.len(), false)
            );
            assert_eq!(VariableInteger::len_of(value as usize), bytes.len());
            for cut in 0..bytes.len() {
                assert_eq!(VariableInteger::read(&bytes[..cut]), Ok(None));
            }
        }
        for padded in [&[0x80, 0][..], &[0xff, 0x80, 0], &[0x80, 0x80, 0x80, 0]] {
            assert!(VariableInteger::read(padded).unwrap().unwrap().is_padded);
            let error = WireReader::new(padded, 0, false).variable().unwrap_err();
            assert_eq!(error.code, ReasonCode::MalformedPacket);
        }
        let error = VariableInteger::read(&[0x80; 4]).unwrap_err();
        assert_eq!(error.code, ReasonCode::MalformedPacket);
    }

    #[test]
    fn fields_that_are_cut_off_are_malformed() {
        let bytes = [0, 3, b'a', b'b', b'c'];
        for cut in 0..bytes.len() {
            let error = WireReader::new(&bytes[..cut], 0, false).string().unwrap_err();
            assert_eq!(error.code, ReasonCode::MalformedPacket, "{cut}");
        }
        let mut reader = WireReader::new(&bytes, 0, false);
        assert_eq!(reader.string(), Ok("abc"));
        assert_eq!((reader.is_at_end(), reader.end(), reader.position()), (true, Ok(()), 5));
        assert!(reader.byte().is_err() && reader.two().is_err() && reader.four().is_err());
    }
}
