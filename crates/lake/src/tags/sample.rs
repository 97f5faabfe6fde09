//! The value of a message in the table's columns, and its time.
//!
//! A value is stored in the columns that represent it without loss, with the name of its sent type; `"12"` stays text.
//! Raw bytes are read as JSON if possible, else as text, else as bytes.

use std::borrow::Cow;

use thalweg_record::{Object, Payload, Text, Ticks, Value, ValueQuality, json};

use thalweg_columns::rows::times::ArrivalWindow;

const NANOS_PER_MILLI: i128 = 1_000_000;
const NANOS_PER_TICK: i128 = 100;

/// A value in the columns of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TagValueCells<'a> {
    /// `value_type`
    pub kind: &'static str,
    /// `value`: any number or boolean, nearest double.
    pub number: Option<f64>,
    /// `value_int`: an exact integer.
    pub integer: Option<i64>,
    /// `value_text`
    pub text: Option<Cow<'a, str>>,
    /// `value_bytes`
    pub bytes: Option<&'a [u8]>,
    /// The time in the payload.
    pub time_ms: Option<i64>,
}

impl<'a> TagValueCells<'a> {
    pub fn of(payload: &'a Payload) -> TagValueCells<'a> {
        match payload {
            Payload::Value(value) => TagValueCells::of_value(value),
            Payload::Sample { value, time_ms } => TagValueCells {
                time_ms: Some(*time_ms),
                ..TagValueCells::of_value(value)
            },
            Payload::Raw(bytes) => TagValueCells::of_raw(bytes),
        }
    }

    fn of_value(value: &'a Value) -> TagValueCells<'a> {
        let text = match value {
            Value::Text(text) | Value::Xml(text) | Value::NodeId(text) | Value::Decimal(text) => {
                Some(Cow::Borrowed(text.as_str()))
            }
            other => written_text(other).map(Cow::Owned),
        };
        let bytes = match value {
            Value::Bytes(bytes) => Some(&**bytes),
            _ => None,
        };
        TagValueCells {
            text,
            bytes,
            ..TagValueCells::numeric(value)
        }
    }

    /// The columns that do not borrow from the value.
    fn numeric(value: &Value) -> TagValueCells<'static> {
        let (number, integer) = match value {
            Value::Bool(truth) => (Some(f64::from(u8::from(*truth))), Some(i64::from(*truth))),
            number => (number.as_f64(), number.as_i64()),
        };
        TagValueCells {
            kind: value.type_name(),
            number,
            integer,
            ..TagValueCells::default()
        }
    }

    fn of_raw(bytes: &'a [u8]) -> TagValueCells<'a> {
        let Ok(text) = std::str::from_utf8(bytes) else {
            return TagValueCells {
                kind: "bytestring",
                bytes: Some(bytes),
                ..TagValueCells::default()
            };
        };
        match json::parse(bytes) {
            Ok(Value::Object(object)) => match sample_of(&object) {
                Some((value, time_ms)) => TagValueCells {
                    time_ms: Some(time_ms),
                    ..TagValueCells::owned(value)
                },
                None => TagValueCells::structured(&Value::Object(object), text),
            },
            Ok(array @ Value::Array(_)) => TagValueCells::structured(&array, text),
            Ok(scalar) => TagValueCells::owned(&scalar),
            Err(_) => TagValueCells {
                kind: "string",
                text: Some(Cow::Borrowed(text)),
                ..TagValueCells::default()
            },
        }
    }

    /// An object or array as sent, without surrounding white space.
    fn structured(value: &Value, sent: &'a str) -> TagValueCells<'a> {
        TagValueCells {
            text: Some(Cow::Borrowed(sent.trim_ascii())),
            ..TagValueCells::numeric(value)
        }
    }

    fn owned(value: &Value) -> TagValueCells<'static> {
        let text = TagValueCells::of_value(value)
            .text
            .map(|text| Cow::Owned(text.into_owned()));
        TagValueCells {
            text,
            ..TagValueCells::numeric(value)
        }
    }

    /// The size of text and bytes.
    pub fn heap_bytes(&self) -> usize {
        self.text.as_ref().map_or(0, |text| text.len()) + self.bytes.map_or(0, <[u8]>::len)
    }
}

/// `value_text` of a value that is neither a text nor a number of 64 bits.
fn written_text(value: &Value) -> Option<String> {
    match value {
        Value::U64(n) if i64::try_from(*n).is_err() => Some(n.to_string()),
        Value::Time(ticks) => Some(ticks.to_string()),
        Value::Guid(_) | Value::Structured(_) | Value::Array(_) | Value::Object(_) => Some(json::to_string(value)),
        _ => None,
    }
}

/// Matches exactly `{"value": …, "timestamp_ms": …}`.
fn sample_of(object: &Object) -> Option<(&Value, i64)> {
    if object.len() != 2 {
        return None;
    }
    Some((object.get("value")?, object.get("timestamp_ms")?.as_i64()?))
}

/// The rule that determined a row's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeSource {
    Own = 0,
    Observed = 1,
    Arrival = 2,
}

/// The time of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowTime {
    pub nanos: i64,
    pub source: TimeSource,
    /// The time as sent, in nanoseconds, if it was outside of the arrival window.
    pub original: Option<String>,
}

