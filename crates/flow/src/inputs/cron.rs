//! Cron expressions: text in, the next point in time out.
//!
//! An expression has five fields (minute, hour, day of the month, month, day of the week) or six, with seconds first. Each
//! is a list of numbers, ranges and steps; months and weekdays may have names. A day fits if it fits both fields for days,
//! or either of them if both leave some days out. `TZ=Europe/Berlin` before the fields names the zone, otherwise it is
//! that of the machine. `@hourly` and its like stand for fields.
//!
//! Clocks of zones are put forward and back. A time that is jumped over is due right after the jump, and one that comes
//! twice is due the first time. Expressions for every hour are the exception, as what is due every ten minutes must
//! neither stop for an hour nor catch up: they are due by the clock as it is.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};

/// The points in time of an expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CronExpression {
    /// One bit for each value that fits.
    seconds: u64,
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    /// From Sunday, 0.
    weekdays: u64,
    zone: TimeZone,
}

/// The values of one field.
struct FieldRange {
    name: &'static str,
    first: u8,
    last: u8,
    /// Names of the values, from the first one.
    names: &'static [&'static str],
}

const SECONDS: FieldRange = FieldRange::of("second", 0, 59);
const MINUTES: FieldRange = FieldRange::of("minute", 0, 59);
const HOURS: FieldRange = FieldRange::of("hour", 0, 23);
const DAYS: FieldRange = FieldRange::of("day of the month", 1, 31);
const MONTHS: FieldRange = FieldRange {
    name: "month",
    first: 1,
    last: 12,
    names: &[
        "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec",
    ],
};
/// 7 is Sunday, too.
const WEEKDAYS: FieldRange = FieldRange {
    name: "day of the week",
    first: 0,
    last: 7,
    names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
};

const ALL_WEEKDAYS: u64 = 0x7F;

/// Words that stand for fields.
const DESCRIPTORS: [(&str, &str); 7] = [
    ("@yearly", "0 0 0 1 1 *"),
    ("@annually", "0 0 0 1 1 *"),
    ("@monthly", "0 0 0 1 * *"),
    ("@weekly", "0 0 0 * * 0"),
    ("@daily", "0 0 0 * * *"),
    ("@midnight", "0 0 0 * * *"),
    ("@hourly", "0 0 * * * *"),
];

/// Days to look ahead: February 29 is up to eight years away.
const DAYS_AHEAD_MAX: usize = 3000;
/// Changes of a zone's clock to look beyond.
const CHANGES_MAX: usize = 100;

impl FieldRange {
    const fn of(name: &'static str, first: u8, last: u8) -> FieldRange {
        FieldRange {
            name,
            first,
            last,
            names: &[],
        }
    }

    fn all(&self) -> u64 {
        (self.first..=self.last).fold(0, |bits, value| bits | 1 << value)
    }

    /// The values of a list such as `1,5-10,20/5`.
    fn read(&self, text: &str) -> Result<u64, String> {
        let parts = text.split(',').map(|part| self.part(part));
        parts.sum_bits().map_err(|why| {
            let FieldRange { name, first, last, .. } = self;
            format!(
                "\"{text}\" is no {name}: {why}; expected numbers from {first} to {last}, as in *, 5, 1-5, */10 or 1,2"
            )
        })
    }

    fn part(&self, part: &str) -> Result<u64, String> {
        let (range, step) = match part.split_once('/') {
            None => (part, None),
            Some((range, step)) => {
                let number = step.parse::<usize>().ok().filter(|step| (1..=60).contains(step));
                (range, Some(number.ok_or_else(|| format!("{step:?} is no step"))?))
            }
        };
        let (first, last) = match range.split_once('-') {
            _ if matches!(range, "*" | "?") => (self.first, self.last),
            Some((first, last)) => (self.value(first)?, self.value(last)?),
            None if step.is_some() => (self.value(range)?, self.last),
            None => (self.value(range)?, self.value(range)?),
        };
        if first > last {
            return Err(format!("{range} goes backward"));
        }
        Ok((first..=last)
            .step_by(step.unwrap_or(1))
            .fold(0, |bits, value| bits | 1 << value))
    }

