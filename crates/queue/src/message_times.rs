//! Times of a message: `delay`, `deliver-at` and `ttl`.
//!
//! Texts from properties and headers are parsed into durations and instants, or the broken rule. A result is never more
//! than [`DELAY_MAX`] ahead of `now`, so it can be added to a clock.

use std::ops::RangeInclusive;
use std::time::Duration;

use thalweg_config::parse_duration;
use thalweg_kit::time::{self, Decimals, TimeGrammar, TimeText, UnixTime, YearForm};
use thalweg_log::Micros;

/// The longest delay of a message.
pub const DELAY_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// RFC 3339 as people and programs write it.
const GRAMMAR: TimeGrammar = TimeGrammar {
    separators: b"Tt ",
    small_z: true,
    leap_seconds: true,
    zone_hours_max: 25,
    decimals_max: 9,
    ..TimeGrammar::RFC_3339
};

/// Times whose year has at most four digits in every time zone that a text can name.
const INSTANTS: RangeInclusive<Micros> = -377_705_023_201_000_000..=253_402_207_200_999_999;

/// How many characters of an invalid text an error quotes.
const QUOTED_CHARS_MAX: usize = 60;

/// Why a text is not a time; names the property, the text and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}, got {got:?}")]
pub struct TimeError {
    key: &'static str,
    expected: &'static str,
    got: String,
}

impl TimeError {
    fn new(key: &'static str, expected: &'static str, got: &str) -> TimeError {
        TimeError {
            key,
            expected,
            got: got.chars().take(QUOTED_CHARS_MAX).collect(),
        }
    }
}

/// A delay: a duration such as `30s` or `1h30m`, or a number of milliseconds; up to 365 d.
pub fn parse_delay(text: &str) -> Result<Duration, TimeError> {
    let form = "a duration such as 30s or 1h30m, or a number of milliseconds";
    let delay = duration(text).ok_or_else(|| TimeError::new("delay", form, text))?;
    if delay > DELAY_MAX {
        return Err(TimeError::new("delay", "at most 365d", text));
    }
    Ok(delay)
}

/// An instant: RFC 3339 such as `2026-03-01T06:00:00Z`, or milliseconds since 1970; up to 365 d ahead of `now`. A time
/// in the past is allowed: the message is due.
pub fn parse_deliver_at(text: &str, now: Micros) -> Result<Micros, TimeError> {
    const KEY: &str = "deliver-at";
    let form = "a time such as 2026-03-01T06:00:00Z, or milliseconds since 1970";
    let at = parse_instant(text).ok_or_else(|| TimeError::new(KEY, form, text))?;
    if at > now.saturating_add(micros(DELAY_MAX)) {
        return Err(TimeError::new(KEY, "a time in the next 365 d", text));
    }
    Ok(at)
}

/// The lifetime that a message requests: a duration or a number of milliseconds. Zero is refused, because here it would
/// mean expired on arrival, but "for ever" in the settings of a queue.
pub fn parse_ttl(text: &str) -> Result<Duration, TimeError> {
    let form = "a duration over 0 such as 10m, or a number of milliseconds";
    duration(text)
        .filter(|ttl| !ttl.is_zero())
        .ok_or_else(|| TimeError::new("ttl", form, text))
}

/// The lifetime of a message: what it requests, limited by the queue's `ttl`, in which zero means for ever. `None` is
/// for ever.
pub fn effective_ttl(queue: Duration, asked: Option<Duration>) -> Option<Duration> {
    let limit = Some(queue).filter(|ttl| !ttl.is_zero());
    match (limit, asked) {
        (Some(limit), Some(asked)) => Some(limit.min(asked)),
        (limit, asked) => limit.or(asked),
    }
}

