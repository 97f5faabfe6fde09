//! Messages as JSON texts, in both directions.
//!
//! A payload is given as one of `text`, `json`, `base64`. A `json` is kept to the letter, because parsing numbers would
//! lose digits. It is returned as
//! - `json`, also to the letter, if its content type is JSON (`application/json`, `…+json`), it is valid, and every
//!   JSON parser accepts it (`portable_json.rs`);
//! - `text`, if it is UTF-8 and its content type is not binary (`application/octet-stream`, images, sound, …);
//! - `base64` otherwise.
//!
//! The rejected option, testing whether a payload without content type happens to be JSON, would make `5` sometimes a
//! number and sometimes a text.

use std::collections::HashSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use thalweg_log::Micros;
use thalweg_log::format::record::PropertiesRef;
use thalweg_queue::message_times::instant_text;
use thalweg_queue::{Clock, Delivery, Message, MessageId, Queue};

use crate::json::JsonObject;
use crate::portable_json;
use crate::problem::{Problem, Result};

pub const CONTENT_TYPE: &str = "content-type";

/// The payload of a message in JSON.
pub fn read(members: &JsonObject<'_>) -> Result<(Bytes, Option<&'static str>)> {
    let place = members.place();
    let forms = ["text", "json", "base64"];
    // A payload `null` counts as given, unlike other members.
    let given: Vec<&str> = forms.into_iter().filter(|form| members.is_there(form)).collect();
    match given.as_slice() {
        [form] => payload(members, form),
        [] => Err(Problem::invalid(format!(
            "{place}no payload: give text, json or base64"
        ))),
        several => {
            let several = several.join(" and ");
            Err(Problem::invalid(format!(
                "{place}{several}: give one of text, json and base64"
            )))
        }
    }
}

fn payload(members: &JsonObject<'_>, form: &str) -> Result<(Bytes, Option<&'static str>)> {
    match form {
        "json" => {
            let raw = members.raw_or_null("json");
            // Otherwise it would be returned as a text.
            portable_json::check(raw).map_err(|why| {
                let place = members.place();
                Problem::invalid(format!("{place}json: {why}; send it as text or base64"))
            })?;
            Ok((Bytes::copy_from_slice(raw.as_bytes()), Some("application/json")))
        }
        "base64" => {
            let bytes = members.bytes("base64")?;
            Ok((bytes.ok_or_else(|| members.wrong("base64", "a text"))?, None))
        }
        _ => Ok((Bytes::from(members.required_text("text")?), None)),
    }
}

/// A delivered message, as a JSON object in one line.
pub fn delivery(out: &mut String, queue: &Queue, delivery: &Delivery) {
    let receipt = queue.receipt(delivery);
    out.push_str("{\"receipt\":");
    text(out, &receipt.to_string());
    out.push(',');
    place(out, &receipt.id);
    let _ = write!(out, ",\"delivery\":{}", delivery.delivery);
    if delivery.deadline > 0 {
        instant(out, "deadline", queue.clock().wall_at(delivery.deadline));
    }
    content(out, queue.clock(), &delivery.message);
    out.push('}');
}

/// A stored message, as a JSON object.
pub fn stored(out: &mut String, queue: &Queue, partition: u32, message: &Message) {
    let id = MessageId {
        queue: queue.name().clone(),
        partition,
        offset: message.offset,
    };
    out.push('{');
    place(out, &id);
    content(out, queue.clock(), message);
    out.push('}');
}

fn place(out: &mut String, id: &MessageId) {
    out.push_str("\"id\":");
    text(out, &id.to_string());
    let _ = write!(out, ",\"partition\":{},\"offset\":{}", id.partition, id.offset);
}