    fn value(&self, text: &str) -> Result<u8, String> {
        let named = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named
            .and_then(|position| u8::try_from(position).ok())
            .map(|position| self.first + position);
        let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = || text.parse::<u8>().ok().filter(|_| is_number);
        let value = named
            .or_else(number)
            .filter(|value| (self.first..=self.last).contains(value));
        value.ok_or_else(|| format!("{text:?} is not one of its values"))
    }
}

/// Joins the values of parts.
trait SumBits {
    fn sum_bits(self) -> Result<u64, String>;
}

impl<I: Iterator<Item = Result<u64, String>>> SumBits for I {
    fn sum_bits(mut self) -> Result<u64, String> {
        self.try_fold(0, |bits, part| Ok(bits | part?))
    }
}

impl CronExpression {
    /// Whether a text is meant as an expression rather than as a duration.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with('@') || text.contains([' ', '\t', '*', '='])
    }

    pub fn parse(text: &str) -> Result<CronExpression, String> {
        let (zone, fields) = match text.trim().split_once(char::is_whitespace) {
            Some((first, rest)) if first.contains('=') => (named_zone(first)?, rest.trim()),
            _ => (machine_zone(), text.trim()),
        };
        let descriptor = DESCRIPTORS.iter().find(|(name, _)| *name == fields);
        if descriptor.is_none() && fields.starts_with('@') {
            let names: Vec<&str> = DESCRIPTORS.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "unknown descriptor \"{fields}\"; there are: {}, and @every with a duration",
                names.join(", ")
            ));
        }
        let fields = descriptor.map_or(fields, |(_, fields)| fields);
        let parts: Vec<&str> = fields.split_whitespace().collect();
        let (seconds, rest) = match parts.as_slice() {
            rest if rest.len() == 5 => ("0", rest),
            [seconds, rest @ ..] if rest.len() == 5 => (*seconds, rest),
            other => {
                return Err(format!(
                    "a cron expression has five fields (minute, hour, day, month, weekday), or six with seconds first; this \
                     one has {}",
                    other.len()
                ));
            }
        };
        let field = |index: usize, range: &FieldRange| range.read(rest.get(index).copied().unwrap_or_default());
        let weekdays = field(4, &WEEKDAYS)?;
        let expression = CronExpression {
            seconds: SECONDS.read(seconds)?,
            minutes: field(0, &MINUTES)?,
            hours: field(1, &HOURS)?,
            days: field(2, &DAYS)?,
            months: field(3, &MONTHS)?,
            weekdays: (weekdays | weekdays >> 7) & ALL_WEEKDAYS,
            zone,
        };
        // From any day on, every date comes that there is.
        match expression.next_civil(DateTime::constant(2000, 1, 1, 0, 0, 0, 0)) {
            Some(_) => Ok(expression),
            None => Err("there is no such day; correct the day of the month or the month".to_owned()),
        }
    }

    /// The first point in time after another one; `None` after the last one that can be counted.
    pub fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut offset = self.zone.to_offset(after);
        let mut civil = offset.to_datetime(after);
        if let Some(passed) = self.passed_before(after, offset) {
            civil = civil.max(passed);
        }
        let mut reached = after;
        for _ in 0..CHANGES_MAX {
            let found = self.next_civil(civil)?;
            let moment = offset.to_timestamp(found).ok()?;
            let change = self.zone.following(reached).next();
            let Some(change) = change.filter(|change| change.timestamp() <= moment) else {
                return Some(moment);
            };
            // The local time at the change, by the old and by the new clock.
            reached = change.timestamp();
            let old = offset.to_datetime(reached);
            offset = change.offset();
            let new = offset.to_datetime(reached);
            if !self.is_for_every_hour() && found < new {
                return Some(reached);
            }
            let from = if self.is_for_every_hour() { new } else { old.max(new) };
            // Just before, so that this time itself can be the next one.
            civil = from.checked_sub(jiff::Span::new().nanoseconds(1)).ok()?;
        }
        None
    }

    /// If the clock was put back before `after`, the local time that it had shown, up to which times have been due.
    fn passed_before(&self, after: Timestamp, offset: Offset) -> Option<DateTime> {
        if self.is_for_every_hour() {
            return None;
        }
        let behind = after.checked_add(jiff::Span::new().nanoseconds(1)).ok()?;
        let change = self.zone.preceding(behind).next()?.timestamp();
        let before = change.checked_sub(jiff::Span::new().nanoseconds(1)).ok()?;
        let old = self.zone.to_offset(before);
        // Times before the one at which it was put back.
        let passed = old
            .to_datetime(change)
            .checked_sub(jiff::Span::new().nanoseconds(1))
            .ok()?;
        (old.seconds() > offset.seconds()).then_some(passed)
    }

    fn is_for_every_hour(&self) -> bool {
        self.hours == HOURS.all()
    }

    /// The first local time after another one.
    fn next_civil(&self, after: DateTime) -> Option<DateTime> {
        let whole = after.with().subsec_nanosecond(0).build().ok()?;
        let start = whole.checked_add(jiff::Span::new().seconds(1)).ok()?;
        let mut date = start.date();
        for _ in 0..DAYS_AHEAD_MAX {
            if self.fits(date) {
                let from = if date == start.date() {
                    start.time()
                } else {
                    Time::midnight()
                };
                if let Some(time) = self.time_from(from) {
                    return Some(date.to_datetime(time));
                }
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    fn fits(&self, date: Date) -> bool {
        let day = has(self.days, date.day());
        let weekday = has(self.weekdays, date.weekday().to_sunday_zero_offset());
        let is_either = self.days != DAYS.all() && self.weekdays != ALL_WEEKDAYS;
        has(self.months, date.month()) && if is_either { day || weekday } else { day && weekday }
    }

    /// The first time of a day that is not before another one.
    fn time_from(&self, from: Time) -> Option<Time> {
        for hour in (from.hour()..24).filter(|hour| has(self.hours, *hour)) {
            let least = if hour == from.hour() { from.minute() } else { 0 };
            for minute in (least..60).filter(|minute| has(self.minutes, *minute)) {
                let is_first = hour == from.hour() && minute == from.minute();
                let least = if is_first { from.second() } else { 0 };
                if let Some(second) = (least..60).find(|second| has(self.seconds, *second)) {
                    return Time::new(hour, minute, second, 0).ok();
                }
            }
        }
        None
    }
}

fn has(bits: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| bits >> value & 1 == 1)
}

/// The zone of `TZ=Europe/Berlin`.
fn named_zone(text: &str) -> Result<TimeZone, String> {
    match text.split_once('=') {
        Some(("TZ" | "CRON_TZ", name)) => TimeZone::get(name).map_err(|_| {
            format!(
                "unknown time zone \"{name}\": use a name such as Europe/Berlin, or install the time zones (tzdata)"
            )
        }),
        _ => Err(format!(
            "\"{text}\" before the fields is not a zone such as TZ=Europe/Berlin"
        )),
    }
}

/// The zone of the machine: that of the variable `TZ`, or else of `/etc/localtime`, or else UTC.
fn machine_zone() -> TimeZone {
    let variable = std::env::var("TZ").ok().filter(|name| !name.is_empty());
    let name = variable.or_else(|| {
        let target = std::fs::read_link("/etc/localtime").ok()?;
        let (_, name) = target.to_str()?.split_once("/zoneinfo/")?;
        Some(name.to_owned())
    });
    let zone = name.and_then(|name| TimeZone::get(name.trim_start_matches(':')).ok());
    zone.unwrap_or(TimeZone::UTC)
}

#[cfg(test)]
mod tests;
