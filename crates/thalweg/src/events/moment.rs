//! Times on the command line: RFC 3339, or a day, which begins at midnight UTC. The result is in microseconds, like the
//! times of messages.

use jiff::Timestamp;

/// Returns the first microsecond that is not before the given time, so that "from then on" and "before then" are exact
/// also for nanoseconds.
pub fn parse(text: &str) -> Result<i64, String> {
    let is_day = text.len() == 10;
    let written = match is_day {
        true => format!("{text}T00:00:00Z"),
        false => text.to_owned(),
    };
    let mistake = |_| "expected RFC 3339, such as 2026-01-15T10:30:00.25Z, or a day, such as 2026-01-15".to_owned();
    let moment: Timestamp = written.parse().map_err(mistake)?;
    let nanos = moment.as_nanosecond();
    let micros = nanos.div_euclid(1000) + i128::from(nanos.rem_euclid(1000) > 0);
    i64::try_from(micros).map_err(|_| "the time is out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_first_microsecond_that_is_not_before_it() {
        for (text, expected) in [
            ("1970-01-02", Some(86_400_000_000)),
            ("1970-01-01T00:00:00.25Z", Some(250_000)),
            ("1970-01-01T00:00:00.000001Z", Some(1)),
            ("1970-01-01T00:00:00.000001001Z", Some(2)),
            ("1970-01-01T01:00:00+01:00", Some(0)),
            ("1969-12-31T23:59:59.9999995Z", Some(0)),
            ("1970-01-01T00:00:00", None),
            ("yesterday", None),
            ("2026-13-01", None),
            ("", None),
        ] {
            assert_eq!(parse(text).ok(), expected, "{text}");
        }
    }
}
