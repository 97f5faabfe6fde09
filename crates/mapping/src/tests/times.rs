//! Times: Go layouts both ways, zones, Unix time.

use thalweg_record::{Message, Payload, Ticks, Value};

use super::{check, check_constant, compile_error, eval, mapping, outcome, typed};

#[test]
fn ts_parse_reads_go_layouts() {
    check_constant(&[
        ("\"2020-Aug-14\".ts_parse(\"2006-Jan-02\")", "\"2020-08-14T00:00:00Z\""),
        (
            "\"2020-08-14T11:45:26.371+02:00\".ts_parse(\"2006-01-02T15:04:05Z07:00\")",
            "\"2020-08-14T09:45:26.371Z\"",
        ),
        (
            "\"2020-08-14T11:45:26Z\".ts_parse(\"2006-01-02T15:04:05Z07:00\")",
            "\"2020-08-14T11:45:26Z\"",
        ),
        (
            "\"Mon Jan  2 15:04:05 2006\".ts_parse(\"Mon Jan _2 15:04:05 2006\")",
            "\"2006-01-02T15:04:05Z\"",
        ),
        (
            "\"Monday, 02-Jan-06 15:04:05 UTC\".ts_parse(\"Monday, 02-Jan-06 15:04:05 MST\")",
            "\"2006-01-02T15:04:05Z\"",
        ),
        (
            "\"02 Jan 06 15:04 -0700\".ts_parse(\"02 Jan 06 15:04 -0700\")",
            "\"2006-01-02T22:04:00Z\"",
        ),
        ("\"3:04PM\".ts_parse(\"3:04PM\").ts_format(\"15:04\")", "\"15:04\""),
        ("\"12:30am\".ts_parse(\"3:04pm\").ts_format(\"15:04\")", "\"00:30\""),
        ("\"2020-060\".ts_parse(\"2006-002\")", "\"2020-02-29T00:00:00Z\""),
        ("\"1/2/69\".ts_parse(\"1/2/06\")", "\"1969-01-02T00:00:00Z\""),
        (
            "\"12:00:01,250\".ts_parse(\"15:04:05,000\").ts_unix_milli() % 1000",
            "-750",
        ),
        (
            "\"2020-01-02 03:04:05.123456789\".ts_parse(\"2006-01-02 15:04:05.999999999\")",
            "\"2020-01-02T03:04:05.1234567Z\"",
        ),
        (
            "\"2020-02-30\".ts_parse(\"2006-01-02\")",
            "error: cannot parse \"2020-02-30\" as a time with layout \"2006-01-02\": the date or time is out of range at byte 10",
        ),
        (
            "\"2020-1-02\".ts_parse(\"2006-01-02\")",
            "error: cannot parse \"2020-1-02\" as a time with layout \"2006-01-02\": expected a month at byte 5",
        ),
        (
            "\"2020-01-02x\".ts_parse(\"2006-01-02\")",
            "error: cannot parse \"2020-01-02x\" as a time with layout \"2006-01-02\": unexpected text at byte 10",
        ),
        (
            "5.ts_parse(\"2006\")",
            "error: expected string value, got number from number literal (5)",
        ),
        ("(\"20\" + \"20\").ts_parse(\"20\" + \"06\").ts_unix()", "1577836800"),
    ]);
    let refused = eval("\"10:00 CET\".ts_parse(\"15:04 MST\")", "");
    assert!(
        refused.contains("expected UTC or GMT; other abbreviations do not tell the offset"),
        "{refused}"
    );
    let error = compile_error("root = this.a.ts_parse(\"YYYY-MM-DD\")");
    assert!(error.message.contains("`YYYY-MM-DD` has no field"), "{}", error.message);
}