impl RowTime {
    /// The script's explicit time, else the source's, else the payload's own, else the server's, else the arrival.
    pub fn of(
        window: ArrivalWindow,
        explicit_ms: Option<i64>,
        stamps: Option<ValueQuality>,
        payload_ms: Option<i64>,
        arrival: i64,
    ) -> RowTime {
        let millis = |ms: i64| i128::from(ms) * NANOS_PER_MILLI;
        let ticks = |at: Ticks| (!at.is_missing()).then(|| i128::from(at.0) * NANOS_PER_TICK);
        let own = explicit_ms
            .map(millis)
            .or_else(|| stamps.and_then(|s| ticks(s.source_time)))
            // With stamps, the payload's time was filled in by a stage and is not from the source.
            .or_else(|| payload_ms.filter(|_| stamps.is_none()).map(millis));
        let sent = own
            .map(|nanos| (nanos, TimeSource::Own))
            .or_else(|| Some((stamps.and_then(|s| ticks(s.server_time))?, TimeSource::Observed)));
        let Some((sent, source)) = sent else {
            return RowTime {
                nanos: arrival,
                source: TimeSource::Arrival,
                original: None,
            };
        };
        let earliest = i128::from(arrival) - i128::from(window.past);
        let latest = i128::from(arrival) + i128::from(window.future);
        match i64::try_from(sent) {
            Ok(nanos) if (earliest..=latest).contains(&sent) => RowTime {
                nanos,
                source,
                original: None,
            },
            _ => RowTime {
                nanos: arrival,
                source: TimeSource::Arrival,
                original: Some(sent.to_string()),
            },
        }
    }
}

