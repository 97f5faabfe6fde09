//! Parses texts to points in time.
//!
//! There is one grammar, after RFC 3339; the caller selects the part that fits its texts. Years have four digits. Leap
//! seconds are rejected, because [`Ticks`] cannot represent the 60th second.

use super::{PER_SECOND, SECONDS_PER_DAY, Ticks};

/// Decimals of a second in [`Ticks`].
const DECIMALS: usize = 7;

/// Which texts are times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeForm {
    /// RFC 3339 as machines write it: `2031-05-06T07:08:09Z`, `2031-05-06T07:08:09.123+02:00`.
    Rfc3339,
    /// Also what people write: a small letter or a space for the `T` (`2031-05-06 07:08:09`), `z`, no zone, which is
    /// UTC, or only a day, which is its first instant.
    Loose,
}

impl Ticks {
    /// The time of a text that is entirely a time. Digits finer than 100 ns are truncated.
    pub fn parse(text: &str, form: TimeForm) -> Option<Ticks> {
        let (date, rest) = text.split_at_checked(10)?;
        let days = days(date)?;
        if rest.is_empty() && form == TimeForm::Loose {
            return Some(ticks(days * SECONDS_PER_DAY, 0));
        }
        let rest = match form {
            TimeForm::Rfc3339 => rest.strip_prefix('T'),
            TimeForm::Loose => rest.strip_prefix(['T', 't', ' ']),
        }?;
        let (clock, rest) = rest.split_at_checked(8)?;
        let second_of_day = second_of_day(clock)?;
        let (fraction, zone) = fraction(rest)?;
        let offset = offset_seconds(zone, form)?;
        Some(ticks(days * SECONDS_PER_DAY + second_of_day - offset, fraction))
    }
}

/// Years of four digits are far from the ends of [`Ticks`].
fn ticks(seconds: i64, fraction: i64) -> Ticks {
    Ticks(seconds * PER_SECOND + fraction)
}

/// Days since 1970.
fn days(date: &str) -> Option<i64> {
    let [year, month, day] = numbers(date, [4, 2, 2], '-')?;
    let days_in_month = match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    (1..=days_in_month)
        .contains(&day)
        .then(|| days_from_civil(year, month, day))
}

fn second_of_day(clock: &str) -> Option<i64> {
    let [hour, minute, second] = numbers(clock, [2, 2, 2], ':')?;
    let is_shown = hour <= 23 && minute <= 59 && second <= 59;
    is_shown.then_some((hour * 60 + minute) * 60 + second)
}

/// A fraction of a second in steps of 100 ns, and the rest of the text.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(digits) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() {
        return None;
    }
    let padded = digits.bytes().chain(std::iter::repeat(b'0')).take(DECIMALS);
    let steps = padded.fold(0, |steps, digit| steps * 10 + i64::from(digit - b'0'));
    Some((steps, rest))
}

fn offset_seconds(zone: &str, form: TimeForm) -> Option<i64> {
    if zone == "Z" || (form == TimeForm::Loose && matches!(zone, "" | "z")) {
        return Some(0);
    }
    let (sign, clock) = zone.split_at_checked(1)?;
    let [hours, minutes] = numbers(clock, [2, 2], ':')?;
    if hours > 23 || minutes > 59 {
        return None;
    }
    let offset = (hours * 60 + minutes) * 60;
    match sign {
        "+" => Some(offset),
        "-" => Some(-offset),
        _ => None,
    }
}

