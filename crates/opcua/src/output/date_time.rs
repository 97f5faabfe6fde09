//! Parses times: RFC 3339, and days with or without a time of day, which are taken as UTC.

use thalweg_record::{Ticks, TimeForm};

/// `2031-05-06`, `2031-05-06T07:08:09`, `2031-05-06 07:08:09.5`, `2031-05-06T07:08:09.123+02:00`. Fractions below 100
/// ns are cut off.
pub(super) fn parse(text: &str) -> Option<Ticks> {
    Ticks::parse(text, TimeForm::Loose)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_of_a_time_is_read() {
        for (text, time) in [
            ("2031-05-06", "2031-05-06T00:00:00Z"),
            ("2031-05-06T07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09", "2031-05-06T07:08:09Z"),
            ("2031-05-06 07:08:09.5", "2031-05-06T07:08:09.5Z"),
            ("2031-05-06T07:08:09Z", "2031-05-06T07:08:09Z"),
            ("2031-05-06t07:08:09z", "2031-05-06T07:08:09Z"),
            ("2031-05-06T07:08:09.12345678Z", "2031-05-06T07:08:09.1234567Z"),
            ("2031-05-06T00:08:09+02:30", "2031-05-05T21:38:09Z"),
            ("2031-12-31T23:30:00.1-01:00", "2032-01-01T00:30:00.1Z"),
            ("2032-02-29", "2032-02-29T00:00:00Z"),
            ("0001-01-01", "0001-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("9999-12-31", "9999-12-31T00:00:00Z"),
        ] {
            assert_eq!(
                parse(text).map(|time| time.to_string()),
                Some(time.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "2031",
            "2031-5-6",
            "2031-02-29",
            "2031-13-01",
            "2031-05-06T",
            "2031-05-06T07:08",
            "2031-05-06T24:00:00",
            "2031-05-06T07:08:60",
            "2031-05-06T07:08:09.",
            "2031-05-06T07:08:09+2",
            "2031-05-06T07:08:09+24:00",
            "2031-05-06Z",
            "2031-05-06X07:08:09",
            "+031-05-06",
            "2031-05-06T07:08:09Zx",
            "äöü31-05-06",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(ticks in -116_444_736_000_000_000i64..=2_534_023_007_990_000_000) {
            prop_assert_eq!(parse(&Ticks(ticks).to_string()), Some(Ticks(ticks)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }
}
