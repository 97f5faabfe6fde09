//! Parsing and formatting of numbers as in JavaScript.

use thalweg_record::Text;

/// `String(number)`.
pub(super) fn text(number: f64) -> Text {
    if number.fract() == 0.0 && number.abs() < 1e15 {
        let mut digits = itoa::Buffer::new();
        // Negative zero is written as zero.
        return Text::new(digits.format(number as i64));
    }
    if is_uneven(number) {
        return Digits::nearest(number).usual().into();
    }
    Text::new(dragonbox_ecma::Buffer::new().format(number))
}

/// Whether the neighbouring numbers are at different distances: a power of two. For these, the shortest digits that
/// identify the number may differ from the nearest of that length; QuickJS takes the nearest, or more digits. For
/// numbers with few digits both agree.
fn is_uneven(number: f64) -> bool {
    const MANTISSA: u64 = (1 << 52) - 1;
    let magnitude = number.abs();
    number.to_bits() & MANTISSA == 0 && magnitude.is_normal() && !(1e-6..1e15).contains(&magnitude)
}

/// `Number(text)`; `None` if a number in another radix has too many digits to be exact.
pub(super) fn of_text(text: &str) -> Option<f64> {
    let text = trim(text);
    if text.is_empty() {
        return Some(0.0);
    }
    if let Some((prefix, digits)) = text.split_at_checked(2) {
        let radix = match prefix {
            "0x" | "0X" => Some(16),
            "0o" | "0O" => Some(8),
            "0b" | "0B" => Some(2),
            _ => None,
        };
        if let Some(radix) = radix {
            return whole(digits, radix);
        }
    }
    let (sign, magnitude) = signed(text);
    if magnitude == "Infinity" {
        return Some(sign * f64::INFINITY);
    }
    Some(match decimal_end(magnitude) {
        Some(end) if end == magnitude.len() => sign * magnitude.parse().unwrap_or(f64::NAN),
        _ => f64::NAN,
    })
}

/// All digits of a number in a power-of-two radix.
fn whole(digits: &str, radix: u32) -> Option<f64> {
    let all = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    match all {
        true => in_radix(digits, radix),
        false => Some(f64::NAN),
    }
}

/// Digits as a number, if that is exact; rounding is not done here.
fn in_radix(digits: &str, radix: u32) -> Option<f64> {
    let value = u64::from_str_radix(digits, radix).ok()?;
    (value <= 1 << 53).then_some(value as f64)
}

fn signed(text: &str) -> (f64, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (-1.0, text.get(1..).unwrap_or_default()),
        Some(b'+') => (1.0, text.get(1..).unwrap_or_default()),
        _ => (1.0, text),
    }
}

/// The end of the unsigned decimal number at the start of the text.
fn decimal_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes.iter().skip(from).take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(0);
    let mut end = whole;
    let mut any = whole > 0;
    if bytes.get(end) == Some(&b'.') {
        let fraction = digits(end + 1);
        any |= fraction > 0;
        if any {
            end += 1 + fraction;
        }
    }
    if !any {
        return None;
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    Some(end)
}

/// `parseFloat(text)`.
pub(super) fn parse_float(text: &str) -> f64 {
    let text = trim_start(text);
    let (sign, magnitude) = signed(text);
    if magnitude.starts_with("Infinity") {
        return sign * f64::INFINITY;
    }
    let number = decimal_end(magnitude).and_then(|end| magnitude.get(..end));
    number
        .and_then(|number| number.parse::<f64>().ok())
        .map_or(f64::NAN, |number| sign * number)
}

/// `parseInt(text, radix)`; `None` if there are too many digits to be exact.
pub(super) fn parse_int(text: &str, radix: f64) -> Option<f64> {
    let (sign, mut digits) = signed(trim_start(text));
    let mut radix = to_i32(radix);
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    if let Some(after) = hex
        && matches!(radix, 0 | 16)
    {
        digits = after;
        radix = 16;
    }
    if radix == 0 {
        radix = 10;
    }
    if !(2..=36).contains(&radix) {
        return Some(f64::NAN);
    }
    let radix = radix as u32;
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let digits = digits.get(..end).unwrap_or_default();
    if digits.is_empty() {
        return Some(f64::NAN);
    }
    in_radix(digits, radix).map(|number| sign * number)
}

