//! Points in time, exact over the whole range of OPC UA.
//!
//! OPC UA counts 100 ns steps from 1601 to 9999, which neither nanoseconds in 64 bits (1678 to 2262) nor milliseconds
//! can represent without loss. [`Ticks`] counts the same steps from 1970.

mod parse;

use std::fmt::Write as _;
use std::time::UNIX_EPOCH;

use thalweg_kit::clock;

pub use parse::TimeForm;

/// A point in time in steps of 100 ns since 1970-01-01T00:00:00Z; negative before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub i64);

const PER_SECOND: i64 = 10_000_000;
const PER_MILLI: i64 = 10_000;
const SECONDS_PER_DAY: i64 = 86_400;

impl Ticks {
    /// "No time given": prints as the first instant of year 1.
    pub const MISSING: Ticks = Ticks(-621_355_968_000_000_000);

    /// The system clock. Components that need a testable clock take one instead of calling this.
    pub fn now() -> Ticks {
        match clock::wall().duration_since(UNIX_EPOCH) {
            Ok(since) => Ticks((since.as_nanos() / 100).try_into().unwrap_or(i64::MAX)),
            Err(before) => Ticks(-i64::try_from(before.duration().as_nanos() / 100).unwrap_or(i64::MAX)),
        }
    }

    pub fn is_missing(self) -> bool {
        self <= Ticks::MISSING
    }

    pub fn from_unix_millis(millis: i64) -> Ticks {
        Ticks(millis.saturating_mul(PER_MILLI))
    }

    pub fn from_unix_nanos(nanos: i64) -> Ticks {
        Ticks(nanos.div_euclid(100))
    }

    /// Whole milliseconds, rounded towards the past.
    pub fn unix_millis(self) -> i64 {
        self.0.div_euclid(PER_MILLI)
    }

    /// Nanoseconds since 1970, or `None` outside the years 1678 to 2262.
    pub fn unix_nanos(self) -> Option<i64> {
        self.0.checked_mul(100)
    }

    /// `2031-05-06T07:08:09.123456Z`: always six decimals, as OPC UA timestamps appear in metadata.
    pub fn write_micros(self, out: &mut String) {
        self.write_seconds(out);
        let micros = self.0.rem_euclid(PER_SECOND) / 10;
        let _ = write!(out, ".{micros:06}Z");
    }

    /// RFC 3339 in UTC with as many decimals as the time has, none for whole seconds.
    pub fn write_rfc3339(self, out: &mut String) {
        self.write_seconds(out);
        let mut fraction = self.0.rem_euclid(PER_SECOND);
        if fraction != 0 {
            let mut width = 7;
            while fraction % 10 == 0 {
                fraction /= 10;
                width -= 1;
            }
            let _ = write!(out, ".{fraction:0width$}");
        }
        out.push('Z');
    }

    fn write_seconds(self, out: &mut String) {
        let seconds = self.0.div_euclid(PER_SECOND);
        let (year, month, day) = civil_from_days(seconds.div_euclid(SECONDS_PER_DAY));
        let second = seconds.rem_euclid(SECONDS_PER_DAY);
        let two = |mut buffer: [u8; 20], at: usize, n: i64| {
            buffer[at] = b'0' + (n / 10) as u8;
            buffer[at + 1] = b'0' + (n % 10) as u8;
            buffer
        };
        if (0..10_000).contains(&year) {
            // The usual case, without the formatting machinery: this runs twice for each OPC UA value that is printed.
            let mut buffer = *b"0000-00-00T00:00:00\0";
            buffer = two(buffer, 0, year / 100);
            buffer = two(buffer, 2, year % 100);
            buffer = two(buffer, 5, month);
            buffer = two(buffer, 8, day);
            buffer = two(buffer, 11, second / 3600);
            buffer = two(buffer, 14, second / 60 % 60);
            buffer = two(buffer, 17, second % 60);
            out.push_str(std::str::from_utf8(&buffer[..19]).unwrap_or_default());
        } else {
            let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
            let _ = write!(out, "{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}");
        }
    }
}

impl std::fmt::Display for Ticks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::with_capacity(30);
        self.write_rfc3339(&mut text);
        f.write_str(&text)
    }
}

/// Proleptic Gregorian date of a day number (0 = 1970-01-01), after Howard Hinnant's `civil_from_days`.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(t: Ticks) -> String {
        let mut s = String::new();
        t.write_micros(&mut s);
        s
    }

    #[test]
    fn metadata_times_have_six_decimals_and_missing_is_year_one() {
        assert_eq!(
            micros(Ticks(1935817689 * PER_SECOND + 1_234_569)),
            "2031-05-06T07:08:09.123456Z"
        );
        assert_eq!(micros(Ticks(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(micros(Ticks::MISSING), "0001-01-01T00:00:00.000000Z");
    }

    #[test]
    fn rfc3339_drops_trailing_zeros() {
        assert_eq!(Ticks(0).to_string(), "1970-01-01T00:00:00Z");
        assert_eq!(Ticks(1).to_string(), "1970-01-01T00:00:00.0000001Z");
        assert_eq!(Ticks(-1).to_string(), "1969-12-31T23:59:59.9999999Z");
        assert_eq!(Ticks(15_000_000).to_string(), "1970-01-01T00:00:01.5Z");
        assert_eq!(Ticks(951_782_400 * PER_SECOND).to_string(), "2000-02-29T00:00:00Z");
        assert_eq!(Ticks(253_402_300_799 * PER_SECOND).to_string(), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn milliseconds_round_towards_the_past() {
        assert_eq!(Ticks(-1).unix_millis(), -1);
        assert_eq!(Ticks(9_999).unix_millis(), 0);
        assert_eq!(Ticks::from_unix_millis(-5).unix_millis(), -5);
    }
}