#[test]
fn ts_format_prints_go_layouts_in_a_zone() {
    check_constant(&[
        ("1597405526.ts_format()", "\"2020-08-14T11:45:26Z\""),
        ("1597405526.25.ts_format()", "\"2020-08-14T11:45:26.25Z\""),
        ("-0.5.ts_format()", "\"1969-12-31T23:59:59.5Z\""),
        (
            "\"2020-08-14T11:45:26.123456789+02:00\".ts_format()",
            "\"2020-08-14T11:45:26.123456789+02:00\"",
        ),
        (
            "1597405526.ts_format(\"2006-Jan-02 15:04:05.000\")",
            "\"2020-Aug-14 11:45:26.000\"",
        ),
        (
            "1597405526.ts_format(\"Monday January 2 3:04:05PM 06 002 .99\")",
            "\"Friday August 14 11:45:26AM 20 227 \"",
        ),
        (
            "1597405526.ts_format(format: \"2006-01-02T15:04:05Z07:00 MST\", tz: \"Europe/Berlin\")",
            "\"2020-08-14T13:45:26+02:00 CEST\"",
        ),
        (
            "1597405526.ts_format(\"-07 -0700 -07:00:00 Z0700\", \"America/New_York\")",
            "\"-04 -0400 -04:00:00 -0400\"",
        ),
        (
            "1577836800.ts_format(\"_2 __2 Jan Janus Mon Monty _2006\")",
            "\" 1   1 Jan Janus Wed Monty _2020\"",
        ),
        ("1597405526.ts_format(\"2006\", \"UTC\")", "\"2020\""),
        (
            "true.ts_format()",
            "error: expected timestamp value, got bool from bool literal (true)",
        ),
        (
            "1e30.ts_format()",
            "error: 1000000000000000000000000000000 is not a time in seconds since 1970 between the years -9999 and 9999",
        ),
        (
            "\"x\".ts_format()",
            "error: cannot parse \"x\" as a time with layout \"2006-01-02T15:04:05.999999999Z07:00\": expected a year of four digits at byte 0",
        ),
    ]);
    assert!(
        eval("0.ts_format(\"2006\", \"Mars/\" + \"Olympus\")", "")
            .starts_with("error: unknown time zone `Mars/Olympus`")
    );
    assert!(
        compile_error("root = 0.ts_format(tz: \"Mars/Olympus\")")
            .message
            .starts_with("unknown time zone")
    );
}

