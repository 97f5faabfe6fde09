//! Parses times in files to nanoseconds since 1970, for any year.

use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

const SECOND: i128 = 1_000_000_000;
/// Numbers below these are seconds, milliseconds and microseconds; larger ones are nanoseconds. The first is the year
/// 5138 in seconds, and 1973 in milliseconds.
const MAGNITUDES: [(i128, i128); 3] = [
    (100_000_000_000, SECOND),
    (100_000_000_000_000, 1_000_000),
    (100_000_000_000_000_000, 1_000),
];

/// Checks that a format determines a time; the error says why not.
pub fn check_format(format: &str) -> Result<(), String> {
    let now = Zoned::new(Timestamp::UNIX_EPOCH, TimeZone::UTC);
    let text = strtime::format(format, &now).map_err(|error| error.to_string())?;
    let parsed = of_format(&text, format);
    parsed.map(drop).ok_or_else(|| {
        format!("it does not determine a time: in this format, 1970 is {text:?}; add a date with %Y, %m and %d, or %s")
    })
}

/// Parses a text of this format. The default offset is UTC.
pub fn of_format(text: &str, format: &str) -> Option<i128> {
    let parsed = strtime::parse(format, text).ok()?;
    if let Ok(time) = parsed.to_timestamp() {
        return Some(time.as_nanosecond());
    }
    let time = parsed
        .to_datetime()
        .or_else(|_| parsed.to_date().map(|date| date.at(0, 0, 0, 0)));
    of_civil(time.ok()?)
}

/// Parses RFC 3339 or digits. A space may replace the T, and the default offset is UTC.
pub fn of_text(text: &str) -> Option<i128> {
    let text = text.trim();
    if let Some(time) = of_number(text) {
        return Some(time);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time.as_nanosecond());
    }
    of_civil(text.parse::<DateTime>().ok()?)
}

fn of_civil(time: DateTime) -> Option<i128> {
    let time = time.to_zoned(TimeZone::UTC).ok()?;
    Some(time.timestamp().as_nanosecond())
}

/// Parses digits, whose magnitude determines the unit. `None` if it is no number.
pub fn of_number(text: &str) -> Option<i128> {
    scaled(text, unit_of)
}

/// Parses microseconds.
pub fn of_micros(text: &str) -> Option<i128> {
    scaled(text, |_| 1_000)
}

/// Parses a time of day to nanoseconds since midnight: `03:04:05.6`.
pub fn of_day(text: &str) -> Option<i128> {
    let text = text.trim();
    let looks_so = text.len() <= TIME_OF_DAY_MAX && text.as_bytes().get(2) == Some(&b':');
    let time: Time = looks_so.then(|| text.parse().ok()).flatten()?;
    let seconds = i128::from(time.hour()) * 3600 + i128::from(time.minute()) * 60 + i128::from(time.second());
    Some(seconds * SECOND + i128::from(time.subsec_nanosecond()))
}

/// Whether a text is a day without a time: `2024-01-02`.
pub fn is_day(text: &str) -> bool {
    let text = text.trim();
    text.len() == 10 && text.parse::<Date>().is_ok()
}

/// The length of `03:04:05.123456789`.
const TIME_OF_DAY_MAX: usize = 18;

/// Parses milliseconds.
pub fn of_millis(text: &str) -> Option<i128> {
    scaled(text, |_| 1_000_000)
}

/// Parses a number in a unit that depends on its whole part.
fn scaled(text: &str, unit_of: impl Fn(i128) -> i128) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > DIGITS_MAX || !is_digits(whole) || !is_digits(fraction) {
        // Exponents need no exact arithmetic.
        let number = text.parse::<f64>().ok().filter(|number| number.is_finite())?;
        let unit = unit_of(number.abs() as i128);
        return Some((number * unit as f64) as i128);
    }
    let whole: i128 = whole.parse().ok()?;
    let unit = unit_of(whole);
    let mut nanos = whole * unit;
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        nanos += i128::from(digit - b'0') * place;
    }
    Some(sign * nanos)
}

/// No time of any unit has more digits.
const DIGITS_MAX: usize = 25;

fn unit_of(number: i128) -> i128 {
    let found = MAGNITUDES.iter().find(|(below, _)| number < *below);
    found.map_or(1, |(_, unit)| *unit)
}

