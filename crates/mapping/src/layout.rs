//! Go's reference layouts: a time format shows how the reference time `Mon Jan 2 15:04:05 MST 2006` would be printed.
//!
//! A layout is parsed once into [`LayoutItem`]s, which both print and read times. Everything that Go accepts is
//! accepted, except time zone abbreviations other than UTC and GMT, because their offset is ambiguous.

use std::sync::LazyLock;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use thalweg_record::Text;

use crate::error::{EvalResult, Fault};

mod read;
mod strftime;
mod write;

pub(crate) use strftime::StrftimeFormat;

pub(crate) static RFC3339_NANO: LazyLock<TimeLayout> =
    LazyLock::new(|| TimeLayout::parse("2006-01-02T15:04:05.999999999Z07:00").unwrap_or_default());

/// Formats a point in time as RFC 3339 in UTC, with as many decimals as it has.
pub(crate) fn rfc3339(unix_nanos: i64) -> EvalResult<String> {
    let time = Timestamp::from_nanosecond(i128::from(unix_nanos));
    let time = time.map_err(|_| Fault::text("the clock is out of range"))?;
    Ok(RFC3339_NANO.write(time, TimeZone::UTC))
}

#[derive(Debug, Default)]
pub(crate) struct TimeLayout {
    text: Text,
    items: Vec<LayoutItem>,
}

#[derive(Clone, Debug, PartialEq)]
enum LayoutItem {
    Literal(Text),
    Field(TimeField),
}

/// How a number is padded to its width.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pad {
    None,
    Space,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum TimeField {
    Year,
    YearOfCentury,
    MonthName,
    MonthShort,
    Month(Pad),
    WeekdayName,
    WeekdayShort,
    Day(Pad),
    DayOfYear(Pad),
    Hour24,
    Hour12(Pad),
    Minute(Pad),
    Second(Pad),
    /// `.000` prints exactly that many digits, `.999` drops trailing zeros; the separator is a dot or a comma.
    Fraction {
        digits: usize,
        exact: bool,
        sign: char,
    },
    /// `PM` or `pm`
    Half {
        upper: bool,
    },
    ZoneName,
    Offset(OffsetFormat),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct OffsetFormat {
    /// Whether UTC is written as `Z`.
    z: bool,
    colons: bool,
    /// 1 for hours; 2 for hours and minutes; 3 for hours, minutes and seconds.
    parts: usize,
}

const fn offset(z: bool, colons: bool, parts: usize) -> TimeField {
    TimeField::Offset(OffsetFormat { z, colons, parts })
}

/// Longer names come before their prefixes.
const FIELDS: [(&str, TimeField); 33] = [
    ("January", TimeField::MonthName),
    ("Jan", TimeField::MonthShort),
    ("Monday", TimeField::WeekdayName),
    ("Mon", TimeField::WeekdayShort),
    ("MST", TimeField::ZoneName),
    ("002", TimeField::DayOfYear(Pad::Zero)),
    ("01", TimeField::Month(Pad::Zero)),
    ("02", TimeField::Day(Pad::Zero)),
    ("03", TimeField::Hour12(Pad::Zero)),
    ("04", TimeField::Minute(Pad::Zero)),
    ("05", TimeField::Second(Pad::Zero)),
    ("06", TimeField::YearOfCentury),
    ("15", TimeField::Hour24),
    ("1", TimeField::Month(Pad::None)),
    ("2006", TimeField::Year),
    ("2", TimeField::Day(Pad::None)),
    ("__2", TimeField::DayOfYear(Pad::Space)),
    ("_2", TimeField::Day(Pad::Space)),
    ("3", TimeField::Hour12(Pad::None)),
    ("4", TimeField::Minute(Pad::None)),
    ("5", TimeField::Second(Pad::None)),
    ("PM", TimeField::Half { upper: true }),
    ("pm", TimeField::Half { upper: false }),
    ("-07:00:00", offset(false, true, 3)),
    ("-07:00", offset(false, true, 2)),
    ("-070000", offset(false, false, 3)),
    ("-0700", offset(false, false, 2)),
    ("-07", offset(false, false, 1)),
    ("Z07:00:00", offset(true, true, 3)),
    ("Z07:00", offset(true, true, 2)),
    ("Z070000", offset(true, false, 3)),
    ("Z0700", offset(true, false, 2)),
    ("Z07", offset(true, false, 1)),
];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const SHORT_NAME_CHARS: usize = 3;

impl TimeLayout {
    pub fn parse(text: &str) -> Result<TimeLayout, String> {
        let mut items = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let Some((field, length)) = field_at(rest) else {
                literal.push(first);
                rest = rest.get(first.len_utf8()..).unwrap_or_default();
                continue;
            };
            if !literal.is_empty() {
                items.push(LayoutItem::Literal(std::mem::take(&mut literal).into()));
            }
            items.push(LayoutItem::Field(field));
            rest = rest.get(length..).unwrap_or_default();
        }
        if !literal.is_empty() {
            items.push(LayoutItem::Literal(literal.into()));
        }
        if !items.iter().any(|item| matches!(item, LayoutItem::Field(_))) {
            return Err(format!(
                "the time layout `{text}` has no field; a layout is written as the reference time would appear: Mon Jan 2 \
                 15:04:05 MST 2006, for example `2006-01-02 15:04:05`"
            ));
        }
        Ok(TimeLayout {
            text: text.into(),
            items,
        })
    }
}

/// Returns the field at the start of a layout, and its length.
fn field_at(layout: &str) -> Option<(TimeField, usize)> {
    if let Some(sign @ ('.' | ',')) = layout.chars().next() {
        return fraction_at(layout, sign);
    }
    // An underscore before a year is literal text.
    if layout.starts_with("_2006") {
        return None;
    }
    let (name, field) = FIELDS.into_iter().find(|(name, _)| layout.starts_with(name))?;
    let after = layout.as_bytes().get(name.len());
    // A short name within a word is literal text.
    let is_short_name = matches!(field, TimeField::MonthShort | TimeField::WeekdayShort);
    if is_short_name && after.is_some_and(u8::is_ascii_lowercase) {
        return None;
    }
    Some((field, name.len()))
}

/// Parses digits 0 or 9 after the separator that are not followed by another digit.
fn fraction_at(layout: &str, sign: char) -> Option<(TimeField, usize)> {
    let digits = layout.as_bytes().get(1..)?;
    let first = *digits.first()?;
    let count = digits.iter().take_while(|digit| **digit == first).count();
    let is_fraction = matches!(first, b'0' | b'9') && !digits.get(count).is_some_and(u8::is_ascii_digit);
    let field = TimeField::Fraction {
        digits: count,
        exact: first == b'0',
        sign,
    };
    is_fraction.then_some((field, count + 1))
}
