//! Times as clients see them: RFC 3339, UTC, up to microseconds, without trailing zeros in the fraction.

use thalweg_kit::clock;
use thalweg_kit::time::{self, Decimals, TimeGrammar, TimeText, UnixTime, YearForm};
use thalweg_log::Micros;

/// Years 0 to 9999, the range of RFC 3339.
const FIRST: Micros = -62_167_219_200_000_000;
const LAST: Micros = 253_402_300_799_999_999;
/// The last time whose year has four digits in every time zone that a text can name.
const LAST_READ: Micros = 253_402_207_200_999_999;

/// What clients may write.
const GRAMMAR: TimeGrammar = TimeGrammar {
    separators: b"Tt",
    small_z: true,
    leap_seconds: true,
    zone_hours_max: 25,
    decimals_max: 9,
    ..TimeGrammar::RFC_3339
};

/// Appends a time such as `2026-01-15T10:30:00.25Z`.
pub fn write(out: &mut Vec<u8>, time: Micros) {
    out.extend_from_slice(shown(time).as_bytes());
}

pub fn text(time: Micros) -> String {
    shown(time).to_string()
}

fn shown(time: Micros) -> TimeText {
    let time = UnixTime::from_micros(time.clamp(FIRST, LAST));
    TimeText::new(time, Decimals::UpTo(6), YearForm::Plain)
}

pub fn now() -> Micros {
    clock::since_1970().as_micros() as Micros
}

/// Parses RFC 3339, rounded down to microseconds.
pub fn parse(text: &str) -> Option<Micros> {
    let time = time::parse(text, &GRAMMAR)?.micros();
    (FIRST..=LAST_READ).contains(&time).then_some(time)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_fraction_has_no_zeros_at_its_end() {
        for (time, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (FIRST, "0000-01-01T00:00:00Z"),
            (1_768_473_000_250_000, "2026-01-15T10:30:00.25Z"),
            (1_768_473_000_000_001, "2026-01-15T10:30:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(text(time), expected);
            assert_eq!(parse(expected), Some(time), "{expected}");
        }
        assert_eq!(parse("2026-01-15T11:30:00.1234567+01:00"), Some(1_768_473_000_123_456));
        assert_eq!(parse("2026-01-15t10:30:00z"), parse("2026-01-15T10:30:00Z"));
        assert_eq!(parse("2026-01-15T10:30:00,25Z"), parse("2026-01-15T10:30:00.25Z"));
        for bad in [
            "",
            "2026-01-15",
            "2026-01-15T10:30:00",
            "yesterday",
            "2026-01-15 10:30:00Z",
            "2026-01-15T10Z",
            "2026-01-15T10:30:00.Z",
            "2026-01-15T10:30:00,Z",
            "2026-01-15T10:30:00+01",
            "20260115T103000Z",
            "2026-01-15T10:30:00Z[UTC]",
            "2026-02-30T10:30:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn unusual_times_are_read_or_refused() {
        for (text, expected) in [
            ("2016-12-31T23:59:60Z", parse("2016-12-31T23:59:59Z")),
            ("2016-12-31T23:59:60.5Z", parse("2016-12-31T23:59:59.5Z")),
            ("2016-12-31T23:59:61Z", None),
            ("2026-01-15T10:30:00-00:00", parse("2026-01-15T10:30:00Z")),
            ("2026-01-16T12:29:00+25:59", parse("2026-01-15T10:30:00Z")),
            ("2026-01-16T12:29:00+26:00", None),
            ("2026-01-15T10:30:00+00:60", None),
            ("2026-01-15T10:30:00.123456789Z", Some(1_768_473_000_123_456)),
            ("2026-01-15T10:30:00.1234567890Z", None),
            ("2026-01-15T24:00:00Z", None),
            ("1969-12-31T23:59:59.9999999Z", Some(-1)),
            ("0000-01-01T00:00:00+00:01", None),
            ("0000-01-01T00:01:00+00:01", Some(FIRST)),
            ("9999-12-30T22:00:00.999999999Z", Some(LAST_READ)),
            ("9999-12-30T22:00:01Z", None),
            ("9999-12-31T20:00:00+22:00", Some(LAST_READ - 999_999)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(text(Micros::MIN), "0000-01-01T00:00:00Z");
        assert_eq!(text(Micros::MAX), "9999-12-31T23:59:59.999999Z");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_as_the_same_time(time in FIRST..=LAST_READ) {
            let written = text(time);
            let mut bytes = Vec::new();
            write(&mut bytes, time);
            prop_assert_eq!(written.as_bytes(), &bytes[..]);
            prop_assert_eq!(parse(&written), Some(time));
        }
    }
}
