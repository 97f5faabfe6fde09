//! Numbers of one to ten bytes (LEB128): seven bits each, the lowest first; the high bit means that more follow. Formats on
//! disk and on the wire share them. A number is always written in its shortest form; whether a longer one is read is the
//! choice of the format.

/// Maximum length, that of the largest `u64`.
pub const LEN_MAX: usize = 10;

/// Why bytes do not begin with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VarintError {
    /// The bytes end within the number.
    Cut,
    /// The number has more than 64 bits.
    TooLarge,
}

/// Appends a number in its shortest form.
#[inline]
pub fn put(out: &mut Vec<u8>, value: u64) {
    match value < 0x80 {
        true => out.push(value as u8),
        false => put_long(out, value),
    }
}

#[inline(never)]
fn put_long(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number, which is short if it is near zero.
#[inline]
pub fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

/// The number of bytes that [`put`] appends.
#[inline]
pub const fn len(value: u64) -> usize {
    // 1 for zero, then one more for every seven bits.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// The number at the front of the bytes, in any form that has at most ten bytes, and how many bytes it takes.
#[inline(always)]
pub fn read(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    match read_short(bytes) {
        Some(short) => Ok(short),
        None => read_long(bytes),
    }
}

/// Like [`read`], but `None` if there is no number of one or two bytes. For callers whose numbers are short, and who deal
/// with others and with errors elsewhere.
#[inline(always)]
pub fn read_short(bytes: &[u8]) -> Option<(u64, usize)> {
    match *bytes {
        [byte, ..] if byte < 0x80 => Some((u64::from(byte), 1)),
        [low, high, ..] if high < 0x80 => Some((u64::from(low & 0x7f) | u64::from(high) << 7, 2)),
        _ => None,
    }
}

#[inline(never)]
fn read_long(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().enumerate().take(LEN_MAX) {
        // The tenth byte has room for one bit.
        if at == LEN_MAX - 1 && byte > 1 {
            return Err(VarintError::TooLarge);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(VarintError::Cut)
}

/// The number at the front of the bytes and the remaining bytes; `None` if it is cut off, too large or not in its shortest
/// form.
#[inline]
pub fn take(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (value, len) = read(bytes).ok()?;
    let (number, rest) = bytes.split_at_checked(len)?;
    let is_shortest = len == 1 || number.last() != Some(&0);
    is_shortest.then_some((value, rest))
}

/// Moves the sign to the lowest bit: 0, -1, 1, -2 become 0, 1, 2, 3.
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// The reverse of [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: [u8; LEN_MAX] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];

    /// Reads byte by byte, as the format is described.
    fn plainly(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
        let mut value = 0_u128;
        for (at, &byte) in bytes.iter().enumerate() {
            value |= u128::from(byte & 0x7f) << (7 * at);
            if at == LEN_MAX - 1 && (byte >= 0x80 || value > u64::MAX.into()) {
                return Err(VarintError::TooLarge);
            }
            if byte < 0x80 {
                return Ok((value as u64, at + 1));
            }
        }
        Err(VarintError::Cut)
    }

    proptest! {
        #[test]
        fn every_number_comes_back_in_its_stated_length(value: u64, shift in 0u32..64, rest: Vec<u8>) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            prop_assert_eq!(bytes.len(), len(value));
            let len = bytes.len();
            bytes.extend(&rest);
            prop_assert_eq!(take(&bytes), Some((value, &rest[..])));
            prop_assert_eq!(read(&bytes), Ok((value, len)));
        }

        #[test]
        fn what_is_taken_was_written_by_put(bytes: Vec<u8>) {
            if let Some((value, rest)) = take(&bytes) {
                let mut again = Vec::new();
                put(&mut again, value);
                again.extend(rest);
                prop_assert_eq!(again, bytes);
            }
        }

        #[test]
        fn any_bytes_are_read_as_the_format_says(high in prop::collection::vec(0x80_u8..=0xff, 0..12), rest: Vec<u8>) {
            let bytes = [high, rest].concat();
            prop_assert_eq!(read(&bytes), plainly(&bytes));
        }

        #[test]
        fn signs_come_back(value: i64, shift in 0u32..64) {
            let value = value >> shift;
            prop_assert_eq!(unzigzag(zigzag(value)), value);
            let mut bytes = Vec::new();
            put_signed(&mut bytes, value);
            prop_assert_eq!(bytes.len(), len(zigzag(value)));
        }
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_nothing() {
        assert_eq!(take(&[]), None);
        assert_eq!(take(&[0x80]), None);
        assert_eq!(take(&[0x80, 0]), None, "zero in two bytes");
        assert_eq!(take(&[0xff; 11]), None);
        assert_eq!(take(&MAX), Some((u64::MAX, &[][..])));
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(take(&over), None);
    }

    #[test]
    fn a_number_is_read_in_longer_forms_and_the_error_says_what_is_wrong() {
        assert_eq!(read(&[0x80, 0]), Ok((0, 2)));
        assert_eq!(read(&[0x81, 0x80, 0x80, 0, 7]), Ok((1, 4)));
        assert_eq!(read(&MAX), Ok((u64::MAX, LEN_MAX)));
        assert_eq!(read(&[]), Err(VarintError::Cut));
        assert_eq!(read(&[0xff; 9]), Err(VarintError::Cut));
        assert_eq!(read(&[0xff; 10]), Err(VarintError::TooLarge));
        assert_eq!(read(&[0x80; 10]), Err(VarintError::TooLarge));
        assert_eq!(read(&[0x80; 12]), Err(VarintError::TooLarge));
    }

    #[test]
    fn numbers_near_zero_are_short_whatever_their_sign() {
        let pairs = [
            (0, 0),
            (-1, 1),
            (1, 2),
            (-2, 3),
            (i64::MAX, u64::MAX - 1),
            (i64::MIN, u64::MAX),
        ];
        for (signed, unsigned) in pairs {
            assert_eq!((zigzag(signed), unzigzag(unsigned)), (unsigned, signed));
        }
    }
}