fn content(out: &mut String, clock: &dyn Clock, message: &Message) {
    instant(out, "enqueued_at", clock.wall_at(message.time));
    if let Some(at) = message.deliver_at.or(message.not_before.map(|at| clock.wall_at(at))) {
        instant(out, "deliver_at", at);
    }
    if let Some(ttl_ms) = message.ttl_ms {
        let _ = write!(out, ",\"ttl_ms\":{ttl_ms}");
    }
    if let Some(key) = &message.key {
        match std::str::from_utf8(key) {
            Ok(key) => member(out, "key", key),
            Err(_) => member(out, "key_base64", &BASE64.encode(key)),
        }
    }
    let properties = message.properties.as_ref();
    out.push_str(",\"properties\":{");
    for (n, (name, value)) in unique(properties).enumerate() {
        if n > 0 {
            out.push(',');
        }
        text(out, name);
        out.push(':');
        text(out, value);
    }
    out.push_str("},");
    body(out, &message.payload, properties.get(CONTENT_TYPE).unwrap_or_default());
}

/// MQTT properties may repeat; an object has each name once, with its first value.
fn unique(properties: PropertiesRef<'_>) -> impl Iterator<Item = (&str, &str)> {
    let mut names = NameSet::default();
    properties.iter().filter(move |(name, _)| names.insert(name))
}

/// Names seen so far. Most messages have a few, which are scanned; a client may send thousands.
#[derive(Default)]
struct NameSet<'a> {
    few: Vec<&'a str>,
    many: HashSet<&'a str>,
}

const FEW: usize = 16;

impl<'a> NameSet<'a> {
    /// False if it was already in the set.
    fn insert(&mut self, name: &'a str) -> bool {
        if self.few.contains(&name) {
            return false;
        }
        if self.few.len() == FEW {
            return self.many.insert(name);
        }
        self.few.push(name);
        true
    }
}

fn body(out: &mut String, payload: &[u8], content_type: &str) {
    let media_type = content_type
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    match std::str::from_utf8(payload) {
        Ok(payload) if is_json(&media_type) && portable_json::check(payload).is_ok() => {
            out.push_str("\"json\":");
            // In one line, for events. Line ends occur only between tokens, because a JSON string has none.
            out.extend(
                payload
                    .trim()
                    .chars()
                    .map(|c| if matches!(c, '\n' | '\r') { ' ' } else { c }),
            );
        }
        Ok(payload) if !is_bytes(&media_type) => {
            out.push_str("\"text\":");
            text(out, payload);
        }
        _ => {
            out.push_str("\"base64\":\"");
            BASE64.encode_string(payload, out);
            out.push('"');
        }
    }
}

fn is_json(media_type: &str) -> bool {
    media_type == "application/json" || media_type.ends_with("+json")
}

fn is_bytes(media_type: &str) -> bool {
    let kinds = ["image/", "audio/", "video/", "font/"];
    let exact = [
        "application/octet-stream",
        "application/zip",
        "application/gzip",
        "application/pdf",
    ];
    exact.contains(&media_type) || kinds.iter().any(|kind| media_type.starts_with(kind))
}

fn member(out: &mut String, name: &str, value: &str) {
    let _ = write!(out, ",\"{name}\":");
    text(out, value);
}

fn instant(out: &mut String, name: &str, at: Micros) {
    // Times beyond the year 9999 have no text; nobody waits so long.
    if let Some(at) = instant_text(at) {
        let _ = write!(out, ",\"{name}\":\"{at}\"");
    }
}

