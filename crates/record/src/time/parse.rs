//! Parses texts to points in time.
//!
//! There is one grammar, after RFC 3339; the caller selects the part that fits its texts. Years have four digits. Leap
//! seconds are rejected, because [`Ticks`] cannot represent the 60th second.

use thalweg_kit::time::{self, TimeGrammar};

use super::{PER_SECOND, Ticks};

/// Which texts are times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeForm {
    /// RFC 3339 as machines write it: `2031-05-06T07:08:09Z`, `2031-05-06T07:08:09.123+02:00`; a comma for the point is
    /// read, too.
    Rfc3339,
    /// Also what people write: a small letter or a space for the `T` (`2031-05-06 07:08:09`), `z`, no zone, which is
    /// UTC, or only a day, which is its first instant.
    Loose,
}

const LOOSE: TimeGrammar = TimeGrammar {
    separators: b"Tt ",
    small_z: true,
    zone_is_optional: true,
    date_alone: true,
    ..TimeGrammar::RFC_3339
};

impl Ticks {
    /// The time of a text that is entirely a time. Digits finer than 100 ns are truncated.
    pub fn parse(text: &str, form: TimeForm) -> Option<Ticks> {
        let grammar = match form {
            TimeForm::Rfc3339 => &TimeGrammar::RFC_3339,
            TimeForm::Loose => &LOOSE,
        };
        time::parse(text, grammar).map(|time| Ticks(time.units(PER_SECOND)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOTH: [TimeForm; 2] = [TimeForm::Rfc3339, TimeForm::Loose];

    /// The parsed time in its printed form.
    fn read(text: &str, form: TimeForm) -> Option<String> {
        Ticks::parse(text, form).map(|time| time.to_string())
    }

    #[test]
    fn what_machines_write_is_a_time_in_either_form() {
        for (text, time) in [
            ("2031-05-06T07:08:09Z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09.5Z", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06T07:08:09,5Z", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06T07:08:09,1234567+02:00", "2031-05-06T05:08:09.1234567Z"),
            (
                "2031-05-06T07:08:09.12345678901234567890Z",
                "2031-05-06T07:08:09.1234567Z",
            ),
            ("2031-05-06T00:08:09+02:30", "2031-05-05T21:38:09Z"),
            ("2031-12-31T23:30:00.1-01:00", "2032-01-01T00:30:00.1Z"),
            ("1969-12-31T23:59:59.9999999Z", "1969-12-31T23:59:59.9999999Z"),
            ("2000-02-29T00:00:00Z", "2000-02-29T00:00:00Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31T23:59:59.9999999+00:00", "9999-12-31T23:59:59.9999999Z"),
        ] {
            for form in BOTH {
                assert_eq!(read(text, form).as_deref(), Some(time), "{text} as {form:?}");
            }
        }
    }

    #[test]
    fn what_people_write_is_one_where_that_is_asked_for() {
        for (text, time) in [
            ("2031-05-06", "2031-05-06T00:00:00Z"),
            ("2031-05-06T07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09.5", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06 07:08:09,5", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06 07:08:09+01:00", "2031-05-06T06:08:09Z"),
            ("2031-05-06t07:08:09z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09z", "2031-05-06T07:08:09Z"),
            ("9999-12-31", "9999-12-31T00:00:00Z"),
        ] {
            assert_eq!(read(text, TimeForm::Loose).as_deref(), Some(time), "{text}");
            assert_eq!(read(text, TimeForm::Rfc3339), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_none_in_either_form() {
        for text in [
            "",
            "2031",
            "2031-5-6",
            "2031-02-29",
            "1900-02-29",
            "2031-04-31",
            "2031-00-01",
            "2031-13-01",
            "2031-05-00",
            "2031-05-06T",
            "2031-05-06T07:08",
            "2031-05-06T7:08:09Z",
            "2031-05-06T24:00:00Z",
            "2031-05-06T07:60:00Z",
            "2031-05-06T07:08:60Z",
            "2031-05-06T07:08:09.",
            "2031-05-06T07:08:09.Z",
            "2031-05-06T07:08:09,",
            "2031-05-06T07:08:09,Z",
            "2031-05-06T07:08:09,5.5Z",
            "2031-05-06T07:08:09+2",
            "2031-05-06T07:08:09+0200",
            "2031-05-06T07:08:09+24:00",
            "2031-05-06T07:08:09+00:60",
            "2031-05-06T07:08:09 +02:00",
            "2031-05-06Z",
            "2031-05-06X07:08:09Z",
            "2031-05-06T07:08:09Zx",
            " 2031-05-06T07:08:09Z",
            "+031-05-06T07:08:09Z",
            "-031-05-06T07:08:09Z",
            "12031-05-06T07:08:09Z",
            "äöü31-05-06T07:08:09Z",
            "2031-05-06T07:08:09ä",
        ] {
            for form in BOTH {
                assert_eq!(read(text, form), None, "{text} as {form:?}");
            }
        }
    }

    /// Times of the years 1 to 9999.
    fn instants() -> impl Strategy<Value = i64> {
        Ticks::MISSING.0..=253_402_300_799 * PER_SECOND + 9_999_999
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ticks in instants()) {
            let time = Ticks(ticks);
            let mut micros = String::new();
            time.write_micros(&mut micros);
            for form in BOTH {
                prop_assert_eq!(Ticks::parse(&time.to_string(), form), Some(time));
                prop_assert_eq!(Ticks::parse(&micros, form), Some(Ticks(ticks.div_euclid(10) * 10)));
            }
        }

        #[test]
        fn a_zone_moves_the_clock(ticks in instants(), minutes in -1439i64..=1439) {
            let local = Ticks(ticks).to_string();
            let (sign, ahead) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
            let text = format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), ahead / 60, ahead % 60);
            for form in BOTH {
                prop_assert_eq!(Ticks::parse(&text, form), Some(Ticks(ticks - minutes * 60 * PER_SECOND)));
            }
        }

        #[test]
        fn what_the_strict_form_reads_the_loose_one_reads_alike(
            text in "[0-9]{4}-[01][0-9]-[0-3][0-9]([Tt ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\\.[0-9]{0,9})?(Z|z|[+-][0-2][0-9]:[0-9]{2})?)?",
        ) {
            let strict = Ticks::parse(&text, TimeForm::Rfc3339);
            prop_assert!(strict.is_none() || strict == Ticks::parse(&text, TimeForm::Loose));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = BOTH.map(|form| Ticks::parse(&text, form));
        }
    }
}
