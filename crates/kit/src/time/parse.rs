//! Parses RFC 3339 texts. There is one grammar; a caller that accepts more than machines write says what.
//!
//! ```text
//! time      = date separator clock [ fraction ] zone
//! date      = YYYY-MM-DD       a day that exists, of the years 0000 to 9999
//! separator = T
//! clock     = HH:MM:SS         from 00:00:00 to 23:59:59
//! fraction  = (. | ,) digits   at least one; what is finer than a nanosecond is cut off
//! zone      = Z | +HH:MM | -HH:MM
//! ```

use super::{CivilDate, SECONDS_PER_DAY, UnixTime};

/// Which texts are times.
#[derive(Clone, Copy, Debug)]
pub struct TimeGrammar {
    /// The bytes of which one is between date and clock.
    pub separators: &'static [u8],
    /// `z` is the zone `Z`.
    pub small_z: bool,
    /// A text without a zone is in UTC.
    pub zone_is_optional: bool,
    /// A date alone is its first instant in UTC.
    pub date_alone: bool,
    /// The second 60 is read as 59. Otherwise it is refused, because such a second has no number of its own.
    pub leap_seconds: bool,
    /// The largest hours of a zone. Their minutes go up to 59.
    pub zone_hours_max: u8,
    /// A fraction of more digits is refused.
    pub decimals_max: usize,
    /// A comma begins a fraction, too, as in ISO 8601: programs of many countries write it.
    pub comma: bool,
}

impl TimeGrammar {
    /// As machines write it: `2031-05-06T07:08:09Z`, `2031-05-06T07:08:09.123+02:00`, `2031-05-06T07:08:09,123Z`.
    pub const RFC_3339: TimeGrammar = TimeGrammar {
        separators: b"T",
        small_z: false,
        zone_is_optional: false,
        date_alone: false,
        leap_seconds: false,
        zone_hours_max: 23,
        decimals_max: usize::MAX,
        comma: true,
    };
}

/// Digits of a nanosecond.
const DECIMALS: usize = 9;

/// The time of a text that is entirely a time.
pub fn parse(text: &str, grammar: &TimeGrammar) -> Option<UnixTime> {
    let (date, rest) = text.as_bytes().split_first_chunk::<10>()?;
    let days = days(*date)?;
    if rest.is_empty() && grammar.date_alone {
        return Some(UnixTime {
            seconds: days * SECONDS_PER_DAY,
            nanos: 0,
        });
    }
    let (separator, rest) = rest.split_first()?;
    if !grammar.separators.contains(separator) {
        return None;
    }
    let (clock, rest) = rest.split_first_chunk::<8>()?;
    let second_of_day = second_of_day(*clock, grammar.leap_seconds)?;
    let (nanos, zone) = fraction(rest, grammar)?;
    let offset = zone_seconds(zone, grammar)?;
    Some(UnixTime {
        seconds: days * SECONDS_PER_DAY + second_of_day - offset,
        nanos,
    })
}

/// Days since 1970.
fn days(date: [u8; 10]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = date else {
        return None;
    };
    let year = i64::from(number([y1, y2], 99)?) * 100 + i64::from(number([y3, y4], 99)?);
    CivilDate::new(year, number([m1, m2], 12)?, number([d1, d2], 31)?).map(CivilDate::days)
}

fn second_of_day(clock: [u8; 8], leap_seconds: bool) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = clock else {
        return None;
    };
    let (hour, minute) = (number([h1, h2], 23)?, number([m1, m2], 59)?);
    let second_max = if leap_seconds { 60 } else { 59 };
    let second = number([s1, s2], second_max)?.min(59);
    Some(i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second))
}

/// A fraction of a second in nanoseconds, and the rest of the text.
fn fraction<'t>(text: &'t [u8], grammar: &TimeGrammar) -> Option<(u32, &'t [u8])> {
    let after = match text {
        [b'.', after @ ..] => after,
        [b',', after @ ..] if grammar.comma => after,
        _ => return Some((0, text)),
    };
    let count = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = after.split_at_checked(count)?;
    if digits.is_empty() || count > grammar.decimals_max {
        return None;
    }
    let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(DECIMALS);
    let nanos = padded.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some((nanos, rest))
}

/// How far local time is ahead of UTC.
fn zone_seconds(zone: &[u8], grammar: &TimeGrammar) -> Option<i64> {
    match *zone {
        [b'Z'] => Some(0),
        [b'z'] if grammar.small_z => Some(0),
        [] if grammar.zone_is_optional => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number([h1, h2], grammar.zone_hours_max)?, number([m1, m2], 59)?);
            let ahead = i64::from(hours) * 3600 + i64::from(minutes) * 60;
            Some(if sign == b'-' { -ahead } else { ahead })
        }
        _ => None,
    }
}

/// A number of two digits.
fn number([tens, ones]: [u8; 2], most: u8) -> Option<u8> {
    if !tens.is_ascii_digit() || !ones.is_ascii_digit() {
        return None;
    }
    let number = (tens - b'0') * 10 + (ones - b'0');
    (number <= most).then_some(number)
}