/// `number.toFixed(digits)`; `None` where it equals `String(number)`.
pub(super) fn to_fixed(number: f64, digits: usize) -> Option<String> {
    if !number.is_finite() || number.abs() >= 1e21 {
        return None;
    }
    let magnitude = number.abs();
    let mut text = format!("{magnitude:.digits$}");
    // Rust rounds a tie to even, JavaScript away from zero. A tie has exactly one more digit than asked for.
    let scaled = magnitude * 2f64.powi(digits as i32 + 1);
    if scaled.fract() == 0.0 {
        let exact = format!("{magnitude:.*}", digits + 1);
        if exact.ends_with('5') {
            text = rounded_up(&exact, digits);
        }
    }
    let negative = number < 0.0;
    Some(if negative { format!("-{text}") } else { text })
}

/// More digits than any number has.
const ALL_DIGITS: usize = 780;

/// A number as digits, the first of them before the decimal point, and a power of ten.
pub(super) struct Digits {
    is_negative: bool,
    digits: String,
    exponent: i32,
}

impl Digits {
    /// A finite number rounded to `count` digits, at least one.
    pub fn rounded(number: f64, count: usize) -> Digits {
        let rounded = Digits::of(number, &format!("{:.*e}", count - 1, number.abs()));
        // As in `to_fixed`: a tie has exactly one more digit than asked for, and that is a five.
        let longer = Digits::of(number, &format!("{:.*e}", count, number.abs()));
        if !longer.digits.ends_with('5') {
            return rounded;
        }
        let all = Digits::of(number, &format!("{:.*e}", ALL_DIGITS, number.abs()));
        let is_tie = all
            .digits
            .get(count + 1..)
            .is_some_and(|rest| rest.bytes().all(|b| b == b'0'));
        if !is_tie {
            return rounded;
        }
        let digits = rounded_up(&longer.digits, count);
        let carried = digits.len() > count;
        Digits {
            exponent: longer.exponent + i32::from(carried),
            digits: digits.get(..count).unwrap_or_default().to_owned(),
            ..longer
        }
    }

    /// The fewest digits that identify a finite number.
    pub fn shortest(number: f64) -> Digits {
        if is_uneven(number) {
            return Digits::nearest(number);
        }
        // If two numbers with as many digits are equally near, this crate takes the even one, and Rust the other.
        let mut buffer = dragonbox_ecma::Buffer::new();
        let text = buffer.format(number.abs());
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        let digits = all.trim_start_matches('0');
        let zeros = all.len() - digits.len();
        let exponent: i32 = exponent.parse().unwrap_or_default();
        let (digits, exponent) = match digits.trim_end_matches('0') {
            "" => ("0", 0),
            digits => (digits, exponent + whole.len() as i32 - 1 - zeros as i32),
        };
        Digits {
            is_negative: number < 0.0,
            digits: digits.to_owned(),
            exponent,
        }
    }

    /// As QuickJS does it: removes and rounds one digit at a time, as long as the number stays the same.
    fn nearest(number: f64) -> Digits {
        let magnitude = number.abs();
        let mut text = format!("{magnitude:.16e}");
        for count in (0..16).rev() {
            let shorter = format!("{magnitude:.count$e}");
            if shorter.parse() != Ok(magnitude) {
                break;
            }
            text = shorter;
        }
        Digits::of(number, &text)
    }

    fn of(number: f64, text: &str) -> Digits {
        let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
        Digits {
            // Negative zero is written as zero.
            is_negative: number < 0.0,
            digits: mantissa.replace('.', ""),
            exponent: exponent.parse().unwrap_or_default(),
        }
    }