/// Formats as RFC 3339, with as many digits as needed.
pub fn text_of(nanos: i128) -> String {
    match Timestamp::from_nanosecond(nanos) {
        Ok(time) => time.to_string(),
        Err(_) => nanos.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_of_the_unit_that_their_magnitude_says() {
        const NANOS: i128 = 1_700_000_000_123_456_789;
        for (text, nanos) in [
            ("1700000000", 1_700_000_000 * SECOND),
            ("1700000000.123456789", NANOS),
            ("1700000000.1234567891", NANOS),
            ("1700000000123", NANOS / 1_000_000 * 1_000_000),
            ("1700000000123.456789", NANOS),
            ("1700000000123456", NANOS / 1_000 * 1_000),
            ("1700000000123456789", NANOS),
            ("-1.5", -1_500_000_000),
            ("0", 0),
            ("1.7e9", 1_700_000_000 * SECOND),
        ] {
            assert_eq!(of_number(text), Some(nanos), "{text}");
            assert_eq!(of_text(text), Some(nanos), "{text}");
        }
        for text in ["", "-", ".5x", "x", "1_000", "NaN", "inf"] {
            assert_eq!(of_number(text), None, "{text}");
        }
    }

    #[test]
    fn texts_are_rfc_3339_or_of_a_form_that_is_given() {
        let nanos = 1_704_164_645_000_000_000;
        for text in [
            "2024-01-02T03:04:05Z",
            "2024-01-02 03:04:05+00:00",
            "2024-01-02T05:04:05+02:00",
            "2024-01-02T03:04:05",
            " 2024-01-02 03:04:05 ",
            "2024-01-02t03:04:05.000z",
        ] {
            assert_eq!(of_text(text), Some(nanos), "{text}");
        }
        assert_eq!(
            of_text("0001-01-01T00:00:00Z").map(|time| time < i64::MIN.into()),
            Some(true)
        );
        assert_eq!(
            of_text("2554-08-01T00:00:00Z").map(|time| time > i64::MAX.into()),
            Some(true)
        );
        assert_eq!(of_text("yesterday"), None);
        let form = "%d/%b/%Y:%H:%M:%S %z";
        assert_eq!(of_format("02/Jan/2024:05:04:05 +0200", form), Some(nanos));
        assert_eq!(of_format("20240102030405", "%Y%m%d%H%M%S"), Some(nanos));
        assert_eq!(
            of_format("02.01.2024", "%d.%m.%Y"),
            Some(nanos / (86_400 * SECOND) * 86_400 * SECOND)
        );
        assert_eq!(of_format("1704164645", "%s"), Some(nanos));
        assert_eq!(of_format("2024", form), None);
        for form in [form, "%Y-%m-%d", "%s"] {
            check_format(form).unwrap();
        }
        assert!(check_format("%H:%M").unwrap_err().contains("does not determine a time"));
        check_format("%!").unwrap_err();
    }

    #[test]
    fn a_day_and_a_time_of_day_are_told_apart() {
        assert_eq!(
            of_day(" 03:04:05.5 "),
            Some((3 * 3600 + 4 * 60 + 5) * SECOND + SECOND / 2)
        );
        assert_eq!(of_day("23:59"), Some((24 * 3600 - 60) * SECOND));
        for text in [
            "",
            "noon",
            "2024-01-02",
            "2024-01-02T03:04:05",
            "25:00:00",
            "3:4",
            "é:00",
        ] {
            assert_eq!(of_day(text), None, "{text}");
        }
        assert!(is_day("2024-01-02") && !is_day("2024-01-02T03") && !is_day("1704164645") && !is_day("02.01.2024"));
        assert_eq!(of_micros("1700000000123456.5"), Some(1_700_000_000_123_456_500));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(nanos in -60_000_000_000_000_000_000_i128..250_000_000_000_000_000_000) {
            prop_assert_eq!(of_text(&text_of(nanos)), Some(nanos));
        }

        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,40}", format in "[%a-zA-Z0-9: ]{0,12}") {
            let _ = (of_text(&text), of_number(&text), of_format(&text, &format), check_format(&format));
        }
    }
}
