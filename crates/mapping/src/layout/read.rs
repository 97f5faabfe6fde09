//! Parses a time by a layout.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset as ZoneOffset;

use super::{LayoutItem, MONTHS, OffsetFormat, Pad, SHORT_NAME_CHARS, TimeField, TimeLayout, WEEKDAYS};

/// The fields parsed so far. Missing fields default to the first instant of year 0 in UTC, as in Go.
struct ParsedTime {
    year: i16,
    month: Option<i8>,
    day: Option<i8>,
    day_of_year: Option<i16>,
    hour: i8,
    minute: i8,
    second: i8,
    nanos: i32,
    /// `Some(true)` is PM.
    afternoon: Option<bool>,
    offset_seconds: i32,
}

/// The error names what was expected.
type ReadResult<T> = Result<T, &'static str>;

impl TimeLayout {
    pub fn read(&self, text: &str) -> Result<Timestamp, String> {
        self.read_with_offset(text).map(|(time, _)| time)
    }

    /// Returns the seconds by which the text is ahead of UTC as well.
    pub fn read_with_offset(&self, text: &str) -> Result<(Timestamp, i32), String> {
        let mut parts = ParsedTime {
            year: 0,
            month: None,
            day: None,
            day_of_year: None,
            hour: 0,
            minute: 0,
            second: 0,
            nanos: 0,
            afternoon: None,
            offset_seconds: 0,
        };
        let mut rest = text;
        let refuse = |what: &str, rest: &str| {
            let at = text.len() - rest.len();
            Err(format!(
                "cannot parse {text:?} as a time with layout {:?}: {what} at byte {at}",
                self.text
            ))
        };
        for (at, item) in self.items.iter().enumerate() {
            let result = match item {
                LayoutItem::Literal(literal) => skip_literal(&mut rest, literal),
                LayoutItem::Field(field) => {
                    let next_is_fraction = matches!(
                        self.items.get(at + 1),
                        Some(LayoutItem::Field(TimeField::Fraction { .. }))
                    );
                    parts.read(*field, next_is_fraction, &mut rest)
                }
            };
            if let Err(expected) = result {
                return refuse(&format!("expected {expected}"), rest);
            }
        }
        if !rest.is_empty() {
            return refuse("unexpected text", rest);
        }
        match parts.timestamp() {
            Some(time) => Ok((time, parts.offset_seconds)),
            None => refuse("the date or time is out of range", ""),
        }
    }
}

/// A run of spaces in the layout matches any number of spaces.
fn skip_literal(rest: &mut &str, literal: &str) -> ReadResult<()> {
    let mut literal = literal;
    while let Some(first) = literal.chars().next() {
        if first == ' ' {
            if !rest.is_empty() && !rest.starts_with(' ') {
                return Err("a space");
            }
            literal = literal.trim_start_matches(' ');
            *rest = rest.trim_start_matches(' ');
            continue;
        }
        *rest = rest.strip_prefix(first).ok_or("the text of the layout")?;
        literal = literal.get(first.len_utf8()..).unwrap_or_default();
    }
    Ok(())
}

impl ParsedTime {
    fn read(&mut self, field: TimeField, next_is_fraction: bool, rest: &mut &str) -> ReadResult<()> {
        match field {
            TimeField::Year => self.year = digits(rest, 4, 4).ok_or("a year of four digits")?,
            TimeField::YearOfCentury => {
                let year: i16 = digits(rest, 2, 2).ok_or("a year of two digits")?;
                self.year = year + if year >= 69 { 1900 } else { 2000 };
            }
            TimeField::MonthName => self.month = Some(named(rest, &MONTHS, false).ok_or("the name of a month")?),
            TimeField::MonthShort => self.month = Some(named(rest, &MONTHS, true).ok_or("the short name of a month")?),
            TimeField::Month(pad) => self.month = Some(number(rest, pad).ok_or("a month")?),
            // The weekday is skipped, because it follows from the date.
            TimeField::WeekdayName => _ = named(rest, &WEEKDAYS, false).ok_or("the name of a weekday")?,
            TimeField::WeekdayShort => _ = named(rest, &WEEKDAYS, true).ok_or("the short name of a weekday")?,
            TimeField::Day(pad) => self.day = Some(number(rest, pad).ok_or("a day")?),
            TimeField::DayOfYear(pad) => {
                if pad == Pad::Space {
                    *rest = rest.trim_start_matches(' ');
                }
                let least = if pad == Pad::Zero { 3 } else { 1 };
                self.day_of_year = Some(digits(rest, least, 3).ok_or("a day of the year")?);
            }
            TimeField::Hour24 => self.hour = number(rest, Pad::None).ok_or("an hour")?,
            TimeField::Hour12(pad) => {
                self.hour = number(rest, pad)
                    .filter(|hour| *hour <= 12)
                    .ok_or("an hour of at most 12")?;
            }
            TimeField::Minute(pad) => self.minute = number(rest, pad).ok_or("a minute")?,
            TimeField::Second(pad) => {
                self.second = number(rest, pad).ok_or("a second")?;
                // Go accepts a fraction after the seconds even if the layout has none.
                if !next_is_fraction && has_fraction(rest) {
                    self.nanos = fraction(rest).ok_or("a fraction")?;
                }
            }
            TimeField::Fraction {
                digits, exact: true, ..
            } => {
                let before = rest.len();
                self.nanos = fraction(rest).ok_or("a fraction of the second")?;
                if before - rest.len() != digits + 1 {
                    return Err("a fraction of as many digits as the layout has");
                }
            }
            TimeField::Fraction { .. } if has_fraction(rest) => self.nanos = fraction(rest).ok_or("a fraction")?,
            TimeField::Fraction { .. } => {}
            TimeField::Half { upper } => {
                let (am, pm) = if upper { ("AM", "PM") } else { ("am", "pm") };
                let afternoon = rest.starts_with(pm);
                *rest = rest.strip_prefix(if afternoon { pm } else { am }).ok_or("AM or PM")?;
                self.afternoon = Some(afternoon);
            }
            TimeField::ZoneName => self.offset_seconds = zone_name(rest)?,
            TimeField::Offset(offset) => self.offset_seconds = zone_offset(rest, offset).ok_or("a time zone offset")?,
        }
        Ok(())
    }

