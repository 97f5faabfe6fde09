//! `POST /queues/{queue}/messages`: one message; the body is its payload, headers have the rest.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use thalweg_log::Micros;
use thalweg_log::format::record::Properties;
use thalweg_queue::message_times::{parse_delay, parse_deliver_at, parse_ttl};
use thalweg_queue::settings::MESSAGE_BYTES_MAX;
use thalweg_queue::{Clock, MessageId, NewMessage, PROPERTIES_BYTES_MAX, ProduceResult, Queue, QueueErrorKind};

use crate::json::cut;
use crate::payload::CONTENT_TYPE;
use crate::problem::{Problem, ProblemKind, Result};
use crate::request::ApiRequest;
use crate::response;

const KEY_BYTES_MAX: usize = 64 << 10;
const DEDUP_ID_BYTES_MAX: usize = 1 << 10;
const PROPERTY_HEADER: &str = "x-prop-";

pub async fn one(mut call: ApiRequest) -> Result<Response> {
    let queue = call.used_queue("produce to").await?;
    let limit = queue.settings().max_message_size.min(MESSAGE_BYTES_MAX) as usize;
    let limit_of = format!("the most that queue {} takes (max_message_size)", queue.name());
    let payload = call.body(limit, &limit_of).await;
    let payload = payload.inspect_err(|problem| count_too_large(&queue, problem))?;
    let message = with_headers(payload, &call.headers, queue.clock())?;
    let produced = queue.produce(message).await?;
    let mut body = place(&queue, produced);
    body["durability"] = queue.durability().name().into();
    let status = match produced.repeated {
        // Nothing was created.
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    Ok(response::json_with(status, &body))
}

/// Counts a message refused here, because the queue only counts those that reach it.
pub fn count_too_large(queue: &Queue, problem: &Problem) {
    if problem.kind == ProblemKind::Queue(QueueErrorKind::MessageTooLarge) {
        queue.counters().refused_too_large.fetch_add(1, Ordering::Relaxed);
    }
}

/// Where a message was stored.
pub fn place(queue: &Queue, produced: ProduceResult) -> Value {
    let id = MessageId {
        queue: queue.name().clone(),
        partition: produced.partition,
        offset: produced.offset,
    };
    let mut place = json!({"id": id.to_string(), "partition": id.partition, "offset": id.offset});
    if produced.repeated {
        place["repeated"] = true.into();
    }
    place
}

fn with_headers(payload: Bytes, headers: &HeaderMap, clock: &dyn Clock) -> Result<NewMessage> {
    let mut properties: Vec<(String, String)> = Vec::new();
    for (name, value) in headers {
        if let Some(name) = name.as_str().strip_prefix(PROPERTY_HEADER) {
            let value = utf8(PROPERTY_HEADER, value.as_bytes())?;
            properties.push((name.to_owned(), value.to_owned()));
        }
    }
    // The default type of HTTP clients means that none was chosen.
    let unsaid = "application/x-www-form-urlencoded";
    let given = header_text(headers, header::CONTENT_TYPE.as_str())?;
    if let Some(content_type) = given.filter(|given| !given.starts_with(unsaid))
        && !properties.iter().any(|(name, _)| name == CONTENT_TYPE)
    {
        properties.push((CONTENT_TYPE.to_owned(), content_type.to_owned()));
    }
    let said = MessageFields {
        key: headers.get("x-key").map(|key| Bytes::copy_from_slice(key.as_bytes())),
        delay: header_text(headers, "x-delay")?,
        deliver_at: header_text(headers, "x-deliver-at")?,
        ttl: header_text(headers, "x-ttl")?,
        dedup_id: header_text(headers, "x-dedup-id")?,
    };
    for name in ["x-key", "x-delay", "x-deliver-at", "x-ttl", "x-dedup-id"] {
        if headers.get_all(name).iter().nth(1).is_some() {
            return Err(Problem::invalid(format!("{name}: given twice")));
        }
    }
    message(payload, properties, said, clock)
}

fn header_text<'h>(headers: &'h HeaderMap, name: &str) -> Result<Option<&'h str>> {
    let value = headers.get(name);
    value.map(|value| utf8(name, value.as_bytes())).transpose()
}

