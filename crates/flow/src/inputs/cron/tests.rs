//! Expressions, and the points in time that they name, also where clocks are changed.

use super::*;
use proptest::prelude::*;

fn expression(text: &str) -> CronExpression {
    CronExpression::parse(text).unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// The next `count` points in time, in the local time of the expression's zone.
fn due(text: &str, after: &str, count: usize) -> Vec<String> {
    let expression = expression(text);
    let mut at: Timestamp = after.parse().unwrap();
    let mut found = Vec::new();
    for _ in 0..count {
        at = expression.next(at).unwrap();
        found.push(
            at.to_zoned(expression.zone.clone())
                .strftime("%Y-%m-%dT%H:%M:%S%:z")
                .to_string(),
        );
    }
    found
}

#[test]
fn expressions_name_points_in_time() {
    for (text, after, expected) in [
        (
            "TZ=UTC * * * * *",
            "2026-01-01T00:00:00Z",
            ["2026-01-01T00:01:00+00:00", "2026-01-01T00:02:00+00:00"],
        ),
        (
            "TZ=UTC * * * * * *",
            "2026-01-01T00:00:00.5Z",
            ["2026-01-01T00:00:01+00:00", "2026-01-01T00:00:02+00:00"],
        ),
        (
            "TZ=UTC 0,30 */2 * * * *",
            "2026-01-01T00:59:00Z",
            ["2026-01-01T01:00:00+00:00", "2026-01-01T01:00:30+00:00"],
        ),
        (
            "TZ=UTC 30 3-6,20-23 * * *",
            "2026-01-01T06:30:00Z",
            ["2026-01-01T20:30:00+00:00", "2026-01-01T21:30:00+00:00"],
        ),
        (
            "TZ=UTC 0 12 * * MON-fri",
            "2026-01-02T12:00:00Z",
            ["2026-01-05T12:00:00+00:00", "2026-01-06T12:00:00+00:00"],
        ),
        (
            "TZ=UTC 0 0 1 JAN,jul ?",
            "2026-01-01T00:00:00Z",
            ["2026-07-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"],
        ),
        // Both fields for days leave some out: either is enough.
        (
            "TZ=UTC 0 0 13 * 5",
            "2026-03-08T00:00:00Z",
            ["2026-03-13T00:00:00+00:00", "2026-03-20T00:00:00+00:00"],
        ),
        (
            "TZ=UTC 0 0 * * 7",
            "2026-01-01T00:00:00Z",
            ["2026-01-04T00:00:00+00:00", "2026-01-11T00:00:00+00:00"],
        ),
        (
            "TZ=UTC 0 0 * * 5-7",
            "2026-01-03T00:00:00Z",
            ["2026-01-04T00:00:00+00:00", "2026-01-09T00:00:00+00:00"],
        ),
        (
            "TZ=UTC 0 0 29 2 *",
            "2096-03-01T00:00:00Z",
            ["2104-02-29T00:00:00+00:00", "2108-02-29T00:00:00+00:00"],
        ),
        (
            "TZ=UTC 5/20 * * * *",
            "2026-01-01T00:05:00Z",
            ["2026-01-01T00:25:00+00:00", "2026-01-01T00:45:00+00:00"],
        ),
        (
            "CRON_TZ=Asia/Kolkata @daily",
            "2026-01-01T00:00:00Z",
            ["2026-01-02T00:00:00+05:30", "2026-01-03T00:00:00+05:30"],
        ),
        (
            "TZ=UTC @hourly",
            "2026-01-01T00:00:00Z",
            ["2026-01-01T01:00:00+00:00", "2026-01-01T02:00:00+00:00"],
        ),
        (
            "TZ=UTC @weekly",
            "2026-01-01T00:00:00Z",
            ["2026-01-04T00:00:00+00:00", "2026-01-11T00:00:00+00:00"],
        ),
        (
            "TZ=UTC @monthly",
            "2026-01-01T00:00:00Z",
            ["2026-02-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"],
        ),
        (
            "TZ=UTC @yearly",
            "2026-01-01T00:00:00Z",
            ["2027-01-01T00:00:00+00:00", "2028-01-01T00:00:00+00:00"],
        ),
    ] {
        assert_eq!(due(text, after, 2), expected, "{text} after {after}");
    }
}

/// In Berlin, the clock goes from 2:00 to 3:00 on 29 March 2026, and from 3:00 back to 2:00 on 25 October.
#[test]
fn a_time_that_is_jumped_over_is_due_after_the_jump_and_one_that_comes_twice_once() {
    for (text, after, expected) in [
        (
            "30 2 * * *",
            "2026-03-28T00:00:00Z",
            [
                "2026-03-28T02:30:00+01:00",
                "2026-03-29T03:00:00+02:00",
                "2026-03-30T02:30:00+02:00",
            ],
        ),
        (
            "0,30 2-3 * * *",
            "2026-03-28T02:15:00Z",
            [
                "2026-03-28T03:30:00+01:00",
                "2026-03-29T03:00:00+02:00",
                "2026-03-29T03:30:00+02:00",
            ],
        ),
        (
            "30 2 * * *",
            "2026-10-24T12:00:00Z",
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-26T02:30:00+01:00",
                "2026-10-27T02:30:00+01:00",
            ],
        ),
        // From within the hour that comes again.
        (
            "30 2 * * *",
            "2026-10-25T01:10:00Z",
            [
                "2026-10-26T02:30:00+01:00",
                "2026-10-27T02:30:00+01:00",
                "2026-10-28T02:30:00+01:00",
            ],
        ),
        (
            "0 3 * * *",
            "2026-10-25T01:10:00Z",
            [
                "2026-10-25T03:00:00+01:00",
                "2026-10-26T03:00:00+01:00",
                "2026-10-27T03:00:00+01:00",
            ],
        ),
        // What is due in every hour goes by the clock as it is.
        (
            "*/30 * * * *",
            "2026-10-25T00:10:00Z",
            [
                "2026-10-25T02:30:00+02:00",
                "2026-10-25T02:00:00+01:00",
                "2026-10-25T02:30:00+01:00",
            ],
        ),
        (
            "*/30 * * * *",
            "2026-03-29T00:10:00Z",
            [
                "2026-03-29T01:30:00+01:00",
                "2026-03-29T03:00:00+02:00",
                "2026-03-29T03:30:00+02:00",
            ],
        ),
    ] {
        assert_eq!(
            due(&format!("TZ=Europe/Berlin {text}"), after, 3),
            expected,
            "{text} after {after}"
        );
    }
}

