//! Formats a time by a layout.

use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{LayoutItem, MONTHS, OffsetFormat, Pad, SHORT_NAME_CHARS, TimeField, TimeLayout, WEEKDAYS};

/// A point in time in local time of a zone.
struct ZonedClock {
    civil: DateTime,
    offset_seconds: i32,
    zone: String,
}

impl TimeLayout {
    pub fn write(&self, time: Timestamp, zone: TimeZone) -> String {
        let info = zone.to_offset_info(time);
        let clock = ZonedClock {
            civil: info.offset().to_datetime(time),
            offset_seconds: info.offset().seconds(),
            zone: info.abbreviation().to_owned(),
        };
        let mut out = String::with_capacity(self.text.len() + 8);
        for item in &self.items {
            match item {
                LayoutItem::Literal(text) => out.push_str(text),
                LayoutItem::Field(field) => write_field(*field, &clock, &mut out),
            }
        }
        out
    }
}

fn write_field(field: TimeField, clock: &ZonedClock, out: &mut String) {
    let civil = clock.civil;
    let number = |out: &mut String, n: i16, width: usize, pad: Pad| {
        let _ = match pad {
            Pad::None => write!(out, "{n}"),
            Pad::Space => write!(out, "{n:width$}"),
            Pad::Zero => write!(out, "{n:0width$}"),
        };
    };
    let hour = i16::from(civil.hour());
    match field {
        TimeField::Year => {
            let sign = if civil.year() < 0 { "-" } else { "" };
            let _ = write!(out, "{sign}{:04}", civil.year().unsigned_abs());
        }
        TimeField::YearOfCentury => number(out, civil.year().rem_euclid(100), 2, Pad::Zero),
        TimeField::MonthName => out.push_str(name(&MONTHS, civil.month())),
        TimeField::MonthShort => out.push_str(short(name(&MONTHS, civil.month()))),
        TimeField::Month(pad) => number(out, i16::from(civil.month()), 2, pad),
        TimeField::WeekdayName => out.push_str(name(&WEEKDAYS, civil.weekday().to_monday_one_offset())),
        TimeField::WeekdayShort => out.push_str(short(name(&WEEKDAYS, civil.weekday().to_monday_one_offset()))),
        TimeField::Day(pad) => number(out, i16::from(civil.day()), 2, pad),
        TimeField::DayOfYear(pad) => number(out, civil.day_of_year(), 3, pad),
        TimeField::Hour24 => number(out, hour, 2, Pad::Zero),
        TimeField::Hour12(pad) => number(out, if hour % 12 == 0 { 12 } else { hour % 12 }, 2, pad),
        TimeField::Minute(pad) => number(out, i16::from(civil.minute()), 2, pad),
        TimeField::Second(pad) => number(out, i16::from(civil.second()), 2, pad),
        TimeField::Fraction { digits, exact, sign } => {
            write_fraction(civil.subsec_nanosecond(), digits, exact, sign, out)
        }
        TimeField::Half { upper } => out.push_str(match (hour < 12, upper) {
            (true, true) => "AM",
            (true, false) => "am",
            (false, true) => "PM",
            (false, false) => "pm",
        }),
        TimeField::ZoneName => out.push_str(&clock.zone),
        TimeField::Offset(offset) => write_offset(offset, clock.offset_seconds, out),
    }
}

fn name(names: &[&'static str], number: i8) -> &'static str {
    let at = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    at.and_then(|at| names.get(at)).copied().unwrap_or_default()
}

fn short(name: &str) -> &str {
    name.get(..SHORT_NAME_CHARS).unwrap_or(name)
}

fn write_fraction(nanos: i32, digits: usize, exact: bool, sign: char, out: &mut String) {
    let all = format!("{nanos:09}");
    let mut shown = all.get(..digits.min(9)).unwrap_or(&all);
    if !exact {
        shown = shown.trim_end_matches('0');
        if shown.is_empty() {
            return;
        }
    }
    out.push(sign);
    out.push_str(shown);
    if exact {
        out.extend(std::iter::repeat_n('0', digits.saturating_sub(9)));
    }
}

fn write_offset(offset: OffsetFormat, seconds: i32, out: &mut String) {
    if offset.z && seconds == 0 {
        out.push('Z');
        return;
    }
    out.push(if seconds < 0 { '-' } else { '+' });
    let seconds = seconds.unsigned_abs();
    let parts = [seconds / 3600, seconds / 60 % 60, seconds % 60];
    for (at, part) in parts.into_iter().take(offset.parts).enumerate() {
        if at > 0 && offset.colons {
            out.push(':');
        }
        let _ = write!(out, "{part:02}");
    }
}
