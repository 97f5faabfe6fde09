//! Times as clients see them: RFC 3339, UTC, up to microseconds, without trailing zeros in the fraction.

use std::time::SystemTime;

use jiff::Timestamp;
use thalweg_kit::clock;
use thalweg_log::Micros;

/// Years 0 to 9999, the range of RFC 3339.
const FIRST: Micros = -62_167_219_200_000_000;
const LAST: Micros = 253_402_300_799_999_999;

/// Appends a time such as `2026-01-15T10:30:00.25Z`.
pub fn write(out: &mut Vec<u8>, time: Micros) {
    let time = time.clamp(FIRST, LAST);
    let (days, micros) = (time.div_euclid(86_400_000_000), time.rem_euclid(86_400_000_000));
    let (year, month, day) = date(days);
    digits(out, year, 4);
    out.push(b'-');
    digits(out, month, 2);
    out.push(b'-');
    digits(out, day, 2);
    out.push(b'T');
    let seconds = (micros / 1_000_000) as u64;
    for (n, part) in [seconds / 3600, seconds / 60 % 60, seconds % 60]
        .into_iter()
        .enumerate()
    {
        if n > 0 {
            out.push(b':');
        }
        digits(out, part, 2);
    }
    let fraction = (micros % 1_000_000) as u64;
    if fraction > 0 {
        out.push(b'.');
        digits(out, fraction, 6);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
    out.push(b'Z');
}

pub fn text(time: Micros) -> String {
    let mut out = Vec::with_capacity(27);
    write(&mut out, time);
    String::from_utf8(out).unwrap_or_default()
}

pub fn now() -> Micros {
    let since = clock::wall().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as Micros)
}

/// Parses RFC 3339, rounded down to microseconds.
pub fn parse(text: &str) -> Option<Micros> {
    // The library accepts more: other forms of ISO 8601, and named time zones.
    if !is_rfc3339(text.as_bytes()) {
        return None;
    }
    let time: Timestamp = text.parse().ok()?;
    let whole = time.as_nanosecond().div_euclid(1000);
    Micros::try_from(whole)
        .ok()
        .filter(|time| (FIRST..=LAST).contains(time))
}

/// Checks the form, but not whether the time exists.
fn is_rfc3339(text: &[u8]) -> bool {
    let is = |text: &[u8], form: &[u8]| {
        let fits = |(byte, form): (&u8, &u8)| match form {
            b'0' => byte.is_ascii_digit(),
            _ => byte.eq_ignore_ascii_case(form),
        };
        text.len() == form.len() && text.iter().zip(form).all(fits)
    };
    let Some((moment, rest)) = text.split_at_checked(19) else {
        return false;
    };
    let zone = match rest.split_first() {
        Some((b'.', rest)) => {
            let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            if digits == 0 {
                return false;
            }
            rest.get(digits..).unwrap_or_default()
        }
        _ => rest,
    };
    is(moment, b"0000-00-00T00:00:00") && [&b"Z"[..], b"+00:00", b"-00:00"].iter().any(|form| is(zone, form))
}

fn digits(out: &mut Vec<u8>, number: u64, count: usize) {
    let mut rest = number;
    let at = out.len();
    out.resize(at + count, b'0');
    for place in out.iter_mut().rev().take(count) {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Year, month and day of a day counted from 1970, computed from March 1 in eras of 400 years.
fn date(days: i64) -> (u64, u64, u64) {
    // Counted from March 1 four hundred years before the year 0, so that nothing is negative.
    let days = (days + 719_468 + 146_097) as u64;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2) - 400, month, of_month)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_fraction_has_no_zeros_at_its_end() {
        for (time, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (FIRST, "0000-01-01T00:00:00Z"),
            (1_768_473_000_250_000, "2026-01-15T10:30:00.25Z"),
            (1_768_473_000_000_001, "2026-01-15T10:30:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(text(time), expected);
            assert_eq!(parse(expected), Some(time), "{expected}");
        }
        assert_eq!(parse("2026-01-15T11:30:00.1234567+01:00"), Some(1_768_473_000_123_456));
        assert_eq!(parse("2026-01-15t10:30:00z"), parse("2026-01-15T10:30:00Z"));
        for bad in [
            "",
            "2026-01-15",
            "2026-01-15T10:30:00",
            "yesterday",
            "2026-01-15 10:30:00Z",
            "2026-01-15T10Z",
            "2026-01-15T10:30:00.Z",
            "2026-01-15T10:30:00,5Z",
            "2026-01-15T10:30:00+01",
            "20260115T103000Z",
            "2026-01-15T10:30:00Z[UTC]",
            "2026-02-30T10:30:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same_time(time in FIRST + 86_400_000_000..LAST) {
            let written = text(time);
            let whole = Timestamp::from_microsecond(time).unwrap().to_string();
            prop_assert_eq!(&written, &whole);
            prop_assert_eq!(parse(&written), Some(time));
        }
    }
}