/// RFC 3339, or milliseconds since 1970.
pub(crate) fn parse_instant(text: &str) -> Option<Micros> {
    if let Some(ms) = whole_number(text) {
        return i64::try_from(ms).ok()?.checked_mul(1000);
    }
    let nanos = time::parse(text, &GRAMMAR)?.total_nanos();
    // What is finer than a microsecond is cut off, also before 1970.
    Micros::try_from(nanos / 1000).ok().filter(|at| INSTANTS.contains(at))
}

/// RFC 3339 in UTC with as many digits as needed; `None` beyond the year 9999.
pub fn instant_text(at: Micros) -> Option<TimeText> {
    let time = UnixTime::from_micros(at);
    let text = || TimeText::new(time, Decimals::UpTo(6), YearForm::Expanded);
    INSTANTS.contains(&at).then(text)
}

/// The whole microseconds in a duration.
pub(crate) fn micros(duration: Duration) -> Micros {
    Micros::try_from(duration.as_micros()).unwrap_or(Micros::MAX)
}

fn duration(text: &str) -> Option<Duration> {
    match whole_number(text) {
        Some(ms) => Some(Duration::from_millis(ms)),
        None => parse_duration(text).ok(),
    }
}

fn whole_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-01T00:00:00Z.
    const NOW: Micros = 1_767_225_600_000_000;

    #[test]
    fn a_delay_is_a_duration_or_milliseconds() {
        for (text, ms) in [
            ("30s", 30_000),
            ("1h30m", 5_400_000),
            ("1500", 1_500),
            ("0", 0),
            ("365d", 31_536_000_000),
        ] {
            assert_eq!(parse_delay(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "x",
            "-1s",
            "-1",
            "1.5",
            "10 s",
            "366d",
            "31536000001",
            "99999999999999999999",
        ] {
            assert!(parse_delay(text).is_err(), "{text}");
        }
        let error = parse_delay("400d").unwrap_err();
        assert_eq!(error.to_string(), "delay: expected at most 365d, got \"400d\"");
    }

    #[test]
    fn a_message_is_delivered_at_a_time_with_a_zone_or_milliseconds() {
        let at = 1_772_344_800_000_000;
        for text in [
            "2026-03-01T06:00:00Z",
            "2026-03-01t06:00:00z",
            "2026-03-01 06:00:00.000Z",
            "2026-03-01T07:30:00+01:30",
            "2026-03-01T05:00:00-01:00",
            "1772344800000",
        ] {
            assert_eq!(parse_deliver_at(text, NOW), Ok(at), "{text}");
        }
        assert_eq!(parse_deliver_at("2026-03-01T06:00:00.000001Z", NOW), Ok(at + 1));
    }

    #[test]
    fn what_is_no_rfc_3339_is_not_a_time() {
        for text in [
            "",
            "2026-03-01",
            "2026-03-01T06:00:00",
            "2026-03-01T06:00Z",
            "20260301T060000Z",
            "2026-03-01T06:00:00.Z",
            "2026-03-01T06:00:00+01",
            "2026-03-01T06:00:00+0100",
            "2026-03-01T06:00:00Z[UTC]",
            "2026-02-30T06:00:00Z",
            "2026-03-01T25:00:00Z",
            "+2026-03-01T06:00:00Z",
            "2026-03-01T06:00:0ßZ",
            "-1",
            "99999999999999999999",
        ] {
            let error = parse_deliver_at(text, NOW).unwrap_err();
            assert!(
                error.to_string().starts_with("deliver-at: expected a time such as"),
                "{error}"
            );
        }
    }

    #[test]
    fn unusual_instants_are_read_or_refused() {
        let last = *INSTANTS.end();
        for (text, expected) in [
            ("2016-12-31T23:59:60Z", parse_instant("2016-12-31T23:59:59Z")),
            ("2016-12-31 23:59:60.5Z", parse_instant("2016-12-31T23:59:59.5Z")),
            ("2016-12-31T23:59:61Z", None),
            ("2026-03-02T07:59:00+25:59", Some(1_772_344_800_000_000)),
            ("2026-03-02T08:00:00+26:00", None),
            ("2026-03-01T06:00:00-00:00", Some(1_772_344_800_000_000)),
            ("2026-03-01T06:00:00.123456789Z", Some(1_772_344_800_123_456)),
            ("2026-03-01T06:00:00.1234567890Z", None),
            ("2026-03-01T06:00:00,25Z", Some(1_772_344_800_250_000)),
            ("2026-03-01T06:00:00,Z", None),
            ("1969-12-31T23:59:59.9999999Z", Some(0)),
            ("1969-12-31T23:59:59.9999989Z", Some(-1)),
            ("0000-01-01T00:00:00+00:01", Some(-62_167_219_260_000_000)),
            ("9999-12-30T22:00:00.999999999Z", Some(last)),
            ("9999-12-30T22:00:01Z", None),
            ("9223372036854775", Some(9_223_372_036_854_775_000)),
            ("9223372036854776", None),
        ] {
            assert_eq!(parse_instant(text), expected, "{text}");
        }
    }

    #[test]
    fn instants_are_shown_as_rfc_3339_as_far_as_it_goes() {
        let shown = |at| instant_text(at).map(|text| text.to_string());
        for (at, expected) in [
            (0, Some("1970-01-01T00:00:00Z")),
            (-1, Some("1969-12-31T23:59:59.999999Z")),
            (1_772_344_800_250_000, Some("2026-03-01T06:00:00.25Z")),
            (-62_167_219_260_000_000, Some("-000001-12-31T23:59:00Z")),
            (*INSTANTS.start(), Some("-009999-01-02T01:59:59Z")),
            (*INSTANTS.end(), Some("9999-12-30T22:00:00.999999Z")),
            (*INSTANTS.start() - 1, None),
            (*INSTANTS.end() + 1, None),
            (Micros::MAX, None),
        ] {
            assert_eq!(shown(at).as_deref(), expected, "{at}");
        }
    }

    #[test]
    fn a_message_can_be_put_off_for_a_year_and_not_longer() {
        let year_ms = u64::try_from(DELAY_MAX.as_millis()).unwrap();
        let last = u64::try_from(NOW).unwrap() / 1000 + year_ms;
        assert!(parse_deliver_at(&last.to_string(), NOW).is_ok());
        assert!(parse_deliver_at(&(last + 1).to_string(), NOW).is_err());
        assert!(parse_deliver_at("9999-12-31T23:59:59Z", NOW).is_err());
    }

    #[test]
    fn a_time_in_the_past_is_due() {
        assert_eq!(parse_deliver_at("0", NOW), Ok(0));
        assert!(parse_deliver_at("1969-12-31T23:59:59Z", NOW).unwrap() < 0);
    }

    #[test]
    fn a_message_lives_as_long_as_it_asks_but_not_longer_than_its_queue_allows() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(9));
        for (queue, asked, expected) in [
            (Duration::ZERO, None, None),
            (Duration::ZERO, Some(long), Some(long)),
            (short, None, Some(short)),
            (short, Some(long), Some(short)),
            (long, Some(short), Some(short)),
        ] {
            assert_eq!(effective_ttl(queue, asked), expected);
        }
        assert_eq!(parse_ttl("10m"), Ok(Duration::from_secs(600)));
        assert_eq!(parse_ttl("250"), Ok(Duration::from_millis(250)));
        for text in ["0", "0s", "", "never"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn instants_survive_their_text(at in INSTANTS) {
            let text = instant_text(at).unwrap().to_string();
            // Years outside of 0 to 9999 have another form.
            if !text.starts_with('-') {
                prop_assert_eq!(parse_instant(&text), Some(at), "{}", text);
            }
        }

        #[test]
        fn no_text_breaks_the_parsers(text in "\\PC{0,40}", now in any::<i64>()) {
            let _ = parse_delay(&text);
            if let Ok(at) = parse_deliver_at(&text, now) {
                prop_assert!(at <= now.saturating_add(micros(DELAY_MAX)));
            }
            let _ = parse_ttl(&text);
        }
    }
}
