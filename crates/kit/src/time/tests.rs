use jiff::Timestamp;
use jiff::tz::Offset;
use proptest::prelude::*;

use super::*;

/// All that any caller allows.
const EVERYTHING: TimeGrammar = TimeGrammar {
    separators: b"Tt ",
    small_z: true,
    zone_is_optional: true,
    date_alone: true,
    leap_seconds: true,
    zone_hours_max: 25,
    decimals_max: 9,
    comma: true,
};

/// What the library reads among the texts that have the form of RFC 3339.
const LIBRARY_GRAMMAR: TimeGrammar = TimeGrammar {
    zone_is_optional: false,
    date_alone: false,
    ..EVERYTHING
};

/// The seconds of times that the library has: all but the last hours of the year 9999.
const LIBRARY_SECONDS: std::ops::Range<i64> = -377_705_023_201..253_402_207_201;
const YEAR_0: i64 = -62_167_219_200;
const YEAR_10000: i64 = 253_402_300_800;

fn text(time: UnixTime, decimals: Decimals, years: YearForm) -> String {
    TimeText::new(time, decimals, years).to_string()
}

fn as_needed(time: UnixTime) -> String {
    text(time, Decimals::UpTo(9), YearForm::Expanded)
}

fn is_read(text: &str, grammar: &TimeGrammar) -> Option<String> {
    parse(text, grammar).map(as_needed)
}

/// A date that is refused, or that is counted wrongly, breaks the sequence; so does one that does not exist.
#[test]
fn each_day_of_ten_thousand_years_has_its_number_and_no_other_day_exists() {
    let mut next = YEAR_0 / SECONDS_PER_DAY;
    for year in 0..10_000 {
        for (month, day) in (0..=13).flat_map(|month| (0..=32).map(move |day| (month, day))) {
            if let Some(date) = CivilDate::new(year, month, day) {
                assert_eq!((date.days(), CivilDate::from_days(next)), (next, date));
                next += 1;
            }
        }
    }
    assert_eq!(next, YEAR_10000 / SECONDS_PER_DAY);
    assert_eq!(CivilDate::new(2031, u8::MAX, u8::MAX), None);
}

#[test]
fn a_date_that_does_not_exist_is_refused_in_each_month_and_year() {
    for year in [1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999] {
        for (month, day) in (0..100).flat_map(|month| (0..100).map(move |day| (month, day))) {
            let exists = jiff::civil::Date::new(year, month, day).is_ok();
            let (date, found) = (
                format!("{year:04}-{month:02}-{day:02}"),
                CivilDate::new(year.into(), month as u8, day as u8),
            );
            assert_eq!(found.is_some(), exists, "{date}");
            assert_eq!(parse(&date, &EVERYTHING).is_some(), exists, "{date}");
            let time = format!("{date}T00:00:00Z");
            assert_eq!(parse(&time, &TimeGrammar::RFC_3339).is_some(), exists, "{date}");
        }
    }
}

#[test]
fn a_clock_shows_times_from_0_to_23_59_59() {
    for (first, second) in (0..100).flat_map(|first| (0..100).map(move |second| (first, second))) {
        let is_read = |clock: String| parse(&format!("2031-05-06T{clock}Z"), &TimeGrammar::RFC_3339).is_some();
        assert_eq!(is_read(format!("{first:02}:{second:02}:07")), first < 24 && second < 60);
        assert_eq!(is_read(format!("07:{first:02}:{second:02}")), first < 60 && second < 60);
    }
}