#[test]
fn unix_times() {
    check(&[
        ("\"2020-08-14T11:45:26Z\".ts_unix()", "", "1597405526"),
        ("\"2020-08-14T11:45:26.371Z\".ts_unix_milli()", "", "1597405526371"),
        (
            "this.t.ts_unix_milli()",
            r#"{"t":1597405526.123456789}"#,
            "1597405526123",
        ),
        (
            "this.t.ts_format()",
            r#"{"t":1597405526.1234567891}"#,
            "\"2020-08-14T11:45:26.123456789Z\"",
        ),
        ("this.t.ts_format()", r#"{"t":-0.250}"#, "\"1969-12-31T23:59:59.75Z\""),
        ("now().ts_unix_milli()", "", "1935817689123"),
        ("\"1969-12-31T23:59:59.9Z\".ts_unix()", "", "-1"),
    ]);
}

#[test]
fn timestamps_compare_and_print_as_text() {
    check_constant(&[
        ("\"2020\".ts_parse(\"2006\") < \"2021\".ts_parse(\"2006\")", "true"),
        (
            "[\"2021\".ts_parse(\"2006\"), \"2020\".ts_parse(\"2006\")].sort().0",
            "\"2020-01-01T00:00:00Z\"",
        ),
        ("\"2020\".ts_parse(\"2006\").string()", "\"2020-01-01T00:00:00Z\""),
        ("\"at \" + \"2020\".ts_parse(\"2006\")", "\"at 2020-01-01T00:00:00Z\""),
        ("\"2020\".ts_parse(\"2006\") == \"2020-01-01T00:00:00Z\"", "true"),
    ]);
    let time = typed(Value::Time(Ticks::from_unix_millis(1_597_405_526_500)));
    assert_eq!(
        outcome(&mapping("root = this.ts_format(\"15:04:05.9\")"), time.clone()),
        "11:45:26.5"
    );
    let mut batch = [time];
    mapping("root = this").apply(&mut batch, 0).unwrap();
    assert_eq!(batch[0].payload, Payload::Raw("2020-08-14T11:45:26.5Z".into()));
    let _: &Message = &batch[0];
}

#[test]
fn strftime_formats_are_written_and_read() {
    check_constant(&[
        (
            "1597405526.371.ts_strftime(\"%Y-%b-%d %H:%M:%S\")",
            "\"2020-Aug-14 11:45:26\"",
        ),
        (
            "1597405526.ts_strftime(\"%A %d.%m.%y %H:%M %Z\", \"Europe/Berlin\")",
            "\"Friday 14.08.20 13:45 CEST\"",
        ),
        ("1597405526.format_timestamp_strftime(\"%j\")", "\"227\""),
        ("\"2020-Aug-14\".ts_strptime(\"%Y-%b-%d\")", "\"2020-08-14T00:00:00Z\""),
        (
            "\"2020-Aug-14 11:50:26.371000\".ts_strptime(\"%Y-%b-%d %H:%M:%S.%f\")",
            "\"2020-08-14T11:50:26.371Z\"",
        ),
        (
            "\"14/08/2020 11:50 +0200\".parse_timestamp_strptime(\"%d/%m/%Y %H:%M %z\")",
            "\"2020-08-14T09:50:00Z\"",
        ),
        ("\"1597405526\".ts_strptime(\"%s\")", "\"2020-08-14T11:45:26Z\""),
    ]);
    let refused = eval("\"14.08\".ts_strptime(\"%d/%m\")", "");
    assert!(
        refused.starts_with("error: cannot parse \"14.08\" as a time with format \"%d/%m\": "),
        "{refused}"
    );
    let error = compile_error("root = this.t.ts_strftime(\"%!\")");
    assert!(error.message.starts_with("bad time format \"%!\": "), "{error}");
    assert_eq!((error.line, error.column), (1, 27));
}

#[test]
fn zones_are_kept_until_the_time_is_written() {
    check_constant(&[
        ("1597405526.ts_tz(\"Europe/Berlin\")", "\"2020-08-14T13:45:26+02:00\""),
        (
            "1597405526.ts_tz(\"Europe/Berlin\").ts_format(\"2006-01-02 15:04 MST\")",
            "\"2020-08-14 13:45 CEST\"",
        ),
        (
            "1597405526.ts_tz(\"Europe/Berlin\").ts_strftime(\"%H:%M %Z\")",
            "\"13:45 CEST\"",
        ),
        (
            "1597405526.ts_tz(\"Europe/Berlin\").ts_format(\"15:04\", \"UTC\")",
            "\"11:45\"",
        ),
        ("1597405526.ts_tz(\"Europe/Berlin\").ts_unix()", "1597405526"),
        ("1597405526.ts_tz(\"UTC\")", "\"2020-08-14T11:45:26Z\""),
        // A text has its own offset.
        ("\"2020-08-14T11:45:26+05:30\".ts_format(\"15:04\")", "\"11:45\""),
        (
            "\"2020-08-14T11:45:26+05:30\".ts_format()",
            "\"2020-08-14T11:45:26+05:30\"",
        ),
        (
            "\"2020-08-14T11:45:26+05:30\".ts_format(tz: \"UTC\")",
            "\"2020-08-14T06:15:26Z\"",
        ),
        (
            "\"2020-08-14T11:45:26.5+05:30\".ts_round(1000000000)",
            "\"2020-08-14T11:45:27+05:30\"",
        ),
    ]);
}

#[test]
fn times_are_rounded_to_a_duration() {
    check_constant(&[
        (
            "\"2020-08-14T05:54:23Z\".ts_round(\"1h\".parse_duration())",
            "\"2020-08-14T06:00:00Z\"",
        ),
        (
            "\"2020-08-14T05:30:00Z\".ts_round(\"1h\".parse_duration())",
            "\"2020-08-14T06:00:00Z\"",
        ),
        (
            "\"2020-08-14T05:29:59Z\".ts_round(\"1h\".parse_duration())",
            "\"2020-08-14T05:00:00Z\"",
        ),
        (
            "\"1960-08-14T05:29:59Z\".ts_round(\"24h\".parse_duration())",
            "\"1960-08-14T00:00:00Z\"",
        ),
        // Weeks begin on the Monday of the first day of year 1.
        (
            "\"2020-08-12T00:00:00Z\".ts_round(\"168h\".parse_duration())",
            "\"2020-08-10T00:00:00Z\"",
        ),
        ("1597405526.371.ts_round(0)", "\"2020-08-14T11:45:26.371Z\""),
    ]);
}

#[test]
fn unix_times_in_all_units() {
    for method in ["ts_unix", "format_timestamp_unix"] {
        for (suffix, expected) in [
            ("", "1597405526"),
            ("_milli", "1597405526371"),
            ("_micro", "1597405526371123"),
            ("_nano", "1597405526371123456"),
        ] {
            let found = eval(&format!("\"2020-08-14T11:45:26.371123456Z\".{method}{suffix}()"), "");
            assert_eq!(found, expected, "{method}{suffix}");
        }
    }
    check_constant(&[
        ("\"2020-08-14\".parse_timestamp(\"2006-01-02\").ts_unix()", "1597363200"),
        ("1597363200.format_timestamp(\"2006\")", "\"2020\""),
    ]);
}

#[test]
fn durations_are_nanoseconds() {
    check_constant(&[
        ("\"50us\".parse_duration()", "50000"),
        ("\"1h15m30.5s\".parse_duration()", "4530500000000"),
        ("\"-1.5h\".parse_duration()", "-5400000000000"),
        ("\".5ms\".parse_duration()", "500000"),
        ("\"1.µs\".parse_duration()", "1000"),
        ("\"0.3333333333333333333h\".parse_duration()", "1199999999999"),
        ("\"0\".parse_duration()", "0"),
        ("\"+2ns\".parse_duration()", "2"),
        (
            "\"5\".parse_duration()",
            "error: cannot parse \"5\" as a duration such as `1h15m30.5s`: each number needs a unit of ns, us, ms, s, m, h",
        ),
        (
            "\".s\".parse_duration()",
            "error: cannot parse \".s\" as a duration such as `1h15m30.5s`: a number has no digits, or too many",
        ),
        (
            "\"3000000h\".parse_duration()",
            "error: cannot parse \"3000000h\" as a duration such as `1h15m30.5s`: it is longer than 292 years",
        ),
        (
            "\"\".parse_duration()",
            "error: cannot parse \"\" as a duration such as `1h15m30.5s`: it is empty",
        ),
    ]);
}