/// Exactly `N` numbers of the given widths between separators.
fn numbers<const N: usize>(text: &str, widths: [usize; N], separator: char) -> Option<[i64; N]> {
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

/// Day number of a proleptic Gregorian date (0 = 1970-01-01), after Howard Hinnant's `days_from_civil`.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [TimeForm; 2] = [TimeForm::Rfc3339, TimeForm::Loose];

    /// The parsed time in its printed form.
    fn read(text: &str, form: TimeForm) -> Option<String> {
        Ticks::parse(text, form).map(|time| time.to_string())
    }

    #[test]
    fn what_machines_write_is_a_time_in_either_form() {
        for (text, time) in [
            ("2031-05-06T07:08:09Z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09.5Z", "2031-05-06T07:08:09.5Z"),
            (
                "2031-05-06T07:08:09.12345678901234567890Z",
                "2031-05-06T07:08:09.1234567Z",
            ),
            ("2031-05-06T00:08:09+02:30", "2031-05-05T21:38:09Z"),
            ("2031-12-31T23:30:00.1-01:00", "2032-01-01T00:30:00.1Z"),
            ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.9999999Z"),
            ("2000-02-29T00:00:00Z", "2000-02-29T00:00:00Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59.9999999+00:00", "9999-12-31T23:59:59.9999999Z"),
        ] {
            for form in BOTH {
                assert_eq!(read(text, form).as_deref(), Some(time), "{text} as {form:?}");
            }
        }
    }

    #[test]
    fn what_people_write_is_one_where_that_is_asked_for() {
        for (text, time) in [
            ("2031-05-06", "2031-05-06T00:00:00Z"),
            ("2031-05-06T07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09.5", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06 07:08:09+01:00", "2031-05-06T06:08:09Z"),
            ("2031-05-06t07:08:09z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09z", "2031-05-06T07:08:09Z"),
            ("9999-12-31", "9999-12-31T00:00:00Z"),
        ] {
            assert_eq!(read(text, TimeForm::Loose).as_deref(), Some(time), "{text}");
            assert_eq!(read(text, TimeForm::Rfc3339), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none_in_either_form() {
        for text in [
            "",
            "2031",
            "2031-5-6",
            "2031-02-29",
            "1900-02-29",
            "2031-04-31",
            "2031-00-01",
            "2031-13-01",
            "2031-05-00",
            "2031-05-06T",
            "2031-05-06T07:08",
            "2031-05-06T7:08:09Z",
            "2031-05-06T24:00:00Z",
            "2031-05-06T07:60:00Z",
            "2031-05-06T07:08:60Z",
            "2031-05-06T07:08:09.",
            "2031-05-06T07:08:09.Z",
            "2031-05-06T07:08:09,5Z",
            "2031-05-06T07:08:09+2",
            "2031-05-06T07:08:09+0200",
            "2031-05-06T07:08:09+24:00",
            "2031-05-06T07:08:09+00:60",
            "2031-05-06T07:08:09 +02:00",
            "2031-05-06Z",
            "2031-05-06X07:08:09Z",
            "2031-05-06T07:08:09Zx",
            " 2031-05-06T07:08:09Z",
            "+031-05-06T07:08:09Z",
            "-031-05-06T07:08:09Z",
            "12031-05-06T07:08:09Z",
            "äöü31-05-06T07:08:09Z",
            "2031-05-06T07:08:09ä",
        ] {
            for form in BOTH {
                assert_eq!(read(text, form), None, "{text} as {form:?}");
            }
        }
    }

    /// Times of the years 1 to 9999.
    fn instants() -> impl Strategy<Value = i64> {
        Ticks::MISSING.0..=253_402_300_799 * PER_SECOND + 9_999_999
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ticks in instants()) {
            let time = Ticks(ticks);
            let mut micros = String::new();
            time.write_micros(&mut micros);
            for form in BOTH {
                prop_assert_eq!(Ticks::parse(&time.to_string(), form), Some(time));
                prop_assert_eq!(Ticks::parse(&micros, form), Some(Ticks(ticks.div_euclid(10) * 10)));
            }
        }

        #[test]
        fn a_zone_moves_the_clock(ticks in instants(), minutes in -1439i64..=1439) {
            let local = Ticks(ticks).to_string();
            let (sign, ahead) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
            let text = format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), ahead / 60, ahead % 60);
            for form in BOTH {
                prop_assert_eq!(Ticks::parse(&text, form), Some(Ticks(ticks - minutes * 60 * PER_SECOND)));
            }
        }

        #[test]
        fn what_the_strict_form_reads_the_loose_one_reads_alike(
            text in "[0-9]{4}-[01][0-9]-[0-3][0-9]([Tt ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{0,9})?(Z|z|[+-][0-2][0-9]:[0-9]{2})?)?",
        ) {
            let strict = Ticks::parse(&text, TimeForm::Rfc3339);
            prop_assert!(strict.is_none() || strict == Ticks::parse(&text, TimeForm::Loose));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = BOTH.map(|form| Ticks::parse(&text, form));
        }
    }
}
