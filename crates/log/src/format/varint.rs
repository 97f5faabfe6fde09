//! Unsigned integers of one to ten bytes: seven bits each, the lowest first; the high bit means that more follow.

/// Maximum length, that of the largest `u64`.
pub const LEN_MAX: usize = 10;

pub fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub fn len(value: u64) -> usize {
    // 1 for zero, then one more for every seven bits.
    (70 - (value | 1).leading_zeros() as usize) / 7
}

/// The value and the remaining bytes; `None` if the number is cut off, too large or not in its shortest form.
pub fn take(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().enumerate().take(LEN_MAX) {
        let bits = u64::from(byte & 0x7f);
        let shifted = bits << (7 * at);
        if shifted >> (7 * at) != bits {
            return None;
        }
        value |= shifted;
        if byte & 0x80 == 0 {
            let shortest = at == 0 || byte != 0;
            return shortest.then(|| (value, bytes.get(at + 1..).unwrap_or_default()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_comes_back_in_its_stated_length(value: u64, shift in 0u32..64, rest: Vec<u8>) {
            let value = value >> shift;
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            prop_assert_eq!(bytes.len(), len(value));
            bytes.extend(&rest);
            prop_assert_eq!(take(&bytes), Some((value, &rest[..])));
        }

        #[test]
        fn what_is_read_was_written_by_put(bytes: Vec<u8>) {
            if let Some((value, rest)) = take(&bytes) {
                let mut again = Vec::new();
                put(&mut again, value);
                again.extend(rest);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn what_is_cut_off_or_too_long_is_nothing() {
        assert_eq!(take(&[]), None);
        assert_eq!(take(&[0x80]), None);
        assert_eq!(take(&[0x80, 0]), None, "zero in two bytes");
        assert_eq!(take(&[0xff; 11]), None);
        let max = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        assert_eq!(take(&max), Some((u64::MAX, &[][..])));
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(take(&over), None);
    }
}
