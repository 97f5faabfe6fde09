//! `POST /queues/{queue}/messages:batch`: one message per line.
//!
//! With `atomic` (the default) all lines are stored or none, and an error names its line. Without, each line has its
//! own result. Lines are passed to the queue in order, many at a time, because each waits for a commit.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use thalweg_kit::blocking;
use thalweg_queue::{Clock, NewMessage, Queue};

use crate::json::JsonObject;
use crate::payload::{self, CONTENT_TYPE};
use crate::problem::{Problem, Result};
use crate::produce::{MessageFields, count_too_large, message, place};
use crate::request::ApiRequest;
use crate::response;

pub const LINES_MAX: usize = 10_000;
pub const BATCH_BYTES_MAX: usize = 24 << 20;
/// Lines that wait for their commits at the same time.
const AT_ONCE: usize = 1000;
const FIELDS: &[&str] = &[
    "text",
    "json",
    "base64",
    "key",
    "key_base64",
    "delay",
    "deliver_at",
    "ttl",
    "dedup_id",
    "content_type",
    "properties",
];

pub async fn produce(mut call: ApiRequest) -> Result<Response> {
    let atomic = call.flag("atomic", true)?;
    let queue = call.used_queue("produce to").await?;
    let body = call
        .body(BATCH_BYTES_MAX, "the most that a batch takes; send it in parts")
        .await?;
    let read = blocking::work(body.len(), || read_all(&queue, &body, atomic))?;
    match atomic {
        true => all(&queue, read).await,
        false => each(&queue, read).await,
    }
}

/// The message of each line, or its error.
type BatchLines = Vec<(usize, Result<NewMessage>)>;

/// If the lines are stored together, parsing stops at the first error.
fn read_all(queue: &Queue, body: &[u8], together: bool) -> Result<BatchLines> {
    let limit = queue.settings().max_message_size;
    let mut read_lines = Vec::new();
    for (n, line) in lines(body)? {
        let message = read(n, line, limit, queue.clock());
        let is_last = together && message.is_err();
        read_lines.push((n, message));
        if is_last {
            break;
        }
    }
    Ok(read_lines)
}

/// Lines with their numbers from 1; empty ones are no messages.
fn lines(body: &[u8]) -> Result<Vec<(usize, &[u8])>> {
    let lines = body
        .split(|b| *b == b'\n')
        .zip(1..)
        .map(|(line, n)| (n, line.trim_ascii()));
    let lines: Vec<(usize, &[u8])> = lines.filter(|(_, line)| !line.is_empty()).take(LINES_MAX + 1).collect();
    match lines.len() {
        0 => Err(Problem::invalid(
            "the batch has no messages; give one JSON object per line",
        )),
        n if n > LINES_MAX => {
            let detail = format!("the batch has more than {LINES_MAX} lines; send it in parts");
            Err(Problem::too_large(detail))
        }
        _ => Ok(lines),
    }
}

async fn all(queue: &Arc<Queue>, lines: BatchLines) -> Result<Response> {
    let messages: Result<Vec<NewMessage>> = lines.into_iter().map(|(_, message)| message).collect();
    let messages = messages.inspect_err(|problem| count_too_large(queue, problem))?;
    let produced = queue.produce_all(messages).await?;
    let places: Vec<Value> = produced.into_iter().map(|produced| place(queue, produced)).collect();
    let body = json!({"durability": queue.durability().name(), "messages": places});
    Ok(response::json_with(StatusCode::CREATED, &body))
}

async fn each(queue: &Arc<Queue>, lines: BatchLines) -> Result<Response> {
    let results = stream::iter(lines).map(|(n, message)| async move {
        let produced = match message {
            Ok(message) => queue.produce(message).await.map_err(Problem::from),
            Err(problem) => {
                count_too_large(queue, &problem);
                Err(problem)
            }
        };
        let mut result = match produced {
            Ok(produced) => place(queue, produced),
            Err(problem) => problem.to_json(),
        };
        result["line"] = n.into();
        result
    });
    let results: Vec<Value> = results.buffered(AT_ONCE).collect().await;
    let body = json!({"durability": queue.durability().name(), "results": results});
    Ok(response::json(&body))
}

fn read(n: usize, line: &[u8], limit: u64, clock: &dyn Clock) -> Result<NewMessage> {
    read_line(line, clock)
        .and_then(|message| within(message, limit))
        .map_err(|problem| problem.within(format_args!("line {n}")))
}

/// Checked here so that the error can name the line, which the queue does not know.
fn within(message: NewMessage, limit: u64) -> Result<NewMessage> {
    let size = message.payload.len() as u64;
    if size <= limit {
        return Ok(message);
    }
    let detail = format!("a message of {size} bytes is too large; the queue takes up to {limit} (max_message_size)");
    Err(Problem::too_large(detail))
}

