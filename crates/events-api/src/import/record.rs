//! Parses a line as a message with its positions. The limits are those of appends.

use thalweg_events::json::{self, Json, JsonKind};
use thalweg_events::limits::{
    POSITION_MAX, STREAM_BYTES_MAX, TYPE_BYTES_MAX, check_id, check_message_size, name_fault,
};
use thalweg_events::{BrokenLimit, ImportRecord, MessageId, time};

use super::ImportError;
use crate::error_kind::EventsApiErrorKind;

pub(super) fn record(line: &[u8], n: u64, message_bytes_max: usize) -> Result<ImportRecord, ImportError> {
    let mut compacted = String::with_capacity(line.len());
    json::compact(line, &mut compacted).map_err(|error| ImportError {
        kind: EventsApiErrorKind::InvalidJson,
        message: format!("malformed JSON at line {n}: {error}"),
        line: n,
    })?;
    read(Json::new(&compacted), message_bytes_max).map_err(|what| ImportError {
        kind: EventsApiErrorKind::InvalidRecord,
        message: format!("invalid record at line {n}: {what}"),
        line: n,
    })
}

fn read(json: Json<'_>, message_bytes_max: usize) -> Result<ImportRecord, String> {
    if json.kind() != JsonKind::Object {
        return Err("it is not an object".to_owned());
    }
    let required = |name: &str| {
        let value = json.get(name).and_then(Json::string).filter(|value| !value.is_empty());
        value.map(String::from).ok_or_else(|| format!("{name} is required"))
    };
    let within = |name: &str, value: String, bytes_max: usize| match name_fault(&value, bytes_max) {
        Some(fault) => Err(format!("{name} {fault}")),
        None => Ok(value),
    };
    let whole = |name: &str, least: i64| {
        let value = json.get(name).and_then(Json::integer);
        let value = value.filter(|value| (least..=POSITION_MAX.cast_signed()).contains(value));
        let wrong = || format!("{name} must be a number from {least} to {POSITION_MAX}");
        value.map(i64::unsigned_abs).ok_or_else(wrong)
    };
    let object = |name: &str| match json.get(name) {
        None => Ok(None),
        Some(value) if value.is_null() => Ok(None),
        Some(value) if value.kind() == JsonKind::Object => Ok(Some(value.text().to_owned())),
        Some(_) => Err(format!("{name} must be an object")),
    };
    let id = match json.get("id") {
        None => None,
        Some(id) if id.is_null() => None,
        Some(id) => Some(id.string().ok_or("id must be a string")?.into_owned()),
    };
    let id = id.filter(|id| !id.is_empty()).map(|id| MessageId::of(&id));
    let told = |broken: BrokenLimit| broken.to_string();
    id.as_ref().map_or(Ok(()), check_id).map_err(told)?;
    let moment = required("time")?;
    let import = ImportRecord {
        id,
        stream: within("stream", required("stream")?, STREAM_BYTES_MAX)?,
        kind: within("type", required("type")?, TYPE_BYTES_MAX)?,
        position: whole("pos", 0)?,
        global: whole("gpos", 1)?,
        data: object("data")?.unwrap_or_else(|| "{}".to_owned()),
        metadata: object("meta")?,
        time: time::parse(&moment).ok_or("time must be RFC 3339")?,
    };
    check_message_size(import.content_bytes(), message_bytes_max).map_err(told)?;
    Ok(import)
}

/// The size that a record adds to its batch.
pub(super) fn bytes_of(record: &ImportRecord) -> usize {
    let id = match &record.id {
        Some(MessageId::Text(text)) => text.len(),
        _ => 16,
    };
    id + record.stream.len() + record.content_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"id":"x","stream":"s-1","type":"t","pos":0,"gpos":1,"data":{"a":1},"meta":null,"time":"2026-01-15T10:00:00Z"}"#;

    #[test]
    fn a_record_is_read_with_its_places() {
        let read = record(GOOD.as_bytes(), 1, 100).unwrap();
        assert_eq!((read.stream.as_str(), read.kind.as_str()), ("s-1", "t"));
        assert_eq!((read.position, read.global, read.data.as_str()), (0, 1, r#"{"a":1}"#));
        assert_eq!(read.time, 1_768_471_200_000_000);
        let bare = r#"{"id":"","stream":"s","type":"t","pos":9007199254740991,"gpos":9007199254740991,"time":"2026-01-15T10:00:00Z"}"#;
        let read = record(bare.as_bytes(), 1, 100).unwrap();
        assert_eq!((read.id, read.data.as_str()), (None, "{}"));
        let any = GOOD.replacen("\"x\"", "\"x\\u0000\"", 1);
        let read = record(any.as_bytes(), 1, 100).unwrap();
        assert_eq!(read.id, Some(MessageId::of("x\0")));
    }

    #[test]
    fn what_is_wrong_with_a_record_is_told_with_its_line() {
        let (name, kind, id) = ("s".repeat(1025), "t".repeat(256), "i".repeat(256));
        for (from, to, what) in [
            ("\"time\"", "\"tim\"", "time is required"),
            ("2026-01-15T10:00:00Z", "yesterday", "time must be RFC 3339"),
            ("\"s-1\"", "7", "stream is required"),
            ("\"t\"", "\"\"", "type is required"),
            (
                "\"pos\":0",
                "\"pos\":-1",
                "pos must be a number from 0 to 9007199254740991",
            ),
            (
                "\"pos\":0",
                "\"pos\":9007199254740992",
                "pos must be a number from 0 to 9007199254740991",
            ),
            (
                "\"gpos\":1",
                "\"gpos\":0",
                "gpos must be a number from 1 to 9007199254740991",
            ),
            (
                "\"gpos\":1",
                "\"gpos\":\"1\"",
                "gpos must be a number from 1 to 9007199254740991",
            ),
            ("{\"a\":1}", "[]", "data must be an object"),
            ("\"meta\":null", "\"meta\":1", "meta must be an object"),
            ("\"x\"", "1", "id must be a string"),
            ("\"x\"", &format!("\"{id}\""), "id exceeds 255 bytes"),
            ("s-1", &name, "stream exceeds 1024 bytes"),
            ("s-1", "s\\u0000", "stream must not contain U+0000"),
            ("\"t\"", &format!("\"{kind}\""), "type exceeds 255 bytes"),
            (
                "{\"a\":1}",
                "{\"abcdefghijklmnop\":123}",
                "message size 25 exceeds the limit of 24 bytes",
            ),
        ] {
            let line = GOOD.replacen(from, to, 1);
            let failed = record(line.as_bytes(), 7, 24).unwrap_err();
            assert_eq!((failed.kind, failed.line), (EventsApiErrorKind::InvalidRecord, 7));
            assert_eq!(failed.message, format!("invalid record at line 7: {what}"), "{line}");
        }
        let failed = record(b"{\"a\":}", 3, 24).unwrap_err();
        assert_eq!((failed.kind, failed.line), (EventsApiErrorKind::InvalidJson, 3));
        assert!(
            failed.message.starts_with("malformed JSON at line 3: "),
            "{}",
            failed.message
        );
        assert_eq!(
            record(b"[]", 3, 24).unwrap_err().message,
            "invalid record at line 3: it is not an object"
        );
    }
}
