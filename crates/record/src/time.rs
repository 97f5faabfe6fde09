//! Points in time, exact over the whole range of OPC UA.
//!
//! OPC UA counts 100 ns steps from 1601 to 9999, which neither nanoseconds in 64 bits (1678 to 2262) nor milliseconds
//! can represent without loss. [`Ticks`] counts the same steps from 1970.

mod parse;

use std::time::UNIX_EPOCH;

use thalweg_kit::clock;
use thalweg_kit::time::{Decimals, TimeText, UnixTime, YearForm};

pub use parse::TimeForm;

/// A point in time in steps of 100 ns since 1970-01-01T00:00:00Z; negative before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticks(pub i64);

const PER_SECOND: i64 = 10_000_000;
const PER_MILLI: i64 = 10_000;

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
        out.push_str(self.text(Decimals::Exactly(6)).as_str());
    }

    /// RFC 3339 in UTC with as many decimals as the time has, none for whole seconds.
    pub fn write_rfc3339(self, out: &mut String) {
        out.push_str(self.text(Decimals::UpTo(7)).as_str());
    }

    fn text(self, decimals: Decimals) -> TimeText {
        TimeText::new(UnixTime::from_units(self.0, PER_SECOND), decimals, YearForm::Plain)
    }
}

impl std::fmt::Display for Ticks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text(Decimals::UpTo(7)).as_str())
    }
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
    fn years_without_four_digits_are_written_with_the_digits_that_they_have() {
        for (ticks, date) in [
            (i64::MIN, "-27258-04-19T"),
            (-62_167_219_201 * PER_SECOND, "-001-12-31T"),
            (-62_167_219_200 * PER_SECOND, "0000-01-01T"),
            (253_402_300_800 * PER_SECOND, "10000-01-01T"),
            (i64::MAX, "31197-09-14T"),
        ] {
            assert!(Ticks(ticks).to_string().starts_with(date), "{}", Ticks(ticks));
            assert!(micros(Ticks(ticks)).starts_with(date), "{}", micros(Ticks(ticks)));
        }
    }

    #[test]
    fn milliseconds_round_towards_the_past() {
        assert_eq!(Ticks(-1).unix_millis(), -1);
        assert_eq!(Ticks(9_999).unix_millis(), 0);
        assert_eq!(Ticks::from_unix_millis(-5).unix_millis(), -5);
    }
}