    /// `1.25e+3`.
    pub fn exponential(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let (first, rest) = self.digits.split_at_checked(1).unwrap_or_default();
        let point = if rest.is_empty() { "" } else { "." };
        format!("{sign}{first}{point}{rest}e{:+}", self.exponent)
    }

    /// `String(number)`, for digits that do not end in zero.
    fn usual(&self) -> String {
        match self.exponent {
            -6..0 => self.precise(),
            0..=20 => {
                let zeros = (self.exponent as usize + 1).saturating_sub(self.digits.len());
                let digits = self.digits.clone() + &"0".repeat(zeros);
                Digits { digits, ..*self }.precise()
            }
            _ => self.exponential(),
        }
    }

    /// `number.toPrecision(digits)`: with an exponent if the number is small or has more places than digits.
    pub fn precise(&self) -> String {
        let sign = if self.is_negative { "-" } else { "" };
        let count = self.digits.len() as i32;
        if self.exponent < -6 || self.exponent >= count {
            return self.exponential();
        }
        if self.exponent < 0 {
            let zeros = "0".repeat(self.exponent.unsigned_abs() as usize - 1);
            return format!("{sign}0.{zeros}{}", self.digits);
        }
        let whole = self.exponent as usize + 1;
        let (whole, fraction) = self.digits.split_at_checked(whole).unwrap_or_default();
        let point = if fraction.is_empty() { "" } else { "." };
        format!("{sign}{whole}{point}{fraction}")
    }
}

/// Rounds up digits that end in a five after the last place.
fn rounded_up(exact: &str, digits: usize) -> String {
    let keep = exact.len() - 1;
    let mut bytes: Vec<u8> = exact.bytes().take(keep).collect();
    if digits == 0 {
        bytes.pop();
    }
    let mut at = bytes.len();
    loop {
        if at == 0 {
            bytes.insert(0, b'1');
            break;
        }
        at -= 1;
        match bytes.get_mut(at) {
            Some(b'.') | None => {}
            Some(digit) if *digit == b'9' => *digit = b'0',
            Some(digit) => {
                *digit += 1;
                break;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

/// `number | 0`.
pub(super) fn to_i32(number: f64) -> i32 {
    if !number.is_finite() {
        return 0;
    }
    if number.abs() < 9e18 {
        return number as i64 as i32;
    }
    let modulus = number.trunc() % 4_294_967_296.0;
    modulus as i64 as i32
}

/// An argument as a whole number: NaN is zero.
pub(super) fn to_integer(number: f64) -> f64 {
    if number.is_nan() { 0.0 } else { number.trunc() }
}

/// White space and line ends of JavaScript.
pub(super) fn is_space(c: char) -> bool {
    matches!(
        c,
        '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ' | '\u{a0}' | '\u{1680}' | '\u{2000}'
            ..='\u{200a}' | '\u{2028}' | '\u{2029}' | '\u{202f}' | '\u{205f}' | '\u{3000}' | '\u{feff}'
    )
}

pub(super) fn trim(text: &str) -> &str {
    text.trim_matches(is_space)
}

pub(super) fn trim_start(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

pub(super) fn trim_end(text: &str) -> &str {
    text.trim_end_matches(is_space)
}

/// `number.toString(radix)` for whole numbers; fractions in another radix are not supported here.
pub(super) fn in_radix_text(number: f64, radix: f64) -> Option<String> {
    let fits = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
    if !fits || radix.fract() != 0.0 || !(2.0..=36.0).contains(&radix) {
        return None;
    }
    let radix = radix as u64;
    let mut rest = number.abs() as u64;
    let mut digits = Vec::new();
    loop {
        digits.push(char::from_digit((rest % radix) as u32, radix as u32)?);
        rest /= radix;
        if rest == 0 {
            break;
        }
    }
    if number < 0.0 {
        digits.push('-');
    }
    Some(digits.into_iter().rev().collect())
}