#[test]
fn each_freedom_of_a_grammar_is_refused_without_it() {
    let strict = TimeGrammar::RFC_3339;
    let cases: [(&str, &str, TimeGrammar); 9] = [
        (
            "2031-05-06t07:08:09Z",
            "2031-05-06T07:08:09Z",
            TimeGrammar {
                separators: b"Tt",
                ..strict
            },
        ),
        (
            "2031-05-06 07:08:09Z",
            "2031-05-06T07:08:09Z",
            TimeGrammar {
                separators: b" ",
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:09z",
            "2031-05-06T07:08:09Z",
            TimeGrammar {
                small_z: true,
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:09.5",
            "2031-05-06T07:08:09.5Z",
            TimeGrammar {
                zone_is_optional: true,
                ..strict
            },
        ),
        (
            "2031-05-06",
            "2031-05-06T00:00:00Z",
            TimeGrammar {
                date_alone: true,
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:60Z",
            "2031-05-06T07:08:59Z",
            TimeGrammar {
                leap_seconds: true,
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:60.5Z",
            "2031-05-06T07:08:59.5Z",
            TimeGrammar {
                leap_seconds: true,
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:09+25:59",
            "2031-05-05T05:09:09Z",
            TimeGrammar {
                zone_hours_max: 25,
                ..strict
            },
        ),
        (
            "2031-05-06T07:08:09-24:00",
            "2031-05-07T07:08:09Z",
            TimeGrammar {
                zone_hours_max: 24,
                ..strict
            },
        ),
    ];
    for (given, expected, grammar) in cases {
        assert_eq!(is_read(given, &grammar).as_deref(), Some(expected), "{given}");
        assert_eq!(is_read(given, &EVERYTHING).as_deref(), Some(expected), "{given}");
        assert_eq!(parse(given, &strict), None, "{given}");
    }
    let with_comma = "2031-05-06T07:08:09,5Z";
    assert_eq!(is_read(with_comma, &strict).as_deref(), Some("2031-05-06T07:08:09.5Z"));
    assert_eq!(parse(with_comma, &TimeGrammar { comma: false, ..strict }), None);
    let ten_digits = "2031-05-06T07:08:09.1234567899Z";
    assert_eq!(
        is_read(ten_digits, &strict).as_deref(),
        Some("2031-05-06T07:08:09.123456789Z")
    );
    assert_eq!(parse(ten_digits, &EVERYTHING), None);
}

#[test]
fn what_is_no_time_is_none_in_any_grammar() {
    for text in [
        "",
        "2031",
        "2031-5-6",
        "2031-05-06T",
        "2031-05-06Z",
        "2031-05-06T07:08",
        "2031-05-06T7:08:09Z",
        "2031-05-06T07:08:61Z",
        "2031-05-06T07:08:09.",
        "2031-05-06T07:08:09.Z",
        "2031-05-06T07:08:09,",
        "2031-05-06T07:08:09,Z",
        "2031-05-06T07:08:09,5,5Z",
        "2031-05-06T07:08:09;5Z",
        "2031-05-06T07:08:09+2",
        "2031-05-06T07:08:09+02",
        "2031-05-06T07:08:09+0200",
        "2031-05-06T07:08:09+26:00",
        "2031-05-06T07:08:09+00:60",
        "2031-05-06T07:08:09 +02:00",
        "2031-05-06T07:08:09+02:00:00",
        "2031-05-06X07:08:09Z",
        "2031-05-06T07-08-09Z",
        "2031/05/06T07:08:09Z",
        "2031-05-06T07:08:09Zx",
        "2031-05-06T07:08:09Z[UTC]",
        " 2031-05-06T07:08:09Z",
        "2031-05-06T07:08:09Z ",
        "+031-05-06T07:08:09Z",
        "-031-05-06T07:08:09Z",
        "+002031-05-06T07:08:09Z",
        "20310506T070809Z",
        "äöü31-05-06T07:08:09Z",
        "2031-05-06T07:08:09ä",
        "２031-05-06T07:08:09Z",
    ] {
        for grammar in [&TimeGrammar::RFC_3339, &EVERYTHING] {
            assert_eq!(parse(text, grammar), None, "{text}");
        }
    }
}

#[test]
fn a_fraction_has_the_digits_that_are_asked_for() {
    let time = UnixTime {
        seconds: 1_935_817_689,
        nanos: 120_340_000,
    };
    let whole = UnixTime { nanos: 0, ..time };
    for (decimals, expected, of_whole) in [
        (Decimals::Exactly(0), "", ""),
        (Decimals::Exactly(3), ".120", ".000"),
        (Decimals::Exactly(6), ".120340", ".000000"),
        (Decimals::Exactly(9), ".120340000", ".000000000"),
        (Decimals::UpTo(0), "", ""),
        (Decimals::UpTo(1), ".1", ""),
        (Decimals::UpTo(3), ".12", ""),
        (Decimals::UpTo(9), ".12034", ""),
        (Decimals::UpTo(u8::MAX), ".12034", ""),
    ] {
        for (time, fraction) in [(time, expected), (whole, of_whole)] {
            let written = text(time, decimals, YearForm::Plain);
            assert_eq!(written, format!("2031-05-06T07:08:09{fraction}Z"), "{decimals:?}");
        }
    }
}

#[test]
fn other_years_than_those_of_four_digits_have_the_form_that_is_asked_for() {
    for (seconds, plain, expanded) in [
        (YEAR_0, "0000-01-01", "0000-01-01"),
        (YEAR_0 - 1, "-001-12-31", "-000001-12-31"),
        (YEAR_10000 - 1, "9999-12-31", "9999-12-31"),
        (YEAR_10000, "10000-01-01", "+010000-01-01"),
        (i64::MIN, "-292277022657-01-27", "-292277022657-01-27"),
        (i64::MAX, "292277026596-12-04", "+292277026596-12-04"),
    ] {
        let time = UnixTime {
            seconds,
            nanos: 999_999_999,
        };
        for (form, date) in [(YearForm::Plain, plain), (YearForm::Expanded, expanded)] {
            let written = text(time, Decimals::Exactly(9), form);
            assert!(written.starts_with(date), "{written}");
            assert!(written.ends_with(".999999999Z"), "{written}");
        }
    }
}

#[test]
fn units_are_rounded_towards_the_past_and_end_at_their_range() {
    let before = UnixTime {
        seconds: -1,
        nanos: 999_999_999,
    };
    assert_eq!((before.millis(), before.micros(), before.total_nanos()), (-1, -1, -1));
    assert_eq!((before.units(1), before.units(10_000_000)), (-1, -1));
    let after = UnixTime {
        seconds: 1,
        nanos: 1_999_999,
    };
    assert_eq!(
        (after.millis(), after.micros(), after.total_nanos()),
        (1001, 1_001_999, 1_001_999_999)
    );
    let ends = [i64::MIN, i64::MAX].map(|seconds| UnixTime { seconds, nanos: 0 });
    assert_eq!(ends.map(UnixTime::micros), [i64::MIN, i64::MAX]);
}

fn times(seconds: std::ops::Range<i64>) -> impl Strategy<Value = UnixTime> {
    let nanos = prop_oneof![
        Just(0_u32),
        0..1_000_000_000_u32,
        (0..1_000_u32).prop_map(|millis| millis * 1_000_000)
    ];
    (seconds, nanos).prop_map(|(seconds, nanos)| UnixTime { seconds, nanos })
}

proptest! {
    #[test]
    fn what_is_written_is_what_the_library_writes_and_is_read_as_the_same_time(time in times(LIBRARY_SECONDS)) {
        let same = Timestamp::from_nanosecond(time.total_nanos()).unwrap();
        let written = as_needed(time);
        prop_assert_eq!(&written, &same.to_string());
        if (YEAR_0..YEAR_10000).contains(&time.seconds) {
            for grammar in [TimeGrammar::RFC_3339, EVERYTHING] {
                prop_assert_eq!(parse(&written, &grammar), Some(time));
            }
        }
        let micros = text(time, Decimals::Exactly(6), YearForm::Expanded);
        prop_assert_eq!(micros, format!("{same:.6}"));
    }

    #[test]
    fn a_calendar_shows_what_that_of_the_library_shows(time in times(LIBRARY_SECONDS)) {
        let same = Timestamp::from_nanosecond(time.total_nanos()).unwrap();
        let (civil, same) = (time.civil(), Offset::UTC.to_datetime(same));
        prop_assert_eq!(civil.date.year, i64::from(same.year()));
        let shown = [civil.date.month, civil.date.day, civil.hour, civil.minute, civil.second, civil.date.weekday()];
        let of_library = [
            same.month(), same.day(), same.hour(), same.minute(), same.second(), same.weekday().to_sunday_zero_offset(),
        ];
        prop_assert_eq!(shown.map(i64::from), of_library.map(i64::from));
        prop_assert_eq!(i64::from(civil.nanos), i64::from(same.subsec_nanosecond()));
    }

    #[test]
    fn a_text_in_the_form_of_rfc_3339_is_what_the_library_says(
        text in "[0-9]{4}-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-6][0-9]:[0-6][0-9]([.,][0-9]{0,11})?(Z|z|[+-][0-2][0-9]:[0-6][0-9])",
    ) {
        let same = text.parse::<Timestamp>().ok().map(Timestamp::as_nanosecond);
        // The library has no times of the last hours of 9999.
        let found = parse(&text, &LIBRARY_GRAMMAR).filter(|time| LIBRARY_SECONDS.contains(&time.seconds));
        prop_assert_eq!(found.map(UnixTime::total_nanos), same);
    }

    #[test]
    fn a_zone_moves_the_clock(time in times(YEAR_0..YEAR_10000), minutes in -1439_i64..=1439) {
        let local = as_needed(time);
        let (sign, ahead) = (if minutes < 0 { '-' } else { '+' }, minutes.abs());
        let text = format!("{}{sign}{:02}:{:02}", local.trim_end_matches('Z'), ahead / 60, ahead % 60);
        let expected = UnixTime { seconds: time.seconds - minutes * 60, ..time };
        prop_assert_eq!(parse(&text, &TimeGrammar::RFC_3339), Some(expected));
    }

    #[test]
    fn units_come_back(units in any::<i64>(), digits in 0_u32..=9) {
        let per_second = 10_i64.pow(digits);
        let time = UnixTime::from_units(units, per_second);
        prop_assert_eq!(time.units(per_second), units);
        prop_assert_eq!(time.total_nanos(), i128::from(units) * i128::from(NANOS_PER_SECOND / per_second));
        prop_assert!(i64::from(time.nanos) < NANOS_PER_SECOND);
    }

    #[test]
    fn no_text_and_no_time_panics(text in ".{0,40}", seconds in any::<i64>(), nanos in 0..1_000_000_000_u32) {
        let _ = (parse(&text, &TimeGrammar::RFC_3339), parse(&text, &EVERYTHING));
        let written = as_needed(UnixTime { seconds, nanos });
        prop_assert!(written.ends_with('Z'), "{written}");
    }
}