/// A typed stamp in nanoseconds: `Ok(None)` if there is none, the time's text if it does not fit.
pub fn stamp_nanos(at: Ticks) -> Result<Option<i64>, Text> {
    if at.is_missing() {
        return Ok(None);
    }
    match at.unix_nanos() {
        Some(nanos) => Ok(Some(nanos)),
        None => Err(at.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_record::Guid;

    fn raw(text: &str) -> Payload {
        Payload::Raw(text.to_owned().into())
    }

    fn cells<'a>(
        kind: &'static str,
        number: Option<f64>,
        integer: Option<i64>,
        text: Option<&'a str>,
        time_ms: Option<i64>,
    ) -> TagValueCells<'a> {
        TagValueCells {
            kind,
            number,
            integer,
            text: text.map(Cow::Borrowed),
            bytes: None,
            time_ms,
        }
    }

    #[test]
    fn every_value_lands_in_the_columns_that_hold_it() {
        let big = u64::MAX.to_string();
        let guid = Value::Guid(Guid {
            data1: 1,
            data2: 2,
            data3: 3,
            data4: [0; 8],
        });
        let cases = [
            (
                Payload::Value(Value::Bool(true)),
                cells("boolean", Some(1.0), Some(1), None, None),
            ),
            (
                Payload::Value(Value::I64(i64::MAX)),
                cells("int64", Some(i64::MAX as f64), Some(i64::MAX), None, None),
            ),
            (
                Payload::Value(Value::U64(u64::MAX)),
                cells("uint64", Some(u64::MAX as f64), None, Some(&big), None),
            ),
            (
                Payload::Value(Value::U64(5)),
                cells("uint64", Some(5.0), Some(5), None, None),
            ),
            (
                Payload::Value(Value::F64(5.0)),
                cells("double", Some(5.0), None, None, None),
            ),
            (
                Payload::Value(Value::Decimal("1.50".into())),
                cells("decimal", Some(1.5), None, Some("1.50"), None),
            ),
            (
                Payload::Value(Value::text("12")),
                cells("string", None, None, Some("12"), None),
            ),
            (
                Payload::Value(Value::Status(7)),
                cells("statuscode", Some(7.0), Some(7), None, None),
            ),
            (Payload::Value(Value::Null), cells("null", None, None, None, None)),
            (
                Payload::Value(Value::Time(Ticks(0))),
                cells("datetime", None, None, Some("1970-01-01T00:00:00Z"), None),
            ),
            (
                Payload::Value(guid),
                cells(
                    "guid",
                    None,
                    None,
                    Some(r#"{"Data1":1,"Data2":2,"Data3":3,"Data4":"AAAAAAAAAAA="}"#),
                    None,
                ),
            ),
            (
                Payload::Value(vec![Value::I64(1)].into()),
                cells("array", None, None, Some("[1]"), None),
            ),
            (
                Payload::Sample {
                    value: Value::text("x"),
                    time_ms: 9,
                },
                cells("string", None, None, Some("x"), Some(9)),
            ),
            (raw("12"), cells("int64", Some(12.0), Some(12), None, None)),
            (raw("\"12\""), cells("string", None, None, Some("12"), None)),
            (raw("twelve"), cells("string", None, None, Some("twelve"), None)),
            (
                raw(r#"{"value":2.5,"timestamp_ms":-3}"#),
                cells("double", Some(2.5), None, None, Some(-3)),
            ),
            (
                raw(r#"{"timestamp_ms":3,"value":null}"#),
                cells("null", None, None, None, Some(3)),
            ),
            (
                raw(" {\"value\":1, \"unit\":\"m\"}\n"),
                cells("object", None, None, Some("{\"value\":1, \"unit\":\"m\"}"), None),
            ),
        ];
        for (payload, expected) in cases {
            assert_eq!(TagValueCells::of(&payload), expected, "{payload:?}");
        }
        let bytes = Payload::Raw(vec![0xff, 0].into());
        assert_eq!(TagValueCells::of(&bytes).bytes, Some([0xff, 0].as_slice()));
    }

    #[test]
    fn times_follow_their_rules_and_impossible_ones_are_replaced_and_kept() {
        const SECOND: i64 = 1_000_000_000;
        let arrival = 1_800_000_000 * SECOND;
        let at = |seconds: i64| Ticks((1_800_000_000 + seconds) * 10_000_000);
        let stamps = |source, server| {
            Some(ValueQuality {
                source_time: source,
                server_time: server,
                status: 0,
            })
        };
        let window = ArrivalWindow::default();
        let row = |nanos, source| RowTime {
            nanos,
            source,
            original: None,
        };
        let both = stamps(at(-2), at(-1));
        assert_eq!(
            RowTime::of(window, Some(1_799_999_990_000), both, Some(1), arrival),
            row(arrival - 10 * SECOND, TimeSource::Own)
        );
        assert_eq!(
            RowTime::of(window, None, both, Some(1), arrival),
            row(arrival - 2 * SECOND, TimeSource::Own)
        );
        let server = stamps(Ticks::MISSING, at(-1));
        assert_eq!(
            RowTime::of(window, None, server, Some(1), arrival),
            row(arrival - SECOND, TimeSource::Observed)
        );
        let none = stamps(Ticks::MISSING, Ticks::MISSING);
        assert_eq!(
            RowTime::of(window, None, none, Some(1), arrival),
            row(arrival, TimeSource::Arrival)
        );
        assert_eq!(
            RowTime::of(window, None, None, Some(1_800_000_001_000), arrival),
            row(arrival + SECOND, TimeSource::Own)
        );
        assert_eq!(
            RowTime::of(window, None, None, None, arrival),
            row(arrival, TimeSource::Arrival)
        );
        for (stamps, original) in [
            (stamps(Ticks(0), at(0)), "0"),
            (stamps(at(86_401), at(0)), &*(arrival + 86_401 * SECOND).to_string()),
            (stamps(Ticks(i64::MAX), at(0)), "922337203685477580700"),
        ] {
            let time = RowTime::of(window, None, stamps, None, arrival);
            assert_eq!((time.nanos, time.source), (arrival, TimeSource::Arrival));
            assert_eq!(time.original.as_deref(), Some(original));
        }
    }
}
