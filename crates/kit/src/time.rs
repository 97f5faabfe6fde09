//! Points in time as numbers, as dates, and as RFC 3339 texts. All are in UTC and in the proleptic Gregorian calendar; named
//! time zones are for others. A time is exact to the nanosecond, over more years than any text has.

mod parse;
#[cfg(test)]
mod tests;
mod text;

pub use parse::{TimeGrammar, parse};
pub use text::{Decimals, TimeText, YearForm};

/// Microseconds since 1970, UTC, or log time, see [`Clock`](crate::clock::Clock).
pub type Micros = i64;

const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixTime {
    /// Whole seconds since 1970, rounded towards the past.
    pub seconds: i64,
    /// Nanoseconds since that second, fewer than 1,000,000,000.
    pub nanos: u32,
}

impl UnixTime {
    pub const fn from_millis(millis: i64) -> UnixTime {
        UnixTime::from_units(millis, 1_000)
    }

    pub const fn from_micros(micros: Micros) -> UnixTime {
        UnixTime::from_units(micros, 1_000_000)
    }

    /// From units of which a second has `per_second`: a power of ten, of at most 1,000,000,000.
    #[inline]
    pub const fn from_units(units: i64, per_second: i64) -> UnixTime {
        UnixTime {
            seconds: units.div_euclid(per_second),
            nanos: (units.rem_euclid(per_second) * (NANOS_PER_SECOND / per_second)) as u32,
        }
    }

    /// Rounded towards the past. The ends of the range stand for what is beyond them.
    pub const fn millis(self) -> i64 {
        self.units(1_000)
    }

    /// Rounded towards the past. The ends of the range stand for what is beyond them.
    pub const fn micros(self) -> Micros {
        self.units(1_000_000)
    }

    /// Nanoseconds since 1970.
    pub const fn total_nanos(self) -> i128 {
        self.seconds as i128 * NANOS_PER_SECOND as i128 + self.nanos as i128
    }

    /// The reverse of [`from_units`](UnixTime::from_units), rounded towards the past. The ends of the range stand for what
    /// is beyond them.
    #[inline]
    pub const fn units(self, per_second: i64) -> i64 {
        let within = self.nanos as i64 / (NANOS_PER_SECOND / per_second);
        match self.seconds.checked_mul(per_second) {
            Some(whole) => whole.saturating_add(within),
            // A time within the first second of the range: its second begins before the range.
            None if self.seconds < 0 => (self.seconds + 1)
                .saturating_mul(per_second)
                .saturating_add(within - per_second),
            None => i64::MAX,
        }
    }

    /// What calendar and clock show.
    #[inline]
    pub const fn civil(self) -> CivilTime {
        let second_of_day = self.seconds.rem_euclid(SECONDS_PER_DAY);
        CivilTime {
            date: CivilDate::from_days(self.seconds.div_euclid(SECONDS_PER_DAY)),
            hour: (second_of_day / 3600) as u8,
            minute: (second_of_day / 60 % 60) as u8,
            second: (second_of_day % 60) as u8,
            nanos: self.nanos,
        }
    }
}

/// A date, and the time of a clock in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilTime {
    pub date: CivilDate,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
    pub nanos: u32,
}

/// A day of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CivilDate {
    /// The year 0 precedes the year 1.
    pub year: i64,
    /// From 1 to 12.
    pub month: u8,
    /// From 1 to 31.
    pub day: u8,
}

/// Years of this calendar repeat after 400 of them.
const DAYS_PER_ERA: i64 = 146_097;
/// Days from the first of March of the year 0 to 1970.
const DAYS_BEFORE_1970: i64 = 719_468;

impl CivilDate {
    /// `None` for a day that does not exist.
    pub const fn new(year: i64, month: u8, day: u8) -> Option<CivilDate> {
        let days_in_month = match month {
            2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return None,
        };
        match day {
            1.. if day <= days_in_month => Some(CivilDate { year, month, day }),
            _ => None,
        }
    }

    /// The date of a day, counted from 1970-01-01, that seconds in 64 bits can reach. Years are counted from March, so that
    /// the leap day is their last one (after Howard Hinnant's `civil_from_days`).
    #[inline]
    pub const fn from_days(days: i64) -> CivilDate {
        let shifted = days + DAYS_BEFORE_1970;
        let (era, day_of_era) = (shifted.div_euclid(DAYS_PER_ERA), shifted.rem_euclid(DAYS_PER_ERA));
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let (month, is_next_year) = match month_from_march {
            0..=9 => (month_from_march + 3, 0),
            _ => (month_from_march - 9, 1),
        };
        CivilDate {
            year: era * 400 + year_of_era + is_next_year,
            month: month as u8,
            day: day as u8,
        }
    }

    /// Days since 1970-01-01 (after Howard Hinnant's `days_from_civil`).
    pub const fn days(self) -> i64 {
        let year = if self.month <= 2 { self.year - 1 } else { self.year };
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let month_from_march = (self.month as i64 + 9) % 12;
        let day_of_year = (153 * month_from_march + 2) / 5 + self.day as i64 - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        era * DAYS_PER_ERA + day_of_era - DAYS_BEFORE_1970
    }

    /// From 0 for a Sunday to 6.
    pub const fn weekday(self) -> u8 {
        // 1970 began on a Thursday.
        (self.days() + 4).rem_euclid(7) as u8
    }
}
