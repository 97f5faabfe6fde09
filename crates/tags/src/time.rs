//! The time of a sample: from metadata, from the OPC UA value, or now.

use std::borrow::Cow;

use thalweg_record::{Metadata, Ticks, TimeForm, Value, key};

/// The source of a sample's time if metadata has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimestampSource {
    Now,
    Source,
    Server,
}

pub(crate) const TIMESTAMP_MS: &str = "timestamp_ms";
pub(crate) const TIMESTAMP: &str = "timestamp";

/// The time in milliseconds since 1970, if metadata or the value contain one. Calls `warn` if the metadata is not a
/// valid time.
pub(crate) fn sample_time(meta: &Metadata, source: TimestampSource, mut warn: impl FnMut(String)) -> Option<i64> {
    if let Some(text) = meta.get(TIMESTAMP_MS) {
        if let Some(ms) = parse(&text) {
            return Some(ms);
        }
        warn(format!(
            "Failed to parse timestamp_ms metadata '{}', trying timestamp field",
            shortened(&text)
        ));
    }
    if let Some(text) = meta.get(TIMESTAMP) {
        if let Some(ms) = parse(&text) {
            return Some(ms);
        }
        warn(format!(
            "Failed to parse timestamp metadata '{}', using current time",
            shortened(&text)
        ));
    }
    time_of_value(meta, source)
}

/// The OPC UA time, unless it is missing.
pub(crate) fn time_of_value(meta: &Metadata, source: TimestampSource) -> Option<i64> {
    let (name, stamp) = match source {
        TimestampSource::Now => return None,
        TimestampSource::Source => (key::SOURCE_TIMESTAMP, meta.stamps().map(|stamps| stamps.source_time)),
        TimestampSource::Server => (key::SERVER_TIMESTAMP, meta.stamps().map(|stamps| stamps.server_time)),
    };
    match stamp {
        Some(time) => (!time.is_missing()).then(|| time.unix_millis()),
        // A value that came through another system has its times as text.
        None => meta
            .get(name)
            .and_then(|text| rfc3339_ms(&text))
            .filter(|ms| *ms > Ticks::MISSING.unix_millis()),
    }
}

/// Larger whole numbers are not exact as doubles.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The time in a payload: a whole number of milliseconds in any notation, such as `1717083000000` or `1.717083e12`.
pub(crate) fn whole_ms(time: &Value) -> Option<i64> {
    let whole = || {
        let number = time.as_f64()?;
        (number.fract() == 0.0 && number.abs() <= EXACT_MAX).then_some(number as i64)
    };
    time.as_i64().or_else(whole)
}

pub(crate) fn now_ms() -> i64 {
    Ticks::now().unix_millis()
}

fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(200) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
}

/// Whole milliseconds, or RFC 3339.
fn parse(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| rfc3339_ms(text))
}

/// In milliseconds, rounded towards the past.
fn rfc3339_ms(text: &str) -> Option<i64> {
    Ticks::parse(text, TimeForm::Rfc3339).map(Ticks::unix_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use thalweg_record::{MetaMap, ValueQuality};

    fn time(meta: &Metadata, source: TimestampSource) -> (i64, Vec<String>) {
        let mut warnings = Vec::new();
        let ms = sample_time(meta, source, |text| warnings.push(text));
        (ms.unwrap_or_else(now_ms), warnings)
    }

    #[test]
    fn metadata_decides_first() {
        for (key, text, ms) in [
            (TIMESTAMP_MS, "1700000000123", 1_700_000_000_123),
            (TIMESTAMP_MS, "0", 0),
            (TIMESTAMP_MS, "-5", -5),
            (TIMESTAMP_MS, "+5", 5),
            (TIMESTAMP_MS, "1970-01-01T00:00:01.5Z", 1500),
            (TIMESTAMP, "1970-01-01T01:00:00+01:00", 0),
            (TIMESTAMP, "1969-12-31T23:59:59.9999Z", -1),
            (TIMESTAMP, "2024-02-29T00:00:00-05:30", 1_709_184_600_000),
            (TIMESTAMP, "0001-01-01T00:00:00Z", -62_135_596_800_000),
            (TIMESTAMP, "12", 12),
            (TIMESTAMP_MS, "1970-01-01T00:00:01,5Z", 1500),
            (TIMESTAMP, "1970-01-01T01:00:00,25+01:00", 250),
        ] {
            let mut meta = Metadata::default();
            meta.set(key, text);
            assert_eq!(time(&meta, TimestampSource::Source), (ms, vec![]), "{text}");
        }
        let mut both = Metadata::default();
        both.set(TIMESTAMP_MS, "7");
        both.set(TIMESTAMP, "8");
        assert_eq!(time(&both, TimestampSource::Now).0, 7);
    }

    #[test]
    fn what_is_no_time_warns_and_the_next_source_counts() {
        let mut meta = Metadata::default();
        meta.set(TIMESTAMP_MS, "soon");
        meta.set(TIMESTAMP, "9");
        assert_eq!(
            time(&meta, TimestampSource::Now),
            (
                9,
                vec!["Failed to parse timestamp_ms metadata 'soon', trying timestamp field".to_owned()]
            )
        );
        meta.set(TIMESTAMP, "2024-02-30T00:00:00Z");
        let (ms, warnings) = time(&meta, TimestampSource::Now);
        assert!(ms > 1_600_000_000_000);
        assert_eq!(
            warnings.last().unwrap(),
            "Failed to parse timestamp metadata '2024-02-30T00:00:00Z', using current time"
        );
        for text in [
            "1.5",
            "1e3",
            "2024-01-01",
            "2024-01-01 00:00:00Z",
            "2024-1-01T00:00:00Z",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00,Z",
            "2024-01-01T00:00:00,5.5Z",
            "1,5",
            "2024-01-01T00:00:00+2:00",
            "é024-01-01T00:00:00Z",
            "",
            " 5",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_time_of_the_value_counts_if_configured_and_present() {
        let stamps = ValueQuality {
            source_time: Ticks::from_unix_millis(1000),
            server_time: Ticks::MISSING,
            status: 0,
        };
        let meta = Metadata::stamped(Arc::new(MetaMap::default()), stamps);
        assert_eq!(time(&meta, TimestampSource::Source).0, 1000);
        assert!(time(&meta, TimestampSource::Server).0 > 1_600_000_000_000);
        assert!(time(&meta, TimestampSource::Now).0 > 1_600_000_000_000);
        let mut text = Metadata::default();
        text.set(key::SOURCE_TIMESTAMP, "1970-01-01T00:00:02.000000Z");
        assert_eq!(time(&text, TimestampSource::Source).0, 2000);
        text.set(key::SOURCE_TIMESTAMP, "1970-01-01T00:00:02,500000Z");
        assert_eq!(time(&text, TimestampSource::Source).0, 2500);
        text.set(key::SOURCE_TIMESTAMP, "0001-01-01T00:00:00.000000Z");
        assert!(time(&text, TimestampSource::Source).0 > 1_600_000_000_000);
    }

    proptest! {
        #[test]
        fn printed_times_read_back(ms in -62_135_596_800_000i64..253_402_300_800_000) {
            prop_assert_eq!(rfc3339_ms(&Ticks::from_unix_millis(ms).to_string()), Some(ms));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,30}") {
            let _ = parse(&text);
        }
    }
}