#[test]
fn mistakes_are_named() {
    for (text, part) in [
        ("* * * *", "this one has 4"),
        ("* * * * * * *", "this one has 7"),
        (
            "60 * * * *",
            "\"60\" is no minute: \"60\" is not one of its values; expected numbers from 0 to 59",
        ),
        ("* 5-1 * * *", "\"5-1\" is no hour: 5-1 goes backward"),
        ("*/0 * * * *", "\"0\" is no step"),
        ("* * 0 * *", "no day of the month"),
        ("* * * foo *", "no month"),
        ("* * * * 8", "no day of the week"),
        ("* * * * +1", "no day of the week"),
        ("1,,2 * * * *", "no minute"),
        ("0 0 30 2 *", "there is no such day"),
        ("@fortnightly", "unknown descriptor \"@fortnightly\""),
        ("TZ=Mars/Olympus * * * * *", "unknown time zone \"Mars/Olympus\""),
        ("ZONE=UTC * * * * *", "is not a zone such as TZ=Europe/Berlin"),
        ("", "this one has 0"),
    ] {
        let why = CronExpression::parse(text).unwrap_err();
        assert!(why.contains(part), "{text}: {why}");
    }
}

#[test]
fn an_expression_is_told_from_a_duration() {
    for text in ["@every 1s", "@daily", "0 * * * *", "TZ=UTC @daily"] {
        assert!(CronExpression::is_meant(text), "{text}");
    }
    for text in ["1s", "500ms", "", "5x"] {
        assert!(!CronExpression::is_meant(text), "{text}");
    }
}

proptest! {
    /// Times only go forward, fit the expression, and none between is left out, whatever the zone's clock does.
    #[test]
    fn the_next_time_is_the_first_that_fits(
        minute in 0u8..60, hour in 0u8..24, start in 1_700_000_000i64..1_900_000_000,
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    ) {
        let expression = expression(&format!("TZ={zone} {minute} {hour} * * *"));
        let mut at = Timestamp::from_second(start).unwrap();
        for _ in 0..400 {
            let next = expression.next(at).unwrap();
            let hours = next.duration_since(at).as_secs_f64() / 3600.0;
            prop_assert!(next > at && hours <= 25.1, "{at} {next}");
            let local = next.to_zoned(expression.zone.clone());
            let is_named = (local.minute(), local.hour()) == (minute as i8, hour as i8);
            let change = expression.zone.following(next.checked_sub(jiff::Span::new().seconds(1)).unwrap()).next();
            prop_assert!(is_named || change.is_some_and(|change| change.timestamp() == next), "{local}");
            at = next;
        }
    }
}