    fn timestamp(&self) -> Option<Timestamp> {
        let hour = match self.afternoon {
            Some(true) if self.hour < 12 => self.hour + 12,
            Some(false) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let date = match self.day_of_year {
            None => Date::new(self.year, self.month.unwrap_or(1), self.day.unwrap_or(1)).ok()?,
            Some(day) => {
                let date = Date::new(self.year, 1, 1).ok()?.with().day_of_year(day).build().ok()?;
                let agrees = self.month.is_none_or(|month| month == date.month())
                    && self.day.is_none_or(|day| day == date.day());
                Some(date).filter(|_| agrees)?
            }
        };
        let (year, month, day) = (date.year(), date.month(), date.day());
        // A leap second is not representable as a timestamp.
        let civil = DateTime::new(year, month, day, hour, self.minute, self.second, self.nanos).ok()?;
        ZoneOffset::from_seconds(self.offset_seconds)
            .ok()?
            .to_timestamp(civil)
            .ok()
    }
}

/// Parses between `least` and `most` digits.
fn digits<N: std::str::FromStr>(rest: &mut &str, least: usize, most: usize) -> Option<N> {
    let count = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at_checked(count).filter(|_| count >= least)?;
    *rest = after;
    number.parse().ok()
}

/// Parses one or two digits; exactly two if the layout pads with zeros.
fn number(rest: &mut &str, pad: Pad) -> Option<i8> {
    if pad == Pad::Space {
        *rest = rest.strip_prefix(' ').unwrap_or(rest);
    }
    digits(rest, if pad == Pad::Zero { 2 } else { 1 }, 2)
}

/// Returns the number of a name, from 1, ignoring case.
fn named(rest: &mut &str, names: &[&str], short: bool) -> Option<i8> {
    for (at, name) in names.iter().enumerate() {
        let name = if short { name.get(..SHORT_NAME_CHARS)? } else { name };
        let Some((start, after)) = rest.split_at_checked(name.len()) else {
            continue;
        };
        if start.eq_ignore_ascii_case(name) {
            *rest = after;
            return i8::try_from(at + 1).ok();
        }
    }
    None
}

fn has_fraction(rest: &str) -> bool {
    matches!(rest.as_bytes(), [b'.' | b',', digit, ..] if digit.is_ascii_digit())
}

/// Parses a separator and digits as nanoseconds; digits beyond the ninth are cut off.
fn fraction(rest: &mut &str) -> Option<i32> {
    let after = rest.strip_prefix(['.', ','])?;
    let count = after.bytes().take_while(u8::is_ascii_digit).count();
    let (shown, after) = after.split_at_checked(count).filter(|_| count > 0)?;
    *rest = after;
    let nanos: String = shown.chars().chain("000000000".chars()).take(9).collect();
    nanos.parse().ok()
}

fn zone_name(rest: &mut &str) -> ReadResult<i32> {
    const EXPECTED: &str = "UTC or GMT; other abbreviations do not tell the offset, so read times with offsets (-0700)";
    let length = rest.bytes().take_while(u8::is_ascii_uppercase).count();
    let (name, after) = rest.split_at_checked(length).ok_or(EXPECTED)?;
    if !matches!(name, "UTC" | "GMT") {
        return Err(EXPECTED);
    }
    *rest = after;
    if name == "GMT"
        && let Some(sign @ (b'+' | b'-')) = after.bytes().next()
    {
        let mut hours = after.get(1..).unwrap_or_default();
        let offset: i32 = digits(&mut hours, 1, 2).ok_or("an hour after GMT")?;
        *rest = hours;
        return Ok(if sign == b'-' { -offset } else { offset } * 3600);
    }
    Ok(0)
}

fn zone_offset(rest: &mut &str, offset: OffsetFormat) -> Option<i32> {
    if offset.z
        && let Some(after) = rest.strip_prefix('Z')
    {
        *rest = after;
        return Some(0);
    }
    let sign = match rest.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let mut after = rest.get(1..)?;
    let mut seconds = 0;
    for (at, unit) in [3600, 60, 1].into_iter().take(offset.parts).enumerate() {
        if at > 0 && offset.colons {
            after = after.strip_prefix(':')?;
        }
        let most = if at == 0 { 24 } else { 59 };
        seconds += digits::<i32>(&mut after, 2, 2).filter(|part| *part <= most)? * unit;
    }
    *rest = after;
    Some(sign * seconds)
}
