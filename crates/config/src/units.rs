//! Durations and sizes as users write them: `1h30m`, `300ms`, `10GiB`.
//!
//! Both are computed in integers, so `0.1s` is exactly 100 ms and no size loses a byte.

use std::time::Duration;

const DURATION_UNITS: [(&str, u128); 9] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000), // micro sign
    ("μs", 1_000), // Greek mu
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

const SIZE_UNITS: [(&str, u128); 10] = [
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Parses a duration: numbers with the units `ns us ms s m h d`, added up, or `0`. The error is the end of a sentence
/// that begins with `expected`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos: u128 = 0;
    while !rest.is_empty() || text.is_empty() {
        let (amount, after) = Amount::split(rest).ok_or_else(duration_form)?;
        let unit_end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let size = DURATION_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, size)| *size);
        let part = amount
            .times(size.ok_or_else(duration_form)?)
            .ok_or_else(duration_form)?;
        nanos = nanos.checked_add(part).ok_or_else(duration_form)?;
        rest = after;
    }
    // Adding a duration to a clock must not overflow: 2^63 ns, 292 years, is the limit.
    match u64::try_from(nanos) {
        Ok(nanos) if i64::try_from(nanos).is_ok() => Ok(Duration::from_nanos(nanos)),
        _ => Err("a duration under 292 years".to_owned()),
    }
}

/// Parses a size in bytes: a number, alone or with `B kB MB GB TB KiB MiB GiB TiB`. The error is the end of a sentence
/// that begins with `expected`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let form = || "a size such as 1048576, 500MB or 10GiB".to_owned();
    let (amount, unit) = Amount::split(text.trim()).ok_or_else(form)?;
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, size) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(form)?;
    let bytes = amount.times(*size).ok_or_else(form)?;
    u64::try_from(bytes).map_err(|_| "a size under 16 EiB".to_owned())
}

fn duration_form() -> String {
    "a duration such as 500ms, 10s or 1h30m".to_owned()
}

/// A decimal number as an integer and a power of ten: `1.25` is 125 / 10^2.
struct Amount {
    digits: u128,
    scale: u128,
}

impl Amount {
    /// Splits a leading unsigned decimal number from the text after it.
    fn split(text: &str) -> Option<(Amount, &str)> {
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        // Eighteen digits after the point are below a nanosecond in every unit.
        let fraction = fraction.get(..fraction.len().min(18))?;
        let mut digits: u128 = 0;
        for byte in whole.bytes().chain(fraction.bytes()) {
            let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
            digits = digits.checked_mul(10)?.checked_add(u128::from(digit))?;
        }
        let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
        Some((Amount { digits, scale }, rest))
    }

    fn times(&self, unit: u128) -> Option<u128> {
        Some(self.digits.checked_mul(unit)? / self.scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let cases = [
            ("1h2m3.5s", 3_723_500_000_000),
            ("300ms", 300_000_000),
            ("100us", 100_000),
            ("100µs", 100_000),
            ("2d", 172_800_000_000_000),
            ("0", 0),
            ("0s", 0),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("0.1s", 100_000_000),
            ("1m30s", 90_000_000_000),
            (" 5s ", 5_000_000_000),
            ("1.123456789123456789123s", 1_123_456_789),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "for {text}");
        }
        for text in ["", "5", "s", "-1s", "5 s", "5sec", "1h-2m", "1..5s", ".s", "5s3", "∞"] {
            assert_eq!(parse_duration(text), Err(duration_form()), "for {text}");
        }
        assert_eq!(parse_duration("107000d"), Err("a duration under 292 years".to_owned()));
        assert!(parse_duration(&"9".repeat(60)).is_err());
        assert!(parse_duration(&format!("{}h", "9".repeat(60))).is_err());
    }

    #[test]
    fn sizes() {
        let cases = [
            ("0", 0),
            ("524288000", 524_288_000),
            ("10B", 10),
            ("1kB", 1000),
            ("1KB", 1000),
            ("500MB", 500_000_000),
            ("500MiB", 524_288_000),
            ("10GiB", 10 << 30),
            ("1.5 KiB", 1536),
            ("2TiB", 2 << 40),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "for {text}");
        }
        for text in ["", "x", "-1", "10QB", "1e3", "MiB", "0x10"] {
            assert!(parse_size(text).is_err(), "for {text}");
        }
        assert_eq!(parse_size("99999999TiB"), Err("a size under 16 EiB".to_owned()));
    }
}
