//! Parses values that JSON and protobuf encode differently: exact integers, doubles, hexadecimal ids, base64.

use thalweg_kit::json_tokens::number_len;

type ScalarResult<T> = std::result::Result<T, &'static str>;

const NO_NUMBER: &str = "the text is not a number";

/// A sign and an integer of up to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonInteger {
    pub is_negative: bool,
    pub magnitude: u64,
}

impl JsonInteger {
    /// Parses a JSON number exactly. `1.50e1` counts as an integer.
    #[inline]
    pub fn read(text: &[u8]) -> ScalarResult<JsonInteger> {
        // Nineteen digits are always below 2^64.
        let short = text.len() <= 19 && !(text.len() > 1 && text.first() == Some(&b'0'));
        let mut magnitude = 0;
        for byte in text.iter().take(20) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 || !short {
                return JsonInteger::read_long(text);
            }
            magnitude = magnitude * 10 + u64::from(digit);
        }
        match text.is_empty() {
            true => Err(NO_NUMBER),
            false => Ok(JsonInteger {
                is_negative: false,
                magnitude,
            }),
        }
    }

    #[inline(never)]
    fn read_long(text: &[u8]) -> ScalarResult<JsonInteger> {
        if number_len(text) != text.len() {
            return Err(NO_NUMBER);
        }
        const TOO_LARGE: &str = "the number is too large for its field";
        let (mut magnitude, mut exponent, mut is_fraction, mut is_too_large) = (0_u64, 0_i64, false, false);
        // Zeros only matter if another digit follows, so trailing zeros are only counted, however many there are.
        let mut zeros = 0_i64;
        let mut rest = text.iter();
        for byte in rest.by_ref() {
            match byte {
                b'-' => {}
                b'.' => is_fraction = true,
                b'e' | b'E' => break,
                digit => {
                    exponent -= i64::from(is_fraction);
                    zeros += 1;
                    if *digit != b'0' {
                        let shifted = magnitude_at(magnitude, zeros);
                        let sum = shifted.and_then(|shifted| shifted.checked_add(u64::from(digit - b'0')));
                        is_too_large |= sum.is_none();
                        (magnitude, zeros) = (sum.unwrap_or(1), 0);
                    }
                }
            }
        }
        let given = std::str::from_utf8(rest.as_slice()).unwrap_or_default();
        if !given.is_empty() {
            // An exponent with too many digits to parse is beyond every number.
            let beyond = if given.starts_with('-') { -(1 << 40) } else { 1 << 40 };
            exponent += given.parse().unwrap_or(beyond).clamp(-(1 << 40), 1 << 40);
        }
        if magnitude == 0 {
            exponent = 0;
            zeros = 0;
        }
        if exponent + zeros < 0 {
            return Err("the number has a fraction, but its field is an integer");
        }
        let magnitude = magnitude_at(magnitude, exponent + zeros).filter(|_| !is_too_large);
        Ok(JsonInteger {
            is_negative: text.first() == Some(&b'-'),
            magnitude: magnitude.ok_or(TOO_LARGE)?,
        })
    }

    pub fn unsigned(self, max: u64) -> ScalarResult<u64> {
        match self.magnitude <= max && (!self.is_negative || self.magnitude == 0) {
            true => Ok(self.magnitude),
            false => Err("the number is out of range for its field"),
        }
    }

    /// Converts to a signed integer of `bits` bits.
    pub fn signed(self, bits: u32) -> ScalarResult<i64> {
        let number = match self.is_negative {
            true => 0_i64.checked_sub_unsigned(self.magnitude),
            false => i64::try_from(self.magnitude).ok(),
        };
        let unused = i64::BITS - bits;
        number
            .filter(|number| number << unused >> unused == *number)
            .ok_or("the number is out of range for its field")
    }
}

/// The magnitude with `zeros` decimal zeros appended.
fn magnitude_at(magnitude: u64, zeros: i64) -> Option<u64> {
    if magnitude == 0 {
        return Some(0);
    }
    let power = 10_u64.checked_pow(u32::try_from(zeros).ok()?)?;
    magnitude.checked_mul(power)
}

/// Parses a double: a number, or the name of a value that JSON has no number for.
pub fn double(text: &[u8]) -> ScalarResult<f64> {
    match text {
        b"NaN" => return Ok(f64::NAN),
        b"Infinity" => return Ok(f64::INFINITY),
        b"-Infinity" => return Ok(f64::NEG_INFINITY),
        _ if number_len(text) != text.len() || text.is_empty() => return Err(NO_NUMBER),
        _ => {}
    }
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<f64>().ok());
    number
        .filter(|number| number.is_finite())
        .ok_or("the number is too large for a double")
}

/// Appends the bytes of hexadecimal digits of either case.
pub fn hex(text: &[u8], out: &mut Vec<u8>) -> ScalarResult<()> {
    let (pairs, rest) = text.as_chunks::<2>();
    let mut wrong = u8::from(!rest.is_empty());
    for [high, low] in pairs {
        let (high, low) = (HEX[usize::from(*high)], HEX[usize::from(*low)]);
        wrong |= (high | low) >> 4;
        out.push(high << 4 | low);
    }
    match wrong {
        0 => Ok(()),
        _ => Err("an id must have two hexadecimal digits for each byte"),
    }
}

/// Appends the bytes of base64 in either alphabet, with or without padding.
pub fn base64(text: &[u8], out: &mut Vec<u8>) -> ScalarResult<()> {
    const WRONG: &str = "the bytes are not valid base64";
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let (fours, rest) = text.as_chunks::<4>();
    let mut wrong = 0;
    for four in fours {
        let [a, b, c, d] = four.map(|digit| BASE64[usize::from(digit)]);
        wrong |= a | b | c | d;
        out.extend_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2, c << 6 | d]);
    }
    match *rest {
        [] => {}
        [a, b] => {
            let [a, b] = [a, b].map(|digit| BASE64[usize::from(digit)]);
            wrong |= a | b;
            out.push(a << 2 | b >> 4);
        }
        [a, b, c] => {
            let [a, b, c] = [a, b, c].map(|digit| BASE64[usize::from(digit)]);
            wrong |= a | b | c;
            out.extend_from_slice(&[a << 2 | b >> 4, b << 4 | c >> 2]);
        }
        _ => return Err(WRONG),
    }
    match wrong < 64 {
        true => Ok(()),
        false => Err(WRONG),
    }
}

/// Marks a byte that is not a digit.
const NONE: u8 = 0xff;

const HEX: [u8; 256] = digits(b"0123456789abcdef", b"0123456789ABCDEF");
const BASE64: [u8; 256] = digits(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
);

/// The value of each byte under two alphabets.
const fn digits<const N: usize>(one: &[u8; N], other: &[u8; N]) -> [u8; 256] {
    let (mut values, mut value) = ([NONE; 256], 0);
    while value < N {
        values[one[value] as usize] = value as u8;
        values[other[value] as usize] = value as u8;
        value += 1;
    }
    values
}
