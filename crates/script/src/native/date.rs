//! Dates, as far as they do not depend on the time zone of the machine.

use std::time::UNIX_EPOCH;

use thalweg_kit::clock;
use thalweg_kit::time::{self, CivilTime, Decimals, TimeGrammar, TimeText, UnixTime, YearForm};

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

/// Bails out for invalid dates and years without four digits.
fn usual(ms: f64) -> EvalResult<UnixTime> {
    let time = UnixTime::from_millis(ms as i64);
    match !ms.is_nan() && (0..=9999).contains(&time.civil().date.year) {
        true => Ok(time),
        false => bail("an unusual date"),
    }
}

/// The parts of a date in UTC. Bails out for unusual dates.
pub(super) fn civil(ms: f64) -> EvalResult<CivilTime> {
    usual(ms).map(UnixTime::civil)
}

/// `toISOString()`.
pub(super) fn iso(ms: f64) -> EvalResult<String> {
    let text = TimeText::new(usual(ms)?, Decimals::Exactly(3), YearForm::Plain);
    Ok(text.to_string())
}

/// The result of more than three digits, or with a comma, is unspecified.
const GRAMMAR: TimeGrammar = TimeGrammar {
    decimals_max: 3,
    comma: false,
    ..TimeGrammar::RFC_3339
};

/// Parses a time with an explicit zone, as JSON and OPC UA write it: `2031-05-06T07:08:09.123Z`. Other forms are left
/// to QuickJS.
pub(super) fn parse(text: &str) -> EvalResult<f64> {
    match time::parse(text, &GRAMMAR) {
        Some(time) if text.ends_with('Z') => Ok(time.millis() as f64),
        _ => bail("the text of a date in another form"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_of_four_digits_are_written_and_others_are_left_to_quickjs() {
        for (ms, expected) in [
            (0.0, Some("1970-01-01T00:00:00.000Z")),
            (-1.0, Some("1969-12-31T23:59:59.999Z")),
            (1_935_817_689_120.0, Some("2031-05-06T07:08:09.120Z")),
            (-62_167_219_200_000.0, Some("0000-01-01T00:00:00.000Z")),
            (-62_167_219_200_001.0, None),
            (253_402_300_799_999.0, Some("9999-12-31T23:59:59.999Z")),
            (253_402_300_800_000.0, None),
            (MS_MAX, None),
            (f64::NAN, None),
        ] {
            assert_eq!(iso(ms).ok().as_deref(), expected, "{ms}");
            assert_eq!(civil(ms).is_ok(), expected.is_some(), "{ms}");
            if let Some(text) = expected {
                assert_eq!(parse(text).ok(), Some(ms), "{text}");
            }
        }
    }

    #[test]
    fn only_texts_whose_meaning_is_specified_are_read() {
        for (fraction, ms) in [("", 0.0), (".1", 100.0), (".12", 120.0), (".123", 123.0)] {
            let text = format!("2031-05-06T07:08:09{fraction}Z");
            assert_eq!(parse(&text).ok(), Some(1_935_817_689_000.0 + ms), "{text}");
        }
        for text in [
            "",
            "2031-05-06",
            "2031-05-06T07:08:09",
            "2031-05-06t07:08:09Z",
            "2031-05-06 07:08:09Z",
            "2031-05-06T07:08:09z",
            "2031-05-06T07:08:09+00:00",
            "2031-05-06T07:08:09.Z",
            "2031-05-06T07:08:09.1234Z",
            "2031-05-06T07:08:09,123Z",
            "2031-05-06T07:08:60Z",
            "2031-05-06T24:00:00Z",
            "2031-02-29T07:08:09Z",
            "+002031-05-06T07:08:09Z",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