/// A JSON string.
pub fn text(out: &mut String, value: &str) {
    // A string always has a JSON form.
    out.push_str(&serde_json::to_string(value).unwrap_or_else(|_| "\"\"".to_owned()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use thalweg_log::format::record::Properties;

    fn shown(payload: &[u8], content_type: &str) -> Value {
        let mut out = "{".to_owned();
        body(&mut out, payload, content_type);
        out.push('}');
        serde_json::from_str(&out).unwrap()
    }

    #[test]
    fn a_payload_is_shown_as_its_content_type_says_if_that_is_true() {
        assert_eq!(shown(b"5", ""), json!({"text": "5"}));
        assert_eq!(shown(b"5", "application/json; charset=utf-8"), json!({"json": 5}));
        assert_eq!(shown(b"{oops", "application/json"), json!({"text": "{oops"}));
        assert_eq!(shown(b"abc", "application/octet-stream"), json!({"base64": "YWJj"}));
        assert_eq!(shown(b"\xff\x00", "text/plain"), json!({"base64": "/wA="}));
        assert_eq!(shown("ü".as_bytes(), "text/plain"), json!({"text": "ü"}));
        // Not every parser accepts half of a surrogate pair.
        assert_eq!(
            shown(br#""\ud800""#, "application/json"),
            json!({"text": "\"\\ud800\""})
        );
    }

    #[test]
    fn what_is_taken_as_json_comes_out_as_json_and_the_rest_is_refused() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for (json, taken) in [
            ("1e400".to_owned(), false),
            (deep(100), true),
            (deep(200), false),
            (deep(100_000), false),
            ("-0".to_owned(), true),
            ("9".repeat(300), true),
            (r#"{"a":1,"a":2}"#.to_owned(), true),
            (r#""\ud83d\ude00""#.to_owned(), true),
            (r#""\ud800""#.to_owned(), false),
        ] {
            let message = format!("{{\"json\": {json}}}");
            let members = JsonObject::of(&message, String::new(), &["json"]).unwrap();
            let payload = read(&members);
            assert_eq!(payload.is_ok(), taken, "{json:.60}");
            let Ok((payload, content_type)) = payload else {
                let problem = payload.unwrap_err().to_json().to_string();
                assert!(problem.contains("send it as text"), "{problem}");
                continue;
            };
            let mut out = String::new();
            body(&mut out, &payload, content_type.unwrap());
            assert_eq!(out, format!("\"json\":{json}"));
        }
    }

    #[test]
    fn json_passes_to_the_letter_and_in_one_line() {
        let mut out = String::new();
        body(
            &mut out,
            b" {\"a\": 123456789012345678901234567890,\r\n\"b\": 1.10}\n",
            "a/b+json",
        );
        assert_eq!(out, "\"json\":{\"a\": 123456789012345678901234567890,  \"b\": 1.10}");
    }

    #[test]
    fn thousands_of_names_are_looked_at_once_each() {
        let names = (0..13_822).map(|n| (format!("{}", n % 13_000), "1"));
        let properties: Properties = names.collect();
        let shown: Vec<&str> = unique(properties.as_ref()).map(|(name, _)| name).collect();
        assert_eq!(shown.len(), 13_000);
        assert!(shown.iter().enumerate().all(|(n, name)| *name == n.to_string()));
    }

    proptest! {
        #[test]
        fn each_name_is_shown_once_with_its_first_value(names in proptest::collection::vec(0..30u8, 0..60)) {
            let pairs: Vec<(String, String)> = names.iter().enumerate().map(|(n, name)| (name.to_string(), n.to_string())).collect();
            let properties: Properties = pairs.iter().map(|(name, value)| (name, value)).collect();
            let mut first: Vec<(&str, &str)> = Vec::new();
            for (name, value) in &pairs {
                if first.iter().all(|(known, _)| known != name) {
                    first.push((name, value));
                }
            }
            prop_assert_eq!(unique(properties.as_ref()).collect::<Vec<_>>(), first);
        }

        #[test]
        fn whatever_is_shown_reads_back_as_the_same_bytes(payload in proptest::collection::vec(any::<u8>(), 0..40), json in any::<bool>()) {
            let value = shown(&payload, if json { "application/json" } else { "" });
            if value["json"].is_null() {
                let text = serde_json::to_string(&value).unwrap();
                let members = JsonObject::of(&text, String::new(), &["text", "json", "base64"]).unwrap();
                prop_assert_eq!(read(&members).unwrap().0, payload);
            } else {
                prop_assert_eq!(&value["json"], &serde_json::from_slice::<Value>(&payload).unwrap());
            }
        }
    }
}
