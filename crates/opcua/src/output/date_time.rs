//! Texts to times: RFC 3339, and days with or without a time of day, which are taken as UTC.

use jiff::civil;
use jiff::tz::TimeZone;
use thalweg_record::Ticks;

const PER_SECOND: i64 = 10_000_000;

/// `2031-05-06`, `2031-05-06T07:08:09`, `2031-05-06 07:08:09.5`, `2031-05-06T07:08:09.123+02:00`. What is finer than 100 ns
/// is cut off.
pub(super) fn parse(text: &str) -> Option<Ticks> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year, month, day] = numbers(date, [4, 2, 2], '-')?;
    let date = civil::Date::new(year, small(month)?, small(day)?).ok()?;
    if rest.is_empty() {
        return ticks(date.at(0, 0, 0, 0), 0, 0);
    }
    let (clock, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let [hour, minute, second] = numbers(clock, [2, 2, 2], ':')?;
    let time = civil::Time::new(small(hour)?, small(minute)?, small(second)?, 0).ok()?;
    let (fraction, zone) = fraction(rest)?;
    ticks(date.to_datetime(time), fraction, offset_minutes(zone)?)
}

fn ticks(time: civil::DateTime, fraction: i64, offset_minutes: i64) -> Option<Ticks> {
    let seconds = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second() - offset_minutes * 60;
    Some(Ticks(seconds.checked_mul(PER_SECOND)? + fraction))
}

/// Steps of 100 ns of a fraction of a second, and what stands behind it.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(digits) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let padded = format!("{digits:0<7}");
    Some((padded.get(..7)?.parse().ok()?, rest))
}

/// Of a zone; none is UTC.
fn offset_minutes(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z" | "z") {
        return Some(0);
    }
    let (sign, clock) = zone.split_at_checked(1)?;
    let [hours, minutes] = numbers(clock, [2, 2], ':')?;
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset = i64::from(hours) * 60 + i64::from(minutes);
    match sign {
        "+" => Some(offset),
        "-" => Some(-offset),
        _ => None,
    }
}

/// Exactly `N` numbers of the given widths between separators.
fn numbers<const N: usize>(text: &str, widths: [usize; N], separator: char) -> Option<[i16; N]> {
    let mut parts = text.split(separator);
    let mut result = [0; N];
    for (number, width) in result.iter_mut().zip(widths) {
        let part = parts.next()?;
        if part.len() != width || !part.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        *number = part.parse().ok()?;
    }
    parts.next().is_none().then_some(result)
}

fn small(number: i16) -> Option<i8> {
    i8::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_of_a_time_is_read() {
        for (text, time) in [
            ("2031-05-06", "2031-05-06T00:00:00Z"),
            ("2031-05-06T07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09.5", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06T07:08:09Z", "2031-05-06T07:08:09Z"),
            ("2031-05-06t07:08:09z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09.12345678Z", "2031-05-06T07:08:09.1234567Z"),
            ("2031-05-06T00:08:09+02:30", "2031-05-05T21:38:09Z"),
            ("2031-12-31T23:30:00.1-01:00", "2032-01-01T00:30:00.1Z"),
            ("2032-02-29", "2032-02-29T00:00:00Z"),
            ("0001-01-01", "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(
                parse(text).map(|time| time.to_string()),
                Some(time.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "2031",
            "2031-5-6",
            "2031-02-29",
            "2031-13-01",
            "2031-05-06T",
            "2031-05-06T07:08",
            "2031-05-06T24:00:00",
            "2031-05-06T07:08:60",
            "2031-05-06T07:08:09.",
            "2031-05-06T07:08:09+2",
            "2031-05-06T07:08:09+24:00",
            "2031-05-06Z",
            "2031-05-06X07:08:09",
            "+031-05-06",
            "2031-05-06T07:08:09Zx",
            "äöü31-05-06",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ticks in -116_444_736_000_000_000i64..2_534_023_007_990_000_000) {
            prop_assert_eq!(parse(&Ticks(ticks).to_string()), Some(Ticks(ticks)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
