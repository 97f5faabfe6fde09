//! A message as the store returns it, an array of eight, and as one line of JSON in a file. Data and metadata keep
//! their exact text.

use anyhow::{Context as _, Result};
use serde_json::value::RawValue;

/// Slices of the text that was read.
#[derive(Debug)]
pub struct MessageRow<'a> {
    id: &'a RawValue,
    stream: &'a RawValue,
    kind: &'a RawValue,
    position: &'a RawValue,
    pub global: u64,
    data: &'a RawValue,
    metadata: &'a RawValue,
    /// In microseconds.
    pub time: i64,
    written_time: &'a RawValue,
}

impl<'a> MessageRow<'a> {
    /// Parses `[id, stream, type, position, globalPosition, data, metadata, time]`.
    pub fn parse(text: &'a str) -> Result<MessageRow<'a>> {
        let wrong = || format!("the answer contains an invalid message: {}", shortened(text));
        let parts: [&RawValue; 8] = serde_json::from_str(text).with_context(wrong)?;
        let [id, stream, kind, position, global, data, metadata, time] = parts;
        let written: String = serde_json::from_str(time.get()).with_context(wrong)?;
        Ok(MessageRow {
            id,
            stream,
            kind,
            position,
            global: serde_json::from_str(global.get()).with_context(wrong)?,
            data,
            metadata,
            time: thalweg_events::time::parse(&written).with_context(wrong)?,
            written_time: time,
        })
    }

    /// The record without a line end.
    pub fn record(&self) -> String {
        let MessageRow {
            id,
            stream,
            kind,
            position,
            global,
            data,
            metadata,
            written_time,
            ..
        } = self;
        format!(
            "{{\"id\":{id},\"stream\":{stream},\"type\":{kind},\"pos\":{position},\"gpos\":{global},\"data\":{data},\"meta\":{metadata},\"time\":{written_time}}}"
        )
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_very_text_of_the_message() {
        let row = r#"["0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819","order-7","Cr\u00e9ated",0,47,{"b":1.10,"a":12345678901234567890,"a":2},null,"2026-01-15T10:00:00.5Z"]"#;
        let expected = r#"{"id":"0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819","stream":"order-7","type":"Cr\u00e9ated","pos":0,"gpos":47,"data":{"b":1.10,"a":12345678901234567890,"a":2},"meta":null,"time":"2026-01-15T10:00:00.5Z"}"#;
        let parsed = MessageRow::parse(row).unwrap();
        assert_eq!(parsed.record(), expected);
        assert_eq!((parsed.global, parsed.time), (47, 1_768_471_200_500_000));
    }

    #[test]
    fn what_is_no_message_is_told() {
        for text in ["[]", "null", "[1,2,3,4,5,6,7,8]", r#"["a","b","c",0,1,{},null]"#, ""] {
            assert!(MessageRow::parse(text).is_err(), "{text}");
        }
    }
}