fn read_line(line: &[u8], clock: &dyn Clock) -> Result<NewMessage> {
    let text = std::str::from_utf8(line)
        .map_err(|error| Problem::invalid(format!("not UTF-8 at byte {}", error.valid_up_to())))?;
    let members = JsonObject::of(text, String::new(), FIELDS)?;
    let (payload, implied) = payload::read(&members)?;
    let mut properties = members.texts("properties")?;
    let content_type = members.text("content_type")?;
    let has_one = properties.iter().any(|(name, _)| name == CONTENT_TYPE);
    match content_type.as_deref().or(implied.filter(|_| !has_one)) {
        Some(_) if has_one => {
            return Err(Problem::invalid(
                "content_type: given among the properties, too; give it once",
            ));
        }
        Some(content_type) => properties.push((CONTENT_TYPE.to_owned(), content_type.to_owned())),
        None => {}
    }
    let (delay, deliver_at) = (time(&members, "delay")?, time(&members, "deliver_at")?);
    let (ttl, dedup_id) = (time(&members, "ttl")?, members.text("dedup_id")?);
    let said = MessageFields {
        key: key(&members)?,
        delay: delay.as_deref(),
        deliver_at: deliver_at.as_deref(),
        ttl: ttl.as_deref(),
        dedup_id: dedup_id.as_deref(),
    };
    message(payload, properties, said, clock)
}

fn key(members: &JsonObject<'_>) -> Result<Option<Bytes>> {
    match (members.text("key")?, members.bytes("key_base64")?) {
        (Some(_), Some(_)) => Err(Problem::invalid("key and key_base64: give one of them")),
        (Some(text), None) => Ok(Some(Bytes::from(text))),
        (None, bytes) => Ok(bytes),
    }
}

/// A text, or a number of milliseconds.
fn time(members: &JsonObject<'_>, name: &str) -> Result<Option<String>> {
    match members.raw(name).map(|raw| raw.get()) {
        Some(number) if number.bytes().all(|b| b.is_ascii_digit()) => Ok(Some(number.to_owned())),
        _ => members.text(name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use thalweg_queue::SystemClock;

    use super::*;

    #[test]
    fn a_line_says_all_that_headers_can() {
        let line = br#"{"json": {"v": 1.0}, "key": "a", "ttl": 1500, "delay": "1m", "dedup_id": "7", "properties": {"unit": "bar"}}"#;
        let message = read(1, line, 100, &SystemClock).unwrap();
        assert_eq!(message.payload.as_ref(), br#"{"v": 1.0}"#);
        assert_eq!(message.key.as_deref(), Some(&b"a"[..]));
        assert_eq!(message.ttl.unwrap().as_millis(), 1500);
        assert_eq!(message.dedup_id.as_deref(), Some("7"));
        let properties = message.properties.as_ref();
        assert_eq!(properties.get("unit"), Some("bar"));
        assert_eq!(properties.get("content-type"), Some("application/json"));
        assert!(message.not_before.is_some());
        assert_eq!(
            read(1, br#"{"json": null}"#, 100, &SystemClock)
                .unwrap()
                .payload
                .as_ref(),
            b"null"
        );
    }

    #[test]
    fn mistakes_name_their_line() {
        for (line, code, expected) in [
            (
                &br#"{"txt": "a"}"#[..],
                "invalid_config",
                "line 4: txt: unknown field, did you mean \"text\"?",
            ),
            (
                br#"{}"#,
                "invalid_config",
                "line 4: no payload: give text, json or base64",
            ),
            (
                br#"{"text": "a", "json": 1}"#,
                "invalid_config",
                "line 4: text and json: give one of",
            ),
            (
                br#"{"base64": "?"}"#,
                "invalid_config",
                "line 4: base64: expected base64 with padding, got \"?\"",
            ),
            (
                br#"{"text": "12345678901"}"#,
                "message_too_large",
                "line 4: a message of 11 bytes",
            ),
            (
                br#"{"text": "a", "delay": "x"}"#,
                "invalid_config",
                "line 4: delay: expected a duration",
            ),
            (
                br#"{"text": "a", "properties": {"x-a": "b"}}"#,
                "invalid_config",
                "line 4: property \"x-a\": names",
            ),
            (b"[]", "invalid_config", "line 4: expected a JSON object"),
            (b"\xff", "invalid_config", "line 4: not UTF-8 at byte 0"),
        ] {
            let problem = read(4, line, 10, &SystemClock).unwrap_err();
            assert_eq!(problem.kind.facts().code, code);
            assert!(problem.detail.starts_with(expected), "{}", problem.detail);
        }
    }

    proptest! {
        #[test]
        fn no_line_breaks_the_reader(line in proptest::collection::vec(any::<u8>(), 0..80), text in "[{}\\[\\]\":,a-z0-9\\\\ ]{0,60}") {
            let _ = read(1, &line, 100, &SystemClock);
            let _ = read(1, text.as_bytes(), 100, &SystemClock);
        }
    }
}