fn utf8<'h>(name: &str, value: &'h [u8]) -> Result<&'h str> {
    std::str::from_utf8(value).map_err(|_| Problem::invalid(format!("{name}: expected UTF-8")))
}

/// What a producer specifies about a message, in headers or in a line.
#[derive(Default)]
pub struct MessageFields<'a> {
    pub key: Option<Bytes>,
    pub delay: Option<&'a str>,
    pub deliver_at: Option<&'a str>,
    pub ttl: Option<&'a str>,
    pub dedup_id: Option<&'a str>,
}

/// Builds the message; relative times start at the current time of the queue's clock.
pub fn message(
    payload: Bytes,
    properties: Vec<(String, String)>,
    said: MessageFields<'_>,
    clock: &dyn Clock,
) -> Result<NewMessage> {
    let (not_before, deliver_at) = delayed(&said, clock)?;
    let ttl = said.ttl.map(parse_ttl).transpose();
    let ttl: Option<Duration> = ttl.map_err(|error| Problem::invalid(error.to_string()))?;
    if let Some(key) = &said.key
        && key.len() > KEY_BYTES_MAX
    {
        let detail = format!("a key has at most {KEY_BYTES_MAX} bytes, this one has {}", key.len());
        return Err(Problem::too_large(detail));
    }
    check_properties(&properties)?;
    if let Some(id) = said.dedup_id
        && (id.is_empty() || id.len() > DEDUP_ID_BYTES_MAX)
    {
        let detail = format!("dedup-id: expected 1 to {DEDUP_ID_BYTES_MAX} bytes, got {}", id.len());
        return Err(Problem::invalid(detail));
    }
    Ok(NewMessage {
        payload,
        key: said.key.filter(|key| !key.is_empty()),
        properties: properties
            .iter()
            .map(|(name, value)| (name, value))
            .collect::<Properties>(),
        ttl,
        not_before,
        deliver_at,
        dedup_id: said.dedup_id.map(Box::from),
    })
}

/// A relative delay, or a wall-clock time of delivery.
fn delayed(said: &MessageFields<'_>, clock: &dyn Clock) -> Result<(Option<Micros>, Option<Micros>)> {
    let wrong = |error: thalweg_queue::message_times::TimeError| Problem::invalid(error.to_string());
    match (said.delay, said.deliver_at) {
        (None, None) => Ok((None, None)),
        (Some(_), Some(_)) => Err(Problem::invalid("delay and deliver-at: give one of them")),
        // A time in the past is due, and its lifetime begins now, not then.
        (None, Some(at)) => {
            let now = clock.wall_at(clock.now());
            let at = parse_deliver_at(at, now).map_err(wrong)?;
            Ok((None, Some(at).filter(|at| *at > now)))
        }
        (Some(delay), None) => {
            let delay = parse_delay(delay).map_err(wrong)?;
            let until = clock.now() + delay.as_micros() as Micros;
            Ok((Some(until).filter(|_| !delay.is_zero()), None))
        }
    }
}

/// Properties with a meaning are given in other ways, so that a misspelt one is not silently ignored.
fn check_properties(properties: &[(String, String)]) -> Result<()> {
    let bytes: usize = properties.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > PROPERTIES_BYTES_MAX {
        let detail = format!("properties have at most {PROPERTIES_BYTES_MAX} bytes together, these have {bytes}");
        return Err(Problem::too_large(detail));
    }
    let mut names = HashSet::with_capacity(properties.len());
    for (name, _) in properties {
        let rule = match name.as_str() {
            // A reader would see only one of two values.
            name if !names.insert(name) => "it is given twice; give each property once",
            "" => "a property needs a name",
            "partition-key" => "give it as X-Key, or key in a line",
            "delay" | "deliver-at" | "ttl" | "dedup-id" => "give it as a header X-..., or a field of the line",
            name if name.starts_with("x-") || name.starts_with('_') => "names beginning with x- or _ are reserved",
            _ => continue,
        };
        return Err(Problem::invalid(format!("property {:?}: {rule}", cut(name))));
    }
    Ok(())
}
