//! Dates, as far as they do not depend on the time zone of the machine.

use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use thalweg_kit::clock;

use super::heap::{EvalResult, bail};

/// Maximum distance of a date from 1970, in milliseconds.
const MS_MAX: f64 = 8.64e15;

pub(super) fn now() -> f64 {
    let since = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as f64
}

/// Milliseconds as a date stores them: whole, and NaN beyond the range.
pub(super) fn clipped(ms: f64) -> f64 {
    if ms.is_finite() && ms.abs() <= MS_MAX {
        // The sum turns negative zero into zero.
        ms.trunc() + 0.0
    } else {
        f64::NAN
    }
}

/// The parts of a date in UTC. Bails out for invalid dates and years without four digits.
pub(super) fn civil(ms: f64) -> EvalResult<DateTime> {
    let timestamp = (!ms.is_nan()).then(|| Timestamp::from_millisecond(ms as i64).ok());
    match timestamp.flatten().map(|timestamp| Offset::UTC.to_datetime(timestamp)) {
        Some(parts) if parts.year() >= 0 => Ok(parts),
        _ => bail("an unusual date"),
    }
}

/// `toISOString()`.
pub(super) fn iso(ms: f64) -> EvalResult<String> {
    let parts = civil(ms)?;
    Ok(format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
        parts.year(),
        parts.month(),
        parts.day(),
        parts.hour(),
        parts.minute(),
        parts.second(),
        parts.millisecond()
    ))
}

/// Parses a time with an explicit zone, as JSON and OPC UA write it: `2031-05-06T07:08:09.123Z`. Other forms are left
/// to QuickJS.
pub(super) fn parse(text: &str) -> EvalResult<f64> {
    const SECONDS: &str = "0000-00-00T00:00:00";
    let (date, rest) = text.split_at_checked(SECONDS.len()).unwrap_or_default();
    let shaped = date.bytes().zip(SECONDS.bytes()).all(|(b, shape)| match shape {
        b'0' => b.is_ascii_digit(),
        mark => b == mark,
    });
    let fraction = rest.strip_suffix('Z').unwrap_or("?");
    let digits = fraction.strip_prefix('.').unwrap_or_default();
    // The result of more than three digits is unspecified, and JavaScript has no second 60.
    let fits = fraction.is_empty() || (matches!(digits.len(), 1..=3) && digits.bytes().all(|b| b.is_ascii_digit()));
    if !shaped || date.is_empty() || !fits || date.ends_with("60") {
        return bail("the text of a date in another form");
    }
    match text.parse::<Timestamp>() {
        Ok(timestamp) => Ok(timestamp.as_millisecond() as f64),
        Err(_) => bail("the text of a date in another form"),
    }
}
